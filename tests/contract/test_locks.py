"""The lock table of a mount: who holds what, who waits for whom, and what a successor still knows of it."""

from __future__ import annotations

import fcntl
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from avmfs.errors import Busy, Interrupted, WouldDeadlock
from avmfs.vfs.lock_owners import Range, held_by
from avmfs.vfs.locks import SUPPORTED, LockTable
from tests.threads import refused_once

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="locks of open file descriptions are Linux's")

READ, WRITE, NONE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
LIMIT_S = 200.0


class Box:
    """Keeps descriptors by name, as the holder does."""

    def __init__(self) -> None:
        self.kept: dict[str, int] = {}

    def put(self, name: str, descriptor: int) -> None:
        self.kept[name] = os.dup(descriptor)

    def drop(self, name: str) -> None:
        os.close(self.kept.pop(name))


@pytest.fixture
def table(tmp_path: Path) -> Iterator[LockTable]:
    table = LockTable(tmp_path, lambda: False)
    yield table
    table.close()


def _waiting(table: LockTable, *arguments: int) -> tuple[threading.Thread, list[BaseException | str]]:
    """A thread that waits for a lock, and what came of it."""
    came: list[BaseException | str] = []

    def ask() -> None:
        node, owner, kind, start, length = arguments
        try:
            table.set_range(node, owner, kind, start, length, wait=True, pid=owner)
            came.append("got")
        except OSError as e:
            came.append(e)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    while thread.is_alive() and thread.ident not in table._waiting:
        time.sleep(0.001)
    return thread, came


def test_the_kernel_tells_what_a_description_holds(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    try:
        assert held_by(descriptor) == []
        for kind, start, length in ((WRITE, 10, 5), (READ, 100, 0), (READ, 0, 1)):
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock(kind, start, length))
        end = (1 << 63) - 1
        assert sorted(held_by(descriptor)) == sorted([Range(WRITE, 10, 14), Range(READ, 100, end), Range(READ, 0, 0)])
    finally:
        os.close(descriptor)


def _flock(kind: int, start: int, length: int) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0)


def test_a_lock_in_the_way_names_its_process(table: LockTable) -> None:
    table.set_range(1, 11, WRITE, 0, 10, wait=False, pid=111)
    table.set_range(1, 22, READ, 20, 0, wait=False, pid=222)
    table.set_range(2, 33, WRITE, 0, 0, wait=False, pid=333)
    assert table.conflict(1, 44, WRITE, 5, 1) == (WRITE, 0, 10, 111)
    assert table.conflict(1, 44, WRITE, 30, 1) == (READ, 20, 0, 222)
    assert table.conflict(1, 44, READ, 30, 1) is None
    assert table.conflict(1, 11, WRITE, 5, 1) is None, "one's own lock is not in the way"


def test_asking_takes_nothing_and_leaves_nothing_open(table: LockTable) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for owner in range(5):
        assert table.conflict(1, owner, WRITE, 0, 0) is None
    assert len(os.listdir("/proc/self/fd")) == before
    table.set_range(1, 9, WRITE, 0, 0, wait=False)


def test_it_is_told_before_somebody_else_may_find_what_was_written_under_a_lock(tmp_path: Path) -> None:
    other, told = LockTable(tmp_path, lambda: False), list[int]()

    def ending(node: int) -> None:
        assert other.conflict(node, 22, READ, 0, 1) is not None or node == 3
        told.append(node)

    def now() -> list[int]:
        found, told[:] = list(told), []
        return found

    table = LockTable(tmp_path, lambda: False, ending=ending)
    table.set_range(1, 11, READ, 0, 0, wait=False)
    table.set_range(1, 11, WRITE, 0, 0, wait=False)
    assert now() == [], "it has only begun"
    for kind in (READ, NONE):
        table.set_range(1, 11, WRITE, 0, 0, wait=False)
        table.set_range(1, 11, kind, 0, 0, wait=False)
        assert now() == [1]
    table.forget(1, 11, "range")
    assert now() == [], "it has ended before"
    table.set_range(1, 11, WRITE, 5, 1, wait=False, through=7)
    table.set_range(1, 11, WRITE, 0, 1, wait=False, through=7)
    table.closed(7)
    assert now() == [1]
    table.set_whole(3, 11, fcntl.LOCK_EX)
    for operation in (fcntl.LOCK_SH, fcntl.LOCK_UN):
        table.set_whole(3, 11, operation)
        assert now() == [3]
    table.forget(3, 11, "whole")
    assert now() == []
    for kind in (WRITE, NONE):
        table.set_range(2, 11, kind, 0, 1, wait=False, alone=True)
    assert now() == [], "no other mount gets in"
    table.set_range(2, 11, WRITE, 0, 1, wait=False, alone=True)
    table.forget(2, 11, "range")
    assert now() == [2]
    for each in (table, other):
        each.close()


