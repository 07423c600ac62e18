"""Which replies wait for the disk, and what a disk that fails means for them. Only fdatasync(2) is not the real one."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from avmfs.access import Policy, Principal
from avmfs.errors import AvmError, Busy, NoSpace, StoreFailed
from avmfs.store.client.client import WriterClient
from avmfs.store.commands import indexing
from avmfs.store.commands.aside import YOUNG_NS
from avmfs.store.files.displaced import Displaced
from avmfs.store.files.wal_index import WalIndex
from avmfs.store.identity import ANYBODY, OPERATOR, proof
from avmfs.store.schema import database
from avmfs.store.schema.tables import MEMORY
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer import checkpoint, loop, rewriting, wal_sync
from avmfs.store.writer.applier import Applier
from avmfs.store.writer.disk_reserve import DiskReserve
from avmfs.store.writer.loop import RECENT, Writer
from avmfs.store.writer.wal_sync import WalSync

ALICE = Principal("alice")
KEY = b"k" * 32

LIMIT_S = 200.0


class Disk:
    """fdatasync(2) that waits until it may, or fails. It takes ``takes_s`` at least."""

    takes_s = 2 * wal_sync.QUICK_S

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.error: OSError | None = None
        self.syncs = 0
        self.does: Callable[[int], None] = os.fsync

    def fdatasync(self, descriptor: int) -> None:
        assert self.open.wait(LIMIT_S)
        time.sleep(self.takes_s)
        self.syncs += 1
        if self.error is not None:
            raise self.error
        self.does(descriptor)


class Running:
    def __init__(self, root: Path) -> None:
        database.prepare(root / "avm.db")
        self.applier = Applier(root / "avm.db", Policy(), IndexRules(), orphans=True, clock=time.time_ns)
        self.applier.alone(OPERATOR, "settle", {})
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.fspath(root / "sock"))
        self.listener.listen(64)
        self.writer = Writer(self.listener, KEY, self.applier)
        self.raised: BaseException | None = None
        self.patience: list[float | None] = []  # of each wait
        self._watch_waits()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        self.address = root / "sock"
        self.client = self.connect()
        self.pool = ThreadPoolExecutor(8)

    def _run(self) -> None:
        try:
            self.writer.run()
        except BaseException as e:
            self.raised = e

    def _watch_waits(self) -> None:
        peers = self.writer._peers
        poll = peers.poll

        def noted(patience_s: float | None) -> bool:
            self.patience.append(patience_s)
            return poll(patience_s)

        peers.poll = noted  # type: ignore[method-assign]

    def connect(self, patience_s: float = 1.0) -> WriterClient:
        return WriterClient(self.address, ANYBODY, proof(KEY, ANYBODY), patience_s=patience_s)

    def ask(self, command: str, **arguments: Any) -> Future[Any]:
        return self.pool.submit(self.client.submit, ALICE, command, arguments)

    def create(self, name: str) -> Future[Any]:
        return self.ask("create", parent=MEMORY, name=name.encode(), mode=0o644, exclusive=True)

    def close(self) -> None:
        if self.thread.is_alive():
            self.writer.stop()
        self.thread.join(LIMIT_S)
        self.pool.shutdown()
        self.client.close()
        self.listener.close()
        assert not self.thread.is_alive()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(os, "fdatasync", made.fdatasync)
    return made


@pytest.fixture
def running(tmp_path: Path, disk: Disk) -> Iterator[Running]:
    made = Running(tmp_path)
    try:
        yield made
    finally:
        disk.open.set()
        made.close()


def answered(asked: Future[Any], within_s: float = 0.3) -> bool:
    try:
        asked.result(within_s)
    except TimeoutError:
        return False
    return True


def asked_by_two(running: Running) -> None:
    """From now on the writer does not wait for the disk itself."""
    with contextlib.closing(running.connect()) as other:
        for _ in range(3):
            running.ask("enroll").result(LIMIT_S)
            other.submit(ALICE, "enroll", {})


def test_a_promise_waits_for_the_disk_and_a_creation_does_not(running: Running, disk: Disk) -> None:
    asked_by_two(running)
    node = running.create("f").result(LIMIT_S)["node"]
    disk.open.clear()
    promised = running.ask("commit", node=node, handle=None, edits=[["w", 0, b"x"]])
    assert not answered(promised)
    assert answered(running.create("g"), LIMIT_S / 2), "a file's creation is promised by its close, not by its open"
    assert answered(running.ask("append", node=node, handle=1, data=b"y"), LIMIT_S / 2)
    synced = running.ask("sync")
    assert not answered(synced)
    assert not answered(promised, 0.01)
    disk.open.set()
    assert answered(promised, LIMIT_S) and answered(synced, LIMIT_S)


def test_a_creation_does_not_wait_for_what_another_was_promised_in_the_same_transaction(
    running: Running, disk: Disk
) -> None:
    def both(name: str, **commit: Any) -> tuple[Future[Any], Future[Any]]:
        """Both are there when the writer looks."""
        holds, gate = threading.Event(), threading.Event()

        def hold() -> None:
            holds.set()
            assert gate.wait(300), "held for too long"

        running.writer.call(hold)
        assert holds.wait(300)
        found = running.ask("commit", **commit), running.create(name)
        time.sleep(0.2)
        gate.set()
        return found

    commit = {"node": running.create("f").result(300)["node"], "handle": None, "edits": [["w", 0, b"x"]]}
    for asked in both("connections", **commit):
        asked.result(300)
    disk.open.clear()
    promised, created = both("g", **commit)
    assert answered(created, LIMIT_S)
    assert not answered(promised)
    disk.open.set()
    assert answered(promised, LIMIT_S)


def test_a_sync_waits_for_one_that_others_have_begun(
    running: Running, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is on its way to the disk, and nothing is there."""
    monkeypatch.setattr(running.writer, "_drain", lambda: None)  # which would leave something more to be synced
    with contextlib.closing(running.connect()) as other:
        for _ in range(3):
            running.ask("enroll").result(300)
            other.submit(ALICE, "enroll", {})
    node = running.create("f").result(300)["node"]
    running.ask("append", node=node, handle=1, data=b"y").result(300)
    disk.open.clear()
    promised = running.ask("mkdir", parent=MEMORY, name=b"d", mode=0o755)
    assert not answered(promised)
    synced = running.ask("sync")
    assert not answered(synced)
    disk.open.set()
    assert answered(promised, LIMIT_S) and answered(synced, LIMIT_S)


