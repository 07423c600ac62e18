"""The request loop: who leads while somebody waits for the writer. The device is a socket."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from avmfs import calls
from avmfs.errors import Busy, Denied
from avmfs.fuse import protocol as p
from avmfs.fuse.lock_ops import LockOps
from avmfs.fuse.protocol import Op
from avmfs.fuse.request import VIRTUAL, Request
from avmfs.fuse.session import Session
from avmfs.vfs.locks import LockTable
from tests.threads import refused_once

pytestmark = pytest.mark.skipif(not hasattr(socket, "SOCK_SEQPACKET"), reason="Linux")

END = 4000  # a request that ends the loop


class Over(BaseException):
    pass


class Kernel:
    """The other end of the device, and an answer that can be waited for."""

    def __init__(self) -> None:
        self.sock, device = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(300)
        self.answer, self._answerer = os.pipe()
        self.threads: dict[int, int] = {}  # unique -> who ran it
        self.led: list[bool] = []  # did who ran a commit lead when it began?
        self._unique = 0
        self.session = Session(
            device.detach(), lambda request: None, lambda request: contextlib.nullcontext(), lambda resent: None
        )
        self.session.serves({Op.UNLINK: self._commit, Op.RMDIR: self._give_up}, committing=True)
        self.session.serves({Op.OPEN: self._compute}, blocking=True)
        self.session.serves({Op.READLINK: lambda request: b"at once"})
        self.session.serves({Op.CREATE: self._keep}, blocking=True)
        self.session.answers({END: self._end, Op.WRITE: self._write})
        self.waiting, self.ended = threading.Event(), threading.Event()

    def _commit(self, request: Request) -> bytes:
        assert self.session.may_block()
        self.threads[request.unique] = threading.get_ident()
        self.led.append(self.session._leader == threading.get_ident())
        self.waiting.set()
        self.session.answer_from(self.answer)
        os.read(self.answer, 1)
        return b"done"

    def _compute(self, request: Request) -> bytes:
        """As a view that takes long is rendered."""
        request.abandonable = True
        self.waiting.set()
        try:
            while not self.ended.wait(0.001):
                calls.go_on()
        finally:
            self.ended.set()
        return b"rendered"

    def _keep(self, request: Request) -> bytes:
        """What is made for a reader gets its number, and the reader gives up."""
        request.abandonable = True
        assert self.session.keeps(request)
        self.waiting.set()
        while not request.given_up:
            time.sleep(0.001)
        return b"kept"

    def _give_up(self, request: Request) -> bytes:
        self.threads[request.unique] = threading.get_ident()
        self.session.aside()
        raise Busy("nobody answers")

    def _write(self, unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        self.threads[unique] = threading.get_ident()
        if node == 1:
            self.session.aside()
            raise Denied("another request lies there by now")
        return p.OUT_HEADER.pack(p.OUT_HEADER.size, 0, unique)

    @staticmethod
    def _end(unique: int, node: int, view: memoryview, size: int) -> bytes:
        raise Over

    def ask(self, op: int, node: int = 2, body: bytes = b"", thread: int = 0) -> int:
        self._unique += 1
        header = p.IN_HEADER.pack(p.IN_HEADER.size + len(body), op, self._unique, node, 0, 0, thread, 0, 0)
        self.sock.send(header + body)
        return self._unique

    def interrupt(self, unique: int) -> None:
        header = p.IN_HEADER.pack(p.IN_HEADER.size + p.INTERRUPT_IN.size, Op.INTERRUPT, 1 << 40, 0, 0, 0, 0, 0, 0)
        self.sock.send(header + p.INTERRUPT_IN.pack(unique))

    def reply(self) -> tuple[int, int, bytes]:
        """(unique, error, body)"""
        data = self.sock.recv(4096)
        _, error, unique = p.OUT_HEADER.unpack_from(data)
        return unique, -error, data[p.OUT_HEADER.size :]

    def close(self) -> None:
        self.sock.close()
        os.close(self.answer)
        os.close(self._answerer)

    def let_go(self) -> None:
        os.write(self._answerer, b"x")


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()

    def serve() -> None:
        with contextlib.suppress(Over):
            kernel.session.serve(lambda: None)

    thread = threading.Thread(target=serve)
    thread.start()
    yield kernel
    kernel.ask(END)
    thread.join(300)
    kernel.close()
    assert not thread.is_alive()


def test_who_waits_for_the_writer_alone_leads_on(kernel: Kernel) -> None:
    for _ in range(3):
        kernel.let_go()
        unique = kernel.ask(Op.UNLINK)
        assert kernel.reply() == (unique, 0, b"done")
    assert len(set(kernel.threads.values())) == 1


def test_a_request_that_comes_meanwhile_is_answered_at_once(kernel: Kernel) -> None:
    first = kernel.ask(Op.UNLINK)
    assert kernel.waiting.wait(300)
    second = kernel.ask(Op.READLINK)
    assert kernel.reply() == (second, 0, b"at once")
    kernel.let_go()
    assert kernel.reply() == (first, 0, b"done")


def test_several_may_wait_and_none_keeps_the_next_one(kernel: Kernel) -> None:
    waiting = {kernel.ask(Op.UNLINK) for _ in range(8)}
    last = kernel.ask(Op.READLINK)
    assert kernel.reply() == (last, 0, b"at once")
    for _ in waiting:
        kernel.let_go()
    assert {kernel.reply()[0] for _ in waiting} == waiting


def test_who_has_asked_is_known_when_another_request_lies_in_its_place(kernel: Kernel) -> None:
    came = threading.Event()

    def asker(unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        if node == 2:
            kernel.session.aside()
            assert came.wait(300)
        came.set()
        return p.OUT_HEADER.pack(p.OUT_HEADER.size + 1, 0, unique) + bytes([kernel.session.asker()])

    kernel.session.answers({Op.FLUSH: asker})
    asked = [(kernel.ask(Op.FLUSH, node, thread=thread), 0, bytes([thread])) for node, thread in ((2, 7), (3, 8))]
    assert sorted(kernel.reply() for _ in asked) == asked


@pytest.mark.parametrize("op", [Op.SETLK, Op.SETLKW])
def test_a_lock_is_given_back_while_all_threads_there_may_be_wait_for_it(
    kernel: Kernel, op: Op, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("avmfs.fuse.session._MOST", 6)
    file: Any = SimpleNamespace(file=SimpleNamespace(node=7, is_shared_memory=lambda: False))
    handles: Any = SimpleNamespace(file=lambda number: file)
    LockOps(kernel.session, handles, LockTable(tmp_path, kernel.session.interrupted))

    def ask(op: Op, owner: int, kind: int) -> int:
        return kernel.ask(op, 7, p.LK_IN.pack(1, owner, 0, (1 << 63) - 1, kind, 0, 0, 0))

    first = ask(Op.SETLK, 1, fcntl.F_WRLCK)
    assert kernel.reply() == (first, 0, b"")
    waiting = {ask(Op.SETLKW, owner, fcntl.F_RDLCK) for owner in range(2, 10)}
    last = ask(op, 1, fcntl.F_UNLCK)
    assert {kernel.reply() for _ in range(9)} == {(unique, 0, b"") for unique in (last, *waiting)}


def test_who_holds_a_lock_is_answered_while_more_wait_for_it_than_threads_there_may_be(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("avmfs.fuse.session._MOST", 6)
    file: Any = SimpleNamespace(file=SimpleNamespace(node=7, is_shared_memory=lambda: False))
    handles: Any = SimpleNamespace(file=lambda number: file)
    waits: set[int] = set()

    def interrupted() -> bool:
        waits.add(threading.get_ident())
        return kernel.session.interrupted()

    LockOps(kernel.session, handles, LockTable(tmp_path, interrupted))
    kernel.session.serves({Op.OPENDIR: lambda request: b"listed"}, blocking=True)

    def ask(op: Op, owner: int, kind: int) -> int:
        return kernel.ask(op, 7, p.LK_IN.pack(1, owner, 0, (1 << 63) - 1, kind, 0, 0, 0))

    first = ask(Op.SETLK, 1, fcntl.F_WRLCK)
    assert kernel.reply() == (first, 0, b"")
    waiting, deadline = set[int](), time.monotonic() + 300
    for owner in range(2, 20):
        waiting.add(ask(Op.SETLKW, owner, fcntl.F_RDLCK))
        while len(waits) < len(waiting):
            assert time.monotonic() < deadline
            time.sleep(0.001)
    unique = kernel.ask(Op.OPENDIR)
    assert kernel.reply() == (unique, 0, b"listed")
    unique = ask(Op.SETLK, 20, fcntl.F_RDLCK)
    assert kernel.reply() == (unique, Busy.code, b"")
    last = ask(Op.SETLK, 1, fcntl.F_UNLCK)
    assert {kernel.reply() for _ in range(19)} == {(unique, 0, b"") for unique in (last, *waiting)}
    unique = kernel.ask(Op.OPENDIR)
    assert kernel.reply() == (unique, 0, b"listed")


def test_an_error_after_stepping_down_is_answered_and_the_loop_goes_on(kernel: Kernel) -> None:
    unique = kernel.ask(Op.RMDIR)
    assert kernel.reply() == (unique, Busy.code, b"")
    unique = kernel.ask(Op.WRITE, node=1)
    assert kernel.reply() == (unique, Denied.code, b"")
    unique = kernel.ask(Op.READLINK)
    assert kernel.reply() == (unique, 0, b"at once")


def test_where_no_thread_could_be_had_to_lead_the_next_one_leads(kernel: Kernel) -> None:
    with patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        unique = kernel.ask(Op.RMDIR)
        assert kernel.reply() == (unique, Busy.code, b"")
    first = kernel.ask(Op.UNLINK)
    assert kernel.waiting.wait(300)
    second = kernel.ask(Op.READLINK)
    assert kernel.reply() == (second, 0, b"at once")
    kernel.let_go()
    assert kernel.reply() == (first, 0, b"done")


def test_what_may_block_waits_for_a_thread_where_none_can_be_had_and_nothing_else_does(kernel: Kernel) -> None:
    with patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
        blocked = [kernel.ask(Op.OPEN) for _ in range(2)]
        unique = kernel.ask(Op.READLINK)
        assert kernel.reply() == (unique, 0, b"at once")
    assert kernel.waiting.wait(300)  # though no other request comes
    kernel.ended.set()
    assert {kernel.reply() for _ in blocked} == {(unique, 0, b"rendered") for unique in blocked}


def test_pages_are_dropped_by_who_is_free_next_where_no_thread_can_be_had_for_it(kernel: Kernel) -> None:
    def drop(request: Request) -> bytes:
        kernel.session.drop_pages(7)
        return b"given up"

    kernel.session.serves({Op.FLUSH: drop}, blocking=True)
    with refused_once("drop"):
        unique = kernel.ask(Op.FLUSH)
        assert kernel.reply() == (unique, 0, b"given up")
        assert kernel.sock.recv(4096) == p.inval_pages(7)


def test_a_virtual_node_is_never_served_by_who_leads(kernel: Kernel) -> None:
    """What stands behind one may take its time without asking the writer."""
    for node in (5, VIRTUAL | 5):
        kernel.let_go()
        unique = kernel.ask(Op.UNLINK, node=node)
        assert kernel.reply() == (unique, 0, b"done")
    assert kernel.led == [True, False]


def test_what_has_been_kept_for_a_reader_is_told_though_it_gives_up(kernel: Kernel) -> None:
    """Else the kernel has no number of it, and never releases it."""
    unique = kernel.ask(Op.CREATE)
    assert kernel.waiting.wait(300)
    kernel.interrupt(unique)
    assert kernel.reply() == (unique, 0, b"kept")


def test_what_is_computed_for_a_reader_ends_when_it_has_given_up(kernel: Kernel) -> None:
    unique = kernel.ask(Op.OPEN)
    assert kernel.waiting.wait(200) and not kernel.ended.is_set()
    kernel.interrupt(unique)
    assert kernel.reply() == (unique, errno.EINTR, b"")
    assert kernel.ended.wait(200)
