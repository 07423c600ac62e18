"""What a write command works with: one transaction, one asker, one time.

Owns the primitives that every command shares: looking a node up under the policy, walking to the
root, interning a scope, appending to the log. Created by the writer (or direct mode) per request;
the caller owns BEGIN, the savepoint and COMMIT.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import apsw
from avmfs_config.agent_id import check_agent_id

from avmfs import paths
from avmfs.access import Area, Policy, Principal, Scope, Visible
from avmfs.errors import Denied, Invalid, IsDirectory, NotFound, Stale
from avmfs.node import Kind, Node
from avmfs.store import chance
from avmfs.store.schema import NOBODYS, ROOT
from avmfs.store.sinks import MOVED, TOUCHED

_DIRECTORIES = 50_000  # remembered places of directories
_PRINCIPALS = 4096
_QUEUED = 50_000
_LEFT = 10_000
_FEW_VERSIONS = 16

_KINDS = {int(kind): kind for kind in Kind}

NODE = "id, parent, name, kind, mode, uid, gid, size, atime, mtime, ctime, scope, document, expires"


def node_of(row: tuple[Any, ...]) -> Node:
    """A Node from a row of the columns NODE."""
    id_, parent, name, kind, mode, uid, gid, size, atime, mtime, ctime, scope, document, expires = row
    return Node(
        id_, parent, name, _KINDS[kind], mode, uid, gid, size,
        mtime if atime is None else atime, mtime, ctime, scope, document, expires,
    )  # fmt: skip


def new_id() -> int:
    """A random positive 63-bit id above the fixed ones."""
    return max(16, chance.number(63))


class Scopes:
    """The scope table in memory, and what each principal sees of it. One per connection."""

    def __init__(self) -> None:
        self._by_id: dict[int, Scope] = {}
        self._by_spec: dict[str, int] = {}
        self._visible: dict[Principal, Visible] = {}
        self._highest = 0
        self.interned = 0  # how many this connection has added; a rollback must be followed by forget()

    def load(self, db: apsw.Connection) -> None:
        """Read the scopes interned since the last look."""
        for number, spec in db.execute("select id, spec from scope where id > ?", (self._highest,)):
            self._add(number, spec, Scope.parse(spec))

    def _add(self, number: int, spec: str, scope: Scope) -> None:
        self._by_id[number], self._by_spec[spec] = scope, number
        self._highest = max(self._highest, number)

    def forget(self) -> None:
        """After a rollback: a scope interned in it is no longer there."""
        self._by_id.clear()
        self._by_spec.clear()
        self._visible.clear()
        self._highest = 0

    def intern(self, db: apsw.Connection, scope: Scope) -> int:
        spec = scope.spec
        if spec not in self._by_spec:
            self.load(db)
        if spec not in self._by_spec:
            db.execute("insert into scope(spec) values(?)", (spec,))
            self.interned += 1
            self._add(db.last_insert_rowid(), spec, scope)
        return self._by_spec[spec]

    def visible(self, db: apsw.Connection, who: Principal) -> Visible:
        """What ``who`` may see, including scopes that other processes interned."""
        if (db.execute("select max(id) from scope").get or 0) != self._highest:
            self.load(db)
        return self.visible_as_loaded(who)

    @property
    def highest(self) -> int:
        """The newest scope in memory."""
        return self._highest

    def visible_as_loaded(self, who: Principal) -> Visible:
        """What ``who`` may see of the scopes that are in memory: all, in the one connection that interns them."""
        seen = self._visible.get(who)
        if seen is None or seen.highest != self._highest:
            if len(self._visible) > _PRINCIPALS:
                self._visible.clear()
            seen = self._visible[who] = Visible(who, self._by_id)
        return seen


class Known:
    """What a writing connection remembers from one request to the next, so as not to ask the database again:
    scopes, the areas of API keys, and where directories stand. Right as long as no other connection writes; the applier
    forgets it otherwise, and after a rollback of what it says."""

    def __init__(self) -> None:
        self.scopes = Scopes()
        self.areas: tuple[Area, ...] = ()
        self.moved = False  # did this request change areas, or where a directory stands?
        self.queued: set[int] = set()  # documents of which it is certain that they wait in both queues
        self._directories: dict[int, tuple[bytes, ...]] = {}  # the names from the root to each
        self._placed: dict[tuple[str | None, tuple[str, ...] | None], int] = {}
        self._placed_by: Policy | None = None
        self._left: set[tuple[int, bytes]] = set()
        self._left_since: int | None = None

    def renew(self, db: apsw.Connection) -> None:
        """Others may have written: start from what the database says."""
        self._directories.clear()
        self.queued.clear()
        self._left_since = None
        self.scopes.load(db)
        self.read_areas(db)

    def read_areas(self, db: apsw.Connection) -> None:
        rows: list[Any] = db.execute("select id, path from area").fetchall()
        self.areas = tuple((number, tuple(bytes(path).split(b"/")[1:])) for number, path in rows)

    def forget(self) -> None:
        """Rolled back: what was learnt in the transaction may not be so."""
        self._directories.clear()
        self._placed.clear()
        self.queued.clear()
        self.scopes.forget()

    def scope(
        self, db: apsw.Connection, policy: Policy, parts: tuple[bytes, ...], shared: tuple[str, ...] | None
    ) -> int:
        """The interned scope of a place. Without rules and areas whose space it is decides alone."""
        if policy.rules or self.areas:
            return self.scopes.intern(db, policy.scope(parts, shared, self.areas))
        if policy is not self._placed_by or len(self._placed) > _PRINCIPALS:
            self._placed.clear()
            self._placed_by = policy
        place = paths.agent_space(parts), shared
        if place not in self._placed:
            self._placed[place] = self.scopes.intern(db, policy.scope(parts, shared))
        return self._placed[place]

    def queue(self, document: int) -> bool:
        """Does the document have to be put into the queues? From now on it is in both."""
        if document in self.queued:
            return False
        if len(self.queued) > _QUEUED:
            self.queued.clear()
        self.queued.add(document)
        return True

    def left(self, parent: int, name: bytes) -> None:
        """A file leaves this name for another one."""
        if len(self._left) > _LEFT:
            self._left.clear()
            self._left_since = None
        self._left.add((parent, name))

    def may_have_left(self, parent: int, name: bytes, now: int, within: int) -> bool:
        """Could a file have left this name in the last ``within`` ns? True while that cannot be known."""
        if self._left_since is None:
            self._left_since = now
        return (parent, name) in self._left or now - self._left_since <= within

    def place(self, directory: int) -> tuple[bytes, ...] | None:
        """The names from the root to a directory, None when it has to be asked."""
        return self._directories.get(directory)

    def keep(self, directory: int, parts: tuple[bytes, ...]) -> None:
        if len(self._directories) > _DIRECTORIES:
            self._directories.clear()
        self._directories[directory] = parts

    def forget_directories(self) -> None:
        """One moves or goes, and with it all below."""
        self.moved = True
        self._directories.clear()


@dataclass(frozen=True, slots=True)
class IndexRules:
    """What is not indexed: names by glob (a pattern with ``/`` is matched at every level), and large files. And how
    much history is kept of a document: at most ``versions``, of a large file as many as would fill ``history_bytes``
    if each were whole, but always a few."""

    ignore: tuple[str, ...] = ()
    max_bytes: int = 4 * 1024 * 1024
    versions: int = 1000
    history_bytes: int = 256 * 1024 * 1024

    def versions_kept(self, size: int) -> int:
        """Of a document of ``size`` bytes."""
        return max(_FEW_VERSIONS, min(self.versions, self.history_bytes // max(size, 1)))

    def ignores(self, parts: tuple[bytes, ...]) -> bool:
        names = [paths.text(part) for part in parts]
        tails = ["/".join(names[start:]) for start in range(len(names))]
        return any(
            fnmatch.fnmatchcase(tail, pattern)
            for pattern in self.ignore
            for tail in ([names[-1]] if "/" not in pattern else tails)
        )


@dataclass(slots=True)
class Tx:
    """One request's view of the open transaction."""

    db: apsw.Connection
    do: Callable[..., object]  # one cursor's ``execute``, for statements without rows: another one a call costs as much
    policy: Policy
    known: Known
    who: Principal
    now: int
    orphans: bool = True  # keep the bytes of an unlinked file for mounts that have it open
    index: IndexRules = IndexRules()
    configured: Policy = field(default_factory=Policy)  # the policy without the agents that the store itself knows of
    # What caches have to hear of: (op, node, parent, name).
    events: list[tuple[str, int, int | None, bytes]] = field(default_factory=list)
    seq: int = 0  # of the newest row that this request has appended to the log
    noted: bool = False  # has it appended one for the audit alone?
    _visible: Visible | None = None

    @property
    def visible(self) -> Visible:
        seen, scopes = self._visible, self.known.scopes
        if seen is None or seen.highest != scopes.highest:
            seen = self._visible = scopes.visible_as_loaded(self.who)
        return seen

    def require_operator(self) -> None:
        """For what keeps the store in order: it touches what belongs to everybody. Raises Denied."""
        if not self.who.operator:
            raise Denied("only an operator may do this")

    @staticmethod
    def agent(name: str) -> str:
        """The name, if it is an agent id: it becomes part of a scope's text, where no other may stand."""
        try:
            return check_agent_id(name)
        except ValueError as e:
            raise Invalid(str(e)) from None

    def node(self, node: int) -> Node:
        """The node, whoever may see it. Raises Stale when it is gone."""
        row = self.db.execute(f"select {NODE} from node where id = ?", (node,)).fetchone()
        if row is None:
            raise Stale()
        return node_of(row)

    def owner_at(self, parts: tuple[bytes, ...]) -> str:
        """Who is charged for what the asker makes there."""
        return paths.agent_space(parts) or self.who.name

    def seen(self, node: int) -> Node:
        """The node if the asker may see it and its ttl has not passed. Raises NotFound otherwise."""
        row = self.db.execute(f"select {NODE} from node where id = ?", (node,)).fetchone()
        if row is None or row[11] not in self.visible or (row[13] is not None and row[13] <= self.now):
            raise NotFound()
        return node_of(row)

    def writable(self, node: int) -> Node:
        """The node, if the asker may change it. Raises NotFound or Denied."""
        found = self.seen(node)
        self.visible.require(found.scope)
        return found

    def directory(self, node: int) -> Node:
        """A directory in which the asker may make and remove names."""
        found = self.writable(node)
        if found.kind is not Kind.DIRECTORY:
            raise NotFound()
        return found

    def child(self, parent: int, name: bytes) -> Node | None:
        """The entry, visible or not; one whose ttl has passed counts as absent and is removed."""
        row = self.db.execute(f"select {NODE} from node where parent = ? and name = ?", (parent, name)).fetchone()
        return node_of(row) if row is not None else None

    def parts(self, node: int) -> tuple[bytes, ...]:
        """Names from the root. Raises Stale for an orphan."""
        below: list[tuple[int, bytes, bool]] = []
        known: tuple[bytes, ...] | None = ()
        while node != ROOT and (known := self.known.place(node)) is None:
            row = self.db.execute("select parent, name, kind from node where id = ?", (node,)).fetchone()
            if row is None or row[0] is None:
                raise Stale()
            below.append((node, bytes(row[1]), row[2] == Kind.DIRECTORY))
            node = row[0]
        parts = known or ()
        for each, name, directory in reversed(below):
            parts = (*parts, name)
            if directory:
                self.known.keep(each, parts)
        return parts

    def parts_of(self, node: Node) -> tuple[bytes, ...]:
        """Names from the root of a node as it was read in this transaction. Raises Stale for an orphan."""
        if node.id == ROOT:
            return ()
        if node.parent is None:
            raise Stale()
        return (*self.parts(node.parent), node.name)

    def document_of(self, node: Node) -> int:
        """The document of a regular file. Raises IsDirectory or Invalid for anything else."""
        if node.kind is Kind.DIRECTORY:
            raise IsDirectory()
        if node.document is None:
            raise Invalid("not a regular file in the tree")
        return node.document

    def scope_at(self, parts: tuple[bytes, ...], shared: tuple[str, ...] | None = None) -> int:
        return self.known.scope(self.db, self.policy, parts, shared)

    def place(self, parts: tuple[bytes, ...], shared: tuple[str, ...] | None = None) -> int:
        """The scope of a place the asker wants to put something. Raises Denied where it may not write."""
        if len(parts) == 1:
            raise Denied("nothing can be created here", paths.printable(paths.join(parts)))
        if len(parts) == 3 and parts[:2] == (paths.MEMORY, paths.PRIVATE):
            raise Denied("private spaces are made by the system, one per agent", paths.printable(paths.join(parts)))
        scope = self.scope_at(parts, shared)
        if not self.visible.writable(scope):
            raise Denied("not writable for you", paths.printable(paths.join(parts)))
        return scope

    def log(
        self, op: str, node: Node, path: bytes, *, version: int | None = None, other: bytes | None = None,
        scope: int | None = None,
    ) -> int:  # fmt: skip
        """Append to the one log; returns the change's seq."""
        self.do(
            "insert into log(at, op, agent, node, document, version, scope, path, other, salt, route, elevated)"
            " values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (self.now, op, self.who.name, node.id, node.document, version, node.scope if scope is None else scope,
             path, other, chance.eight(), self.who.route, self.who.operator),
        )  # fmt: skip
        moved = node.kind is Kind.DIRECTORY and op in ("rename", "remove", "create")
        self.events.append((MOVED if moved else op, node.id, node.parent, node.name))
        self.seq = self.db.last_insert_rowid()
        return self.seq

    def note(
        self, op: str, *, about: str | None = None, who: Principal | None = None, node: int = 0, path: bytes = b""
    ) -> None:
        """Append a row for the audit alone: no scope has it, no cursor is told of it. ``about`` says no content."""
        who, self.noted = self.who if who is None else who, True
        self.do(
            "insert into log(at, op, agent, node, scope, path, salt, route, elevated, about)"
            f" values(?, ?, ?, ?, {NOBODYS}, ?, ?, ?, ?, ?)",
            (self.now, op, who.name, node, path, chance.eight(), who.route, who.operator, about),
        )

    def touch(self, directory: int) -> None:
        """A name came or went: the directory's own times change."""
        self.events.append((TOUCHED, directory, None, b""))
        self.do("update node set mtime = ?, ctime = ? where id = ?", (self.now, self.now, directory))
