"""Open regular files: reads from the store, writes until they are committed.

Owns the uncommitted edits of this mount. All handles on one node share an ``OpenFile``, so that processes on
one mount see each other's writes at once; other mounts see them when flush, fsync or (O_APPEND) the write
itself has committed. An error of a commit reaches the caller of write, flush or fsync.

What flush or fsync could not commit is given up there and then, whoever wrote it on this mount: the mount shows what is
committed, and no later flush tries it again. Each handle through which some of it was written takes nothing more before
a flush or fsync of its own has said so, to each process once: a descriptor that a child inherited and closed unread has
told nobody. A write, rename or chmod that finds it cannot commit what was written before leaves that to wait.

Locks: an OpenFile's lock is held over its commits, so edits are neither lost nor applied twice. No other lock
is taken inside it. Who has to wait for it says so first (``aside``): it may be the thread on which all others wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from avmfs.errors import AvmError, BadHandle, Invalid, NotSupported, Stale, from_wire
from avmfs.memory import Memory
from avmfs.node import Node
from avmfs.store.client.inflight import COMMIT
from avmfs.store.rows import content
from avmfs.store.rows.content import Edit
from avmfs.vfs.virtual_handles import Remembering

log = logging.getLogger(__name__)

SPILL_BYTES = 8 * 1024 * 1024  # more than this in memory is committed before the flush
SPILL_EDITS = 1000  # so does a long list of small ones, which every read and stat has to go through
_PIECE = 4 * 1024 * 1024
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16  # fallocate(2), linux/falloc.h


class Keep(Protocol):
    """Where uncommitted edits are noted, so that they outlive this process. A noted edit need not be noted twice."""

    def edited(self, node: int, edit: Edit, at: int) -> bool:
        """Note an edit. Is by now so much noted that it is time to commit?"""
        ...

    def committed(self, node: int) -> None: ...

    def gave_up(self, node: int, handles: Iterable[FileHandle], error: AvmError) -> None:
        """Forget the edits, and note whom that is still to be told."""
        ...


class Files(Protocol):
    """Who has given a handle out. ``asker`` is the thread whose request this thread works for, as the kernel numbers
    it; ``gave_up`` makes the kernel forget what it was told of a node."""

    asker: Callable[[], int]
    gave_up: Callable[[int], None]

    def number(self) -> int: ...
    def close(self, file: OpenFile) -> None: ...


class _Lock:
    """One thread's at a time, which may take it again. ``aside`` is called by a thread that has to wait."""

    __slots__ = ("_aside", "_lock")

    def __init__(self, aside: Callable[[], None]) -> None:
        self._aside = aside
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._aside()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class OpenFile:
    """One node that this mount has open, whatever its name is by now. ``unfinished``: these edits are a predecessor's,
    who was killed while it committed them; nothing may be added to them before that is done."""

    __slots__ = (
        "_below",
        "_changed",
        "_committed",
        "_errors",
        "_told",
        "dirtied",
        "edits",
        "handles",
        "in_trash",
        "keep",
        "lock",
        "made",
        "memory",
        "moved",
        "node",
        "pending",
        "removed",
        "unfinished",
        "unsynced",
        "writers",
        "written",
    )

    def __init__(
        self,
        memory: Memory,
        node: int,
        committed: Callable[[], None],
        keep: Keep | None = None,
        aside: Callable[[], None] = lambda: None,
        changed: Callable[[int], None] = lambda node: None,
    ) -> None:
        """``committed`` is called when edits are in the store, before they are dropped here; ``changed`` with a node
        whose commit may have made it otherwise than this mount had it."""
        self.memory = memory
        self._errors = Remembering(memory)
        self.node = node
        self._committed, self._changed = committed, changed
        self.keep = keep
        self.unfinished = False
        self.lock = _Lock(aside)
        self.edits: list[Edit] = []
        self.pending = 0
        self.written = 0  # time of the newest uncommitted edit or touch, ns; 0 when there is none
        self.made = 0  # of the newest edit: what a touch leaves alone is as it was
        self.moved = 0  # when another mount was found to have changed the file below these edits
        self._below = 0  # the store's ctime of the file when the edits began, or it was looked at last
        self._told = False  # has anybody seen it with these edits?
        self.unsynced = False  # has something been committed that close(2) has still to make durable?
        self.handles = 0
        self.in_trash = False  # was it there when it was first opened, and ever since?
        self.removed: tuple[int | None, bool] = (0, False)  # a directory, and whether it came there by being removed
        self.writers: set[FileHandle] = set()  # those who may write, or have truncated it when they opened it
        self.dirtied: set[FileHandle] = set()  # those with a hand in what is not committed

    def now(self) -> Node:
        """The node as this mount sees it: the store's, with uncommitted edits. Waits for a commit. Raises Stale."""
        with self.lock:
            return self.overlaid(self.memory.store.cached_node(self.memory.who, self.node))

    def is_shared_memory(self) -> bool:
        """Return whether those who lock the file talk through its mapped pages, which are another copy on each mount:
        SQLite's index of a write-ahead log."""
        try:
            return self.memory.store.cached_node(self.memory.who, self.node).name.endswith(b"-shm")
        except Stale:
            return False

    def overlaid(self, node: Node) -> Node:
        """``node`` with the size and times that the uncommitted edits give it. Takes no lock: edits over the bytes that
        they have just become say the same again. Who has not just peeked goes through ``OpenFiles.overlaid``."""
        self._told = self._told or self.written != 0  # before they are looked at: who drops them looks afterwards
        written, edits = self.written, self.edits
        if not written:
            return node
        at = max(written, self.moved)
        # The kernel keeps the bytes that it has for as long as time and size are the same.
        if self._below and node.ctime not in (self._below, at):
            self.moved = at = self.memory.now()
        self._below = node.ctime
        return _with(node, size=content.size_after(node.size, edits), mtime=at, ctime=at)

    def read(self, offset: int, length: int) -> bytes:
        if not self.edits:
            return self.memory.store.cached_read(self.memory.who, self.node, offset, length)
        with self.lock, self.memory.reading() as reader:
            size = reader.open_node(self.node).size
            base = reader.read(self.node, offset, length)
            return content.overlay(base, offset, length, size, self.edits)

    def seek(self, offset: int, *, hole: bool) -> int | None:
        """See Reader.seek; a file with uncommitted edits is all data."""
        with self.lock, self.memory.reading() as reader:
            if not self.edits:
                return reader.seek(self.node, offset, hole=hole)
            size = content.size_after(reader.open_node(self.node).size, self.edits)
            return None if offset >= size else size if hole else offset

    def edit(self, edit: Edit, handle: FileHandle, *, mapped: bool = False) -> None:
        """Note a write or truncation; what has gathered is committed before, when it is much. Raises TooBig, and what
        that commit does, before anything is kept. ``mapped``: pages, which the kernel sends through any handle."""
        size = len(edit[2]) if edit[0] == "w" else 0
        content.check_size(edit[1] + size)
        with self.lock:
            if self.near_spill(size):
                self.commit(handle.id)
            at = self._instant()
            crowded = self.keep is not None and self.keep.edited(self.node, edit, at)
            self.restore(edit, at)
            if mapped:
                self.dirtied.update(self.writers)
            elif handle not in self.dirtied:
                handle.dirties()
            if crowded:
                self.settle(handle)

    def restore(self, edit: Edit, at: int) -> None:
        """Take up an edit that is noted already."""
        if edit[0] == "w":
            self.pending += len(edit[2])
            if self.edits:
                self._gather(edit)
            else:
                self.edits.append(edit)
        else:
            self.edits.append(edit)
        self.written = self.made = at

    def near_spill(self, size: int) -> bool:
        """Return whether a write of this size would commit at once."""
        return self.pending + size >= SPILL_BYTES or len(self.edits) >= SPILL_EDITS or self.unfinished

    def _gather(self, edit: Edit) -> None:
        """A write that goes on where the last one ended joins it: bytes are copied once, not once per write."""
        last = self.edits[-1]
        if edit[0] != "w" or last[0] != "w" or last[1] + len(last[2]) != edit[1]:
            self.edits.append(edit)
        elif isinstance(last[2], bytearray) and len(last[2]) < _PIECE:
            last[2].extend(edit[2])
        elif len(last[2]) < _PIECE:
            self.edits[-1] = ("w", last[1], bytearray(last[2]) + edit[2])
        else:
            self.edits.append(edit)

    def touch(self, handle: FileHandle) -> None:
        """A truncation to the size that the file has: its times change, its bytes and versions do not."""
        with self.lock:
            self.written = self._instant()
            self.dirtied.add(handle)

    def _instant(self) -> int:
        """When an edit is made: after all that this mount has seen of the file, although clocks go back."""
        now = self.memory.now()
        try:
            below = self.memory.store.cached_node(self.memory.who, self.node).ctime
        except Stale:  # the commit says so
            return now
        if not self.written:
            self._below = below
        return max(now, below + 1)

    def append(self, data: bytes, handle: int) -> None:
        """O_APPEND: committed at the store's own end of file, for all to see, when this returns. Safe from power loss
        once it has been flushed, like anything that write(2) says."""
        with self.lock:
            if self.edits:
                self.commit(handle)
            with self._errors:
                self.memory.submit("append", node=self.node, handle=handle, data=data)
            self.written = 0  # the append's own time is later than that of a touch
            self.unsynced = True

    def commit(self, handle: int) -> bool:
        """Put all edits into the store, or the time of a touch. They stay, to be tried again, when it fails. Has that
        made them durable, and with them all that was committed before?"""
        with self.lock:
            durable, behind = self.written != 0, 0
            if self.written:
                edits = [[*edit[:2], bytes(edit[2])] if edit[0] == "w" else list(edit) for edit in self.edits]
                with self._errors, self.memory.store.once(COMMIT, self.node):
                    done = self.memory.submit(
                        "commit",
                        node=self.node,
                        handle=handle,
                        edits=edits,
                        mtime=max(self.written, self.moved),
                        made=self.made,
                    )
                    if self.keep is not None:
                        self.keep.committed(self.node)
                self.unsynced = False
                behind = done.get("behind", 0)
            self._committed()
            self._clean()
            if behind or self._told:  # of a size that it has not, or of times that it need not have
                self._told = False
                self._changed(self.node)
            return durable

    def settle(self, handle: FileHandle) -> bool:
        """``commit`` for one that tells its caller what goes wrong: then the edits are given up, before this raises."""
        with self.lock:
            try:
                return self.commit(handle.id or handle._files.number())
            except AvmError as e:
                self.dirtied.add(handle)
                self.give_up(e)
                raise

    def give_up(self, error: AvmError) -> None:
        """The edits cannot be committed: it is as if they had never been, but for who has still to be told."""
        with self.lock:
            error = from_wire(error.code, error.reason, error.filename, recorded=error.recorded)  # without its frames
            for handle in self.dirtied:
                handle.refused, handle.told = error, ()
            try:
                if self.keep is not None:
                    self.keep.gave_up(self.node, self.dirtied, error)
            finally:  # else the next flush commits them, perhaps once more
                self._clean()

    def _clean(self) -> None:
        self.written, self.edits, self.pending, self.unfinished = 0, [], 0, False
        self.made = self.moved = self._below = 0
        self.dirtied.clear()

    def sync(self) -> None:
        """Make durable what has been committed."""
        with self.lock:
            self.memory.submit("sync")
            self.unsynced = False


