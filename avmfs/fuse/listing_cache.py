"""Listings as the kernel reads them: one page of entries, packed when it is first asked for.

Owns how a listing becomes bytes, and how one becomes the next when a few names of the directory have changed: what has
not is neither read from the store nor packed again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from itertools import accumulate
from operator import itemgetter

from avmfs.fuse import protocol as p
from avmfs.vfs.listings import Entry

_name = itemgetter(0)
_WORD = 8  # an entry is made of whole words; the second one is the offset of the entry after it
_OFFSET = 1


class CachedListing:
    """Entries in order of name. Never changes: who has the same one has the same listing."""

    __slots__ = ("_ends", "_packed", "_pieces", "entries")

    def __init__(self, entries: list[Entry], pieces: list[bytes] | None = None) -> None:
        self.entries = entries
        self._pieces = pieces  # entries packed, without offsets
        self._packed: tuple[int, bytearray] | None = None  # with them, the first one's being that
        self._ends: list[int] = []

    def __len__(self) -> int:
        return len(self.entries)

    def with_names(self, found: Mapping[bytes, Entry | None]) -> CachedListing:
        """This listing with what stands for some names now; None: nothing."""
        entries, pieces = self.entries.copy(), None if self._pieces is None else self._pieces.copy()
        for name, entry in found.items():
            start = bisect_left(entries, name, key=_name)
            stop = start + (start < len(entries) and entries[start][0] == name)
            entries[start:stop] = [] if entry is None else [entry]
            if pieces is not None:
                pieces[start:stop] = [] if entry is None else _pieces([entry])
        return CachedListing(entries, pieces)

    def packed(self, start: int, place: int, room: int) -> tuple[bytes, int]:
        """As many entries from the one at ``place`` as there is room for, and how many. ``start`` is the offset of the
        listing's first entry."""
        if self._packed is None or self._packed[0] != start:
            self._packed = start, self._pack(start)
        after = self._ends[place - 1] if place else 0
        stop = bisect_right(self._ends, after + room)
        if stop <= place:
            return b"", 0
        return bytes(memoryview(self._packed[1])[after : self._ends[stop - 1]]), stop - place

    def _pack(self, start: int) -> bytearray:
        if self._pieces is None:
            self._pieces = _pieces(self.entries)
        self._ends = list(accumulate(map(len, self._pieces)))
        packed = bytearray().join(self._pieces)
        words = memoryview(packed).cast("Q")
        at = _OFFSET
        for offset, end in enumerate(self._ends, start + 1):
            words[at] = offset
            at = end // _WORD + _OFFSET
        return packed


def _pieces(entries: list[Entry]) -> list[bytes]:
    return [p.dirent(ino or 1, 0, kind, name) for name, ino, kind in entries]
