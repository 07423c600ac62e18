"""Several hosts, one store: transactions that are in the shared log first, and what others make of them."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs import wire
from avmfs.access import Policy, Principal
from avmfs.errors import AvmError, NotFound, ReadOnly, StoreFailed
from avmfs.store.commands.renaming import EXCHANGE
from avmfs.store.identity import ANYBODY, OPERATOR
from avmfs.store.rows import log_position
from avmfs.store.schema import database
from avmfs.store.schema.tables import MEMORY
from avmfs.store.sharedlog.protocol import InDoubt, Unreachable
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer import rewriting
from avmfs.store.writer.applier import Applier
from avmfs.store.writer.connections import Peer
from avmfs.store.writer.following import LogFollower, ReplicatedWriter
from avmfs.store.writer.replicated import CommitLost, ReplicatedApplier
from avmfs.store.writer.request import Request, parse
from avmfs.store.writer.wal_sync import WalSync
from tests.contract.memory_log import MemoryLog, MemoryServer
from tests.equal_stores import rows

ALICE, BOB = Principal("alice"), Principal("bob")
RULES = IndexRules(past_days=30)
POLICY = Policy.from_words([("/memory/*", "rw", None)], "none")


class Hosts:
    def __init__(self, folder: Path) -> None:
        self.server = MemoryServer()
        self.server.cluster = "c1"
        self.folder = folder
        self.opened: list[ReplicatedApplier] = []
        first = folder / "first.db"
        database.prepare(first)
        applier = Applier(first, POLICY, RULES, orphans=True, clock=time.time_ns)
        applier.alone(OPERATOR, "settle", {})
        log_position.place(applier.db, log_position.Position("c1", 0))
        applier.close()
        self._image = first

    def open(self, name: str, policy: Policy = POLICY) -> ReplicatedApplier:
        path = self.folder / f"{name}.db"
        if not path.exists():
            path.write_bytes(self._image.read_bytes())
        made = ReplicatedApplier(
            path, policy, RULES, orphans=True, clock=time.time_ns, shared_log=MemoryLog(self.server), host=name
        )
        self.opened.append(made)
        made.settle()
        return made

    def equal(self) -> None:
        for each in self.opened:
            each._unapplied = True
            each.resolve()
        first, *others = [rows(each.db) for each in self.opened]
        for other in others:
            for table in first:
                assert other[table] == first[table], table


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    found = Hosts(tmp_path)
    yield found
    for each in found.opened:
        each.close()


def write(host: Applier, name: str, data: bytes, who: Principal = ALICE) -> dict[str, Any]:
    return dict(host.alone(who, "write_path", {"path": [b"memory", *name.encode().split(b"/")], "data": data}))


def rename(host: Applier, name: str, new: str, flags: int = 0) -> None:
    names = {"name": name.encode(), "new_name": new.encode(), "flags": flags}
    host.alone(ALICE, "rename", {"parent": MEMORY, "new_parent": MEMORY, **names})


def unlink(host: Applier, name: str) -> None:
    host.alone(ALICE, "unlink", {"parent": MEMORY, "name": name.encode()})


def drain(host: Applier) -> None:
    while host.alone(OPERATOR, "drain_lexical", {"limit": 16})["left"]:
        pass


def tell(host: Applier, who: Principal, to: str, body: str) -> None:
    more = {"priority": "normal", "expires": None, "body_limit": 100, "unread_limit": 100}
    host.alone(who, "tell", {"recipient": to, "body": body, **more})


def names(host: Applier) -> list[str]:
    rows = host.db.execute("select name from node where parent = ? and kind = 1 order by name", (MEMORY,))
    return [bytes(name).decode() for (name,) in rows]


def found(host: Applier, word: str) -> int:
    return len(host.db.execute("select rowid from terms where terms match ?", (f'"{word}"*',)).fetchall())


def test_what_one_host_writes_the_other_has(hosts: Hosts) -> None:
    a, b = hosts.open("a"), hosts.open("b")
    write(a, "one.md", b"the falcon")
    write(b, "two.md", b"the heron")
    assert names(b) == ["one.md", "two.md"] and names(a) == ["one.md"]
    hosts.equal()
    assert names(a) == ["one.md", "two.md"]


def test_everything_that_commands_do_is_in_the_record(hosts: Hosts) -> None:
    """Names that are traded, indexes, mail, triggers, settings, large files and their holes."""
    a, b = hosts.open("a"), hosts.open("b")
    a.alone(BOB, "enroll", {})
    b.alone(ALICE, "enroll", {})
    write(a, "one.md", b"the falcon nests high")
    write(b, "two.md", b"the heron #bird stands")
    write(b, "big.bin", bytes(range(256)) * 1024)
    drain(a)
    rename(b, "one.md", "two.md", EXCHANGE)
    rename(a, "two.md", "one.md")
    write(a, "three.md", b"a note")
    unlink(b, "three.md")
    a.alone(ALICE, "set_privacy", {"mode": "full"})
    write(b, "private/alice/own.md", b"# Kestrels\n\nabout kestrels")
    write(a, "shared/all.md", b"# Gulls\n\nabout gulls")
    tell(b, BOB, "alice", "hello")
    drain(b)
    node = write(a, "one.md", b"the osprey dives")["node"]
    a.alone(ALICE, "set_tags", {"node": node, "add": ["sea"], "remove": [], "replace": False})
    drain(a)
    hosts.equal()
    assert names(b) == ["big.bin", "one.md"]
    assert b.db.execute("select count(*) from revealed").get > 0  # what a trigger does, and a command undoes
    for host in (a, b):
        assert not database.integrity(host.path)


def test_how_far_deliveries_have_come_is_known_to_who_keeps_house_next(hosts: Hosts) -> None:
    """A table of one row without a key: another host would make every delivery anew."""
    a, b = hosts.open("a"), hosts.open("b")
    a.alone(BOB, "enroll", {})
    write(a, "one.md", b"before anybody subscribed")
    a.alone(
        BOB, "subscribe", {"pattern": "/memory/*", "mode": "realtime", "every": None, "url": "https://example.com/"}
    )
    hosts.equal()
    cursor, newest = (b.db.execute(f"select {what}").get for what in ("seq from outbox_cursor", "max(seq) from log"))
    assert 0 < cursor <= newest


def test_records_are_as_good_as_the_words_that_they_bring(hosts: Hosts) -> None:
    a, b = hosts.open("a"), hosts.open("b")
    write(a, "one.md", b"falcon")
    drain(a)
    b.resolve()
    b._unapplied = True
    b.resolve()
    assert len(rows(b.db)["posting"]) == len(rows(a.db)["posting"]) > 0
    unlink(b, "one.md")
    drain(b)
    hosts.equal()
    assert not rows(a.db)["posting"]


def test_a_host_that_was_overtaken_begins_anew_with_what_the_others_did(hosts: Hosts) -> None:
    a, b = hosts.open("a"), hosts.open("b")
    write(a, "one.md", b"1")
    a.begin()
    hosts.server.baton = None  # the server has given it to another, who is quicker
    write(b, "two.md", b"2")
    path = {"path": [b"memory", b"three.md"], "data": b"3"}
    a.apply(ALICE, "write_path", path)
    with pytest.raises(AvmError, match="another record"):
        a.commit()
    a.rollback()
    assert names(a) == ["one.md"]
    a.alone(ALICE, "write_path", path)
    hosts.equal()
    assert names(b) == ["one.md", "three.md", "two.md"]


_LOST = "before|after|take|neither|before take before|after take|neither after|neither take neither|before neither"


@pytest.mark.parametrize("lost", [each.split() for each in _LOST.split("|")])
def test_a_link_that_is_cut_loses_and_doubles_nothing(hosts: Hosts, lost: list[str]) -> None:
    a, b = hosts.open("a"), hosts.open("b")
    tell(a, BOB, "@all", "0")
    a.alone(ALICE, "enroll", {})
    hosts.server.lose = list(lost)
    tell(a, BOB, "alice", "hello")
    assert not hosts.server.lose
    hosts.equal()
    assert b.db.execute("select count(*) from message where body = 'hello'").get == 1


def test_what_was_appended_is_not_lost_with_the_host(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the log's commit and its own."""
    a, b = hosts.open("a"), hosts.open("b")
    monkeypatch.setattr(Applier, "commit", _fails)
    with pytest.raises(CommitLost):
        write(a, "one.md", b"1")
    monkeypatch.undo()
    assert names(a) == []
    b._unapplied = True
    b.resolve()
    assert names(b) == ["one.md"]
    a.close()
    hosts.opened.remove(a)
    again = hosts.open("a")
    assert names(again) == ["one.md"]
    hosts.equal()


