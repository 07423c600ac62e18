"""Nodes, names and small files' bytes in memory, and what has changed of them step by step.

Owns the memory that ``follow`` keeps up to date with the database: adding what was read, letting go of the oldest, and
a number, the *moment*, that counts upwards with each change. Knows neither the log nor SQL.

Threads: adding and changing happen under one lock, and what was read before a change is not added after it.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from avmfs.access import Principal
from avmfs.lru import FIFO
from avmfs.node import Kind, Node
from avmfs.store.rows.log_ops import same_place
from avmfs.store.rows.scopes import Visible
from avmfs.store.schema.tables import ROOT

_Key = TypeVar("_Key")

_MOST: Final = 60_000  # nodes and names: some 30 MB
_BODY_BYTES: Final = 16 * 1024 * 1024
_OLDEST: Final = 8  # the part of it that goes when there are more: see oldest()
_MOST_PLACES: Final = 16_384
_MOST_GONE: Final = 1024
_MOMENTS: Final = 64  # that ``changes`` can still tell of


@dataclass(frozen=True, slots=True)
class Changes:
    """Nodes of which something has changed, and (parent, name) of entries that now stand for something else."""

    nodes: frozenset[int]
    names: frozenset[tuple[int, bytes]]


class NodeCache:
    """Rows are as stored, whoever may see them. Lookups may come from any thread, without a lock."""

    def __init__(self) -> None:
        self.moment = 0
        self.lock = threading.RLock()
        self._changes: deque[Changes | None] = deque(maxlen=_MOMENTS)  # of the newest moments, this one's last
        self.nodes: dict[int, Node] = {}
        self.children: dict[tuple[int, bytes], int] = {}  # 0: no such name
        self.subdirectories: dict[tuple[Principal, int], int] = {}
        self.visible: dict[Principal, Visible] = {}
        self.last_visible: Visible | None = None  # of them: mostly one principal asks
        self.bodies: dict[int, bytes] = {}  # of small files, in order of first read
        # Directories and symlinks as they were when asked for, also when all else is forgotten: a kernel may know them
        # still, and not ask. Then those of them that have been removed, as they were last.
        self.places: FIFO[int, Node] = FIFO(_MOST_PLACES)
        self.gone: FIFO[int, Node] = FIFO(_MOST_GONE)
        self._body_bytes = 0
        self._directories: set[int] = set()
        self._parents: set[int] = set()  # of all that is in ``children``

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
        """One that is remembered by another name, or for others to see, was changed by a commit that we have not heard
        of yet: it stays as it is, so that it is known then what it was."""
        with self.lock:
            if self._takes(moment):
                for node in nodes:
                    before = self.nodes.get(node.id)
                    if (node.parent is not None or node.id == ROOT) and (before is None or same_place(before, node)):
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

    # Changing, under the lock ----------------------------------------------------------------------------------

    def _forget(self) -> None:
        for kept in (self.nodes, self.children, self.subdirectories, self.visible, self.bodies):
            kept.clear()
        self._directories.clear()
        self._parents.clear()
        self.last_visible = None
        self._body_bytes = 0
        self._moved_on(None)

    def _keep(self, node: Node) -> None:
        self.nodes[node.id] = node
        if node.parent is not None:
            self.children[node.parent, node.name] = node.id
            self._parents.add(node.parent)
        if node.kind is Kind.DIRECTORY:
            self._directories.add(node.id)
        if node.kind is not Kind.FILE:
            self.places.put(node.id, node)

    def _drop(self, number: int) -> Node | None:
        self._drop_body(number)
        self._directories.discard(number)
        return self.nodes.pop(number, None)

    def _end(self, number: int, scope: int) -> None:
        """It is no longer in the store, and had this scope at last: a process may be in such a directory."""
        last = self.places.pop(number, None) or self.gone.get(number)
        if last is not None:
            self.gone.put(number, last._replace(parent=None, scope=scope))

    def _drop_body(self, number: int) -> None:
        self._body_bytes -= len(self.bodies.pop(number, b""))

    def _takes(self, moment: int) -> bool:
        """Return whether something that was read since this moment may be added. Of too much, the oldest is forgotten;
        others are told that it has changed, since they could not be told any more when it does."""
        if moment != self.moment:
            return False
        if len(self.nodes) + len(self.children) > _MOST:
            nodes, names = oldest(self.nodes), oldest(self.children)
            for number in nodes:
                self._drop(number)
            for name in names:
                del self.children[name]
            for known in [known for known in self.subdirectories if known[1] not in self._directories]:
                del self.subdirectories[known]
            self._moved_on(Changes(frozenset(nodes), frozenset(names)))
        return True

    def _moved_on(self, changes: Changes | None) -> None:
        self.moment += 1
        self._changes.append(changes)


def oldest(kept: Mapping[_Key, object]) -> list[_Key]:
    """An eighth of what is kept: what has been there longest, and goes when there is too much."""
    return list(itertools.islice(kept, len(kept) // _OLDEST))
