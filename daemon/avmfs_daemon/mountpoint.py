"""Mountpoints: finding and detaching mounts, and guarding the bare directory while nothing covers it.

Called by the supervisor (which owns a Mountpoint per mount) and by a mount child right before it mounts. Never
asks a path that may be a dead or hanging mount: what is mounted is read from the kernel's table.

What a program writes into the directory below a mount disappears once the mount is back, and what it looks for there is
not: so between a mount's end and its successor the directory refuses writes (the immutable flag where root may set it,
else mode 0), and a dead mount covers it for as long as possible.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import re
import stat
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from avmfs_config.paths import real_place

log = logging.getLogger(__name__)

COMMAND_TIMEOUT_S = 5
STAT_TIMEOUT_S = 2
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IMMUTABLE_FL = 0x80086601, 0x40086602, 0x10  # linux/fs.h, 64-bit
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
_SYS_OPEN_TREE, _AT_FDCWD, _OPEN_TREE_CLONE = 428, -100, 1  # linux/mount.h; the number is that of every architecture
_FLAGS = struct.Struct("Q")
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class MountpointError(Exception):
    """The directory cannot be used; `str()` is one line for a person."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """One entry of the kernel's table. `device` ("0:53") is unique to a FUSE mount for as long as it lasts."""

    path: Path
    device: str
    kind: str
    source: str

    @property
    def is_ours(self) -> bool:  # dead too: fuse.avmfs, or macfuse with a source that says so
        return "fuse" in self.kind and ("avmfs" in self.kind or self.source.startswith("avmfs"))


def mounts_at(path: Path) -> list[Mounted]:
    """What is mounted exactly there, the lowest first."""
    place = real_place(path)
    return [mounted for mounted in _table() if mounted.path == place]


def detach(path: Path, *, lazily: bool = True) -> bool:
    """Take the topmost mount at `path` away; lazily means even while it is in use. False when that failed."""
    if sys.platform == "linux" and os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.umount2(os.fsencode(path), UMOUNT_NOFOLLOW | (MNT_DETACH if lazily else 0)) == 0)
    if sys.platform == "linux":
        command = ["fusermount3", "-uzq" if lazily else "-uq", "--", os.fspath(path)]
    else:
        command = ["/sbin/umount", *(["-f"] if lazily else []), os.fspath(path)]
    try:
        return subprocess.run(command, timeout=COMMAND_TIMEOUT_S, capture_output=True).returncode == 0
    except (OSError, subprocess.TimeoutExpired) as e:
        log.error("%s: cannot unmount: %s", path, e)
        return False


def unmount(path: Path, device: str | None = None) -> None:
    """Plainly if nothing is open there, else lazily. With `device`, only if that is the topmost mount."""
    there = mounts_at(path)
    if there and device in (None, there[-1].device) and not detach(path, lazily=False):
        detach(path)


def detach_stale(path: Path, patience_s: float = 2.0, *, leave_one: bool = False) -> int:
    """Detach what a killed daemon left at `path`: mounts of ours that do not answer; with `leave_one` the lowest stays.
    How many went.

    Raises MountpointError when another filesystem is mounted there, which may hang for reasons of its own, or one of
    ours that answers for longer than `patience_s` (the children of a daemon that was killed a moment ago are still
    about to go).
    """
    count, deadline = 0, time.monotonic() + patience_s
    while there := mounts_at(path):
        top = there[-1]
        if not top.is_ours:
            raise MountpointError(f"{path}: another filesystem is mounted there ({top.kind} {top.source})")
        if _answers(path):
            if time.monotonic() > deadline:
                raise MountpointError(f"{path}: another avm-daemon has its mount there")
            time.sleep(0.05)
            continue
        if leave_one and len(there) == 1:
            break
        if not detach(path):
            raise MountpointError(f"{path}: cannot detach the mount of an earlier run")
        count += 1
    return count


