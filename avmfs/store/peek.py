"""Nodes remembered between commits: what stat(2) asks again and again, without SQL.

Owns a memory that is right by construction: it is bound to the header of the WAL index, 48 bytes that SQLite itself
changes with every commit of any process (wal.c, WalIndexHdr) and that every connection has mapped. As long as they
are the same, nothing in the database has changed. When they differ, the log tells what has: the nodes it names are
read anew, with the same statement, and the directories where a name came or went are forgotten. Where that may not be
all (a directory that moved takes what is below it along, rules change scopes, too much happened), everything is.
Where the writer has told in shared memory what it changed up to that header (``news``), nothing has to be read.

Of a directory that was made while we followed, all names are known: one that is not remembered is absent.

What the log does not tell must not be remembered: unlinked files, whose bytes change without a row.

Each change of what is remembered is a *moment*, a number that counts upwards; what others derive from answers is
theirs to keep while the moment is the same, and ``changes`` says what has changed since an earlier one.

The header is read *before* the rows that are kept under it, so a row is never older than its header says. The mapping
and its descriptor stay open for the life of the process: closing any descriptor of that file would drop SQLite's
own POSIX locks on it.

Threads: catching up and adding happen under one lock, and what was read before a change is not added after it.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import apsw

from avmfs.access import Principal, Visible
from avmfs.node import Kind, Node
from avmfs.store.news import Follower
from avmfs.store.ops import BYTES_ALONE, DIRECTORY_NAMES, MAKES, MOVES, NAMES, done_to, last_name, same_place
from avmfs.store.protocol import Changes
from avmfs.store.schema import NOBODYS, ROOT
from avmfs.store.transaction import NODE, NODE_JOINED, node_of

_Key = TypeVar("_Key")

_PARENT, _NAME, _KIND, _SCOPE = (NODE.split(", ").index(column) for column in ("parent", "name", "kind", "scope"))
_MOST: Final = 60_000  # nodes and names: some 30 MB
_BODY_BYTES: Final = 16 * 1024 * 1024
_OLDEST: Final = 8  # the part of it that goes when there are more: see oldest()
_ROWS: Final = 256  # of the log: more than that since the last look, and everything is forgotten
_MOMENTS: Final = 64  # that ``changes`` can still tell of
_FIRST: Final = "select (select max(seq) from log), (select max(id) from scope)"
# One statement is a snapshot by itself. Reading pages anew after each commit is what costs: no table without need.
_NEWS: Final = (
    f"select log.seq, log.scope, log.op, log.node, log.path, log.other, {NODE_JOINED}"
    f" from log left join node on node.id = log.node where log.seq > ? order by log.seq limit {_ROWS + 1}"
)

_LEAVES: Final = frozenset(("remove", "rename", "rmdir"))
_MOST_WHOLE: Final = 10_000


class Remembered:
    """See the module. Rows are as stored, whoever may see them. Lookups may come from any thread, without a lock."""

    def __init__(self, news: Follower | None = None) -> None:
        self._news = news
        self._followed = False  # is what is remembered as it was before the news that come next?
        self.header = b""
        self.moment = 0
        self.nodes: dict[int, Node] = {}
        self.children: dict[tuple[int, bytes], int] = {}  # 0: no such name
        self.subdirectories: dict[tuple[Principal, int], int] = {}
        self.visible: dict[Principal, Visible] = {}
        self.last_visible: Visible | None = None  # of them: mostly one principal asks
        self.bodies: dict[int, bytes] = {}  # of small files, in order of first read
        self._body_bytes = 0
        self._directories: set[int] = set()
        self._parents: set[int] = set()  # of all that is in ``children``
        self._whole: set[int] = set()  # directories of which ``children`` has every name
        self._seq = -1  # the newest log row of the snapshot
        self._scope = 0  # the newest scope that ``visible`` surely knows
        self._changes: deque[Changes | None] = deque(maxlen=_MOMENTS)  # of the newest moments, this one's last
        self.lock = threading.RLock()

    # Asking --------------------------------------------------------------------------------------------

    def child(self, parent: int, name: bytes) -> Node | int | None:
        """The node under a name, 0 where there is known to be none, None when it is not known."""
        number = self.children.get((parent, name))
        if not number:
            # In this order: what is forgotten is first no longer whole.
            return 0 if number is None and parent in self._whole else number
        node = self.nodes.get(number)
        return node if node is not None and node.parent == parent and node.name == name else None

    def changes(self, since: int) -> Changes | None:
        """What has changed since a moment; None: anything may have."""
        with self.lock:
            steps = self.moment - since  # each has left an entry
            if steps == 1 and self._changes:
                return self._changes[-1]
            if not steps:
                return Changes(frozenset(), frozenset())
            if steps > len(self._changes):
                return None
            newer = list(itertools.islice(self._changes, len(self._changes) - steps, None))
        known = [changes for changes in newer if changes is not None]
        if len(known) < steps:
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
                self._parents.add(parent)

    def add_subdirectories(self, moment: int, who: Principal, parent: int, count: int) -> None:
        with self.lock:
            if moment == self.moment:
                self.subdirectories[who, parent] = count

    def add_visible(self, moment: int, who: Principal, visible: Visible) -> None:
        with self.lock:
            if moment == self.moment:
                self.visible[who] = self.last_visible = visible

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
        if self._news is None:
            return False
        with self.lock:
            # Until we have caught up, one way or the other: what is taken and not adopted will not be told again.
            followed, self._followed = self._followed, False
            records = self._news.take()
            if not followed or not records or records[-1][0] != header:
                return False
            rows = [row for record in records for row in record[1] if row[0] > self._seq]
            if len(rows) > _ROWS:
                return False
            changes = self._adopt(rows, {node[0]: node for record in records for node in record[2]})
            if changes is None:
                self._forget()
            elif changes.nodes:
                self._moved_on(changes)
            if rows:
                self._seq = rows[-1][0]
            self.header = header
            self._followed = True
        return True

    def _adopt(self, rows: Sequence[Sequence[Any]], now: dict[int, list[Any]]) -> Changes | None:
        """None when the log does not say enough. ``now`` has the columns NODE of all nodes that have changed, whether
        the log names them or not; only the id of one that is gone."""
        ops = done_to(rows)
        if ops is None:
            return None
        nodes, names = set(now), set()
        new = {number for number, done in ops.items() if done[0] == "mkdir"}  # which become whole
        touched: set[int] = set()  # directories
        unknown = False
        for number, row in now.items():
            done, gone = ops.get(number, ()), len(row) == 1
            directory = not gone and row[_KIND] == Kind.DIRECTORY
            if not gone and self._is_for_others(row[_SCOPE]):
                return None
            if done and (gone or directory):
                if not MOVES.isdisjoint(done):
                    return None  # with all that is below it
                if not DIRECTORY_NAMES.isdisjoint(done):
                    self.subdirectories.clear()
            if directory:
                touched.add(number)
            if number not in self.nodes and number not in new:
                bytes_alone = bool(done) and BYTES_ALONE.issuperset(done)
                # It had a name that is not remembered, unless it was made meanwhile or only its bytes have changed.
                unknown |= not (directory or bytes_alone or (done and done[0] in MAKES))
                if gone or bytes_alone or row[_PARENT] is None:
                    continue
                if not self._is_looked_into(row[_PARENT], row[_NAME], new):
                    names.add((row[_PARENT], row[_NAME]))
                    continue
            node = None if gone else node_of(tuple(row))
            if not self._stays(number, node, done):
                names |= self._taken_up(number, node, nodes)
        self._add_whole(ops)
        if unknown:
            names |= {(number, b"") for number in touched}
        return Changes(frozenset(nodes), frozenset(names))

    def _is_for_others(self, scope: int) -> bool:
        """Is it so new that ``visible`` does not know who may see what has it?"""
        if scope <= self._scope:
            return False
        self._scope = scope
        return True

    def _is_looked_into(self, parent: int, name: bytes, new: set[int]) -> bool:
        """Is anything known of this name, or of its directory? ``new`` ones are."""
        return (
            (parent, name) in self.children or parent in new or parent in self._whole or parent in self._directories
        )  # fmt: skip

    def _stays(self, number: int, node: Node | None, done: Sequence[str]) -> bool:
        """Is it where it was, for whom it was? Then it is taken over."""
        before = self.nodes.get(number)
        if node is None or before is None or not NAMES.isdisjoint(done) or not same_place(node, before):
            return False
        self._drop_body(number)
        self.nodes[number] = node
        return True

    def _add_whole(self, ops: Mapping[int, Sequence[str]]) -> None:
        """All that has been put into a directory since it was made is remembered by now."""
        for number, done in ops.items():
            if done[0] == "mkdir" and number in self._directories:
                if len(self._whole) >= _MOST_WHOLE:
                    self._whole.clear()
                self._whole.add(number)

    def _reread(self, rows: list[Any]) -> Changes | None:
        """None when the log does not say enough. Until then nothing is forgotten."""
        ops = done_to(rows)
        if ops is None:
            return None
        found: dict[int, Node | None] = {}
        passed: dict[int, set[bytes]] = {}  # the names that it came to and left
        for row in rows:
            number = row[3]
            if row[1] == NOBODYS or number not in ops:
                continue
            if row[2] in NAMES:
                passed.setdefault(number, set()).update(last_name(path) for path in row[4:6] if path)
            if number in found:
                continue
            node = found[number] = None if row[6] is None else node_of(row[6:])
            if node is not None and self._is_for_others(node.scope):
                return None
            if not MOVES.isdisjoint(ops[number]) and (node is None or node.kind is Kind.DIRECTORY):
                return None  # with all that is below it
        nodes, names = set(ops), set()
        others: set[int] = set()
        for number in passed:
            if self._is_unplaced(number, ops[number]):
                names |= self._let_go(passed[number], nodes)
        for number, done in ops.items():
            node = found[number]
            if self._stays(number, node, done):
                continue
            if number not in self.nodes and done[0] in _LEAVES:
                return None  # it is not known which directory it has left
            others |= self._touched(number, done, node)
            if not DIRECTORY_NAMES.isdisjoint(done):
                self.subdirectories.clear()
            names |= self._taken_up(number, node, nodes)
        for number in others - ops.keys():
            self._drop(number)
        self._add_whole(ops)
        return Changes(frozenset(nodes | others), frozenset(names))

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
        """May a name have come to this node, or gone, of which neither what is remembered of it nor its row tells?"""
        steps = [op for op in done if op in NAMES]
        before = self.nodes.get(number)
        return len(steps) > 1 or not (steps[0] in ("create", "mkdir") or (before is not None and before.parent))

    def _let_go(self, passed: set[bytes], nodes: set[int]) -> set[tuple[int, bytes]]:
        """A node was called so, in whichever directory: what else had such a name may have been replaced, and then the
        log does not name it. ``nodes`` gets it."""
        names = {(parent, name) for name in passed for parent in self._parents if (parent, name) in self.children}
        self._whole.difference_update(parent for parent, _ in names)  # first: see child()
        for name in names:
            number = self.children.pop(name)
            node = self.nodes.get(number)
            if node is not None and (node.parent, node.name) == name:
                self._drop(number)
                nodes.add(number)
        return names

    def _forget(self) -> None:
        self._whole.clear()  # first: see child()
        for kept in (self.nodes, self.children, self.subdirectories, self.visible, self.bodies):
            kept.clear()
        self._directories.clear()
        self._parents.clear()
        self.last_visible = None
        self._body_bytes = 0
        self._moved_on(None)

    def _moved_on(self, changes: Changes | None) -> None:
        self.moment += 1
        self._changes.append(changes)

    def _keep(self, node: Node) -> None:
        self.nodes[node.id] = node
        if node.parent is not None:
            self.children[node.parent, node.name] = node.id
            self._parents.add(node.parent)
        if node.kind is Kind.DIRECTORY:
            self._directories.add(node.id)

    def _drop(self, number: int) -> Node | None:
        self._drop_body(number)
        self._directories.discard(number)
        return self.nodes.pop(number, None)

    def _drop_body(self, number: int) -> None:
        self._body_bytes -= len(self.bodies.pop(number, b""))

    def _takes(self, moment: int) -> bool:
        """May something that was read since this moment be added? Of too much, the oldest is forgotten; others are told
        that it has changed, since they could not be told any more when it does."""
        if moment != self.moment:
            return False
        if len(self.nodes) + len(self.children) > _MOST:
            self._whole.clear()  # first: see child()
            nodes, names = oldest(self.nodes), oldest(self.children)
            for number in nodes:
                self._drop(number)
            for name in names:
                del self.children[name]
            for known in [known for known in self.subdirectories if known[1] not in self._directories]:
                del self.subdirectories[known]
            self._moved_on(Changes(frozenset(nodes), frozenset(names)))
        return True


def oldest(kept: Mapping[_Key, object]) -> list[_Key]:
    """An eighth of what is kept: what has been there longest, and goes when there is too much."""
    return list(itertools.islice(kept, len(kept) // _OLDEST))
