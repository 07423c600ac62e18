"""The Linux front end: the kernel's FUSE protocol, spoken on /dev/fuse.

Owns what each request means, as calls of ``vfs.Tree``; the loop is ``session``, node numbers are ``numbers``. What
commits, renders or may block runs in the session's pool, so a slow view or a held lock delays nobody else.

Caches: names (absent ones too) and attributes of real nodes may stay in the kernel for as long as the writer tells it
of every commit (``Store.feed_cache``); without that, on a ``strict`` mount and on kernels before protocol 7.44, all
timeouts are 0. Bytes are asked for anew at every open. Virtual nodes are never cached.

Compared with libfuse's high-level interface this knows which inode a request is about: fstat(2) of an unlinked file
works, a rename over an open file is one atomic step, a waiting open can be interrupted.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from avmfs.errors import Invalid, NotFound, NotPermitted
from avmfs.fuse import device
from avmfs.fuse import protocol as p
from avmfs.fuse.numbers import Numbers
from avmfs.fuse.protocol import Op
from avmfs.fuse.session import Handler, Later, Request, Session
from avmfs.store.schema import ROOT
from avmfs.vfs.address import Address, Real
from avmfs.vfs.attributes import Attributes
from avmfs.vfs.files import FileHandle
from avmfs.vfs.locks import LockTable
from avmfs.vfs.nodes import VirtualHandle
from avmfs.vfs.tree import Handle, Tree

CACHED_S = 60  # a safety net: notices end what is cached long before
UNSETTLED_NS = 1_000_000  # of a node that the kernel may not have yet: stat(2) is spared a second question
_NS = 1_000_000_000
_WHOLE = (1 << 63) - 1  # the kernel's OFFSET_MAX: a lock to the end of file


class LinuxMount:
    """One mount on an open device. ``serve`` returns when it is unmounted."""

    def __init__(self, tree: Tree, descriptor: int, runtime_dir: Path) -> None:
        self.tree = tree
        self._numbers = Numbers(tree)
        self._next = itertools.count(1)
        self._handles: dict[int, Handle] = {}
        self._listings: dict[int, tuple[Address, list[tuple[bytes, int, int]]]] = {}
        pooled = frozenset({
            Op.SETATTR, Op.SYMLINK, Op.MKNOD, Op.MKDIR, Op.UNLINK, Op.RMDIR, Op.RENAME, Op.RENAME2, Op.CREATE, Op.FSYNC,
            Op.SETLK, Op.SETLKW, Op.FALLOCATE,
        })  # fmt: skip
        handlers: dict[int, Handler] = {
            Op.LOOKUP: self._lookup, Op.GETATTR: self._getattr, Op.SETATTR: self._setattr,
            Op.READLINK: self._readlink, Op.SYMLINK: self._symlink, Op.MKNOD: self._mknod, Op.MKDIR: self._mkdir,
            Op.UNLINK: self._unlink, Op.RMDIR: self._rmdir, Op.RENAME: self._rename, Op.RENAME2: self._rename,
            Op.LINK: self._link, Op.OPEN: self._open, Op.READ: self._read, Op.WRITE: self._write,
            Op.STATFS: self._statfs, Op.RELEASE: self._release, Op.FSYNC: self._fsync, Op.FLUSH: self._flush,
            Op.OPENDIR: self._opendir, Op.READDIR: self._readdir, Op.RELEASEDIR: self._releasedir,
            Op.FSYNCDIR: lambda request: b"", Op.GETLK: self._getlk, Op.SETLK: self._setlk, Op.SETLKW: self._setlk,
            Op.CREATE: self._create, Op.FALLOCATE: self._fallocate, Op.DESTROY: lambda request: b"",
        }  # fmt: skip
        self._session = Session(descriptor, handlers, pooled, self._numbers.forget)
        self._locks = LockTable(runtime_dir / "locks", self._session.interrupted)

    def serve(self, ready: Callable[[], None], *, cached: bool) -> None:
        """Answer requests until the mount is gone. ``ready`` is called once the kernel has been greeted. ``cached``:
        let the kernel keep names and attributes while the writer tells it of every change."""
        over = threading.Event()

        def greeted() -> None:
            if cached and self._session.minor >= p.EPOCH_MINOR:
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
            self._session.descriptor, p.INC_EPOCH, p.INVAL_ATTRIBUTES, p.INVAL_NODE_AT, self._session.switch_caching,
            over,
        )  # fmt: skip

    def _validity(self, found: Address) -> int:
        """Seconds that the kernel may keep what it is told of a node: never longer than the node lives."""
        if not self._session.caching or not isinstance(found, Real):
            return 0
        if found.node.expires is None:
            return CACHED_S
        return max(0, min(CACHED_S, (found.node.expires - self.tree.memory.now()) // _NS))

    def _entry(self, found: Address, attributes: Attributes, *, made: bool = False) -> bytes:
        """The reply to LOOKUP and, of a ``made`` node, to CREATE and the like, whose attributes the kernel takes over
        whatever it has heard meanwhile. Notices about a node that it does not have yet are lost."""
        number, valid = self._numbers.number(found), self._validity(found)
        settled = self._numbers.settled(number)
        kept, ns = valid if settled and not made else 0, UNSETTLED_NS if valid and not settled else 0
        return p.ENTRY_OUT.pack(number, 0, valid, kept, 0, ns) + _attr(attributes)

    def _absent(self, where: Address, name: bytes) -> bytes:
        """A negative entry that may be kept: the epoch ends it when another mount makes the name. Not at the root and
        not for views, whose coming and going is in no log."""
        if not isinstance(where, Real) or where.node.id == ROOT or not self._session.caching or b":" in name:
            raise NotFound()
        return p.ENTRY_OUT.pack(0, 0, CACHED_S, 0, 0, 0) + bytes(p.ATTR.size)

    def _attributes(self, number: int, *, keep: bool) -> bytes:
        """The reply to GETATTR, and to SETATTR, which the kernel takes over whatever it has heard meanwhile."""
        found = self._numbers.address(number)
        return p.ATTR_OUT.pack(self._validity(found) if keep else 0, 0, 0) + _attr(self.tree.attributes(found))

    # Looking -------------------------------------------------------------------------------------------

    def _lookup(self, request: Request) -> bytes:
        name = request.body.rstrip(b"\0")
        where = self._numbers.address(request.node)
        try:
            return self._entry(*self.tree.lookup(where, name))
        except NotFound:
            return self._absent(where, name)

    def _getattr(self, request: Request) -> bytes:
        self._not_contended(request.node)
        self._numbers.settle(request.node)
        return self._attributes(request.node, keep=True)

    def _setattr(self, request: Request) -> bytes:
        (valid, _, fh, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _) = (
            p.SETATTR_IN.unpack_from(request.body)
        )
        found = self._numbers.address(request.node)
        handle = self._handles.get(fh) if valid & p.SetAttr.FH else None
        if valid & p.SetAttr.SIZE:
            if handle is not None:
                handle.truncate(size)
            else:
                self.tree.truncate(found, size)
        if valid & p.SetAttr.KILL_SUIDGID:
            self.tree.drop_set_ids(request.node, request.caller)
        now = self.tree.memory.now()
        changes = {
            "mode": mode & 0o7777 if valid & p.SetAttr.MODE else None,
            "uid": uid if valid & p.SetAttr.UID else None,
            "gid": gid if valid & p.SetAttr.GID else None,
            "atime": p.time_of(valid, p.SetAttr.ATIME, p.SetAttr.ATIME_NOW, now, atime, atime_ns),
            "mtime": p.time_of(valid, p.SetAttr.MTIME, p.SetAttr.MTIME_NOW, now, mtime, mtime_ns),
        }
        if any(value is not None for value in changes.values()):
            self.tree.set_attributes(found, handle, **changes)
        return self._attributes(request.node, keep=False)

    def _readlink(self, request: Request) -> bytes:
        return self.tree.readlink(self._numbers.address(request.node))

    def _statfs(self, request: Request) -> bytes:
        found = self.tree.statfs()
        return p.STATFS_OUT.pack(
            found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree, found.f_bsize, 255,
            found.f_frsize, 0,
        )  # fmt: skip

    # Names ---------------------------------------------------------------------------------------------

    def _made(self, number: int) -> bytes:
        found = self.tree.node(number)
        return self._entry(found, self.tree.attributes(found), made=True)

    def _mkdir(self, request: Request) -> bytes:
        mode, _ = p.MKDIR_IN.unpack_from(request.body)
        name = request.body[p.MKDIR_IN.size :].rstrip(b"\0")
        return self._made(self.tree.mkdir(self._numbers.directory(request.node), name, mode & 0o7777, request.caller))

    def _symlink(self, request: Request) -> bytes:
        name, target, _ = request.body.split(b"\0", 2)
        return self._made(self.tree.symlink(self._numbers.directory(request.node), name, target, request.caller))

    def _mknod(self, request: Request) -> bytes:
        mode, _, _, _ = p.MKNOD_IN.unpack_from(request.body)
        if not stat.S_ISREG(mode):
            raise NotPermitted("device nodes, fifos and sockets cannot be kept")
        name = request.body[p.MKNOD_IN.size :].rstrip(b"\0")
        found, handle = self.tree.create(
            self._numbers.directory(request.node), name, mode & 0o7777, os.O_EXCL | os.O_WRONLY, request.caller
        )
        handle.release()
        return self._entry(found, self.tree.attributes(found), made=True)

    def _create(self, request: Request) -> bytes:
        flags, mode, _, open_flags = p.CREATE_IN.unpack_from(request.body)
        name = request.body[p.CREATE_IN.size :].rstrip(b"\0")
        found, handle = self.tree.create(
            self._numbers.directory(request.node), name, mode & 0o7777, flags, request.caller
        )
        if open_flags & p.OPEN_KILL_SUIDGID and isinstance(handle, FileHandle):  # another mount made it first
            self.tree.drop_set_ids(handle.file.node, request.caller)
        return self._entry(found, self.tree.attributes(found), made=True) + self._kept(handle)

    def _unlink(self, request: Request) -> bytes:
        self.tree.unlink(self._numbers.directory(request.node), request.body.rstrip(b"\0"))
        return b""

    def _rmdir(self, request: Request) -> bytes:
        self.tree.rmdir(self._numbers.directory(request.node), request.body.rstrip(b"\0"))
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
        here, there = self._numbers.directory(request.node), self._numbers.directory(directory)
        self.tree.rename(here, name, there, new_name, flags)
        return b""

    def _link(self, request: Request) -> bytes:
        raise NotPermitted("hard links are not supported")

    # Bytes ---------------------------------------------------------------------------------------------

    def _open(self, request: Request) -> bytes:
        flags, open_flags = p.OPEN_IN.unpack_from(request.body)
        found = self._numbers.address(request.node)
        if isinstance(found, Real):
            self._not_contended(request.node)
            if self._session.caching and self._numbers.settle(request.node):
                self._session.drop_attributes(request.node)  # what is read next depends on the size
            if open_flags & p.OPEN_KILL_SUIDGID:
                self._drop_set_ids(request, found.node.mode)
        elif not self._session.may_block():
            raise Later
        else:
            request.abandonable = flags & os.O_ACCMODE == os.O_RDONLY
        handle = self.tree.open(found, flags)
        if request.answered:  # interrupted meanwhile: nobody will release it
            handle.release()
            return b""
        return self._kept(handle)

    def _kept(self, handle: Handle) -> bytes:
        number = next(self._next)
        self._handles[number] = handle
        return p.OPEN_OUT.pack(number, p.FOPEN_DIRECT_IO if handle.direct else 0, 0)

    def _read(self, request: Request) -> bytes:
        fh, offset, size, _, _, _, _ = p.READ_IN.unpack_from(request.body)
        handle = self._handles[fh]
        if isinstance(handle, VirtualHandle) and not self._session.may_block():
            raise Later  # reaching the end of a view may commit a mark
        self._not_contended(request.node)
        return handle.read(offset, size)

    def _write(self, request: Request) -> bytes:
        fh, offset, size, write_flags, _, flags, _ = p.WRITE_IN.unpack_from(request.body)
        handle = self._handles[fh]
        # fcntl(2) may have changed the flags since open; pages that mmap dirtied have a place of their own.
        append, sync = bool(flags & os.O_APPEND and not write_flags & p.WRITE_CACHE), bool(flags & os.O_DSYNC)
        if not self._session.may_block() and (
            append or sync or isinstance(handle, VirtualHandle) or handle.near_spill(size)
        ):
            raise Later
        self._not_contended(request.node)
        if write_flags & p.WRITE_KILL_SUIDGID and isinstance(handle, FileHandle):
            self._drop_set_ids(request, handle.file.now().mode)
        data = request.body[p.WRITE_IN.size : p.WRITE_IN.size + size]
        return p.WRITE_OUT.pack(handle.write(offset, data, append=append, sync=sync), 0)

    def _drop_set_ids(self, request: Request, mode: int) -> None:
        if mode & (stat.S_ISUID | stat.S_ISGID):
            if not self._session.may_block():
                raise Later
            self.tree.drop_set_ids(request.node, request.caller)

    def _flush(self, request: Request) -> bytes:
        fh, _, _, owner = p.FLUSH_IN.unpack_from(request.body)
        handle = self._handles[fh]
        if not self._session.may_block() and handle.pending:
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
        if not self._session.may_block() and handle.pending:
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
        if not self._session.may_block() and self.tree.contended(node):
            raise Later

    # Directories ---------------------------------------------------------------------------------------

    def _opendir(self, request: Request) -> bytes:
        number = next(self._next)
        self._listings[number] = (self._numbers.address(request.node), [])
        return p.OPEN_OUT.pack(number, 0, 0)

    def _readdir(self, request: Request) -> bytes:
        """Streams: an entry's offset is its place in a list that is made when the reader (re)starts at 0."""
        fh, offset, size, _, _, _, _ = p.READ_IN.unpack_from(request.body)
        where, entries = self._listings[fh]
        if offset == 0:
            if not self._session.may_block():
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
    tree: Tree, mountpoint: Path, *, read_only: bool, allow_other: bool, cached: bool, ready: Callable[[], None],
    runtime_dir: Path,
) -> None:  # fmt: skip
    """Mount and serve until unmounted."""
    options = ["fsname=avmfs", "subtype=avmfs", "nosuid", "nodev", "default_permissions", "ro" if read_only else "rw"]
    descriptor = device.mount(mountpoint, [*options, "allow_other"] if allow_other else options)
    LinuxMount(tree, descriptor, runtime_dir).serve(ready, cached=cached)


def _attr(found: Attributes) -> bytes:
    (atime, atime_ns), (mtime, mtime_ns), (ctime, ctime_ns) = (
        divmod(found.atime, _NS), divmod(found.mtime, _NS), divmod(found.ctime, _NS)
    )  # fmt: skip
    mask = (1 << 64) - 1  # times before 1970 travel as two's complement
    return p.ATTR.pack(
        found.ino, found.size, found.blocks, atime & mask, mtime & mask, ctime & mask, atime_ns, mtime_ns, ctime_ns,
        found.mode, found.nlink, found.uid, found.gid, 0, 65536, 0,
    )  # fmt: skip


def _length(start: int, end: int) -> int:
    return 0 if end >= _WHOLE else end - start + 1
