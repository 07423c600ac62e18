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
import os
import stat
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from avmfs.errors import Invalid, NotFound, NotPermitted
from avmfs.fuse import protocol as p
from avmfs.fuse.numbers import Numbers
from avmfs.fuse.protocol import Op
from avmfs.fuse.resume import Box, Continuity
from avmfs.fuse.session import Handler, Later, Request, Session
from avmfs.fuse.values import NS, WHOLE, attr, chosen, length
from avmfs.store.lanes import REQUEST
from avmfs.store.schema import ROOT
from avmfs.vfs import locks
from avmfs.vfs.address import Address, Question, Real
from avmfs.vfs.attributes import Attributes
from avmfs.vfs.files import FileHandle
from avmfs.vfs.locks import LockTable
from avmfs.vfs.nodes import QuestionHandle, VirtualHandle
from avmfs.vfs.tree import Handle, Tree

CACHED_S = 60  # a safety net: notices end what is cached long before


class LinuxMount:
    """What each request of one mount's kernel means; ``session`` is its loop. ``found`` is what a predecessor left in
    the box."""

    def __init__(
        self, tree: Tree, descriptor: int, runtime_dir: Path, continuity: Continuity, box: Box | None,
        found: Mapping[str, int],
    ) -> None:  # fmt: skip
        self.tree = tree
        self._continuity = continuity
        self._numbers = Numbers(tree, continuity)
        self._handles: dict[int, Handle] = continuity.handles
        self._listings: dict[int, list[tuple[bytes, int, int]]] = {}
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
        self.session = Session(descriptor, handlers, pooled, self._numbers.forget, self._once, continuity.settle)
        held = {name: held for name, held in found.items() if name.startswith(locks.NAME)}
        self._locks = LockTable(runtime_dir / "locks", self.session.interrupted, box, held)

    def _once(self, request: Request) -> AbstractContextManager[None]:
        return self.tree.memory.store.once(REQUEST, p.plain_unique(request.unique))

    def close(self) -> None:
        """The mount is over: what was written becomes durable, locks end."""
        self.tree.commit_all()
        self._locks.close()

    def _validity(self, found: Address) -> int:
        """Seconds that the kernel may keep what it is told of a node: never longer than the node lives."""
        if not self.session.caching or not isinstance(found, Real):
            return 0
        if found.node.expires is None:
            return CACHED_S
        return max(0, min(CACHED_S, (found.node.expires - self.tree.memory.now()) // NS))

    def _entry(self, found: Address, attributes: Attributes) -> bytes:
        valid = self._validity(found)
        return p.ENTRY_OUT.pack(self._numbers.number(found), 0, valid, valid, 0, 0) + attr(attributes)

    def _absent(self, where: Address, name: bytes) -> bytes:
        """A negative entry that may be kept: the epoch ends it when another mount makes the name. Not at the root and
        not for views, whose coming and going is in no log."""
        if not isinstance(where, Real) or where.node.id == ROOT or not self.session.caching or b":" in name:
            raise NotFound()
        return p.ENTRY_OUT.pack(0, 0, CACHED_S, 0, 0, 0) + bytes(p.ATTR.size)

    def _attributes(self, number: int) -> bytes:
        """The reply to GETATTR and SETATTR."""
        found = self._numbers.address(number)
        return p.ATTR_OUT.pack(self._validity(found), 0, 0) + attr(self.tree.attributes(found))

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
        return self._attributes(request.node)

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
        now = self.tree.memory.now()
        changes = {
            "mode": mode & 0o7777 if valid & p.SetAttr.MODE else None,
            "uid": uid if valid & p.SetAttr.UID else None,
            "gid": gid if valid & p.SetAttr.GID else None,
            "atime": chosen(valid, p.SetAttr.ATIME, p.SetAttr.ATIME_NOW, now, atime, atime_ns),
            "mtime": chosen(valid, p.SetAttr.MTIME, p.SetAttr.MTIME_NOW, now, mtime, mtime_ns),
        }
        if any(value is not None for value in changes.values()):
            self.tree.set_attributes(found, handle, **changes)
        return self._attributes(request.node)

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
        return self._entry(found, self.tree.attributes(found))

    def _mkdir(self, request: Request) -> bytes:
        mode, _ = p.MKDIR_IN.unpack_from(request.body)
        name = request.body[p.MKDIR_IN.size :].rstrip(b"\0")
        return self._made(self.tree.mkdir(self._numbers.address(request.node), name, mode & 0o7777, request.caller))

    def _symlink(self, request: Request) -> bytes:
        name, target, _ = request.body.split(b"\0", 2)
        return self._made(self.tree.symlink(self._numbers.address(request.node), name, target, request.caller))

    def _mknod(self, request: Request) -> bytes:
        mode, _, _, _ = p.MKNOD_IN.unpack_from(request.body)
        if not stat.S_ISREG(mode):
            raise NotPermitted("device nodes, fifos and sockets cannot be kept")
        name = request.body[p.MKNOD_IN.size :].rstrip(b"\0")
        found, handle = self.tree.create(
            self._numbers.address(request.node), name, mode & 0o7777, os.O_EXCL | os.O_WRONLY, request.caller
        )
        handle.release()
        return self._entry(found, self.tree.attributes(found))

    def _create(self, request: Request) -> bytes:
        flags, mode, _, _ = p.CREATE_IN.unpack_from(request.body)
        name = request.body[p.CREATE_IN.size :].rstrip(b"\0")
        if (given := self._given(request)) is not None and isinstance(handle := self._handles[given], FileHandle):
            found: Address = self.tree.node(handle.file.node)
            return self._entry(found, self.tree.attributes(found)) + _opened(given, handle)
        found, handle = self.tree.create(
            self._numbers.address(request.node), name, mode & 0o7777, flags, request.caller
        )
        if isinstance(found, Question):
            self._continuity.asked()
        return self._entry(found, self.tree.attributes(found)) + self._kept(handle, request)

    def _unlink(self, request: Request) -> bytes:
        where = self._numbers.address(request.node)
        self.tree.unlink(where, request.body.rstrip(b"\0"))
        if not isinstance(where, Real):
            self._continuity.asked()
        return b""

    def _rmdir(self, request: Request) -> bytes:
        self.tree.rmdir(self._numbers.address(request.node), request.body.rstrip(b"\0"))
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
        self.tree.rename(self._numbers.address(request.node), name, self._numbers.address(directory), new_name, flags)
        return b""

    def _link(self, request: Request) -> bytes:
        raise NotPermitted("hard links are not supported")

    # Bytes ---------------------------------------------------------------------------------------------

    def _open(self, request: Request) -> bytes:
        flags, _ = p.OPEN_IN.unpack_from(request.body)
        if (given := self._given(request)) is not None:
            return _opened(given, self._handles[given])
        found = self._numbers.address(request.node)
        if isinstance(found, Real):
            self._not_contended(request.node)
        elif not self.session.may_block():
            raise Later
        else:
            request.abandonable = flags & os.O_ACCMODE == os.O_RDONLY
        handle = self.tree.open(found, flags)
        if request.answered:  # interrupted meanwhile: nobody will release it
            handle.release()
            return b""
        return self._kept(handle, request)

    def _kept(self, handle: Handle, request: Request) -> bytes:
        number = self._continuity.opened(handle, request.unique)
        self._handles[number] = handle
        return _opened(number, handle)

    def _given(self, request: Request) -> int | None:
        """The handle that a predecessor had made for this request, before it was killed."""
        return self._continuity.given(request.unique) if request.resent else None

    def _read(self, request: Request) -> bytes:
        fh, offset, size, _, _, _, _ = p.READ_IN.unpack_from(request.body)
        handle = self._handles[fh]
        if isinstance(handle, VirtualHandle) and not self.session.may_block():
            raise Later  # reaching the end of a view may commit a mark
        self._not_contended(request.node)
        if not isinstance(handle, VirtualHandle) or handle.ended:
            return handle.read(offset, size)
        piece = handle.read(offset, size)
        if handle.ended:
            self._continuity.progress(fh, handle)
        return piece

    def _write(self, request: Request) -> bytes:
        fh, offset, size, _, _, _, _ = p.WRITE_IN.unpack_from(request.body)
        handle = self._handles[fh]
        if not self.session.may_block() and (
            handle.appends or isinstance(handle, VirtualHandle) or handle.near_spill(size)
        ):
            raise Later
        self._not_contended(request.node)
        data = request.body[p.WRITE_IN.size : p.WRITE_IN.size + size]
        if not isinstance(handle, VirtualHandle):
            return p.WRITE_OUT.pack(handle.write(offset, data), 0)
        if not request.resent or not self._continuity.written(fh, request.unique):
            handle.write(offset, data)
            self._continuity.progress(fh, handle, request.unique, data)
        return p.WRITE_OUT.pack(len(data), 0)

    def _flush(self, request: Request) -> bytes:
        fh, _, _, owner = p.FLUSH_IN.unpack_from(request.body)
        handle = self._handles[fh]
        if not self.session.may_block() and handle.pending:
            raise Later
        handle.flush()
        if isinstance(handle, FileHandle):
            self._locks.forget(handle.file.node, owner, "range")  # close(2) drops the process' fcntl locks
        elif handle.writable:
            self._continuity.progress(fh, handle)
            if isinstance(handle, QuestionHandle):
                self._continuity.asked()
        return b""

    def _fsync(self, request: Request) -> bytes:
        self._handles[p.FSYNC_IN.unpack_from(request.body)[0]].fsync()
        return b""

    def _release(self, request: Request) -> bytes:
        fh, _, flags, owner = p.RELEASE_IN.unpack_from(request.body)
        if request.resent and fh not in self._handles:
            return b""
        handle = self._handles[fh]
        if not self.session.may_block() and handle.pending:
            raise Later
        del self._handles[fh]
        if isinstance(handle, FileHandle) and flags & p.RELEASE_FLOCK_UNLOCK:
            self._locks.forget(handle.file.node, owner, "whole")
        handle.release()
        self._continuity.closed(fh)
        return b""

    def _fallocate(self, request: Request) -> bytes:
        fh, offset, length, mode, _ = p.FALLOCATE_IN.unpack_from(request.body)
        self.tree.allocate(self._handles[fh], mode, offset, length)
        return b""

    def _not_contended(self, node: int) -> None:
        """A commit of this file may be under way: whoever must wait for it waits in the pool."""
        if not self.session.may_block() and self.tree.contended(node):
            raise Later

    # Directories ---------------------------------------------------------------------------------------

    def _opendir(self, request: Request) -> bytes:
        self._numbers.address(request.node)  # raises when it is gone
        given = self._given(request)
        return p.OPEN_OUT.pack(self._continuity.opened_listing(request.unique) if given is None else given, 0, 0)

    def _readdir(self, request: Request) -> bytes:
        """Streams: an entry's offset is its place in a list that is made when the reader (re)starts at 0."""
        fh, offset, size, _, _, _, _ = p.READ_IN.unpack_from(request.body)
        entries = self._listings.get(fh)
        if offset == 0 or entries is None:
            if not self.session.may_block():
                raise Later  # a large directory takes its time
            names = self.tree.names(self._numbers.address(request.node))
            entries = [(b".", 0, stat.S_IFDIR), (b"..", 0, stat.S_IFDIR), *names]
            if offset:
                entries = self._continuity.entries(fh, offset, entries)
            self._listings[fh] = entries
        last, stop = b"", offset
        reply = bytearray()
        for place in range(offset, len(entries)):
            name, ino, kind = entries[place]
            if len(reply) + p.DIRENT.size + len(name) + 8 > size:
                break
            reply += p.dirent(ino or 1, place + 1, kind, name)
            last, stop = name, place + 1
        if reply:
            self._continuity.listed(fh, stop, last)
        return bytes(reply)

    def _releasedir(self, request: Request) -> bytes:
        fh = p.RELEASE_IN.unpack_from(request.body)[0]
        self._listings.pop(fh, None)
        self._continuity.closed(fh)
        return b""

    # Locks ---------------------------------------------------------------------------------------------

    def _getlk(self, request: Request) -> bytes:
        fh, owner, start, end, kind, _, _, _ = p.LK_IN.unpack_from(request.body)
        handle = self._file(fh)
        found = self._locks.conflict(handle.file.node, owner, kind, start, length(start, end))
        if found is None:
            return p.LK_OUT.pack(0, 0, fcntl.F_UNLCK, 0)
        kind, at, size = found
        return p.LK_OUT.pack(at, WHOLE if size == 0 else at + size - 1, kind, 0)

    def _setlk(self, request: Request) -> bytes:
        fh, owner, start, end, kind, _, flags, _ = p.LK_IN.unpack_from(request.body)
        node, wait = self._file(fh).file.node, request.op == Op.SETLKW
        if flags & p.LK_FLOCK:
            operation = {fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_WRLCK: fcntl.LOCK_EX, fcntl.F_UNLCK: fcntl.LOCK_UN}[kind]
            self._locks.set_whole(node, owner, operation | (0 if wait else fcntl.LOCK_NB))
        else:
            self._locks.set_range(node, owner, kind, start, length(start, end), wait=wait)
        return b""

    def _file(self, fh: int) -> FileHandle:
        handle = self._handles[fh]
        if not isinstance(handle, FileHandle):
            raise Invalid("a view cannot be locked")
        return handle


def _opened(number: int, handle: Handle) -> bytes:
    return p.OPEN_OUT.pack(number, p.FOPEN_DIRECT_IO if handle.direct else 0, 0)
