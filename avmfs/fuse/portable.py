"""The portable front end: mfusepy over libfuse's high-level interface.

Owns the translation of libfuse's callbacks into calls of ``vfs.Tree`` and of domain errors into errnos; it
decides nothing. Works with libfuse 3 (Linux) and libfuse 2 (macFUSE, FUSE-T). libfuse's threads call in, so while
there are any a slow view blocks only its own caller. All kernel cache timeouts are 0: every lookup asks, so one
agent's change is another's next result.

Limit of the high-level interface: fstat(2) of a file that was unlinked while open answers ENOENT, since
the kernel asks by inode, libfuse by path, and there is none. Its cure, renaming to .fuse_hidden*, would show
other agents a name that nobody made, so it is off (``hard_remove``).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from avmfs_config import Mount

from avmfs import calls, paths
from avmfs.errors import AvmError, NotPermitted, Stale, TooSmall
from avmfs.fuse.protocol import time_of
from avmfs.fuse.uid_gate import admitted, is_fenced, needs_allow_other
from avmfs.vfs import xattrs
from avmfs.vfs.address import Address
from avmfs.vfs.attributes import Attributes, Caller
from avmfs.vfs.locks import SUPPORTED as LOCKS_SUPPORTED
from avmfs.vfs.locks import LockTable
from avmfs.vfs.open_file import FileHandle
from avmfs.vfs.tree import Handle, Tree
from avmfs.vfs.virtual_handles import PastHandle

if sys.platform.startswith("linux"):
    # mfusepy prefers libfuse 2 where both are installed; its writes come in 4 KiB pieces.
    os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")
import mfusepy

log = logging.getLogger(__name__)

_IMPLEMENTED = (
    "getattr readlink mknod mkdir unlink rmdir symlink rename link chmod chown truncate open read write statfs flush"
    " release fsync opendir readdir releasedir destroy create utimens fallocate fsyncdir"
)
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
_UNSET_ID = 0xFFFFFFFF
_NS = 1_000_000_000
_THREADS = 512  # libfuse would have ten, and whoever waits for a lock, a source or mail has one
_XATTRS = ["getxattr", "listxattr", "setxattr", "removexattr"]
_XATTR_FLAGS = (2, 4) if sys.platform == "darwin" else (1, 2)  # XATTR_CREATE, XATTR_REPLACE


class _Operations:
    """What mfusepy asks for which callbacks exist; the callbacks themselves are methods of PortableMount."""

    use_ns = True

    def __init__(self, names: list[str], init: Callable[[], None], destroy: Callable[[], None]) -> None:
        for name in names:
            setattr(self, name, True)
        self.init = lambda path: init()
        self.destroy = lambda path: destroy()


class PortableMount(mfusepy.FUSE):  # type: ignore[misc]
    """One mount; constructing it serves until it is unmounted."""

    def __init__(self, tree: Tree, config: Mount, locks: LockTable | None, ready: Callable[[], None]) -> None:
        self.tree = tree
        tree.opened.asker = lambda: int(mfusepy.fuse_get_context()[2])
        self.locks = locks
        self._admitted = admitted(config)
        self._handles: dict[int, tuple[Address, Handle]] = {}
        self._listings: dict[int, tuple[Address, list[tuple[bytes, int, int]]]] = {}
        self._numbers = itertools.count(1)
        names = (
            _IMPLEMENTED.split() + (["lock", "flock"] if locks is not None else []) + (_XATTRS if config.xattr else [])
        )
        options: dict[str, Any] = dict.fromkeys(("attr_timeout", "entry_timeout", "negative_timeout"), 0)
        options |= dict.fromkeys(("foreground", "default_permissions", "hard_remove", "use_ino", "intr"), True)
        options |= {"fsname": "avmfs", "subtype": "avmfs", "ro": config.read_only}
        options["allow_other"] = needs_allow_other(config)
        if (mfusepy.fuse_version_major, mfusepy.fuse_version_minor) >= (3, 12):  # older ones know no limit
            options["max_threads"] = _THREADS
        super().__init__(
            _Operations(names, ready, tree.commit_all),
            os.fspath(config.mountpoint),
            raw_fi=True,
            **{key: value for key, value in options.items() if value is not False},
        )

    def _wrapper(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> int:
        """The boundary: every callback's result or error becomes what libfuse wants."""
        try:
            if self._admitted is not None and is_fenced(func.__name__) and _caller().uid not in self._admitted:
                return -errno.EACCES
            return func(*args, **kwargs) or 0
        except AvmError as e:
            return -e.code
        except OSError as e:
            log.warning("%s: %s", func.__name__, e)
            return -(e.errno or errno.EIO)
        except Exception:  # one request must not end the mount
            log.exception("%s failed", func.__name__)
            return -errno.EIO

    def init_fuse_3(self, conn: Any, config: Any) -> None:
        # Paths are not needed where there is a handle, and libfuse spares itself building them.
        config.contents.nullpath_ok = True
        super().init_fuse_3(conn, config)

    # Looking -------------------------------------------------------------------------------------------

    def fgetattr(self, path: bytes | None, buffer: Any, info: Any) -> int:
        found = self.tree.attributes(self._found(path, info))
        _fill(buffer, self.tree.sources.changing(found, self._handle(info)))
        return 0

    def readlink(self, path: bytes, buffer: Any, size: int) -> int:
        target = self.tree.readlink(self._locate(path))[: size - 1] + b"\0"
        ctypes.memmove(buffer, target, len(target))
        return 0

    def opendir(self, path: bytes, info: Any) -> int:
        number = next(self._numbers)
        found = self._locate(path)
        self.tree.sources.fresh(found)
        self._listings[number] = (found, [])
        info.contents.fh = number
        return 0

    def _readdir(self, path: bytes | None, buffer: Any, filler: Any, offset: int, info: Any) -> int:
        """Streams: an entry's offset is its place in a list that is made when the reader (re)starts at 0."""
        number = info.contents.fh
        where, entries = self._listings[number]
        if offset == 0:
            # Not 0: readdir(3) takes an entry of that number for a removed one.
            entries = [(b".", 1, 0o040000), (b"..", 1, 0o040000), *self.tree.names(where)]
            self._listings[number] = (where, entries)
        stat = mfusepy.c_stat()
        extra = (0,) if mfusepy.fuse_version_major == 3 else ()
        for place in range(offset, len(entries)):
            name, stat.st_ino, stat.st_mode = entries[place]
            if filler(buffer, name, stat, place + 1, *extra):
                break
        return 0

    def releasedir(self, path: bytes | None, info: Any) -> int:
        self._listings.pop(info.contents.fh, None)
        return 0

    def statfs(self, path: bytes, buffer: Any) -> int:
        found, answer = self.tree.statfs(), buffer.contents
        for name, _ in answer._fields_:
            if hasattr(found, name):
                setattr(answer, name, getattr(found, name))
        return 0

    # Names ---------------------------------------------------------------------------------------------

    def mknod(self, path: bytes, mode: int, device: int) -> int:
        if mode & 0o170000 not in (0, 0o100000):
            raise NotPermitted("device nodes, fifos and sockets cannot be kept")
        _, handle = self.tree.create(*self.tree.parent(path), mode & 0o7777, os.O_EXCL | os.O_WRONLY, _caller())
        handle.release()
        return 0

    def mkdir(self, path: bytes, mode: int) -> int:
        self.tree.mkdir(*self.tree.parent(path), mode & 0o7777, _caller())
        return 0

    def unlink(self, path: bytes) -> int:
        self.tree.unlink(*self.tree.parent(path))
        return 0

    def rmdir(self, path: bytes) -> int:
        self.tree.rmdir(*self.tree.parent(path))
        return 0

    def symlink(self, source: bytes, target: bytes) -> int:
        self.tree.symlink(*self.tree.parent(target), source, _caller())
        return 0

    def rename_fuse_3(self, old: bytes, new: bytes, flags: int = 0) -> int:
        self.tree.rename(*self.tree.parent(old), *self.tree.parent(new), flags)
        return 0

    def link(self, source: bytes, target: bytes) -> int:
        raise NotPermitted("hard links are not supported")

    # Attributes ----------------------------------------------------------------------------------------

    def chmod_fuse_3(self, path: bytes | None, mode: int, info: Any = None) -> int:
        self.tree.set_attributes(self._found(path, info), self._handle(info), mode=mode & 0o7777)
        return 0

    def chown_fuse_3(self, path: bytes | None, uid: int, gid: int, info: Any = None) -> int:
        self.tree.set_attributes(self._found(path, info), self._handle(info), uid=_as_id(uid), gid=_as_id(gid))
        return 0

    def truncate_fuse_3(self, path: bytes | None, length: int, info: Any = None) -> int:
        handle = self._handle(info)
        if handle is not None:
            handle.truncate(length)
        elif path is not None:
            self.tree.truncate(self._locate(path), length)
        return 0

    def utimens_fuse_3(self, path: bytes | None, times: Any, info: Any = None) -> int:
        now = self.tree.memory.now()
        atime, mtime = (
            (_as_time(times.contents.actime, now), _as_time(times.contents.modtime, now)) if times else (now, now)
        )
        self.tree.set_attributes(self._found(path, info), self._handle(info), atime=atime, mtime=mtime)
        return 0

    # libfuse 2 calls the same without flags or a handle.
    rename_fuse_2, chmod_fuse_2, chown_fuse_2 = rename_fuse_3, chmod_fuse_3, chown_fuse_3
    truncate_fuse_2 = ftruncate = truncate_fuse_3
    utimens_fuse_2 = utimens_fuse_3

    # Bytes ---------------------------------------------------------------------------------------------

    def open(self, path: bytes, info: Any) -> int:
        found = self._locate(path)
        calls.working.call = _Open()
        try:
            self._keep(info.contents, found, self.tree.open(found, info.contents.flags))
        finally:
            calls.working.call = None
        return 0

    def create(self, path: bytes, mode: int, info: Any) -> int:
        self._keep(
            info.contents, *self.tree.create(*self.tree.parent(path), mode & 0o7777, info.contents.flags, _caller())
        )
        return 0

    def read(self, path: bytes | None, buffer: Any, size: int, offset: int, info: Any) -> int:
        data = self._opened(info).read(offset, size)
        ctypes.memmove(buffer, data, len(data))
        return len(data)

    def write(self, path: bytes | None, buffer: Any, size: int, offset: int, info: Any) -> int:
        # fcntl(2) may have changed the flags since open; pages that mmap dirtied have a place of their own.
        flags = info.contents.flags
        append = bool(flags & os.O_APPEND and not info.contents.writepage)
        return self._opened(info).write(
            offset, ctypes.string_at(buffer, size), append=append, sync=bool(flags & os.O_DSYNC)
        )

    def flush(self, path: bytes | None, info: Any) -> int:
        self._opened(info).flush()
        return 0

    def fsync(self, path: bytes | None, only_data: int, info: Any) -> int:
        self._opened(info).fsync()
        return 0

    def fsyncdir(self, path: bytes | None, only_data: int, info: Any) -> int:
        self.tree.memory.submit("sync")
        return 0

    def release(self, path: bytes | None, info: Any) -> int:
        _, handle = self._handles.pop(info.contents.fh)
        handle.release()
        if self.locks is not None and isinstance(handle, FileHandle):
            self.locks.forget(handle.file.node, info.contents.lock_owner, "whole")
        return 0

    def fallocate(self, path: bytes | None, mode: int, offset: int, length: int, info: Any) -> int:
        self.tree.allocate(self._opened(info), mode, offset, length)
        return 0

    # Extended attributes; macOS adds a position, which means nothing here -------------------------------

    def getxattr(self, path: bytes, name: bytes, value: Any, size: int, *position: int) -> int:
        return _put(xattrs.get(self.tree.memory, self._locate(path), name), value, size)

    def listxattr(self, path: bytes, names: Any, size: int) -> int:
        found = xattrs.names(self.tree.memory, self._locate(path))
        return _put(b"".join(name + b"\0" for name in found), names, size)

    def setxattr(self, path: bytes, name: bytes, value: Any, size: int, options: int, *position: int) -> int:
        self.tree.require_writable()
        create, replace = (bool(options & flag) for flag in _XATTR_FLAGS)
        found, given = self._locate(path), ctypes.string_at(value, size)
        xattrs.put(self.tree.memory, found, name, given, create=create, replace=replace)
        return 0

    def removexattr(self, path: bytes, name: bytes) -> int:
        self.tree.require_writable()
        xattrs.remove(self.tree.memory, self._locate(path), name)
        return 0

    # Locks ---------------------------------------------------------------------------------------------

    def lock(self, path: bytes | None, info: Any, command: int, lock: Any) -> int:
        handle = self._opened(info)
        if isinstance(handle, PastHandle):  # nobody changes it, whoever has a lock of it
            lock.contents.l_type = fcntl.F_UNLCK
            return 0
        if self.locks is None or not isinstance(handle, FileHandle):
            return -errno.ENOLCK
        asked, owner, node = lock.contents, info.contents.lock_owner, handle.file.node
        if command == fcntl.F_GETLK:
            found = self.locks.conflict(node, owner, asked.l_type, asked.l_start, asked.l_len)
            if found is None:
                asked.l_type = fcntl.F_UNLCK
            else:
                asked.l_type, asked.l_start, asked.l_len, asked.l_pid = found
                asked.l_whence = os.SEEK_SET
            return 0
        if asked.l_type == fcntl.F_UNLCK and asked.l_start == 0 and asked.l_len == 0:
            self.locks.forget(node, owner, "range")
            return 0
        wait, alone = command == fcntl.F_SETLKW, handle.file.is_shared_memory()
        span = (asked.l_start, asked.l_len)
        self.locks.set_range(node, owner, asked.l_type, *span, wait=wait, pid=asked.l_pid, alone=alone)
        return 0

    def flock(self, path: bytes | None, info: Any, operation: int) -> int:
        handle = self._opened(info)
        if isinstance(handle, PastHandle):
            return 0
        if self.locks is None or not isinstance(handle, FileHandle):
            return -errno.ENOLCK
        self.locks.set_whole(handle.file.node, info.contents.lock_owner, operation)
        return 0

    # Inside --------------------------------------------------------------------------------------------

    def _keep(self, info: Any, found: Address, handle: Handle) -> None:
        number = next(self._numbers)
        self._handles[number] = (found, handle)
        info.fh = number
        info.direct_io = handle.direct

    def _locate(self, path: bytes) -> Address:
        """What stands at a path."""
        if self.tree.fresh is not None:
            self.tree.fresh()
        return self._walk(path)

    def _walk(self, path: bytes) -> Address:
        """What a source has comes while names are looked up, as a kernel would one by one."""
        if not self.tree.sources.any or not (parts := paths.split(path)):
            return self.tree.locate(path)
        return self.tree.lookup(self._walk(paths.join(parts[:-1])), parts[-1])[0]

    def _found(self, path: bytes | None, info: Any) -> Address:
        """What a call is about: an open node whatever its name is by now, or what stands at the path."""
        kept = self._handles.get(info.contents.fh) if info else None
        if kept is not None:
            return kept[0]
        if path is None:
            raise Stale()
        return self._locate(path)

    def _handle(self, info: Any) -> Handle | None:
        kept = self._handles.get(info.contents.fh) if info else None
        return None if kept is None else kept[1]

    def _opened(self, info: Any) -> Handle:
        return self._handles[info.contents.fh][1]


