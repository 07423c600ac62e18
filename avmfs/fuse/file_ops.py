"""Operations on open files: opening, reading, writing, closing.

Owns what these requests mean, as calls of handles. What is asked of a real file with nothing unusual about it is
answered from the request where it lies, in the thread that leads (``Session.answer_from`` tells what happens while it
commits); all else comes as a ``Request``, and runs where it may block if it has to.
"""

from __future__ import annotations

import os
import stat

from avmfs.errors import AvmError, Invalid
from avmfs.fuse import protocol as p
from avmfs.fuse.entry_cache import EntryCache
from avmfs.fuse.handles import Handles
from avmfs.fuse.inodes import Inodes
from avmfs.fuse.page_cache import PageCache
from avmfs.fuse.protocol import Op
from avmfs.fuse.request import VIRTUAL, Later, Request
from avmfs.fuse.session import Session
from avmfs.store.client.inflight import REQUEST
from avmfs.vfs.address import Real
from avmfs.vfs.live_handle import LiveHandle
from avmfs.vfs.locks import LockTable
from avmfs.vfs.open_file import FileHandle
from avmfs.vfs.tree import Handle, Tree
from avmfs.vfs.virtual_handles import VirtualHandle

_BODY = p.IN_HEADER.size
_DATA = _BODY + p.WRITE_IN.size
_SET_IDS = stat.S_ISUID | stat.S_ISGID
_WRITES = os.O_ACCMODE | os.O_TRUNC


