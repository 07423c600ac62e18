"""Which vectors are nearest, for one asker: tables kept in step with the store.

Owns a table that follows ``vector_log``, so that a search sees every vector whose commit it could see, and none whose
passage has gone or changed hands. Called by the search index of a process that scans by itself (no daemon), and by the
daemon's index process for all others. Knows no sockets.

Threads: any. One scan at a time: two at once would only share the memory's bandwidth.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import apsw
import numpy as np
from numpy.typing import NDArray

from avmfs.access import Principal
from avmfs.lru import LRU
from avmfs.store.index import allocator
from avmfs.store.index.vectors import Ids, Nearest, VectorTable
from avmfs.store.rows.scopes import Scopes

Opener = Callable[[], AbstractContextManager[tuple[apsw.Connection, Scopes]]]

SLICE: Final = 4096
"""Rows read in one transaction: an open one keeps the WAL from being reset."""

ANSWERED: Final = 300_000
"""Rows of all answers that are remembered, 16 bytes each, and one for the question: some three hundred questions."""


class Behind(Exception):
    """The log of changes no longer reaches back to what the table knows: it has to be loaded anew."""


class FollowedTable:
    """The vectors of one model, as of the last ``catch_up``. One thread at a time. ``damaged`` collects passages whose
    stored bytes are no vector: whoever may write has them made again."""

    def __init__(self, model: str, dimension: int) -> None:
        self.model = model
        self.table = VectorTable(dimension)
        self.damaged: set[int] = set()
        self._seq = 0
        self._answers: LRU[bytes, Nearest] = LRU(ANSWERED, lambda found: 1 + len(found.passages))

    def load(self, opener: Opener) -> None:
        """Read all vectors, slice by slice; afterwards ``catch_up`` finds what changed meanwhile."""
        with opener() as (db, _):
            self._seq = _newest(db)
        last, more = 0, True
        while more:
            with opener() as (db, _):
                rows: list[Any] = db.execute(
                    "select id, scope, data from vector where id > ? and model = ? order by id limit ?",
                    (last, self.model, SLICE),
                ).fetchall()
            self._put(rows)
            more = len(rows) == SLICE
            last = rows[-1][0] if rows else last
        allocator.trim()

    def catch_up(self, db: apsw.Connection) -> bool:
        """Take in what was committed since, as ``db``'s transaction sees it; whether there was anything. Raises
        Behind."""
        newest = _newest(db)
        if newest == self._seq:
            return False
        self._answers.clear()
        if (db.execute("select min(seq) from vector_log").get or 0) > self._seq + 1:
            raise Behind
        while self._seq < newest:
            changed = [
                row[0]
                for row in db.execute(
                    "select seq from vector_log where seq > ? order by seq limit ?", (self._seq, SLICE)
                )
            ]
            rows: list[Any] = db.execute(
                "select log.id, vector.scope, vector.data from"
                " (select distinct id from vector_log where seq > ?1 and seq <= ?2) log"
                " left join vector on vector.id = log.id and vector.model = ?3",
                (self._seq, changed[-1], self.model),
            ).fetchall()
            for passage in (passage for passage, scope, _ in rows if scope is None):
                self.table.remove(passage)
                self.damaged.discard(passage)
            self._put([row for row in rows if row[1] is not None])
            self._seq = changed[-1]
        return True

    def nearest(self, visible: frozenset[int], vector: NDArray[np.float32], k: int, also: Ids) -> Nearest:
        """See VectorTable.nearest. The same questions come again, and while no vector has changed so do their answers:
        to read all rows once more would be a third of a recall."""
        digest = hashlib.blake2b(repr((sorted(visible), k)).encode(), digest_size=16)
        for array in (vector, also):
            digest.update(len(array).to_bytes(8) + np.ascontiguousarray(array).tobytes())
        asked = digest.digest()
        found = self._answers.get(asked)
        if found is None:
            found = self.table.nearest(visible, vector, k, also)
            self._answers.put(asked, found)
        return found

    def _put(self, rows: list[Any]) -> None:
        self._answers.clear()
        self.damaged.difference_update(row[0] for row in rows)
        self.damaged.update(self.table.put(rows))


class LocalScanner:
    """All vectors in this process: for a store that is used without a daemon."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener
        self._tables: dict[tuple[str, int], FollowedTable] = {}
        self._mutex = threading.Lock()

    def nearest(
        self, who: Principal, model: str, vector: NDArray[np.float32], k: int, also: Ids, aside: str = ""
    ) -> Nearest:
        """The ``k`` passages nearest to ``vector`` among those of ``model`` that ``who`` may see (ties with the last
        included), and the cosines of whichever of ``also`` are among those.

        Raises Busy, with a reason for a person, when there is nothing to scan in time."""
        with self._mutex:
            while True:
                followed = self._tables.get((model, len(vector)))
                if followed is None:
                    followed = FollowedTable(model, len(vector))
                    followed.load(self._open)
                    self._tables[model, len(vector)] = followed
                try:
                    with self._open() as (db, scopes):
                        followed.catch_up(db)
                        visible, _ = scopes.visible(db, who).searched(aside)
                except Behind:
                    del self._tables[model, len(vector)]
                    continue
                return followed.nearest(visible, vector, k, also)

    def close(self) -> None:
        with self._mutex:
            self._tables.clear()


def _newest(db: apsw.Connection) -> int:
    return int(db.execute("select max(seq) from vector_log").get or 0)
