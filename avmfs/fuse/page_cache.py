"""Whose bytes the kernel's page cache holds, and whether an open may keep them.

Owns, by node, the version of the file whose pages the kernel has. An open that is answered without FOPEN_KEEP_CACHE
makes the kernel drop the file's pages; all that it reads later comes from the store as it is then. So if a later open
finds the version that was current at such an open, every page since then is of that version, and they may stay.

The kernel drops the pages after it got the reply, in the opener's own time: until a request on the new handle shows
that this has happened, another open must not be told to keep what might still be there. What this mount's own kernel
writes is in its pages already, but may never get into the store: a write forgets the version.

A version is whatever differs when the bytes do; here, the packed entry of the node, in which every commit changes the
ctime. Called by ``file_ops``; threads may share it.
"""

from __future__ import annotations

from avmfs.lru import FIFO

_MOST = 50_000  # files; the packed entry of one is mostly the same object that ``entry_cache`` remembers


class PageCache:
    """See the module."""

    def __init__(self) -> None:
        self._held: FIFO[int, bytes] = FIFO(_MOST)
        # By node (handle, version), until the handle is heard of.
        self._dropping: FIFO[int, tuple[int, bytes]] = FIFO(_MOST)

    def keep(self, node: int, version: bytes) -> bool:
        """Return whether an open that finds this version may keep the kernel's pages. If not, ``dropped`` has to
        follow."""
        return self._held.get(node) == version

    def dropped(self, node: int, handle: int, version: bytes) -> None:
        """An open is told to drop them."""
        self._held.pop(node, None)
        self._dropping.put(node, (handle, version))

    def heard(self, node: int, handle: int) -> None:
        """A request on an open handle: the kernel has done what its open was told."""
        waiting = self._dropping.get(node)
        if waiting is None or waiting[0] != handle:
            return
        if self._dropping.pop(node, None) is not waiting:
            return  # written meanwhile
        self._held.put(node, waiting[1])

    def wrote(self, node: int) -> None:
        """This kernel's pages may differ from the store's bytes."""
        self._dropping.pop(node, None)
        self._held.pop(node, None)
