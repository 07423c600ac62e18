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
from types import TracebackType
from typing import Any, Final

import apsw

from avmfs.access import Policy, Principal, Visible
from avmfs.errors import NotSupported, Stale
from avmfs.node import Node
from avmfs.store import content, database
from avmfs.store.catalogue import Catalogue
from avmfs.store.peek import CommitHeader, Remembered
from avmfs.store.reader import SqliteReader
from avmfs.store.schema import ROOT
from avmfs.store.search_index import SqliteSearchIndex
from avmfs.store.submit import DirectWriter, Submitter, WriterClient
from avmfs.store.transaction import NODE, IndexRules, Scopes, node_of
from avmfs.store.vectors import VectorCache
from avmfs.text import sniff

_UNKNOWN: Final = object()
_SMALL: Final = 64 * 1024


class SqliteStore:
    """See protocol.Store. Threads may share it."""

    def __init__(self, path: Path, submitter: Submitter, clock: Callable[[], int] = time.time_ns) -> None:
        self.path = path
        self._submitter = submitter
        self._clock = clock
        self._pool: deque[tuple[apsw.Connection, Scopes]] = deque()
        self._pid = os.getpid()
        self._caches: dict[str, VectorCache] = {}
        self._catalogue = Catalogue()
        self._mutex = threading.Lock()
        self._header: CommitHeader | None = None
        self._kept = Remembered(b"")

    def reading(self, who: Principal) -> _Reading:
        return _Reading(self, who)

    # What follows answers without SQL while nothing has been committed (peek.py).

    def peek_node(self, who: Principal, node: int) -> Node:
        kept = self._remembered()
        found = kept.nodes.get(node, _UNKNOWN)
        if found is _UNKNOWN:
            with self._connection() as (db, _):
                row = db.execute(f"select {NODE} from node where id = ?", (node,)).fetchone()
            found = kept.nodes[node] = node_of(row) if row is not None else None
        if not isinstance(found, Node) or found.scope not in self._visible(kept, who):
            raise Stale()
        return found

    def peek_child(self, who: Principal, parent: int, name: bytes) -> Node | None:
        kept = self._remembered()
        found = kept.children.get((parent, name), _UNKNOWN)
        if found is _UNKNOWN:
            with self._connection() as (db, _):
                row = db.execute(f"select {NODE} from node where parent = ? and name = ?", (parent, name)).fetchone()
            found = kept.children[parent, name] = node_of(row) if row is not None else None
        if not isinstance(found, Node) or found.scope not in self._visible(kept, who):
            return None
        return found if found.expires is None or found.expires > self._clock() else None

    def peek_read(self, who: Principal, node: int, offset: int, length: int) -> bytes:
        kept = self._remembered()
        # Also when the bytes are here: another agent of this process may have read them.
        found = self.peek_node(who, node)
        data = kept.bodies.get(node)
        if data is None:
            with self._connection() as (db, _):
                row: Any = db.execute("select size, extents, scope from node where id = ?", (node,)).fetchone()
                if row is None or row[2] not in self._visible(kept, who):
                    raise Stale()
                if row[1] or found.size > _SMALL:
                    return content.read(db, node, row[0], bool(row[1]), offset, length)
                data = content.read(db, node, row[0], False, 0, row[0])
            with self._mutex:
                kept.keep_body(node, data)
        return data[offset : offset + length]

    def peek_subdirectories(self, who: Principal, parent: int) -> int:
        kept = self._remembered()
        found = kept.subdirectories.get((who, parent))
        if found is None:
            with self.reading(who) as reader:
                found = kept.subdirectories[who, parent] = reader.subdirectories(parent)
        return found

    def peek_writable(self, who: Principal, scope: int) -> bool:
        return self._visible(self._remembered(), who).writable(scope)

    def _visible(self, kept: Remembered, who: Principal) -> Visible:
        found = kept.visible.get(who)
        if found is None:
            with self.reading(who) as reader:
                found = kept.visible[who] = reader.visible
        return found

    def _remembered(self) -> Remembered:
        """What is known under the header as it is now."""
        if self._header is None or os.getpid() != self._pid:
            with self._connection():  # the first connection makes the WAL index
                self._header = CommitHeader(self.path)
        header = self._header.read()
        if header != self._kept.header or self._kept.full():
            self._kept = Remembered(header)
        return self._kept

    def submit(self, who: Principal, command: str, **arguments: Any) -> Any:
        return self._submitter.submit(who, command, arguments)

    def search_index(self, who: Principal) -> SqliteSearchIndex:
        return SqliteSearchIndex(lambda: self._opened(who), self._cache, self._catalogue)

    def pending_passages(self, model: str, limit: int) -> list[tuple[int, int, str]]:
        with self._connection() as (db, _):
            rows: list[Any] = db.execute(
                "select passage.id, passage.document, passage.start, passage.stop, node.id, node.size, node.extents"
                # cross: from the queue outwards; the planner would walk all passages of the store instead
                " from semantic_queue cross join passage on passage.document = semantic_queue.document"
                " join document on document.id = passage.document join node on node.id = document.node"
                " left join vector on vector.id = passage.id and vector.model = ? where vector.id is null"
                " and passage.document not in (select document from lexical_queue) limit ?",
                (model, limit),
            ).fetchall()
            found, read, text = [], None, ""
            for passage, document, start, stop, node, size, extents in rows:
                if document != read:  # they come document by document: decode each once
                    read, text = document, sniff.decode(content.read(db, node, size, bool(extents), 0, size)) or ""
                found.append((passage, document, text[start:stop]))
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

    def anything_expired(self) -> bool:
        with self._connection() as (db, _):
            return bool(db.execute("select 1 from node where expires <= ? limit 1", (self._clock(),)).get)

    def orphans(self) -> list[tuple[int, int]]:
        with self._connection() as (db, _):
            rows: list[Any] = db.execute(
                "select id, coalesce((select max(at) from hold where hold.node = node.id), 0) from node"
                " where parent is null and id <> ?",
                (ROOT,),
            ).fetchall()
            return rows

    def watch(self, notify: Callable[[int], None]) -> AbstractContextManager[None]:
        if not isinstance(self._submitter, WriterClient):
            raise NotSupported("changes can be watched while a daemon runs")
        return self._submitter.watch(notify)

    def feed_cache(
        self, descriptor: int, names: bytes, node: bytes, at: int, switch: Callable[[bool], None], over: threading.Event
    ) -> None:
        if isinstance(self._submitter, WriterClient):
            self._submitter.feed_cache(descriptor, names, node, at, switch, over)

    def capacity(self) -> os.statvfs_result:
        return os.statvfs(self.path.parent)

    def close(self) -> None:
        self._submitter.close()
        while self._pool:
            self._pool.pop()[0].close()

    def _connection(self) -> _Borrowed:
        """A connection inside a read transaction that ends with the block."""
        return _Borrowed(self)

    @contextlib.contextmanager
    def _opened(self, who: Principal) -> Iterator[tuple[apsw.Connection, SqliteReader]]:
        with self._connection() as (db, scopes):
            yield db, SqliteReader(db, who, scopes.visible(db, who), self._clock())

    def _borrow(self) -> tuple[apsw.Connection, Scopes]:
        if os.getpid() != self._pid:
            # Inherited over fork: must not be used, and not even closed (it would drop the parent's locks).
            self._pool, self._pid, self._header = deque(), os.getpid(), None
        try:
            return self._pool.pop()
        except IndexError:
            return database.connect(self.path, writable=False), Scopes()

    def _cache(self, model: str) -> VectorCache:
        with self._mutex:
            return self._caches.setdefault(model, VectorCache(model))


