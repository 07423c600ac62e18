"""Opening: new stores, foreign files, newer versions, locks; and what a failing disk must not mix up."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from avmfs.access import Policy, Principal
from avmfs.errors import AvmError, Busy, Invalid, NoSpace, StoreFailed, TooBig
from avmfs.store.files import store_lock, sync_note
from avmfs.store.files.store_lock import StoreLock
from avmfs.store.identity import OPERATOR
from avmfs.store.schema import database, tables
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer.applier import Applier
from tests.behind import connect
from tests.contract.store_world import ALICE, BOB, CAROL, RULES, World, faults
from tests.small_disks import small_disk


def header(path: Path) -> tuple[int, int, str]:
    db = connect(path, read_only=True)
    try:
        return tuple(db.execute(f"pragma {name}").get for name in ("application_id", "user_version", "journal_mode"))
    finally:
        db.close()


@pytest.mark.parametrize("left", [0, 24, 64, 160])
def test_a_disk_that_is_full_while_a_store_is_made_is_named_and_the_store_is_made_later(
    tmp_path: Path, left: int
) -> None:
    """``left``: kilobytes. SQLite has then rolled back by itself, or could not make its index of the log."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        filling = disk / "filling"
        filling.write_bytes(bytes((1024 - left) * 1024))
        with pytest.raises(NoSpace, match="full"):
            database.prepare(disk / "avm.db")
        filling.unlink()
        database.prepare(disk / "avm.db")
        assert header(disk / "avm.db")[1] == tables.VERSION


def test_without_a_daemon_no_write_is_taken_for_which_the_log_has_room_and_the_database_has_not(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "24m") as disk:
        path = disk / "avm.db"
        with contextlib.closing(open_direct(path, Policy(), RULES)) as store:
            store.submit(ALICE, "write_path", path=[b"memory", b"old"], data=b"x" * 60_000)
        left = os.statvfs(disk)
        (disk / "filling").write_bytes(bytes(left.f_bavail * left.f_frsize - (3 << 20)))
        with contextlib.closing(open_direct(path, Policy(), RULES)) as store:
            with pytest.raises(NoSpace):
                store.submit(ALICE, "write_path", path=[b"memory", b"large"], data=b"x" * (2 << 20))
            store.submit(ALICE, "unlink", parent=tables.MEMORY, name=b"old")
            store.submit(ALICE, "write_path", path=[b"memory", b"small"], data=b"x")
        assert not (disk / "avm.db-wal").exists(), "all of it is in the database"


def test_a_missing_or_empty_file_becomes_a_store(tmp_path: Path) -> None:
    for path in (tmp_path / "deep" / "er" / "new.db", tmp_path / "empty.db"):
        if path.name == "empty.db":
            path.touch(0o600)
        database.prepare(path)
        assert header(path) == (tables.APPLICATION_ID, tables.VERSION, "wal")
        assert path.stat().st_mode & 0o777 == 0o600
        database.prepare(path)
        assert database.integrity(path) == []
    assert (tmp_path / "deep").stat().st_mode & 0o077 == 0 or (tmp_path / "deep" / "er").stat().st_mode & 0o077 == 0


def test_an_interrupted_migration_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "half.db"
    db = connect(path)
    db.execute(f"pragma application_id = {tables.APPLICATION_ID}")
    db.close()
    database.prepare(path)
    assert header(path)[1] == tables.VERSION and database.integrity(path) == []


@pytest.mark.parametrize("made_by", ["application_id", "user_version", "a table"])
def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path, made_by: str) -> None:
    path = tmp_path / "theirs.db"
    db = sqlite3.connect(path)
    db.execute(
        {"application_id": "pragma application_id = 1234", "user_version": "pragma user_version = 7"}.get(
            made_by, "create table theirs(x)"
        )
    )
    db.commit()
    db.close()
    before = path.read_bytes()
    openers = [
        lambda: database.prepare(path),
        lambda: open_direct(path, Policy(), RULES),
        lambda: database.connect(path, writable=True),
        lambda: database.connect(path, writable=False),
    ]
    for opener in openers:
        with pytest.raises(Invalid, match="another program"):
            opener()
        assert path.read_bytes() == before
    assert header(path)[2] == "delete", "not even its journal mode"


