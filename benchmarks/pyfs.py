"""The mfusepy baseline: what minifs.c is, written the usual way in Python.

    python -m benchmarks.pyfs MOUNTPOINT [--nothreads]

Files and directories in memory, paths in one dictionary, all kernel timeouts 0, as in minifs. Nothing is clever here
on purpose: it is the filesystem that one would write on mfusepy, with libfuse's threads unless told otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import scratch_directory, served_mount


@dataclass
class _Node:
    mode: int
    data: bytearray = field(default_factory=bytearray)
    names: dict[str, None] = field(default_factory=dict)  # of a directory, in order of creation
    changed: int = field(default_factory=time.time_ns)


@contextlib.contextmanager
def mounted_pyfs(*, threads: bool) -> Iterator[Path]:
    """An empty one, in a process of its own, mounted in a temporary directory."""
    with scratch_directory(Path(tempfile.gettempdir())) as folder:
        mountpoint = folder / "mnt"
        mountpoint.mkdir()
        command = [sys.executable, "-m", "benchmarks.pyfs", str(mountpoint), *([] if threads else ["--nothreads"])]
        with served_mount(command, mountpoint, folder / "log"):
            yield mountpoint


def serve(mountpoint: str, *, threads: bool) -> None:
    """Mount and answer until it is unmounted."""
    import mfusepy  # late: it loads libfuse, which the scripts themselves do not need

    class Filesystem(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def __init__(self) -> None:
            self.nodes = {"/": _Node(stat.S_IFDIR | 0o755)}
            self.open_files: dict[int, _Node] = {}
            self.numbers = itertools.count(1)

        def find(self, path: str) -> _Node:
            try:
                return self.nodes[path]
            except KeyError:
                raise mfusepy.FuseOSError(errno.ENOENT) from None

        def add(self, path: str, node: _Node) -> None:
            parent, _, name = path.rpartition("/")
            self.find(parent or "/").names[name] = None
            self.nodes[path] = node

        def drop(self, path: str) -> _Node:
            parent, _, name = path.rpartition("/")
            del self.find(parent or "/").names[name]
            return self.nodes.pop(path)

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            node = self.find(path)
            return {
                "st_mode": node.mode,
                "st_nlink": 1,
                "st_size": len(node.data),
                "st_uid": os.getuid(),
                "st_gid": os.getgid(),
                "st_atime": node.changed,
                "st_mtime": node.changed,
                "st_ctime": node.changed,
            }

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *self.find(path).names]

        def mkdir(self, path: str, mode: int) -> int:
            self.add(path, _Node(stat.S_IFDIR | mode))
            return 0

        def rmdir(self, path: str) -> int:
            if self.find(path).names:
                raise mfusepy.FuseOSError(errno.ENOTEMPTY)
            self.drop(path)
            return 0

        def handle(self, node: _Node) -> int:
            number = next(self.numbers)
            self.open_files[number] = node
            return number

        def create(self, path: str, mode: int, fi: object = None) -> int:
            node = _Node(stat.S_IFREG | mode)
            self.add(path, node)
            return self.handle(node)

        def open(self, path: str, flags: int) -> int:
            return self.handle(self.find(path))

        def release(self, path: str, fh: int) -> int:
            del self.open_files[fh]
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return bytes(self.open_files[fh].data[offset : offset + size])

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            node = self.open_files[fh]
            if len(node.data) < offset:
                node.data.extend(bytes(offset - len(node.data)))
            node.data[offset : offset + len(data)] = data
            node.changed = time.time_ns()
            return len(data)

        def truncate(self, path: str, length: int, fh: int | None = None) -> int:
            node = self.find(path)
            node.data = node.data[:length] + bytes(max(0, length - len(node.data)))
            node.changed = time.time_ns()
            return 0

        def unlink(self, path: str) -> int:
            self.drop(path)
            return 0

        def rename(self, old: str, new: str) -> int:
            if stat.S_ISDIR(self.find(old).mode):
                raise mfusepy.FuseOSError(errno.ENOSYS)  # no benchmark here moves a directory
            if new in self.nodes:
                self.drop(new)
            self.add(new, self.drop(old))
            return 0

    mfusepy.FUSE(
        Filesystem(),
        mountpoint,
        foreground=True,
        nothreads=not threads,
        entry_timeout=0,
        attr_timeout=0,
        negative_timeout=0,
        default_permissions=True,
    )


if __name__ == "__main__":
    serve(sys.argv[1], threads="--nothreads" not in sys.argv)
