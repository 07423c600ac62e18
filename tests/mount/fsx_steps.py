"""Random operations on one file, and on the names of one directory, that two filesystems can be compared by.

Owns the generators, seeded, and how one step is done. ``test_mount_fsx.py`` does each step on a mount and beside it and
compares what came of it; run as a program it does the same for any two directories, for long runs by hand:
``fsx_steps.py file|names MOUNT OTHER SEED STEPS``.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import random
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MOST = 300_000  # bytes of the file, far above what the store keeps in one piece
FALLOC_KEEP_SIZE, FALLOC_PUNCH_HOLE = 1, 2

Step = tuple[str, tuple[Any, ...]]


# One file ---------------------------------------------------------------------------------------------------------


class OneFile:
    """A file under changing descriptors. Each method is one step and returns what can be compared."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.path = top / "file"
        self.handle = -1
        self.reopen(os.O_RDWR | os.O_CREAT)

    def reopen(self, flags: int) -> object:
        if self.handle >= 0:
            os.close(self.handle)
        self.handle = os.open(self.path, flags, 0o644)
        return os.fstat(self.handle).st_size

    def read(self, offset: int, length: int) -> object:
        return digest(os.pread(self.handle, length, offset))

    def write(self, offset: int, data: bytes) -> object:
        return os.pwrite(self.handle, data, offset)

    def append(self, data: bytes) -> object:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            return os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def truncate(self, size: int) -> None:
        os.truncate(self.path, size)

    def ftruncate(self, size: int) -> None:
        os.ftruncate(self.handle, size)

    def map_read(self, offset: int, length: int) -> object:
        size = os.fstat(self.handle).st_size
        if size == 0:
            return None
        with mmap.mmap(self.handle, size, prot=mmap.PROT_READ) as mapped:
            return digest(mapped[offset % size : offset % size + length])

    def map_write(self, offset: int, data: bytes, sync: bool) -> None:
        size = os.fstat(self.handle).st_size
        if size == 0:
            return
        with mmap.mmap(self.handle, size) as mapped:
            at = offset % size
            mapped[at : min(size, at + len(data))] = data[: size - at]
            if sync:
                mapped.flush()

    def allocate(self, offset: int, length: int) -> None:
        os.posix_fallocate(self.handle, offset, length)

    def fsync(self) -> None:
        os.fsync(self.handle)

    def rename(self) -> None:
        os.rename(self.path, self.top / "other")
        os.rename(self.top / "other", self.path)

    def replace(self, data: bytes) -> None:
        """As editors save."""
        (self.top / "new").write_bytes(data)
        os.replace(self.top / "new", self.path)
        self.reopen(os.O_RDWR)

    def copy(self) -> object:
        shutil.copyfile(self.path, self.top / "copy")
        return digest((self.top / "copy").read_bytes())

    def copy_range(self, offset: int, length: int, to: int) -> object:
        """Within one file; ranges that overlap are refused alike."""
        return os.copy_file_range(self.handle, self.handle, length, offset, to)

    def whole(self) -> object:
        return digest(self.path.read_bytes()), os.stat(self.path).st_size, os.fstat(self.handle).st_size

    def truncate_at_open(self) -> object:
        return self.reopen(os.O_RDWR | os.O_TRUNC)

    def unlinked(self, data: bytes) -> object:
        """Go on with the file after its name has gone, then with a new one."""
        os.unlink(self.path)
        os.pwrite(self.handle, data, 7)
        told = digest(os.pread(self.handle, MOST * 2, 0)), os.fstat(self.handle).st_size, os.fstat(self.handle).st_nlink
        self.reopen(os.O_RDWR | os.O_CREAT)
        return told

    def close(self) -> None:
        os.close(self.handle)