def test_a_newer_stores_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "newer.db"
    database.prepare(path)
    db = connect(path)
    db.execute(f"pragma user_version = {tables.VERSION + 1}")
    db.close()
    for opener in (database.prepare, lambda p: database.connect(p, writable=False)):
        with pytest.raises(Invalid, match="newer"):
            opener(path)


def test_a_program_that_has_a_store_open_writes_nothing_more_once_a_newer_avmfs_has_had_it(tmp_path: Path) -> None:
    path = tmp_path / "avm.db"
    with contextlib.closing(open_direct(path, Policy(), RULES)) as store, contextlib.closing(connect(path)) as newer:
        store.submit(ALICE, "enroll")
        newest = "select max(seq) from log"
        before = newer.execute(newest).fetchone()
        newer.execute(f"pragma user_version = {tables.VERSION + 1}")
        with pytest.raises(Invalid, match="written by a newer avmfs"):
            store.submit(ALICE, "write_path", path=[b"memory", b"a.md"], data=b"x")
        assert newer.execute(newest).fetchone() == before
        newer.execute(f"pragma user_version = {tables.VERSION}")
        store.submit(ALICE, "write_path", path=[b"memory", b"a.md"], data=b"x")


@pytest.mark.parametrize("content", [b"{}", b"hello world\n" * 100, os.urandom(8192)], ids=["short", "text", "noise"])
def test_what_is_no_database_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(AvmError, match=r"not a database|another program"):
        database.prepare(path)
    assert path.read_bytes() == content


def test_a_missing_store_is_not_made_by_readers(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed):
        database.connect(tmp_path / "none.db", writable=False)
    assert list(tmp_path.iterdir()) == []


def test_direct_mode_refuses_while_a_daemon_runs(tmp_path: Path) -> None:
    path = tmp_path / "avm.db"
    store = open_direct(path, Policy(), RULES)
    lock = StoreLock(path)
    assert lock.holder() is None
    held = lock.acquire(1)
    lock.note(held, {"pid": os.getpid(), "socket": "/run/x"})
    try:
        assert (lock.holder() or {})["pid"] == os.getpid()
        store._submitter._wait = 0.05  # type: ignore[attr-defined]
        with pytest.raises(Busy, match=f"the daemon with pid {os.getpid()}"):
            store.submit(ALICE, "enroll")
        with store.reading(ALICE) as reader:
            assert reader.agents() == []
    finally:
        lock.release(held, clean=True)
    assert store.submit(ALICE, "enroll") == {"new": True}
    store.close()


def test_another_command_is_waited_for_longer_than_a_daemon_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_lock, "TOLD_S", 0.1)
    lock, other = StoreLock(tmp_path / "avm.db"), StoreLock(tmp_path / "avm.db")
    held = other.acquire(0)
    through = threading.Timer(0.5, lambda: other.release(held, clean=True))
    through.start()
    descriptor = lock.acquire(0.0, 60.0)
    through.join()
    assert [each.getMessage() for each in caplog.records] == [f"{lock.path}: waiting for another command"]
    for limits in ((0.0, 0.0), (0.0, 0.2), (0.2, 0.0)):
        with pytest.raises(Busy, match="in use by another command"):
            other.acquire(*limits)
    lock.note(descriptor, {"pid": os.getpid(), "socket": "/run/x"})
    with pytest.raises(Busy, match="the daemon with pid"):
        other.acquire(0.0, 3600.0)
    lock.release(descriptor, clean=True)


def test_two_direct_processes_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "avm.db"
    script = (
        "import sys\nfrom pathlib import Path\nfrom avmfs.access import Policy, Principal\n"
        "from avmfs.store.store import open_direct\nfrom avmfs.store.tx.transaction import IndexRules\n"
        "store = open_direct(Path(sys.argv[1]), Policy(), IndexRules())\n"
        "who = Principal(sys.argv[2])\nstore.submit(who, 'enroll')\n"
        "for n in range(60):\n"
        "    where = [b'memory', b'private', who.name.encode(), b'%d' % n]\n"
        "    store.submit(who, 'write_path', path=where, data=b'x')\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, os.fspath(path), name]) for name in ("alice", "bob", "carol")
    ]
    assert [process.wait(300) for process in processes] == [0, 0, 0]
    store = open_direct(path, Policy(), RULES)
    for who in (ALICE, BOB, CAROL):
        with store.reading(who) as reader:
            assert reader.counts(tables.ROOT).files == 60
    store.close()
    assert faults(path, Policy()) == []


