"""Nodes remembered between commits: what stat(2) asks again and again, without SQL.

Owns a memory that is right by construction: it is bound to the header of the WAL index, 48 bytes that SQLite itself
changes with every commit of any process (wal.c, WalIndexHdr) and that every connection has mapped. As long as they
are the same, nothing in the database has changed. When they differ, the log tells what has: the nodes it names are
read anew, with the same statement, and the directories where a name came or went are forgotten. Where that may not be
all (a directory that moved takes what is below it along, rules change scopes, too much happened), everything is.
Where the writer has told in shared memory what it changed up to that header (``change_ring``), nothing has to be read.

What others make is remembered where it was asked for before; news of other places are passed over.

What the log does not tell must not be remembered: unlinked files, whose bytes change without a row.

Each change of what is remembered is a *moment*, a number that counts upwards; what others derive from answers is
theirs to keep while the moment is the same, and ``changes`` says what has changed since an earlier one (``nodes``).

The header is read *before* the rows that are kept under it, so a row is never older than its header says. The mapping
and its descriptor stay open for the life of the process: closing any descriptor of that file would drop SQLite's
own POSIX locks on it.

Threads: catching up and adding happen under one lock, and what was read before a change is not added after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import apsw

from avmfs.node import Kind, Node
from avmfs.store.cache.nodes import Changes, NodeCache
from avmfs.store.notify.change_ring import Follower
from avmfs.store.rows.log_ops import (
    BYTES_ALONE,
    DIRECTORY_NAMES,
    LEAVES,
    MAKES,
    MOVES,
    NAMES,
    REMOVES,
    done_to,
    last_name,
    same_place,
)
from avmfs.store.rows.nodes import NODE, NODE_JOINED, node_of
from avmfs.store.schema.tables import NOBODYS, ROOT

_PARENT, _NAME, _KIND, _SCOPE = (NODE.split(", ").index(column) for column in ("parent", "name", "kind", "scope"))
_ROWS: Final = 256  # of the log: more than that since the last look, and everything is forgotten
_FIRST: Final = "select (select max(seq) from log), (select max(id) from scope)"
# One statement is a snapshot by itself. Reading pages anew after each commit is what costs: no table without need.
_NEWS: Final = (
    f"select log.seq, log.scope, log.op, log.node, log.path, log.other, {NODE_JOINED}"
    f" from log left join node on node.id = log.node where log.seq > ? order by log.seq limit {_ROWS + 1}"
)


class FollowedCache(NodeCache):
    """See the module. Rows are as stored, whoever may see them. Lookups may come from any thread, without a lock."""

    def __init__(self, news: Follower | None = None) -> None:
        super().__init__()
        self._change_ring = news
        self._followed = False  # is what is remembered as it was before the news that come next?
        self.header = b""
        self._seq = -1  # the newest log row of the snapshot
        self._scope = 0  # the newest scope that ``visible`` surely knows

    # Catching up ---------------------------------------------------------------------------------------

    def catch_up(self, header: bytes, db: apsw.Connection) -> None:
        """Let what is remembered be as it is under this header, which was read before ``db`` is asked."""
        with self.lock:
            rows: list[Any] = [] if self._seq < 0 else db.execute(_NEWS, (self._seq,)).fetchall()
            if self._seq < 0 or len(rows) > _ROWS:
                newest: Any = db.execute(_FIRST).fetchone()
                self._seq, self._scope = newest[0] or 0, newest[1] or 0
                self._forget()
            elif rows:
                self._seq = rows[-1][0]
                changes = self._reread(rows)
                if changes is None:
                    self._forget()
                elif changes.nodes:  # else there are new ones for the audit or an inbox alone
                    self._moved_on(changes)
            self.header = header
            self._followed = True

    def told(self, header: bytes) -> bool:
        """Let what is remembered be as it is under this header by what the writer has told alone. False: it has not
        told all that leads there, and ``catch_up`` has to follow."""
        if self._change_ring is None:
            return False
        with self.lock:
            # Until we have caught up, one way or the other: what is taken and not adopted will not be told again.
            followed, self._followed = self._followed, False
            records = self._change_ring.take()
            if not followed or not records or records[-1].header != header:
                return False
            rows: list[list[Any]] = []
            now: dict[int, list[Any]] = {}
            numbers = [number for record in records for number in record.numbers]
            held = self.nodes.keys() & numbers
            held |= self._parents.intersection(numbers)
            held |= self.places.keys() & numbers
            coming: set[int] = set()  # to what is remembered, with what precedes the next part
            for record in records:
                for part in record.concerning(self._scope, held, coming):
                    added, nodes = part.unpacked()
                    rows += added
                    now.update((node[0], node) for node in nodes)
                    coming.update(node[0] for node in nodes if len(node) > 1 and self._may_keep(node, coming))
            if rows and rows[0][0] <= self._seq:  # the database has told of it before the writer
                rows = [row for row in rows if row[0] > self._seq]
            if len(rows) > _ROWS:
                return False
            changes = self._adopt(rows, now)
            if changes is None:
                self._forget()
            elif numbers:
                # What was read before a commit and is not remembered yet must not be any more: others have to hear.
                self._moved_on(Changes(changes.nodes.union(numbers), changes.names))
            self._seq = max(self._seq, records[-1].seq)
            self.header = header
            self._followed = True
        return True

    def _may_keep(self, row: Sequence[Any], coming: set[int]) -> bool:
        """Return whether a node will be remembered, if it is not yet (see ``_adopt``). In doubt, yes."""
        parent = row[_PARENT]
        known = row[_KIND] != Kind.DIRECTORY and parent in self._directories
        return known or parent in coming or (parent, row[_NAME]) in self.children

    def _adopt(self, rows: Sequence[Sequence[Any]], now: dict[int, list[Any]]) -> Changes | None:
        """None when the log does not say enough. ``now`` has the columns NODE of all nodes that have changed, whether
        the log names them or not; only the id of one that is gone."""
        for number, row in now.items():  # the log does not name what was replaced
            if len(row) == 1 and (known := self.nodes.get(number)) is not None:
                self._end(number, known.scope)
        self._end_all(row for row in rows if len(now.get(row[3], ())) == 1)
        ops = done_to(rows)
        if ops is None:
            return None
        nodes, names = set(now), set()
        touched: set[int] = set()  # directories
        unknown = False
        for number, row in now.items():
            done, before, gone = ops.get(number, ()), self.nodes.get(number), len(row) == 1
            if not gone and row[_SCOPE] > self._scope:
                self._scope = row[_SCOPE]
                return None  # who may see it is not known
            directory = not gone and row[_KIND] == Kind.DIRECTORY
            if done and (gone or directory):
                if not MOVES.isdisjoint(done):
                    return None  # with all that is below it
                if not DIRECTORY_NAMES.isdisjoint(done):
                    self.subdirectories.clear()
            if directory:
                touched.add(number)
            if before is None:
                # It had a name that is not remembered, unless it was made meanwhile or only its bytes have changed.
                unknown |= not (directory or (done and (done[0] in MAKES or BYTES_ALONE.issuperset(done))))
                if gone or row[_PARENT] is None or (done and BYTES_ALONE.issuperset(done)):
                    continue
                place = row[_PARENT], row[_NAME]
                if place not in self.children and (place[0] not in self._directories or directory):
                    if done:
                        names.add(place)  # of which nothing is known
                    continue
            node = None if gone else node_of(tuple(row))
            if node is not None and before is not None and NAMES.isdisjoint(done) and same_place(node, before):
                self._drop_body(number)
                self.nodes[number] = node
            else:
                names |= self._taken_up(number, node, nodes)
        if unknown:
            names |= {(number, b"") for number in touched}
        return Changes(frozenset(nodes), frozenset(names))

    def _reread(self, rows: list[Any]) -> Changes | None:
        """None when the log does not say enough. Until then nothing is forgotten."""
        self._end_all(row for row in rows if row[6] is None)
        ops = done_to(rows)
        if ops is None:
            return None
        found: dict[int, Node | None] = {}
        passed: dict[int, set[bytes]] = {}  # the names that it came to and left
        for row in rows:
            number = row[3]
            if row[1] != NOBODYS and row[2] in NAMES:
                passed.setdefault(number, set()).update(last_name(path) for path in row[4:6] if path)
            if number in ops and number not in found and row[1] != NOBODYS:
                node = found[number] = None if row[6] is None else node_of(row[6:])
                if node is not None and node.scope > self._scope:
                    self._scope = node.scope
                    return None  # who may see it is not known
                if not MOVES.isdisjoint(ops[number]) and (node is None or node.kind is Kind.DIRECTORY):
                    replaced = None if node is None else self.child(node.parent or ROOT, node.name)
                    if isinstance(replaced, Node) and replaced.id != number:
                        self._end(replaced.id, replaced.scope)
                    return None  # with all that is below it
        nodes, names = set(ops), set()
        others: set[int] = set()
        for number in passed:
            if self._is_unplaced(number, ops[number]):
                names |= self._let_go(passed[number], nodes)
        for number, done in ops.items():
            node, before = found[number], self.nodes.get(number)
            if node is not None and before is not None and NAMES.isdisjoint(done) and same_place(node, before):
                self._drop_body(number)
                self.nodes[number] = node
                continue
            if before is None and done[0] in LEAVES:
                return None  # it is not known which directory it has left
            others |= self._touched(number, done, node)
            if not DIRECTORY_NAMES.isdisjoint(done):
                self.subdirectories.clear()
            if before is None and node is not None and self._is_elsewhere(node, done):
                names.add((node.parent or ROOT, node.name))
            else:
                names |= self._taken_up(number, node, nodes)
        for number in others - ops.keys():
            self._drop(number)
        return Changes(frozenset(nodes | others), frozenset(names))

    def _end_all(self, rows: Iterable[Sequence[Any]]) -> None:
        """Of rows of nodes that are there no more: the last one says who could see it then."""
        for _, scope, op, number, *_ in rows:
            if op in REMOVES and scope != NOBODYS:
                self._end(number, scope)

    def _is_elsewhere(self, node: Node, done: Sequence[str]) -> bool:
        """Return whether a node that is not remembered is of no use, being where nothing is, or a directory that nobody
        has asked for."""
        parent = node.parent
        if parent is None or not (MAKES | BYTES_ALONE).issuperset(done):
            return False
        unknown = parent not in self.nodes and parent not in self._parents
        return unknown or (done[0] == "mkdir" and (parent, node.name) not in self.children)

    def _taken_up(self, number: int, node: Node | None, nodes: set[int]) -> set[tuple[int, bytes]]:
        """A node whose name, or who may see it, has changed: the names that stand for something else now. ``nodes``
        gets another one whose name it has taken."""
        names = set()
        gone = self._drop(number)
        if gone is not None and gone.parent is not None:
            names.add((gone.parent, gone.name))
            if self.children.get((gone.parent, gone.name)) == number:
                self.children[gone.parent, gone.name] = 0
        if node is not None and node.parent is not None:
            names.add((node.parent, node.name))
            before = self.children.get((node.parent, node.name))
            if before and before != number:  # replaced: the log does not name it
                self._drop(before)
                nodes.add(before)
            self._keep(node)
        return names

    def _touched(self, number: int, done: list[str], node: Node | None) -> set[int]:
        """The directories in which this node's name came or went: their times have changed. All, where that is not
        known."""
        if NAMES.isdisjoint(done):
            return set()
        before = self.nodes.get(number)
        places = {each.parent for each in (before, node) if each is not None and each.parent is not None}
        return self._directories | places if self._is_unplaced(number, done) else places

    def _is_unplaced(self, number: int, done: list[str]) -> bool:
        """Return whether a name may have come to this node, or gone, of which neither what is remembered of it nor its
        row tells."""
        steps = [op for op in done if op in NAMES]
        before = self.nodes.get(number)
        return len(steps) > 1 or not (steps[0] in MAKES or (before is not None and before.parent))

    def _let_go(self, passed: set[bytes], nodes: set[int]) -> set[tuple[int, bytes]]:
        """A node was called so, in whichever directory: what else had such a name may have been replaced, and then the
        log does not name it. ``nodes`` gets it."""
        names = {(parent, name) for name in passed for parent in self._parents if (parent, name) in self.children}
        for name in names:
            number = self.children.pop(name)
            node = self.nodes.get(number)
            if node is not None and (node.parent, node.name) == name:
                self._drop(number)
                nodes.add(number)
        return names
