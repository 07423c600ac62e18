"""The writer's log and its syncs, with a clock and a disk of the test's: how quick, how long until the next attempt,
and what a log has to be before anything follows it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from avmfs.errors import StoreFailed
from avmfs.store.files import sync_note, wal_frames
from avmfs.store.files.wal_index import FOLIO, WalIndex
from avmfs.store.schema import database
from avmfs.store.writer import wal_sync
from avmfs.store.writer.checkpoint import FRAME
from avmfs.store.writer.wal_sync import FIRST_PAUSE_S, LONGEST_PAUSE_S, QUICK_S, RECENT, WalSync


class Disk:
    """``takes_s`` of the clock go by with each sync."""

    def __init__(self) -> None:
        self.now, self.takes_s = 1000.0, 0.0
        self.error: OSError | None = None

    def fdatasync(self, descriptor: int) -> None:
        self.now += self.takes_s
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(os, "fdatasync", made.fdatasync)
    monkeypatch.setattr(wal_sync, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.fixture
def db(tmp_path: Path) -> Iterator[apsw.Connection]:
    database.prepare(tmp_path / "avm.db")
    with contextlib.closing(database.connect(tmp_path / "avm.db", writable=True)) as db:
        database.run(db, "create table t(x)")
        for _ in range(4):
            database.run(db, "insert into t values(randomblob(9000))")
        yield db


@pytest.fixture
def log(db: apsw.Connection, disk: Disk, tmp_path: Path) -> Iterator[WalSync[Any]]:
    made: WalSync[Any] = WalSync(tmp_path / "avm.db", lambda: None)
    yield made
    made.close()


def test_a_disk_is_as_quick_as_the_shortest_of_its_last_syncs(
    log: WalSync[Any], disk: Disk, db: apsw.Connection
) -> None:
    assert log.quick is False and log.recover(db) is True and log.quick is False, "nothing is known"
    for takes_s, quick in ((QUICK_S * 2, False), (QUICK_S, False), (QUICK_S / 2, True), (QUICK_S * 2, True)):
        disk.now = 0.0  # so that what is measured is what it takes
        disk.takes_s = takes_s
        log.now()
        assert log.quick is quick
    for _ in range(RECENT):
        log.now()
    assert log.quick is False
    disk.now, disk.takes_s = 1000.0, QUICK_S / 2
    log.now()
    assert log.quick is True
    assert log._thread.daemon, "it keeps no process that ends without it"


def test_a_disk_that_failed_is_asked_after_pauses_that_grow(
    log: WalSync[Any], disk: Disk, db: apsw.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    assert log.retry_s == 0.0 and isinstance(log.failure, OSError) and log.failure.errno == errno.EIO
    with pytest.raises(OSError, match="not known to be on the disk") as unknown:
        log.now()
    assert unknown.value.errno == errno.EIO
    for _ in range(2):  # a failure after a recovery begins with the shortest again
        disk.error = OSError(5, "Input/output error")
        pauses = []
        caplog.clear()
        while not pauses or len(pauses) < 9:
            assert log.recover(db) is False and str(log.failure) == str(disk.error)
            pauses.append(log.retry_s)
            disk.now += log.retry_s / 2
            assert log.retry_s == pytest.approx(pauses[-1] / 2)
            disk.now += pauses[-1]
            assert log.retry_s == 0.0
        expected = [min(FIRST_PAUSE_S * 2**number, LONGEST_PAUSE_S) for number in range(9)]
        assert pauses == pytest.approx(expected) and pauses[-1] == LONGEST_PAUSE_S
        assert len(caplog.records) == 1, "once"
        disk.error = OSError(28, "No space left on device")
        assert log.recover(db) is False and len(caplog.records) == 2, "what is new is said"
        disk.error = None
        assert log.recover(db) is True and log.failure is None
        log.now()
        disk.error = OSError(5, "Input/output error")
        with pytest.raises(OSError, match="Input/output"):
            log.now()
        assert log.retry_s == 0.0 and log.failure is disk.error
        caplog.clear()


def open_here(folder: Path) -> list[str]:
    """Files in it that this process has open and that do not belong to a connection."""
    found = [os.path.realpath(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")]
    return sorted(each for each in found if each.startswith(f"{folder}/") and each.endswith(("-wal", ".synced")))


def test_what_was_synced_is_noted_and_nothing_stays_open(disk: Disk, db: apsw.Connection, tmp_path: Path) -> None:
    before = open_here(tmp_path)
    log: WalSync[Any] = WalSync(tmp_path / "avm.db", lambda: None)
    assert log.recover(db)
    log.note.seq = 5
    log.now()
    assert sync_note.read(tmp_path / "avm.db") == 5 and len(open_here(tmp_path)) == len(before) + 2
    log.note.seq, disk.error = 6, OSError(5, "Input/output error")
    with pytest.raises(OSError, match="Input/output"):
        log.now()
    assert sync_note.read(tmp_path / "avm.db") == 5
    log.close()
    assert open_here(tmp_path) == before and not log._thread.is_alive()


def test_nobody_commits_while_a_log_is_written_anew(
    log: WalSync[Any], disk: Disk, db: apsw.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, refused = os.pwrite, list[bool]()
    with contextlib.closing(database.connect(tmp_path / "avm.db", writable=True, busy_ms=0)) as other:

        def tries(descriptor: int, data: bytes, at: int) -> int:
            with pytest.raises(apsw.BusyError):
                other.execute("insert into t values(1)")
            refused.append(True)
            return pwrite(descriptor, data, at)

        monkeypatch.setattr(os, "pwrite", tries)
        assert log.recover(db) and refused and db.get_autocommit()
        disk.error = OSError(5, "Input/output error")
        assert not log.recover(db) and db.get_autocommit()
        monkeypatch.setattr(os, "pwrite", pwrite)
        other.execute("insert into t values(1)")


def test_a_long_log_is_written_as_it_was(log: WalSync[Any], disk: Disk, db: apsw.Connection, tmp_path: Path) -> None:
    file = tmp_path / "avm.db-wal"
    database.run(db, f"insert into t values(randomblob({FOLIO + FOLIO // 2}))")
    kept = file.read_bytes()
    frames = WalIndex(tmp_path / "avm.db").committed()[0]
    assert len(kept) == wal_frames.HEADER + frames * FRAME > FOLIO
    disk.error = OSError(5, "Input/output error")
    assert not log.recover(db)
    file.write_bytes(bytes(len(kept) + 5))
    disk.error = None
    assert log.recover(db) and file.read_bytes() == kept


def test_how_much_of_a_log_is_damaged_is_said(
    log: WalSync[Any], disk: Disk, db: apsw.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "avm.db-wal"
    kept = file.read_bytes()
    frames, checksum, salt = WalIndex(tmp_path / "avm.db").committed()

    def says(damaged: bytes, count: int) -> None:
        file.write_bytes(damaged)
        assert log.recover(db) is False
        assert isinstance(log.failure, StoreFailed) and log.failure.filename == str(file)
        assert log.failure.reason == f"{count} of {frames} pages in the log are damaged"
        file.write_bytes(kept)
        assert log.recover(db) is True and file.read_bytes() == kept

    for whole in (0, 1, frames - 2, frames - 1):
        at = wal_frames.HEADER + whole * FRAME + 100
        says(kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :], frames - whole)
    says(kept[:-FRAME], 1)
    says(kept[: -2 * FRAME], 2)
    says(b"", frames)
    says(bytes(len(kept)), frames)
    file.rename(tmp_path / "away")
    assert log.recover(db) is False and f"{frames} of {frames} pages" in str(log.failure), "nobody else finds it"
    (tmp_path / "away").rename(file)
    assert log.recover(db) is True
    for other, count in (
        ((frames, (checksum[0] ^ 1, checksum[1]), salt), 1),
        ((frames, checksum, b"another!"), frames),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(WalIndex, "committed", lambda index, other=other: other)
            assert log.recover(db) is False
            assert isinstance(log.failure, StoreFailed) and log.failure.reason.startswith(f"{count} of {frames} "), (
                other
            )
    assert log.recover(db) is True
    assert wal_sync._checksum(memoryview(kept)[-FRAME:]) == checksum
    assert wal_sync._checksum(memoryview(kept)[-FRAME + 1 :]) is None
