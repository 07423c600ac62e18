"""The Linux front end: the kernel's FUSE protocol, spoken on /dev/fuse.

Owns the request loop. One thread reads; what cannot wait is answered there, everything that commits, renders or
may block goes to a pool and is answered when it is done, so a slow view or a held lock delays nobody else. The
number of a real node in the kernel is its id in the store, so nothing is kept for it; virtual nodes live in
a table until the kernel forgets them. All cache timeouts are 0: every lookup asks, so one agent's change is
another's next result.

Compared with libfuse's high-level interface this knows which inode a request is about: fstat(2) of an unlinked file
works, a rename over an open file is one atomic step, a waiting open can be interrupted.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import os
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from avmfs.errors import AvmError, Invalid, NameTooLong, NotPermitted
from avmfs.fuse import device
from avmfs.fuse import protocol as p
from avmfs.fuse.pool import Pool
from avmfs.fuse.protocol import Op
from avmfs.paths import NAME_MAX, parse_view
from avmfs.vfs.address import ASK, Address, Alias, Place, Real
from avmfs.vfs.files import FileHandle
from avmfs.vfs.locks import LockTable
from avmfs.vfs.nodes import VirtualHandle
from avmfs.vfs.tree import Attributes, Caller, Handle, Tree

log = logging.getLogger(__name__)

MAX_WRITE = 1 << 20
_BUFFER = MAX_WRITE + 64 * 1024
_NS = 1_000_000_000
_WHOLE = (1 << 63) - 1  # the kernel's OFFSET_MAX: a lock to the end of file
_VIRTUAL = 1 << 63  # set in the number of every node that is not the store's
_PLACES = {b"tell": 8, ASK: 9, b"shared": 10, b"private": 11}  # below 16: never a store id
_FIXED = {number: name for name, number in _PLACES.items()}


class Request:
    """One request of the kernel. ``answered`` guards against a second reply after an interrupt."""

    __slots__ = ("abandonable", "answered", "body", "gid", "interrupted", "node", "op", "uid", "unique")

    def __init__(self, op: int, unique: int, node: int, uid: int, gid: int, body: bytes) -> None:
        self.op, self.unique, self.node, self.uid, self.gid, self.body = op, unique, node, uid, gid, body
        self.answered = self.interrupted = self.abandonable = False

    @property
    def caller(self) -> Caller:
        return Caller(self.uid, self.gid)


class Later(Exception):
    """Raised by a handler in the reading thread: the request may block, run it again in the pool."""


class LinuxMount:
    """One mount on an open device. ``serve`` returns when it is unmounted."""

    def __init__(self, tree: Tree, descriptor: int, runtime_dir: Path) -> None:
        self.tree = tree
        self._fd = descriptor
        self._locks = LockTable(runtime_dir / "locks", self._interrupted)
        self._pool = Pool()
        self._numbers = itertools.count(1)
        self._handles: dict[int, Handle] = {}
        self._listings: dict[int, tuple[Address, list[tuple[bytes, int, int]]]] = {}
        self._virtual: dict[int, tuple[Address, int]] = {}
        self._keys: dict[Address, int] = {}
        self._table = threading.Lock()
        self._pending: dict[int, Request] = {}
        self._current = threading.local()
        self._pooled = frozenset({
            Op.SETATTR, Op.SYMLINK, Op.MKNOD, Op.MKDIR, Op.UNLINK, Op.RMDIR, Op.RENAME, Op.RENAME2, Op.CREATE, Op.FSYNC,
            Op.SETLK, Op.SETLKW, Op.FALLOCATE,
        })  # fmt: skip
        self._handlers: dict[int, Callable[[Request], bytes]] = {
            Op.LOOKUP: self._lookup, Op.GETATTR: self._getattr, Op.SETATTR: self._setattr,
            Op.READLINK: self._readlink, Op.SYMLINK: self._symlink, Op.MKNOD: self._mknod, Op.MKDIR: self._mkdir,
            Op.UNLINK: self._unlink, Op.RMDIR: self._rmdir, Op.RENAME: self._rename, Op.RENAME2: self._rename,
            Op.LINK: self._link, Op.OPEN: self._open, Op.READ: self._read, Op.WRITE: self._write,
            Op.STATFS: self._statfs, Op.RELEASE: self._release, Op.FSYNC: self._fsync, Op.FLUSH: self._flush,
            Op.OPENDIR: self._opendir, Op.READDIR: self._readdir, Op.RELEASEDIR: self._releasedir,
            Op.FSYNCDIR: lambda request: b"", Op.GETLK: self._getlk, Op.SETLK: self._setlk, Op.SETLKW: self._setlk,
            Op.CREATE: self._create, Op.FALLOCATE: self._fallocate, Op.DESTROY: lambda request: b"",
        }  # fmt: skip

    # The loop ------------------------------------------------------------------------------------------

    def serve(self, ready: Callable[[], None]) -> None:
        """Answer requests until the mount is gone. ``ready`` is called once the kernel has been greeted."""
        buffer = bytearray(_BUFFER)
        view = memoryview(buffer)
        try:
            while True:
                try:
                    size = os.readv(self._fd, [buffer])
                except OSError as e:
                    if e.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                        continue  # ENOENT: the request was interrupted before it could be read
                    if e.errno == errno.ENODEV:
                        return
                    raise
                _, op, unique, node, uid, gid, _, _, _ = p.IN_HEADER.unpack_from(buffer)
                request = Request(op, unique, node, uid, gid, bytes(view[p.IN_HEADER.size : size]))
                if op == Op.INIT:
                    self._greet(request)
                    ready()
                elif op in (Op.FORGET, Op.BATCH_FORGET):
                    self._forget(request)
                elif op == Op.INTERRUPT:
                    self._interrupt(*p.INTERRUPT_IN.unpack_from(request.body))
                elif op in self._pooled:
                    self._defer(request)
                else:
                    self._handle(request)
        finally:
            self._end()

    def _handle(self, request: Request) -> None:
        """Run a request and reply. The boundary: no error leaves here but Later, and that only to be deferred."""
        handler = self._handlers.get(request.op)
        try:
            if handler is None:
                self._reply(request, errno.ENOSYS)
                return
            self._reply(request, 0, handler(request))
        except Later:
            self._defer(request)
        except AvmError as e:
            self._reply(request, e.code)
        except OSError as e:
            log.warning("request %d on node %d: %s", request.op, request.node, e)
            self._reply(request, e.errno or errno.EIO)
        except Exception:  # one request must not end the mount
            log.exception("request %d on node %d failed", request.op, request.node)
            self._reply(request, errno.EIO)

    def _defer(self, request: Request) -> None:
        self._pending[request.unique] = request
        self._pool.submit(lambda: self._deferred(request))

    def _deferred(self, request: Request) -> None:
        self._current.request = request
        try:
            self._handle(request)
        finally:
            self._current.request = None
            self._pending.pop(request.unique, None)

    def _blockable(self) -> bool:
        """Is this a pool thread, which may wait?"""
        return getattr(self._current, "request", None) is not None

    def _reply(self, request: Request, error: int, body: bytes = b"") -> None:
        with self._table:
            if request.answered:
                return
            request.answered = True
        header = p.OUT_HEADER.pack(p.OUT_HEADER.size + len(body), -error, request.unique)
        try:
            os.writev(self._fd, [header, body] if body else [header])
        except OSError as e:
            if e.errno not in (errno.ENOENT, errno.ENODEV):  # interrupted for good; unmounted
                raise

    def _greet(self, request: Request) -> None:
        major, minor, readahead, low = p.INIT_IN.unpack_from(request.body)
        offered = low
        if low & p.Init.INIT_EXT and len(request.body) >= 20:
            offered |= int.from_bytes(request.body[16:20], sys.byteorder) << 32
        if major != p.MAJOR:
            raise Invalid(f"the kernel speaks FUSE {major}.{minor}, this front end {p.MAJOR}.x")
        wanted = int(
            p.Init.ASYNC_READ | p.Init.POSIX_LOCKS | p.Init.ATOMIC_O_TRUNC | p.Init.BIG_WRITES | p.Init.FLOCK_LOCKS
            | p.Init.AUTO_INVAL_DATA | p.Init.PARALLEL_DIROPS | p.Init.MAX_PAGES | p.Init.INIT_EXT
            | p.Init.DIRECT_IO_ALLOW_MMAP
        ) & offered  # fmt: skip
        self._reply(
            request, 0,
            p.INIT_OUT.pack(
                p.MAJOR, min(minor, p.MINOR), readahead, wanted & 0xFFFFFFFF, 64, 48, MAX_WRITE, 1, MAX_WRITE // 4096, 0,
                wanted >> 32, 0, 0,
            ),
        )  # fmt: skip

    def _interrupt(self, unique: int) -> None:
        """The client gave up. A waiting open is answered at once; what it renders is thrown away."""
        request = self._pending.get(unique)
        if request is not None:
            request.interrupted = True
            if request.abandonable:
                self._reply(request, errno.EINTR)

    def _interrupted(self) -> bool:
        request: Request | None = getattr(self._current, "request", None)
        return request is not None and request.interrupted

    def _end(self) -> None:
        self.tree.commit_all()
        self._locks.close()
        os.close(self._fd)

    # Nodes ---------------------------------------------------------------------------------------------

    def _at(self, node: int) -> Address:
        """What a number stands for: a store's node as it is now, or a virtual one."""
        if _is_real(node):
            return self.tree.node(node)
        if node & _VIRTUAL:
            with self._table:
                return self._virtual[node][0]
        return self._fixed(node)

    def _fixed(self, node: int) -> Address:
        name = _FIXED[node]
        return Place(name) if name in (b"tell", ASK) else self.tree.lookup(self.tree.node(1), name)[0]

    def _number(self, found: Address) -> int:
        """The number of a looked-up node; for a virtual one, the kernel's count of it grows by one."""
        if isinstance(found, Real):
            return found.node.id
        if isinstance(found, (Place, Alias)) and found.name in _PLACES:
            return _PLACES[found.name]
        with self._table:
            number = self._keys.get(found)
            if number is None:
                number = self._keys[found] = _VIRTUAL | next(self._numbers)
                self._virtual[number] = (found, 0)
            address, count = self._virtual[number]
            self._virtual[number] = (address, count + 1)
        return number

    def _forget(self, request: Request) -> None:
        if request.op == Op.FORGET:
            gone = [(request.node, *p.FORGET_IN.unpack_from(request.body))]
        else:
            count, _ = p.BATCH_FORGET_IN.unpack_from(request.body)
            size = p.BATCH_FORGET_IN.size
            gone = [p.FORGET_ONE.unpack_from(request.body, size + i * p.FORGET_ONE.size) for i in range(count)]
        with self._table:
            for node, lookups in gone:
                if node & _VIRTUAL and node in self._virtual:
                    found, count = self._virtual[node]
                    if count <= lookups:
                        del self._virtual[node], self._keys[found]
                    else:
                        self._virtual[node] = (found, count - lookups)

    def _entry(self, found: Address, attributes: Attributes) -> bytes:
        return p.ENTRY_OUT.pack(self._number(found), 0, 0, 0, 0, 0) + _attr(attributes)

    # Looking -------------------------------------------------------------------------------------------

    def _lookup(self, request: Request) -> bytes:
        name = request.body.rstrip(b"\0")
        where = self._at(request.node)
        if len(name) > NAME_MAX and isinstance(where, Real) and parse_view(name) is None:
            raise NameTooLong()  # the kernel allows FUSE longer ones, for queries
        return self._entry(*self.tree.lookup(where, name))

    def _getattr(self, request: Request) -> bytes:
        self._not_contended(request.node)
        if _is_real(request.node):
            return p.ATTR_OUT.pack(0, 0, 0) + _attr(self.tree.attributes_of(request.node))
        return p.ATTR_OUT.pack(0, 0, 0) + _attr(self.tree.attributes(self._at(request.node)))

    def _setattr(self, request: Request) -> bytes:
        (valid, _, fh, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _) = p.SETATTR_IN.unpack_from(
            request.body
        )
        found = self._at(request.node)
        handle = self._handles.get(fh) if valid & p.SetAttr.FH else None
        if valid & p.SetAttr.SIZE:
            if handle is not None:
                handle.truncate(size)
            else:
                self.tree.truncate(found, size)
        now = self.tree.memory.now()
        changes = {
            "mode": mode & 0o7777 if valid & p.SetAttr.MODE else None,
            "uid": uid if valid & p.SetAttr.UID else None,
            "gid": gid if valid & p.SetAttr.GID else None,
            "atime": _chosen(valid, p.SetAttr.ATIME, p.SetAttr.ATIME_NOW, now, atime, atime_ns),
            "mtime": _chosen(valid, p.SetAttr.MTIME, p.SetAttr.MTIME_NOW, now, mtime, mtime_ns),
        }
        if any(value is not None for value in changes.values()):
            self.tree.set_attributes(found, handle, **changes)
        return p.ATTR_OUT.pack(0, 0, 0) + _attr(self.tree.attributes(found))

    def _readlink(self, request: Request) -> bytes:
        return self.tree.readlink(self._at(request.node))

    def _statfs(self, request: Request) -> bytes:
        found = self.tree.statfs()
        return p.STATFS_OUT.pack(
            found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree, found.f_bsize, 255,
            found.f_frsize, 0,
        )  # fmt: skip

    # Names ---------------------------------------------------------------------------------------------

    def _made(self, number: int) -> bytes:
        found = self.tree.node(number)
        return self._entry(found, self.tree.attributes(found))

    def _mkdir(self, request: Request) -> bytes:
        mode, _ = p.MKDIR_IN.unpack_from(request.body)
        name = request.body[p.MKDIR_IN.size :].rstrip(b"\0")
        return self._made(self.tree.mkdir(self._at(request.node), name, mode & 0o7777, request.caller))

    def _symlink(self, request: Request) -> bytes:
        name, target, _ = request.body.split(b"\0", 2)
        return self._made(self.tree.symlink(self._at(request.node), name, target, request.caller))

    def _mknod(self, request: Request) -> bytes:
        mode, _, _, _ = p.MKNOD_IN.unpack_from(request.body)
        if not stat.S_ISREG(mode):
            raise NotPermitted("device nodes, fifos and sockets cannot be kept")
        name = request.body[p.MKNOD_IN.size :].rstrip(b"\0")
        found, handle = self.tree.create(
            self._at(request.node), name, mode & 0o7777, os.O_EXCL | os.O_WRONLY, request.caller
        )
        handle.release()
        return self._entry(found, self.tree.attributes(found))

    def _create(self, request: Request) -> bytes:
        flags, mode, _, _ = p.CREATE_IN.unpack_from(request.body)
        name = request.body[p.CREATE_IN.size :].rstrip(b"\0")
        found, handle = self.tree.create(self._at(request.node), name, mode & 0o7777, flags, request.caller)
        return self._entry(found, self.tree.attributes(found)) + self._kept(handle)

    def _unlink(self, request: Request) -> bytes:
        self.tree.unlink(self._at(request.node), request.body.rstrip(b"\0"))
        return b""

    def _rmdir(self, request: Request) -> bytes:
        self.tree.rmdir(self._at(request.node), request.body.rstrip(b"\0"))
        return b""

    def _rename(self, request: Request) -> bytes:
        flags = 0
        if request.op == Op.RENAME2:
            directory, flags, _ = p.RENAME2_IN.unpack_from(request.body)
            names = request.body[p.RENAME2_IN.size :]
        else:
            (directory,) = p.RENAME_IN.unpack_from(request.body)
            names = request.body[p.RENAME_IN.size :]
        name, new_name, _ = names.split(b"\0", 2)
        self.tree.rename(self._at(request.node), name, self._at(directory), new_name, flags)
        return b""

    def _link(self, request: Request) -> bytes:
        raise NotPermitted("hard links are not supported")

    # Bytes ---------------------------------------------------------------------------------------------

    def _open(self, request: Request) -> bytes:
        flags, _ = p.OPEN_IN.unpack_from(request.body)
        found = self._at(request.node)
        if isinstance(found, Real):
            self._not_contended(request.node)
        elif not self._blockable():
            raise Later
        else:
            request.abandonable = flags & os.O_ACCMODE == os.O_RDONLY
        handle = self.tree.open(found, flags)
        if request.answered:  # interrupted meanwhile: nobody will release it
            handle.release()
            return b""
        return self._kept(handle)

    def _kept(self, handle: Handle) -> bytes:
        number = next(self._numbers)
        self._handles[number] = handle
        return p.OPEN_OUT.pack(number, p.FOPEN_DIRECT_IO if handle.direct else 0, 0)

    def _read(self, request: Request) -> bytes:
        fh, offset, size, _, _, _, _ = p.READ_IN.unpack_from(request.body)
        handle = self._handles[fh]
        if isinstance(handle, VirtualHandle) and not self._blockable():
            raise Later  # reaching the end of a view may commit a mark
        self._not_contended(request.node)
        return handle.read(offset, size)

    def _write(self, request: Request) -> bytes:
        fh, offset, size, _, _, _, _ = p.WRITE_IN.unpack_from(request.body)
        handle = self._handles[fh]
        if not self._blockable() and (handle.appends or isinstance(handle, VirtualHandle) or handle.near_spill(size)):
            raise Later
        self._not_contended(request.node)
        start = p.WRITE_IN.size
        return p.WRITE_OUT.pack(handle.write(offset, request.body[start : start + size]), 0)

    def _flush(self, request: Request) -> bytes:
        fh, _, _, owner = p.FLUSH_IN.unpack_from(request.body)
        handle = self._handles[fh]
        if not self._blockable() and handle.pending:
            raise Later
        handle.flush()
        if isinstance(handle, FileHandle):
            self._locks.forget(handle.file.node, owner, "range")  # close(2) drops the process' fcntl locks
        return b""

    def _fsync(self, request: Request) -> bytes:
        self._handles[p.FSYNC_IN.unpack_from(request.body)[0]].fsync()
        return b""

    def _release(self, request: Request) -> bytes:
        fh, _, flags, owner = p.RELEASE_IN.unpack_from(request.body)
        handle = self._handles[fh]
        if not self._blockable() and handle.pending:
            raise Later
        del self._handles[fh]
        if isinstance(handle, FileHandle) and flags & p.RELEASE_FLOCK_UNLOCK:
            self._locks.forget(handle.file.node, owner, "whole")
        handle.release()
        return b""

    def _fallocate(self, request: Request) -> bytes:
        fh, offset, length, mode, _ = p.FALLOCATE_IN.unpack_from(request.body)
        self.tree.allocate(self._handles[fh], mode, offset, length)
        return b""

    def _not_contended(self, node: int) -> None:
        """A commit of this file may be under way: whoever must wait for it waits in the pool."""
        if not self._blockable() and self.tree.contended(node):
            raise Later

    # Directories ---------------------------------------------------------------------------------------

    def _opendir(self, request: Request) -> bytes:
        number = next(self._numbers)
        self._listings[number] = (self._at(request.node), [])
        return p.OPEN_OUT.pack(number, 0, 0)

    def _readdir(self, request: Request) -> bytes:
        """Streams: an entry's offset is its place in a list that is made when the reader (re)starts at 0."""
        fh, offset, size, _, _, _, _ = p.READ_IN.unpack_from(request.body)
        where, entries = self._listings[fh]
        if offset == 0:
            if not self._blockable():
                raise Later  # a large directory takes its time
            entries = [(b".", 0, stat.S_IFDIR), (b"..", 0, stat.S_IFDIR), *self.tree.names(where)]
            self._listings[fh] = (where, entries)
        reply = bytearray()
        for place in range(offset, len(entries)):
            name, ino, kind = entries[place]
            if len(reply) + p.DIRENT.size + len(name) + 8 > size:
                break
            reply += p.dirent(ino or 1, place + 1, kind, name)
        return bytes(reply)

    def _releasedir(self, request: Request) -> bytes:
        self._listings.pop(p.RELEASE_IN.unpack_from(request.body)[0], None)
        return b""

    # Locks ---------------------------------------------------------------------------------------------

    def _getlk(self, request: Request) -> bytes:
        fh, owner, start, end, kind, _, _, _ = p.LK_IN.unpack_from(request.body)
        handle = self._file(fh)
        found = self._locks.conflict(handle.file.node, owner, kind, start, _length(start, end))
        if found is None:
            return p.LK_OUT.pack(0, 0, fcntl.F_UNLCK, 0)
        kind, at, length = found
        return p.LK_OUT.pack(at, _WHOLE if length == 0 else at + length - 1, kind, 0)

    def _setlk(self, request: Request) -> bytes:
        fh, owner, start, end, kind, _, flags, _ = p.LK_IN.unpack_from(request.body)
        node, wait = self._file(fh).file.node, request.op == Op.SETLKW
        if flags & p.LK_FLOCK:
            operation = {fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_WRLCK: fcntl.LOCK_EX, fcntl.F_UNLCK: fcntl.LOCK_UN}[kind]
            self._locks.set_whole(node, owner, operation | (0 if wait else fcntl.LOCK_NB))
        else:
            self._locks.set_range(node, owner, kind, start, _length(start, end), wait=wait)
        return b""

    def _file(self, fh: int) -> FileHandle:
        handle = self._handles[fh]
        if not isinstance(handle, FileHandle):
            raise Invalid("a view cannot be locked")
        return handle


