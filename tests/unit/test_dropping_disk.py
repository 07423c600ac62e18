"""The disk that the power-loss tests stand on: what it keeps, drops and fails."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from tests.disk_model import PAGE, Names
from tests.dropping_disk import DroppingDisk

pytestmark = pytest.mark.mount


@pytest.fixture(params=["posix", "ext4"])
def names(request: pytest.FixtureRequest) -> Names:
    return request.param


@pytest.fixture
def disk(tmp_path: Path, names: Names) -> Iterator[DroppingDisk]:
    with DroppingDisk(tmp_path / "disk", names) as disk:
        yield disk


def put(path: Path, data: bytes, *, sync: bool = True, at: int = 0) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(descriptor, data, at)
        if sync:
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def test_it_is_a_filesystem(disk: DroppingDisk) -> None:
    assert os.statvfs(disk.path).f_bavail > 1 << 20
    (disk.path / "d").mkdir()
    (disk.path / "d/a").write_bytes(b"x" * 100_000)
    (disk.path / "d/a").rename(disk.path / "b")
    os.symlink("b", disk.path / "s")
    assert (disk.path / "s").read_bytes() == b"x" * 100_000
    assert sorted(os.listdir(disk.path)) == ["b", "d", "s"]
    os.truncate(disk.path / "b", 5)
    with open(disk.path / "b", "ab") as file:
        file.write(b"y")
    assert (disk.path / "b").read_bytes() == b"xxxxxy"
    with pytest.raises(OSError) as refused:
        os.rmdir(disk.path / "d/none")
    assert refused.value.errno == errno.ENOENT
    (disk.path / "d").rmdir()
    (disk.path / "b").unlink()
    assert os.listdir(disk.path) == ["s"]


def test_what_is_not_synced_is_gone_and_what_is_synced_stays(disk: DroppingDisk) -> None:
    put(disk.path / "f", b"a" * 3 * PAGE)
    sync_folder(disk.path)
    put(disk.path / "f", b"b" * PAGE, at=PAGE, sync=False)
    put(disk.path / "f", b"c" * PAGE, at=5 * PAGE, sync=False)
    assert len((disk.path / "f").read_bytes()) == 6 * PAGE
    disk.power_loss()
    assert (disk.path / "f").read_bytes() == b"a" * 3 * PAGE
    put(disk.path / "f", b"b" * PAGE, at=PAGE)
    os.truncate(disk.path / "f", 10)
    disk.power_loss()
    assert (disk.path / "f").read_bytes() == b"a" * PAGE + b"b" * PAGE + b"a" * PAGE


def test_what_is_on_the_disk_can_be_looked_at(disk: DroppingDisk, tmp_path: Path) -> None:
    (disk.path / "d").mkdir()
    put(disk.path / "d/f", b"a" * 3 * PAGE)
    for folder in (disk.path, disk.path / "d"):
        sync_folder(folder)
    put(disk.path / "d/f", b"b" * PAGE, sync=False)
    put(disk.path / "g", b"b", sync=False)
    copy = disk.durable(tmp_path / "copy")
    assert os.listdir(copy) == ["d"] and (copy / "d/f").read_bytes() == b"a" * 3 * PAGE
    assert (disk.path / "d/f").read_bytes()[:1] == b"b"


def test_a_name_is_there_by_the_rule(disk: DroppingDisk, names: Names) -> None:
    put(disk.path / "synced", b"1")
    put(disk.path / "not", b"1", sync=False)
    disk.power_loss()
    assert sorted(os.listdir(disk.path)) == {"posix": [], "ext4": ["synced"]}[names]
    put(disk.path / "old", b"1")
    sync_folder(disk.path)
    put(disk.path / "new", b"2")
    os.rename(disk.path / "new", disk.path / "old")
    disk.power_loss()
    assert (disk.path / "old").read_bytes() == b"1" or names == "posix"
    os.unlink(disk.path / "old")
    disk.power_loss()
    assert (disk.path / "old").exists()
    os.unlink(disk.path / "old")
    sync_folder(disk.path)
    disk.power_loss()
    assert not (disk.path / "old").exists()


def test_what_is_not_synced_may_be_there_in_any_part(disk: DroppingDisk) -> None:
    put(disk.path / "f", b"a" * 64 * PAGE)
    sync_folder(disk.path)
    found = set()
    for seed in range(4):
        put(disk.path / "f", b"%d" % seed * 80 * PAGE, sync=False)
        disk.power_loss("some", seed)
        data = (disk.path / "f").read_bytes()
        assert len(data) >= 64 * PAGE
        found.add(bytes(data[at] for at in range(0, len(data), 512)))
        put(disk.path / "f", b"a" * 80 * PAGE)
    assert len(found) == 4 and all(len(set(each)) > 1 for each in found)


def test_a_sync_covers_what_was_written_before_it_began(disk: DroppingDisk) -> None:
    put(disk.path / "f", bytes(3 * PAGE))
    sync_folder(disk.path)
    disk.slow(1.0, 1.0)
    put(disk.path / "f", b"a" * PAGE, sync=False)
    thread = threading.Thread(target=put, args=(disk.path / "f", b"b" * PAGE), kwargs={"at": PAGE})
    before = disk.counts()["sync f"]
    thread.start()
    while disk.counts()["sync f"] == before:
        time.sleep(0.01)
    put(disk.path / "f", b"c" * PAGE, sync=False, at=2 * PAGE)  # meanwhile
    thread.join(200)
    disk.power_loss()
    assert (disk.path / "f").read_bytes() == b"a" * PAGE + b"b" * PAGE + bytes(PAGE)


def test_an_error_of_a_sync_is_told_once_and_the_pages_are_gone(disk: DroppingDisk) -> None:
    put(disk.path / "f", b"1")
    sync_folder(disk.path)
    first, second = (os.open(disk.path / "f", os.O_RDWR) for _ in range(2))
    os.pwrite(first, b"2", 0)
    disk.fail("sync", errno.EIO, name="f")
    for descriptor in (first, second):
        with pytest.raises(OSError) as failed:
            os.fdatasync(descriptor)
        assert failed.value.errno == errno.EIO
        os.fdatasync(descriptor)
    third = os.open(disk.path / "f", os.O_RDWR)
    os.fdatasync(third)
    assert os.pread(third, 1, 0) == b"2"
    for descriptor in (first, second, third):
        os.close(descriptor)
    disk.power_loss()
    assert (disk.path / "f").read_bytes() == b"1"


def test_writes_fail_as_asked(disk: DroppingDisk) -> None:
    put(disk.path / "f", b"1")
    disk.fail("write", errno.ENOSPC, times=2, name="f", skip=1)
    put(disk.path / "f", b"2")
    for _ in range(2):
        with pytest.raises(OSError) as failed:
            put(disk.path / "f", b"3")
        assert failed.value.errno == errno.ENOSPC
    put(disk.path / "f", b"4")
    disk.fail("write", errno.EIO, times=5)
    disk.heal()
    put(disk.path / "f", b"5")


def test_nobody_is_answered_after_the_cut(disk: DroppingDisk) -> None:
    put(disk.path / "f", b"1")
    sync_folder(disk.path)
    failed: list[OSError] = []
    descriptor = os.open(disk.path / "f", os.O_RDWR)

    def write() -> None:
        try:
            os.pwrite(descriptor, b"2", 0)
        except OSError as e:
            failed.append(e)

    disk.cut()
    thread = threading.Thread(target=write)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    disk.revive()
    thread.join(200)
    assert not thread.is_alive() and failed
    with contextlib.suppress(OSError):
        os.close(descriptor)
    assert (disk.path / "f").read_bytes() == b"1"


def test_sqlite_in_wal_mode_keeps_its_promise(disk: DroppingDisk) -> None:
    put(disk.path / "m", bytes(PAGE))
    with open(disk.path / "m", "r+b") as file, mmap.mmap(file.fileno(), PAGE) as shared:
        shared[0] = 7
    for seed in range(3):
        path = os.fspath(disk.path / f"db{seed}")
        db, other = apsw.Connection(path), apsw.Connection(path)
        for statement in ("pragma journal_mode = wal", "pragma synchronous = full", "create table t(n)"):
            db.execute(statement).fetchall()
        sync_folder(disk.path)  # SQLite leaves it out for the database itself
        for number in range(50):
            db.execute("insert into t values(?)", (number,))
            assert other.execute("select count(*) from t").get == number + 1
        db.execute("pragma synchronous = off").fetchall()
        for number in range(50, 60):
            db.execute("insert into t values(?)", (number,))
        disk.cut("some" if seed else "synced", seed)
        disk.revive()
        for each in (db, other):
            with contextlib.suppress(apsw.Error):
                each.close(True)
        db = apsw.Connection(path)
        there = [number for (number,) in db.execute("select n from t order by n")]
        assert there[:50] == list(range(50)) and there == list(range(len(there)))
        assert seed or len(there) == 50
        assert db.execute("pragma integrity_check").get == "ok"
        db.close()