def test_nothing_to_make_durable_is_answered_at_once(running: Running, disk: Disk) -> None:
    running.ask("enroll").result(LIMIT_S)
    running.ask("sync").result(LIMIT_S)
    before = disk.syncs
    for _ in range(10):
        running.ask("sync").result(LIMIT_S)
    assert disk.syncs == before


def test_one_sync_serves_all_who_wait(running: Running, disk: Disk) -> None:
    for asked in [running.create(f"w{i}") for i in range(8)]:
        asked.result(LIMIT_S)
    asked_by_two(running)
    disk.open.clear()
    asked_for = [running.ask("mkdir", parent=MEMORY, name=b"d%d" % i, mode=0o755) for i in range(7)]
    db = database.connect(running.applier.path, writable=False)
    deadline = time.monotonic() + LIMIT_S
    while db.execute("select count(*) from node where cast(name as text) glob 'd[0-6]'").get < 7:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    db.close()
    before = disk.syncs
    disk.open.set()
    for asked in asked_for:
        asked.result(LIMIT_S)
    assert disk.syncs - before <= 3


def test_what_nobody_waits_for_reaches_the_disk_too(running: Running, disk: Disk) -> None:
    running.ask("sync").result(LIMIT_S)
    before = disk.syncs
    running.create("alone").result(LIMIT_S)
    deadline = time.monotonic() + LIMIT_S
    while disk.syncs == before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert disk.syncs > before
    assert waits_without_limit(running)


def waits_without_limit(running: Running) -> bool:
    """Once nothing is left to be done, the writer sleeps until somebody asks."""
    deadline = time.monotonic() + LIMIT_S
    while running.patience[-1] is not None:
        assert time.monotonic() < deadline, running.patience[-10:]
        time.sleep(0.02)
    return True


