"""A store becomes one of several, joins them and leaves them, without a daemon."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from avmfs_config import default_settings, find_paths
from avmfs_daemon.main import cli
from avmfs_daemon.sharing import Forgetting
from click.testing import CliRunner

from avmfs import wire
from avmfs.access import Policy, Principal
from avmfs.agents import anchors
from avmfs.agents.auditing import Chainer
from avmfs.agents.repairing import repair
from avmfs.cli import session
from avmfs.cli.main import avm
from avmfs.cli.storing import storing
from avmfs.errors import Busy, Exists, Invalid, NoSpace, NotFound, ReadOnly, Stale, StoreFailed
from avmfs.memory import Memory
from avmfs.rpc import purging
from avmfs.rpc.local import LocalDoor
from avmfs.store.backup import cluster
from avmfs.store.client.client import Submitter
from avmfs.store.files import loss_check, wal_frames
from avmfs.store.files.store_lock import StoreLock
from avmfs.store.files.wal_header import PAGE
from avmfs.store.rows import incarnation
from avmfs.store.rows.hash_chain import Anchor
from avmfs.store.schema import database
from avmfs.store.store import Store, open_direct
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer import rewriting
from avmfs.store.writer.applied import AppliedRequests
from avmfs.store.writer.replicated import ReplicatedApplier
from avmfs.trust import Trusted
from tests.behind import read_by_another
from tests.contract.memory_log import MemoryLog, MemoryServer
from tests.equal_stores import differing

ALICE = Principal("alice")
RULES = IndexRules()
POLICY = Policy.from_words([("/memory/*", "rw", None)], "none")


def write(path: Path, name: str, data: bytes = b"x") -> None:
    with contextlib.closing(open_direct(path, POLICY, RULES)) as store:
        store.submit(ALICE, "write_path", path=[b"memory", name.encode()], data=data)


def shared(path: Path, log: MemoryLog, name: str, data: bytes = b"y") -> None:
    host = ReplicatedApplier(
        path, POLICY, RULES, orphans=True, clock=time.time_ns, shared_log=log, host=path.parent.name
    )
    host.settle()
    host.alone(ALICE, "write_path", {"path": [b"memory", name.encode()], "data": data})
    host.close()


def followed(path: Path, log: MemoryLog) -> int:
    host = ReplicatedApplier(
        path, POLICY, RULES, orphans=True, clock=time.time_ns, shared_log=log, host=path.parent.name
    )
    host.resolve()
    host.close()
    return host.number


@pytest.fixture
def log() -> MemoryLog:
    return MemoryLog(MemoryServer())


def made(path: Path, log: MemoryLog) -> Path:
    write(path, "one.md", b"1" * 100_000)
    cluster.init(path, log, "a")
    return path


def test_a_host_joins_with_a_snapshot_and_what_came_since(tmp_path: Path, log: MemoryLog) -> None:
    a, b = made(tmp_path / "a" / "avm.db", log), tmp_path / "b" / "avm.db"
    shared(a, log, "two.md")
    assert cluster.join(b, log, POLICY).number == log.head() > 0
    shared(b, log, "three.md")
    shared(a, log, "four.md")
    shared(b, log, "five.md")
    shared(a, log, "six.md")
    shared(b, log, "seven.md")
    shared(a, log, "eight.md")
    shared(b, log, "eight.md")
    shared(a, log, "eight.md")
    number = followed(b, log)
    assert not differing(a, b)
    found = cluster.status(log)
    assert found["record"] == number and found["snapshots"][0]["number"] == 0


def test_a_shared_store_is_written_by_its_daemon_alone(tmp_path: Path, log: MemoryLog) -> None:
    a = made(tmp_path / "a" / "avm.db", log)
    with pytest.raises(ReadOnly, match="shared with other hosts"):
        write(a, "two.md")
    cluster.leave(a, log, "a")
    write(a, "two.md")
    with pytest.raises(Invalid, match="shared with nobody"):
        cluster.leave(a, log, "a")
    with pytest.raises(Exists):
        cluster.init(a, log, "a")


def test_without_a_daemon_a_shared_store_whose_last_rows_are_in_no_batch_is_read(
    tmp_path: Path, log: MemoryLog
) -> None:
    a, settings = tmp_path / "a" / "avm.db", default_settings()
    with contextlib.closing(LocalDoor(a, settings, "alice", embeddings=False)) as door:
        door.call("write", path="/memory/one.md", data=b"1")
    cluster.init(a, log, "a")
    settings = replace(settings, audit=replace(settings.audit, interval_s=0))
    with contextlib.closing(LocalDoor(a, settings, "alice", embeddings=False)) as door:
        assert door.call("read", path="/memory/one.md")["data"] == b"1"
    with pytest.raises(ReadOnly, match="shared with other hosts"):
        LocalDoor(a, settings, "alice", operator=True, embeddings=False)


def test_what_has_no_words_yet_keeps_no_search_from_answering_where_nothing_can_be_written(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, settings = tmp_path / "a" / "avm.db", default_settings()
    with contextlib.closing(LocalDoor(a, settings, "alice", embeddings=False)) as door:
        door.call("write", path="/memory/one.md", data=b"the falcon nests high")
        assert door.call("search", q="falcon")["hits"]
        door.call("write", path="/memory/two.md", data=b"the falcon feeds its young")
    cluster.init(a, log, "a")
    with contextlib.closing(LocalDoor(a, settings, "alice", embeddings=False)) as door:
        found = door.call("search", q="falcon", mode="lexical")
        assert [each["path"] for each in found["hits"]] == ["/memory/one.md"]
        assert found["degraded"].startswith("the words' index lacks the latest changes: this store is shared")
        for asked in ("/memory/:recall?q=falcon", "/memory/:search?q=falcon"):
            text = bytes(door.call("read", path=asked)["data"]).decode()
            assert text.startswith("# ") and "index lacks" in text.splitlines()[0] and "nests high" in text
        for view in ("timeline", "cold?days=0", "digest", "topics", "topics?name=falcon"):
            lines = bytes(door.call("read", path=f"/memory/:{view}")["data"]).decode().splitlines()
            assert lines[0].startswith("# the words' index lacks"), view
            assert any("one.md" in line for line in lines) or view.startswith("topics")
        asks: list[tuple[str, dict[str, Any]]] = [
            ("who", {"q": "falcon"}),
            ("timeline", {}),
            ("timeline", {"cold": True}),
            ("digest", {}),
            ("topics", {}),
            ("topics", {"name": "falcon"}),
        ]
        for method, arguments in asks:
            assert "index lacks" in door.call(method, **arguments)["degraded"]
        monkeypatch.setattr(session, "door", lambda: contextlib.nullcontext(door))
        told = CliRunner().invoke(avm, ["topics", "--json"])
        assert told.stderr.startswith("# the words' index lacks") and isinstance(json.loads(told.stdout), list)


def test_a_program_that_has_the_store_open_hears_that_it_has_become_shared_and_that_it_is_no_more(
    tmp_path: Path, log: MemoryLog
) -> None:
    path, asked = tmp_path / "a" / "avm.db", {"path": [b"memory", b"one.md"], "data": b"1"}
    with contextlib.closing(open_direct(path, POLICY, RULES)) as store:
        cluster.init(path, log, "a")
        with pytest.raises(ReadOnly, match="shared with other hosts"):
            store.submit(ALICE, "write_path", **asked)
        cluster.leave(path, log, "a")
        store.submit(ALICE, "write_path", **asked)


def test_after_leaving_a_purge_waits_for_no_log(tmp_path: Path, log: MemoryLog) -> None:
    a = made(tmp_path / "a" / "avm.db", log)
    host = ReplicatedApplier(a, POLICY, RULES, orphans=True, clock=time.time_ns, shared_log=log, host="a")
    host.settle()
    node = host.alone(ALICE, "write_path", {"path": [b"memory", b"two.md"], "data": b"2"})["node"]
    host.alone(ALICE, "purge", {"nodes": [node], "documents": []})
    host.close()
    cluster.leave(a, log, "a")
    with contextlib.closing(open_direct(a, POLICY, RULES)) as store:
        assert store.submit(ALICE, "wipe") == {"wiped": True}


def test_sources_that_each_host_may_have_otherwise_are_said(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounts.yaml").write_text("mounts: []\n")
    (tmp_path / "config.yaml").write_text(
        "store: {log: postgresql://h/d}\nproviders:\n"
        " - {pattern: '/live/docs/*', handler: file, config: {root: /srv/docs}}\n"
        " - {pattern: '/live/price/{name}', handler: http, config: {url: 'https://h/${name}'}}\n"
    )
    monkeypatch.setattr("avmfs.cli.keeping.shared_log", lambda settings: log)
    runner, where = CliRunner(), {"AVM_CONFIG_DIR": str(tmp_path), "AVM_RUNTIME_DIR": str(tmp_path)}
    (tmp_path / "config.yaml").chmod(0o600)
    for command, words in ((avm, ["cluster", "init"]), (avm, ["cluster", "join"]), (cli, ["check"])):
        done = runner.invoke(command, words, env={**where, "AVM_DATA_DIR": str(tmp_path / words[-1])})
        assert done.exit_code == 0, done.output
        assert ("/live/docs" in done.stderr) == (words != ["cluster", "init"]) and "/live/price" not in done.stderr


def test_who_leaves_is_forgotten_by_no_log_but_its_own(tmp_path: Path, log: MemoryLog) -> None:
    a, other = made(tmp_path / "a" / "avm.db", log), MemoryLog(MemoryServer())
    made(tmp_path / "b" / "avm.db", other)
    other.report("a", 1, 17)
    with pytest.raises(Exists, match="one host of another log: avm cluster leave"):
        cluster.init(a, other, "a")
    cluster.leave(a, other, "a")
    assert [each.name for each in other.hosts()] == ["a"], "another machine may be called the same"
    write(a, "two.md")


@pytest.mark.parametrize("gone", ["server", "tables"])
def test_a_host_leaves_a_log_that_is_there_no_more(
    gone: str, tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a = made(tmp_path / "avm.db", log)
    (tmp_path / "config.yaml").write_text("store: {log: postgresql://h/d}\n")
    (tmp_path / "config.yaml").chmod(0o600)
    monkeypatch.setattr("avmfs.cli.keeping.shared_log", lambda settings: log)
    if gone == "server":
        log._server.down = True
    else:
        log._server.cluster = ""
    where = {f"AVM_{name}_DIR": str(tmp_path) for name in ("CONFIG", "RUNTIME", "DATA")}
    left = CliRunner().invoke(avm, ["cluster", "leave"], env=where)
    assert left.exit_code == 0 and "take `store.log` out" in left.stdout, left.output
    assert "may list this host still" in caplog.text
    write(a, "two.md")


def test_a_store_of_its_own_is_not_replaced(tmp_path: Path, log: MemoryLog) -> None:
    made(tmp_path / "a" / "avm.db", log)
    b = tmp_path / "b" / "avm.db"
    write(b, "mine.md")
    before = b.read_bytes()
    with pytest.raises(Exists, match="move it away"):
        cluster.join(b, log, POLICY)
    assert b.read_bytes() == before


def test_one_of_the_same_log_is_brought_anew(tmp_path: Path, log: MemoryLog) -> None:
    a, b = made(tmp_path / "a" / "avm.db", log), tmp_path / "b" / "avm.db"
    cluster.join(b, log, POLICY)
    for name in ("two.md", "three.md"):
        shared(a, log, name)
        cluster.snapshot(a, log, "a")
    shared(a, log, "four.md")
    cluster.snapshot(a, log, "a")
    host = ReplicatedApplier(b, POLICY, RULES, orphans=True, clock=time.time_ns, shared_log=log, host="b")
    with pytest.raises(OSError, match="joined anew"):
        host.settle()
    host.close()
    cluster.join(b, log, POLICY)
    assert not differing(a, b)


def life(path: Path) -> str:
    with contextlib.closing(database.connect(path, writable=False)) as db:
        return incarnation.read(db)


def lose_newest(log: MemoryLog) -> int:
    """The number of the record that the log has no longer."""
    server = log._server
    lost, server.newest = server.records.pop(), server.newest - 1
    return lost.number


def test_who_joins_again_after_the_log_has_lost_records_keeps_what_it_alone_has_and_says_that_it_went_back(
    tmp_path: Path, log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder that is kept in step with it has the last other copy."""
    made(tmp_path / "a" / "avm.db", log)
    b = tmp_path / "b" / "avm.db"
    cluster.join(b, log, POLICY)
    shared(b, log, "two.md")
    before = life(b)
    cluster.join(b, log, POLICY)
    assert life(b) == before and not loss_check.rescued(b), "nothing is lost: it follows the log"
    shared(b, log, "three.md")
    lost = lose_newest(log)
    cluster.join(b, log, POLICY)
    [aside] = loss_check.rescued(b)
    with contextlib.closing(database.connect(aside / b.name, writable=False)) as db:
        assert db.execute("select 1 from node where name = ?", (b"three.md",)).get
    assert life(b) != before and f"is in {aside}" in caplog.text
    now = life(b)
    shared(b, log, "four.md")
    assert log.head() == lost and life(b) == now
    cluster.join(b, log, POLICY)
    assert loss_check.rescued(b) == [aside], "it follows this log again"


