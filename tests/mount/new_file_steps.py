"""What can be asked of a file that has just been made and is still open, so that two filesystems can be compared by it.

Owns the steps and the hands that do them: one that makes ``new`` in a directory of its own, does some steps and closes
it. ``test_mount_new_files.py`` does the same on a mount and beside it. No answer holds a time or an inode number.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NEW = os.O_WRONLY | os.O_CREAT
PAUSES = (0.0, 0.002, 0.05)  # at once, soon, and after whatever may be put off


def errno_of(function: Callable[..., object], *arguments: Any) -> str:
    try:
        function(*arguments)
    except OSError as e:
        return errno.errorcode.get(e.errno or 0, str(e.errno))
    return "ok"


def closes(descriptor: int) -> str:
    return errno_of(os.close, descriptor)


def opened(path: Path, flags: int, mode: int = 0o644) -> None:
    os.close(os.open(path, flags, mode))


def used(*directories: Path) -> None:
    """No file of the test shall be the first that its mount makes in a directory: that one may be a case of its own."""
    for directory in directories:
        (directory / "the first").touch()
        (directory / "the first").unlink()


@contextmanager
def created(path: Path, flags: int = NEW | os.O_TRUNC, data: bytes = b"", mode: int = 0o644) -> Iterator[int]:
    """The descriptor of a file that has just been made."""
    descriptor = os.open(path, flags, mode)
    try:
        if data:
            assert os.write(descriptor, data) == len(data)
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass
class Hands:
    """A directory of one's own, in it ``old``, ``near/other`` and ``new``, which has just been made and is open."""

    top: Path
    fd: int = -1
    name: str = "new"

    @property
    def path(self) -> Path:
        return self.top / self.name

    def make(self, flags: int, data: bytes) -> None:
        (self.top / "old").write_bytes(b"the old one")
        (self.top / "near").mkdir()
        (self.top / "near/other").write_bytes(b"other")
        os.utime(self.top, (1, 1))
        self.fd = os.open(self.path, flags, 0o644)
        if data:
            os.write(self.fd, data)

    def does(self, step: str) -> object:
        try:
            return STEPS[step](self)
        except OSError as e:
            return errno.errorcode.get(e.errno or 0, e.errno)

    def end(self, data: bytes) -> object:
        told = os.write(self.fd, data) if data else 0, os.fstat(self.fd).st_nlink, os.fstat(self.fd).st_size
        os.close(self.fd)
        return told


def _same(h: Hands, at: os.stat_result) -> tuple[object, ...]:
    mine = os.fstat(h.fd)
    return (
        at.st_ino == mine.st_ino,
        at.st_ino == mine.st_ino and at.st_mtime_ns == mine.st_mtime_ns,
        at.st_mode,
        at.st_nlink,
        at.st_uid,
        at.st_gid,
        at.st_size,
        mine.st_size,
    )


def _entries(h: Hands) -> object:
    with os.scandir(h.top) as entries:
        return sorted((e.name, e.is_file() and e.stat().st_size, e.inode() == os.fstat(h.fd).st_ino) for e in entries)


def _from_above(h: Hands) -> object:
    with os.scandir(h.top.parent) as entries:
        return [e.stat().st_mtime > 1 for e in entries if e.name == h.top.name]


def _other(flags: int, data: bytes = b"") -> Callable[[Hands], object]:
    """What another descriptor of the same path reads, and then writes."""

    def step(h: Hands) -> object:
        descriptor = os.open(h.path, flags, 0o600)
        try:
            found = os.read(descriptor, 100) if flags & os.O_ACCMODE != os.O_WRONLY else b""
            return found, os.write(descriptor, data) if data else 0, _same(h, os.fstat(descriptor))
        finally:
            os.close(descriptor)

    return step


def _renamed(h: Hands) -> object:
    h.path.rename(h.top / "renamed")
    h.name = "renamed"
    return sorted(os.listdir(h.top))


def _moved(h: Hands) -> object:
    (h.top / "below").mkdir(exist_ok=True)
    h.path.rename(h.top / "below/moved")
    h.name = "below/moved"
    return os.listdir(h.top / "below")


