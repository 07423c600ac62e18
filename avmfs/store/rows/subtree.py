"""What belonged to a part of the tree after a change: below a node, or on the way to it.

Called by the reader of the past and by what trims it, for snapshots of a part. Looks at places alone: who may see what
is not its question.
"""

from __future__ import annotations

from typing import Any

import apsw


class Subtree:
    """Of the node ``root``, as of the change ``seq``."""

    def __init__(self, db: apsw.Connection, seq: int, root: int) -> None:
        self._db, self.seq = db, seq
        self._below: dict[int | None, bool] = {None: False, root: True}
        self._way = {root}
        directory = self._parent(root)
        while directory is not None:
            self._way.add(directory)
            directory = self._parent(directory)

    def has(self, node: int, parent: int | None) -> bool:
        """Whether a node that was in the directory ``parent`` then is a part of it."""
        passed = []
        while node not in self._way and parent not in self._below:
            passed.append(parent)
            parent = None if parent is None else self._parent(parent)
        inside = node in self._way or self._below[parent]
        self._below.update(dict.fromkeys(passed, inside))
        return inside

    def _parent(self, node: int) -> int | None:
        at: Any = self._db.execute("select parent from node where id = ? and since <= ?", (node, self.seq)).get
        if at is None:
            at = self._db.execute(
                "select parent from past where node = ?1 and until > ?2 and since <= ?2 order by until limit 1",
                (node, self.seq),
            ).get
        return None if at is None else int(at)
