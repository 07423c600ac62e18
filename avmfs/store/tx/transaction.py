"""What a write command works with: one transaction, one asker, one time.

Owns the primitives that every command shares: looking a node up under the policy, walking to the
root, interning a scope, appending to the log. Created by the writer (or direct mode) per request;
the caller owns BEGIN, the savepoint and COMMIT.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import apsw
from avmfs_config.agent_id import check_agent_id

from avmfs import paths
from avmfs.access import Policy, Principal
from avmfs.errors import Denied, Invalid, IsDirectory, NotFound, Stale
from avmfs.node import Kind, Node
from avmfs.store.rows.log_ops import MOVED, MOVES, TOUCHED
from avmfs.store.rows.nodes import NODE, LogRow, node_of
from avmfs.store.rows.scopes import Visible
from avmfs.store.schema.tables import NOBODYS, ROOT
from avmfs.store.tx import random_ids
from avmfs.store.tx.memo import WriterMemo
from avmfs.store.tx.states import States
from avmfs.trust import OWN, Origin

if TYPE_CHECKING:
    from avmfs_config import Settings

_FEW_VERSIONS = 16
_WILD = re.compile(r"[*?[]")


def new_id() -> int:
    """A random positive 63-bit id above the fixed ones."""
    return max(16, random_ids.number(63))


@dataclass(frozen=True, slots=True)
class IndexRules:
    """What is not indexed: names by glob (a pattern with ``/`` is matched at every level), and large files. And how
    much history is kept of a document: at most ``versions``, of a large file as many as would fill ``history_bytes``
    if each were whole, but always a few. For ``past_days`` the whole tree is kept as it was (0: what snapshots have),
    of what is gone at most ``past_bytes``."""

    ignore: tuple[str, ...] = ()
    max_bytes: int = 4 * 1024 * 1024
    versions: int = 1000
    history_bytes: int = 256 * 1024 * 1024
    past_days: int = 0
    past_bytes: int = 1 << 30

    @classmethod
    def of(cls, settings: Settings) -> IndexRules:
        search, limits = settings.search, settings.limits
        kept = (limits.versions, limits.history_bytes, limits.past_days, limits.past_bytes)
        return cls(search.ignore, search.max_index_bytes, *kept)

    def versions_kept(self, size: int) -> int:
        """Of a document of ``size`` bytes."""
        return max(_FEW_VERSIONS, min(self.versions, self.history_bytes // max(size, 1)))

    def leaves_out(self, parts: tuple[bytes, ...], size: int) -> str | None:
        """Why a file of ``size`` bytes is not indexed there, whatever it says; None where it is."""
        if self.ignores(parts):
            return "its name is on the ignore list"
        return f"larger than {self.max_bytes} bytes" if size > self.max_bytes else None

    def ignores(self, parts: tuple[bytes, ...]) -> bool:
        name, tail = _patterns(self.ignore)
        names = [paths.text(part) for part in parts]
        if name is not None and name.match(names[-1]):
            return True
        return tail is not None and any(tail.match("/".join(names[start:])) for start in range(len(names)))

    def ignores_by(self, directory: tuple[bytes, ...]) -> bool:
        """Return whether what is below a directory may be ignored because of where that stands, or of its name."""
        names = [paths.text(part) for part in directory]
        ways = ["/".join([*names[start:], ""]) for start in range(len(names))]
        fixed = [_WILD.split(glob, maxsplit=1)[0] for glob in self.ignore if "/" in glob]
        return any(way.startswith(each) or each.startswith(way) for each in fixed for way in ways)


@lru_cache(maxsize=16)
def _patterns(globs: tuple[str, ...]) -> tuple[re.Pattern[str] | None, re.Pattern[str] | None]:
    """One for those that a name matches by itself, one for those that say where it is."""
    name, tail = ([glob for glob in globs if ("/" in glob) == placed] for placed in (False, True))
    return _any_of(name), _any_of(tail)


def _any_of(globs: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(fnmatch.translate, globs))) if globs else None


@dataclass(slots=True)
class Tx:
    """One request's view of the open transaction."""

    db: apsw.Connection
    do: Callable[..., object]  # one cursor's ``execute``, for statements without rows: another one a call costs as much
    policy: Policy
    known: WriterMemo
    who: Principal
    now: int
    orphans: bool = True  # keep the bytes of an unlinked file for mounts that have it open
    spacious: bool = True  # the disk has room for more than what frees some
    index: IndexRules = IndexRules()
    configured: Policy = field(default_factory=Policy)  # the policy without the agents that the store itself knows of
    mirrors: bool = False  # it puts into the tree what comes from outside the store, where nobody else may
    states: States | None = None  # what nodes were before this request, while the past is kept
    snapped: bool = False  # it has made a snapshot: what that has is kept from the next request on
    # What caches have to hear of: (op, node, parent, name).
    events: list[tuple[str, int, int | None, bytes]] = field(default_factory=list)
    rows: list[LogRow] = field(default_factory=list)  # that this request has appended to the log
    seq: int = 0  # of the newest one that is not for the audit alone
    # Passages whose words came (or went: None), where the words' index of other hosts is to follow.
    words: list[tuple[int, str | None]] | None = None
    _visible: Visible | None = None

    @property
    def visible(self) -> Visible:
        seen, scopes = self._visible, self.known.scopes
        if seen is None or seen.highest != scopes.highest:
            seen = self._visible = scopes.visible_as_loaded(self.who)
        return seen

    def index_words(self, passage: int, words: str | None) -> None:
        """Index terms with blanks between; None: the passage goes."""
        if words is None:
            self.do("delete from terms where rowid = ?", (passage,))
        else:
            self.do("insert into terms(rowid, t) values(?, ?)", (passage, words))
        if self.words is not None:
            self.words.append((passage, words))

    def is_agent(self, name: str) -> bool:
        """Return whether it has been here, or is configured."""
        return name in self.policy.named or bool(self.db.execute("select 1 from agent where name = ?", (name,)).get)

    def require_operator(self) -> None:
        """For what keeps the store in order: it touches what belongs to everybody. Raises Denied."""
        self.who.require_operator("only an operator may do this")

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
        """A directory in which the asker may make and remove names, as it was but for its times."""
        found = self.known.directory(node)
        if found is None:
            found = self.writable(node)
            if found.kind is not Kind.DIRECTORY:
                raise NotFound()
            self.known.keep_directory(found)
        elif found.expires is not None and found.expires <= self.now:
            raise NotFound()
        else:
            self.visible.require(found.scope)
        return found

    def child(self, parent: int, name: bytes) -> Node | None:
        """The entry, visible or not; one whose ttl has passed counts as absent and is removed."""
        row = self.db.execute(f"select {NODE} from node where parent = ? and name = ?", (parent, name)).fetchone()
        return node_of(row) if row is not None else None

    def parts(self, node: int) -> tuple[bytes, ...]:
        """Names from the root. Raises Stale for an orphan."""
        below: list[tuple[int, bytes, bool]] = []
        known: tuple[bytes, ...] | None = ()
        while node != ROOT and (known := self.known.places.get(node)) is None:
            row = self.db.execute("select parent, name, kind from node where id = ?", (node,)).fetchone()
            if row is None or row[0] is None:
                raise Stale()
            below.append((node, bytes(row[1]), row[2] == Kind.DIRECTORY))
            node = row[0]
        parts = known or ()
        for each, name, directory in reversed(below):
            parts = (*parts, name)
            if directory:
                self.known.places.put(each, parts)
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

    def scope_at(self, parts: tuple[bytes, ...], shared: tuple[str, ...] | None = None, origin: Origin = OWN) -> int:
        return self.known.scope(self.db, self.policy, parts, shared, origin)

    def origin(self, scope: int) -> Origin:
        """How what is of this class came in, whoever may see it."""
        return self.known.scopes.of(self.db, scope).origin

    def place(self, parts: tuple[bytes, ...], shared: tuple[str, ...] | None = None, origin: Origin = OWN) -> int:
        """The scope of a place the asker wants to put something. Raises Denied where it may not write."""
        if len(parts) == 1 and not self.mirrors:
            raise Denied("nothing can be created here", paths.text(paths.join(parts)))
        inside = paths.origin(parts)
        if inside == paths.origin(parts[:-1]):  # what is below would have the rights of other places
            raise Invalid("there it is the name of another mirror of /memory", paths.text(paths.join(parts)))
        private = inside[:2] == (paths.MEMORY, paths.PRIVATE)
        if private and (len(inside) < 4 or parts[1] != paths.PRIVATE):  # these have their mirrors inside
            raise Denied("private spaces are made by the system, one per agent", paths.text(paths.join(parts)))
        if paths.aside(parts) == "trash":
            raise Denied("what is removed comes here by itself", paths.text(paths.join(parts)))
        scope = self.scope_at(parts, shared, origin)
        if not self.mirrors and not self.visible.writable(scope):
            raise Denied("not writable for you", paths.text(paths.join(parts)))
        return scope

    def log(
        self,
        op: str,
        node: Node,
        path: bytes,
        *,
        version: int | None = None,
        other: bytes | None = None,
        scope: int | None = None,
    ) -> int:
        """Append to the one log; returns the change's seq."""
        scope, who, salt = node.scope if scope is None else scope, self.who, random_ids.eight()
        about = (node.id, node.document, version, scope, path, other)
        self.do(
            "insert into log(at, op, agent, node, document, version, scope, path, other, salt, route, elevated)"
            " values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (self.now, op, who.name, *about, salt, who.route, who.operator),
        )
        moved = node.kind is Kind.DIRECTORY and op in MOVES
        self.events.append((MOVED if moved else op, node.id, node.parent, node.name))
        self.seq = self.db.last_insert_rowid()
        self.rows.append((self.seq, scope, op, node.id))
        return self.seq

    def note(
        self, op: str, *, about: str | None = None, who: Principal | None = None, node: int = 0, path: bytes = b""
    ) -> None:
        """Append a row for the audit alone: no scope has it, no cursor is told of it. ``about`` says no content."""
        who = self.who if who is None else who
        self.do(
            "insert into log(at, op, agent, node, scope, path, salt, route, elevated, about)"
            f" values(?, ?, ?, ?, {NOBODYS}, ?, ?, ?, ?, ?)",
            (self.now, op, who.name, node, path, random_ids.eight(), who.route, who.operator, about),
        )
        self.rows.append((self.db.last_insert_rowid(), NOBODYS, op, node))

    def touch(self, directory: int) -> None:
        """A name came or went: the directory's own times change."""
        self.events.append((TOUCHED, directory, None, b""))
        self.do("update node set mtime = ?, ctime = ? where id = ?", (self.now, self.now, directory))