def test_a_forked_child_opens_its_own_connections(tmp_path: Path) -> None:
    world = World(tmp_path, "direct")
    world.write(ALICE, "/memory/f", b"1")
    assert world.bytes(ALICE, "/memory/f") == b"1"
    child = os.fork()
    if child == 0:
        os._exit(
            0 if world.bytes(BOB, "/memory/f") == b"1" and world.store.cached_child(BOB, 2, b"f") is not None else 1
        )
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    world.write(ALICE, "/memory/f", b"2")
    assert world.bytes(BOB, "/memory/f") == b"2"
    world.close()


@pytest.mark.parametrize("call", ["acquire", "release"])
@pytest.mark.parametrize("waits", [True, False])
def test_a_child_that_is_forked_while_a_thread_writes_keeps_nobody_from_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, waits: bool
) -> None:
    """As long as it lives. ``waits``: for the thread; else it is forked all the same, as after ten seconds."""
    path = tmp_path / "avm.db"
    store = open_direct(path, Policy(), RULES)
    locked, really, (heard, said) = StoreLock(path).path.stat(), getattr(StoreLock, call), os.pipe()
    children: list[int] = []

    def has(descriptor: int) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(descriptor), locked)
        return False

    def fork() -> None:
        if child := os.fork():
            children.append(child)
            return
        os.write(said, b"has it" if any(map(has, range(3, 1024))) else b"has it not")
        time.sleep(600)
        os._exit(0)

    forking = threading.Thread(target=fork)

    def forked_meanwhile(*arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        held = really(*arguments, **named) if call == "acquire" else None
        if waits:
            forking.start()
            forking.join(1.0)
        else:
            fork()
        return held if call == "acquire" else really(*arguments, **named)

    monkeypatch.setattr(StoreLock, call, forked_meanwhile)
    try:
        store.submit(ALICE, "enroll")
        if waits:
            forking.join(300)
        lock = StoreLock(path)
        lock.release(lock.acquire(0.0), clean=True)
        assert os.read(heard, 100) == (b"has it not" if waits else b"has it")
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    store.close()
    os.close(heard)
    os.close(said)


class Full:
    """Writes past the present sizes of the store's files fail, as on a full disk, until the block ends."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        sizes = [file.stat().st_size for file in self._path.parent.glob(self._path.name + "*")]
        self._before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max(sizes), self._before[1]))

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._before)


def test_a_failed_commit_forgets_the_scopes_it_interned(tmp_path: Path) -> None:
    """Else the next scope gets the number of one that never came to be, and two agents share a private space."""
    path = tmp_path / "avm.db"
    database.prepare(path)
    applier = Applier(path, Policy(), RULES, orphans=True, clock=time.time_ns)
    applier.alone(OPERATOR, "settle", {})
    applier.db.execute("pragma wal_checkpoint(truncate)").fetchall()
    with Full(path), pytest.raises(StoreFailed):
        for number in range(2000):  # the log file's size is what it is: fill it
            applier.alone(Principal(f"agent{number}"), "enroll", {})
    known = {name for (name,) in applier.db.execute("select name from agent")}
    lost = next(f"agent{number}" for number in range(2000) if f"agent{number}" not in known)
    applier.alone(BOB, "enroll", {})
    applier.alone(Principal(lost), "enroll", {})
    applier.alone(
        Principal(lost), "write_path", {"path": [b"memory", b"private", lost.encode(), b"f"], "data": b"secret"}
    )
    applier.close()
    assert faults(path, Policy()) == []
    store = open_direct(path, Policy(), RULES)
    with store.reading(BOB) as reader:
        assert [node.name for node in reader.children(tables.PRIVATE)] == [b"bob"]
    store.close()


def test_rules_that_cannot_be_settled_do_not_come_into_force(tmp_path: Path) -> None:
    path = tmp_path / "avm.db"
    database.prepare(path)
    applier = Applier(path, Policy(), RULES, orphans=True, clock=time.time_ns)
    applier.alone(OPERATOR, "settle", {})
    applier.alone(ALICE, "write_path", {"path": [b"memory", b"d", b"f"], "data": b"x"})
    applier.db.execute("pragma wal_checkpoint(truncate)").fetchall()
    hidden = Policy.from_words([("/memory/d/*", "none", ("bob",))], "rw")
    with Full(path):
        with pytest.raises(StoreFailed):
            for number in range(2000):
                applier.alone(ALICE, "set_attributes", {"node": tables.SHARED, "mtime": number})
        with pytest.raises(StoreFailed):
            applier.set_rules(hidden, IndexRules(("g",)))
    made = applier.alone(BOB, "write_path", {"path": [b"memory", b"d", b"g"], "data": b"x"})["node"]
    applier.alone(BOB, "set_attributes", {"node": made, "mtime": 1})
    applier.alone(OPERATOR, "drain_lexical", {})
    assert applier.db.execute("select count(*) from unindexed").get == 0, "nor do those of what is indexed"
    applier.close()
    assert faults(path, Policy()) == []
    applier = Applier(path, hidden, RULES, orphans=True, clock=time.time_ns)
    applier.set_rules(hidden, RULES)
    applier.close()
    assert faults(path, hidden) == []


def test_a_request_that_is_too_big_is_refused_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, "attached")
    with pytest.raises(TooBig):
        world.write(ALICE, "/memory/f", bytes(40 << 20))
    world.write(ALICE, "/memory/f", bytes(20 << 20))
    world.close()


def test_the_lock_names_its_holder_whoever_was_killed_before(tmp_path: Path) -> None:
    lock = StoreLock(tmp_path / "avm.db")
    for about in ({"pid": 1234567, "socket": "/run/user/1000/avm/avm.sock"}, {"pid": 12, "socket": "/s"}):
        descriptor = lock.acquire(0)
        lock.note(descriptor, about)
        assert lock.holder() == about | {"uid": os.geteuid()}
        os.close(descriptor)  # killed
    assert not lock.clean


def test_a_lock_that_was_not_left_clean_stays_so_until_the_log_was_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "avm.db"
    open_direct(path, Policy(), RULES).close()
    os.close(StoreLock(path).acquire(0))  # killed
    with contextlib.closing(connect(path)) as db:
        db.execute("pragma user_version = 999")
    with pytest.raises(Invalid):
        open_direct(path, Policy(), RULES)
    assert not StoreLock(path).clean
    with contextlib.closing(connect(path)) as db:
        db.execute(f"pragma user_version = {tables.VERSION}")
    open_direct(path, Policy(), RULES).close()
    assert StoreLock(path).clean


def test_what_is_noted_as_synced_is_as_new_as_what_any_program_has_written(tmp_path: Path) -> None:
    path = tmp_path / "avm.db"
    with contextlib.closing(open_direct(path, Policy(), RULES)) as store:
        store.submit(ALICE, "enroll")
    with contextlib.closing(open_direct(path, Policy(), RULES)) as first:
        with contextlib.closing(open_direct(path, Policy(), RULES)) as second:
            second.submit(ALICE, "write_path", path=[b"memory", b"f"], data=b"words")
        noted = sync_note.read(path)
        first.submit(OPERATOR, "drain_lexical")
        assert sync_note.read(path) == noted > 0
        with pytest.raises(Invalid):
            first.submit(ALICE, "write_path", path=[b"memory", b"g"], data=b"words", mode="sideways")
        first.submit(ALICE, "write_path", path=[b"memory", b"g"], data=b"words")
        assert sync_note.read(path) > noted


def test_a_store_that_was_replaced_is_written_by_nobody_who_has_the_old_one_open(tmp_path: Path) -> None:
    path, other = tmp_path / "avm.db", tmp_path / "other/avm.db"
    open_direct(other, Policy(), RULES).close()
    store = open_direct(path, Policy(), RULES)
    store.submit(ALICE, "enroll")
    for name in ("avm.db-wal", "avm.db-shm"):
        (tmp_path / name).unlink()
    other.replace(path)
    synced = (tmp_path / "avm.db.synced").read_bytes()
    with pytest.raises(StoreFailed, match="removed or replaced"):
        store.submit(ALICE, "write_path", path=[b"memory", b"f"], data=b"1")
    assert (tmp_path / "avm.db.synced").read_bytes() == synced
    store.close()