def mount(
    tree: Tree, mountpoint: Path, *, read_only: bool, allow_other: bool, ready: Callable[[], None], runtime_dir: Path
) -> None:
    """Mount and serve until unmounted."""
    options = ["fsname=avmfs", "subtype=avmfs", "nosuid", "nodev", "default_permissions", "ro" if read_only else "rw"]
    descriptor = device.mount(mountpoint, [*options, "allow_other"] if allow_other else options)
    LinuxMount(tree, descriptor, runtime_dir).serve(ready)


def _is_real(node: int) -> bool:
    return not node & _VIRTUAL and node not in _FIXED


def _attr(found: Attributes) -> bytes:
    (atime, atime_ns), (mtime, mtime_ns), (ctime, ctime_ns) = (
        divmod(found.atime, _NS), divmod(found.mtime, _NS), divmod(found.ctime, _NS)
    )  # fmt: skip
    mask = (1 << 64) - 1  # times before 1970 travel as two's complement
    return p.ATTR.pack(
        found.ino, found.size, found.blocks, atime & mask, mtime & mask, ctime & mask, atime_ns, mtime_ns, ctime_ns,
        found.mode, found.nlink, found.uid, found.gid, 0, 65536, 0,
    )  # fmt: skip


def _chosen(valid: int, given: int, at_once: int, now: int, seconds: int, nanoseconds: int) -> int | None:
    if valid & at_once:
        return now
    if not valid & given:
        return None
    if seconds >= 1 << 63:
        seconds -= 1 << 64
    return seconds * _NS + nanoseconds


def _length(start: int, end: int) -> int:
    return 0 if end >= _WHOLE else end - start + 1