def detach_predecessor(path: Path) -> None:
    """Make room right before mounting: the mount that this one replaces, alive or dead, goes lazily. Files open through
    it are served by its process until that ends. Raises MountpointError."""
    _refuse_led(path)
    while there := mounts_at(path):
        if not there[-1].is_ours:
            raise MountpointError(f"{path}: another filesystem is mounted there ({there[-1].kind})")
        if not detach(path):
            raise MountpointError(f"{path}: cannot detach the mount that was there")


class Mountpoint:
    """The directory below one mount, held open from before the first mount until the end.

    `protect` makes it refuse writes, `release` makes it ordinary again; both act on the directory itself, whatever
    covers it. Creation is by `prepare` only, while nothing is mounted there.
    """

    def __init__(self, path: Path, descriptor: int, mode: int) -> None:
        self.path = path
        self.real = real_place(path)
        self.mode = mode
        self._descriptor = descriptor
        self._warned = False

    @staticmethod
    def prepare(
        path: Path, mode: int | None = None, *, must_be_empty: bool = True, for_others: bool = False
    ) -> Mountpoint:
        """Open the directory, made if missing; a protection that a killed daemon left is taken off.

        A dead mount goes on covering it where that can be, until `detach_predecessor`. `mode` is what the directory had
        before a protection; `for_others`: another user has to get through the directories above it that are made.
        Raises MountpointError.
        """
        _refuse_led(path)
        detach_stale(path, leave_one=True)
        covered = _open_below(path) if mounts_at(path) else None
        if covered is None:
            detach_stale(path)
        try:
            if covered is None:
                _make(path, for_others)
            descriptor = os.open(path, _OPEN) if covered is None else covered
        except PermissionError as e:
            descriptor = _opened_despite_mode_0(path, mode, e)
        except NotADirectoryError:
            raise MountpointError(f"{path}: not a directory, or a symbolic link to one") from None
        except OSError as e:
            raise MountpointError(f"{path}: {e.strerror}") from None
        found = stat.S_IMODE(os.fstat(descriptor).st_mode)
        mountpoint = Mountpoint(path, descriptor, found or mode or 0o700)
        mountpoint.release()
        if must_be_empty and os.listdir(descriptor):
            os.close(descriptor)
            detach_stale(path)  # for people to see what it is
            raise MountpointError(f"{path}: the directory is not empty; what is in it would be hidden")
        return mountpoint

    @staticmethod
    def adopt(path: Path, descriptor: int, mode: int) -> Mountpoint:
        """The directory below a mount that is gone on with, by the descriptor that a supervisor before had of it."""
        return Mountpoint(path, descriptor, mode)

    @property
    def descriptor(self) -> int:
        return self._descriptor

    @property
    def restore_mode(self) -> int | None:
        """What a mount child has to chmod the directory to before mounting: fusermount wants to enter it."""
        return None if os.geteuid() == 0 else self.mode

    def protect(self) -> None:
        if self._set_immutable(True):
            return
        try:
            os.fchmod(self._descriptor, 0)
        except OSError as e:
            self._warn(e.strerror or "")
        if os.geteuid() == 0:
            self._warn("this filesystem knows no immutable flag")

    def release(self) -> None:
        self._set_immutable(False)
        if stat.S_IMODE(os.fstat(self._descriptor).st_mode) == 0 != self.mode:
            os.fchmod(self._descriptor, self.mode)

    def close(self) -> None:
        self.release()
        os.close(self._descriptor)

    def _set_immutable(self, wanted: bool) -> bool:
        if sys.platform != "linux" or os.geteuid() != 0:
            return False
        try:
            (flags,) = _FLAGS.unpack(fcntl.ioctl(self._descriptor, FS_IOC_GETFLAGS, bytes(_FLAGS.size)))
            changed = flags | FS_IMMUTABLE_FL if wanted else flags & ~FS_IMMUTABLE_FL
            if changed != flags:
                fcntl.ioctl(self._descriptor, FS_IOC_SETFLAGS, _FLAGS.pack(changed))
        except OSError:
            return False
        return True

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("%s: cannot be protected while it is not mounted: %s", self.path, reason)


