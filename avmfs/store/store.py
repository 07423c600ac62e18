"""The store as the layers above see it: pooled readers, and whatever applies its commands.

A ``Reader`` answers questions on one snapshot, for one asker; nothing that the asker cannot see, and nothing whose ttl
has passed, ever leaves it. ``submit`` runs one of the commands of ``avmfs.store.commands``, durably: when it returns,
the change survives kill -9 and power loss. Owns what this process remembers of the store, and the two ways of opening
one. Nothing of it survives into a forked child.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw

from avmfs.access import Policy, Principal
from avmfs.errors import Stale
from avmfs.lru import FIFO
from avmfs.node import Moment, Node
from avmfs.store.cache.follow import FollowedCache
from avmfs.store.cache.nodes import Changes
from avmfs.store.client.client import DirectWriter, Submitter, WriterClient
from avmfs.store.files.wal_header import CommitHeader
from avmfs.store.identity import OPERATOR, nonce
from avmfs.store.index.client import IndexClient
from avmfs.store.index.passage_columns import PassageColumns
from avmfs.store.index.scan import LocalScanner
from avmfs.store.index.search_index import SqliteSearchIndex
from avmfs.store.notify.change_ring import Follower
from avmfs.store.queries import counts, index_queue, matching
from avmfs.store.queries.connections import Connections, Lone, Snapshot
from avmfs.store.queries.counts import Counts
from avmfs.store.queries.nodes import Reader
from avmfs.store.queries.past import PastReader
from avmfs.store.rows import content, incarnation, log_position, vector_model
from avmfs.store.rows.nodes import NODE, node_of
from avmfs.store.rows.scopes import Visible
from avmfs.store.rows.vector_model import Walk
from avmfs.store.schema.tables import ROOT
from avmfs.store.tx.transaction import IndexRules

_NODE_BY_ID: Final = f"select {NODE} from node where id = ?"
_NODE_BY_NAME: Final = f"select {NODE} from node where parent = ? and name = ?"
_NODES_AFTER: Final = f"select {NODE} from node where parent = ? and name > ? order by name limit ?"
_SMALL: Final = 64 * 1024
_COUNTED: Final = 64  # answers to cached_counts that are kept


_stores: weakref.WeakSet[Store] = weakref.WeakSet()
os.register_at_fork(after_in_child=lambda: list(map(Store._forked, _stores)))


class Store:
    """One store, from one process. Threads may share it."""

    def __init__(
        self,
        path: Path,
        submitter: Submitter | None = None,
        clock: Callable[[], int] = time.time_ns,
        scanner: IndexClient | None = None,
        writer: Path | None = None,
    ) -> None:
        """``submitter`` None: it is only looked at. ``scanner`` None: vectors are scanned here, which keeps a copy of
        all in this process. ``writer``: the socket of the one that tells what it commits (``change_ring``)."""
        self.path = path
        self._submitter = submitter = submitter or Submitter()
        self.watch, self.feed_cache, self.attended = submitter.watch, submitter.feed_cache, submitter.attended
        self.keep, self.once, self.left, self.settle = submitter.keep, submitter.once, submitter.left, submitter.settle
        self.repeats = submitter.repeats
        self._clock = clock
        self._connections = Connections(path)
        self._scanner = scanner or LocalScanner(partial(Snapshot, self._connections))
        self._catalogue = PassageColumns()
        self._mutex = threading.Lock()
        self._header: CommitHeader | None = None
        self._inherited: list[object] = []
        self._secret = b""
        self._writer = writer
        self._kept = FollowedCache(None if writer is None else Follower(writer))
        self._counted: FIFO[tuple[Principal, int], tuple[bytes, int | None, Counts]] = FIFO(_COUNTED)
        _stores.add(self)

    def reading(self, who: Principal) -> _Reading:
        return _Reading(self, who)

    @contextlib.contextmanager
    def reading_at(self, who: Principal, then: Moment) -> Iterator[PastReader]:
        """The tree as it was: names, bytes, modes, times, what was said of documents; of it what the asker could see
        then and may see now."""
        with self.connection() as (db, scopes):
            yield PastReader(db, who, scopes.visible(db, who).remembered, self._clock(), then)

    # What follows answers without SQL while nothing has been committed (``cache``).

    def cached_state(self) -> int:
        """The same number for as long as nothing has been committed, by any process, that concerns what the others
        named so tell: what is derived from their answers is valid while this is what it was before they were asked."""
        return self._remembered().moment

    def cached_changes(self, since: int) -> Changes | None:
        """What has changed since an earlier state; None: anything may have."""
        return self._remembered().changes(since)

    def cached_node(self, who: Principal, node: int) -> Node:
        """Like Reader.open_node, from memory while nothing has been committed. Raises Stale."""
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

    def cached_gone(self, who: Principal, node: int) -> Node | None:
        """A directory or symlink that has been removed, as it was last, without its name; None where that is not known
        any more: at most of the last 1,024 of those that were remembered, and visible, when it was."""
        kept = self._remembered()
        found = kept.gone.get(node)
        return found if found is not None and found.scope in self._visible(kept, who) else None

    def cached_child(self, who: Principal, parent: int, name: bytes) -> Node | None:
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

    def cached_children(self, who: Principal, parent: int, after: bytes, limit: int) -> tuple[list[Node], bool]:
        """The entries of a directory in order of name, from the first after ``after`` on, at most ``limit``; and
        whether there are more. Raises Stale."""
        kept = self._remembered()
        moment = kept.moment
        self.cached_node(who, parent)
        visible, now = self._visible(kept, who).ids, self._clock()
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

    def cached_read(self, who: Principal, node: int, offset: int, length: int) -> bytes:
        """Like Reader.read. Raises Stale."""
        kept = self._remembered()
        moment = kept.moment
        who.require("read")
        # Also when the bytes are here: another agent of this process may have read them.
        found = self.cached_node(who, node)
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

    def cached_subdirectories(self, who: Principal, parent: int) -> int:
        kept = self._remembered()
        moment, found = kept.moment, kept.subdirectories.get((who, parent))
        if found is None:
            with self.reading(who) as reader:
                found = reader.subdirectories(parent)
            kept.add_subdirectories(moment, who, parent, found)
        return found

    def cached_counts(self, who: Principal, under: int) -> Counts:
        """Like Reader.counts, from memory while nothing has been committed and nothing has expired."""
        header = self._commit_header().read()  # before what is counted under it
        known = self._counted.get((who, under))
        if known is not None and known[0] == header and (known[1] is None or self._clock() < known[1]):
            return known[2]
        with self._opened(who) as (db, reader):
            found = reader.counts(under)
            until = counts.stand_until(db, reader.now)
        if who.key is None:  # an API key may end meanwhile
            self._counted.put((who, under), (header, until, found))
        return found

    def cached_writable(self, who: Principal, scope: int) -> bool:
        return self._visible(self._remembered(), who).writable(scope)

    def cached_shown_writable(self, who: Principal, scope: int) -> bool:
        """See Visible.shown_writable."""
        return self._visible(self._remembered(), who).shown_writable(scope)

    def cached_in_trash(self, who: Principal, scope: int) -> bool:
        return scope in self._visible(self._remembered(), who).trash

    def cached_live(self, who: Principal, scope: int) -> bool:
        """Return whether what has this scope comes from outside the store."""
        return self._visible(self._remembered(), who).live(scope)

    def _visible(self, kept: FollowedCache, who: Principal) -> Visible:
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

    def _remembered(self) -> FollowedCache:
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
        """Run a write command. Raises what the command raises, Busy when the writer cannot be reached in time."""
        return self._submitter.submit(who, command, arguments)

    def nonce(self, who: Principal, seq: int, question: str) -> str:
        """What fences an answer (``nonce``): six digits, the same for the same arguments."""
        return nonce(self._fence(), who.name, seq, question)

    def _fence(self) -> bytes:
        if not self._secret:
            with self.connection() as (db, _):
                self._secret = bytes.fromhex(db.execute("select value from setting where key = 'fence'").get)
        return self._secret

    def lineage(self) -> str:
        """Which store it is, in all its lives: the same after a restore, and on every host of a shared log."""
        return hashlib.sha256(b"lineage" + self._fence()).hexdigest()

    def life(self) -> str:
        """Which life of its the store is in: another one since it was restored from a backup, or repaired."""
        with self.connection() as (db, _):
            return incarnation.read(db)

    def search_index(self, who: Principal, aside: str = "") -> SqliteSearchIndex:
        """The avmfs.search.index.SearchIndex of this asker."""
        who.require("search")
        return SqliteSearchIndex(lambda: self._opened(who), who, self._scanner, self._catalogue, aside)

    def vector_model(self) -> Walk | None:
        """Which model the vectors are to be of; None while nothing has ever been embedded."""
        with self.connection() as (db, _):
            return vector_model.read(db)

    def pending_passages(self, model: str, limit: int) -> list[tuple[int, int, str]]:
        """Passages that wait for a vector: (id, document, text), the newest first. For the indexer."""
        with self.connection() as (db, _):
            return index_queue.passages(db, model, limit)

    def idle_documents(self, model: str, limit: int) -> list[int]:
        """Documents on the semantic queue with nothing to embed. For the indexer."""
        with self.connection() as (db, _):
            return index_queue.idle_documents(db, model, limit)

    def queue_lengths(self) -> tuple[int, int]:
        """Documents waiting for words and for vectors."""
        with self.connection() as (db, _):
            return index_queue.lengths(db)

    def words_wait(self) -> int:
        """Return how many documents wait for words."""
        with self.connection() as (db, _):
            return index_queue.words_wait(db)

    def vectors_wait(self) -> bool:
        """Return whether a document waits for vectors."""
        with self.connection() as (db, _):
            return index_queue.vectors_wait(db)

    def newest_passage(self) -> int:
        """Return its id; 0 where there is none. Ids grow, and are never used twice."""
        with self.connection() as (db, _):
            return int(db.execute("select max(id) from passage").get or 0)

    def anything_expired(self) -> bool:
        """Return whether there is a node whose ttl has passed and that still takes room."""
        with self.connection() as (db, _):
            return bool(db.execute("select 1 from node where expires <= ? limit 1", (self._clock(),)).get)

    def unwiped(self) -> bool:
        """Return whether something was purged whose bytes may still be in the store's file."""
        with self.connection() as (db, _):
            return bool(db.execute("select 1 from setting where key = 'unwiped'").get)

    def followed(self) -> int:
        """Return up to which record of the shared log this store is; -1 where it has none."""
        with self.connection() as (db, _):
            at = log_position.position(db)
            return -1 if at is None else at.number

    def uncut(self) -> str | None:
        """When something was purged that the shared log may still have; None where it has nothing of the kind."""
        with self.connection() as (db, _):
            found: str | None = db.execute("select value from setting where key = 'uncut'").get
            return found

    def orphans(self) -> list[tuple[int, int]]:
        """Unlinked files: (node, when a mount last said that it holds it open, 0 for never)."""
        with self.connection() as (db, _):
            rows: list[Any] = db.execute(
                "select id, coalesce((select max(at) from hold where hold.node = node.id), 0) from node"
                " where parent is null and id <> ?",
                (ROOT,),
            ).fetchall()
            return rows

    def match_subscriptions(self, stopping: Callable[[], bool | None] = lambda: False) -> None:
        """Queue for all subscriptions what was committed before this call, for the operator, or until ``stopping()``.
        Two may do so at once: what the other one has done is done."""
        while not stopping():
            with self.reading(OPERATOR) as reader:
                these = reader.outbox.unmatched()
            if these is None:
                return
            done = self.submit(OPERATOR, "outbox_fill", **matching.matched(these))
            if done["done"] and done["upto"] == these.rows[-1][0] and not these.more:
                return

    def capacity(self) -> os.statvfs_result:
        """Of the filesystem that holds the store."""
        return os.statvfs(self.path.parent)

    def close(self) -> None:
        self._scanner.close()
        self._connections.close()
        self._submitter.close()  # last: a connection that only reads leaves the log as it is

    def connection(self) -> Snapshot:
        """A connection inside a read transaction that ends with the block."""
        return Snapshot(self._connections)

    @contextlib.contextmanager
    def _opened(self, who: Principal) -> Iterator[tuple[apsw.Connection, Reader]]:
        with self.connection() as (db, scopes):
            yield db, Reader(db, who, scopes.visible(db, who), self._clock())

    def _forked(self) -> None:
        """In a new process: what it inherited must not be used, and not even closed (it would drop the parent's
        locks)."""
        self._connections.forked()
        self._inherited.append(self._header)
        self._header, self._counted = None, FIFO(_COUNTED)
        self._kept = FollowedCache(None if self._writer is None else Follower(self._writer))


