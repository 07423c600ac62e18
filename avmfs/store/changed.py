"""Which nodes the latest commits changed, in memory that the writer shares with those who remember nodes.

Owns a ring of node numbers and two counters. The writer *publishes* what a transaction changes before its COMMIT and
says *committed* after it. A reader that remembers rows is told by the WAL index that something was committed
(``peek``); it then forgets what the ring names, instead of everything:

    since = ring.committed          1. before the WAL index is read: all of this is in what follows
    header = WAL index header       2. if it is the one remembered under, nothing happened
    ring.since(kept.since)          3. what may have changed since the last time: to be forgotten
    kept.since = since

What was published and not yet committed at 1 is named again the next time, so a row read between the two is not kept
too long. When more has happened than the ring holds, everything is forgotten; and when the WAL index has changed and
the ring has not: then it is the ring of a writer that died, and another one is at work. So every commit publishes
something, if only NOTHING.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
from collections.abc import Iterable
from struct import Struct

SLOTS = 1 << 15
_COUNTER = Struct("@Q")  # native: eight bytes are stored and read at once
_NUMBER = Struct("@Q")
_PUBLISHED, _COMMITTED, _FIRST = 0, 64, 128  # bytes: a cache line each
SIZE = _FIRST + SLOTS * _NUMBER.size
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
EVERYTHING = 0
"""In place of a node: nothing may be kept. Never a node's number."""
NOTHING = (1 << 64) - 1
"""In place of a node: something was committed that concerns none."""


def create() -> int:
    """The descriptor of a new ring."""
    descriptor = os.memfd_create("avmfs-changed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


class ChangedNodes:
    """The writer's side. One thread."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE)
        self._published: int = _COUNTER.unpack_from(self._memory, _PUBLISHED)[0]

    def publish(self, nodes: Iterable[int]) -> None:
        """These are about to change: before COMMIT."""
        for node in (*nodes, NOTHING):
            _NUMBER.pack_into(self._memory, _FIRST + self._published % SLOTS * _NUMBER.size, node)
            self._published += 1
        _COUNTER.pack_into(self._memory, _PUBLISHED, self._published)

    def committed(self) -> None:
        """All that was published has been committed, or rolled back."""
        _COUNTER.pack_into(self._memory, _COMMITTED, self._published)

    def close(self) -> None:
        self._memory.close()


class Changes:
    """A reader's side."""

    def __init__(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != SIZE:
            raise ValueError("not a ring of changed nodes")
        self._memory = mmap.mmap(descriptor, SIZE, prot=mmap.PROT_READ)

    @property
    def committed(self) -> int:
        """Up to where everything is in the database."""
        return int(_COUNTER.unpack_from(self._memory, _COMMITTED)[0])

    @property
    def published(self) -> int:
        return int(_COUNTER.unpack_from(self._memory, _PUBLISHED)[0])

    def since(self, since: int) -> set[int] | None:
        """The nodes that were published from ``since`` on; None: more than the ring holds, or everything."""
        now = self.published
        if now - since > SLOTS // 2:
            return None
        start, stop = since % SLOTS, now % SLOTS
        if start <= stop:
            found = self._slots(start, stop)
        else:
            found = self._slots(start, SLOTS) + self._slots(0, stop)
        # The writer may have gone round meanwhile; half the ring is left for that.
        if EVERYTHING in found or self.published - since > SLOTS:
            return None
        return {node for node in found if node != NOTHING}

    def _slots(self, start: int, stop: int) -> tuple[int, ...]:
        return Struct(f"@{stop - start}Q").unpack_from(self._memory, _FIRST + start * _NUMBER.size)

    def close(self) -> None:
        self._memory.close()