def _refuse_led(path: Path) -> None:
    """Whoever owns a folder above it would choose where root makes directories and mounts. Raises MountpointError where
    a symbolic link on the way is another user's."""
    if os.geteuid() != 0:
        return
    for each in reversed(path.parents):
        try:
            link = each.lstat()
            if not stat.S_ISLNK(link.st_mode):
                continue
            each.stat()  # of a circle there is no end
        except OSError:
            return  # what is missing is made; all else is told of by who opens it
        if link.st_uid != 0:
            raise MountpointError(f"{path}: {each} is a symbolic link of uid {link.st_uid}, which root does not follow")
        _refuse_led(Path(each.parent, os.readlink(each), path.name))


def _make(path: Path, for_others: bool) -> None:
    """Like mkdir -p with mode 0700 for what is missing, whatever the umask; 0711 above the last `for_others`."""
    missing = [parent for parent in (path, *path.parents) if not os.path.lexists(parent)]
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)
        if for_others and directory != path:
            directory.chmod(0o711)


def _open_below(path: Path) -> int | None:
    """The directory that a mount covers, reached through a copy of the mount above it, on which nothing is mounted.
    None where the kernel makes none (before 5.2) or we may not (only root may)."""
    if sys.platform != "linux":
        return None
    parent = os.fsencode(os.path.realpath(path.parent))
    copy = ctypes.CDLL(None).syscall(_SYS_OPEN_TREE, _AT_FDCWD, parent, _OPEN_TREE_CLONE | os.O_CLOEXEC)
    if copy < 0:
        return None
    try:
        return os.open(path.name, _OPEN, dir_fd=copy)
    except OSError:
        return None
    finally:
        os.close(copy)


def _opened_despite_mode_0(path: Path, mode: int | None, refusal: PermissionError) -> int:
    """A killed daemon that was not root leaves the directory with mode 0: its owner cannot open it."""
    try:
        if stat.S_IMODE(path.lstat().st_mode) == 0:
            path.chmod(mode or 0o700)
            return os.open(path, _OPEN)
    except OSError:
        pass
    raise MountpointError(f"{path}: {refusal.strerror}") from None


def _answers(path: Path) -> bool:
    """Whether the mount there has a server. Asked in a process of its own: a hanging mount would keep us."""
    # statvfs(2) always asks; stat(2) may be answered by the kernel from what a mount that is dead by now told it.
    ask = "import os, sys\ntry: os.statvfs(sys.argv[1])\nexcept OSError as e: sys.exit(e.errno)"
    try:
        code = subprocess.run(
            [sys.executable, "-ISc", ask, os.fspath(path)], timeout=STAT_TIMEOUT_S, capture_output=True
        ).returncode
    except subprocess.TimeoutExpired:
        return False
    return code not in (errno.ENOTCONN, errno.ECONNABORTED)


def _table() -> list[Mounted]:
    if sys.platform != "linux":
        return _table_of_mount_command()
    found = []
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            # 36 35 98:0 /root /mount/point options optional... - type source super-options  (proc(5))
            before, _, after = line.partition(b" - ")
            fields, (kind, source, *_) = before.split(b" "), after.split(b" ")
            found.append(Mounted(Path(_plain(fields[4])), fields[2].decode(), kind.decode(), _plain(source)))
    return found


def _plain(field: bytes) -> str:
    """Undo the octal escapes of blanks and backslashes."""
    return os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field))


def _table_of_mount_command() -> list[Mounted]:
    output = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S).stdout
    lines = re.finditer(r"^(.*?) on (.*) \(([^,)]*).*\)$", output, re.MULTILINE)
    return [Mounted(Path(line[2]), f"{line[1]} on {line[2]}", line[3], line[1]) for line in lines]
