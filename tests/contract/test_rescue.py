"""Putting back a log that was removed, when that fails and is tried again."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from avmfs_config import Paths, Settings
from avmfs_daemon.premises import Premises

from avmfs.errors import Busy, StoreFailed
from avmfs.store.repair import wal_restore
from avmfs.store.schema import database
from avmfs.store.store import Store
from tests.dropping_disk import DroppingDisk
from tests.small_disks import small_disk

ROWS = 40

READING = """
import sys, apsw
db = apsw.Connection(sys.argv[1], flags=apsw.SQLITE_OPEN_READWRITE)
db.execute("begin; select count(*) from filler").fetchall()
print("reads", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def another_program_reading(path: Path) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", READING, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        try:
            assert reader.stdout is not None and reader.stdout.readline() == "reads\n"
            yield
        finally:
            reader.kill()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database.connect, "__kwdefaults__", {"busy_ms": 20, "frozen": False})


def filled(path: Path, rows: Iterable[int] = range(ROWS), *, new: bool = True) -> None:
    """In the log, and not in the database."""
    if new:
        database.prepare(path)
    with contextlib.closing(database.connect(path, writable=True)) as db:
        if new:
            db.execute("create table filler(number, data)")
        for number in rows:
            db.execute("insert into filler values(?, randomblob(3000))", (number,))


def numbers(path: Path) -> list[int]:
    with contextlib.closing(database.connect(path, writable=True)) as db:
        assert db.execute("pragma integrity_check").get == "ok"
        return [number for (number,) in db.execute("select number from filler order by number")]


class FakeChildren:
    """Of no process."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self.when_halted = lambda: None

    def halt(self, all: list[Any]) -> None:
        self.when_halted()

    def go_on(self) -> None:
        pass


def test_a_log_that_another_program_reads_is_put_back_once(tmp_path: Path) -> None:
    path = tmp_path / "avm.db"
    log = path.with_name("avm.db-wal")
    paths = Paths(tmp_path, tmp_path, tmp_path / "run", tmp_path / "m", tmp_path / "c", path)
    filled(path)
    crew: Any = FakeChildren()
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as reading:
        premises = Premises(paths, Settings(providers=(), permissions=(), default_access="ro"), stack, lambda: True)
        premises.open(stack, lambda: Store(path))

        def read() -> None:
            if log.exists() and log.stat().st_size > 10:  # from the moment on that it has been put back
                crew.when_halted = lambda: None
                reading.enter_context(another_program_reading(path))

        crew.when_halted = read
        log.unlink()
        log.write_bytes(b"other")
        for _ in range(3):
            premises.attend(crew, lambda: None)
            assert "locked by another program" in premises.problem
        assert [other.read_bytes() for other in tmp_path.glob("avm.db-wal.*")] == [b"other"]
        with reading.pop_all():
            pass
        premises.attend(crew, lambda: None)
        assert premises.problem == "" and not log.stat().st_size
        assert numbers(path) == list(range(ROWS))
        log.unlink()  # and once more
        log.write_bytes(b"other")
        premises.attend(crew, lambda: None)
        assert premises.problem == "" and len(list(tmp_path.glob("avm.db-wal.*"))) == 2
    assert numbers(path) == list(range(ROWS))


@pytest.mark.mount
def test_what_a_failed_sync_of_the_database_lost_is_moved_again(tmp_path: Path) -> None:
    with DroppingDisk(tmp_path / "disk") as disk:
        path = disk.path / "avm.db"
        filled(path)
        look = database.connect(path, writable=False)  # keeps the index
        with another_program_reading(path):
            filled(path, range(ROWS, 2 * ROWS), new=False)
            with pytest.raises(Busy):
                wal_restore.begin_anew(path)  # half is moved, and not synced
        disk.fail("sync", errno.EIO, name="avm.db")
        with pytest.raises(StoreFailed):
            wal_restore.begin_anew(path)
        wal_restore.begin_anew(path)
        look.close()
        copy = disk.durable(tmp_path / "copy") / "avm.db"
        copy.with_name("avm.db-wal").unlink()  # its end may be on the disk at any time
        assert numbers(copy) == list(range(2 * ROWS))


def test_a_copy_that_the_disk_has_no_room_for_does_not_stay(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        (tmp_path / "log").write_bytes(bytes(4 << 20))
        (disk / "avm.db-wal").write_bytes(b"other")
        descriptor = os.open(tmp_path / "log", os.O_RDONLY)
        try:
            with pytest.raises(OSError, match=r"No space left on device: .*rescued"):
                wal_restore.restore_log(disk / "avm.db", descriptor, foreign=True)
        finally:
            os.close(descriptor)
        assert [path.name for path in disk.iterdir()] == ["avm.db-wal"]
