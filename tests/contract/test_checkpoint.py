"""The write-ahead log stays within its bounds, whoever reads and however little the disk or the processor leaves."""

from __future__ import annotations

import errno
import logging
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import apsw
import pytest

from avmfs.store.files.wal_index import WalIndex
from avmfs.store.schema import database
from avmfs.store.schema.tables import MEMORY
from avmfs.store.writer import checkpoint
from avmfs.store.writer.checkpoint import FRAME, Checkpointer
from avmfs.store.writer.disk_reserve import DiskReserve
from avmfs.store.writer.request import parse
from avmfs.store.writer.scheduler import MOST_BYTES, Scheduler
from tests.contract.store_world import ALICE, WriterProcess
from tests.small_disks import small_disk

RESTART, HARD, LEFT = 120, 160, 10


class Log:
    """A store with a log of few pages, and the one who writes it. The thread of the checkpointer runs when told to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        database.prepare(path)
        self.db = database.connect(path, writable=True)
        database.run(self.db, "create table filler(data)")
        self.headroom = DiskReserve(path, self.db)
        self.checkpointer = Checkpointer(path, self.headroom)
        self.pages = 0
        self.db.set_wal_hook(self._hook)

    def _hook(self, db: apsw.Connection, name: str, pages: int) -> int:
        self.pages = pages
        return self.checkpointer.hook(db, name, pages)

    def commit(self, pages: int = 2) -> float:
        """Returns how long the writer is held up after it."""
        self.db.execute("insert into filler values(randomblob(?))", (4000 * pages - 3000,)).fetchall()
        started = time.monotonic()
        self.checkpointer.between_transactions()
        return time.monotonic() - started

    def fill(self, pages: int) -> None:
        while self.pages < pages:
            self.commit()

    @property
    def size(self) -> int:
        return self.path.with_name("avm.db-wal").stat().st_size

    def close(self) -> None:
        if self.checkpointer.is_alive():
            self.checkpointer.stop()
        self.db.close()


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Log]:
    for name, value in {
        "CHECKPOINT_PAGES": 40,
        "RESTART_PAGES": RESTART,
        "HARD_PAGES": HARD,
        "LEFT_PAGES": LEFT,
        "RETRY_PAGES": 5,
        "AHEAD_PAGES": 0,
        "POLL_MS": 5,
        "HARD_S": 0.1,
    }.items():
        monkeypatch.setattr(checkpoint, name, value)
    made = Log(tmp_path / "avm.db")
    yield made
    made.close()


def reader(log: Log) -> apsw.Connection:
    db = database.connect(log.path, writable=False)
    db.execute("begin")
    db.execute("select count(*) from node").fetchall()
    return db


def test_a_thread_that_never_gets_to_run_lets_the_log_grow_no_further(short: Log) -> None:
    most = 0
    for _ in range(400):
        short.commit()
        most = max(most, short.pages)
    assert HARD <= most < HARD + 10
    assert short.pages < HARD, "begun anew several times"


def test_the_writer_is_left_little_to_move(short: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []

    def fdatasync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        os.fsync(descriptor)

    monkeypatch.setattr("avmfs.store.writer.checkpoint.os.fdatasync", fdatasync)
    short.fill(RESTART + 20)
    assert short.pages >= RESTART + 20, "the thread has moved nothing yet: below HARD the writer does not do its work"
    short.checkpointer.start()
    deadline = time.monotonic() + 300
    while short.pages > RESTART and time.monotonic() < deadline:
        short.commit(1)
        time.sleep(0.05)  # longer than a sync takes here, so that little is left
        if short.pages >= HARD:
            short.checkpointer._begun_anew()  # the disk is slower than that: as if it had been done, and once more
    assert short.pages < LEFT
    assert synced and set(synced) == {os.fspath(short.path)}, "before the writer has to sync it"


def test_a_slow_reader_holds_the_writer_up_for_a_moment_only(short: Log) -> None:
    short.fill(HARD - 5)
    slow = reader(short)
    waits = [short.commit() for _ in range(40)]
    assert short.pages > HARD + 40, "nothing was lost of what it reads"
    assert 0.09 < max(waits) < 100
    slow.close()
    usual = statistics.median(short.commit() for _ in range(20))
    assert statistics.median(waits) < 0.09 + usual, "not at every commit"
    assert short.pages < HARD


def test_the_longer_the_log_the_longer_the_writer_waits(short: Log) -> None:
    slow = reader(short)
    short.fill(2 * HARD)
    waits = [short.commit() for _ in range(30)]
    assert max(waits) > 0.4, "four times HARD_S"
    slow.close()


def test_a_reader_that_begins_again_at_once_is_waited_for_no_more(short: Log) -> None:
    """What it reads from then on is in the database: SQLite's own wait would go on."""
    short.fill(HARD - 2)
    slow, over = reader(short), threading.Event()

    def read() -> None:
        while not over.wait(0.06):
            slow.execute("commit")
            slow.execute("begin")
            slow.execute("select count(*) from node").fetchall()

    thread = threading.Thread(target=read)
    thread.start()
    most = 0
    for _ in range(400):
        short.commit()
        most = max(most, short.pages)
    over.set()
    thread.join(300)
    slow.close()
    assert most < 2 * HARD, "of 400 that there would be more"


