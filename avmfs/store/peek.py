"""Nodes remembered between commits: what stat(2) asks again and again, without SQL.

Owns a memory that is right by construction: it is bound to the header of the WAL index, 48 bytes that SQLite itself
changes with every commit of any process (wal.c, WalIndexHdr) and that every connection has mapped. As long as they
are the same, nothing in the database has changed. When they differ, the log tells what has: the nodes it names are
read anew, and so are the directories where a name came or went. Where that may not be all (a directory that moved takes
what is below it along, rules change scopes, too much happened), everything is forgotten.

What the log does not tell must not be remembered: unlinked files, whose bytes change without a row.

Each change of what is remembered is a *moment*, a number that counts upwards; what others derive from answers is
theirs to keep while the moment is the same, and ``changes`` says what has changed since an earlier one.

The header is read *before* the rows that are kept under it, so a row is never older than its header says. The mapping
and its descriptor stay open for the life of the process: closing any descriptor of that file would drop SQLite's
own POSIX locks on it.

Threads: catching up and adding happen under one lock, and what was read before a change is not added after it.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import apsw

from avmfs.access import Principal, Visible
from avmfs.node import Kind, Node
from avmfs.store.protocol import Changes
from avmfs.store.schema import NOBODYS, ROOT
from avmfs.store.transaction import NODE, node_of

HEADER: Final = 48
_MOST: Final = 60_000  # nodes and names: some 30 MB
_BODY_BYTES: Final = 16 * 1024 * 1024
_ROWS: Final = 256  # of the log: more than that since the last look, and everything is forgotten
_MOMENTS: Final = 64  # that ``changes`` can still tell of
_STAMPS: Final = (
    "select (select max(seq) from log), (select max(id) from scope), (select value from setting where key = 'policy')"
)
_LOG: Final = f"select op, node from log where seq > ? and scope <> {NOBODYS} order by seq limit {_ROWS + 1}"
_NODE_BY_ID: Final = f"select {NODE} from node where id = ?"

_ONE_NODE: Final = frozenset(("write", "attributes", "tags", "meta", "links", "ttl", "shared"))
_DIRECTORY_NAMES: Final = frozenset(("mkdir", "rmdir"))
_NAMES: Final = _DIRECTORY_NAMES | {"create", "remove", "rename"}
_NOTHING: Final = frozenset(("tell",))


@dataclass(frozen=True, slots=True)
class _Stamps:
    """Of one snapshot: the newest log row; the newest scope and the digest of the rules, which say who sees what."""

    seq: int
    sees: tuple[Any, Any]


class Remembered:
    """See the module. Rows are as stored, whoever may see them. Lookups may come from any thread, without a lock."""

    def __init__(self) -> None:
        self.header = b""
        self.moment = 0
        self.nodes: dict[int, Node] = {}
        self.children: dict[tuple[int, bytes], int] = {}  # 0: no such name
        self.subdirectories: dict[tuple[Principal, int], int] = {}
        self.visible: dict[Principal, Visible] = {}
        self.bodies: dict[int, bytes] = {}  # of small files, in order of first read
        self._body_bytes = 0
        self._directories: set[int] = set()
        self._stamps: _Stamps | None = None
        self._changes: deque[tuple[int, Changes | None]] = deque(maxlen=_MOMENTS)
        self.lock = threading.RLock()

    # Asking --------------------------------------------------------------------------------------------

    def child(self, parent: int, name: bytes) -> Node | int | None:
        """The node under a name, 0 where there is known to be none, None when it is not known."""
        number = self.children.get((parent, name))
        if not number:
            return number
        node = self.nodes.get(number)
        return node if node is not None and node.parent == parent and node.name == name else None

    def changes(self, since: int) -> Changes | None:
        """What has changed since a moment; None: anything may have."""
        with self.lock:
            if since == self.moment:
                return Changes(frozenset(), frozenset())
            newer = [changes for moment, changes in self._changes if moment > since]
            if len(newer) != self.moment - since:
                return None
        known = [changes for changes in newer if changes is not None]
        if len(known) < len(newer):
            return None
        return Changes(
            frozenset().union(*(each.nodes for each in known)), frozenset().union(*(each.names for each in known))
        )

    # Adding, of what was read since ``moment`` -----------------------------------------------------------

    def add(self, moment: int, *nodes: Node) -> None:
        with self.lock:
            if self._takes(moment):
                for node in nodes:
                    if node.parent is not None or node.id == ROOT:
                        self._keep(node)

    def add_absent(self, moment: int, parent: int, name: bytes) -> None:
        with self.lock:
            if self._takes(moment):
                self.children[parent, name] = 0

    def add_subdirectories(self, moment: int, who: Principal, parent: int, count: int) -> None:
        with self.lock:
            if moment == self.moment:
                self.subdirectories[who, parent] = count

    def add_visible(self, moment: int, who: Principal, visible: Visible) -> None:
        with self.lock:
            if moment == self.moment:
                self.visible[who] = visible

    def add_body(self, moment: int, node: int, data: bytes) -> None:
        """A small file's bytes; the oldest go when there are too many. Only of a node that is remembered."""
        with self.lock:
            if moment != self.moment or node in self.bodies or node not in self.nodes:
                return
            self.bodies[node] = data
            self._body_bytes += len(data)
            while self._body_bytes > _BODY_BYTES:
                self._drop_body(next(iter(self.bodies)))

    # Catching up ---------------------------------------------------------------------------------------

    def catch_up(self, header: bytes, db: apsw.Connection) -> None:
        """Let what is remembered be as it is under this header, which was read before the snapshot of ``db`` began."""
        with self.lock:
            row: Any = db.execute(_STAMPS).fetchone()
            stamps, before = _Stamps(row[0] or 0, (row[1], row[2])), self._stamps
            if before is None or before.sees != stamps.sees:
                self._forget()
            elif before.seq != stamps.seq:
                rows: list[Any] = db.execute(_LOG, (before.seq,)).fetchall()
                changes = self._reread(db, rows) if len(rows) <= _ROWS else None
                if changes is None:
                    self._forget()
                elif rows:  # none: there are new ones for the audit alone
                    self._moved_on(changes)
            self.header, self._stamps = header, stamps

    def _reread(self, db: apsw.Connection, rows: list[Any]) -> Changes | None:
        """None when the log does not say enough. Until then nothing is forgotten."""
        ops: dict[int, list[str]] = {}
        for op, node in rows:
            if op not in _NOTHING:
                ops.setdefault(node, []).append(op)
        found: dict[int, Node | None] = {}
        for number, done in ops.items():
            if not set(done) <= _ONE_NODE | _NAMES:
                return None
            row = db.execute(_NODE_BY_ID, (number,)).fetchone()
            node = found[number] = None if row is None else node_of(row)
            moved = not {"create", "remove", "rename"}.isdisjoint(done)
            if moved and (node is None or node.kind is Kind.DIRECTORY):
                return None  # with all that is below it
        nodes, names = set(ops), set()
        for number, done in ops.items():
            nodes |= self._touched(number, done, found[number])
            if not _DIRECTORY_NAMES.isdisjoint(done):
                self.subdirectories.clear()
        for number in nodes:
            gone = self._drop(number)
            if gone is not None and number in found and gone.parent is not None:
                names.add((gone.parent, gone.name))
        for number, node in found.items():
            if node is None or node.parent is None:
                continue
            names.add((node.parent, node.name))
            before = self.children.get((node.parent, node.name))
            if before and before != number:  # replaced: the log does not name it
                self._drop(before)
                nodes.add(before)
            self._keep(node)
        return Changes(frozenset(nodes), frozenset(names))

    def _touched(self, number: int, done: list[str], node: Node | None) -> set[int]:
        """The directories in which this node's name came or went: their times have changed. All, where that is not
        known."""
        steps = [op for op in done if op in _NAMES]
        if not steps:
            return set()
        before = self.nodes.get(number)
        places = {each.parent for each in (before, node) if each is not None and each.parent is not None}
        from_nowhere = steps[0] in ("create", "mkdir")
        if len(steps) > 1 or not (from_nowhere or (before is not None and before.parent is not None)):
            return self._directories | places
        return places

    def _forget(self) -> None:
        for kept in (self.nodes, self.children, self.subdirectories, self.visible, self.bodies, self._directories):
            kept.clear()
        self._body_bytes = 0
        self._moved_on(None)

    def _moved_on(self, changes: Changes | None) -> None:
        self.moment += 1
        self._changes.append((self.moment, changes))

    def _keep(self, node: Node) -> None:
        self.nodes[node.id] = node
        if node.parent is not None:
            self.children[node.parent, node.name] = node.id
        if node.kind is Kind.DIRECTORY:
            self._directories.add(node.id)

    def _drop(self, number: int) -> Node | None:
        self._drop_body(number)
        self._directories.discard(number)
        return self.nodes.pop(number, None)

    def _drop_body(self, number: int) -> None:
        self._body_bytes -= len(self.bodies.pop(number, b""))

    def _takes(self, moment: int) -> bool:
        """May something that was read since this moment be added? Of too much, all is forgotten: others could not be
        told what has changed of something that is not known here any more."""
        if moment == self.moment and len(self.nodes) + len(self.children) > _MOST:
            self._forget()
        return moment == self.moment


class CommitHeader:
    """The WAL index header of one database. Only valid while this process has a connection open."""

    def __init__(self, database: Path) -> None:
        # Never closed: see the module.
        descriptor = os.open(f"{os.fspath(database)}-shm", os.O_RDONLY | os.O_CLOEXEC)
        self._map = mmap.mmap(descriptor, 2 * HEADER, prot=mmap.PROT_READ)

    def read(self) -> bytes:
        return self._map[:HEADER]
