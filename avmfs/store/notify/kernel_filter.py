"""The names and nodes that one mount's kernel may have cached, told to the writer without a message.

Owns two tables of bytes in shared memory, one byte for all names, or nodes, that hash to it, which the mount sets and
the writer reads; that of names it also clears. The mount notes a name (present or absent, it is cached either way)
*before* it looks the name up; the writer looks *after* its commit. So either the lookup finds what was committed, or
the writer finds the name noted and ends it. A notice ends every name that the kernel has, so their table is emptied
with it: first the table, then the notice, since a lookup that began before the notice is dead on arrival (the kernel
stamps it with the epoch in which it began), and one that begins afterwards notes its name anew.

A node is noted before a reply that lets the kernel keep its attributes for any time. Who looks a name up does not know
the node before, so the mount notes it afterwards and then asks whether anything was committed meanwhile: either the
mount finds the commit, and lets nothing be kept, or the writer finds the node. No notice ends all attributes, so nodes
stay noted.

Several names may share a byte, or several nodes: then a notice is sent that nobody needed, and one about a node that
the kernel does not have costs it all names. So a byte of nodes tells which of them it stands for, as far as it can. A
name or a node that was not noted costs nothing.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import threading
import zlib

_NAMES = _NODES = 1 << 20  # bytes of the two tables, one behind the other
ANY = 1  # of nodes: the others' values are 2 to 255
SIZE = _NAMES + _NODES
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_EMPTY = bytes(_NAMES)


class KernelFilter:
    """The tables on a descriptor of their memory. Both sides have one. ``table`` is to be read at ``slot`` and
    ``node_slot``."""

    def __init__(self, descriptor: int) -> None:
        self.table = self._table = mmap.mmap(descriptor, SIZE)
        self._fence = threading.Lock()

    def note(self, parent: int, name: bytes) -> None:
        """From now on the writer must tell of changes to this name. Before it is looked up."""
        slot = name_slot(parent, name)
        if not self._table[slot]:
            self._table[slot] = 1
            # Taking a lock is a full memory barrier: the store above is seen before anything is read below.
            with self._fence:
                pass

    def has(self, parent: int, name: bytes) -> bool:
        return bool(self._table[name_slot(parent, name)])

    def note_node(self, node: int) -> bool:
        """From now on the writer must tell of changes to this node. True when that was not so before: what was read of
        it before may have changed without a word."""
        slot, value = node_slot(node), node_value(node)
        if self._table[slot] in (value, ANY):
            return False
        with self._fence:  # which is a barrier, as above
            self._table[slot] = ANY if self._table[slot] else value
        return True

    def clear(self) -> None:
        """Of names."""
        self._table[:_NAMES] = _EMPTY

    def close(self) -> None:
        self._table.close()


def create(*, all_nodes: bool = False) -> int:
    """The descriptor of new tables, of a size that nobody can change: empty, or with all nodes noted."""
    descriptor = os.memfd_create("avmfs-names", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    if all_nodes:
        os.pwrite(descriptor, b"\1" * _NODES, _NAMES)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def is_table(descriptor: int) -> bool:
    """Return whether this is what ``create`` makes. One that could shrink would kill who reads it (SIGBUS)."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size != SIZE:
        return False
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:  # not a memfd
        return False


def name_slot(parent: int, name: bytes) -> int:
    return zlib.crc32(name, (parent ^ parent >> 32) & 0xFFFFFFFF) & (_NAMES - 1)


def node_slot(node: int) -> int:
    """Nodes' numbers are random, or few."""
    return _NAMES + (node & (_NODES - 1))


def node_value(node: int) -> int:
    """Of those with the same slot, one in 254 has it too."""
    return 2 + (node >> 20) % 254
