"""The floor: the least that a filesystem in Python can do whose commits go through one writer process.

    python -m benchmarks.leanfs MOUNTPOINT DATABASE

Names, sizes and bytes are in dictionaries of this process, one thread reads /dev/fuse and answers at once, and the
kernel may keep every name and attribute for an hour, for nobody else changes them. No rights, views, handles' state for
a successor, other mounts, history or index. What must be durable goes to a second process over a Unix socket, which
runs the statements of bare_rows.py and answers when they are on the disk. What avmfs takes longer than this is what its
promises cost; what this takes longer than "C+SQLite" is what Python and a single writer cost, whatever is on top.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from avmfs import wire
from avmfs.fuse import device
from avmfs.fuse import protocol as p
from avmfs.fuse.protocol import Op
from benchmarks.bare_rows import BareRows
from benchmarks.harness import scratch_directory, served_mount

LONG_S = 3600
MAX_WRITE = 1 << 17
_HEADER = p.IN_HEADER.size
_ENOENT = errno.ENOENT


@contextlib.contextmanager
def mounted_leanfs(local: Path) -> Iterator[Path]:
    """An empty one, in processes of its own, mounted in a temporary directory; its database is below ``local``."""
    with scratch_directory(Path(tempfile.gettempdir())) as folder, scratch_directory(local) as disk:
        mountpoint = folder / "mnt"
        mountpoint.mkdir()
        command = [sys.executable, "-m", "benchmarks.leanfs", str(mountpoint), str(disk / "lean.db")]
        with served_mount(command, mountpoint, folder / "log"):
            yield mountpoint


@dataclass
class _Node:
    number: int
    parent: int
    name: bytes
    mode: int
    data: bytes = b""
    names: dict[bytes, int] = field(default_factory=dict)
    changed: int = field(default_factory=time.time_ns)


@dataclass
class _Open:
    node: _Node
    appends: bool
    fresh: bool  # created by this handle
    written: list[bytes] = field(default_factory=list)


class _Writer:
    """The other end: one request, one answer."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def run(self, operation: str, *values: object) -> None:
        wire.send(self._sock, [operation, *values])
        if wire.receive(self._sock) is not True:
            raise OSError(errno.EIO, operation)


def write_for(sock: socket.socket, database: Path) -> None:
    """Be the writer, until the other side goes."""
    rows = BareRows(database, "lean")
    with contextlib.suppress(EOFError):
        while True:
            operation, *values = wire.receive(sock)
            getattr(rows, operation)(*values)
            wire.send(sock, True)


