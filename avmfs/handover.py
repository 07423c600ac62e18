"""State that outlives its process: tables and a log in anonymous shared memory.

Owns two memfds. Whoever holds their descriptors finds, after the process that wrote them was killed at any
instruction, exactly what it had written: memory survives, only the process does not. Used by a mount's front end (open
handles, nodes, uncommitted bytes) and by its writer client (requests under way). Knows nothing of either. Thread-safe;
one process writes at a time, which is the business of whoever hands the descriptors on.

Nothing here can be torn. A row counts once its first word is set, which is the last word written; a record of the log
counts once the log's end was moved behind it; compaction and emptying switch between two pairs of (start, end) by one
word. Such a word is one aligned store of eight bytes. (A file on a disk would need lengths, checksums and fsync in
place of that. This state is worth nothing without the mount that it belongs to, which does not survive a machine
either.)
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence

from avmfs.errors import Invalid, OverQuota

MAGIC = 0x61766D3030303031  # "avm00001": another layout gets another number, and is not taken over
WIDTH = 8  # words of a row
_HEADER = 64
_MAGIC_AT, _SELECT_AT, _PAIRS_AT, _FACTS_AT = 0, 1, 2, 16
_USED_AT = 40  # per area: rows that were ever in use
AREAS = {"lanes": 4096, "handles": 1 << 20, "nodes": 1 << 17}  # rows; untouched ones take no memory
_TABLES_BYTES = 8 * (_HEADER + WIDTH * sum(AREAS.values()))
_VALUES = struct.Struct("=4Q")
_RECORD = struct.Struct("=IHB")  # length of all, length of the key, what
_ADD, _DROP, _ALONE = 1, 2, 3  # the last: a value in place of all before
_FIRST_SIZE = 1 << 20
_WASTE = 4 << 20  # garbage that is not worth compacting
_SMALL = 16 * 1024
MOST = 1 << 30  # bytes of values; with what counts no more, the log is some four times as long at most
CROWDED = 256 << 20


class Rows:
    """One area of a table. Column 0 is the row's state, 0 for a free one."""

    def __init__(self, words: memoryview, start: int, most: int, used_at: int) -> None:
        self._words = words
        self._start = start
        self._most = most
        self._used_at = used_at
        self._mutex = threading.Lock()
        self._free = [row for row in range(words[used_at]) if not words[start + row * WIDTH]]

    def take(self) -> int:
        """A row that nobody uses. It is free again unless `write` follows. Raises OverQuota when there is none."""
        with self._mutex:
            if self._free:
                return self._free.pop()
            row = self._words[self._used_at]
            if row >= self._most:
                raise OverQuota("too much is open at once")
            self._words[self._used_at] = row + 1
            return row

    def write(self, row: int, state: int, one: int = 0, two: int = 0, three: int = 0, four: int = 0) -> None:
        """Columns 1 to 4, and then the state; the others are for `set`."""
        at = self._start + row * WIDTH
        _VALUES.pack_into(self._words, 8 * (at + 1), one, two, three, four)
        self._words[at] = state

    def rewrite(self, row: int, column: int, values: Sequence[int], state: int) -> None:
        """Columns from ``column`` on, each whole, and then the state."""
        words, at = self._words, self._start + row * WIDTH
        for i, value in enumerate(values, at + column):
            words[i] = value
        words[at] = state

    def set(self, row: int, column: int, value: int) -> None:
        self._words[self._start + row * WIDTH + column] = value

    def get(self, row: int, column: int) -> int:
        return self._words[self._start + row * WIDTH + column]

    def free(self, row: int) -> None:
        self._words[self._start + row * WIDTH] = 0
        self._free.append(row)

    def used(self) -> Iterator[tuple[int, list[int]]]:
        """(row, its words) of all that are not free."""
        for row in range(self._words[self._used_at]):
            at = self._start + row * WIDTH
            if self._words[at]:
                yield row, self._words[at : at + WIDTH].tolist()


