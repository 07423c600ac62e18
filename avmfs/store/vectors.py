"""Vectors in memory: what one process needs to score a query against all it may see.

Owns the matrix of one model, kept in step with the table by a cursor over vector_log. Called by the
search index of this store. A later release moves the scan into one process for all mounts.
"""

from __future__ import annotations

import threading

import apsw
import numpy as np
from numpy.typing import NDArray


class VectorCache:
    """All vectors of one model, whoever may see them; ``visible`` filters by scope. Thread-safe."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._lock = threading.Lock()
        self._rows: dict[int, tuple[int, NDArray[np.float32]]] = {}
        self._seq = -1
        self._views: dict[str, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}

    def visible(
        self, db: apsw.Connection, scopes: str, ids: frozenset[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Passage ids (n,) ascending and their matrix (n, dimension), float32, L2-normalised."""
        with self._lock:
            self._catch_up(db)
            if scopes not in self._views:
                self._views[scopes] = self._view(ids)
            return self._views[scopes]

    def _catch_up(self, db: apsw.Connection) -> None:
        newest = db.execute("select max(seq) from vector_log").get or 0
        if newest == self._seq:
            return
        self._views.clear()
        oldest = db.execute("select min(seq) from vector_log").get or 0
        if self._seq < 0 or self._seq < oldest - 1:
            self._rows.clear()
            rows = db.execute("select id, scope, data from vector where model = ?", (self.model,))
        else:
            changed = [row[0] for row in db.execute("select distinct id from vector_log where seq > ?", (self._seq,))]
            for passage in changed:
                self._rows.pop(passage, None)
            rows = db.execute(
                "select id, scope, data from vector where model = ? and id in"
                " (select id from vector_log where seq > ?)",
                (self.model, self._seq),
            )
        for passage, scope, data in rows:
            self._rows[passage] = (scope, np.frombuffer(data, dtype=np.float32))
        self._seq = newest

    def _view(self, ids: frozenset[int]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        chosen = sorted(passage for passage, (scope, _) in self._rows.items() if scope in ids)
        if not chosen:
            return np.empty(0, np.int64), np.empty((0, 0), np.float32)
        return np.array(chosen, np.int64), np.stack([self._rows[passage][1] for passage in chosen])
