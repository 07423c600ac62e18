"""Node numbers: what the kernel calls a node, and back.

Owns the table of virtual nodes that the kernel knows. A real node's number is its id in the store, so nothing is kept
of it; the fixed places and aliases have numbers of their own; every other virtual node (a view, a mailbox, a handle)
gets one at its first lookup and loses it when the kernel has forgotten all of them.

No number is ever used again for something else (ids in the store are random, the others count upwards), so generations
are always 0: what the kernel keeps of an old number, a file handle say, can only meet the same node or none.
"""

from __future__ import annotations

import contextlib
import itertools
import threading

from avmfs.errors import NotFound, OverQuota, Stale
from avmfs.fuse import protocol as p
from avmfs.fuse.handover import Handover
from avmfs.fuse.protocol import Op
from avmfs.fuse.request import VIRTUAL, Request
from avmfs.store.schema.tables import ROOT
from avmfs.vfs.address import ASK, Address, Alias, Place, Real, Then, ViewThen
from avmfs.vfs.tree import Tree

# Below 16 and none of the directories that every tree has: never a store id.
_PLACES = {ASK: 9, b"shared": 10, b"private": 11, b"tell": 12}
_PAST, _BEYOND = 1 << 62, 1 << 61  # bits of numbers that are not noted
_UNNOTED = -1  # in place of a row
_FIXED = {number: name for name, number in _PLACES.items()}


def is_real(node: int) -> bool:
    return not node & VIRTUAL and node not in _FIXED


def is_past(node: int) -> bool:
    return node & VIRTUAL != 0 and node & _PAST != 0


class Inodes:
    """One mount's numbers, noted in ``continuity``. Thread-safe."""

    def __init__(self, tree: Tree, continuity: Handover) -> None:
        self._tree = tree
        self._continuity = continuity
        self._virtual: dict[int, tuple[Address, int, int]] = {}  # address, lookups, row
        self._keys: dict[Address, int] = {}
        self._unnoted = itertools.count()
        self._table = threading.Lock()
        for row, number, count, found in continuity.nodes():
            self._virtual[VIRTUAL | number] = (found, count, row)
            self._keys[found] = VIRTUAL | number

    def address(self, node: int) -> Address:
        """What a number stands for: a store's node as it is now, or a virtual one."""
        if is_real(node):
            return self._tree.node(node)
        if node & VIRTUAL:
            with self._table:
                known = self._virtual.get(node)
            if known is None:  # not noted, which a predecessor knew
                raise Stale()
            return known[0]
        return self._fixed(node)

    def directory(self, node: int) -> Address:
        """Where a request looks a name up, makes or removes it. One that another mount has removed since the kernel
        found it has no names: NotFound, as in a directory that this mount has removed, and not Stale, after which the
        kernel looks no more than once again (mkdir(2): never)."""
        try:
            return self.address(node)
        except Stale:
            raise NotFound() from None

    def _fixed(self, node: int) -> Address:
        name = _FIXED[node]
        return Place(name) if name in (b"tell", ASK) else self._tree.lookup(self._tree.node(ROOT), name)[0]

    def number(self, found: Address) -> int:
        """The number of a looked-up node; for a virtual one, the kernel's count of it grows by one."""
        if isinstance(found, Real):
            return found.node.id
        if isinstance(found, (Place, Alias)) and found.name in _PLACES:
            return _PLACES[found.name]
        with self._table:
            number = self._keys.get(found)
            if number is None:
                row, plain = self._noted(found)
                number = self._keys[found] = VIRTUAL | plain
                self._virtual[number] = (found, 0, row)
            address, count, row = self._virtual[number]
            self._virtual[number] = (address, count + 1, row)
            if row != _UNNOTED:
                self._continuity.node_counted(row, count + 1)
        return number

    def _noted(self, found: Address) -> tuple[int, int]:
        """Its row and a number that no other node has had. Of the past there are as many as a tree has nodes, and of
        views more than there is room for: those are not noted for a successor, which the kernel asks for the names
        again."""
        past = isinstance(found, Then | ViewThen)
        if not past:
            with contextlib.suppress(OverQuota):
                return self._continuity.node_known(found)
        bit = _PAST if past else _BEYOND
        return _UNNOTED, bit | self._continuity.generation << 40 | next(self._unnoted)

    def forget_real(self, unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        """A quick answer to FORGET of a real node, which is not counted."""
        return None if node & VIRTUAL else b""

    def forget(self, request: Request) -> None:
        if request.op == Op.FORGET:
            gone = [(request.node, *p.FORGET_IN.unpack_from(request.body))]
        else:
            count, _ = p.BATCH_FORGET_IN.unpack_from(request.body)
            size = p.BATCH_FORGET_IN.size
            gone = [p.FORGET_ONE.unpack_from(request.body, size + i * p.FORGET_ONE.size) for i in range(count)]
        with self._table:
            for node, lookups in gone:
                if node & VIRTUAL and node in self._virtual:
                    found, count, row = self._virtual[node]
                    if count <= lookups:
                        del self._virtual[node]
                        if self._keys.get(found) == node:
                            del self._keys[found]
                        if row != _UNNOTED:
                            self._continuity.node_forgotten(row, node & ~VIRTUAL)
                    else:
                        self._virtual[node] = (found, count - lookups, row)
                        if row != _UNNOTED:
                            self._continuity.node_counted(row, count - lookups)