def test_a_host_that_joins_again_starts_though_its_anchors_are_newer_than_the_snapshot(
    tmp_path: Path, log: MemoryLog
) -> None:
    made(tmp_path / "a" / "avm.db", log)
    b, kept = tmp_path / "b" / "avm.db", tmp_path / "b" / "anchors"
    cluster.join(b, log, POLICY, kept)
    shared(b, log, "two.md")
    anchors.append(kept, newest := Anchor(1000, bytes(32), 10**9))
    cluster.join(b, log, POLICY, kept)
    database.prepare(b, anchors.newest(kept))
    [aside] = kept.parent.glob("anchors.aside-*")
    assert anchors.read(aside) == [newest], "what they vouch for is not lost"
    shared(b, log, "three.md")


def test_a_host_that_joins_has_no_anchors_of_a_repair_that_was_broken_off(tmp_path: Path, log: MemoryLog) -> None:
    made(tmp_path / "a" / "avm.db", log)
    b, kept = tmp_path / "b" / "avm.db", tmp_path / "b" / "anchors"
    b.parent.mkdir()
    anchors.append(loss_check.repaired(kept), Anchor(1000, bytes(32), 10**9))
    cluster.join(b, log, POLICY, kept)
    database.prepare(b, anchors.newest(kept))
    assert anchors.read(kept) == []


