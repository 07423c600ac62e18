"""The SQLite store of one process: pooled readers, and whatever applies its commands.

Owns the connection pool and the two ways of opening a store. Connections are opened lazily, after any
fork, and never survive into a forked child.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import apsw

from avmfs.access import Policy, Principal
from avmfs.errors import NotSupported
from avmfs.store import content, database
from avmfs.store.reader import SqliteReader
from avmfs.store.schema import ROOT
from avmfs.store.search_index import SqliteSearchIndex
from avmfs.store.submit import DirectWriter, Submitter, WriterClient
from avmfs.store.transaction import IndexRules, Scopes
from avmfs.store.vectors import VectorCache
from avmfs.text import sniff


class SqliteStore:
    """See protocol.Store. Threads may share it."""

    def __init__(self, path: Path, submitter: Submitter, clock: Callable[[], int] = time.time_ns) -> None:
        self.path = path
        self._submitter = submitter
        self._clock = clock
        self._pool: deque[tuple[apsw.Connection, Scopes]] = deque()
        self._pid = os.getpid()
        self._caches: dict[str, VectorCache] = {}
        self._mutex = threading.Lock()

    @contextlib.contextmanager
    def reading(self, who: Principal) -> Iterator[SqliteReader]:
        with self._opened(who) as (_, reader):
            yield reader

    def submit(self, who: Principal, command: str, **arguments: Any) -> Any:
        return self._submitter.submit(who, command, arguments)

    def search_index(self, who: Principal) -> SqliteSearchIndex:
        return SqliteSearchIndex(lambda: self._opened(who), self._cache)

    def pending_passages(self, model: str, limit: int) -> list[tuple[int, int, str]]:
        with self._connection() as (db, _):
            rows = db.execute(
                "select passage.id, passage.document, passage.start, passage.stop, node.id, node.size, node.extents"
                " from semantic_queue join passage on passage.document = semantic_queue.document"
                " join document on document.id = passage.document join node on node.id = document.node"
                " left join vector on vector.id = passage.id and vector.model = ? where vector.id is null"
                " and passage.document not in (select document from lexical_queue) limit ?",
                (model, limit),
            ).fetchall()
            found = []
            for passage, document, start, stop, node, size, extents in rows:
                text = sniff.decode(content.read(db, node, size, bool(extents), 0, size))
                found.append((passage, document, (text or "")[start:stop]))
            return found

    def idle_documents(self, model: str, limit: int) -> list[int]:
        with self._connection() as (db, _):
            rows = db.execute(
                "select document from semantic_queue where document not in (select document from lexical_queue)"
                " and not exists (select 1 from passage left join vector on vector.id = passage.id and model = ?"
                "   where passage.document = semantic_queue.document and vector.id is null) limit ?",
                (model, limit),
            )
            return [row[0] for row in rows]

    def queue_lengths(self) -> tuple[int, int]:
        with self._connection() as (db, _):
            return (
                int(db.execute("select count(*) from lexical_queue").get),
                int(db.execute("select count(*) from semantic_queue").get),
            )

    def orphans(self) -> list[tuple[int, int]]:
        with self._connection() as (db, _):
            return db.execute(
                "select id, coalesce((select max(at) from hold where hold.node = node.id), 0) from node"
                " where parent is null and id <> ?",
                (ROOT,),
            ).fetchall()

    def watch(self, notify: Callable[[int], None]) -> AbstractContextManager[None]:
        if not isinstance(self._submitter, WriterClient):
            raise NotSupported("changes can be watched while a daemon runs")
        return self._submitter.watch(notify)

    def capacity(self) -> os.statvfs_result:
        return os.statvfs(self.path.parent)

    def close(self) -> None:
        self._submitter.close()
        while self._pool:
            self._pool.pop()[0].close()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[tuple[apsw.Connection, Scopes]]:
        """A connection inside a read transaction that ends with the block."""
        if os.getpid() != self._pid:
            # Inherited over fork: must not be used, and not even closed (it would drop the parent's locks).
            self._pool, self._pid = deque(), os.getpid()
        try:
            pooled = self._pool.pop()
        except IndexError:
            pooled = (database.connect(self.path, writable=False), Scopes())
        db = pooled[0]
        with database.translated(self.path):
            try:
                db.execute("begin")
                yield pooled
            finally:
                if not db.get_autocommit():
                    db.execute("commit")
                self._pool.append(pooled)

    @contextlib.contextmanager
    def _opened(self, who: Principal) -> Iterator[tuple[apsw.Connection, SqliteReader]]:
        with self._connection() as (db, scopes):
            yield db, SqliteReader(db, who, scopes.visible(db, who), self._clock())

    def _cache(self, model: str) -> VectorCache:
        with self._mutex:
            return self._caches.setdefault(model, VectorCache(model))


def open_direct(path: Path, policy: Policy, index: IndexRules) -> SqliteStore:
    """For a process that finds no daemon: creates the store if need be. Raises Busy when one runs."""
    return SqliteStore(path, DirectWriter(path, policy, index))


def open_attached(path: Path, writer: Path, agent: str, proof: bytes) -> SqliteStore:
    """For a process of the daemon: commands go through the writer's socket."""
    return SqliteStore(path, WriterClient(writer, agent, proof))