class FileHandle:
    """One open(2) of a regular file. ``direct``: reads and writes must bypass the kernel's page cache, which would
    tear a record written across a page and place appends at a stale end. ``asker``: the thread that was the first to
    write what is not committed. ``refused``: why bytes that were written here are no more; ``told``: the processes that
    know."""

    __slots__ = ("_files", "appends", "asker", "file", "id", "readable", "refused", "syncs", "told", "writable")

    def __init__(self, file: OpenFile, number: int, readable: bool, writable: bool, append: bool, files: Files) -> None:
        self.file = file
        self.id = number
        self.readable, self.writable, self.appends = readable, writable, append
        self.asker = 0
        self.refused: AvmError | None = None
        self.told: tuple[int, ...] = ()
        self.syncs = writable  # does its close wait until what was committed is durable?
        self._files = files
        file.handles += 1
        if writable or number:
            file.writers.add(self)

    @property
    def direct(self) -> bool:
        # A read-write handle stays cached: SQLite and others map such files shared, which direct I/O forbids.
        return self.appends or (self.writable and not self.readable)

    @property
    def pending(self) -> bool:
        """Return whether a flush or release would have to commit, or wait for the disk, or say what was given up."""
        return self in self.file.dirtied or (self.syncs and self.file.unsynced) or self.refused is not None

    def read(self, offset: int, length: int) -> bytes:
        return self.file.read(offset, length)

    def write(self, offset: int, data: bytes, *, append: bool = False, sync: bool = False, mapped: bool = False) -> int:
        """``append``: at the end of file (O_APPEND as it is now: fcntl(2) may have changed it since open).
        ``sync``: durable when this returns (O_SYNC, O_DSYNC). ``mapped``: see OpenFile.edit."""
        if not self.writable:
            raise BadHandle("not open for writing")
        if append:
            self.append(data)
        else:
            self.write_at(offset, data, mapped=mapped)
        if sync:
            self.fsync()
        return len(data)

    def truncate(self, size: int) -> None:
        """ftruncate(2): committed at the next flush, so that what follows is one version."""
        if not self.writable:
            raise Invalid("not open for writing")
        self._cut(size)

    def empty(self) -> None:
        """O_TRUNC at open, which may be open for reading."""
        self.id = self.id or self._files.number()
        self.file.writers.add(self)
        self._cut(0)

    def _cut(self, size: int) -> None:
        self._go_on()
        now = self.file.now().size
        if now != size:
            self.file.edit(("t" if size < now else "g", size), self)
        else:
            self.file.touch(self)

    def allocate(self, mode: int, offset: int, length: int) -> None:
        """fallocate(2): plain, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE. Room is never set
        aside. Raises NotSupported for other modes."""
        if mode not in (0, KEEP_SIZE, KEEP_SIZE | PUNCH_HOLE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE):
            raise NotSupported("this mode of fallocate")
        if not self.writable:
            raise BadHandle("not open for writing")
        self._go_on()
        size, end = self.file.now().size, offset + length
        if mode & (PUNCH_HOLE | ZERO_RANGE) and offset < size:
            self.file.edit(("z", offset, min(end, size)), self)
        if end > size and not mode & KEEP_SIZE:
            self.file.edit(("g", end), self)
        else:
            self.file.touch(self)  # a change, even where nothing is another

    def write_at(self, offset: int, data: bytes, *, mapped: bool = False) -> None:
        """At this offset, whatever O_APPEND says."""
        if not mapped:
            self._go_on()
        self.file.edit(("w", offset, data), self, mapped=mapped)

    def append(self, data: bytes) -> None:
        self._go_on()
        self.file.append(data, self.id)

    def flush(self) -> None:
        asker = self._files.asker()  # while it is the one that this thread works for
        if self in self.file.dirtied:
            with suppress(AvmError):  # as ``refused``, which may be an earlier one
                self.file.settle(self)
        self._tell(asker)
        if self.syncs and self.file.unsynced:
            self.file.sync()

    def fsync(self) -> None:
        """Also what others have committed to this file, and whoever's edits wait on this mount."""
        asker, durable = self._files.asker(), False
        with suppress(AvmError):
            durable = self.file.settle(self)
        self._tell(asker)
        if not durable:
            self.file.sync()

    def release(self) -> None:
        """The last close. Pages that mmap dirtied after the flush arrive just before it: commit them too."""
        try:
            if self in self.file.dirtied:
                self.file.settle(self)
            if self.refused is not None and not self.told:
                raise self.refused
            if self.syncs and self.file.unsynced:
                self.file.sync()
        except AvmError as e:
            log.error("bytes written to node %d after its last flush are lost: %s", self.file.node, e)
            self._files.gave_up(self.file.node)
        finally:
            self.give_back()

    def give_back(self) -> None:
        """It is open no more, and has nothing that waits."""
        self.file.writers.discard(self)
        self._files.close(self.file)

    def dirties(self) -> None:
        """Something of what it has written begins to wait for its commit."""
        self.asker = self._files.asker()
        self.file.dirtied.add(self)

    def _go_on(self) -> None:
        """Raises what became of bytes that went before, and that this process has not been told: more would leave a
        hole where they were."""
        if self.refused is not None and process_of(self._files.asker()) not in self.told:
            raise self.refused

    def _tell(self, asker: int) -> None:
        if self.refused is not None and (process := process_of(asker)) not in self.told:
            self.told = (*self.told, process)
            self._files.gave_up(self.file.node)
            raise self.refused


def process_of(thread: int) -> int:
    """That a thread is one of; itself where that cannot be told."""
    with suppress(OSError):
        for line in Path(f"/proc/{thread}/status").read_text().splitlines():
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    return thread


def _with(node: Node, *, size: int, mtime: int, ctime: int) -> Node:
    return Node(*node[:7], size, node.atime, mtime, ctime, *node[11:])