def _top_renamed(h: Hands) -> object:
    top = h.top.with_name(f"{h.top.name}-")
    h.top.rename(top)
    h.top = top
    return sorted(os.listdir(top))


def _saved(h: Hands) -> object:
    """As editors save: a new one with other bytes takes the name."""
    (h.top / "save").write_bytes(b"saved")
    os.replace(h.top / "save", h.path)
    return h.path.read_bytes(), os.fstat(h.fd).st_nlink


def _kept_aside(h: Hands) -> object:
    h.path.rename(h.top / "aside")
    h.path.write_bytes(b"in its place")
    return (h.top / "aside").read_bytes(), h.path.read_bytes()


def _unlinked(h: Hands) -> object:
    h.path.unlink()
    return os.fstat(h.fd).st_nlink, os.fstat(h.fd).st_size, h.path.exists(), sorted(os.listdir(h.top))


def _unlinked_and_anew(h: Hands) -> object:
    h.path.unlink()
    gone = h.path.exists(), os.fstat(h.fd).st_nlink
    h.path.write_bytes(b"another")
    return gone, h.path.read_bytes(), os.fstat(h.fd).st_size


def _sought(h: Hands) -> object:
    """Any filesystem may say that there is data where zeros are; but not where the end is."""
    end = os.fstat(h.fd).st_size
    hole = os.lseek(h.fd, 0, os.SEEK_HOLE) if end else 0
    data = errno_of(os.lseek, h.fd, end, os.SEEK_DATA)
    return os.lseek(h.fd, 0, os.SEEK_END), hole <= end, data


def _mapped(h: Hands) -> object:
    """In a process of its own, which a mapping beyond the end of the file would kill."""
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            if h.path.stat().st_size:
                with h.path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
                    os.write(writing, mapped)
                    mapped[0:1] = b"M"
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        return pipe.read(), os.waitpid(child, 0)[1]


def _replaced_from_below(h: Hands) -> object:
    (h.top / "near/other").rename(h.path)
    return h.path.read_bytes(), os.fstat(h.fd).st_nlink


def _dup_closed(h: Hands) -> object:
    return os.close(os.dup(h.fd)), h.path.read_bytes()


def _appends(h: Hands) -> object:
    fcntl.fcntl(h.fd, fcntl.F_SETFL, os.O_APPEND)
    return _other(os.O_WRONLY | os.O_APPEND, b"+other")(h), os.write(h.fd, b"+own")


