"""The Linux front end: the kernel's FUSE protocol, spoken on /dev/fuse.

Owns one mount as a whole: it puts the loop (``session``), node numbers, replies, handles and the operations together,
and keeps the kernel's cache fed. What requests mean stands in ``namespace_ops``, ``file_ops``, ``directory_ops``,
``lock_ops`` and ``xattr_ops``.

Caches: names (absent ones too) and attributes of real nodes may stay in the kernel for as long as the writer tells it
of every commit (``Submitter.feed_cache``); without that, on a ``strict`` mount and on kernels before protocol 7.44, all
timeouts are 0. Bytes are asked for anew at every open. Virtual nodes are never cached.

Compared with libfuse's high-level interface this knows which inode a request is about: fstat(2) of an unlinked file
works, a rename over an open file is one atomic step, a waiting open can be interrupted.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from avmfs_config import Mount

from avmfs import handover as memory_kept
from avmfs.fuse import device, handover
from avmfs.fuse import protocol as p
from avmfs.fuse.directory_ops import DirectoryOps
from avmfs.fuse.entry_cache import EntryCache
from avmfs.fuse.file_ops import FileOps
from avmfs.fuse.handles import Handles
from avmfs.fuse.handover import FdEntry, Handover, left_by_predecessor
from avmfs.fuse.inodes import Inodes
from avmfs.fuse.lock_ops import LockOps
from avmfs.fuse.namespace_ops import NamespaceOps
from avmfs.fuse.page_cache import PageCache
from avmfs.fuse.protocol import Op
from avmfs.fuse.session import Session
from avmfs.fuse.uid_gate import admitted, needs_allow_other
from avmfs.fuse.xattr_ops import XattrOps
from avmfs.store.client.inflight import REQUEST
from avmfs.store.notify import kernel_filter
from avmfs.store.notify.kernel_filter import KernelFilter
from avmfs.vfs import locks
from avmfs.vfs.locks import LockTable
from avmfs.vfs.tree import Tree


class LinuxMount:
    """One mount on an open device. ``serve`` returns when it is unmounted."""

    def __init__(
        self,
        tree: Tree,
        config: Mount,
        descriptor: int,
        runtime_dir: Path,
        continuity: Handover,
        fd_entry: FdEntry | None,
        found: Mapping[str, int],
        report: Callable[[str], None],
    ) -> None:
        """``found`` is what a predecessor left in the fd store."""
        self.tree = tree
        self._continuity = continuity
        self._box = fd_entry
        self.caches = "none: not mounted yet"
        self._report = report
        self._numbers = Inodes(tree, continuity)
        self._names, self._sink = _told_to_writer(found)
        self._replies = EntryCache(tree, self._numbers, KernelFilter(self._names))
        once = partial(tree.memory.store.once, REQUEST)
        self._session = Session(descriptor, self._numbers.forget, once, self._settle, admitted(config))
        self._session.answers({Op.FORGET: self._numbers.forget_real})
        tree.memory.store.attended(self._session)
        tree.opened.aside = self._session.aside
        tree.opened.gave_up, tree.opened.asker = self._session.drop_pages, self._session.asker
        self._session.has_open, tree.opened.changed = tree.opened.has, self._session.drop_attributes
        held = {name: held for name, held in found.items() if name.startswith(locks.NAME)}
        folder, interrupted = runtime_dir / "locks", self._session.interrupted
        self._locks = LockTable(folder, interrupted, fd_entry, held, tree.opened.publish)
        self.handles = Handles(continuity)
        pages = PageCache()
        NamespaceOps(self._session, tree, self._numbers, self._replies, self.handles, pages)
        FileOps(self._session, tree, self._numbers, self._replies, self.handles, pages, self._locks)
        self._directories = DirectoryOps(self._session, tree, self._numbers, self._replies, continuity)
        LockOps(self._session, self.handles, self._locks)
        if config.xattr:
            XattrOps(self._session, tree, self._numbers)
        if tree.sources.any:
            self._session.asks = tree.sources.concern
        if tree.fresh is not None:
            self._session.precede((Op.LOOKUP, Op.OPEN, Op.OPENDIR), tree.fresh)

    def _settle(self, resent: set[int]) -> None:
        self._continuity.settle(resent)
        self._session.later(self.tree.opened.finish_abandoned)

    def serve(self, ready: Callable[[], None], survives: Callable[[], None], *, cached: bool) -> None:
        """Answer requests until the mount is gone. ``ready`` is called once the kernel has been greeted, and before it
        ``survives`` if a successor can go on with this mount. ``cached``: let the kernel keep names and attributes
        while the writer tells it of every change."""
        over = threading.Event()
        taken_over = self._continuity.minor
        # Of an answer to what was asked before attributes are dropped the kernel heeds no time, and who has waited for
        # it to read a file goes on with the bytes of before. While the writer tells of every change, nothing hurries.
        hurries = not (cached and taken_over and self._sink is not None and _is_open(self._sink))
        if taken_over and hurries:
            self._continuity.refresh(self._session.descriptor)

        def feed() -> None:
            if cached and self._session.minor >= p.EPOCH_MINOR:
                threading.Thread(target=self._feed_cache, args=(over,), name="cache", daemon=True).start()

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
            if hurries:
                feed()
            else:
                self._session.drained = feed
            ready()

        try:
            self._session.serve(greeted, taken_over, self._continuity.agreed)
        finally:
            over.set()
            self.tree.commit_all()
            self._locks.close()

    def _feed_cache(self, over: threading.Event) -> None:
        feed, device_and_names = self.tree.memory.store.feed_cache, [self._session.descriptor, self._names]
        notices = (p.INC_EPOCH, p.INVAL_ATTRIBUTES, p.INVAL_NODE_AT)
        feed(device_and_names, *notices, self._switch_caching, over, self._sink, self._keep_sink)

    def _keep_sink(self, connection: int) -> None:
        if self._box is not None:
            self._box.put(handover.SINK, connection)

    def _switch_caching(self, on: bool) -> None:
        """From now on replies may be cached, or must not be; what was cached before is then dropped: also when they
        may again, since a reply of before may have come to the kernel after the drop."""
        told = self._replies.switch(on) | self._directories.open_nodes()
        self._session.notify(p.INC_EPOCH)
        for node in told:
            self._session.drop_attributes(node)
        self._caches("epoch" if on else "none: the writer has gone")

    def _caches(self, mode: str) -> None:
        """Note, and tell, what the kernel may cache: "epoch", or "none: " and why."""
        self.caches = mode
        self._report(mode)


def _is_open(connection: int) -> bool:
    """Return whether the other side, which says nothing, has not ended a connection."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return not poll.poll(0)