class LeanFilesystem:
    def __init__(self, descriptor: int, writer: _Writer) -> None:
        self._fd, self._writer = descriptor, writer
        self._nodes = {1: _Node(1, 1, b"", stat.S_IFDIR | 0o755)}
        self._open: dict[int, _Open] = {}
        self._numbers, self._handles = itertools.count(2), itertools.count(1)
        self._listed: dict[int, list[bytes]] = {}
        self._answers: dict[int, Callable[[int, memoryview], bytes]] = {
            Op.INIT: self._init,
            Op.LOOKUP: self._lookup,
            Op.GETATTR: self._getattr,
            Op.OPEN: self._open_file,
            Op.CREATE: self._create,
            Op.READ: self._read,
            Op.WRITE: self._write,
            Op.FLUSH: self._flush,
            Op.RELEASE: self._release,
            Op.MKDIR: self._mkdir,
            Op.UNLINK: self._unlink,
            Op.RMDIR: self._rmdir,
            Op.RENAME: self._rename,
            Op.OPENDIR: self._open_directory,
            Op.READDIR: self._list,
            Op.RELEASEDIR: self._release,
        }

    def serve(self) -> None:
        buffer = bytearray(MAX_WRITE + (1 << 16))
        view, buffers, brief = memoryview(buffer), [buffer], p.IN_BRIEF.unpack_from
        while True:
            try:
                size = os.readv(self._fd, buffers)
            except OSError as e:
                if e.errno == errno.ENODEV:
                    return
                raise
            op, unique, node, _ = brief(buffer)
            if op in (Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT):
                continue
            answer, error, body = self._answers.get(op), errno.ENOSYS, b""
            if answer is not None:
                try:
                    error, body = 0, answer(node, view[_HEADER:size])
                except OSError as e:
                    error = e.errno or errno.EIO
            os.write(self._fd, p.OUT_HEADER.pack(p.OUT_HEADER.size + len(body), -error, unique) + body)

    def _init(self, node: int, body: memoryview) -> bytes:
        _, minor, readahead, offered = p.INIT_IN.unpack_from(body)
        wanted = int(p.Init.ATOMIC_O_TRUNC | p.Init.BIG_WRITES | p.Init.PARALLEL_DIROPS) & offered
        return p.INIT_OUT.pack(
            p.MAJOR, min(minor, p.MINOR), readahead, wanted, 64, 48, MAX_WRITE, 1, MAX_WRITE // 4096, 0, 0, 0, 0
        )

    # Names ------------------------------------------------------------------------------------------------

    def _child(self, parent: int, name: bytes) -> _Node:
        number = self._nodes[parent].names.get(name)
        if number is None:
            raise OSError(_ENOENT, "no such name")
        return self._nodes[number]

    def _lookup(self, node: int, body: memoryview) -> bytes:
        return self._entry(self._child(node, _name(body)))

    def _getattr(self, node: int, body: memoryview) -> bytes:
        return p.ATTR_OUT.pack(LONG_S, 0, 0) + _attributes(self._nodes[node])

    def _add(self, parent: int, name: bytes, mode: int) -> _Node:
        if name in self._nodes[parent].names:
            raise OSError(errno.EEXIST, "it exists")
        made = _Node(next(self._numbers), parent, name, mode)
        self._nodes[made.number] = made
        self._nodes[parent].names[name] = made.number
        return made

    def _mkdir(self, node: int, body: memoryview) -> bytes:
        return self._entry(self._add(node, _name(body[p.MKDIR_IN.size :]), stat.S_IFDIR | 0o755))

    def _create(self, node: int, body: memoryview) -> bytes:
        made = self._add(node, _name(body[p.CREATE_IN.size :]), stat.S_IFREG | 0o644)
        self._writer.run("create_name", self._path(made))
        return self._entry(made) + self._handle(_Open(made, appends=False, fresh=True))

    def _unlink(self, node: int, body: memoryview) -> bytes:
        gone = self._child(node, _name(body))
        self._writer.run("unlink", self._path(gone))
        del self._nodes[node].names[gone.name]
        return b""

    def _rmdir(self, node: int, body: memoryview) -> bytes:
        gone = self._child(node, _name(body))
        if gone.names:
            raise OSError(errno.ENOTEMPTY, "not empty")
        del self._nodes[node].names[gone.name]
        return b""

    def _rename(self, node: int, body: memoryview) -> bytes:
        to = p.RENAME_IN.unpack_from(body)[0]
        old, new, _ = bytes(body[p.RENAME_IN.size :]).split(b"\0")
        moved = self._child(node, old)
        before = self._path(moved)
        del self._nodes[node].names[old]
        self._nodes[to].names[new] = moved.number
        moved.parent, moved.name = to, new
        self._writer.run("rename", before, self._path(moved))
        return b""

    def _path(self, node: _Node) -> str:
        names = []
        while node.number != 1:
            names.append(node.name.decode())
            node = self._nodes[node.parent]
        return "/".join(reversed(names))

    # Open files -------------------------------------------------------------------------------------------

    def _handle(self, opened: _Open) -> bytes:
        number = next(self._handles)
        self._open[number] = opened
        return p.OPEN_OUT.pack(number, 0, 0)

    def _open_file(self, node: int, body: memoryview) -> bytes:
        flags, _ = p.OPEN_IN.unpack_from(body)
        if flags & os.O_TRUNC:
            self._nodes[node].data = b""
        return self._handle(_Open(self._nodes[node], appends=bool(flags & os.O_APPEND), fresh=False))

    def _read(self, node: int, body: memoryview) -> bytes:
        _, offset, size, *_ = p.READ_IN.unpack_from(body)
        return self._nodes[node].data[offset : offset + size]

    def _write(self, node: int, body: memoryview) -> bytes:
        fh, offset, size, *_ = p.WRITE_IN.unpack_from(body)
        opened, data = self._open[fh], bytes(body[p.WRITE_IN.size : p.WRITE_IN.size + size])
        opened.node.data = opened.node.data[:offset] + data + opened.node.data[offset + size :]
        opened.written.append(data)
        return p.WRITE_OUT.pack(size, 0)

    def _flush(self, node: int, body: memoryview) -> bytes:
        opened = self._open[p.FLUSH_IN.unpack_from(body)[0]]
        if opened.written:
            path = self._path(opened.node)
            if opened.appends:
                self._writer.run("append", path, b"".join(opened.written))
            else:
                self._writer.run("create_body" if opened.fresh else "overwrite", path, opened.node.data)
            opened.written, opened.fresh = [], False
        return b""

    def _release(self, node: int, body: memoryview) -> bytes:
        fh = p.RELEASE_IN.unpack_from(body)[0]
        self._open.pop(fh, None)
        self._listed.pop(fh, None)
        return b""

    def _open_directory(self, node: int, body: memoryview) -> bytes:
        number = next(self._handles)
        self._listed[number] = [*self._nodes[node].names]
        return p.OPEN_OUT.pack(number, 0, 0)

    def _list(self, node: int, body: memoryview) -> bytes:
        fh, offset, size, *_ = p.READ_IN.unpack_from(body)
        packed = b""
        for after, name in enumerate(self._listed[fh][offset:], offset + 1):
            entry = p.dirent(1, after, 0, name)
            if len(packed) + len(entry) > size:
                break
            packed += entry
        return packed

    @staticmethod
    def _entry(node: _Node) -> bytes:
        return p.ENTRY_OUT.pack(node.number, 0, LONG_S, LONG_S, 0, 0) + _attributes(node)


def _name(body: memoryview) -> bytes:
    return bytes(body).rstrip(b"\0")


def _attributes(node: _Node) -> bytes:
    seconds, ns = divmod(node.changed, 10**9)
    size = len(node.data)
    return p.ATTR.pack(
        node.number,
        size,
        -(-size // 512),
        seconds,
        seconds,
        seconds,
        ns,
        ns,
        ns,
        node.mode,
        1,
        os.getuid(),
        os.getgid(),
        0,
        4096,
        0,
    )


def serve(mountpoint: Path, database: Path) -> None:
    """Mount and answer until it is unmounted."""
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        write_for(theirs, database)
        os._exit(0)
    theirs.close()
    LeanFilesystem(device.mount(mountpoint, ["fsname=lean", "default_permissions"]), _Writer(ours)).serve()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]))
