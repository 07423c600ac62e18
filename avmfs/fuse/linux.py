"""The Linux front end: the kernel's FUSE protocol, spoken on /dev/fuse.

Owns one mount as a whole: it puts the loop (``session``), node numbers, replies, handles and the operations together,
and keeps the kernel's cache fed. What requests mean stands in ``names``, ``openfiles``, ``directories``, ``locking``
and ``xattrs``.

Caches: names (absent ones too) and attributes of real nodes may stay in the kernel for as long as the writer tells it
of every commit (``Store.feed_cache``); without that, on a ``strict`` mount and on kernels before protocol 7.44, all
timeouts are 0. Bytes are asked for anew at every open. Virtual nodes are never cached.

Compared with libfuse's high-level interface this knows which inode a request is about: fstat(2) of an unlinked file
works, a rename over an open file is one atomic step, a waiting open can be interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from avmfs.fuse import device
from avmfs.fuse import protocol as p
from avmfs.fuse.directories import Directories
from avmfs.fuse.handles import Handles
from avmfs.fuse.locking import Locking
from avmfs.fuse.names import Names
from avmfs.fuse.numbers import Numbers
from avmfs.fuse.openfiles import OpenFiles
from avmfs.fuse.pages import Pages
from avmfs.fuse.protocol import Op
from avmfs.fuse.replies import Replies
from avmfs.fuse.session import Session
from avmfs.fuse.xattrs import Xattrs
from avmfs.store import seen
from avmfs.store.seen import SeenNames
from avmfs.vfs.locks import LockTable
from avmfs.vfs.tree import Tree


class LinuxMount:
    """One mount on an open device. ``serve`` returns when it is unmounted."""

    def __init__(
        self, tree: Tree, descriptor: int, runtime_dir: Path, *, xattr: bool = False,
        report: Callable[[str], None] = lambda caches: None,
    ) -> None:  # fmt: skip
        self.tree = tree
        self.caches = "none: not mounted yet"
        self._report = report
        self._numbers = Numbers(tree)
        self._names = seen.create()
        self._replies = Replies(tree, self._numbers, SeenNames(self._names))
        self._session = Session(descriptor, self._numbers.forget)
        self._session.answers({Op.FORGET: self._numbers.forget_real})
        self._locks = LockTable(runtime_dir / "locks", self._session.interrupted)
        self.handles = Handles()
        pages = Pages()
        Names(self._session, tree, self._numbers, self._replies, self.handles, pages)
        OpenFiles(self._session, tree, self._numbers, self._replies, self.handles, pages, self._locks)
        Directories(self._session, tree, self._numbers, self._replies)
        Locking(self._session, self.handles, self._locks)
        if xattr:
            Xattrs(self._session, tree, self._numbers)

    def serve(self, ready: Callable[[], None], *, cached: bool) -> None:
        """Answer requests until the mount is gone. ``ready`` is called once the kernel has been greeted. ``cached``:
        let the kernel keep names and attributes while the writer tells it of every change."""
        over = threading.Event()

        def greeted() -> None:
            minor = self._session.minor
            if not cached:
                self._caches("none: coherence is strict")
            elif minor < p.EPOCH_MINOR:
                self._caches(f"none: the kernel speaks FUSE 7.{minor}, names are invalidated from 7.{p.EPOCH_MINOR} on")
            else:
                self._caches("none: the writer does not tell of changes yet")
                threading.Thread(target=self._feed_cache, args=(over,), name="cache", daemon=True).start()
            ready()

        try:
            self._session.serve(greeted)
        finally:
            over.set()
            self.tree.commit_all()
            self._locks.close()

    def _feed_cache(self, over: threading.Event) -> None:
        self.tree.memory.store.feed_cache(
            [self._session.descriptor, self._names],
            p.INC_EPOCH,
            p.INVAL_ATTRIBUTES,
            p.INVAL_NODE_AT,
            self._switch_caching,
            over,
        )

    def _switch_caching(self, on: bool) -> None:
        """From now on replies may be cached, or must not be; what was cached before is then dropped."""
        self._replies.switch(on)
        if not on:
            self._session.notify(p.INC_EPOCH)
        self._caches("epoch" if on else "none: the writer has gone")

    def _caches(self, mode: str) -> None:
        """Note, and tell, what the kernel may cache: "epoch", or "none: " and why."""
        self.caches = mode
        self._report(mode)


def mount(
    tree: Tree, mountpoint: Path, *, read_only: bool, allow_other: bool, cached: bool, ready: Callable[[], None],
    runtime_dir: Path, xattr: bool = False, report: Callable[[str], None] = lambda caches: None,
) -> None:  # fmt: skip
    """Mount and serve until unmounted. ``report`` hears what the kernel may cache, whenever that changes."""
    options = ["fsname=avmfs", "subtype=avmfs", "nosuid", "nodev", "default_permissions", "ro" if read_only else "rw"]
    descriptor = device.mount(mountpoint, [*options, "allow_other"] if allow_other else options)
    LinuxMount(tree, descriptor, runtime_dir, xattr=xattr, report=report).serve(ready, cached=cached)
