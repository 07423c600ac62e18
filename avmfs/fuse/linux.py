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

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from avmfs import kept as memory_kept
from avmfs.fuse import device, resume
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
from avmfs.fuse.resume import Box, Continuity, left_by_predecessor
from avmfs.fuse.session import Session
from avmfs.fuse.xattrs import Xattrs
from avmfs.store import seen
from avmfs.store.lanes import REQUEST
from avmfs.store.seen import SeenNames
from avmfs.vfs import locks
from avmfs.vfs.locks import LockTable
from avmfs.vfs.tree import Tree


class LinuxMount:
    """One mount on an open device. ``serve`` returns when it is unmounted."""

    def __init__(
        self, tree: Tree, descriptor: int, runtime_dir: Path, *, continuity: Continuity, box: Box | None = None,
        found: Mapping[str, int] | None = None, xattr: bool = False,
        report: Callable[[str], None] = lambda caches: None, admitted: frozenset[int] | None = None,
    ) -> None:  # fmt: skip
        """``found`` is what a predecessor left in the box; ``admitted`` are the users who may use it (``fence``)."""
        found = found or {}
        self.tree = tree
        self._continuity = continuity
        self._box = box
        self.caches = "none: not mounted yet"
        self._report = report
        self._numbers = Numbers(tree, continuity)
        self._names, self._sink = _told_to_writer(found)
        self._replies = Replies(tree, self._numbers, SeenNames(self._names))
        once = partial(tree.memory.store.once, REQUEST)
        self._session = Session(descriptor, self._numbers.forget, once, continuity.settle, admitted)
        self._session.answers({Op.FORGET: self._numbers.forget_real})
        tree.memory.store.attended(self._session)
        tree.opened.aside = self._session.aside
        tree.opened.gave_up = self._session.drop_attributes
        held = {name: held for name, held in found.items() if name.startswith(locks.NAME)}
        self._locks = LockTable(runtime_dir / "locks", self._session.interrupted, box, held)
        self.handles = Handles(continuity)
        pages = Pages()
        Names(self._session, tree, self._numbers, self._replies, self.handles, pages)
        OpenFiles(self._session, tree, self._numbers, self._replies, self.handles, pages, self._locks)
        Directories(self._session, tree, self._numbers, self._replies, continuity)
        Locking(self._session, self.handles, self._locks)
        if xattr:
            Xattrs(self._session, tree, self._numbers)

    def serve(self, ready: Callable[[], None], survives: Callable[[], None], *, cached: bool) -> None:
        """Answer requests until the mount is gone. ``ready`` is called once the kernel has been greeted, and before it
        ``survives`` if a successor can go on with this mount. ``cached``: let the kernel keep names and attributes
        while the writer tells it of every change."""
        over = threading.Event()
        taken_over = self._continuity.minor
        if taken_over:
            self._continuity.refresh(self._session.descriptor)

        def greeted() -> None:
            minor = self._session.minor
            if self._session.resends and self._box is not None:
                self._continuity.leave(self._box, self._session.descriptor, self._names, minor, self._session.agreed)
                survives()
            if not cached:
                self._caches("none: coherence is strict")
            elif minor < p.EPOCH_MINOR:
                self._caches(f"none: the kernel speaks FUSE 7.{minor}, names are invalidated from 7.{p.EPOCH_MINOR} on")
            else:
                self._caches("none: the writer does not tell of changes yet")
                threading.Thread(target=self._feed_cache, args=(over,), name="cache", daemon=True).start()
            ready()

        try:
            self._session.serve(greeted, taken_over, self._continuity.agreed)
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
            self._sink,
            self._keep_sink,
        )

    def _keep_sink(self, connection: int) -> None:
        if self._box is not None:
            self._box.put(resume.SINK, connection)

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


def _told_to_writer(found: Mapping[str, int]) -> tuple[int, int | None]:
    """The tables of what the kernel may have, and the connection over which the writer was given them."""
    left, sink = found.get(resume.SEEN), found.get(resume.SINK)
    if left is None:
        return seen.create(), None
    if seen.is_table(left):
        return left, sink
    # An earlier version has not noted which nodes the kernel has: it may be any.
    if sink is not None:
        os.close(sink)
    return seen.create(all_nodes=True), None


def mount(
    tree: Tree, mountpoint: Path, *, read_only: bool, allow_other: bool, cached: bool, ready: Callable[[], None],
    runtime_dir: Path, before_mount: Callable[[], None], box: Box | None, survives: Callable[[], None],
    xattr: bool = False, report: Callable[[str], None] = lambda caches: None, admitted: frozenset[int] | None = None,
) -> None:  # fmt: skip
    """Mount, or go on with what a predecessor had mounted, and serve until unmounted. ``report`` hears what the kernel
    may cache, whenever that changes."""
    found = box.take() if box is not None else {}
    kept = left_by_predecessor(found)
    if kept is not None:
        descriptor = found[resume.DEVICE]
    else:
        if box is not None:
            box.empty()
        found, kept = {}, memory_kept.make()
        before_mount()
        options = ["fsname=avmfs", "subtype=avmfs", "nosuid", "nodev", "default_permissions"]
        options += ["ro" if read_only else "rw", *(["allow_other"] if allow_other else [])]
        descriptor = device.mount(mountpoint, options)
    LinuxMount(
        tree, descriptor, runtime_dir, continuity=Continuity(tree, kept), box=box, found=found, xattr=xattr,
        report=report, admitted=admitted,
    ).serve(ready, survives, cached=cached)  # fmt: skip
