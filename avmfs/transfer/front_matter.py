"""Front matter: the YAML between two lines of three hyphens at the head of a Markdown file.

Owns how what is said of a note stands there and is read again, so that its bytes come back as they were: in a block of
its own, or, where the note has front matter itself, in one line ``avm: {...}`` of that.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import yaml

from avmfs.errors import Invalid

_BLOCK: Final = re.compile(rb"---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_LINE: Final = re.compile(rb"\A---\n(avm: \{.*\})\n")
_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")  # YAML has them in no other way
OWN: Final = "own"  # in the line: the block is all ours
READABLE: Final = ("author", "created", "tags", "title")
"""What a person finds, and may change, in lines of its own."""


def parse(data: bytes) -> tuple[dict[str, Any], bytes]:
    """(what it says, what is after it); ({}, data) where there is none. Raises Invalid for a block that is no YAML."""
    found = _BLOCK.match(data)
    if found is None:
        return {}, data
    try:
        said = yaml.load(found[1].decode(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as e:
        raise Invalid(f"its front matter is no YAML: {' '.join(str(e).split())[:200]}") from None
    return (said, data[found.end() :]) if isinstance(said, dict) else ({}, data)


def with_said(data: bytes, said: dict[str, Any]) -> bytes:
    """A note's bytes with what is said of it. Where it says nothing and needs no block, the bytes are as they were."""
    found = _BLOCK.match(data)
    if found is not None and data.startswith(b"---\n"):
        return b"---\navm: " + _json(said) + data[3:]
    lines = [f"{name}: ".encode() + _json(said[name]) for name in READABLE if name in said]
    rest = {name: value for name, value in said.items() if name not in READABLE}
    return b"\n".join([b"---", *lines, b"avm: " + _json({**rest, OWN: True}), b"---\n"]) + data


def without_said(data: bytes) -> tuple[dict[str, Any], bytes, dict[str, Any]]:
    """(what ``with_said`` put in, the bytes as they were, {}); of what it never saw ({}, the bytes, its front matter).
    Raises Invalid."""
    front, body = parse(data)
    ours = front.get("avm")
    if not isinstance(ours, dict):
        return {}, data, front
    rest = {name: value for name, value in front.items() if name != "avm"}
    if ours.pop(OWN, False):
        return {**ours, **rest}, body, {}
    line = _LINE.match(data)
    if line is None:
        raise Invalid("its front matter: the line avm: {...} is not where it was written")
    return ours, b"---\n" + data[line.end() :], {}


def words(said: Any) -> list[str]:
    """Tags as people write them: a list, or text with commas or blanks."""
    if isinstance(said, str):
        said = re.split(r"[,\s]+", said)
    return [str(each).strip().lstrip("#") for each in said if each is not None] if isinstance(said, list) else []


def _json(said: Any) -> bytes:
    """On one line of YAML, which takes no halves of characters beyond 16 bits, as JSON in ASCII has them."""
    text = json.dumps(said, sort_keys=True, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode()
