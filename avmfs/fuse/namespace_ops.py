"""Operations on names and on nodes as such: looking up, attributes, making, removing, renaming.

Owns what these requests mean, as calls of ``vfs.Tree``. Everything that changes something may block.
"""

from __future__ import annotations

import os
import stat

from avmfs.errors import NotFound, NotPermitted
from avmfs.fuse import protocol as p
from avmfs.fuse.entry_cache import EntryCache
from avmfs.fuse.handles import Handles
from avmfs.fuse.inodes import Inodes
from avmfs.fuse.page_cache import PageCache
from avmfs.fuse.protocol import Op
from avmfs.fuse.request import Handler, Later, Request
from avmfs.fuse.session import Session
from avmfs.vfs.address import Real
from avmfs.vfs.live_handle import LiveHandle
from avmfs.vfs.tree import Tree


class NamespaceOps:
    """See the module."""

    def __init__(
        self, session: Session, tree: Tree, numbers: Inodes, replies: EntryCache, handles: Handles, pages: PageCache
    ) -> None:
        self._session, self._tree, self._numbers = session, tree, numbers
        self._replies, self._handles, self._pages = replies, handles, pages
        session.answers({Op.LOOKUP: replies.lookup, Op.GETATTR: replies.getattr})
        session.serves({Op.LOOKUP: self._lookup, Op.GETATTR: self._getattr, Op.READLINK: self._readlink})
        session.serves({Op.LINK: self._link, Op.STATFS: self._statfs, Op.DESTROY: lambda request: b""})
        changing: dict[int, Handler] = {Op.SYMLINK: self._symlink, Op.MKNOD: self._mknod, Op.MKDIR: self._mkdir}
        changing |= {Op.UNLINK: self._unlink, Op.RMDIR: self._rmdir, Op.SETATTR: self._setattr}
        session.serves({**changing, Op.RENAME: self._rename, Op.RENAME2: self._rename}, committing=True)

    # Looking -------------------------------------------------------------------------------------------

    def _lookup(self, request: Request) -> bytes:
        if self._tree.sources.any:
            where = self._numbers.directory(request.node)
            name = request.body.rstrip(b"\0")
            if isinstance(where, Real) and self._tree.sources.awaits(where.node, name):
                if not self._session.may_block():
                    raise Later
                request.abandonable = True
        return self._replies.found(request.node, request.body.rstrip(b"\0"))

    def _getattr(self, request: Request) -> bytes:
        flags, _, fh = p.GETATTR_IN.unpack_from(request.body)
        return self._replies.attributes(request.node, self._handles.find(fh) if flags & p.GETATTR_FH else None)

    def _setattr(self, request: Request) -> bytes:
        (valid, _, fh, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _) = (
            p.SETATTR_IN.unpack_from(request.body)
        )
        self._replies.will_change(request.node)
        found = self._numbers.address(request.node)
        handle = self._handles.find(fh) if valid & p.SetAttr.FH else None
        if valid & p.SetAttr.SIZE:
            self._pages.wrote(request.node)
            request.abandonable = isinstance(found, Real) and self._tree.sources.awaits(found.node)
            if handle is not None:
                handle.truncate(size)
                if isinstance(handle, LiveHandle):
                    self._handles.went_on(fh, handle, request.unique, handle.cut(size))
            else:
                self._tree.truncate(found, size)
        new_mode = mode & 0o7777 if valid & p.SetAttr.MODE else None
        if new_mode is None and valid & p.SetAttr.KILL_SUIDGID and isinstance(found, Real):
            new_mode = self._tree.without_set_ids(request.node, request.caller)
        now = self._tree.memory.now()
        changes = {
            "mode": new_mode,
            "uid": uid if valid & p.SetAttr.UID else None,
            "gid": gid if valid & p.SetAttr.GID else None,
            "atime": p.time_of(valid, p.SetAttr.ATIME, p.SetAttr.ATIME_NOW, now, atime, atime_ns),
            "mtime": p.time_of(valid, p.SetAttr.MTIME, p.SetAttr.MTIME_NOW, now, mtime, mtime_ns),
        }
        if any(value is not None for value in changes.values()):
            self._tree.set_attributes(found, handle, **changes)
        return self._replies.changed_attributes(request.node)

    def _readlink(self, request: Request) -> bytes:
        return self._tree.readlink(self._numbers.address(request.node))

    def _statfs(self, request: Request) -> bytes:
        found = self._tree.statfs()
        blocks, files = (found.f_blocks, found.f_bfree, found.f_bavail), (found.f_files, found.f_ffree)
        return p.STATFS_OUT.pack(*blocks, *files, found.f_bsize, 255, found.f_frsize, 0)

    # Making and removing -------------------------------------------------------------------------------

    def _mkdir(self, request: Request) -> bytes:
        mode, _ = p.MKDIR_IN.unpack_from(request.body)
        name = request.body[p.MKDIR_IN.size :].rstrip(b"\0")
        self._replies.will_be_cached(request.node, name)
        return self._replies.made(
            self._tree.mkdir(self._numbers.directory(request.node), name, mode & 0o7777, request.caller)
        )

    def _symlink(self, request: Request) -> bytes:
        name, target, _ = request.body.split(b"\0", 2)
        self._replies.will_be_cached(request.node, name)
        return self._replies.made(
            self._tree.symlink(self._numbers.directory(request.node), name, target, request.caller)
        )

    def _mknod(self, request: Request) -> bytes:
        mode, _, _, _ = p.MKNOD_IN.unpack_from(request.body)
        if not stat.S_ISREG(mode):
            raise NotPermitted("device nodes, fifos and sockets cannot be kept")
        name = request.body[p.MKNOD_IN.size :].rstrip(b"\0")
        self._replies.will_be_cached(request.node, name)
        found, handle = self._tree.create(
            self._numbers.directory(request.node), name, mode & 0o7777, os.O_EXCL | os.O_WRONLY, request.caller
        )
        handle.release()
        return self._replies.made(found)

    def _unlink(self, request: Request) -> bytes:
        where = self._numbers.directory(request.node)
        try:
            self._tree.unlink(where, request.body.rstrip(b"\0"))
        except NotFound:
            # A question has no writer to remember the first reply: a predecessor was killed with it done.
            if isinstance(where, Real) or not request.resent:
                raise
        if not isinstance(where, Real):
            self._handles.asked()
        return b""

    def _rmdir(self, request: Request) -> bytes:
        self._tree.rmdir(self._numbers.directory(request.node), request.body.rstrip(b"\0"))
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
        self._replies.will_be_cached(request.node, name)
        self._replies.will_be_cached(directory, new_name)
        here, there = self._numbers.directory(request.node), self._numbers.directory(directory)
        self._tree.rename(here, name, there, new_name, flags)
        return b""

    def _link(self, request: Request) -> bytes:
        raise NotPermitted("hard links are not supported")
