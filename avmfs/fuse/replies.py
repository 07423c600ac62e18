"""What the kernel is told of a node: its entry and attributes, and for how long it may keep them.

Owns the packing of ``vfs`` attributes into the kernel's structures and the cache times. Real nodes and absent names may
stay in the kernel while the writer tells it of every commit (``caching``); virtual nodes are never cached.
"""

from __future__ import annotations

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


class Replies:
    """One mount's replies about nodes. ``caching`` says whether the kernel may keep what it is told."""

    def __init__(self, tree: Tree, numbers: Numbers) -> None:
        self._tree = tree
        self._numbers = numbers
        self.caching = False

    def entry(self, found: Address, attributes: Attributes) -> bytes:
        """The reply to LOOKUP and to all that make a name."""
        valid = self._validity(found)
        return p.ENTRY_OUT.pack(self._numbers.number(found), 0, valid, valid, 0, 0) + packed(attributes)

    def absent(self, where: Address, name: bytes) -> bytes:
        """A negative entry that may be kept: the epoch ends it when another mount makes the name. Not at the root and
        not for views, whose coming and going is in no log. Raises NotFound where none may be kept."""
        if not isinstance(where, Real) or where.node.id == ROOT or not self.caching or b":" in name:
            raise NotFound()
        return p.ENTRY_OUT.pack(0, 0, CACHED_S, 0, 0, 0) + bytes(p.ATTR.size)

    def attributes(self, number: int) -> bytes:
        """The reply to GETATTR and SETATTR."""
        found = self._numbers.address(number)
        return p.ATTR_OUT.pack(self._validity(found), 0, 0) + packed(self._tree.attributes(found))

    def _validity(self, found: Address) -> int:
        """Seconds that the kernel may keep what it is told of a node: never longer than the node lives."""
        if not self.caching or not isinstance(found, Real):
            return 0
        if found.node.expires is None:
            return CACHED_S
        return max(0, min(CACHED_S, (found.node.expires - self._tree.memory.now()) // _NS))


def packed(found: Attributes) -> bytes:
    """struct fuse_attr."""
    (atime, atime_ns), (mtime, mtime_ns), (ctime, ctime_ns) = (
        divmod(found.atime, _NS), divmod(found.mtime, _NS), divmod(found.ctime, _NS)
    )  # fmt: skip
    return p.ATTR.pack(
        found.ino, found.size, found.blocks, atime & _MASK, mtime & _MASK, ctime & _MASK, atime_ns, mtime_ns, ctime_ns,
        found.mode, found.nlink, found.uid, found.gid, 0, 65536, 0,
    )  # fmt: skip
