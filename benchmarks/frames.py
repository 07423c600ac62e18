"""How much of the code a request runs through: frames, functions and files of three journeys, each the second time.

``python -m benchmarks.frames``: one process, a store without a daemon, the Linux front end's handlers without a kernel,
no model. A frame is a call of a function of this project, as `sys.setprofile` tells; comprehensions, generator
expressions and what SQLite and NumPy do are not counted. Beside them those of Python's library and of packages. No
clock: the counts are those of the code alone.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from avmfs_config import Mount, default_settings

from avmfs import handover
from avmfs.fuse import protocol as p
from avmfs.fuse.handover import Handover
from avmfs.fuse.linux import LinuxMount
from avmfs.fuse.protocol import Op
from avmfs.fuse.request import Request
from avmfs.rpc.local import LocalDoor
from avmfs.store.schema.tables import MEMORY
from avmfs.vfs.tree import Tree
from benchmarks.harness import ROOT

OURS = tuple(str(ROOT / part) + os.sep for part in ("avmfs", "daemon", "config"))
COMPREHENSIONS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


class Frames:
    """The calls of functions while it is entered: of ours their number, which functions, in which files; of others'
    their number."""

    def __enter__(self) -> Frames:
        self.calls, self.functions, self.others = 0, set[tuple[str, int]](), 0
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name in COMPREHENSIONS:
            return
        if code.co_filename.startswith(OURS):
            self.calls += 1
            self.functions.add((code.co_filename, code.co_firstlineno))
        else:
            self.others += 1

    def __str__(self) -> str:
        files = {file for file, _ in self.functions}
        return f"{self.calls:>7}{len(self.functions):>11}{len(files):>7}{self.others:>8}"


class Kernel:
    """What stands for the kernel: requests go to a mount's handlers, the quick ones first, as `Session` does it."""

    def __init__(self, tree: Tree, folder: Path) -> None:
        tree.memory.store.keep = lambda kept, origin: bytes(8)  # no successor to come
        config, device = Mount(folder / "mount", "alice"), os.open(os.devnull, os.O_RDWR)
        state = Handover(tree, handover.make())
        self._mount = LinuxMount(tree, config, device, folder, state, None, {}, lambda about: None)
        self._mount._replies.switch(True)
        self._session = self._mount._session
        self._unique = 0

    def ask(self, op: Op, node: int, body: bytes) -> bytes:
        self._unique += 2
        request = memoryview(
            p.IN_HEADER.pack(p.IN_HEADER.size + len(body), op, self._unique, node, 0, 0, 0, 0, 0) + body
        )
        answer = self._session._quick.get(op)
        reply = None if answer is None else answer(self._unique, node, request, len(request))
        if reply is not None:
            return reply[p.OUT_HEADER.size :]
        return self._session._handlers[op](Request(op, self._unique, node, 0, 0, body))

    def lookup(self, name: bytes) -> int:
        return int.from_bytes(self.ask(Op.LOOKUP, MEMORY, name + b"\0")[:8], sys.byteorder)

    def read(self, node: int) -> bytes:
        number, *_ = p.OPEN_OUT.unpack(self.ask(Op.OPEN, node, p.OPEN_IN.pack(os.O_RDONLY, 0)))
        data = self.ask(Op.READ, node, p.READ_IN.pack(number, 0, 1 << 17, 0, 0, 0, 0))
        self._close(node, number)
        return data

    def create(self, name: bytes, data: bytes) -> None:
        made = p.CREATE_IN.pack(os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o100644, 0o22, 0) + name + b"\0"
        reply = self.ask(Op.CREATE, MEMORY, made)
        node = int.from_bytes(reply[:8], sys.byteorder)
        number, *_ = p.OPEN_OUT.unpack(reply[-p.OPEN_OUT.size :])
        self.ask(Op.WRITE, node, p.WRITE_IN.pack(number, 0, len(data), 0, 0, 0, 0) + data)
        self._close(node, number)

    def _close(self, node: int, number: int) -> None:
        self.ask(Op.FLUSH, node, p.FLUSH_IN.pack(number, 0, 0, 0))
        self.ask(Op.RELEASE, node, p.RELEASE_IN.pack(number, 0, 0, 0))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        door = LocalDoor(Path(folder) / "avm.db", default_settings(), "alice", embeddings=False)
        kernel = Kernel(Tree(door._memory, uid=os.getuid(), gid=os.getgid()), Path(folder))
        for number in range(20):
            door.call(
                "write", path=f"/memory/n{number}.md", data=b"# Note %d\n\nrisk of NVDA in lot %d\n" % (number, number)
            )
        note, names = kernel.lookup(b"n1.md"), iter(range(100))
        journeys: dict[str, Callable[[], object]] = {
            "LOOKUP a.md": lambda: kernel.lookup(b"n1.md"),
            "open, read, close a.md": lambda: kernel.read(note),
            "echo > new file": lambda: kernel.create(b"made%d" % next(names), b"hi\n"),
            ":recall": lambda: kernel.read(kernel.lookup(b":recall?q=NVDA risk")),
        }
        print(f"{'journey, again':<24}{'frames':>7}{'functions':>11}{'files':>7}{'others':>8}")
        for name, journey in journeys.items():
            for _ in range(3):
                journey()
            with Frames() as frames:
                journey()
            print(f"{name:<24}{frames}")
        door.close()


if __name__ == "__main__":
    main()