def test_who_gets_the_number_of_an_owner_that_is_going_gets_a_lock_of_his_own(tmp_path: Path) -> None:
    """The kernel gives it anew as soon as it has told of the close."""

    def ending(node: int) -> None:
        with pytest.raises(Busy):
            ours.set_whole(node, 11, fcntl.LOCK_EX | fcntl.LOCK_NB)

    ours, other = LockTable(tmp_path, lambda: False, ending=ending), LockTable(tmp_path, lambda: False)
    ours.set_whole(1, 11, fcntl.LOCK_EX)
    ours.forget(1, 11, "whole")
    ours.set_whole(1, 11, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with pytest.raises(Busy):
        other.set_whole(1, 22, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for each in (ours, other):
        each.close()


def test_a_lock_of_another_table_has_no_known_process(table: LockTable, tmp_path: Path) -> None:
    other = LockTable(tmp_path, lambda: False)
    other.set_range(1, 11, WRITE, 0, 10, wait=False, pid=111)
    assert table.conflict(1, 44, WRITE, 5, 1) == (WRITE, 0, 10, 0)
    other.close()
    assert table.conflict(1, 44, WRITE, 5, 1) is None


def test_a_successor_knows_whose_the_locks_are(tmp_path: Path) -> None:
    box = Box()
    first = LockTable(tmp_path, lambda: False, box)
    first.set_range(1, 11, WRITE, 0, 10, wait=False, through=7, pid=111)
    first.set_whole(1, 22, fcntl.LOCK_EX)
    first.close()
    second = LockTable(tmp_path, lambda: False, box, {name: os.dup(it) for name, it in box.kept.items()})
    assert second.conflict(1, 44, WRITE, 5, 1) == (WRITE, 0, 10, 111)
    with pytest.raises(Busy):
        second.set_whole(1, 33, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second.closed(7)
    assert second.conflict(1, 44, WRITE, 5, 1) is None
    second.forget(1, 22, "whole")
    second.forget(1, 33, "whole")
    assert box.kept == {}
    second.close()


def test_a_file_that_is_for_one_mount_is_locked_by_another_once_all_have_closed_it(tmp_path: Path) -> None:
    box = Box()
    first, other = LockTable(tmp_path, lambda: False, box), LockTable(tmp_path, lambda: False)
    for owner in (11, 12):
        first.set_range(1, owner, READ, 0, 1, wait=False, alone=True)

    def refused() -> bool:
        try:
            other.set_range(1, 21, READ, 5, 1, wait=False, alone=True)
        except Busy:
            other.set_range(1, 21, NONE, 0, 0, wait=False, alone=True)
            return True
        return False

    assert refused()
    first.close()
    first = LockTable(tmp_path, lambda: False, box, {name: os.dup(it) for name, it in box.kept.items()})
    first.set_range(1, 12, NONE, 0, 0, wait=False, alone=True)
    first.forget(1, 11, "range")
    assert refused(), "the second one has it open"
    first.forget(1, 12, "range")
    assert box.kept == {} and not refused()
    with pytest.raises(Busy):
        first.set_range(1, 12, READ, 0, 1, wait=False, alone=True)
    first.forget(1, 12, "range")
    other.forget(1, 21, "range")
    assert box.kept == {}
    first.set_range(1, 12, READ, 0, 1, wait=False, alone=True)
    for each in (first, other):
        each.close()


def test_names_of_a_process_before_this_version_are_understood(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / f"{1:016x}.range", os.O_RDWR | os.O_CREAT)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock(WRITE, 0, 10))
    table = LockTable(tmp_path, lambda: False, None, {"lock range 1 b 7": descriptor})
    assert table.conflict(1, 44, WRITE, 5, 1) == (WRITE, 0, 10, 0)
    table.closed(7)
    assert table.conflict(1, 44, WRITE, 5, 1) is None


def test_two_that_would_wait_for_each_other(table: LockTable) -> None:
    table.set_range(1, 11, WRITE, 0, 1, wait=False)
    table.set_range(2, 22, WRITE, 0, 1, wait=False)
    thread, came = _waiting(table, 2, 11, WRITE, 0, 0)
    with pytest.raises(WouldDeadlock):
        table.set_range(1, 22, READ, 0, 0, wait=True)
    with pytest.raises(Busy):
        table.set_range(1, 22, READ, 0, 0, wait=False)
    table.forget(2, 22, "range")
    thread.join(LIMIT_S)
    assert came == ["got"]


def test_one_that_has_what_it_waited_for_waits_no_more(table: LockTable) -> None:
    table.set_range(1, 11, WRITE, 0, 1, wait=False)
    table.set_range(1, 22, WRITE, 1, 1, wait=False)
    thread, came = _waiting(table, 1, 11, WRITE, 1, 1)
    table.set_range(1, 22, NONE, 1, 1, wait=False)
    thread.join(LIMIT_S)
    assert came == ["got"]
    second, got = _waiting(table, 1, 22, WRITE, 0, 1)  # 11 holds it, and waits for nothing
    table.forget(1, 11, "range")
    second.join(LIMIT_S)
    assert got == ["got"]


def test_one_that_gave_up_waits_no_more(tmp_path: Path) -> None:
    gives_up = threading.Event()
    table = LockTable(tmp_path, gives_up.is_set)
    table.set_range(1, 11, WRITE, 0, 1, wait=False)
    table.set_range(1, 22, WRITE, 1, 1, wait=False)
    thread, came = _waiting(table, 1, 11, WRITE, 1, 1)
    gives_up.set()
    thread.join(LIMIT_S)
    assert isinstance(came[0], Interrupted)
    gives_up.clear()
    second, got = _waiting(table, 1, 22, WRITE, 0, 1)
    assert got == [], "a circle that is none"
    table.forget(1, 11, "range")
    second.join(LIMIT_S)
    assert got == ["got"]
    table.close()


def test_readers_wait_for_no_readers(table: LockTable) -> None:
    table.set_range(1, 11, READ, 0, 1, wait=False)
    table.set_range(1, 22, READ, 0, 1, wait=False)
    table.set_range(1, 33, WRITE, 5, 1, wait=False)
    thread, came = _waiting(table, 1, 11, READ, 5, 1)  # waits for 33, and 22 reads what 11 reads
    second, got = _waiting(table, 1, 33, WRITE, 9, 1)
    second.join(LIMIT_S)
    assert got == ["got"]
    table.set_range(1, 22, READ, 0, 5, wait=True)
    table.forget(1, 33, "range")
    thread.join(LIMIT_S)
    assert came == ["got"]


def test_a_lock_is_kept_for_a_successor_though_no_thread_can_be_had_to_watch_its_file(tmp_path: Path) -> None:
    box = Box()
    table = LockTable(tmp_path, lambda: False, box)
    with refused_once("locks"):
        table.set_range(1, 8, WRITE, 0, 10, wait=False, pid=800)
    table.set_range(2, 8, WRITE, 0, 10, wait=False, pid=800)
    assert table._watched and len(box.kept) == 2
    table.close()
    for name in list(box.kept):
        box.drop(name)