def file_steps(seed: int, count: int) -> Iterator[Step]:
    """Like Apple's fsx of 1991: offsets are often at block and page borders."""
    chance = random.Random(seed)

    def place() -> int:
        at = chance.choice((chance.randrange(MOST), chance.randrange(5000), 65536 * chance.randrange(5), 4096))
        return max(0, at + chance.choice((0, 0, -1, 1)))

    def data() -> bytes:
        return chance.randbytes(chance.choice((1, 10, 100, 4096, 4097, 20_000, 65_536, 70_000)))

    kinds: list[tuple[int, Callable[[], Step]]] = [
        (20, lambda: ("read", (place(), chance.randrange(1, 100_000)))),
        (25, lambda: ("write", (place(), data()))),
        (5, lambda: ("append", (data()[:30_000],))),
        (4, lambda: ("truncate", (place(),))),
        (6, lambda: ("ftruncate", (place(),))),
        (6, lambda: ("map_read", (place(), chance.randrange(1, 100_000)))),
        (8, lambda: ("map_write", (place(), data(), chance.random() < 0.5))),
        (3, lambda: ("allocate", (place(), chance.randrange(1, 50_000)))),
        (4, lambda: ("fsync", ())),
        (8, lambda: ("reopen", (os.O_RDWR | chance.choice((0, 0, os.O_SYNC)),))),
        (2, lambda: ("truncate_at_open", ())),
        (2, lambda: ("rename", ())),
        (2, lambda: ("replace", (data(),))),
        (1, lambda: ("copy", ())),
        (2, lambda: ("copy_range", (place(), chance.randrange(1, 50_000), place()))),
        (1, lambda: ("unlinked", (data(),))),
        (4, lambda: ("whole", ())),
    ]
    weights, makers = zip(*kinds, strict=True)
    for _ in range(count):
        yield chance.choices(makers, weights)[0]()
    yield "whole", ()


def digest(data: bytes) -> tuple[int, str]:
    return len(data), hashlib.blake2b(data, digest_size=8).hexdigest()


# Names ------------------------------------------------------------------------------------------------------------