def test_no_more_than_a_second_is_slept_while_something_is_unsynced(running: Running, disk: Disk) -> None:
    running.ask("sync").result(LIMIT_S)
    assert waits_without_limit(running)
    begun = len(running.patience)
    disk.open.clear()
    running.create("alone").result(LIMIT_S)
    assert all(patience is not None and patience <= 1.0 for patience in running.patience[begun:])
    disk.open.set()
    assert waits_without_limit(running)
    count = len(running.patience)
    running.ask("sync").result(LIMIT_S)
    assert running.patience[count - 1] is None and waits_without_limit(running)


def test_what_a_disk_does_not_take_is_not_promised(running: Running, disk: Disk) -> None:
    """Reading goes on, and writing goes on by itself when the disk works again."""
    said: list[str] = []
    running.writer.on_failure = said.append
    node = running.create("f").result(LIMIT_S)["node"]
    running.ask("enroll").result(LIMIT_S)
    disk.error = OSError(5, "Input/output error")
    for name in (b"d", b"e"):
        with pytest.raises(StoreFailed, match=r"nothing can be written.*Input/output error"):
            running.ask("mkdir", parent=MEMORY, name=name, mode=0o755).result(LIMIT_S)
    with pytest.raises(StoreFailed):
        running.ask("sync").result(LIMIT_S)
    with pytest.raises(StoreFailed):
        running.ask("append", node=node, handle=None, data=b"relaxed").result(LIMIT_S)
    assert said and "Input/output error" in said[-1]
    with contextlib.closing(database.connect(running.applier.path, writable=False)) as db:
        assert db.execute("select count(*) from node where name = ?", (b"f",)).get == 1
        assert db.execute("select count(*) from node where name = ?", (b"e",)).get == 0, "nothing follows the failure"
    disk.error = None
    deadline = time.monotonic() + LIMIT_S
    while said[-1] != "":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert running.ask("mkdir", parent=MEMORY, name=b"e", mode=0o755).result(LIMIT_S)
    assert running.thread.is_alive()


def test_a_disk_that_stays_away_is_tried_less_and_less_often(running: Running, disk: Disk) -> None:
    running.ask("enroll").result(LIMIT_S)
    disk.error = OSError(5, "Input/output error")
    with pytest.raises(StoreFailed):
        running.ask("mkdir", parent=MEMORY, name=b"d", mode=0o755).result(LIMIT_S)
    begun, before = time.monotonic(), disk.syncs
    while time.monotonic() - begun < 2:
        with pytest.raises(StoreFailed):
            running.ask("sync").result(LIMIT_S)
    assert disk.syncs - before < 3 + 10 * (time.monotonic() - begun), "however many ask"