def _fails(self: Applier) -> None:
    raise StoreFailed("the disk")


def test_doubt_is_settled_before_the_next_change(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    a = hosts.open("a")
    hosts.open("b")
    monkeypatch.setattr("avmfs.store.writer.replicated.DOUBT_S", 0.0)
    write(a, "one.md", b"1")
    hosts.server.lose = ["after", "take"]
    with pytest.raises(InDoubt):
        write(a, "two.md", b"2")
    assert names(a) == ["one.md"]
    a.resolve()
    assert names(a) == ["one.md", "two.md"]
    write(a, "three.md", b"3")
    hosts.equal()


def test_without_the_log_nothing_is_written(hosts: Hosts) -> None:
    a = hosts.open("a")
    write(a, "one.md", b"1")
    hosts.server.down = True
    with pytest.raises(Unreachable):
        write(a, "two.md", b"2")
    assert names(a) == ["one.md"] and a.down is not None and a.down.errno == ReadOnly.code
    hosts.server.down = False
    write(a, "two.md", b"2")
    assert names(a) == ["one.md", "two.md"]


@pytest.fixture
def told(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Callable[..., list[Any]]:
    """Has the writer of host a commit what three clients ask at once, over new connections each time. Returns what it
    answers."""
    a = hosts.open("a")
    a.down = None
    monkeypatch.setattr(WalSync, "quick", True)
    return asking(a, tmp_path / "sock", hosts, request)


Pairs = list[tuple[socket.socket, socket.socket]]


def writing(
    a: ReplicatedApplier, address: Path, hosts: Hosts, request: pytest.FixtureRequest, wait_s: float = 0.0
) -> tuple[ReplicatedWriter, Pairs]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.fspath(address))
    listener.listen()
    writer = ReplicatedWriter(listener, b"k" * 32, a, MemoryLog(hosts.server), wait_s)
    writer._log = WalSync(a.path, writer._peers.wake)
    assert writer._log.recover(a.db)
    writer._follower.settled = True
    pairs = [socket.socketpair() for _ in range(3)]
    closes: list[Any] = [writer._log, writer._peers, writer._change_ring, listener, *sum(pairs, ())]
    for each in closes:
        request.addfinalizer(each.close)
    return writer, pairs


def asking(
    a: ReplicatedApplier, address: Path, hosts: Hosts, request: pytest.FixtureRequest
) -> Callable[..., list[Any]]:
    writer, pairs = writing(a, address, hosts, request)

    def ask(*asked: tuple[str, dict[str, Any]], number: int = 1) -> list[Any]:
        peers = [Peer(mine, client=b"%d" % n * 16, agent=ANYBODY, origin=b"") for n, (_, mine) in enumerate(pairs)]
        batch = [(peer, parse([number, "alice", False, *each])) for peer, each in zip(peers, asked, strict=False)]
        writer._commit([(peer, request) for peer, request in batch if request is not None])
        return [wire.receive(other)[1:] for (other, _), _ in zip(pairs, asked, strict=False)]

    return ask


def test_without_the_log_a_host_says_what_was_done_and_syncs(
    hosts: Hosts, told: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    [a], syncs, fdatasync = hosts.opened, list[int](), os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (syncs.append(descriptor), fdatasync(descriptor)))
    one = "write_path", {"path": [b"memory", b"one.md"], "data": b"1"}
    done = told(one)
    assert done[0][0] is None
    a.down = ReadOnly("the log is down")
    syncs.clear()
    again, refused, synced = told(one, ("write_path", {"path": [b"memory", b"two.md"], "data": b"2"}), ("sync", {}))
    assert again == done[0] and synced == [None, {}] and syncs
    assert refused[0][:2] == [ReadOnly.code, "nothing can be written: the log is down"] and names(a) == ["one.md"]


def test_what_waits_for_the_log_is_refused_when_it_has_waited_long_enough_whoever_waits_before_it(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Its client would have given up, and it would be done when nobody waits for it. Who searches does not wait."""
    monkeypatch.setattr(WalSync, "quick", True)
    a = hosts.open("a")
    a.down = ReadOnly("the log is down")
    writer, pairs = writing(a, tmp_path / "sock", hosts, request, wait_s=1000.0)
    peers = [Peer(mine, client=b"%d" % n * 16, agent=ANYBODY, origin=b"") for n, (_, mine) in enumerate(pairs)]

    def asked(command: str, arguments: dict[str, Any]) -> Request:
        made = parse([1, "alice", False, command, arguments])
        assert made is not None
        return made

    late, early = (asked("write_path", {"path": [b"memory", name], "data": b"1"}) for name in (b"late", b"early"))
    early.came -= 2000.0
    writer._scheduler.add(peers[1], early)
    writer._scheduler.add(peers[2], asked("drain_lexical", {}))
    writer._commit([(peers[0], late)])
    for other, _ in pairs[1:]:
        assert wire.receive(other)[1][:2] == [ReadOnly.code, "nothing can be written: the log is down"]
    assert writer._scheduler.next() == [(peers[0], late)] and not writer._scheduler
    a.down = None
    writer._commit([(peers[0], late)])
    assert wire.receive(pairs[0][0])[1] is None and names(a) == ["late"]


def test_who_waits_for_the_log_keeps_nobody_waiting_who_needs_the_disk_alone(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(WalSync, "quick", False)
    a = hosts.open("a")
    a.down = None
    writer, pairs = writing(a, tmp_path / "sock", hosts, request, wait_s=1000.0)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("write_path", {"path": [b"memory", b"one.md"], "data": b"1"}),
        ("write_path", {"path": [b"memory", b"two.md"], "data": b"2"}),
        ("sync", {}),
    ]
    batch: list[tuple[Peer, Any]] = [
        (Peer(mine, client=b"%d" % n * 16, agent=ANYBODY, origin=b""), parse([1, "alice", False, *said]))
        for n, ((_, mine), said) in enumerate(zip(pairs, asked, strict=True))
    ]
    writer._recent.extend("ab")  # not alone: another thread syncs
    writer._commit(batch[:1])
    a.down = ReadOnly("the log is down")
    for each in batch[1:]:
        writer._scheduler.add(*each)
    got: list[Any] = []

    def hear() -> None:
        try:
            for other in (pairs[0][0], pairs[2][0]):
                other.settimeout(30.0)
                got.append(wire.receive(other)[1])
        finally:
            a.down = None

    hearing = threading.Thread(target=hear)
    hearing.start()
    while writer._scheduler:
        writer._commit(writer._scheduler.next())
    hearing.join()
    assert got == [None, None]


def test_a_host_tells_how_far_its_clock_is_from_that_of_the_log(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avmfs.store.writer.following.HEARTBEAT_S", 0.0)
    a, told = hosts.open("a"), list[dict[str, Any]]()
    follower = LogFollower(at_once, a, MemoryLog(hosts.server), told.append)
    follower._round()
    for wrong_s in (-660.0, 660.0):
        hosts.server.clock = lambda wrong_s=wrong_s: time.time() + wrong_s
        follower._round()
    assert told[0]["ahead_s"] == 0.0
    assert round(told[1]["ahead_s"], -1) == 660 and round(told[2]["ahead_s"], -1) == -660


def test_a_request_in_doubt_that_is_sent_again_is_done_once(
    hosts: Hosts, told: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("avmfs.store.writer.replicated.DOUBT_S", 0.0)
    append = "write_path", {"path": [b"memory", b"one.md"], "data": b"x", "mode": "append"}
    assert told(append)[0][0] is None
    hosts.server.lose = ["after", "take"]
    assert told(append, number=2)[0][0] is not None
    assert told(append, number=2)[0][0] is None
    assert hosts.opened[0].db.execute("select size from node where name = ?", (b"one.md",)).get == 2


def test_what_a_killed_writer_may_have_appended_is_not_refused_as_if_it_were_not_made(
    hosts: Hosts,
    told: Callable[..., list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Killed between the log's commit and its own, and then the log cannot be reached."""
    append = "write_path", {"path": [b"memory", b"one.md"], "data": b"x", "mode": "append"}
    assert told(append)[0][0] is None
    with monkeypatch.context() as killed, pytest.raises(CommitLost):
        killed.setattr(Applier, "commit", _fails)
        told(append, number=2)
    before = hosts.opened[0]
    before.rollback()
    again = ReplicatedApplier(
        before.path, POLICY, RULES, orphans=True, clock=time.time_ns, shared_log=MemoryLog(hosts.server), host="a"
    )
    hosts.opened.append(again)
    told = asking(again, tmp_path / "again", hosts, request)
    for _ in range(2):
        (code, said, _), *_ = told(append, number=2)[0]
        assert code == StoreFailed.code and "not known whether" in said
    assert told(append, number=3)[0][0][0] == ReadOnly.code
    again.resolve()
    again.down = None
    assert told(append, number=2)[0][0] is None
    assert again.db.execute("select size from node where name = ?", (b"one.md",)).get == 2


def test_a_record_of_a_newer_program_stops_the_host(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = hosts.open("a"), hosts.open("b")
    write(a, "one.md", b"1")
    monkeypatch.setattr("avmfs.store.writer.replica.tables.VERSION", 99)
    write(a, "two.md", b"2")
    monkeypatch.undo()
    with pytest.raises(StoreFailed, match="newer avmfs on a"):
        write(b, "three.md", b"3")
    assert names(b) == ["one.md"] or names(b) == []
    hosts.opened.remove(b)
    b.close()


def test_a_record_that_does_not_fit_stops_the_host(hosts: Hosts) -> None:
    a, b = hosts.open("a"), hosts.open("b")
    write(a, "one.md", b"1")
    b.resolve()
    b._unapplied = True
    b.resolve()
    before = rows(b.db)
    b.replica.db.execute("delete from node where name = 'one.md'")
    b.replica.db.execute("delete from version")
    unlink(a, "one.md")
    damaged = rows(b.db)
    with pytest.raises(StoreFailed, match="does not fit"):
        write(b, "two.md", b"2")
    assert rows(b.db) == damaged != before
    hosts.opened.remove(b)
    b.close()


def lose_last(hosts: Hosts) -> None:
    """As a failover to a standby that had not got it."""
    hosts.server.records.pop()
    hosts.server.newest -= 1


def test_a_log_that_has_lost_what_was_applied_here_is_not_written_to(hosts: Hosts) -> None:
    a = hosts.open("a")
    write(a, "one.md", b"1")
    write(a, "two.md", b"2")
    lose_last(hosts)
    with pytest.raises(StoreFailed, match="it has lost records"):
        write(a, "three.md", b"3")
    assert names(a) == ["one.md", "two.md"]
    hosts.opened.remove(a)
    a.close()


def at_once(work: Callable[[], None]) -> None:
    """The call of a writer that has nothing else to do."""
    work()


@pytest.mark.parametrize("more", [["other.md"], ["other.md", "three.md"]])
def test_nothing_follows_another_record_than_the_one_applied_here(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """Though it would fit by its number, and by its rows."""
    a, b = hosts.open("a"), hosts.open("b")
    write(a, "one.md", b"1")
    b._unapplied = True
    b.resolve()
    write(a, "two.md", b"2")
    lose_last(hosts)
    for name in more:
        write(b, name, b"2")
    newest = hosts.server.newest
    with pytest.raises(StoreFailed, match="has lost records"):
        write(a, "four.md", b"4")
    assert names(a) == ["one.md", "two.md"] and a.down is not None and hosts.server.newest == newest
    monkeypatch.setattr("avmfs.store.writer.following.HEARTBEAT_S", 0.0)
    follower = LogFollower(at_once, a, MemoryLog(hosts.server), lambda figures: None)
    follower.settled = True
    with pytest.raises(StoreFailed, match="has lost records"):
        follower._round()
    assert a.down is not None, "nor is it there again for a moment"
    hosts.opened.remove(a)
    a.close()


def test_a_host_whose_last_record_was_cut_goes_on(hosts: Hosts) -> None:
    a = hosts.open("a")
    write(a, "one.md", b"1")
    MemoryLog(hosts.server).put_snapshot(a.number, "a", [b""])
    write(a, "two.md", b"2")
    assert names(a) == ["one.md", "two.md"]


def test_a_host_tells_why_it_takes_no_change_and_how_far_behind_it_is(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("avmfs.store.writer.following.HEARTBEAT_S", 0.0)
    a, b, told = hosts.open("a"), hosts.open("b"), list[dict[str, Any]]()
    follower = LogFollower(at_once, b, MemoryLog(hosts.server), told.append)
    follower._round()
    a.set_rules(Policy.from_words([("/memory/*", "rw", None), ("/memory/secret/*", "none", None)], "none"), RULES)
    follower._round()
    a.set_rules(POLICY, RULES)
    follower._round()
    assert [said["error"] for said in told] == ["", told[1]["error"], ""] and "not those in force" in told[1]["error"]
    write(a, "one.md", b"1")
    missing = hosts.server.records.pop()
    write(a, "two.md", b"2")
    follower.start()
    deadline = time.monotonic() + 120
    while not told[-1]["error"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    follower.stop()
    assert told[-1]["behind"] == 2 and b.number == missing.number - 1
    hosts.opened.remove(b)
    b.close()


def test_rules_of_the_host_that_changed_them_last_hold_everywhere(hosts: Hosts) -> None:
    other = Policy.from_words([("/memory/*", "rw", None), ("/memory/secret/*", "none", None)], "none")
    a, b = hosts.open("a"), hosts.open("b")
    a.set_rules(other, RULES)
    with pytest.raises(ReadOnly, match="not those in force"):
        write(b, "one.md", b"1")
    write(a, "one.md", b"1")
    hosts.opened.remove(b)
    b.close()
    b = hosts.open("b")  # with the old ones, as before: not put in force again by a restart
    with pytest.raises(ReadOnly, match="not those in force"):
        write(b, "two.md", b"2")
    hosts.opened.remove(b)
    b.close()
    b = hosts.open("b", other)
    write(b, "two.md", b"2")
    hosts.equal()
    third = Policy.from_words([("/memory/*", "rw", None), ("/memory/other/*", "none", None)], "none")
    hosts.opened.remove(b)
    b.close()
    b = hosts.open("b", third)  # changed here since it was at one with the others
    write(b, "three.md", b"3")
    with pytest.raises(ReadOnly, match="not those in force"):
        write(a, "four.md", b"4")


@pytest.mark.parametrize("seed", range(4))
def test_hosts_stay_equal_whatever_fails(hosts: Hosts, seed: int) -> None:
    """Against an oracle: every change that was acknowledged is there, and none twice."""
    chance = random.Random(seed)
    opened = [hosts.open(name) for name in "abc"]
    for host in opened:
        host.alone(ALICE, "enroll", {})
    told, there = 0, set()
    for step in range(120):
        at = chance.randrange(3)
        host, name = opened[at], f"{chance.randrange(8)}.md"
        hosts.server.lose = chance.choice([[], [], [], ["before"], ["after"], ["take"], ["after", "take"], ["neither"]])
        match chance.randrange(7):
            case 0 | 1:
                write(host, name, b"word%d " % step * chance.choice([1, 9, 20_000]))
                there.add(name)
            case 2 if name in there:
                unlink(host, name)
                there.discard(name)
            case 3 if there:
                source = chance.choice(sorted(there))
                if source != name:
                    rename(host, source, name, EXCHANGE if name in there else 0)
                    there |= {name, source} if name in there else {name}
                    there -= set() if host.db.execute(_IN, (MEMORY, source.encode())).get else {source}
            case 4:
                tell(host, BOB, "alice", f"{step}")
                told += 1
            case 5:
                drain(host)
            case 6:
                host.close()
                hosts.opened.remove(host)
                opened[at] = hosts.open("abc"[at])
        hosts.server.lose.clear()
    hosts.equal()
    for host in opened:
        assert names(host) == sorted(there)
        assert host.db.execute("select count(*) from message").get == told
        assert not database.integrity(host.path)


_IN = "select 1 from node where parent = ? and name = ?"


def test_what_was_refused_in_a_transaction_is_not_in_its_record(hosts: Hosts) -> None:
    a, b = hosts.open("a"), hosts.open("b")
    write(a, "one.md", b"1")
    a.begin()
    for name in (b"none", b"one.md", b"none", b"two.md"):
        path = {"parent": MEMORY, "name": name, "new_parent": MEMORY, "new_name": b"two.md"}
        if name == b"none":
            with pytest.raises(NotFound):
                a.apply(ALICE, "rename", path)
        else:
            a.apply(ALICE, "rename", {**path, "new_name": b"two.md" if name == b"one.md" else b"three.md"})
    a.commit()
    hosts.equal()
    assert names(b) == ["three.md"]


def test_who_has_followed_meanwhile_has_lost_nothing(hosts: Hosts) -> None:
    """Whoever follows may ask for what the writer has just had with the baton."""
    a, b = hosts.open("a"), hosts.open("b")
    write(a, "one.md", b"the falcon")
    b._unapplied = True
    b.resolve()
    b.follow([], b.number)
    with pytest.raises(StoreFailed):
        b.follow([], b.number + 1)


def test_each_purge_is_due_on_each_host(hosts: Hosts) -> None:
    """Also where the host that purges has not written its own file anew since the last one, and the other has."""
    a, b = hosts.open("a"), hosts.open("b")
    for name in ("one.md", "two.md"):
        node = write(a, name, b"the canary of %s " % name.encode() * 50)["node"]
        hosts.equal()
        a.alone(ALICE, "purge", {"nodes": [node], "documents": []})
        b._unapplied = True
        b.resolve()
        assert rewriting.due(a.db) and rewriting.due(b.db)
        rewriting.rewrite(b.path)
        assert rewriting.due(a.db) and not rewriting.due(b.db)
    files = [b.path, b.path.with_name(b.path.name + "-wal")]
    assert not any(b"the canary" in path.read_bytes() for path in files if path.exists())