class Names:
    """A small tree in which anything may meet anything."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.open: list[int] = []

    def put(self, name: str, data: bytes, flags: int) -> object:
        descriptor = os.open(self.top / name, flags | os.O_WRONLY, 0o644)
        try:
            return os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def mkdir(self, name: str, mode: int) -> None:
        os.mkdir(self.top / name, mode)

    def rmdir(self, name: str) -> None:
        os.rmdir(self.top / name)

    def unlink(self, name: str) -> None:
        os.unlink(self.top / name)

    def rename(self, name: str, new: str) -> None:
        os.rename(self.top / name, self.top / new)

    def symlink(self, target: str, name: str) -> None:
        os.symlink(target, self.top / name)

    def truncate(self, name: str, size: int) -> None:
        os.truncate(self.top / name, size)

    def chmod(self, name: str, mode: int) -> None:
        os.chmod(self.top / name, mode)

    def utime(self, name: str, at: int) -> None:
        os.utime(self.top / name, (at, at), follow_symlinks=False)

    def hold(self, name: str) -> None:
        self.open.append(os.open(self.top / name, os.O_RDWR))

    def use(self, which: int, data: bytes, drop: bool) -> object:
        if not self.open:
            return None
        descriptor = self.open[which % len(self.open)]
        told = os.pwrite(descriptor, data, 3), digest(os.pread(descriptor, 100_000, 0)), os.fstat(descriptor).st_nlink
        if drop:
            self.open.remove(descriptor)
            os.close(descriptor)
        return told

    def stat(self, name: str) -> object:
        at = os.stat(self.top / name)
        return stat.filemode(at.st_mode), at.st_nlink, 0 if stat.S_ISDIR(at.st_mode) else at.st_size

    def get(self, name: str) -> object:
        return digest((self.top / name).read_bytes())

    def list(self, name: str) -> object:
        return sorted(os.listdir(self.top / name))

    def readlink(self, name: str) -> object:
        return os.readlink(self.top / name)

    def whole(self) -> object:
        return whole(self.top)

    def close(self) -> None:
        for descriptor in self.open:
            os.close(descriptor)


def whole(top: Path) -> dict[str, object]:
    """Names, modes, link counts, sizes, bytes and targets of a tree."""
    found: dict[str, object] = {}
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        for name in sorted(os.listdir(folder)):
            path = folder / name
            at = path.lstat()
            said: tuple[object, ...] = (stat.filemode(at.st_mode), at.st_nlink)
            if stat.S_ISDIR(at.st_mode):
                waiting.append(path)
            elif stat.S_ISLNK(at.st_mode):
                said += (os.readlink(path), at.st_size)
            else:
                said += (at.st_size, digest(path.read_bytes()))
            found[os.path.relpath(path, top)] = said
    return found


def name_steps(seed: int, count: int) -> Iterator[Step]:
    chance = random.Random(seed)
    parts = ("a", "b", "c", "note.md", "note.md~", ".note.md.swp", "4913")

    def name() -> str:
        return "/".join(chance.choice(parts) for _ in range(chance.choice((1, 1, 1, 2, 2, 3))))

    def data() -> bytes:
        return chance.randbytes(chance.choice((0, 1, 50, 5000, 70_000)))

    created = os.O_CREAT
    kinds: list[tuple[int, Callable[[], Step]]] = [
        (12, lambda: ("put", (name(), data(), created | chance.choice((0, os.O_TRUNC, os.O_EXCL, os.O_APPEND))))),
        (4, lambda: ("put", (name(), data(), chance.choice((0, os.O_TRUNC, os.O_APPEND, os.O_NOFOLLOW))))),
        (8, lambda: ("mkdir", (name(), chance.choice((0o755, 0o700, 0o777))))),
        (4, lambda: ("rmdir", (name(),))),
        (5, lambda: ("unlink", (name(),))),
        (14, lambda: ("rename", (name(), name()))),
        (3, lambda: ("symlink", (name(), name()))),
        (3, lambda: ("truncate", (name(), chance.randrange(100_000)))),
        (3, lambda: ("chmod", (name(), chance.choice((0o644, 0o755, 0o600))))),
        (2, lambda: ("utime", (name(), chance.randrange(2**31)))),
        (3, lambda: ("hold", (name(),))),
        (5, lambda: ("use", (chance.randrange(100), data(), chance.random() < 0.3))),
        (6, lambda: ("stat", (name(),))),
        (6, lambda: ("get", (name(),))),
        (3, lambda: ("list", (name(),))),
        (2, lambda: ("readlink", (name(),))),
        (2, lambda: ("whole", ())),
    ]
    weights, makers = zip(*kinds, strict=True)
    for _ in range(count):
        yield chance.choices(makers, weights)[0]()
    yield "whole", ()


# Both -------------------------------------------------------------------------------------------------------------


def outcome(subject: OneFile | Names, step: Step) -> object:
    """What a step returns, or its errno."""
    what, arguments = step
    try:
        return getattr(subject, what)(*arguments)
    except OSError as e:
        return errno.errorcode.get(e.errno or 0, e.errno)


def shown(step: Step) -> str:
    what, arguments = step
    return f"{what}({', '.join(f'<{len(a)} bytes>' if isinstance(a, bytes) else repr(a) for a in arguments)})"


def compare(
    one: OneFile | Names, other: OneFile | Names, steps: Iterator[Step], look: Callable[[int], None] | None = None
) -> int:
    """Do the steps on both. Fails at the first that differs, with the steps before it. ``look`` runs after each."""
    before: list[str] = []
    number = 0
    try:
        for number, step in enumerate(steps):
            before.append(shown(step))
            first, second = outcome(one, step), outcome(other, step)
            if first != second:
                tail = "\n".join(before[-25:])
                raise AssertionError(f"step {number}: {_differing(first, second)}\nafter:\n{tail}")
            if look is not None:
                look(number)
    finally:
        one.close()
        other.close()
    return number


def _differing(first: object, second: object) -> str:
    if isinstance(first, dict) and isinstance(second, dict):
        keys = [key for key in sorted({*first, *second}) if first.get(key) != second.get(key)]
        return "; ".join(f"{key}: {first.get(key)!r} != {second.get(key)!r}" for key in keys)
    return f"{first!r} != {second!r}"


def main(kind: str, mount: str, own: str, seed: str, steps: str) -> None:
    here, there = Path(mount), Path(own)
    if kind == "file":
        done = compare(OneFile(here), OneFile(there), file_steps(int(seed), int(steps)))
    else:
        done = compare(Names(here), Names(there), name_steps(int(seed), int(steps)))
    print(f"{kind}: seed {seed}, {done} steps alike")


if __name__ == "__main__":
    main(*sys.argv[1:])
