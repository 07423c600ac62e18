"""One of several that change a tree at once, each in a part of its own, and see after every step what is there.

Run as a program: the directory on each mount, this worker's name, a seed, how many seconds. It keeps a model of its
part; whatever has returned must be what the model says, on every mount at once: kind, bytes, mode, links, names. Ends
with a line of what it has done; a difference ends it with an error.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import stat
import sys
import time
from typing import Any

EXCHANGE = 2  # RENAME_EXCHANGE
STEPS_A_S = 20  # at least
AT_FDCWD = -100
_libc = ctypes.CDLL(None, use_errno=True)

Entry = tuple[Any, ...]
"""("d", mode), ("f", bytes, mode) or ("l", target)"""


def exchange(one: str, other: str) -> None:
    if _libc.renameat2(AT_FDCWD, one.encode(), AT_FDCWD, other.encode(), EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2", one)


class Worker:
    """See the module. A path in the model is ``p/a`` or, in a directory made there, ``p/a/x``."""

    def __init__(self, tops: list[str], name: str, seed: int) -> None:
        self.roots = [f"{top}/{name}" for top in tops]
        self.root = self.roots[0]
        self.chance = random.Random(f"{name} {seed}")
        self.model: dict[str, Entry] = {}
        self.number = 0
        for path in (self.root, f"{self.root}/p", f"{self.root}/q"):
            os.mkdir(path)

    def run(self, seconds: float) -> None:
        steps = (
            self.mkdir,
            self.fill,
            self.write,
            self.write,
            self.append,
            self.link,
            self.rename,
            self.rename,
            self.save,
            self.exchange,
            self.remove,
            self.remove,
            self.chmod,
            self.truncate,
        )
        end = time.monotonic() + seconds
        while time.monotonic() < end or self.number <= STEPS_A_S * seconds:  # as many on a busy machine
            self.number += 1
            self.root = self.chance.choice(self.roots)
            step = self.chance.choice(steps)
            touched = step(self._path())
            for root in self.chance.sample(self.roots, len(self.roots)):
                for path in (*touched, self.chance.choice("pq")):
                    seen, due = self.seen(f"{root}/{path}"), self.due(path)
                    assert seen == due, (
                        f"{self.number}: after {step.__name__} of {touched}, {root}/{path}: {seen}, not {due}"
                    )

    def _path(self) -> str:
        return f"{self.chance.choice('pq')}/{self.chance.choice('abcd')}"

    def _kind(self, path: str) -> str:
        return str(self.model[path][0]) if path in self.model else ""

    def below(self, path: str) -> list[str]:
        return [found for found in self.model if found.startswith(f"{path}/")]

    def seen(self, path: str) -> Entry | None:
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(found.st_mode):
            return "l", os.readlink(path)
        if stat.S_ISDIR(found.st_mode):
            return "d", stat.S_IMODE(found.st_mode), found.st_nlink, sorted(os.listdir(path))
        with open(path, "rb") as file:
            return "f", file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode)

    def due(self, path: str) -> Entry | None:
        entry = self.model.get(path, ("d", 0o755) if path in ("p", "q") else None)
        if entry is None or entry[0] != "d":
            return entry
        names = [found for found in self.below(path) if found.count("/") == path.count("/") + 1]
        links = 2 + sum(self._kind(name) == "d" for name in names)
        return *entry, links, sorted(name.rpartition("/")[2] for name in names)

    # Steps: each does one thing, notes it, and returns the paths that it was about -------------------------

    def mkdir(self, path: str) -> list[str]:
        try:
            os.mkdir(f"{self.root}/{path}", 0o755)
        except FileExistsError:
            assert path in self.model, f"mkdir of {path}: it is there"
        else:
            assert path not in self.model, f"mkdir of {path} went over {self.model[path]}"
            self.model[path] = "d", 0o755
        return [path]

    def fill(self, path: str) -> list[str]:
        inner = f"{path}/{self.chance.choice('xy')}"
        if self._kind(path) != "d" or inner in self.model:
            return []
        os.mkdir(f"{self.root}/{inner}")
        os.rmdir(f"{self.root}/{inner}")
        return [path, *self.write(inner)]

    def write(self, path: str) -> list[str]:
        if self._kind(path) not in ("", "f"):
            return []
        data = b"%d " % self.number * self.chance.randrange(40)
        with open(f"{self.root}/{path}", "wb") as file:
            file.write(data)
        self.model[path] = "f", data, self.model[path][2] if path in self.model else 0o644
        return [path]

    def append(self, path: str) -> list[str]:
        if self._kind(path) not in ("", "f"):
            return []
        descriptor = os.open(f"{self.root}/{path}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(descriptor, b"more")
        os.close(descriptor)
        before = self.model.get(path, ("f", b"", 0o644))
        self.model[path] = "f", before[1] + b"more", before[2]
        return [path]

    def save(self, path: str) -> list[str]:
        """As an editor does."""
        if self._kind(path) not in ("", "f"):
            return []
        self.model.pop(f"{path}~", None)
        self.write(f"{path}~")
        os.replace(f"{self.root}/{path}~", f"{self.root}/{path}")
        self.model[path] = self.model.pop(f"{path}~")
        return [path, f"{path}~"]

    def link(self, path: str) -> list[str]:
        if self._kind(path) == "d":
            return []
        os.symlink(str(self.number), f"{self.root}/{path}~")
        os.replace(f"{self.root}/{path}~", f"{self.root}/{path}")
        self.model[path] = "l", str(self.number)
        return [path, f"{path}~"]

    def rename(self, path: str) -> list[str]:
        new = self._path()
        kinds = self._kind(path), self._kind(new)
        try:
            os.rename(f"{self.root}/{path}", f"{self.root}/{new}")
        except OSError as e:
            due = {
                errno.ENOENT: not kinds[0],
                errno.ENOTDIR: kinds[0] == "d" and kinds[1] in ("f", "l"),
                errno.EISDIR: kinds[0] in ("f", "l") and kinds[1] == "d",
                errno.ENOTEMPTY: kinds == ("d", "d") and bool(self.below(new)),
            }
            assert due.get(e.errno or 0), f"rename of {path} {kinds[0]} to {new} {kinds[1]}: {e}"
        else:
            assert kinds[0], f"rename of {path}, which is not there"
            if path != new:
                self.model.pop(new, None)
                for found in [path, *self.below(path)]:
                    self.model[new + found[len(path) :]] = self.model.pop(found)
        return [path, new]

    def exchange(self, path: str) -> list[str]:
        other = self._path()
        if path == other or path not in self.model or other not in self.model:
            return []
        exchange(f"{self.root}/{path}", f"{self.root}/{other}")
        moved = {}
        for one, two in ((path, other), (other, path)):
            for found in [one, *self.below(one)]:
                moved[two + found[len(one) :]] = self.model[found]
        for found in [path, other, *self.below(path), *self.below(other)]:
            del self.model[found]
        self.model.update(moved)
        return [path, other]

    def remove(self, path: str) -> list[str]:
        if path not in self.model:
            return []
        for inner in self.below(path):
            os.unlink(f"{self.root}/{inner}")
            del self.model[inner]
        (os.rmdir if self._kind(path) == "d" else os.unlink)(f"{self.root}/{path}")
        del self.model[path]
        return [path]

    def chmod(self, path: str) -> list[str]:
        if self._kind(path) not in ("d", "f"):
            return []
        mode = self.chance.choice((0o600, 0o700, 0o755, 0o644))
        os.chmod(f"{self.root}/{path}", mode)
        self.model[path] = *self.model[path][:-1], mode
        return [path]

    def truncate(self, path: str) -> list[str]:
        if self._kind(path) != "f":
            return []
        size = self.chance.randrange(60)
        os.truncate(f"{self.root}/{path}", size)
        _, data, mode = self.model[path]
        self.model[path] = "f", data[:size].ljust(size, b"\0"), mode
        return [path]


if __name__ == "__main__":
    worker = Worker(sys.argv[1].split(":"), sys.argv[2], int(sys.argv[3]))
    worker.run(float(sys.argv[4]))
    print(f"{worker.number} steps")