class Broken:
    """A connection whose checkpoints fail."""

    def __init__(self) -> None:
        self.calls = 0

    def wal_checkpoint(self, mode: int) -> tuple[int, int]:
        self.calls += 1
        raise apsw.IOError("disk I/O error")

    def close(self) -> None:
        pass


def test_a_disk_that_fails_is_told_of_once_and_not_waited_for(short: Log, caplog: pytest.LogCaptureFixture) -> None:
    whole, broken = short.checkpointer._between, Broken()
    short.checkpointer._between = cast(apsw.Connection, broken)
    with caplog.at_level(logging.ERROR):
        short.fill(2 * HARD)
    assert 2 <= broken.calls < 40
    assert [record.message for record in caplog.records] == ["checkpoint failed: disk I/O error"]
    short.checkpointer._between = whole
    for _ in range(40):
        short.commit()
    assert short.pages < HARD


def test_after_a_failed_sync_of_the_database_every_page_is_moved_again(
    short: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once, of pages that any checkpoint since the log began has moved."""
    slow = reader(short)
    short.fill(60)
    index, sync = short.checkpointer._index, WalIndex.sync_database
    failed = threading.Event()

    def once(self: WalIndex) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError(5, "Input/output error")
        sync(self)

    monkeypatch.setattr(WalIndex, "sync_database", once)
    short.checkpointer.run = lambda: None  # type: ignore[method-assign]
    slow.execute("commit")
    slow.execute("begin")
    slow.execute("select count(*) from node").fetchall()
    short.fill(100)  # of which the reader holds some
    short.checkpointer._move()
    assert failed.is_set()
    assert moved_pages(index) == 0 == short.checkpointer._moved
    short.checkpointer._move()
    assert moved_pages(index) == short.checkpointer._moved >= 60
    slow.close()


def moved_pages(index: WalIndex) -> int:
    return int.from_bytes(index._mapped[96:100], sys.byteorder)


@pytest.fixture
def full(short: Log) -> Log:
    """Its disk is what the test says."""
    short.headroom.look = lambda: None  # type: ignore[method-assign]
    short.headroom.near = True
    return short


def test_on_a_full_disk_the_logs_file_is_cut(full: Log) -> None:
    full.fill(60)
    assert full.size > 50 * FRAME
    full.checkpointer._note_refusal()
    slow = reader(full)
    full.commit()
    assert full.size > 50 * FRAME, "it is being read"
    slow.close()
    full.commit()
    assert full.size == 0


def test_a_long_file_with_little_in_it_is_room_too(full: Log) -> None:
    """What a long log has left behind, or what was laid out ahead of it."""
    full.fill(20)
    with open(full.path.with_name("avm.db-wal"), "ab") as file:
        file.write(bytes(4 << 20))
    full.commit()
    assert full.size > 4 << 20, "there is room yet"
    full.headroom.low = True
    full.commit()
    assert full.size == 0


def test_what_a_refused_transaction_left_behind_the_log_keeps_no_checkpoint_off(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "8m") as where:
        log = Log(where / "avm.db")
        log.db.execute("insert into filler values(randomblob(200000))")
        left = os.statvfs(where)
        (where / "ballast").write_bytes(bytes(left.f_bavail * left.f_frsize - (300 << 10)))
        with pytest.raises(apsw.FullError):
            log.db.execute("insert into filler values(randomblob(1000000))")
        assert os.statvfs(where).f_bavail == 0
        log.headroom.look()
        log.checkpointer.between_transactions()
        assert log.size == 0 and os.statvfs(where).f_bavail > 0
        assert log.db.execute("select count(*), max(length(data)) from filler").fetchone() == (1, 200_000)
        log.close()


def test_no_room_is_laid_ahead_of_the_log_where_there_is_little(full: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "CHECKPOINT_PAGES", 10 * RESTART)
    monkeypatch.setattr(checkpoint, "AHEAD_PAGES", 5)
    full.checkpointer.start()
    while full.pages < RESTART // 2:
        full.commit()
        time.sleep(0.005)
    assert full.size < checkpoint.ROOM // 2
    full.headroom.near = False
    full.commit()
    deadline = time.monotonic() + 300
    while full.size < checkpoint.ROOM and time.monotonic() < deadline:
        time.sleep(0.01)
    assert full.size >= checkpoint.ROOM


def test_a_log_that_cannot_be_opened_once_keeps_no_page_from_being_moved(
    short: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, refused = os.open, list[str]()

    def full(path: Any, *more: Any, **named: Any) -> int:
        if os.fspath(path) == f"{short.path}-wal" and not refused:
            refused.append(path)
            raise OSError(errno.EMFILE, "Too many open files")
        return really(path, *more, **named)

    monkeypatch.setattr(os, "open", full)
    short.checkpointer.start()
    deadline = time.monotonic() + 300
    short.commit()
    while not refused and time.monotonic() < deadline:
        time.sleep(0.005)
    short.fill(checkpoint.CHECKPOINT_PAGES + 10)
    while not short.checkpointer._moved and time.monotonic() < deadline:
        assert short.checkpointer.is_alive()
        time.sleep(0.005)
    assert refused and short.checkpointer._moved


def test_slow_readers_under_load_let_the_log_stay_below_its_limit(tmp_path: Path) -> None:
    """With a checkpoint beside the writer this came to four times as much."""
    writer = WriterProcess(tmp_path / "avm.db", tmp_path / "clock")
    store = writer.attach("*")
    store.submit(ALICE, "enroll")
    over, most, log = threading.Event(), [0], tmp_path / "avm.db-wal"

    def read(number: int) -> None:
        mine = writer.attach("*")
        time.sleep(number * 0.05)
        while not over.is_set():
            with mine.reading(ALICE) as reader:
                reader.children(MEMORY)
                time.sleep(0.1)
        mine.close()

    def write(number: int) -> None:
        mine, random_ = writer.attach("*"), random.Random(number)
        for step in range(900):
            data = random_.randbytes(20_000)
            mine.submit(ALICE, "write_path", path=[b"memory", b"%d-%d" % (number, step % 50)], data=data)
            most[0] = max(most[0], log.stat().st_size)
        mine.close()

    readers = [threading.Thread(target=read, args=(number,)) for number in range(3)]
    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in (*readers, *writers):
        thread.start()
    for thread in writers:
        thread.join(300)
    over.set()
    for thread in readers:
        thread.join(300)
    store.close()
    writer.close()
    assert 48 << 20 < most[0] < 64 << 20


def test_large_requests_are_not_gathered_into_one_transaction() -> None:
    """What one transaction brings must fit into the log above HARD_PAGES."""
    assert checkpoint.HARD_PAGES * FRAME + MOST_BYTES < 64 << 20
    turns: Scheduler[None] = Scheduler(lambda item: False)
    large = bytes(MOST_BYTES // 2)
    arguments: list[Any] = [{"path": [b"memory", b"f"], "data": large}] * 5
    arguments += [{"node": 1, "edits": [["w", 0, large], ["w", 0, b"little"]]}] * 3
    arguments += [{"node": 1, "edits": [["w", 0, bytes(3 * MOST_BYTES)]]}, *[{"node": 1, "text": "x"}] * 4, "malformed"]
    for each in arguments:
        request = parse([1, "alice", False, "x", each])
        assert request is not None
        turns.add(None, request)
    batches = []
    while turns:
        batches.append(len(turns.next()))
    assert batches == [2, 2, 1, 1, 1, 1, 1, 5]
