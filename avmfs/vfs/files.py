"""Open regular files: reads from the store, writes until they are committed.

Owns the uncommitted edits of this mount. All handles on one node share an ``OpenFile``, so that processes on
one mount see each other's writes at once; other mounts see them when flush, fsync or (O_APPEND) the write
itself has committed. An error of a commit reaches the caller of write, flush or fsync.

Locks: an OpenFile's lock is held over its commits, so edits are neither lost nor applied twice. No other lock
is taken inside it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from typing import Protocol

from avmfs.errors import AvmError, BadHandle, Invalid, NotSupported
from avmfs.memory import Memory
from avmfs.node import Node
from avmfs.store import content
from avmfs.store.content import Edit
from avmfs.store.lanes import COMMIT

log = logging.getLogger(__name__)

SPILL_BYTES = 8 * 1024 * 1024  # more than this in memory is committed before the flush
_PIECE = 4 * 1024 * 1024
_ZEROS = 64 * 1024 * 1024  # written out where a hole is punched into the middle of a file
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16  # fallocate(2), linux/falloc.h


class Keep(Protocol):
    """Where uncommitted edits are noted, so that they outlive this process. A noted edit need not be noted twice."""

    @property
    def crowded(self) -> bool:
        """Is so much noted that it is time to commit?"""
        ...

    def edited(self, node: int, edit: Edit, at: int) -> None: ...
    def committed(self, node: int) -> None: ...


class OpenFile:
    """One node that this mount has open, whatever its name is by now. ``unfinished``: these edits are a predecessor's,
    who was killed while it committed them; nothing may be added to them before that is done."""

    __slots__ = ("edits", "handles", "keep", "lock", "memory", "node", "pending", "unfinished", "unsynced", "written")

    def __init__(self, memory: Memory, node: int, keep: Keep | None = None) -> None:
        self.memory = memory
        self.node = node
        self.keep = keep
        self.unfinished = False
        self.lock = threading.RLock()
        self.edits: list[Edit] = []
        self.pending = 0
        self.written = 0  # time of the newest uncommitted edit, ns
        self.unsynced = False  # has something been committed that close(2) has still to make durable?
        self.handles = 0

    def now(self) -> Node:
        """The node as this mount sees it: the store's, with uncommitted edits. Raises Stale."""
        with self.lock:
            return self.overlaid(self.memory.store.peek_node(self.memory.who, self.node))

    def overlaid(self, node: Node) -> Node:
        """``node`` with the size and times that the uncommitted edits give it."""
        if not self.edits:
            return node
        with self.lock:
            if not self.edits:
                return node
            size = content.size_after(node.size, self.edits)
            return _with(node, size=size, mtime=self.written, ctime=self.written)

    def read(self, offset: int, length: int) -> bytes:
        if not self.edits:
            return self.memory.store.peek_read(self.memory.who, self.node, offset, length)
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

    def edit(self, edit: Edit, handle: int) -> None:
        """Note a write or truncation; commits when much has gathered."""
        with self.lock:
            # Refuses an absurd size before anything is kept.
            content.size_after(0, [edit])
            if self.unfinished:
                self.commit(handle)
            at = self.memory.now()
            if self.keep is not None:
                self.keep.edited(self.node, edit, at)
            self.restore(edit, at)
            if self.pending >= SPILL_BYTES or (self.keep is not None and self.keep.crowded):
                self.commit(handle)

    def restore(self, edit: Edit, at: int) -> None:
        """Take up an edit that is noted already."""
        last = self.edits[-1] if self.edits else None
        if (
            edit[0] == "w"
            and last is not None
            and last[0] == "w"
            and last[1] + len(last[2]) == edit[1]
            and (len(last[2]) < _PIECE)
        ):
            self.edits[-1] = ("w", last[1], last[2] + edit[2])
        else:
            self.edits.append(edit)
        self.pending += len(edit[2]) if edit[0] == "w" else 0
        self.written = at

    def append(self, data: bytes, handle: int) -> None:
        """O_APPEND: committed at the store's own end of file, for all to see, when this returns. Safe from power loss
        once it has been flushed, like anything that write(2) says."""
        with self.lock:
            self.commit(handle)
            self.memory.submit("append", node=self.node, handle=handle, data=data)
            self.unsynced = True

    def commit(self, handle: int) -> None:
        """Make all edits durable. They stay, to be tried again, when it fails."""
        with self.lock:
            if self.edits:
                edits = [list(edit) for edit in self.edits]
                with self.memory.store.once(COMMIT, self.node):
                    self.memory.submit("commit", node=self.node, handle=handle, edits=edits, mtime=self.written)
                    self.forget()
                self.unsynced = False

    def forget(self) -> None:
        """The edits are committed, or given up."""
        with self.lock:
            self.edits, self.pending, self.unfinished = [], 0, False
            if self.keep is not None:
                self.keep.committed(self.node)

    def sync(self) -> None:
        """Make durable what has been committed."""
        with self.lock:
            self.memory.submit("sync")
            self.unsynced = False


