"""A mounted disk with a volatile cache, for tests of what is left after power loss or an error of the disk.

``DroppingDisk`` mounts ``disk_model.Disk`` below a test's folder, served by a process of its own over the kernel's FUSE
protocol. Everything that the kernel would keep in pages reaches that process with each write(2), so what is lost when
the power goes is decided there and not by the kernel's write-back. Shared mappings (SQLite's -shm) and locks are the
kernel's own, as on any local disk.

    with DroppingDisk(tmp_path / "disk") as disk:
        ...                               # programs at work in disk.path
        at = disk.cut(keep="some")        # the power goes at that moment (time.monotonic()): no request is answered
        ...                               # kill -9 whatever was at work
        disk.revive()                     # mounted anew, with what was on the disk

What a program was told before ``at`` it may rely on; it may still be running a little longer.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import heapq
import itertools
import json
import os
import random
import select
import socket
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from avmfs.fuse import protocol as p
from avmfs.fuse.device import mount
from avmfs.fuse.protocol import Op
from tests.disk_model import Directory, Disk, File, Keep, Names, Node, Symlink

ANSWER_S: Final = 200
LARGEST: Final = 1 << 20  # bytes of one write
FOREVER: Final = 1 << 30  # seconds: names and attributes change by this kernel alone
ROOM: Final = 1 << 24  # blocks of the disk, of 4 KiB


class DroppingDisk:
    """See the module. ``names`` is the rule for names, as in ``disk_model``."""

    def __init__(self, path: Path, names: Names = "ext4") -> None:
        self.path = path
        path.mkdir()
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(ANSWER_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, os.fspath(path), names, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                start_new_session=True,  # a signal to all that the test started would leave a dead mount
            )
        self._answers = self._ours.makefile("r")
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def cut(self, keep: Keep = "synced", seed: int = 0) -> float:
        """Let the power go, and return when that was. Until ``revive`` nobody who uses the disk is answered."""
        return float(self._ask(do="cut", keep=keep, seed=seed))

    def revive(self) -> None:
        """Mount what was on the disk. Who still uses it gets errors (ENOTCONN) from the old mount."""
        self._ask(do="revive")

    def power_loss(self, keep: Keep = "synced", seed: int = 0) -> None:
        self.cut(keep, seed)
        self.revive()

    def durable(self, target: Path) -> Path:
        """Copy what is on the disk to a new folder: what there would be if the power went now, and only what was
        synced. The disk works on."""
        self._ask(do="durable", target=os.fspath(target))
        return target

    def fail(self, operation: str, error: int, times: int = 1, name: str = "*", skip: int = 0) -> None:
        """The next ``times`` "write"s (write, truncate, create) or "sync"s of files of that name (a pattern) fail, once
        ``skip`` have been done. A failed sync has brought nothing to the disk, and the next one returns 0. It is told
        to each descriptor once, so ``times`` counts failures and not replies."""
        self._ask(do="fail", operation=operation, error=error, times=times, name=name, skip=skip)

    def heal(self) -> None:
        """Nothing fails any more."""
        self._ask(do="heal")

    def slow(self, least_s: float, most_s: float) -> None:
        """Each sync takes so long, while other requests are answered."""
        self._ask(do="slow", least=least_s, most=most_s)

    def counts(self) -> Counter[str]:
        """How many requests of each kind there were ("FSYNC", "WRITE"), and "sync NAME", "write NAME" of each file."""
        return Counter(self._ask(do="counts"))

    def close(self) -> None:
        self._answers.close()
        self._ours.close()
        try:
            self._process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(ANSWER_S)
            _unmount(self.path)

    def __enter__(self) -> DroppingDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, **what: Any) -> Any:
        self._ours.sendall(json.dumps(what).encode() + b"\n")
        return self._answer()

    def _answer(self) -> Any:
        line = self._answers.readline()
        assert line, "the disk's process has ended"
        return json.loads(line)


def _unmount(path: Path) -> None:
    subprocess.run(["fusermount3", "-uz", os.fspath(path)], capture_output=True, timeout=ANSWER_S, check=False)


class Refused(OSError):
    """What a request gets instead of an answer."""


def refused(code: int) -> Refused:
    return Refused(code, os.strerror(code))


class Handle:
    def __init__(self, node: Node) -> None:
        self.node = node
        # errseq_sample(): what nobody has heard of yet is told to the first who asks
        self.heard = node.failures if isinstance(node, File) and node.heard else 0
        self.listing: list[tuple[bytes, Node]] = []


class Fault:
    def __init__(self, operation: str, error: int, times: int, name: str, skip: int) -> None:
        self.operation, self.error, self.times, self.name, self.skip = operation, error, times, name, skip


class Server:
    """One thread: requests in their order, syncs answered when their time has come."""

    def __init__(self, path: Path, names: Names, control: socket.socket) -> None:
        self._path = path
        self._control = control
        self._asked = control.makefile("r")
        self._disk = Disk(names)
        self._handles: dict[int, Handle] = {}
        self._next_handle = itertools.count(1)
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._busy: dict[Node, float] = {}  # until when a sync of it is under way
        self._slow = (0.0, 0.0)
        self._chance = random.Random(1)
        self._faults: list[Fault] = []
        self._counts: Counter[str] = Counter()
        self._names: dict[int, bytes] = {}  # the last one of each file
        self._device = -1
        self._frozen = False
        self._buffer = bytearray(LARGEST + 4096)
        self._serves: dict[int, Callable[[int, memoryview], bytes | None]] = {
            Op.LOOKUP: self._lookup,
            Op.GETATTR: self._getattr,
            Op.SETATTR: self._setattr,
            Op.MKDIR: self._mkdir,
            Op.MKNOD: self._mknod,
            Op.SYMLINK: self._symlink,
            Op.READLINK: self._readlink,
            Op.UNLINK: self._unlink,
            Op.RMDIR: self._unlink,
            Op.RENAME: self._rename,
            Op.RENAME2: self._rename2,
            Op.OPEN: self._open,
            Op.OPENDIR: self._open,
            Op.CREATE: self._create,
            Op.READ: self._read,
            Op.WRITE: self._write,
            Op.READDIR: self._readdir,
            Op.RELEASE: self._release,
            Op.RELEASEDIR: self._release,
            Op.FLUSH: self._nothing,
            Op.STATFS: self._statfs,
            Op.FALLOCATE: self._fallocate,
        }

    def run(self) -> None:
        try:
            self._mount()
            self._say(True)
            self._loop()
        finally:
            if self._device >= 0:
                os.close(self._device)
            _unmount(self._path)

    def _loop(self) -> None:
        while True:
            watched: list[Any] = [self._control] if self._frozen else [self._control, self._device]
            patience = max(0.0, self._due[0][0] - time.monotonic()) if self._due and not self._frozen else None
            ready = select.select(watched, [], [], patience)[0]
            while self._due and not self._frozen and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()
            if self._device in ready:
                self._serve()
            if self._control in ready:
                line = self._asked.readline()
                if not line:
                    return
                self._command(json.loads(line))

    def _mount(self) -> None:
        self._device = mount(self._path, ["fsname=dropping", "subtype=avmfs-test", "nosuid", "nodev"])
        size = os.readv(self._device, [self._buffer])
        opcode, unique, _, _ = p.IN_BRIEF.unpack_from(self._buffer)
        assert opcode == Op.INIT and size
        _, minor, ahead, flags = p.INIT_IN.unpack_from(self._buffer, p.IN_HEADER.size)
        flags &= p.Init.ASYNC_READ | p.Init.BIG_WRITES | p.Init.MAX_PAGES
        self._reply(
            unique,
            p.INIT_OUT.pack(
                p.MAJOR, min(minor, p.MINOR), ahead, flags, 64, 48, LARGEST, 1, LARGEST // 4096, 0, 0, 0, 0
            ),
        )

    def _say(self, answer: Any) -> None:
        self._control.sendall(json.dumps(answer).encode() + b"\n")

    def _command(self, asked: dict[str, Any]) -> None:
        answer: Any = True
        match asked.pop("do"):
            case "cut":
                answer = time.monotonic()
                self._disk.lose(asked["keep"], asked["seed"])
                self._frozen, self._due = True, []
            case "revive":
                os.close(self._device)  # ends the connection: whoever waits gets ECONNABORTED
                _unmount(self._path)
                self._handles, self._busy, self._frozen = {}, {}, False
                self._mount()
            case "durable":
                _copy(self._disk.root, Path(asked["target"]))
            case "fail":
                self._faults.append(Fault(**asked))
            case "heal":
                self._faults = []
            case "slow":
                self._slow = asked["least"], asked["most"]
            case "counts":
                answer = self._counts
        self._say(answer)

    def _serve(self) -> None:
        try:
            size = os.readv(self._device, [self._buffer])
        except OSError as e:
            if e.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):  # it was interrupted before we saw it
                return
            raise
        opcode, unique, number, _ = p.IN_BRIEF.unpack_from(self._buffer)
        body = memoryview(self._buffer)[p.IN_HEADER.size : size]
        if opcode in (Op.FORGET, Op.BATCH_FORGET, Op.INTERRUPT):  # none wants an answer
            return
        try:
            self._counts[Op(opcode).name] += 1
            if opcode in (Op.FSYNC, Op.FSYNCDIR):
                self._sync(unique, body)
                return
            serve = self._serves.get(opcode)
            if serve is None:
                raise refused(errno.ENOSYS)
            answer = serve(number, body)
        except Refused as e:
            self._reply(unique, b"", e.errno or errno.EIO)
        except ValueError:  # an operation that is not in Op
            self._reply(unique, b"", errno.ENOSYS)
        else:
            self._reply(unique, answer or b"")

    def _reply(self, unique: int, body: bytes, error: int = 0) -> None:
        with contextlib.suppress(FileNotFoundError):  # interrupted: nobody waits any more
            os.write(self._device, p.OUT_HEADER.pack(p.OUT_HEADER.size + len(body), -error, unique) + body)

    # Names --------------------------------------------------------------------------------------------------------

    def _node(self, number: int) -> Node:
        try:
            return self._disk.nodes[number]
        except KeyError:
            raise refused(errno.ESTALE) from None

    def _directory(self, number: int) -> Directory:
        node = self._node(number)
        if not isinstance(node, Directory):
            raise refused(errno.ENOTDIR)
        return node

    def _attr(self, node: Node) -> bytes:
        size = len(node.data) if isinstance(node, File) else 0
        seconds, nanoseconds = divmod(node.mtime, 1_000_000_000)
        times = (seconds,) * 3 + (nanoseconds,) * 3
        links = 2 if node.is_directory else 1
        return p.ATTR.pack(
            node.number, size, -(-size // 512), *times, node.mode, links, os.getuid(), os.getgid(), 0, 4096, 0
        )

    def _entry(self, node: Node) -> bytes:
        return p.ENTRY_OUT.pack(node.number, 0, FOREVER, FOREVER, 0, 0) + self._attr(node)

    def _lookup(self, number: int, body: memoryview) -> bytes:
        node = self._directory(number).entries.get(_name(body))
        if node is None:
            return p.ENTRY_OUT.pack(0, 0, FOREVER, FOREVER, 0, 0) + bytes(p.ATTR.size)
        return self._entry(node)

    def _make(self, number: int, name: bytes, mode: int) -> Node:
        self._fails("write", name)
        parent = self._directory(number)
        if name in parent.entries:
            raise refused(errno.EEXIST)
        node = self._disk.make(mode)
        self._names[node.number] = name
        self._disk.set((parent, name, node))
        return node

    def _mkdir(self, number: int, body: memoryview) -> bytes:
        mode, _ = p.MKDIR_IN.unpack_from(body)
        return self._entry(self._make(number, _name(body[p.MKDIR_IN.size :]), stat.S_IFDIR | mode & 0o7777))

    def _mknod(self, number: int, body: memoryview) -> bytes:
        mode, *_ = p.MKNOD_IN.unpack_from(body)
        if not stat.S_ISREG(mode):
            raise refused(errno.EPERM)
        return self._entry(self._make(number, _name(body[p.MKNOD_IN.size :]), mode))

    def _symlink(self, number: int, body: memoryview) -> bytes:
        name, target, _ = bytes(body).split(b"\0")
        node = self._make(number, name, stat.S_IFLNK | 0o777)
        assert isinstance(node, Symlink)
        node.target = target
        return self._entry(node)

    def _readlink(self, number: int, body: memoryview) -> bytes:
        node = self._node(number)
        assert isinstance(node, Symlink)
        return node.target

    def _unlink(self, number: int, body: memoryview) -> None:
        parent, name = self._directory(number), _name(body)
        node = parent.entries.get(name)
        if node is None:
            raise refused(errno.ENOENT)
        if isinstance(node, Directory) and node.entries:
            raise refused(errno.ENOTEMPTY)
        self._disk.set((parent, name, None))

    def _rename(self, number: int, body: memoryview) -> None:
        self._move(number, p.RENAME_IN.unpack_from(body)[0], body[p.RENAME_IN.size :], 0)

    def _rename2(self, number: int, body: memoryview) -> None:
        there, flags, _ = p.RENAME2_IN.unpack_from(body)
        self._move(number, there, body[p.RENAME2_IN.size :], flags)

    def _move(self, number: int, there: int, names: memoryview, flags: int) -> None:
        old, new, _ = bytes(names).split(b"\0")
        above, target = self._directory(number), self._directory(there)
        node = above.entries.get(old)
        if node is None:
            raise refused(errno.ENOENT)
        if flags & ~1:
            raise refused(errno.EINVAL)
        if flags and new in target.entries:
            raise refused(errno.EEXIST)
        self._names[node.number] = new
        self._disk.set((above, old, None), (target, new, node))

    # Files --------------------------------------------------------------------------------------------------------

    def _file(self, number: int) -> File:
        node = self._node(number)
        if not isinstance(node, File):
            raise refused(errno.EINVAL)
        return node

    def _getattr(self, number: int, body: memoryview) -> bytes:
        return p.ATTR_OUT.pack(FOREVER, 0, 0) + self._attr(self._node(number))

    def _setattr(self, number: int, body: memoryview) -> bytes:
        valid, _, _, size, _, _, seconds, _, _, nanoseconds, _, mode, *_ = p.SETATTR_IN.unpack_from(body)
        node = self._node(number)
        if valid & p.SetAttr.SIZE:
            self._fails("write", self._names.get(number, b""))
            self._file(number).truncate(size)
        if valid & p.SetAttr.MODE:
            node.mode = stat.S_IFMT(node.mode) | mode & 0o7777
        changed = p.time_of(valid, p.SetAttr.MTIME, p.SetAttr.MTIME_NOW, time.time_ns(), seconds, nanoseconds)
        node.mtime = node.mtime if changed is None else changed
        return p.ATTR_OUT.pack(FOREVER, 0, 0) + self._attr(node)

    def _opened(self, node: Node) -> bytes:
        number = next(self._next_handle)
        handle = self._handles[number] = Handle(node)
        if isinstance(node, Directory):
            handle.listing = [(b".", node), (b"..", node), *node.entries.items()]
        return p.OPEN_OUT.pack(number, p.FOPEN_KEEP_CACHE, 0)

    def _open(self, number: int, body: memoryview) -> bytes:
        return self._opened(self._node(number))

    def _create(self, number: int, body: memoryview) -> bytes:
        _, mode, *_ = p.CREATE_IN.unpack_from(body)
        node = self._make(number, _name(body[p.CREATE_IN.size :]), stat.S_IFREG | mode & 0o7777)
        return self._entry(node) + self._opened(node)

    def _read(self, number: int, body: memoryview) -> bytes:
        _, at, size, *_ = p.READ_IN.unpack_from(body)
        return bytes(self._file(number).data[at : at + size])

    def _write(self, number: int, body: memoryview) -> bytes:
        _, at, size, *_ = p.WRITE_IN.unpack_from(body)
        self._fails("write", self._names.get(number, b""))
        node = self._file(number)
        node.write(at, body[p.WRITE_IN.size : p.WRITE_IN.size + size])
        node.mtime = time.time_ns()
        return p.WRITE_OUT.pack(size, 0)

    def _fallocate(self, number: int, body: memoryview) -> None:
        _, at, length, mode, _ = p.FALLOCATE_IN.unpack_from(body)
        if mode not in (0, 1):  # 1: FALLOC_FL_KEEP_SIZE
            raise refused(errno.EOPNOTSUPP)
        self._fails("write", self._names.get(number, b""))
        node = self._file(number)
        if mode == 0 and at + length > len(node.data):
            node.truncate(at + length)

    def _readdir(self, number: int, body: memoryview) -> bytes:
        which, at, size, *_ = p.READ_IN.unpack_from(body)
        found = b""
        for index, (name, node) in enumerate(self._handles[which].listing[at:], at + 1):
            entry = p.dirent(node.number, index, stat.S_IFMT(node.mode), name)
            if len(found) + len(entry) > size:
                break
            found += entry
        return found

    def _release(self, number: int, body: memoryview) -> None:
        self._handles.pop(p.RELEASE_IN.unpack_from(body)[0], None)

    def _nothing(self, number: int, body: memoryview) -> None:
        pass

    def _statfs(self, number: int, body: memoryview) -> bytes:
        return p.STATFS_OUT.pack(ROOM, ROOM, ROOM, ROOM, ROOM, 4096, 255, 4096, 0)

    # Syncs and errors ---------------------------------------------------------------------------------------------

    def _sync(self, unique: int, body: memoryview) -> None:
        handle = self._handles[p.FSYNC_IN.unpack_from(body)[0]]
        node = handle.node
        steps = self._disk.begin_sync(node)
        name = os.fsdecode(self._names.get(node.number, b"/"))
        self._counts[f"sync {name}"] += 1
        sync = node.begin_sync() if isinstance(node, File) else None
        error = self._fault("sync", name)

        def end() -> None:
            told = error
            if isinstance(node, File) and sync is not None:
                node.end_sync(sync, error)
                told = 0
                if handle.heard != node.failures:
                    handle.heard, node.heard, told = node.failures, True, node.failure
            if not error:
                self._disk.end_sync(steps)
            self._reply(unique, b"", told)

        # Later syncs of a file wait for the pages that earlier ones are writing.
        due = max(time.monotonic() + self._chance.uniform(*self._slow), self._busy.get(node, 0.0))
        self._busy[node] = due
        heapq.heappush(self._due, (due, next(self._order), end))

    def _fault(self, operation: str, name: str) -> int:
        for fault in self._faults:
            if fault.operation == operation and fnmatch.fnmatchcase(name, fault.name):
                if fault.skip > 0:
                    fault.skip -= 1
                elif fault.times > 0:
                    fault.times -= 1
                    return fault.error
        return 0

    def _fails(self, operation: str, name: bytes) -> None:
        self._counts[f"{operation} {os.fsdecode(name)}"] += 1
        if self._faults and (error := self._fault(operation, os.fsdecode(name))):
            raise refused(error)


def _copy(node: Node, target: Path) -> None:
    match node:
        case Directory():
            target.mkdir()
            for name, child in node.stable.items():
                _copy(child, target / os.fsdecode(name))
        case File():
            target.write_bytes(node.stable)
        case Symlink():
            os.symlink(node.target, target)


def _name(body: memoryview) -> bytes:
    return bytes(body).partition(b"\0")[0]


def main() -> None:
    path, names, control = sys.argv[1:]
    assert names in ("posix", "ext4")
    # A low number: a parent with many files open hands over one that select(2) does not take.
    with socket.socket(fileno=int(control)) as handed:
        ours = handed.dup()
    Server(Path(path), "posix" if names == "posix" else "ext4", ours).run()


if __name__ == "__main__":
    main()
