"""What the kernel is told of a node: its entry and attributes, and for how long it may keep them.

Owns the packing of ``vfs`` attributes into the kernel's structures, the cache times, and the packed entries remembered
for being asked again. Real nodes and absent names may stay in the kernel while the writer tells it of every commit
(``switch``); virtual nodes are never cached nor remembered.

An entry is remembered for as long as nothing has been committed by anybody (``Store.peek_state``), so that it holds
what this agent may see, as it is; not of a node that expires, since time passes without a commit. Uncommitted edits of
this mount are not in the store: a node that has some is asked for anew. All quick answers are given in the reading
thread; what is remembered may come from any.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from avmfs.errors import NotFound
from avmfs.fuse import protocol as p
from avmfs.fuse.numbers import Numbers
from avmfs.store.schema import ROOT
from avmfs.vfs.address import Address, Real
from avmfs.vfs.attributes import Attributes
from avmfs.vfs.tree import Tree

CACHED_S = 60  # a safety net: notices end what is cached long before
_NS = 1_000_000_000
_MASK = (1 << 64) - 1  # times before 1970 travel as two's complement
_MOST = 50_000  # nodes and names: some 20 MB
_NAME = p.IN_HEADER.size  # where the name of a LOOKUP begins
_ATTR = p.ENTRY_OUT.size  # where the attributes of an entry begin


@dataclass(slots=True)
class _Known:
    """What was told of nodes under one state of the store. A name's NUL is kept; node 0: no such name."""

    state: object
    valid: int
    entries: dict[int, bytes] = field(default_factory=dict)
    names: dict[tuple[int, bytes], int] = field(default_factory=dict)


class Replies:
    """One mount's replies about nodes."""

    def __init__(self, tree: Tree, numbers: Numbers) -> None:
        self._tree = tree
        self._numbers = numbers
        self._valid = 0  # seconds that the kernel may keep names and attributes
        self._known = _Known(None, 0)

    @property
    def caching(self) -> bool:
        return self._valid > 0

    def switch(self, caching: bool) -> None:
        """From now on replies may be cached, or must not be."""
        self._valid = CACHED_S if caching else 0

    # From memory ---------------------------------------------------------------------------------------

    def known(self, node: int) -> bytes | None:
        """The entry of a real node if it was told before and still is as it was."""
        known = self._known
        if self._tree.memory.store.peek_state() is not known.state or known.valid != self._valid:
            return None
        entry = known.entries.get(node)
        if entry is None:
            return None
        file = self._tree.opened.get(node)
        return None if file is not None and file.edits else entry

    def lookup(self, unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        """The whole reply to a LOOKUP."""
        known = self._known
        if self._tree.memory.store.peek_state() is not known.state or known.valid != self._valid:
            return None
        number = known.names.get((node, bytes(view[_NAME:size])))
        if number is None:
            return None
        if not number:
            return self._absence(unique, known.valid)
        entry = known.entries.get(number)
        file = self._tree.opened.get(number)
        if entry is None or (file is not None and file.edits):
            return None
        return p.ENTRY_REPLY.pack(p.ENTRY_REPLY.size, 0, unique, entry)

    def getattr(self, unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        """The whole reply to a GETATTR."""
        entry = self.known(node)
        if entry is None:
            return None
        return p.ATTR_REPLY.pack(p.ATTR_REPLY.size, 0, unique, self._valid, 0, 0, entry[_ATTR:])

    # From the tree -------------------------------------------------------------------------------------

    def found(self, parent: int, name: bytes) -> bytes:
        """The reply to LOOKUP of a name, without its NUL. Raises NotFound where an absence may not be kept."""
        known = self._current()
        where = self._numbers.address(parent)
        try:
            found, attributes = self._tree.lookup(where, name)
        except NotFound:
            # The epoch ends it when another mount makes the name. Not at the root and not for views, whose coming and
            # going is in no log.
            if not isinstance(where, Real) or where.node.id == ROOT or b":" in name:
                raise
            known.names[parent, name + b"\0"] = 0
            if not known.valid:
                raise
            return p.ENTRY_OUT.pack(0, 0, known.valid, 0, 0, 0) + bytes(p.ATTR.size)
        entry = self._entry(known, self._numbers.number(found), found, attributes)
        if isinstance(found, Real) and found.node.expires is None:
            known.names[parent, name + b"\0"] = found.node.id
        return entry

    def entry(self, found: Address, attributes: Attributes) -> bytes:
        """The reply to all that make a name. Not remembered: the attributes were asked for before."""
        return self._entry(_Known(None, self._valid), self._numbers.number(found), found, attributes)

    def attributes(self, number: int) -> bytes:
        """The reply to GETATTR and SETATTR."""
        known = self._current()
        found = self._numbers.address(number)
        entry = self._entry(known, number, found, self._tree.attributes(found))
        return p.ATTR_OUT.pack(self._validity(known.valid, found), 0, 0) + entry[_ATTR:]

    def _current(self) -> _Known:
        """Where to remember what is asked of the store from now on."""
        state, known, valid = self._tree.memory.store.peek_state(), self._known, self._valid
        if known.state is not state or known.valid != valid or len(known.entries) + len(known.names) > _MOST:
            known = self._known = _Known(state, valid)
        return known

    def _entry(self, known: _Known, number: int, found: Address, attributes: Attributes) -> bytes:
        valid = self._validity(known.valid, found)
        entry = p.ENTRY_OUT.pack(number, 0, valid, valid, 0, 0) + packed(attributes)
        if isinstance(found, Real) and found.node.expires is None:
            known.entries[number] = entry
        return entry

    @staticmethod
    def _absence(unique: int, valid: int) -> bytes:
        if not valid:
            return p.OUT_HEADER.pack(p.OUT_HEADER.size, -NotFound.code, unique)
        return p.ENTRY_REPLY.pack(p.ENTRY_REPLY.size, 0, unique, p.ENTRY_OUT.pack(0, 0, valid, 0, 0, 0))

    def _validity(self, valid: int, found: Address) -> int:
        """Seconds that the kernel may keep what it is told of a node: never longer than the node lives."""
        if not isinstance(found, Real):
            return 0
        if found.node.expires is None:
            return valid
        return max(0, min(valid, (found.node.expires - self._tree.memory.now()) // _NS))


def packed(found: Attributes) -> bytes:
    """struct fuse_attr."""
    (atime, atime_ns), (mtime, mtime_ns), (ctime, ctime_ns) = (
        divmod(found.atime, _NS), divmod(found.mtime, _NS), divmod(found.ctime, _NS)
    )  # fmt: skip
    return p.ATTR.pack(
        found.ino, found.size, found.blocks, atime & _MASK, mtime & _MASK, ctime & _MASK, atime_ns, mtime_ns, ctime_ns,
        found.mode, found.nlink, found.uid, found.gid, 0, 65536, 0,
    )  # fmt: skip