class FileHandle:
    """One open(2) of a regular file. ``direct``: reads and writes must bypass the kernel's page cache, which would
    tear a record written across a page and place appends at a stale end."""

    __slots__ = ("_released", "appends", "dirty", "file", "id", "readable", "syncs", "writable")

    def __init__(
        self, file: OpenFile, *, readable: bool, writable: bool, append: bool, released: Callable[[OpenFile], None],
        number: int = -1,
    ) -> None:  # fmt: skip
        self.file = file
        # Who only reads commits nothing.
        self.id = number if number >= 0 else secrets.randbits(63) if writable else 0
        self.readable, self.writable, self.appends = readable, writable, append
        self.dirty = False
        self.syncs = writable  # does its close wait until what was committed is durable?
        self._released = released
        file.handles += 1

    @property
    def direct(self) -> bool:
        # A read-write handle stays cached: SQLite and others map such files shared, which direct I/O forbids.
        return self.appends or (self.writable and not self.readable)

    @property
    def pending(self) -> bool:
        """Would a flush or release have to commit, or wait for the disk?"""
        return self.dirty or (self.syncs and self.file.unsynced)

    def near_spill(self, size: int) -> bool:
        """Would a write of this size commit at once?"""
        return self.file.pending + size >= SPILL_BYTES or self.file.unfinished

    def read(self, offset: int, length: int) -> bytes:
        return self.file.read(offset, length)

    def write(self, offset: int, data: bytes) -> int:
        if not self.writable:
            raise BadHandle("not open for writing")
        if self.appends:
            self.file.append(data, self.id)
        else:
            self.write_at(offset, data)
        return len(data)

    def truncate(self, size: int) -> None:
        """ftruncate(2), and O_TRUNC at open: committed at the next flush, so that what follows is one version."""
        if not self.writable:
            raise Invalid("not open for writing")
        if self.file.now().size != size:
            self.file.edit(("t", size), self.id)
            self.dirty = True

    def allocate(self, mode: int, offset: int, length: int) -> None:
        """fallocate(2): plain, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE. Room is never set
        aside. Raises NotSupported for other modes, and for a large range in the middle of a file."""
        if mode not in (0, KEEP_SIZE, KEEP_SIZE | PUNCH_HOLE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE):
            raise NotSupported("this mode of fallocate")
        if not self.writable:
            raise BadHandle("not open for writing")
        size = self.file.now().size
        if mode & (PUNCH_HOLE | ZERO_RANGE) and offset < size:
            if offset + length >= size:
                self.truncate(offset)
                self.truncate(size)
            elif length > _ZEROS:
                raise NotSupported(f"zeroing more than {_ZEROS} bytes in the middle of a file")
            else:
                self.write_at(offset, bytes(length))
        if not mode & KEEP_SIZE and offset + length > size:
            self.truncate(offset + length)

    def write_at(self, offset: int, data: bytes) -> None:
        """At this offset, whatever O_APPEND says."""
        self.file.edit(("w", offset, data), self.id)
        self.dirty = True

    def flush(self) -> None:
        if self.dirty:
            self.file.commit(self.id)
            self.dirty = False
        if self.syncs and self.file.unsynced:
            self.file.sync()

    def fsync(self) -> None:
        """Also what others have committed to this file, and whoever's edits wait on this mount."""
        self.file.commit(self.id)
        self.dirty = False
        self.file.sync()

    def release(self) -> None:
        """The last close. Pages that mmap dirtied after the flush arrive just before it: commit them too."""
        try:
            self.flush()
        except AvmError as e:
            log.error("bytes written to node %d after its last flush are lost: %s", self.file.node, e)
        finally:
            self._released(self.file)


def _with(node: Node, *, size: int, mtime: int, ctime: int) -> Node:
    return Node(
        node.id, node.parent, node.name, node.kind, node.mode, node.uid, node.gid, size, node.atime, mtime, ctime,
        node.scope, node.document, node.expires,
    )  # fmt: skip