def mount(
    tree: Tree, config: Mount, *, runtime_dir: Path, ready: Callable[[], None], report: Callable[[str], None]
) -> None:
    """Mount and serve until unmounted; nothing is ever cached. Raises RuntimeError when libfuse cannot mount."""
    # libfuse tells a thread of an interrupt by SIGUSR1 and has no handler for it, since ``intr`` is set only in init:
    # the signal would end the process. Waits look at fuse_interrupted() instead.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    report("none: the portable front end cannot be told of changes")
    folder, publish = runtime_dir / "locks", tree.opened.publish
    locks = LockTable(folder, _interrupted, ending=publish) if LOCKS_SUPPORTED else None
    try:
        PortableMount(tree, config, locks, ready)
    except RuntimeError as e:
        # libfuse returns 8 after it was ended by a signal: its own clean end.
        if e.args != (8,):
            raise
    finally:
        if locks is not None:
            locks.close()


class _Open(calls.Call):
    """An open that waits, as one of ``:inbox?wait=`` does. libfuse tells only the thread that serves a call of its
    interruption, and only when asked."""

    __slots__ = ()
    look_every_s = 0.2

    def look(self) -> None:
        self.given_up = self.given_up or _interrupted()


def _interrupted() -> bool:
    return bool(mfusepy._libfuse.fuse_interrupted())


