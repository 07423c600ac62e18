"""What stat(2) says of a node, real or virtual.

Owns the numbers that a front end shows: inode, mode, link count, owner, size, times. Called by the tree. The mode is
what the policy allows: write bits are off where this agent may not write.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable
from typing import NamedTuple

from avmfs import paths
from avmfs.memory import Memory
from avmfs.node import Kind, Moment, Node
from avmfs.store.schema.tables import ROOT
from avmfs.vfs.address import ASK, Address, Alias, Mailbox, Place, Question, Real, Then, ViewOf, ViewThen

TYPE = {Kind.FILE: stat.S_IFREG, Kind.DIRECTORY: stat.S_IFDIR, Kind.SYMLINK: stat.S_IFLNK}


class Attributes(NamedTuple):
    """stat(2): times in ns, ``blocks`` of 512 bytes. A tuple because one is made for every stat()."""

    ino: int
    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    atime: int
    mtime: int
    ctime: int

    @property
    def blocks(self) -> int:
        return (self.size + 511) // 512


class Caller(NamedTuple):
    """Whose process asks; recorded as owner where it is not the mount's own."""

    uid: int
    gid: int


class Attributer:
    """Attributes as one mount shows them. ``owner`` owns what nobody else does; ``size`` is of a node as it is read;
    ``closed``: only the owner may pass the root."""

    def __init__(
        self,
        memory: Memory,
        owner: Caller,
        read_only: bool,
        size: Callable[[Node], int] | None = None,
        closed: bool = False,
    ) -> None:
        self._store, self._who = memory.store, memory.who
        self._owner = owner
        self._read_only = read_only
        self._size = size
        self._closed = closed
        self._born = memory.now()

    def of_node(self, node: Node) -> Attributes:
        mode = mode_of(node, not self._read_only and self._store.cached_shown_writable(self._who, node.scope))
        nlink = 1
        if node.parent is None and node.id != ROOT:
            nlink = 0
        elif node.kind is Kind.DIRECTORY:
            nlink = 2 + self._store.cached_subdirectories(self._who, node.id)
            if self._closed and node.id == ROOT:
                mode &= ~0o077
        size = node.size if self._size is None else self._size(node)
        return Attributes(node.id, mode, nlink, *self._owned(node), size, node.atime, node.mtime, node.ctime)

    def of_past(self, then: Moment, node: Node) -> Attributes:
        """Of a node as it was. A directory's link count says nothing: 1 tells find(1) so."""
        number = inode(b"%d@%s" % (node.id, then.key))
        times = (node.mtime, node.mtime, node.mtime)
        return Attributes(number, mode_of(node, False), 1, *self._owned(node), node.size, *times)

    def of_new(self, node: Node) -> Attributes:
        """Of a file that has just been made here."""
        mode, times = stat.S_IFREG | node.mode, (node.atime, node.mtime, node.ctime)
        return Attributes(node.id, mode, 1, *self._owned(node), node.size, *times)

    def _owned(self, node: Node) -> tuple[int, int]:
        return self._owner.uid if node.uid is None else node.uid, self._owner.gid if node.gid is None else node.gid

    def recorded(self, caller: Caller, where: Address) -> dict[str, int | None]:
        """Owner to record: None where it is the mount's, so that other mounts show their own. In a directory with the
        set-group-id bit a new name gets the directory's group."""
        if isinstance(where, Real) and where.node.mode & stat.S_ISGID:
            gid = where.node.gid
        else:
            gid = caller.gid if caller.gid != self._owner.gid else None
        return {"uid": caller.uid if caller.uid != self._owner.uid else None, "gid": gid}

    def of_virtual(self, found: Address) -> Attributes:
        if isinstance(found, Alias):
            mode, size, at = stat.S_IFLNK | 0o777, len(found.target), self._born
        elif isinstance(found, Place):
            mode, size, at = stat.S_IFDIR | 0o755, 0, self._born
        elif isinstance(found, ViewThen):
            mode, size, at = stat.S_IFREG | 0o444, 0, found.of.node.mtime
        elif isinstance(found, ViewOf):
            bits = (0o444 if found.view.read else 0) | (0o222 if found.view.write and not self._read_only else 0)
            mode, size, at = stat.S_IFREG | bits, 0, found.node.mtime
        elif isinstance(found, Mailbox):
            mode, size, at = stat.S_IFREG | 0o222, 0, self._born
        else:
            mode, size, at = stat.S_IFREG | 0o644, 0, self._born
        links = 2 if isinstance(found, Place) else 1
        return Attributes(inode(_key(found)), mode, links, self._owner.uid, self._owner.gid, size, at, at, at)


def mode_of(node: Node, writable: bool) -> int:
    """Its type and permissions, as somebody sees them who may write it or not."""
    return TYPE[node.kind] | (node.mode if writable or node.kind is Kind.SYMLINK else node.mode & ~0o222)


def _key(found: Address) -> bytes:
    """What tells one virtual node from another."""
    if isinstance(found, ViewThen):
        return b"%s@%s" % (found.moment.key, _key(found.of))
    if isinstance(found, ViewOf):
        return b"%d:%s" % (found.node.id, repr(found.name).encode())
    if isinstance(found, Mailbox):
        return paths.TELL + b"/" + found.name
    if isinstance(found, Question):
        return ASK + b"/" + found.name
    return b"" if isinstance(found, Real | Then) else found.name


def inode(key: bytes) -> int:
    """An inode number for a virtual node: stable, and above those of most real ones."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") >> 1 | 1 << 62
