"""A request of the kernel, and what is said of those that answer it.

Made by the session, which owns its state; handlers read what it asks.
"""

from __future__ import annotations

from collections.abc import Callable

from avmfs import calls
from avmfs.fuse import protocol as p
from avmfs.vfs.attributes import Caller

VIRTUAL = 1 << 63  # set in the number of every node that is not the store's


class Request(calls.Call):
    """One request of the kernel. ``answered`` guards an ``abandonable`` one against a second reply after an interrupt,
    which gives it up."""

    __slots__ = ("abandonable", "answered", "body", "gid", "node", "op", "thread", "uid", "unique")

    def __init__(self, op: int, unique: int, node: int, uid: int, gid: int, body: bytes, thread: int = 0) -> None:
        super().__init__()
        self.op, self.unique, self.node, self.uid, self.gid, self.body = op, unique, node, uid, gid, body
        self.thread = thread
        self.answered = self.abandonable = False

    @property
    def resent(self) -> bool:
        """Whether it was sent before, to a process that was killed before it had answered."""
        return self.unique >= p.RESENT

    @property
    def caller(self) -> Caller:
        return Caller(self.uid, self.gid)


class Later(Exception):
    """Raised by a handler in the leading thread: the request may block, run it again where it may."""


Handler = Callable[[Request], bytes]
Quick = Callable[[int, int, memoryview, int], bytes | None]
"""(unique, node, request with its header, its length) -> the whole reply; empty: none is due; None: ask the handler.
One that submits something has to copy before what it needs of the request, whose place the next one takes, and to
answer what goes wrong by itself."""