def _told_to_writer(found: Mapping[str, int]) -> tuple[int, int | None]:
    """The tables of what the kernel may have, and the connection over which the writer was given them."""
    left, sink = found.get(handover.SEEN), found.get(handover.SINK)
    if left is None:
        return kernel_filter.create(), None
    if kernel_filter.is_table(left):
        return left, sink
    # An earlier version has not noted which nodes the kernel has: it may be any.
    if sink is not None:
        os.close(sink)
    return kernel_filter.create(all_nodes=True), None


def mount(
    tree: Tree,
    config: Mount,
    *,
    runtime_dir: Path,
    before_mount: Callable[[], None],
    fd_entry: FdEntry | None,
    ready: Callable[[], None],
    survives: Callable[[], None],
    report: Callable[[str], None],
) -> None:
    """Mount, or go on with what a predecessor had mounted, and serve until unmounted. ``report`` hears what the kernel
    may cache, whenever that changes."""
    found = fd_entry.take() if fd_entry is not None else {}
    kept = left_by_predecessor(found)
    if kept is not None:
        descriptor = found[handover.DEVICE]
    else:
        if fd_entry is not None:
            fd_entry.empty()
        found, kept = {}, memory_kept.make()
        before_mount()
        options = ["fsname=avmfs", "subtype=avmfs", "nosuid", "nodev", "default_permissions"]
        options += ["ro" if config.read_only else "rw", *(["allow_other"] if needs_allow_other(config) else [])]
        descriptor = device.mount(config.mountpoint, options)
    made = LinuxMount(tree, config, descriptor, runtime_dir, Handover(tree, kept), fd_entry, found, report)
    made.serve(ready, survives, cached=config.coherence != "strict" and tree.injection is None)