class _Reading:
    """A Reader on a borrowed connection."""

    __slots__ = ("_borrowed", "_store", "_who")

    def __init__(self, store: Store, who: Principal) -> None:
        self._store, self._who = store, who
        self._borrowed = store.connection()

    def __enter__(self) -> Reader:
        db, scopes = self._borrowed.__enter__()
        try:
            return Reader(db, self._who, scopes.visible(db, self._who), self._store._clock())
        except BaseException:
            self._borrowed.__exit__(None, None, None)
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._borrowed.__exit__(kind, error, trace)


def open_direct(
    path: Path, policy: Policy, index: IndexRules, clock: Callable[[], int] = time.time_ns, at_least: int = 0
) -> Store:
    """For a process that finds no daemon: creates the store if need be. Raises Busy when one runs; see ``prepare``."""
    return Store(path, DirectWriter(path, policy, index, clock, at_least=at_least), clock)


def open_attached(
    path: Path,
    writer: Path,
    agent: str,
    proof: bytes,
    clock: Callable[[], int] = time.time_ns,
    index: Path | None = None,
) -> Store:
    """For a process of the daemon: commands go through the writer's socket, and what is near to a vector is asked of
    the ``index`` process."""
    scanner = None if index is None else IndexClient(index, agent, proof)
    return Store(path, WriterClient(writer, agent, proof), clock, scanner, writer)
