"""What belonged to parts of the tree: below a node, or on the way to it, after a change; of many such at once.

Called by the reader of the past and by what trims it, for snapshots. Looks at places alone: who may see what is not its
question.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import Any

import apsw

from avmfs.store.schema.tables import ROOT


class Parts:
    """Of the nodes ``named``: (change, node), in order. A set of them is a number, with a bit for each: what a
    directory was in is asked once for all instants at which it was there."""

    def __init__(self, db: apsw.Connection, named: list[tuple[int, int]]) -> None:
        self.named, self.asked = named, 0  # ``asked``: queries
        self._db = db
        self._seqs = [seq for seq, _ in named]
        self._roots: dict[int, int] = {}
        for number, (_, root) in enumerate(named):
            self._roots[root] = self._roots.get(root, 0) | 1 << number
        self._whole = self._roots.pop(ROOT, 0)
        self._known: dict[int | None, tuple[int, int]] = {None: (-1, 0)}  # the bits that are known, and those it is in
        self._way: dict[int, int] = {}
        waiting: list[tuple[int | None, int]] = [*self._roots.items()]
        while waiting:
            node, bits = waiting.pop()
            if node is not None:
                self._way[node] = self._way.get(node, 0) | bits
                waiting += self._above(node, bits)

    def between(self, since: int, until: int) -> int:
        """Those of changes from ``since`` until before ``until``."""
        first, last = bisect.bisect_left(self._seqs, since), bisect.bisect_left(self._seqs, until)
        return (1 << max(first, last)) - (1 << first)

    def whole(self, since: int, until: int) -> bool:
        """Whether one of those of that time is the whole tree."""
        return bool(self.between(since, until) & self._whole)

    def has(self, node: int, parent: int | None, since: int, until: int) -> bool:
        """Whether one of those of that time has a node that was in the directory ``parent`` then."""
        wanted = self.between(since, until)
        return bool(wanted & (self._whole | self._way.get(node, 0))) or bool(wanted and self._inside(parent, wanted))

    def _inside(self, directory: int | None, wanted: int) -> int:
        steps = []
        waiting = [(directory, wanted)]
        while waiting:
            at, bits = waiting.pop()
            bits &= ~self._known.get(at, (0, 0))[0]
            if at is not None and bits:
                above = [*self._above(at, bits & ~self._roots.get(at, 0))]
                steps.append((at, bits, above))
                waiting += above
        for at, bits, above in reversed(steps):  # at one instant a directory is in one other: each bit goes straight up
            known, inside = self._known.get(at, (0, 0))
            inside |= bits & self._roots.get(at, 0)
            for up, some in above:
                inside |= some & self._known[up][1]
            self._known[at] = known | bits, inside
        return self._known[directory][1] & wanted

    def _above(self, node: int, bits: int) -> Iterator[tuple[int | None, int]]:
        """The directories in which a node was at these instants; None while it was nowhere."""
        while bits:
            seq = self._seqs[(bits & -bits).bit_length() - 1]
            self.asked += 1
            state: Any = self._db.execute(
                "select parent, since, until from past where node = ? and until > ? order by until limit 1", (node, seq)
            ).fetchone()
            if state is None:  # since the last that is over
                state = self._db.execute(
                    "select parent, since, 9223372036854775807 from node where id = ?", (node,)
                ).fetchone()
            if state is None:
                parent, some = None, bits
            elif state[1] > seq:
                parent, some = None, bits & self.between(seq, state[1])
            else:
                parent, some = state[0], bits & self.between(seq, state[2])
            bits &= ~some
            yield parent, some