def test_a_join_that_was_killed_leaves_no_half_of_the_old_store_to_open(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = made(tmp_path / "a" / "avm.db", log), tmp_path / "b" / "avm.db"
    cluster.join(b, log, POLICY)
    shared(a, log, "two.md")
    cluster.snapshot(a, log, "a")
    unlink = Path.unlink

    def dying(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        if path == wal_frames.beside(b):
            raise ZeroDivisionError

    for ended_by in (cluster.join, repair):
        with monkeypatch.context() as killed, pytest.raises(ZeroDivisionError):
            killed.setattr(Path, "unlink", dying)
            cluster.join(b, log, POLICY)
        with pytest.raises(StoreFailed, match="avm repair finishes it"):
            database.prepare(b)
        if ended_by is repair:
            with repair(b, default_settings()) as done:
                assert done.sound, done.found
        else:
            cluster.join(b, log, POLICY)
        database.prepare(b)
        assert not differing(a, b)


def test_a_host_that_joins_again_is_read_by_no_index_that_a_reader_holds(tmp_path: Path, log: MemoryLog) -> None:
    a, b = made(tmp_path / "a" / "avm.db", log), tmp_path / "b" / "avm.db"
    cluster.join(b, log, POLICY)
    shared(a, log, "large.md", b"large " * 200_000)
    cluster.snapshot(a, log, "a")
    with read_by_another(b):
        shared(b, log, "two.md")
        cluster.join(b, log, POLICY)
        assert database.integrity(b) == []
    followed(a, log)
    assert not differing(a, b)


def test_a_snapshot_for_which_there_is_no_room_is_not_begun(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = made(tmp_path / "a" / "avm.db", log)
    disk = SimpleNamespace(f_frsize=PAGE, f_blocks=1 << 18, f_bavail=a.stat().st_size // PAGE)
    there = sorted(a.parent.iterdir())
    with monkeypatch.context() as small, pytest.raises(NoSpace, match="have to be free"):
        small.setattr(os, "statvfs", lambda path: disk)
        cluster.snapshot(a, log, "a")
    assert len(log.snapshots()) == 1 and sorted(a.parent.iterdir()) == there


def test_a_store_for_which_there_is_no_room_is_not_joined(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = made(tmp_path / "a" / "avm.db", log), tmp_path / "b" / "avm.db"
    disk = SimpleNamespace(f_frsize=PAGE, f_blocks=1 << 14, f_bavail=a.stat().st_size // PAGE)
    with monkeypatch.context() as small, pytest.raises(NoSpace, match="have to be free"):
        small.setattr(os, "statvfs", lambda path: disk)
        cluster.join(b, log, POLICY)
    assert [each.name for each in b.parent.iterdir() if not each.name.endswith(".lock")] == []
    cluster.join(b, log, POLICY)
    assert not differing(a, b)


def test_a_store_of_before_for_whose_copy_there_is_no_room_stays_and_nothing_is_left_of_the_join(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "a" / "avm.db", log)
    b = tmp_path / "b" / "avm.db"
    cluster.join(b, log, POLICY)
    pages = b.stat().st_size // PAGE
    shared(b, log, "two.md")
    lose_newest(log)
    before, copy = life(b), loss_check.copy

    def filling(path: Path, to: Path, lost: list[int] | None = None) -> None:
        copy(path, to, lost)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as small, pytest.raises(NoSpace, match="and a copy of the store of before"):
        disk = SimpleNamespace(f_frsize=PAGE, f_blocks=1 << 14, f_bavail=256 + pages * 3 // 2)
        small.setattr(os, "statvfs", lambda path: disk)
        cluster.join(b, log, POLICY)
    with monkeypatch.context() as taken, pytest.raises(OSError, match="No space"):
        taken.setattr(loss_check, "copy", filling)
        cluster.join(b, log, POLICY)
    assert loss_check.rescued(b) == [] and not list(b.parent.glob("*.joined")) and life(b) == before
    cluster.join(b, log, POLICY)
    assert len(loss_check.rescued(b)) == 1 and life(b) != before


def test_a_damaged_host_is_joined_anew_and_not_repaired(tmp_path: Path, log: MemoryLog) -> None:
    a, b = tmp_path / "a" / "avm.db", tmp_path / "b" / "avm.db"
    with contextlib.closing(open_direct(a, POLICY, RULES)) as store:
        store.submit(ALICE, "write_path", path=[b"memory", b"one.md"], data=b"x")
        Chainer(store, anchors.beside(a), 0.0, time.time_ns).step()
    cluster.init(a, log, "a")
    cluster.join(b, log, POLICY, anchors.beside(b))
    with repair(b, default_settings(), dry=True) as done:
        assert done.sound, "it has no anchors yet"
    where = {name: str(b.parent) for name in ("AVM_DATA_DIR", "AVM_CONFIG_DIR", "AVM_RUNTIME_DIR")}
    assert [each for each in storing(find_paths(where)) if each.state == "problem"] == []
    with contextlib.closing(database.connect(b, writable=False)) as db:
        root = db.execute("select rootpage from sqlite_schema where name = 'version'").get

    def zero(page: int) -> None:
        with open(b, "r+b") as file:
            file.seek((page - 1) * 4096)
            file.write(bytes(4096))

    zero(root)
    with pytest.raises(Invalid, match="avm cluster join brings it anew"), repair(b, default_settings(), dry=True):
        pass
    zero(1)
    with pytest.raises(Invalid, match="not a database; move it away, and avm cluster join"):
        cluster.join(b, log, POLICY)
    b.rename(b.with_name("away"))
    cluster.join(b, log, POLICY)
    assert not differing(a, b)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (Policy.from_words([("/memory/*", "ro", None)], "none"), "permissions"),
        (Policy(POLICY.rules, POLICY.default, trusted=[Trusted("web", "/*", "quarantine")]), "trust"),
    ],
)
def test_a_host_with_other_rules_does_not_join(other: Policy, named: str, tmp_path: Path, log: MemoryLog) -> None:
    made(tmp_path / "a" / "avm.db", log)
    b = tmp_path / "b" / "avm.db"
    with pytest.raises(Invalid, match=f"other rules.*`{named}`"):
        cluster.join(b, log, other)
    assert [each.name for each in b.parent.iterdir() if not each.name.endswith(".lock")] == []
    cluster.join(b, log, POLICY)


def test_the_rules_of_who_joins_are_held_against_those_in_force_now(tmp_path: Path, log: MemoryLog) -> None:
    """Not against those of the snapshot: nobody else may be there to make another one."""
    a, b = made(tmp_path / "a" / "avm.db", log), tmp_path / "b" / "avm.db"
    changed = Policy.from_words([("/memory/*", "rw", None), ("/memory/own/*", "ro", None)], "none")
    shared(a, log, "two.md")
    host = ReplicatedApplier(a, changed, RULES, orphans=True, clock=time.time_ns, shared_log=log, host="a")
    host.settle()
    host.close()
    with pytest.raises(Invalid, match="other rules"):
        cluster.join(b, log, POLICY)
    assert [each.name for each in b.parent.iterdir() if not each.name.endswith(".lock")] == []
    cluster.join(b, log, changed)
    joined = ReplicatedApplier(b, changed, RULES, orphans=True, clock=time.time_ns, shared_log=log, host="b")
    joined.settle()
    joined.alone(ALICE, "write_path", {"path": [b"memory", b"three.md"], "data": b"y"})
    joined.close()


def test_nothing_is_done_beside_a_daemon(tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    a = made(tmp_path / "a" / "avm.db", log)
    monkeypatch.setattr(cluster, "LOCK_S", 0.0)
    lock = StoreLock(a)
    held = lock.acquire(1.0)
    for action in (lambda: cluster.leave(a, log, "a"), lambda: cluster.join(a, log, POLICY)):
        with pytest.raises(Busy, match="avm-daemon stop"):
            action()
    lock.release(held, clean=True)


def test_a_log_without_a_snapshot_cannot_be_joined(tmp_path: Path, log: MemoryLog) -> None:
    with pytest.raises(NotFound):
        cluster.join(tmp_path / "b" / "avm.db", log, POLICY)
    log.create("c1")
    with pytest.raises(NotFound, match="no snapshot"):
        cluster.join(tmp_path / "b" / "avm.db", log, POLICY)


def test_init_that_was_killed_is_done_again(tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a" / "avm.db"
    write(path, "one.md")
    for step in ("_place", "snapshot"):
        with monkeypatch.context() as killed:
            killed.setattr(cluster, step, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                cluster.init(path, log, "a")
    cluster.init(path, log, "a")
    assert len(log.snapshots()) == 1
    cluster.init(path, log, "a")
    assert len(log.snapshots()) == 1


@pytest.mark.parametrize("killed", [False, True])
def test_what_was_purged_and_is_not_wiped_yet_is_so_before_the_store_is_shared(
    killed: bool, tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an ``init`` was killed, and no command alone may write any more."""
    monkeypatch.setattr(rewriting, "PATIENCE_MS", 1)
    path = tmp_path / "a" / "avm.db"
    write(path, "one.md")
    if killed:
        with monkeypatch.context() as early, pytest.raises(ZeroDivisionError):
            early.setattr(cluster, "snapshot", lambda *_: 1 / 0)
            cluster.init(path, log, "a")
    with contextlib.closing(database.connect(path, writable=True)) as db:
        db.execute("insert into setting(key, value) values('unwiped', '1')")
    with contextlib.closing(database.connect(path, writable=False)) as reader:
        reader.execute("begin")
        assert reader.execute("select count(*) from node").get
        with pytest.raises(Busy, match="somebody reads"):
            cluster.init(path, log, "a")
    if not killed:
        write(path, "two.md")  # the store is this machine's own still
    cluster.init(path, log, "a")
    assert len(log.snapshots()) == 1
    with contextlib.closing(database.connect(path, writable=False)) as db:
        assert not rewriting.due(db)


def test_a_store_that_has_lost_its_log_begins_another(tmp_path: Path, log: MemoryLog) -> None:
    """Also where the first attempt was killed."""
    a, b = made(tmp_path / "a" / "avm.db", log), tmp_path / "b" / "avm.db"
    shared(a, log, "two.md")
    new = MemoryLog(MemoryServer())
    with pytest.MonkeyPatch.context() as killed, pytest.raises(ZeroDivisionError):
        killed.setattr(cluster, "_place", lambda *_: 1 / 0)
        cluster.init(a, new, "a")
    assert cluster.init(a, new, "a").number == 0 and len(new.snapshots()) == 1
    shared(a, new, "three.md")
    cluster.join(b, new, POLICY)
    shared(b, new, "four.md")


class Applying(Submitter):
    """A host's commands, as its writer applies them."""

    def __init__(self, host: ReplicatedApplier) -> None:
        self.host = host

    def submit(self, who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        if command == "wipe" and rewriting.due(self.host.db):
            rewriting.rewrite(self.host.path)
        return self.host.alone(who, command, arguments)


def test_what_was_purged_leaves_the_log_once_hosts_that_are_there_have_followed(tmp_path: Path, log: MemoryLog) -> None:
    a = made(tmp_path / "a" / "avm.db", log)
    host = ReplicatedApplier(a, POLICY, RULES, orphans=True, clock=time.time_ns, shared_log=log, host="a")
    host.settle()
    node = host.alone(ALICE, "write_path", {"path": [b"memory", b"secret.md"], "data": b"zqxcanary"})["node"]
    assert list(cluster.traces_of(log, "zqxcanary"))
    with contextlib.closing(Store(a, Applying(host))) as store:
        forgetting = Forgetting(store, lambda: log, a, "a")
        forgetting.run()
        assert len(log.snapshots()) == 1, "nothing was purged yet"
        host.alone(ALICE, "purge", {"nodes": [node], "documents": []})
        assert store.submit(ALICE, "wipe") == {"wiped": False}, "the log still has it"
        answers, records = AppliedRequests(host.db), host.number

        def asks(command: str) -> Any:
            """As a client of the writer, whose answers are kept."""
            host.begin()
            answer = host.apply(ALICE, command, {}, lambda done: answers.record(b"asker", 1, wire.pack(done)))
            host.commit()
            return answer

        asker = cast(Memory, SimpleNamespace(store=store, submit=asks))
        assert [purging.wipe(asker) for _ in range(3)] == [{"wiped": False}] * 3 and host.number == records
        log.report("b", host.number - 1, 17)
        forgetting.run()
        assert list(cluster.traces_of(log, "zqxcanary")) and store.uncut() is not None, "b has yet to follow"
        log.report("b", host.number, 17)
        forgetting.run()
        assert not list(cluster.traces_of(log, "zqxcanary")) and store.uncut() is None
        assert purging.wipe(asker) == store.submit(ALICE, "wipe") == {"wiped": True} and len(log.snapshots()) == 1
    host.close()


def test_no_snapshot_brings_back_what_was_purged(tmp_path: Path, log: MemoryLog) -> None:
    """Neither of a host that is behind, nor of one that has followed and has not written its file anew."""
    a, b, c = made(tmp_path / "a" / "avm.db", log), tmp_path / "b" / "avm.db", tmp_path / "c" / "avm.db"
    shared(a, log, "secret.md", b"zqxcanary")
    for each in (b, c):
        cluster.join(each, log, POLICY)
        shared(each, log, f"{each.parent.name}.md")
    hosts = [
        ReplicatedApplier(each, POLICY, RULES, orphans=True, clock=time.time_ns, shared_log=log, host="x")
        for each in (a, b)
    ]
    for host in hosts:
        host.resolve()
    node = hosts[0].db.execute("select id from node where name = ?", (b"secret.md",)).get
    hosts[0].alone(ALICE, "purge", {"nodes": [node], "documents": []})
    hosts[1]._unapplied = True
    hosts[1].resolve()
    with contextlib.closing(Store(a, Applying(hosts[0]))) as store:
        Forgetting(store, lambda: log, a, "a").run()
        assert store.uncut() is None and not list(cluster.traces_of(log, "zqxcanary"))
    for host in hosts:
        host.close()
    with pytest.raises(Stale, match="newer snapshot"):
        cluster.snapshot(c, log, "c")
    with pytest.raises(Busy, match="purged"):
        cluster.snapshot(b, log, "b")
    assert not list(cluster.traces_of(log, "zqxcanary"))
    rewriting.rewrite(b)
    cluster.snapshot(b, log, "b")
    assert not list(cluster.traces_of(log, "zqxcanary"))


def test_what_was_purged_leaves_the_log_though_others_put_newer_snapshots_meanwhile(
    tmp_path: Path, log: MemoryLog
) -> None:
    a, b = made(tmp_path / "a" / "avm.db", log), tmp_path / "b" / "avm.db"
    cluster.join(b, log, POLICY)
    host = ReplicatedApplier(a, POLICY, RULES, orphans=True, clock=time.time_ns, shared_log=log, host="a")
    host.settle()
    node = host.alone(ALICE, "write_path", {"path": [b"memory", b"secret.md"], "data": b"zqxcanary"})["node"]
    host.alone(ALICE, "purge", {"nodes": [node], "documents": []})
    with contextlib.closing(Store(a, Applying(host))) as store:
        forgetting = Forgetting(store, lambda: log, a, "a")
        log.report("slow", 0, 17)
        forgetting.run()
        for name in ("two.md", "three.md"):
            shared(b, log, name)
            rewriting.rewrite(b)
            cluster.snapshot(b, log, "b")
            host._unapplied = True
            host.resolve()
        log.report("slow", log.head(), 17)
        with pytest.raises(NotFound):
            forgetting.run()
        forgetting.run()
        assert store.uncut() is None and not list(cluster.traces_of(log, "zqxcanary"))
    host.close()


def test_while_the_logs_tables_are_read_what_was_purged_waits_and_no_other_snapshot_is_sent(
    tmp_path: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = made(tmp_path / "a" / "avm.db", log)
    host = ReplicatedApplier(a, POLICY, RULES, orphans=True, clock=time.time_ns, shared_log=log, host="a")
    host.settle()
    node = host.alone(ALICE, "write_path", {"path": [b"memory", b"secret.md"], "data": b"zqxcanary"})["node"]
    host.alone(ALICE, "purge", {"nodes": [node], "documents": []})
    sent: list[int] = []
    put, cut = log.put_snapshot, log.cut
    monkeypatch.setattr(log, "put_snapshot", lambda number, *rest: (sent.append(number), put(number, *rest)))

    def reading(number: int) -> None:
        cut(number)
        raise Busy("somebody reads the tables")

    with contextlib.closing(Store(a, Applying(host))) as store:
        forgetting = Forgetting(store, lambda: log, a, "a")
        with monkeypatch.context() as dump:
            dump.setattr(log, "cut", reading)
            for _ in range(2):
                with pytest.raises(Busy, match="somebody reads"):
                    forgetting.run()
            assert store.uncut() is not None
            monkeypatch.setattr(forgetting, "run", lambda: pytest.fail("too early"))
            forgetting.step()
            assert not forgetting._work.busy, "it keeps all hosts waiting for a moment"
            monkeypatch.delattr(forgetting, "run")
        forgetting.run()
        assert store.uncut() is None and len(sent) == 1
    host.close()
