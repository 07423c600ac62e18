"""A change that is too large for the log, in parts.

Whatever is written goes through the write-ahead log. On a full disk from which files were removed the database has free
pages, but a change of several megabytes finds no room for its log: so the bytes of a file are committed in parts there,
and between two of them the log is emptied. Called by the writer. Owns how edits are cut.

A commit of a handle's edits says where each of them belongs, so that laying down all of them again, after a crash
between two parts, comes to the same. The last part carries the reply: who asks again before that begins from the start.
What others have appended since the edits were made comes behind each part (``commands.writing.commit``).
Others may see a part of the edits for a moment, and when the disk fills up meanwhile, a part is what stays: as it
would be on the disk itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

PART: Final = 256 * 1024


def size(arguments: dict[str, Any]) -> int:
    """Of the bytes that a request brings."""
    found = 0
    for value in arguments.values():
        if type(value) is bytes:
            found += len(value)
        elif type(value) is list:
            for edit in value:
                if type(edit) is list:
                    for piece in edit:
                        if type(piece) is bytes:
                            found += len(piece)
    return found


def parts(edits: list[Any]) -> Iterator[list[Any]]:
    """Edits, in order, PART bytes of them at a time."""
    part: list[Any] = []
    room = PART
    for edit in edits:
        if not (type(edit) is list and len(edit) == 3 and type(edit[1]) is int and type(edit[2]) is bytes):
            part.append(edit)
            continue
        kind, offset, data = edit
        at = 0
        while at < len(data):
            if not room:
                yield part
                part, room = [], PART
            piece = data[at : at + room]
            part.append([kind, offset + at, piece])
            at += len(piece)
            room -= len(piece)
    yield part
