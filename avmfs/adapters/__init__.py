"""avmfs behind the interfaces of agent frameworks, a module for each, imported by whoever uses that framework.

Owns where a framework's files are, how a name that it makes up becomes the name of a file, and back. The modules know
``AVM`` alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from avmfs.avm import AVM
from avmfs.errors import Invalid

_HALF = re.compile("[\ud800-\udfff]")
_MARKED = re.compile(r"[/%:?\x00-\x1f\x7f]|^[.@]")


def file_name(name: str) -> str:
    """A name for a file or directory, one for each text: what paths give a meaning to is written as %XX."""
    return _MARKED.sub(lambda found: f"%{ord(found[0]):02X}", name)


def as_json(value: Any, indent: int | None = None) -> str:
    """In plain characters, so that its words are found; escaped where half a surrogate pair could not be stored."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return text if _HALF.search(text) is None else json.dumps(value, indent=indent)


def name_of(file: str) -> str:
    """What ``file_name`` made the name of."""
    return unquote(file, errors="surrogateescape")


def root_of(avm: AVM, root: str | None, framework: str) -> str:
    """The directory of a framework's files: the one that was said, or one of its name in the agent's space. Raises
    Invalid."""
    found = (root or f"/memory/private/{avm.agent}/{framework}").rstrip("/")
    if not found.startswith("/memory/"):
        raise Invalid(f"root {root!r}: expected a directory below /memory")
    return found


def files_below(avm: AVM, folder: str, wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """The entries of files of a wanted name at and below a directory; none where it is not there."""
    try:
        entries = avm.list(folder)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry["kind"] == "directory":
            yield from files_below(avm, entry["path"], wanted)
        elif wanted(entry["name"]):
            yield entry
