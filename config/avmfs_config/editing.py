"""Changing one of the two files with all else in it as it was: comments, order, style.

Owns how a file is read, written and replaced as a whole, and setting one key of config.yaml. YAML's own parser says
where something stands; the new text is read again, and only written if it means exactly what was asked for. Called by
the command line, and by the daemon for mounts.yaml.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from avmfs_config.errors import ConfigError
from avmfs_config.loader import default_settings, load_settings
from avmfs_config.settings import Settings

BY_HAND = "cannot be changed without risk to the rest of the file; please edit it"
_PLAIN = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./~@+-]*")
_NO_TEXT = {"null", "true", "false", "yes", "no", "on", "off", "~"}


class EditProblem(Exception):
    """The file stays as it was; `str()` is why."""


def set_value(
    path: Path, environ: Mapping[str, str], section: str, key: str, value: str, wanted: Callable[[Settings], Settings]
) -> None:
    """Set ``section.key`` of the config.yaml at ``path``, which is made where it is missing. ``wanted`` is what the
    settings become by it. Raises EditProblem."""
    with alone(path):
        text = read_text(path) if path.exists() else ""
        try:
            before = load_settings(path, environ) if path.exists() else default_settings()
            changed = _set(text, section, key, scalar(value))
            with candidate(path, changed) as new:
                after = load_settings(new, environ)
        except ConfigError as e:
            raise EditProblem(str(e)) from None
        if after != wanted(before):
            raise EditProblem(f"{path.name}: {BY_HAND}")
        commit(path, changed)


def _set(text: str, section: str, key: str, value: str) -> str:
    root = composed(text)
    node = next((value for name, value in getattr(root, "value", []) if name.value == section), None)
    if root is not None and (root.flow_style or not isinstance(getattr(node, "value", []), list)):
        raise EditProblem(BY_HAND)
    if node is None:
        return f"{text}{chr(10) if text and not text.endswith(chr(10)) else ''}{section}:\n  {key}: {value}\n"
    start = node.start_mark.index
    there = next((value for name, value in node.value if name.value == key), None)
    if there is not None:
        return f"{text[: there.start_mark.index]}{value}{text[there.end_mark.index :]}"
    if node.flow_style:
        return f"{text[: start + 1]}{key}: {value}{', ' * bool(node.value)}{text[start + 1 :]}"
    return f"{text[:start]}{key}: {value}\n{' ' * node.start_mark.column}{text[start:]}"


def composed(text: str) -> Any:
    """The document's node; None where it says nothing. Raises EditProblem."""
    import yaml

    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as e:  # it was read before: only surgery gone wrong comes here
        raise EditProblem(BY_HAND) from e


def line_end(text: str, index: int) -> int:
    found = text.find("\n", index)
    return len(text) if found < 0 else found + 1


def scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NO_TEXT and not value[0].isdigit():
        return value
    return json.dumps(value, ensure_ascii=False)  # JSON's quotes are YAML's


def read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise EditProblem(f"{path}: {e}") from None


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """From reading the file to ``commit``: of two commands at once, the later one reads what the other has written."""
    folder = Path(os.path.realpath(path)).parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # NFS locks nothing that is open for reading alone
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def commit(path: Path, text: str) -> None:
    """Put the text in place: what a link at ``path`` names is replaced, the link stays."""
    real = Path(os.path.realpath(path))
    with candidate(real, text) as new:
        if real.exists():
            shutil.copymode(real, new)
        with open(new, "rb") as file:
            os.fsync(file.fileno())
        os.replace(new, real)
    folder = os.open(real.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class candidate:
    """A new file in a directory of its own beside ``path``; gone afterwards unless it was moved. Raises EditProblem."""

    def __init__(self, path: Path, text: str) -> None:
        try:
            self._path, self._data = path, text.encode()
        except UnicodeEncodeError:
            raise EditProblem(f"{path.name}: what is no UTF-8 cannot stand in it") from None

    def __enter__(self) -> Path:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(dir=self._path.parent, prefix=".new-"))
        new = self._folder / self._path.name
        new.write_bytes(self._data)
        return new

    def __exit__(self, *exc: object) -> None:
        shutil.rmtree(self._folder)