def _caller() -> Caller:
    uid, gid, _ = mfusepy.fuse_get_context()
    return Caller(uid, gid)


# What libfuse's callbacks carry: ids, times and attributes in its structures.


def _as_id(value: int) -> int | None:
    return None if value & 0xFFFFFFFF == _UNSET_ID else value


def _as_time(spec: Any, now: int) -> int | None:
    given, at_once = spec.tv_nsec != UTIME_OMIT, spec.tv_nsec == UTIME_NOW
    return time_of(1, given, at_once, now, spec.tv_sec, spec.tv_nsec)


def _fill(buffer: Any, found: Attributes) -> None:
    ctypes.memset(buffer, 0, ctypes.sizeof(buffer.contents))
    stat = buffer.contents
    stat.st_ino, stat.st_mode, stat.st_nlink = found.ino, found.mode, found.nlink
    stat.st_uid, stat.st_gid, stat.st_size = found.uid, found.gid, found.size
    stat.st_blksize, stat.st_blocks = 65536, found.blocks
    for name, value in (("st_atimespec", found.atime), ("st_mtimespec", found.mtime), ("st_ctimespec", found.ctime)):
        spec = getattr(stat, name)
        spec.tv_sec, spec.tv_nsec = divmod(value, _NS)


def _put(answer: bytes, buffer: Any, size: int) -> int:
    """How long it is; the answer itself goes to the buffer, unless the caller only asks how long it is."""
    if size:
        if len(answer) > size:
            raise TooSmall()
        ctypes.memmove(buffer, answer, len(answer))
    return len(answer)