class _Borrowed:
    """A pooled connection in a short read transaction. A class, not a generator: this is on every path."""

    __slots__ = ("_pooled", "_store")

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def __enter__(self) -> tuple[apsw.Connection, Scopes]:
        self._pooled = self._store._borrow()
        try:
            self._pooled[0].execute("begin")
        except apsw.Error:
            self._store._pool.append(self._pooled)
            with database.translated(self._store.path):
                raise
        return self._pooled

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        db = self._pooled[0]
        try:
            if not db.get_autocommit():
                db.execute("commit")
        finally:
            self._store._pool.append(self._pooled)
        if isinstance(error, apsw.Error):
            with database.translated(self._store.path):
                raise error


class _Reading:
    """A Reader on a borrowed connection."""

    __slots__ = ("_borrowed", "_store", "_who")

    def __init__(self, store: SqliteStore, who: Principal) -> None:
        self._store, self._who = store, who
        self._borrowed = _Borrowed(store)

    def __enter__(self) -> SqliteReader:
        db, scopes = self._borrowed.__enter__()
        try:
            return SqliteReader(db, self._who, scopes.visible(db, self._who), self._store._clock())
        except BaseException:
            self._borrowed.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._borrowed.__exit__(kind, error, trace)


def open_direct(path: Path, policy: Policy, index: IndexRules, clock: Callable[[], int] = time.time_ns) -> SqliteStore:
    """For a process that finds no daemon: creates the store if need be. Raises Busy when one runs."""
    return SqliteStore(path, DirectWriter(path, policy, index, clock), clock)


def open_attached(
    path: Path, writer: Path, agent: str, proof: bytes, clock: Callable[[], int] = time.time_ns
) -> SqliteStore:
    """For a process of the daemon: commands go through the writer's socket."""
    return SqliteStore(path, WriterClient(writer, agent, proof), clock)