class FileOps:
    """See the module."""

    def __init__(
        self,
        session: Session,
        tree: Tree,
        numbers: Inodes,
        replies: EntryCache,
        handles: Handles,
        pages: PageCache,
        locks: LockTable,
    ) -> None:
        self._session, self._tree, self._numbers = session, tree, numbers
        self._replies, self._handles, self._pages, self._locks = replies, handles, pages, locks
        self._once = tree.memory.store.once
        session.answers({Op.OPEN: self._open_again, Op.READ: self._read_again, Op.WRITE: self._write_now})
        session.answers({Op.FLUSH: self._flush_now, Op.RELEASE: self._release_unwritten})
        session.serves({Op.OPEN: self._open, Op.READ: self._read, Op.WRITE: self._write})
        session.serves({Op.FLUSH: self._flush, Op.RELEASE: self._release})
        session.serves({Op.CREATE: self._create, Op.FSYNC: self._fsync, Op.FALLOCATE: self._fallocate}, committing=True)
        session.serves({Op.LSEEK: self._lseek}, blocking=True)

    # At once: a real file -----------------------------------------------------------------------------

    def _open_again(self, unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        flags, open_flags = p.OPEN_IN.unpack_from(view, _BODY)
        if self._replies.late(node):
            self._session.drop_attributes(node)
        if flags & _WRITES:
            return None if node & VIRTUAL else self._open_to_write(unique, node, flags, open_flags)
        version = self._replies.known(node)
        if version is None or (self._tree.sources.any and self._tree.sources.awaits(self._tree.peek(node))):
            return None
        number = self._handles.keep(self._tree.open_known(node), unique)
        if self._pages.keep(node, version):
            return p.OPEN_REPLY.pack(p.OPEN_REPLY.size, 0, unique, number, p.FOPEN_KEEP_CACHE, 0)
        self._pages.dropped(node, number, version)
        return p.OPEN_REPLY.pack(p.OPEN_REPLY.size, 0, unique, number, 0, 0)

    def _read_again(self, unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        fh, offset, length, _, _, _, _ = p.READ_IN.unpack_from(view, _BODY)
        handle = self._handles.find(fh)
        if type(handle) is not FileHandle or handle.file.edits:
            return None
        self._pages.heard(node, fh)
        data = handle.read(offset, length)
        return p.OUT_HEADER.pack(p.OUT_HEADER.size + len(data), 0, unique) + data

    def _open_to_write(self, unique: int, node: int, flags: int, open_flags: int) -> bytes | None:
        found = self._tree.peek(node)
        if self._tree.sources.any and self._tree.sources.awaits(found):
            return None
        if open_flags & p.OPEN_KILL_SUIDGID and found.mode & _SET_IDS:
            return None
        handle = self._tree.open_file(found, flags)
        number = self._handles.keep(handle, unique)
        return p.OPEN_REPLY.pack(p.OPEN_REPLY.size, 0, unique, number, p.FOPEN_DIRECT_IO if handle.direct else 0, 0)

    def _write_now(self, unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        fh, offset, length, write_flags, _, flags, _ = p.WRITE_IN.unpack_from(view, _BODY)
        handle = self._handles.find(fh)
        if (
            type(handle) is not FileHandle
            or not handle.writable
            or flags & os.O_DSYNC
            or write_flags & p.WRITE_KILL_SUIDGID
            or handle.file.near_spill(length)
        ):
            return None
        data = bytes(view[_DATA : _DATA + length])
        self._pages.wrote(node)
        if flags & os.O_APPEND and not write_flags & p.WRITE_CACHE:
            try:
                with self._once(REQUEST, unique):
                    handle.append(data)
                    # Inside: who was killed with the append done and not answered is asked for it again.
                    self._session.send(p.WRITE_REPLY.pack(p.WRITE_REPLY.size, 0, unique, length, 0))
            except AvmError as e:
                return p.OUT_HEADER.pack(p.OUT_HEADER.size, -e.code, unique)
            return b""
        handle.write_at(offset, data, mapped=bool(write_flags & p.WRITE_CACHE))
        return p.WRITE_REPLY.pack(p.WRITE_REPLY.size, 0, unique, length, 0)

    def _flush_now(self, unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        fh, _, _, owner = p.FLUSH_IN.unpack_from(view, _BODY)
        handle = self._handles.find(fh)
        if type(handle) is not FileHandle:
            return None
        self._pages.heard(node, fh)
        if handle.pending:
            try:
                if handle.file.edits:  # whose commit is work of its own
                    handle.flush()
                else:
                    with self._once(REQUEST, unique):
                        handle.flush()
            except AvmError as e:
                self._locks.forget(handle.file.node, owner, "range")
                return p.OUT_HEADER.pack(p.OUT_HEADER.size, -e.code, unique)
        self._locks.forget(handle.file.node, owner, "range")  # close(2) drops the process' fcntl locks, if it fails too
        return p.OUT_HEADER.pack(p.OUT_HEADER.size, 0, unique)

    def _release_unwritten(self, unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        fh, _, flags, owner = p.RELEASE_IN.unpack_from(view, _BODY)
        handle = self._handles.find(fh)
        if type(handle) is not FileHandle or handle.pending:
            return None
        self._pages.heard(node, fh)
        handle.release()
        if flags & p.RELEASE_FLOCK_UNLOCK:  # before the next request: the kernel may give the owner's number anew
            self._locks.forget(handle.file.node, owner, "whole")
        self._locks.closed(fh)
        self._handles.drop(fh)
        return p.OUT_HEADER.pack(p.OUT_HEADER.size, 0, unique)

    # Whatever it is -----------------------------------------------------------------------------------

    def _open(self, request: Request) -> bytes:
        flags, open_flags = p.OPEN_IN.unpack_from(request.body)
        if (given := self._handles.given(request.unique)) is not None:
            return _opened(given, self._handles[given])
        found = self._numbers.address(request.node)
        if isinstance(found, Real):
            if self._tree.injection is not None and not self._session.may_block():
                raise Later  # it reads the whole file
            if self._tree.sources.awaits(found.node):
                if not self._session.may_block():
                    raise Later
                request.abandonable = not flags & os.O_TRUNC  # which waits for nothing, and is given to the source
            if open_flags & p.OPEN_KILL_SUIDGID:
                self._drop_set_ids(request, found.node.mode)
        elif not self._session.may_block():
            raise Later
        else:
            request.abandonable = flags & os.O_ACCMODE == os.O_RDONLY
        handle = self._tree.open(found, flags)
        if not self._session.keeps(request):  # interrupted meanwhile: nobody will release it
            handle.release()
            return b""
        return self._kept(handle, request)

    def _create(self, request: Request) -> bytes:
        flags, mode, _, _ = p.CREATE_IN.unpack_from(request.body)
        name = request.body[p.CREATE_IN.size :].rstrip(b"\0")
        self._replies.will_be_cached(request.node, name)
        if (given := self._handles.given(request.unique)) is not None:
            before = self._handles[given]
            if isinstance(before, FileHandle | LiveHandle):
                node = self._tree.node(before.node if isinstance(before, LiveHandle) else before.file.node)
                return self._replies.made(node) + _opened(given, before)
        found, handle = self._tree.create(
            self._numbers.directory(request.node), name, mode & 0o7777, flags, request.caller
        )
        return self._replies.made(found) + self._kept(handle, request)

    def _drop_set_ids(self, request: Request, mode: int) -> None:
        if mode & _SET_IDS:
            if not self._session.may_block():
                raise Later
            self._tree.drop_set_ids(request.node, request.caller)

    def _kept(self, handle: Handle, request: Request) -> bytes:
        return _opened(self._handles.keep(handle, request.unique), handle)

    def _read(self, request: Request) -> bytes:
        fh, offset, size, _, _, _, _ = p.READ_IN.unpack_from(request.body)
        handle = self._handles[fh]
        if isinstance(handle, VirtualHandle) and not self._session.may_block():
            raise Later  # reaching the end of a view may commit a mark
        if not isinstance(handle, VirtualHandle) or handle.ended:
            return handle.read(offset, size)
        piece = handle.read(offset, size)
        if handle.ended:
            self._handles.went_on(fh, handle)
        elif handle.reached:
            self._handles.reached(fh, handle.reached)
        return piece

    def _write(self, request: Request) -> bytes:
        fh, offset, size, write_flags, _, flags, _ = p.WRITE_IN.unpack_from(request.body)
        handle = self._handles[fh]
        # fcntl(2) may have changed the flags since open; pages that mmap dirtied have a place of their own.
        mapped, sync = bool(write_flags & p.WRITE_CACHE), bool(flags & os.O_DSYNC)
        append = bool(flags & os.O_APPEND) and not mapped
        if not self._session.may_block() and (
            append or sync or isinstance(handle, VirtualHandle) or handle.file.near_spill(size)
        ):
            raise Later
        self._pages.wrote(request.node)
        if write_flags & p.WRITE_KILL_SUIDGID and isinstance(handle, FileHandle):
            self._drop_set_ids(request, handle.file.now().mode)
        data = request.body[p.WRITE_IN.size : p.WRITE_IN.size + size]
        if not isinstance(handle, VirtualHandle):
            return p.WRITE_OUT.pack(handle.write(offset, data, append=append, sync=sync, mapped=mapped), 0)
        if not self._handles.written(fh, request.unique):
            try:
                handle.write(offset, data, append=append, sync=sync)
            except AvmError:
                self._handles.went_on(fh, handle)  # what was refused stays so
                raise
            self._handles.went_on(fh, handle, request.unique, handle.framed(offset, data, append=append))
        return p.WRITE_OUT.pack(len(data), 0)

    def _flush(self, request: Request) -> bytes:
        fh, _, _, owner = p.FLUSH_IN.unpack_from(request.body)
        handle = self._handles[fh]
        if not self._session.may_block() and (handle.pending or isinstance(handle, FileHandle)):
            raise Later
        try:
            handle.flush()
        finally:
            if isinstance(handle, FileHandle):
                self._locks.forget(handle.file.node, owner, "range")
            elif handle.writable:
                self._handles.went_on(fh, handle)  # what was refused too is no part of what comes next
        return b""

    def _fsync(self, request: Request) -> bytes:
        fh = p.FSYNC_IN.unpack_from(request.body)[0]
        handle = self._handles[fh]
        request.abandonable = isinstance(handle, LiveHandle)
        try:
            handle.fsync()
        finally:
            if isinstance(handle, VirtualHandle) and handle.writable:
                self._handles.went_on(fh, handle)
        return b""

    def _release(self, request: Request) -> bytes:
        fh, _, flags, owner = p.RELEASE_IN.unpack_from(request.body)
        if request.resent and self._handles.find(fh) is None:
            return b""  # a predecessor had released it
        handle = self._handles[fh]
        if not self._session.may_block() and (handle.pending or isinstance(handle, FileHandle)):
            raise Later
        handle.release()
        if isinstance(handle, FileHandle) and flags & p.RELEASE_FLOCK_UNLOCK:
            self._locks.forget(handle.file.node, owner, "whole")
        self._locks.closed(fh)
        self._handles.drop(fh)
        return b""

    def _fallocate(self, request: Request) -> bytes:
        fh, offset, length, mode, _ = p.FALLOCATE_IN.unpack_from(request.body)
        handle = self._handles[fh]
        self._pages.wrote(request.node)
        self._tree.allocate(handle, mode, offset, length)
        if request.caller.uid and isinstance(handle, FileHandle):  # the kernel sends no flag for it, unlike for a write
            self._drop_set_ids(request, handle.file.now().mode)
        return b""

    def _lseek(self, request: Request) -> bytes:
        fh, offset, whence, _ = p.LSEEK_IN.unpack_from(request.body)
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise Invalid(f"lseek: whence {whence}")
        return p.LSEEK_OUT.pack(self._tree.seek(self._handles[fh], offset, hole=whence == os.SEEK_HOLE))


def _opened(number: int, handle: Handle) -> bytes:
    return p.OPEN_OUT.pack(number, p.FOPEN_DIRECT_IO if handle.direct else 0, 0)