class Log:
    """A multimap: values are added to a key, and dropped with it."""

    def __init__(self, words: memoryview, descriptor: int) -> None:
        self._words = words
        self._mutex = threading.Lock()
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self._size = len(self._map)
        self._spans: dict[bytes, list[tuple[int, int]]] = {}
        self._live = 0
        # As the words have them: this process alone writes.
        self._start, self._end = self._bounds()
        self._end_at = self._pair() + 1
        self._scan()

    def add(self, key: bytes, *pieces: bytes | bytearray | memoryview, alone: bool = False) -> int:
        """Keep the pieces, joined, as one more value of ``key``, or as the only one (``alone``). Returns how many bytes
        are kept by now: more than CROWDED, and whoever can should let go of some. Raises OverQuota when there is no
        room for one more."""
        size = _RECORD.size + len(key)
        for piece in pieces:
            size += len(piece)
        with self._mutex:
            if not alone and self._live + size > MOST:
                raise OverQuota("too much is written and not yet committed")
            start, stop = self._append(size, _ALONE if alone else _ADD, key, pieces)
            if alone:
                self._live -= sum(stop - start for start, stop in self._spans.pop(key, ()))
            self._spans.setdefault(key, []).append((start, stop))
            self._live += size
            return self._live

    def drop(self, key: bytes) -> None:
        """Forget all values of ``key``."""
        with self._mutex:
            spans = self._spans.pop(key, None)
            if spans is None:
                return
            if not self._spans:
                self._live = 0
                self._switch(0, 0)
                if self._size > _WASTE:
                    self._resize(_FIRST_SIZE)
                return
            self._live -= sum(stop - start for start, stop in spans)
            self._append(_RECORD.size + len(key), _DROP, key, ())

    def values(self, key: bytes) -> list[bytes]:
        """In the order in which they were added."""
        skip = _RECORD.size + len(key)
        with self._mutex:
            return [self._map[start + skip : stop] for start, stop in self._spans.get(key, ())]

    def all_keys(self) -> list[bytes]:
        with self._mutex:
            return list(self._spans)

    def _append(
        self, size: int, what: int, key: bytes, pieces: Sequence[bytes | bytearray | memoryview]
    ) -> tuple[int, int]:
        """A record, made to count last: where it begins and ends."""
        if self._end + size > self._size or self._end - self._start - self._live > _WASTE:
            self._make_room(size)
        start = at = self._end
        head = _RECORD.pack(size, len(key), what) + key
        # One copy of small pieces costs less than storing each.
        for piece in (b"".join((head, *pieces)),) if size < _SMALL else (head, *pieces):
            stop = at + len(piece)
            self._map[at:stop] = piece
            at = stop
        self._words[self._end_at] = self._end = at
        return start, at

    def _pair(self) -> int:
        return _PAIRS_AT + 2 * self._words[_SELECT_AT]

    def _bounds(self) -> tuple[int, int]:
        pair = self._pair()
        return self._words[pair], self._words[pair + 1]

    def _switch(self, start: int, end: int) -> None:
        other = 1 - self._words[_SELECT_AT]
        self._words[_PAIRS_AT + 2 * other] = start
        self._words[_PAIRS_AT + 2 * other + 1] = end
        self._words[_SELECT_AT] = other
        self._start, self._end, self._end_at = start, end, _PAIRS_AT + 2 * other + 1

    def _resize(self, size: int) -> None:
        self._map.resize(size)
        self._size = size

    def _make_room(self, size: int) -> None:
        """For a record of ``size``: compact, grow."""
        often = 1 if self._end > MOST // 2 else 2  # copying is dearer than memory until there is much of it
        if self._end - self._start - self._live > max(_WASTE, often * self._live):
            self._compact()
        if self._end + size > self._size:
            self._resize(max(2 * self._size, _FIRST_SIZE * (1 + (self._end + size) // _FIRST_SIZE)))

    def _compact(self) -> None:
        """Copy what is live to the front if it fits there, else behind the end."""
        target = 0 if self._live <= self._start else self._end
        if target + self._live > self._size:
            self._resize(target + self._live)
        at = target
        spans: dict[bytes, list[tuple[int, int]]] = {}
        for key, records in self._spans.items():
            spans[key] = []
            for first, stop in records:
                self._map[at : at + stop - first] = self._map[first:stop]
                spans[key].append((at, at + stop - first))
                at += stop - first
        self._switch(target, at)
        self._spans = spans

    def _scan(self) -> None:
        at, end = self._bounds()
        while at < end:
            size, length, what = _RECORD.unpack_from(self._map, at)
            key = self._map[at + _RECORD.size : at + _RECORD.size + length]
            if what != _ADD:
                self._spans.pop(key, None)
            if what != _DROP:
                self._spans.setdefault(key, []).append((at, at + size))
            at += size
        self._live = sum(stop - start for spans in self._spans.values() for start, stop in spans)


class HandoverState:
    """Both memfds, opened. ``fresh`` when nothing has been kept in them yet."""

    def __init__(self, tables: int, log: int) -> None:
        """Takes the descriptors' content, not the descriptors. Raises Invalid for another layout."""
        self.tables, self.log_file = tables, log
        self._map = mmap.mmap(tables, _TABLES_BYTES)
        self._words = memoryview(self._map).cast("Q")
        self.fresh = not self._words[_MAGIC_AT]
        if not self.fresh and self._words[_MAGIC_AT] != MAGIC:
            raise Invalid("kept by another version")
        self._words[_MAGIC_AT] = MAGIC
        areas = {name: Rows(self._words, *_place(name)) for name in AREAS}
        self.lanes, self.handles, self.nodes = areas["lanes"], areas["handles"], areas["nodes"]
        self.log = Log(self._words, log)

    def fact(self, number: int) -> int:
        return self._words[_FACTS_AT + number]

    def set_fact(self, number: int, value: int) -> None:
        self._words[_FACTS_AT + number] = value


def _place(area: str) -> tuple[int, int, int]:
    """Where its rows begin, how many it may have, where it is said how many were ever in use; in words."""
    number = list(AREAS).index(area)
    return _HEADER + WIDTH * sum(list(AREAS.values())[:number]), AREAS[area], _USED_AT + number


def look(tables: int, area: str, column: int) -> Iterable[tuple[int, int]]:
    """(state, a column) of each row of another process' that was ever in use: whole words, of rows that may be about to
    be written or freed. Raises Invalid for another layout, OSError."""
    if os.fstat(tables).st_size != _TABLES_BYTES:
        raise Invalid("kept by another version")
    start, _, used_at = _place(area)
    with mmap.mmap(tables, _TABLES_BYTES, access=mmap.ACCESS_READ) as memory, memoryview(memory).cast("Q") as words:
        if words[_MAGIC_AT] != MAGIC:
            raise Invalid("kept by another version")
        stop = start + WIDTH * words[used_at]
        states, values = words[start:stop:WIDTH].tolist(), words[start + column : stop : WIDTH].tolist()
    return zip(states, values, strict=True)


def make() -> HandoverState:
    """An empty one. Linux only."""
    tables, log = os.memfd_create("avm-tables"), os.memfd_create("avm-log")
    os.ftruncate(tables, _TABLES_BYTES)
    os.ftruncate(log, _FIRST_SIZE)
    return HandoverState(tables, log)


def reopen(tables: int, log: int) -> HandoverState:
    """What a predecessor kept. Raises Invalid for another layout."""
    if os.fstat(tables).st_size != _TABLES_BYTES:
        raise Invalid("kept by another version")
    return HandoverState(tables, log)
