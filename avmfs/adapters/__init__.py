"""avmfs behind the interfaces of agent frameworks, a module for each, imported by whoever uses that framework.

Owns how a name that a framework makes up becomes the name of a file, and back. The modules know ``AVM`` alone.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

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
