"""The SQLite store of one process: pooled readers, and whatever applies its commands.

Owns what this process remembers of the store, and the two ways of opening one. Nothing of it survives into a forked
child.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import apsw

from avmfs.access import Policy, Principal, Visible
from avmfs.errors import NotSupported, Stale
from avmfs.kept import Kept
from avmfs.node import Node
from avmfs.store import content, counting, fence
from avmfs.store.catalogue import Catalogue
from avmfs.store.connections import Connections, Lone, Snapshot
from avmfs.store.index_client import IndexClient
from avmfs.store.news import Follower
from avmfs.store.peek import Remembered
from avmfs.store.protocol import Attendant, Changes, Counts, VectorModel
from avmfs.store.reader import SqliteReader
from avmfs.store.scanning import LocalScanner, Scanner
from avmfs.store.schema import ROOT
from avmfs.store.search_index import SqliteSearchIndex
from avmfs.store.submit import DirectWriter, Submitter, WriterClient
from avmfs.store.transaction import NODE, IndexRules, node_of
from avmfs.store.vector_model import read_vector_model
from avmfs.store.walheader import CommitHeader
from avmfs.text import sniff

_NODE_BY_ID: Final = f"select {NODE} from node where id = ?"
_NODE_BY_NAME: Final = f"select {NODE} from node where parent = ? and name = ?"
_NODES_AFTER: Final = f"select {NODE} from node where parent = ? and name > ? order by name limit ?"
_SMALL: Final = 64 * 1024
_COUNTED: Final = 64  # answers to peek_counts that are kept
# Passages that wait for a vector of one model.
_PENDING = (
    "select passage.id, passage.document, passage.start, passage.stop, node.id, node.size, node.extents {}"
    " join document on document.id = passage.document join node on node.id = document.node"
    " left join vector on vector.id = passage.id and vector.model = ? where vector.id is null"
    " and document.due is null"
)
# cross: from the queue outwards; the planner would walk all passages of the store instead
_QUEUED = "from semantic_queue cross join passage on passage.document = semantic_queue.document"
_RECENT = "from passage cross join semantic_queue on semantic_queue.document = passage.document"
# Whose words are due will want vectors, too.
_AWAITING_VECTORS = """select (select count(*) from semantic_queue)
 + (select count(*) from document where due is not null and id not in (select document from semantic_queue))"""


_stores: weakref.WeakSet[SqliteStore] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: list(map(SqliteStore._forked, _stores)))


class SqliteStore:
    """See protocol.Store. Threads may share it."""

    def __init__(
        self, path: Path, submitter: Submitter, clock: Callable[[], int] = time.time_ns, scanner: Scanner | None = None,
        writer: Path | None = None,
    ) -> None:  # fmt: skip
        """``scanner`` None: vectors are scanned here, which keeps a copy of all of them in this process. ``writer``:
        the socket of the one that tells what it commits (``news``)."""
        self.path = path
        self._submitter = submitter
        self._clock = clock
        self._connections = Connections(path)
        self._scanner = LocalScanner(self.connection) if scanner is None else scanner
        self._catalogue = Catalogue()
        self._mutex = threading.Lock()
        self._header: CommitHeader | None = None
        self._inherited: list[object] = []
        self._secret = b""
        self._writer = writer
        self._kept = Remembered(None if writer is None else Follower(writer))
        self._counted: dict[tuple[Principal, int], tuple[bytes, int | None, Counts]] = {}
        _stores.add(self)

    def reading(self, who: Principal) -> _Reading:
        return _Reading(self, who)

    # What follows answers without SQL while nothing has been committed (peek.py).

    def peek_state(self) -> int:
        return self._remembered().moment

    def peek_changes(self, since: int) -> Changes | None:
        return self._remembered().changes(since)

    def peek_node(self, who: Principal, node: int) -> Node:
        kept = self._remembered()
        moment, found = kept.moment, kept.nodes.get(node)
        if found is None:
            with Lone(self._connections) as db:
                row = db.execute(_NODE_BY_ID, (node,)).fetchone()
            if row is None:
                raise Stale()
            found = node_of(row)
            kept.add(moment, found)
        visible = kept.last_visible  # by hand what _visible() does: this is asked several times for each request
        if visible is None or visible.who is not who:
            visible = self._visible(kept, who)
        if found.scope not in visible.ids:
            raise Stale()
        return found

    def peek_gone(self, who: Principal, node: int) -> Node | None:
        kept = self._remembered()
        found = kept.gone.get(node)
        return found if found is not None and found.scope in self._visible(kept, who) else None

    def peek_child(self, who: Principal, parent: int, name: bytes) -> Node | None:
        kept = self._remembered()
        moment, found = kept.moment, kept.child(parent, name)
        if found is None:
            with Lone(self._connections) as db:
                row = db.execute(_NODE_BY_NAME, (parent, name)).fetchone()
            if row is None:
                kept.add_absent(moment, parent, name)
            else:
                found = node_of(row)
                kept.add(moment, found)
        if not isinstance(found, Node) or found.scope not in self._visible(kept, who):
            return None
        return found if found.expires is None or found.expires > self._clock() else None

    def peek_children(self, who: Principal, parent: int, after: bytes, limit: int) -> tuple[list[Node], bool]:
        kept = self._remembered()
        moment = kept.moment
        self.peek_node(who, parent)
        visible, now = self._visible(kept, who), self._clock()
        found: list[Node] = []
        while True:
            with Lone(self._connections) as db:
                rows: list[Any] = db.execute(_NODES_AFTER, (parent, after, limit)).fetchall()
            nodes = [node_of(row) for row in rows]
            kept.add(moment, *nodes)  # who lists asks for each of them next
            found += [node for node in nodes if node.scope in visible and (node.expires is None or node.expires > now)]
            # Pages that others' rows fill are passed over.
            if len(rows) < limit:
                return found, False
            if found:
                return found, True
            after = bytes(rows[-1][2])

    def peek_read(self, who: Principal, node: int, offset: int, length: int) -> bytes:
        kept = self._remembered()
        moment = kept.moment
        who.require("read")
        # Also when the bytes are here: another agent of this process may have read them.
        found = self.peek_node(who, node)
        data = kept.bodies.get(node)
        if data is None:
            with self.connection() as (db, _):
                row: Any = db.execute("select size, extents, scope from node where id = ?", (node,)).fetchone()
                if row is None or row[2] not in self._visible(kept, who):
                    raise Stale()
                if row[1] or found.size > _SMALL:
                    return content.read(db, node, row[0], bool(row[1]), offset, length)
                data = content.read(db, node, row[0], False, 0, row[0])
            kept.add_body(moment, node, data)
        return data[offset : offset + length]

    def peek_subdirectories(self, who: Principal, parent: int) -> int:
        kept = self._remembered()
        moment, found = kept.moment, kept.subdirectories.get((who, parent))
        if found is None:
            with self.reading(who) as reader:
                found = reader.subdirectories(parent)
            kept.add_subdirectories(moment, who, parent, found)
        return found

    def peek_counts(self, who: Principal, under: int) -> Counts:
        header = self._commit_header().read()  # before what is counted under it
        known = self._counted.get((who, under))
        if known is not None and known[0] == header and (known[1] is None or self._clock() < known[1]):
            return known[2]
        with self._opened(who) as (db, reader):
            found = reader.counts(under)
            until = counting.stand_until(db, reader.now)
        if who.key is None:  # an API key may end meanwhile
            if len(self._counted) >= _COUNTED:
                self._counted.clear()
            self._counted[who, under] = header, until, found
        return found

    def peek_writable(self, who: Principal, scope: int) -> bool:
        return self._visible(self._remembered(), who).writable(scope)

    def _visible(self, kept: Remembered, who: Principal) -> Visible:
        last = kept.last_visible
        if last is not None and last.who is who:
            return last
        moment, found = kept.moment, kept.visible.get(who)
        if found is None:
            with self.reading(who) as reader:
                found = reader.visible
        elif found.who is not who:
            return found  # an equal one's
        kept.add_visible(moment, who, found)
        return found

    def _remembered(self) -> Remembered:
        """What is known under the header as it is now."""
        commits, kept = self._header or self._commit_header(), self._kept
        if commits.read() != kept.header:
            with kept.lock:
                header = commits.read()
                if header != kept.header and not kept.told(header):
                    with Lone(self._connections) as db:
                        kept.catch_up(header, db)
        return kept

    def _commit_header(self) -> CommitHeader:
        if self._header is None:
            with self.connection():  # the first connection makes the WAL index
                self._header = CommitHeader(self.path)
        return self._header

    def submit(self, who: Principal, command: str, **arguments: Any) -> Any:
        result = self._submitter.submit(who, command, arguments)
        if command == "mkdir":
            self._kept.follow(result["node"])
        return result

    def nonce(self, who: Principal, seq: int, question: str) -> str:
        if not self._secret:
            with self.connection() as (db, _):
                self._secret = bytes.fromhex(db.execute("select value from setting where key = 'fence'").get)
        return fence.nonce(self._secret, who.name, seq, question)

    def search_index(self, who: Principal) -> SqliteSearchIndex:
        who.require("search")
        return SqliteSearchIndex(lambda: self._opened(who), who, self._scanner, self._catalogue)

    def vector_model(self) -> VectorModel | None:
        with self.connection() as (db, _):
            return read_vector_model(db)

    def pending_passages(self, model: str, limit: int) -> list[tuple[int, int, str]]:
        with self.connection() as (db, _):
            # First of what was written last: behind a backlog of an hour, a new note is found within a second.
            rows: list[Any] = db.execute(
                f"{_PENDING.format(_RECENT)} and passage.id > (select max(id) from passage) - 256"
                " order by passage.id desc limit ?",
                (model, limit),
            ).fetchall()
            if len(rows) < limit:
                known = {row[0] for row in rows}
                more = db.execute(f"{_PENDING.format(_QUEUED)} limit ?", (model, limit))
                rows += [row for row in more if row[0] not in known][: limit - len(rows)]
            rows.sort(key=lambda row: -row[0])
            found, read, text = [], None, ""
            for passage, document, start, stop, node, size, extents in rows:
                if document != read:  # they come document by document: decode each once
                    read, text = document, sniff.decode(content.read(db, node, size, bool(extents), 0, size)) or ""
                found.append((passage, document, text[start:stop]))
            return found

    def idle_documents(self, model: str, limit: int) -> list[int]:
        with self.connection() as (db, _):
            rows = db.execute(
                "select document from semantic_queue"
                " where not exists (select 1 from document where id = semantic_queue.document and due is not null)"
                " and not exists (select 1 from passage left join vector on vector.id = passage.id and model = ?"
                "   where passage.document = semantic_queue.document and vector.id is null) limit ?",
                (model, limit),
            )
            return [row[0] for row in rows]

    def queue_lengths(self) -> tuple[int, int]:
        with self.connection() as (db, _):
            return (
                int(db.execute("select (select count(*) from lexical_queue) + (select count(*) from ended)").get),
                int(db.execute(_AWAITING_VECTORS).get),
            )

    def anything_expired(self) -> bool:
        with self.connection() as (db, _):
            return bool(db.execute("select 1 from node where expires <= ? limit 1", (self._clock(),)).get)

    def orphans(self) -> list[tuple[int, int]]:
        with self.connection() as (db, _):
            rows: list[Any] = db.execute(
                "select id, coalesce((select max(at) from hold where hold.node = node.id), 0) from node"
                " where parent is null and id <> ?",
                (ROOT,),
            ).fetchall()
            return rows

    def watch(
        self, notify: Callable[[int], None], every_s: float = 0.0, mail: bool = False
    ) -> AbstractContextManager[None]:
        if not isinstance(self._submitter, WriterClient):
            raise NotSupported("changes can be watched while a daemon runs")
        return self._submitter.watch(notify, every_s, mail)

    def feed_cache(
        self, descriptors: Sequence[int], names: bytes, node: bytes, at: int, switch: Callable[[bool], None],
        over: threading.Event, registered: int | None = None, keep: Callable[[int], None] = lambda descriptor: None,
    ) -> None:  # fmt: skip
        if isinstance(self._submitter, WriterClient):
            self._submitter.feed_cache(descriptors, names, node, at, switch, over, registered, keep)

    def keep(self, kept: Kept, origin: bytes | None) -> bytes:
        if not isinstance(self._submitter, WriterClient):
            raise NotSupported("only a process of a daemon has a successor")
        return self._submitter.keep(kept, origin)

    def once(self, kind: int, key: int) -> AbstractContextManager[None]:
        writer = self._submitter
        return writer.once(kind, key) if isinstance(writer, WriterClient) else contextlib.nullcontext()

    def left(self, kind: int, key: int) -> bool:
        return isinstance(self._submitter, WriterClient) and self._submitter.left(kind, key)

    def settle(self, kind: int, still: set[int]) -> None:
        if isinstance(self._submitter, WriterClient):
            self._submitter.settle(kind, still)

    def attended(self, by: Attendant) -> None:
        if isinstance(self._submitter, WriterClient):
            self._submitter.attended(by)

    def capacity(self) -> os.statvfs_result:
        return os.statvfs(self.path.parent)

    def close(self) -> None:
        self._submitter.close()
        self._scanner.close()
        self._connections.close()

    def connection(self) -> Snapshot:
        """A connection inside a read transaction that ends with the block."""
        return Snapshot(self._connections)

    @contextlib.contextmanager
    def _opened(self, who: Principal) -> Iterator[tuple[apsw.Connection, SqliteReader]]:
        with self.connection() as (db, scopes):
            yield db, SqliteReader(db, who, scopes.visible(db, who), self._clock())

    def _forked(self) -> None:
        """In a new process: what it inherited must not be used, and not even closed (it would drop the parent's
        locks)."""
        self._connections.forked()
        self._inherited.append(self._header)
        self._header, self._counted = None, {}
        self._kept = Remembered(None if self._writer is None else Follower(self._writer))


class _Reading:
    """A Reader on a borrowed connection."""

    __slots__ = ("_borrowed", "_store", "_who")

    def __init__(self, store: SqliteStore, who: Principal) -> None:
        self._store, self._who = store, who
        self._borrowed = store.connection()

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
    path: Path, writer: Path, agent: str, proof: bytes, clock: Callable[[], int] = time.time_ns,
    index: Path | None = None,
) -> SqliteStore:  # fmt: skip
    """For a process of the daemon: commands go through the writer's socket, and what is near to a vector is asked of
    the ``index`` process."""
    scanner = None if index is None else IndexClient(index, agent, proof)
    return SqliteStore(path, WriterClient(writer, agent, proof), clock, scanner, writer)
