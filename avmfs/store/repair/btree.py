"""A database read page by page, without SQLite: what a damaged one still has.

Owns the format of b-trees and records (fileformat2.html, sections 1.5 to 2.1). A page or cell that makes no sense is
left out and noted; what it led to is found again as pages that no tree reaches. Called by the salvage alone.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

SIZE: Final = 4096  # of the pages of every store
TABLE_LEAF, TABLE_INNER, INDEX_LEAF, INDEX_INNER = 13, 5, 10, 2
KINDS: Final = (TABLE_LEAF, TABLE_INNER, INDEX_LEAF, INDEX_INNER)
_WIDTHS: Final = (0, 1, 2, 3, 4, 6, 8, 8, 0, 0)
_LEAST: Final = (SIZE - 12) * 32 // 255 - 23  # bytes of a long payload that stay in the page, at least
_LONGEST: Final = 1 << 27  # of a payload: longer ones are none

Row = tuple[int, list[Any]]  # the rowid (0 in an index), and the values as stored
_WRONG: Final = (IndexError, struct.error, ValueError, OverflowError)


class Pages:
    """``bad`` are pages that were asked for and make no sense, ``seen`` those that were read."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.count = len(self._data) // SIZE
        self.seen: set[int] = set()
        self.bad: set[int] = set()

    @property
    def header(self) -> bytes:
        return self._data[:100]

    def page(self, number: int) -> bytes:
        if not 0 < number <= self.count:
            raise ValueError(f"there is no page {number}")
        return self._data[(number - 1) * SIZE : number * SIZE]

    def kind(self, number: int) -> int:
        return self._data[(number - 1) * SIZE + (100 if number == 1 else 0)]

    def walk(self, root: int) -> Iterator[Row]:
        """The rows of a tree, as far as it can be followed."""
        waiting = [root]
        while waiting:
            number = waiting.pop()
            if number in self.seen:
                continue
            self.seen.add(number)
            if not 0 < number <= self.count or self.kind(number) not in KINDS:
                self.bad.add(number)
                continue
            children: list[int] = []
            yield from self.rows(number, children.append)
            waiting += reversed(children)

    def rows(self, number: int, lead: Callable[[int], None] = lambda child: None) -> Iterator[Row]:
        """What stands in one page; ``lead`` hears of the pages below."""
        page, start, kind = self.page(number), 100 if number == 1 else 0, self.kind(number)
        inner = kind in (TABLE_INNER, INDEX_INNER)
        cells = struct.unpack_from(">H", page, start + 3)[0]
        first = start + (12 if inner else 8)
        for place in range(first, min(first + 2 * cells, SIZE - 1), 2):
            try:
                at = struct.unpack_from(">H", page, place)[0]
                if inner:
                    lead(struct.unpack_from(">I", page, at)[0])
                    at += 4
                if kind != TABLE_INNER:
                    yield self._cell(page, at, kind == TABLE_LEAF)
            except _WRONG:
                self.bad.add(number)
        if inner:
            lead(struct.unpack_from(">I", page, start + 8)[0])

    def free(self) -> set[int]:
        """Pages on the free list: what stands in them was removed."""
        found: set[int] = set()
        trunk = struct.unpack_from(">I", self.header, 32)[0] if len(self.header) >= 36 else 0
        while 0 < trunk <= self.count and trunk not in found:
            found.add(trunk)
            page = self.page(trunk)
            trunk, leaves = struct.unpack_from(">II", page)
            found.update(struct.unpack_from(f">{min(leaves, SIZE // 4 - 2)}I", page, 8))
        return found

    def _cell(self, page: bytes, at: int, table: bool) -> Row:
        size, at = _varint(page, at)
        rowid = 0
        if table:
            rowid, at = _varint(page, at)
            rowid -= (rowid >> 63) << 64
        if not 0 < size < _LONGEST:
            raise ValueError("no payload")
        most = SIZE - 35 if table else (SIZE - 12) * 64 // 255 - 23
        local = size
        if size > most:
            local = _LEAST + (size - _LEAST) % (SIZE - 4)
            local = local if local <= most else _LEAST
        payload = page[at : at + local]
        if len(payload) < local:
            raise ValueError("past the page")
        return rowid, _record(payload if local == size else self._long(payload, size, page, at + local))

    def _long(self, payload: bytes, size: int, page: bytes, at: int) -> bytes:
        whole, overflow, pages = bytearray(payload), struct.unpack_from(">I", page, at)[0], set[int]()
        while len(whole) < size:
            if overflow in pages:
                raise ValueError("a circle")
            pages.add(overflow)
            more = self.page(overflow)
            overflow = struct.unpack_from(">I", more)[0]
            whole += more[4 : 4 + size - len(whole)]
        self.seen |= pages
        return bytes(whole)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    return value << 8 | data[at], at + 1


def _record(payload: bytes) -> list[Any]:
    end, at = _varint(payload, 0)
    place = end
    values: list[Any] = []
    while at < end:
        kind, at = _varint(payload, at)
        width = _WIDTHS[kind] if kind < 10 else (kind - 12) // 2
        if kind in (10, 11) or place + width > len(payload):
            raise ValueError("no record")
        piece = payload[place : place + width]
        place += width
        if kind == 0:
            values.append(None)
        elif kind == 7:
            values.append(struct.unpack(">d", piece)[0])
        elif kind < 10:
            values.append(kind - 8 if kind >= 8 else int.from_bytes(piece, "big", signed=True))
        else:
            values.append(piece if kind % 2 == 0 else piece.decode("utf-8"))
    if place != len(payload):
        raise ValueError("no record")
    return values
