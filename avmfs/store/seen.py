"""The names that one mount's kernel may have cached, told to the writer without a message.

Owns a table of bytes in shared memory, one byte for all names that hash to it, which the mount sets and the writer
reads and clears. The mount notes a name (present or absent, it is cached either way) *before* it looks the name up; the
writer looks *after* its commit. So either the lookup finds what was committed, or the writer finds the name noted and
ends it. A notice ends everything that the kernel has, so the table is emptied with it: first the table, then the
notice, since a lookup that began before the notice is dead on arrival (the kernel stamps it with the epoch in which it
began), and one that begins afterwards notes its name anew.

Several names may share a byte: then a notice is sent that nobody needed. A name that was not noted costs nothing.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import threading
import zlib

SIZE = 1 << 20
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_EMPTY = bytes(SIZE)


class SeenNames:
    """The table on a descriptor of its memory. Both sides have one."""

    def __init__(self, descriptor: int) -> None:
        self._table = mmap.mmap(descriptor, SIZE)
        self._fence = threading.Lock()

    def note(self, parent: int, name: bytes) -> None:
        """From now on the writer must tell of changes to this name. Before it is looked up."""
        slot = _slot(parent, name)
        if not self._table[slot]:
            self._table[slot] = 1
            # Taking a lock is a full memory barrier: the store above is seen before anything is read below.
            with self._fence:
                pass

    def has(self, parent: int, name: bytes) -> bool:
        return bool(self._table[_slot(parent, name)])

    def clear(self) -> None:
        self._table[:] = _EMPTY

    def close(self) -> None:
        self._table.close()


def create() -> int:
    """The descriptor of a new, empty table, of a size that nobody can change."""
    descriptor = os.memfd_create("avmfs-names", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def is_table(descriptor: int) -> bool:
    """Is this what ``create`` makes? One that could shrink would kill who reads it (SIGBUS)."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size != SIZE:
        return False
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:  # not a memfd
        return False


def _slot(parent: int, name: bytes) -> int:
    return zlib.crc32(name, (parent ^ parent >> 32) & 0xFFFFFFFF) & (SIZE - 1)
