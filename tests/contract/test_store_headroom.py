"""The reserve that a nearly full disk keeps free for removing files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import apsw
import pytest

from avmfs.access import Policy
from avmfs.errors import NoSpace
from avmfs.search import fresh
from avmfs.store.files.wal_header import PAGE
from avmfs.store.identity import OPERATOR
from avmfs.store.schema.tables import MEMORY
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer import disk_reserve
from avmfs.store.writer.disk_reserve import DiskReserve
from tests.contract.store_world import ALICE
from tests.small_disks import small_disk

MB = 1 << 20


class Disk:
    """Small, of which the test says how many bytes are free."""

    def __init__(self) -> None:
        self.free = 1024 * MB

    def statvfs(self, path: object) -> SimpleNamespace:
        return SimpleNamespace(f_frsize=PAGE, f_blocks=64 * MB // PAGE, f_bavail=self.free // PAGE)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(os, "statvfs", disk.statvfs)
    monkeypatch.setattr(disk_reserve, "_AGAIN_S", 0.0)
    return disk


@pytest.fixture
def room(disk: Disk, tmp_path: Path) -> Iterator[DiskReserve]:
    db = apsw.Connection(os.fspath(tmp_path / "db"))
    db.execute("create table t(data)")
    yield DiskReserve(tmp_path / "db", db)
    db.close()


def admitted(room: DiskReserve, command: str, size: int) -> bool:
    try:
        room.admit(command, {"edits": bytes(size)})
    except NoSpace:
        return False
    return True


def test_with_room_everything_is_admitted_that_fits_twice(disk: Disk, room: DiskReserve) -> None:
    assert room.reserve == MB
    assert admitted(room, "commit", 9 * MB)
    disk.free = 10 * MB
    assert admitted(room, "commit", 4 * MB)
    assert not admitted(room, "commit", 5 * MB)
    assert not room.low


def test_of_the_reserve_only_what_makes_the_store_smaller_may_take(disk: Disk, room: DiskReserve) -> None:
    disk.free = 2 * MB - PAGE
    assert admitted(room, "commit", 300_000)
    assert room.low
    assert not admitted(room, "commit", 500_000), "it is wanted twice: in the log and in the database"
    disk.free = MB
    assert not admitted(room, "create", 1)
    assert admitted(room, "drain_lexical", 1), "what was written can be found"
    disk.free = MB // 2
    assert not admitted(room, "drain_lexical", 1)
    assert admitted(room, "unlink", 1)
    disk.free = 3 * MB
    assert admitted(room, "create", 1), "others have made room"


def test_what_is_in_the_log_is_wanted_in_the_database(disk: Disk, room: DiskReserve) -> None:
    disk.free = 3 * MB
    room.committed(2 * MB // PAGE)
    assert room.low
    assert not admitted(room, "create", 1)
    room.committed(0)
    assert admitted(room, "create", 1)


def test_the_requests_of_one_transaction_share_what_there_is(
    disk: Disk, room: DiskReserve, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.free = 2 * MB - PAGE
    room.look()
    monkeypatch.setattr(disk_reserve, "_AGAIN_S", 60.0)
    assert [admitted(room, "commit", 200_000) for _ in range(4)] == [True, True, False, False]


def test_free_pages_are_room(disk: Disk, room: DiskReserve, tmp_path: Path) -> None:
    db = room._db
    db.execute("insert into t values(zeroblob(2000000))")
    disk.free = MB
    assert not admitted(room, "commit", 200_000)
    db.execute("delete from t")
    assert admitted(room, "commit", 200_000)
    assert not admitted(room, "commit", 900_000), "no more than the log has room for"
    disk.free = MB // 2
    assert admitted(room, "commit", 1), "what the words' index has left"
    disk.free = MB * 2 // 5
    assert admitted(room, "commit", 1)
    assert not admitted(room, "drain_lexical", 1), "it would be refused once it is done"


def test_of_a_database_that_was_taken_away_what_was_known_holds(
    disk: Disk, room: DiskReserve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(path: Path) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "statvfs", gone)
    room.look()
    assert admitted(room, "write_path", 100)
    monkeypatch.undo()
    monkeypatch.setattr(disk_reserve, "_AGAIN_S", 60.0)
    assert admitted(room, "write_path", 100)


def test_it_is_told_once(disk: Disk, room: DiskReserve, caplog: pytest.LogCaptureFixture) -> None:
    disk.free = MB
    for _ in range(3):
        admitted(room, "create", 1)
    disk.free = 900 * MB
    for _ in range(3):
        admitted(room, "create", 1)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    disk.free = 8 * MB
    assert not admitted(room, "commit", 7 * MB) and admitted(room, "create", 1)
    assert len(caplog.records) == 2, "one that is too large is refused, and the disk is not full"


def test_without_a_daemon_the_reserve_is_kept_too(disk: Disk, tmp_path: Path) -> None:
    with contextlib.closing(open_direct(tmp_path / "avm.db", Policy(), IndexRules())) as store:

        def written(name: bytes, size: int) -> bool:
            try:
                store.submit(ALICE, "write_path", path=[b"memory", name], data=b"x" * size)
            except NoSpace:
                return False
            return True

        assert written(b"a", 9) and written(b"b", 9)
        disk.free = 3 * MB
        assert not written(b"large", 2 * MB), "it is wanted twice: in the log and in the database"
        assert written(b"small", 9)
        disk.free = MB // 2
        assert not written(b"c", 9)
        store.submit(ALICE, "unlink", parent=MEMORY, name=b"a")
        store.submit(OPERATOR, "act_as_operator")  # who is to remove others' files
        found = fresh.in_words(store, partial(store.submit, ALICE))
        assert found is not None and "full" in found, "a search goes on, and says what it lacks"


def test_words_that_take_more_than_their_text_leave_room_to_remove_files(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "24m") as where:
        with contextlib.closing(open_direct(where / "avm.db", Policy(), IndexRules())) as store:
            for name in b"old", b"older":
                store.submit(ALICE, "write_path", path=[b"memory", name], data=b"17 " * 200_000)
        left = os.statvfs(where)
        (where / "ballast").write_bytes(bytes(left.f_bavail * left.f_frsize - (800 << 10)))
        with contextlib.closing(open_direct(where / "avm.db", Policy(), IndexRules())) as store:
            found = fresh.in_words(store, partial(store.submit, ALICE))
            assert found is not None and "full" in found
            for name in b"old", b"older":
                store.submit(ALICE, "unlink", parent=MEMORY, name=name)
            store.submit(ALICE, "write_path", path=[b"memory", b"small"], data=b"x")
        left = os.statvfs(where)
        assert left.f_bavail * left.f_frsize > 400 << 10
