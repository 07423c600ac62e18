"""Which byte ranges a lock's description holds, as the kernel tells it, and who waits for whom.

Owns the reading of /proc/self/fdinfo and the search for a circle of waiters. Nothing is noted when a lock is taken:
the kernel is asked when one is in the way.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

_END = (1 << 63) - 1  # of the longest file there can be
_KINDS = {"READ": fcntl.F_RDLCK, "WRITE": fcntl.F_WRLCK}


class Range(NamedTuple):
    """``end`` is the last byte."""

    kind: int
    start: int
    end: int

    @classmethod
    def of(cls, kind: int, start: int, length: int) -> Range:
        """As in struct flock: length 0 reaches to the end of file."""
        return cls(kind, start, start + length - 1 if length else _END)

    @property
    def length(self) -> int:
        """As ``of`` takes it."""
        return 0 if self.end == _END else self.end - self.start + 1

    def meets(self, other: Range) -> bool:
        """Both cannot be held, by two owners."""
        return self.start <= other.end and other.start <= self.end and fcntl.F_WRLCK in (self.kind, other.kind)


class Wait(NamedTuple):
    node: int
    owner: int
    range: Range


def held_by(descriptor: int) -> list[Range]:
    """What a description has locked, such as "lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:7 0 EOF"."""
    found: list[Range] = []
    for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines():
        if line.startswith("lock:"):
            kind, _, _, start, end = line.split()[-5:]
            found.append(Range(_KINDS[kind], int(start), _END if end == "EOF" else int(end)))
    return found


def is_circle(
    wanted: Wait, waiting: Iterable[Wait], held_by_others: Callable[[int, int], Iterable[tuple[int, Any, Range]]]
) -> bool:
    """Whether an owner would wait for one that waits, by however many steps, for it. ``held_by_others``: what others
    than an owner have locked of a node."""
    waits = tuple(waiting)
    seen: set[int] = set()
    todo = [wanted]
    while todo:
        node, waiter, asked = todo.pop()
        for other, _, held in held_by_others(node, waiter):
            if not asked.meets(held) or other in seen:
                continue
            if other == wanted.owner:
                return True
            seen.add(other)
            todo += [each for each in waits if each.owner == other]
    return False