def _locked(how: Callable[[int, int], object]) -> Callable[[Hands], object]:
    def step(h: Hands) -> object:
        how(h.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other = os.open(h.path, os.O_RDWR)
        try:
            return errno_of(how, other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(other)

    return step


def _utimes(h: Hands) -> object:
    os.utime(h.fd, (5, 6))
    at = os.fstat(h.fd)
    return at.st_atime, at.st_mtime, _same(h, os.stat(h.path))


def _in_its_directory(h: Hands) -> object:
    directory = os.open(h.top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return _same(h, os.stat(h.name, dir_fd=directory, follow_symlinks=False)), sorted(os.listdir(directory))
    finally:
        os.close(directory)


def _directory_synced(h: Hands) -> None:
    directory = os.open(h.top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _through_a_link(h: Hands) -> object:
    (h.top / "link").symlink_to(h.name)
    return (h.top / "link").read_bytes(), errno_of(os.readlink, h.path)


STEPS: dict[str, Callable[[Hands], Any]] = {
    "stat": lambda h: _same(h, os.stat(h.path)),
    "stat in the directory": _in_its_directory,
    "listdir": lambda h: sorted(os.listdir(h.top)),
    "scandir": _entries,
    "access": lambda h: [os.access(h.path, how) for how in (os.F_OK, os.R_OK, os.W_OK, os.X_OK)],
    "time of the directory": lambda h: (os.stat(h.top).st_mtime > 1, os.stat(h.top).st_nlink),
    "time of the directory in the one above": _from_above,
    "read": _other(os.O_RDONLY),
    "write": _other(os.O_WRONLY, b"OTHER"),
    "read and write": _other(os.O_RDWR, b"OTHER"),
    "truncate at open": _other(os.O_RDWR | os.O_TRUNC, b"T"),
    "create what is there": _other(os.O_RDWR | os.O_CREAT, b"C"),
    "create what is there, empty": _other(NEW | os.O_TRUNC, b"CT"),
    "append": _other(os.O_WRONLY | os.O_APPEND, b"+A"),
    "O_APPEND by fcntl": _appends,
    "exclusive": lambda h: opened(h.path, NEW | os.O_EXCL),
    "O_NOFOLLOW": lambda h: opened(h.path, os.O_RDONLY | os.O_NOFOLLOW),
    "as a directory": lambda h: opened(h.path, os.O_RDONLY | os.O_DIRECTORY),
    "below it": lambda h: os.stat(h.path / "x"),
    "list it": lambda h: os.listdir(h.path),
    "mkdir": lambda h: h.path.mkdir(),
    "symlink": lambda h: h.path.symlink_to("x"),
    "mknod": lambda h: os.mknod(h.path),
    "rmdir it": lambda h: h.path.rmdir(),
    "rmdir its directory": lambda h: h.top.rmdir(),
    "unlink": _unlinked,
    "unlink and make anew": _unlinked_and_anew,
    "rename": _renamed,
    "rename over the old one": lambda h: (h.path.rename(h.top / "old"), (h.top / "old").read_bytes())[1],
    "rename the old one over it": lambda h: ((h.top / "old").rename(h.path), os.fstat(h.fd).st_nlink)[1],
    "rename one from below over it": _replaced_from_below,
    "rename a directory over it": lambda h: ((h.top / "d").mkdir(), (h.top / "d").rename(h.path))[0],
    "rename it over a directory": lambda h: ((h.top / "e").mkdir(), h.path.rename(h.top / "e"))[0],
    "rename to a directory": _moved,
    "rename its directory": _top_renamed,
    "save": _saved,
    "rename away and make anew": _kept_aside,
    "remove the tree": lambda h: shutil.rmtree(h.top),
    "ftruncate": lambda h: (os.ftruncate(h.fd, 3), os.stat(h.path).st_size, h.path.read_bytes()),
    "truncate": lambda h: (os.truncate(h.path, 2), os.fstat(h.fd).st_size),
    "fchmod": lambda h: (os.fchmod(h.fd, 0o600), os.stat(h.path).st_mode, os.fstat(h.fd).st_mode),
    "chmod": lambda h: (os.chmod(h.path, 0o755), os.fstat(h.fd).st_mode),
    "chmod to none": lambda h: (os.chmod(h.path, 0), os.fstat(h.fd).st_mode),
    "fchown": lambda h: (os.fchown(h.fd, os.geteuid(), os.getegid()), _same(h, os.stat(h.path))),
    "utimes": _utimes,
    "touch": lambda h: (h.path.touch(), _same(h, os.stat(h.path))),
    "dup and close": _dup_closed,
    "fsync": lambda h: (os.fsync(h.fd), _same(h, os.stat(h.path))),
    "fdatasync": lambda h: os.fdatasync(h.fd),
    "fsync the directory": _directory_synced,
    "fallocate": lambda h: (os.posix_fallocate(h.fd, 0, 10), os.stat(h.path).st_size, h.path.read_bytes()),
    "seek data and holes": _sought,
    "write far away": lambda h: (os.pwrite(h.fd, b"far", 5000), os.stat(h.path).st_size, h.path.read_bytes()),
    "fcntl lock": _locked(fcntl.lockf),
    "flock": _locked(fcntl.flock),
    "mmap": _mapped,
    "/proc/self/fd": lambda h: (Path(f"/proc/self/fd/{h.fd}").read_bytes(), os.readlink(f"/proc/self/fd/{h.fd}")[-6:]),
    "link": _through_a_link,
    "copy": lambda h: (shutil.copyfile(h.path, h.top / "copy"), (h.top / "copy").read_bytes())[1],
    "wait": lambda h: time.sleep(0.025),
}
