"""Submissions that a successor repeats: which lane and number each request under way has used.

Owns the table of lanes to the writer in a mount's kept memory. The writer answers a number of a client that it has
answered before with the recorded reply; so whoever takes a killed process' work up again only has to use the same
client and number for the same submission: the next one of the same command, since what the process before had to do
first may be done. A row says for whom a lane is in use: before the request is sent, until the work it belongs to is
done. Called by ``client`` alone.
"""

from __future__ import annotations

import functools
import secrets
import threading
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from avmfs.handover import Rows
from avmfs.store import commands

REQUEST, COMMIT = 1, 2  # kinds of work: a request of the kernel, by its number; a file's uncommitted edits, by its node
# A row's state; then: client (2 words), number, kind of work, its key, which submission of it, the command's sum
_IDLE, _BUSY = 1, 2
_NUMBER = 3
_COMMAND = 2  # its place in a request


class Lane(Protocol):
    def call(self, request: list[Any], number: int) -> Any: ...
    def close(self) -> None: ...


class _Kept:
    """One lane, its row and the last number that was used; of work that was left, which submission that was, and of
    what command (0: an earlier version has not noted it)."""

    __slots__ = ("command", "count", "lane", "number", "row")

    def __init__(self, lane: Lane, row: int, number: int = 0, count: int = 0, command: int = 0) -> None:
        self.lane, self.row, self.number, self.count, self.command = lane, row, number, count, command


class _Work:
    """A block, in one thread, that submissions belong to."""

    __slots__ = ("_inflight", "_outer", "count", "key", "kind", "used")

    def __init__(self, lanes: InFlight, kind: int, key: int) -> None:
        self._inflight = lanes
        self.kind, self.key, self.count = kind, key, 0
        self.used: list[_Kept] = []

    def __enter__(self) -> None:
        current = self._inflight.current
        self._outer: _Work | None = current.work
        current.work = self

    def __exit__(self, *_: object) -> None:
        self._inflight.current.work = self._outer
        self._inflight.done(self)


class _Current(threading.local):
    """What this thread works at."""

    work: _Work | None = None


class InFlight:
    """``make(client)`` opens a lane. Thread-safe."""

    def __init__(self, rows: Rows, make: Callable[[bytes], Lane]) -> None:
        self._rows = rows
        self._make = make
        self._idle: deque[_Kept] = deque()
        self._left: dict[tuple[int, int], list[_Kept]] = {}  # of work that was under way, in order of its submissions
        self.current = _Current()
        self.once: Callable[[int, int], _Work] = functools.partial(_Work, self)
        """``once(kind, key)``: the block is the work that its submissions belong to."""
        for row, (state, high, low, number, kind, key, count, command) in rows.used():
            lane = make(high.to_bytes(8, "big") + low.to_bytes(8, "big"))
            kept = _Kept(lane, row, number, count, command)
            if state == _BUSY:
                self._left.setdefault((kind, key), []).append(kept)
            else:
                self._idle.append(kept)
        for left in self._left.values():
            left.sort(key=lambda kept: kept.count)

    def counts(self, command: str) -> bool:
        """Return whether this thread is inside `once`, and the command has to be applied once."""
        return self.current.work is not None and not commands.traits(command).repeatable

    def done(self, work: _Work) -> None:
        """Its block has ended."""
        for kept in work.used:
            self._rest(kept)
        if self._left:
            for kept in self._left.pop((work.kind, work.key), ()):
                self._rest(kept)

    def left(self, kind: int, key: int) -> bool:
        """Return whether the process before was killed within this work, after its first submission."""
        return (kind, key) in self._left

    def repeats(self) -> bool:
        """Return whether the process before may have had applied what this thread submits next."""
        work = self.current.work
        return work is not None and bool(self._left.get((work.kind, work.key)))

    def settle(self, kind: int, still: set[int]) -> None:
        """Of work of this kind that was left, only ``still`` will be taken up."""
        for found in [found for found in list(self._left) if found[0] == kind and found[1] not in still]:
            for kept in self._left.pop(found, ()):
                self._rest(kept)

    def call(self, request: list[Any]) -> Any:
        work = self.current.work
        assert work is not None, "inside `once`"
        command = zlib.crc32(request[_COMMAND].encode())
        left = self._left.get((work.kind, work.key), []) if self._left else []
        if (sent := next((kept for kept in left if kept.command in (command, 0)), None)) is not None:
            left.remove(kept := sent)  # sent before, perhaps
            work.count = max(work.count, kept.count)
        else:
            try:
                kept = self._idle.pop()
            except IndexError:
                kept = self._new()
            kept.number += 1
            self._rows.rewrite(kept.row, _NUMBER, (kept.number, work.kind, work.key, work.count, command), _BUSY)
        work.count += 1
        work.used.append(kept)
        return kept.lane.call(request, kept.number)

    def close(self) -> None:
        for kept in [*self._idle, *(kept for left in self._left.values() for kept in left)]:
            kept.lane.close()

    def _new(self) -> _Kept:
        client = secrets.token_bytes(16)
        row = self._rows.take()
        self._rows.write(row, _IDLE, int.from_bytes(client[:8], "big"), int.from_bytes(client[8:], "big"))
        return _Kept(self._make(client), row)

    def _rest(self, kept: _Kept) -> None:
        self._rows.set(kept.row, 0, _IDLE)
        self._idle.append(kept)
