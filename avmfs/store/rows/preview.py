"""What a listing shows of a file: its first line, from what it begins with.

Owns how much is read for that, and how a listing's ``q`` is compared. Pure functions over bytes; called by the reader.
"""

from __future__ import annotations

from typing import Final

from avmfs import calls, paths
from avmfs.text import sniff
from avmfs.text.escapes import visible

READ: Final = 400  # bytes of the beginning


def first_line(head: bytes) -> str:
    """The first line with words in it; nothing in it hides."""
    text = sniff.beginning(head)
    if "\0" in text:
        return "(binary)"
    for line in text.splitlines():
        if line.strip(" #\t-*>"):
            return visible(line.strip())
    return ""


def mentions(query: str, name: bytes, head: bytes) -> bool:
    """Return whether the name or the beginning has these letters, in either case."""
    calls.go_on()
    wanted = query.casefold()
    return wanted in paths.text(name).casefold() or wanted in sniff.beginning(head).casefold()