@pytest.mark.parametrize("several", [False, True], ids=["in the loop", "in the thread"])
def test_one_failed_sync_makes_the_whole_log_be_written_again(
    running: Running, disk: Disk, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    """Linux tells of a failure once, and takes for written what it could not write. So a second sync proves nothing."""
    written: list[tuple[int, int]] = []
    pwrite = os.pwrite

    def noted(descriptor: int, data: bytes, at: int) -> int:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("-wal"):
            written.append((at, len(data)))
        return pwrite(descriptor, data, at)

    for asked in [running.create(f"w{i}") for i in range(8)]:
        asked.result(LIMIT_S)
    if several:
        asked_by_two(running)
    else:
        for _ in range(RECENT):
            running.ask("enroll").result(LIMIT_S)
    monkeypatch.setattr(os, "pwrite", noted)
    order: list[str] = []

    def once(descriptor: int) -> None:
        order.append(threading.current_thread().name)
        if len(order) == 1:
            raise OSError(5, "Input/output error")
        os.fsync(descriptor)

    disk.does = once
    asked_for = [running.ask("mkdir", parent=MEMORY, name=b"d%d" % i, mode=0o755) for i in range(4 if several else 1)]
    for asked in asked_for:
        asked.result(LIMIT_S)
    assert (order[0] == "sync") == several
    db = running.applier.db
    frames = WalIndex(running.applier.path).committed()[0]
    assert written and written[0][0] == 0, "from the beginning"
    assert sum(length for _, length in written) >= frames * checkpoint.FRAME // 2
    assert written == sorted(written) and all(at + n == after for (at, n), (after, _) in itertools.pairwise(written))
    assert db.execute("select count(*) from node where cast(name as text) glob 'd[0-3]'").get == len(asked_for)


def test_a_log_that_the_kernel_has_forgotten_is_not_built_upon(running: Running, disk: Disk) -> None:
    """Pages that could not be written may be dropped, and read again as they were before."""
    said: list[str] = []
    running.writer.on_failure = said.append
    running.ask("enroll").result(LIMIT_S)
    log = Path(f"{running.applier.path}-wal")

    def fails(descriptor: int) -> None:
        frames = WalIndex(running.applier.path).committed()[0]
        with open(log, "r+b") as file:
            file.seek(32 + (frames - 1) * checkpoint.FRAME + 100)
            file.write(bytes(1000))
        raise OSError(5, "Input/output error")

    disk.does = fails
    with pytest.raises(StoreFailed, match=r"1 of [0-9]+ pages in the log are damaged"):
        running.ask("write_path", path=[b"memory", b"f"], data=os.urandom(9000)).result(LIMIT_S)
    disk.does = os.fsync
    with pytest.raises(StoreFailed, match="damaged"):
        running.ask("enroll").result(LIMIT_S)
    assert "damaged" in said[-1]


def test_a_success_that_was_lost_with_its_transaction_is_not_repeated(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resent request is applied again: its first reply told of what never came to be."""
    lane = running.client._lane(b"c" * 16)
    commit, failures = running.applier.commit, [StoreFailed("disk I/O error")]

    def commits() -> None:
        if failures:
            raise failures.pop()
        commit()

    monkeypatch.setattr(running.applier, "commit", commits)
    request = ["alice", False, "create", {"parent": MEMORY, "name": b"f", "mode": 0o644, "exclusive": True}]
    with pytest.raises(StoreFailed):
        lane.call(request, 1)
    assert lane.call(request, 1)["new"] is True
    lane.close()
    with contextlib.closing(database.connect(running.applier.path, writable=False)) as db:
        assert db.execute("select count(*) from node where name = ?", (b"f",)).get == 1


def test_a_sync_that_failed_beside_the_loop_is_never_forgotten(tmp_path: Path, disk: Disk) -> None:
    """Linux reports a failed writeback once: the next fdatasync says nothing of the blocks that are lost."""
    database.prepare(tmp_path / "avm.db")
    with contextlib.closing(database.connect(tmp_path / "avm.db", writable=True)) as db:
        database.run(db, "create table t(x); insert into t values(1)")  # so that there is a log
        told, before = threading.Semaphore(0), logs_open()
        log: WalSync[str] = WalSync(tmp_path / "avm.db", told.release)
        assert log.recover(db) and logs_open() > before
        log.after("before")
        assert told.acquire(timeout=LIMIT_S) and log.done() == [("before", True)] and log.idle
        disk.error = OSError(5, "Input/output error")
        log.after("lost")
        assert told.acquire(timeout=LIMIT_S) and log.done() == [("lost", False)]
        disk.error = None
        for _ in range(2):
            log.after("later")
            assert told.acquire(timeout=LIMIT_S) and log.done() == [("later", False)]
            with pytest.raises(OSError):
                log.now()
        assert log.recover(db)
        log.now()
        log.close()
        assert logs_open() == before


def logs_open() -> int:
    """Descriptors of logs, and of the notes beside them, in this process."""
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the list itself
            found += os.readlink(f"/proc/self/fd/{descriptor}").endswith(("-wal", ".synced"))
    return found


def test_a_log_is_written_anew_from_memory_until_the_disk_has_it(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel may forget what it could not write, and a log of before must not come back."""
    path, file = tmp_path / "avm.db", tmp_path / "avm.db-wal"
    did: list[str] = []
    names = {"fdatasync": "sync", "posix_fadvise": "drop", "pwrite": "write"}

    def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(descriptor: int, *more: Any) -> Any:
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith("-wal"):
                did.append(names[name])
            return call(descriptor, *more)

        return made

    database.prepare(path)
    database.prepare(tmp_path / "other.db")
    another = tmp_path / "log"
    with contextlib.closing(database.connect(tmp_path / "other.db", writable=True)) as db:
        database.run(db, "create table t(x); insert into t values(randomblob(90000))")
        another.write_bytes((tmp_path / "other.db-wal").read_bytes())
    with contextlib.closing(database.connect(path, writable=True)) as db:
        database.run(db, "create table t(x); insert into t values(randomblob(9000))")
        log: WalSync[str] = WalSync(path, lambda: None)
        for name in names:
            monkeypatch.setattr(os, name, noted(name, getattr(os, name)))
        monkeypatch.setattr(wal_sync, "sync_directory", lambda folder: did.append(f"names of {folder}"))
        forget = WalIndex.forget_moved
        monkeypatch.setattr(WalIndex, "forget_moved", lambda index, pages: (did.append("move"), forget(index, pages)))
        assert log.recover(db)
        whole = ["sync", "drop", "write", "move", "sync", f"names of {tmp_path}"]
        assert did == whole
        database.run(db, "insert into t values(randomblob(9000))")
        kept = file.read_bytes()
        disk.error = OSError(5, "Input/output error")
        with pytest.raises(OSError):
            log.now()
        assert not log.recover(db) and not log.recover(db)
        file.write_bytes(bytes(len(kept)))
        disk.error = OSError(28, "No space left on device")
        assert not log.recover(db)
        said = [record.getMessage().partition("anew: ")[2] for record in caplog.records if record.levelname == "ERROR"]
        assert said == ["[Errno 5] Input/output error", "[Errno 28] No space left on device"], "each once"
        disk.error = None
        assert log.recover(db) and file.read_bytes() == kept
        file.write_bytes(kept[:-10] + bytes(10))
        assert not log.recover(db) and "1 of" in str(log.failure)
        file.write_bytes(another.read_bytes())
        frames = WalIndex(path).committed()[0]
        assert not log.recover(db) and f"{frames} of {frames} pages" in str(log.failure)
        file.write_bytes(kept)
        assert log.recover(db) and file.read_bytes() == kept
        log.close()


def test_of_a_log_without_commits_nothing_is_left(tmp_path: Path) -> None:
    database.prepare(tmp_path / "avm.db")
    with contextlib.closing(database.connect(tmp_path / "avm.db", writable=True)) as db:
        database.run(db, "create table t(x); pragma wal_checkpoint(truncate)")
        log_path = tmp_path / "avm.db-wal"
        log_path.write_bytes(b"of before" * 1000)
        log: WalSync[str] = WalSync(tmp_path / "avm.db", lambda: None)
        assert log.recover(db)
        log.close()
        assert log_path.stat().st_size == 0


@pytest.mark.parametrize("several", [False, True], ids=["in the loop", "in the thread"])
def test_what_went_into_a_log_that_has_no_name_any_more_is_not_promised(
    running: Running, disk: Disk, several: bool
) -> None:
    """Nobody else finds it, and it is lost with the last process that has it open."""
    if several:
        asked_by_two(running)
    else:
        for _ in range(RECENT):
            running.ask("enroll").result(LIMIT_S)
    disk.open.clear()
    promised = running.ask("mkdir", parent=MEMORY, name=b"d", mode=0o755)
    assert not answered(promised)
    Path(f"{running.applier.path}-wal").unlink()
    disk.open.set()
    running.thread.join(LIMIT_S / 4)
    assert isinstance(running.raised, Displaced)
    running.writer._peers.close()  # as its end does for a process
    with pytest.raises(Busy):
        promised.result(LIMIT_S)


def test_who_calls_the_loop_waits_for_nobody_to_ask(running: Running) -> None:
    running.ask("sync").result(LIMIT_S)
    assert waits_without_limit(running)
    called = threading.Event()
    running.writer.call(called.set)
    assert called.wait(LIMIT_S / 4)


def test_the_file_is_written_anew_where_that_is_due_and_not_again_at_once(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written, rewrite = [0], rewriting.rewrite
    due, failure = [False], list[AvmError]()

    def counted(path: Path) -> None:
        if failure:
            raise failure.pop()
        rewrite(path)
        written[0] += 1

    monkeypatch.setattr(loop, "REWRITES", 1e9)
    monkeypatch.setattr(rewriting, "due", lambda db: due[0])
    monkeypatch.setattr(rewriting, "rewrite", counted)
    running.create("f").result(LIMIT_S)
    for is_due, again, count in (
        *((False, False, 0), (True, False, 1), (True, False, 1)),
        *((False, True, 1), (True, True, 2)),
    ):
        due[0] = is_due
        if again:
            running.writer._rewritable = 0.0
        running.ask("wipe").result(LIMIT_S)
        assert written == [count]
    for failed in (Busy("a reader"), NoSpace("a page")):
        running.ask("enroll").result(LIMIT_S)  # it has noted when it was done
        running.writer._rewritable, failure[:] = 0.0, [failed]
        with pytest.raises(type(failed), match=failed.reason):
            running.ask("wipe").result(LIMIT_S)
        assert ("not written anew" in caplog.text) is isinstance(failed, NoSpace)
    assert running.create("g").result(LIMIT_S)["new"] and written == [2]


def test_a_step_of_indexing_in_idle_time_is_a_short_one(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks meanwhile waits for its end."""
    done, alone = list[int](), running.applier.alone
    holds, gate = threading.Event(), threading.Event()

    def noted(who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        reply = alone(who, command, arguments)
        done.extend([reply["done"]] if command == "drain_lexical" else [])
        return reply

    def hold() -> None:
        holds.set()
        assert gate.wait(LIMIT_S)

    monkeypatch.setattr(running.applier, "alone", noted)
    monkeypatch.setattr(indexing, "HURRY_BYTES", 1)
    notes = [{"path": [b"memory", name], "data": b"the harvest begins in June"} for name in (b"one", b"two", b"three")]
    for note in notes:
        running.ask("write_path", **note).result(LIMIT_S)
    with contextlib.closing(running.connect(patience_s=LIMIT_S / 8)) as client:
        running.writer.call(hold)
        assert holds.wait(LIMIT_S)
        asked = [running.pool.submit(client.submit, ALICE, "write_path", note | {"data": b"again"}) for note in notes]
        time.sleep(0.2)
        gate.set()
        assert all(each.result(LIMIT_S / 4)["size"] == 5 for each in asked)
    assert waits_without_limit(running)
    assert max(done) == 1 and sum(done) >= 3


def test_a_disk_that_fails_beside_the_loop_is_told_to_all_who_wait(running: Running, disk: Disk) -> None:
    asked_by_two(running)
    disk.open.clear()
    asked = [running.ask("mkdir", parent=MEMORY, name=b"d%d" % number, mode=0o755) for number in range(3)]
    disk.error = OSError(5, "Input/output error")
    disk.open.set()
    for each in asked:
        with pytest.raises(StoreFailed):
            each.result(LIMIT_S)


def test_what_was_committed_before_a_start_is_synced_before_it_is_repeated(tmp_path: Path, disk: Disk) -> None:
    """A resent request gets its stored reply: the disk may not have had that commit when the writer died."""
    running = Running(tmp_path)
    try:
        before = disk.syncs
        running.ask("sync").result(LIMIT_S)
        assert disk.syncs > before
    finally:
        running.close()


def test_who_asks_alone_over_two_connections_is_not_handed_to_another_thread(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append and the sync of its close come from one mount, one after the other."""
    threads: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: threads.append(threading.current_thread().name))
    client = running.client
    appends, syncs = client._lane(b"a" * 16), client._lane(b"b" * 16)
    node = running.create("f").result(LIMIT_S)["node"]
    for _ in range(12):
        appends.call(["alice", False, "append", {"node": node, "handle": 1, "data": b"x"}])
        syncs.call(["alice", False, "sync", {}])
    appends.close()
    syncs.close()
    assert len(threads) >= 12
    assert "sync" not in threads[8:], "the thread of WalSync"


def test_a_quick_disk_is_waited_for_without_another_thread(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while many ask: the way there and back would take longer. One sync in many tells that a disk is quick."""
    threads: list[str] = []

    def fdatasync(descriptor: int) -> None:
        threads.append(threading.current_thread().name)
        if len(threads) % 8:
            time.sleep(2 * wal_sync.QUICK_S)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with contextlib.closing(running.connect()) as other:
        for _ in range(16):
            running.ask("enroll").result(300)
            other.submit(ALICE, "enroll", {})
    assert "sync" in threads[:8], "nothing was known of the disk yet"
    assert len(threads) > 16
    assert "sync" not in threads[9:]


def test_the_sync_of_a_close_is_foreseen_after_an_append(
    running: Running, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who appends, closes, and appends again finds the disk at work already; who appends on and on does not."""
    monkeypatch.setattr(running.writer, "_drain", lambda: None)  # which would leave something more to be synced
    disk.takes_s = 0.0
    disk.does = lambda descriptor: None
    node = running.create("f").result(300)["node"]
    append = functools.partial(running.ask, "append", node=node, handle=1, data=b"x")
    for _ in range(12):
        append().result(300)
        running.ask("sync").result(300)
    before = disk.syncs
    append().result(300)
    until = time.monotonic() + 300
    while disk.syncs == before and time.monotonic() < until:
        time.sleep(0.001)
    assert disk.syncs == before + 1, "nobody has asked for it yet"
    running.ask("sync").result(300)
    assert disk.syncs == before + 1, "nothing was left to be done"
    append().result(300)
    for _ in range(10):
        append().result(300)
    assert disk.syncs <= before + 3, "one that was foreseen in vain, and what the clock demands"


def test_no_more_notes_wait_for_their_words_than_a_search_can_make_up_for(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long there is no idle time."""
    drain, writer = running.writer._drain, running.writer
    monkeypatch.setattr(loop, "LAG", 5)
    monkeypatch.setattr(writer, "_drain", lambda limit=0: drain(limit) if limit == loop.BEHIND_STEP else None)
    waited = []
    with contextlib.closing(database.connect(running.applier.path, writable=False)) as db:
        for number in range(20):
            running.ask("write_path", path=[b"memory", b"%d" % number], data=b"words").result(LIMIT_S)
            done = threading.Event()
            writer.call(done.set)  # once the transaction is over
            assert done.wait(LIMIT_S)
            waited.append(db.execute("select count(*) from document where due is not null").get)
    assert waited[:5] == [1, 2, 3, 4, 5], "until then they are left alone"
    assert max(waited) == 5 and waited[5] == 6 - loop.BEHIND_STEP


def test_on_a_disk_that_is_nearly_full_what_is_removed_is_gone(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is in the trash, which takes room."""
    for name in (b"one", b"two"):
        running.ask("write_path", path=[b"memory", name], data=b"the harvest begins in June").result(LIMIT_S)
    monkeypatch.setattr(running.applier, "_clock", lambda: time.time_ns() + YOUNG_NS)
    for name, near in ((b"one", False), (b"two", True)):
        full = property(lambda reserve, near=near: near, lambda reserve, value: None)
        monkeypatch.setattr(DiskReserve, "near", full, raising=False)
        removed = running.ask("unlink", parent=MEMORY, name=name, trash=True).result(LIMIT_S)
        assert removed["kept"] is not near


def test_commits_find_room_in_the_logs_file(running: Running) -> None:
    """A sync of bytes that were there takes half the time of one that makes a file longer."""
    log = Path(f"{running.applier.path}-wal")
    running.create("first").result(LIMIT_S)
    deadline = time.monotonic() + LIMIT_S
    while log.stat().st_size < checkpoint.ROOM and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)  # all of it
    size = log.stat().st_size
    assert size >= checkpoint.ROOM
    for number in range(10):
        running.create(f"f{number}").result(LIMIT_S)
    assert log.stat().st_size == size
    running.close()
    with contextlib.closing(database.connect(running.applier.path, writable=False)) as db:
        assert db.execute("select count(*) from node where parent = ? and kind = 1", (MEMORY,)).get == 11


def test_room_that_cannot_be_made_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, fsync = threading.Event(), os.fsync

    def full(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("-wal"):
            tried.set()
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    running = Running(tmp_path)
    try:
        assert all(running.create(f"f{number}").result(LIMIT_S)["new"] for number in range(20))
        assert tried.wait(LIMIT_S)
        assert all(running.create(f"g{number}").result(LIMIT_S)["new"] for number in range(20))
    finally:
        running.close()
