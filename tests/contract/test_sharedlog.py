"""What every shared log promises (avmfs/store/sharedlog/protocol.py), over each implementation."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from avmfs.errors import Busy, Exists, NotFound, Stale
from avmfs.store.sharedlog.protocol import CLOCK_S, READ_BYTES, InDoubt, Overtaken, Record, SharedLog, Unreachable
from tests.contract.memory_log import MemoryLog, MemoryServer
from tests.links import Link

Opened = Callable[[], SharedLog]
LIMIT_S = 60.0


@pytest.fixture(params=["memory", "postgres"])
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    """Opens connections to one new log."""
    made: list[SharedLog] = []
    if request.param == "memory":
        shared = MemoryServer()
        new: Opened = lambda: MemoryLog(shared)  # noqa: E731
    else:
        from avmfs.store.sharedlog.postgres import PostgresLog

        address = request.getfixturevalue("postgres").database(secrets.token_hex(8))
        new = lambda: PostgresLog(address)  # noqa: E731

    def one() -> SharedLog:
        made.append(new())
        return made[-1]

    one().create("c1")
    yield one
    for log in made:
        log.close()


def record(number: int, data: bytes = b"x", host: str = "a") -> Record:
    return Record(number, secrets.token_bytes(16), host, data)


def append(log: SharedLog, *data: bytes) -> None:
    for each in data:
        log.append(record(log.take() + 1, each))


def test_there_is_one_log(opened: Opened) -> None:
    log = opened()
    assert log.cluster() == "c1"
    with pytest.raises(Exists):
        log.create("c2")
    assert log.cluster() == "c1"


def test_records_are_read_as_they_were_appended(opened: Opened) -> None:
    one, other = opened(), opened()
    written = record(1, bytes(range(256)) * 300)
    assert one.take() == 0
    one.append(written)
    append(one, b"2", b"3")
    assert other.read(0, 1) == [written]
    assert [each.data for each in other.read(1, 100)] == [b"2", b"3"]
    assert other.read(3, 100) == []


@pytest.mark.parametrize("number", [1, 3, 5])
def test_only_the_next_number_is_taken(opened: Opened, number: int) -> None:
    log = opened()
    append(log, b"1", b"2", b"3")
    log.take()
    with pytest.raises(Overtaken):
        log.append(record(number))
    assert [each.number for each in opened().read(0, 100)] == [1, 2, 3]
    append(log, b"4")  # the baton was given back, and the connection can be used


def test_a_record_is_known_by_its_token_and_what_follows_another_one_is_not_taken(opened: Opened) -> None:
    log, (first, second, other) = opened(), (record(1), record(2), record(1))
    for known in (False, True):
        log.take(0 if known else None)
        assert log.has(0, b"") and log.has(1, first.token)
        log.give()
    log.append(first)
    for asked in (log, opened()):
        for after in (None, 1):
            assert after is None or asked.take(after) == 1
            assert asked.has(1, first.token) and asked.has(1, b"") and not asked.has(1, other.token)
        with pytest.raises(Overtaken):
            asked.append(second, other.token)
    log.take()
    log.append(second, first.token)
    log.take()
    log.append(record(3))
    log.put_snapshot(3, "a", [b"x"])
    assert log.take(3) == 3 and log.has(3, other.token), "nobody can tell"
    log.append(record(4), other.token)
    assert log.head() == 4


def test_the_baton_is_held_by_one_at_a_time(opened: Opened) -> None:
    one, other = opened(), opened()
    one.take()
    got: list[int] = []
    waiting = threading.Thread(target=lambda: got.append(other.take()))
    waiting.start()
    waiting.join(0.3)
    assert not got
    one.append(record(1))
    waiting.join(LIMIT_S)
    assert got == [1]
    other.give()


def test_what_follows_a_number_comes_with_the_baton_and_is_read_once(opened: Opened) -> None:
    one, other = opened(), opened()
    append(one, b"1", b"2", b"3")
    for most, wanted in ((100, [b"2", b"3"]), (1, [b"2"])):
        assert other.take(1) == one.head()
        assert [each.data for each in other.read(1, most)] == wanted
        other.give()
        append(one, b"4")
        assert [each.data for each in other.read(1, 2)] == [b"2", b"3"]
    other.take(1)
    other.give()
    assert [each.number for each in other.read(3, 100)] == [4, 5], "what came is of another number"
    other.take(5)
    other.give()
    append(one, b"6")
    assert [each.number for each in other.read(5, 100)] == [6]


def test_a_baton_goes_with_its_connection(opened: Opened) -> None:
    one, other = opened(), opened()
    one.take()
    one.close()
    assert other.take() == 0
    other.give()


def test_waiting_ends_with_the_next_record(opened: Opened) -> None:
    one, other = opened(), opened()
    append(one, b"1")
    assert other.wait(0, LIMIT_S) == other.head() == 1
    assert other.wait(1, 0.05) == 1
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(other.wait(1, LIMIT_S)))
    waiting.start()
    append(one, b"2")
    waiting.join(LIMIT_S)
    assert found == [2]


def test_one_connection_keeps_house(opened: Opened) -> None:
    one, other = opened(), opened()
    now = time.time()
    assert one.keep(now) and one.keep(now) and not other.keep(now)
    one.close()
    while not other.keep(time.time()):  # a server hears of it in its own time
        pass


@pytest.mark.parametrize("wrong_s", [-660.0, 660.0])
def test_a_host_whose_clock_is_another_one_keeps_no_house(opened: Opened, wrong_s: float) -> None:
    one, other = opened(), opened()
    assert not one.keep(time.time() + wrong_s)
    assert one.keep(time.time()) and not other.keep(time.time())
    assert not one.keep(time.time() + wrong_s), "set meanwhile"
    assert other.keep(time.time()) and not one.keep(time.time())


def test_a_host_that_is_not_able_to_keeps_no_house(opened: Opened) -> None:
    one, other = opened(), opened()
    assert not one.keep(time.time(), False)
    assert one.keep(time.time()) and not other.keep(time.time())
    assert not one.keep(time.time(), False)
    assert other.keep(time.time()) and not one.keep(time.time())


def test_a_host_hears_what_the_log_takes_for_the_time(opened: Opened) -> None:
    before = time.time()
    assert before - CLOCK_S < opened().report("a", 3, 16) < time.time() + CLOCK_S


def test_hosts_are_known_by_what_they_said_last(opened: Opened) -> None:
    log = opened()
    log.report("a", 3, 16)
    log.report("b", 4, 16)
    log.report("a", 5, 17)
    log.forget("b")
    (only,) = opened().hosts()
    assert only[:3] == ("a", 5, 17) and only.age_s >= 0


def test_the_log_ends_behind_the_newest_two_snapshots(opened: Opened) -> None:
    log = opened()
    append(log, *(b"%d" % n for n in range(1, 10)))
    for number in (3, 5, 8):
        log.put_snapshot(number, "a", [b"one", b"", b"%d" % number])
    assert [each[:3] for each in log.snapshots()] == [(8, "a", 4), (5, "a", 4)]
    assert b"".join(opened().snapshot(8)) == b"one8"
    assert [each.number for each in log.read(0, 100)] == [6, 7, 8, 9]
    with pytest.raises(NotFound):
        list(log.snapshot(3))
    append(log, b"10")


def test_what_is_cut_is_gone_but_for_its_snapshot(opened: Opened) -> None:
    log = opened()
    append(log, *(b"%d" % n for n in range(1, 6)))
    for number in (2, 4):
        log.put_snapshot(number, "a", [b"%d" % number])
    with pytest.raises(NotFound):
        log.cut(3)
    assert len(log.snapshots()) == 2
    log.cut(4)
    assert [each.number for each in log.snapshots()] == [4] and [each.data for each in log.read(0, 9)] == [b"5"]
    append(log, b"6")


def test_a_snapshot_of_before_the_newest_is_refused(opened: Opened) -> None:
    """Also where the newer one came while this one was sent."""
    log = opened()
    append(log, *(b"%d" % n for n in range(1, 6)))

    def chunks() -> Iterator[bytes]:
        yield b"3"
        opened().put_snapshot(4, "b", [b"4"])

    for _ in range(2):
        with pytest.raises(Stale):
            log.put_snapshot(3, "a", chunks())
    assert [each[:3] for each in log.snapshots()] == [(4, "b", 1)]


def test_a_snapshot_is_replaced_while_others_connect(opened: Opened) -> None:
    log, number = opened(), 3
    append(log, b"1", b"2", b"3")
    log.put_snapshot(number, "a", [b"first"])
    met: list[Any] = []

    def chunks() -> Iterator[bytes]:
        yield b"sec"
        other = opened()
        met.extend([other.head(), [each[:3] for each in other.snapshots()], b"".join(other.snapshot(number))])
        yield b"ond"

    log.put_snapshot(number, "b", chunks())
    assert met == [3, [(3, "a", 5)], b"first"]
    assert [each[:3] for each in log.snapshots()] == [(3, "b", 6)] and b"".join(log.snapshot(number)) == b"second"


@pytest.mark.parametrize("newer", [[3], [4, 5]], ids=["replaced", "dropped"])
def test_no_snapshot_is_read_that_is_half_another_one(opened: Opened, newer: list[int]) -> None:
    log, other = opened(), opened()
    append(log, *(b"%d" % n for n in range(1, 6)))
    log.put_snapshot(3, "a", whole := [b"one", b"two", b"three"])
    chunks = log.snapshot(3)
    found = [next(chunks)]
    for number in newer:
        other.put_snapshot(number, "a", [b"111", b"222", b"33333"])
    try:
        found += chunks
    except Stale as e:
        assert "try again" in str(e) and len(found) < len(whole)
    else:
        assert found == whole
    assert b"".join(log.snapshot(newer[-1])) == b"11122233333"


def test_large_records_are_read_a_few_at_a_time(opened: Opened) -> None:
    log, sizes = opened(), [10, 3 << 20, 3 << 20, 9 << 20, 10, 20]
    append(log, *(b"x" * size for size in sizes))
    found: list[int] = []
    while len(found) < len(sizes):
        records = opened().read(len(found), 100)
        assert records and records[0].number == len(found) + 1
        assert len(records) == 1 or sum(len(each.data) for each in records[:-1]) < READ_BYTES
        found += [len(each.data) for each in records]
    assert found == sizes
    assert log.take(2) == 6
    assert [each.number for each in log.read(2, 100)][:1] in ([], [3]), "with the baton it may be left for later"
    log.give()
    assert log.read(2, 100)[0].number == 3


def test_half_a_snapshot_is_none(opened: Opened) -> None:
    log = opened()
    append(log, b"1")

    def chunks() -> Iterator[bytes]:
        yield b"one"
        raise KeyError("the disk")

    with pytest.raises(KeyError):
        log.put_snapshot(1, "a", chunks())
    assert opened().snapshots() == []


def test_a_server_that_is_not_there_is_unreachable() -> None:
    pytest.importorskip("psycopg")
    from avmfs.store.sharedlog.postgres import PostgresLog

    log = PostgresLog("postgresql://avm@127.0.0.1:1/postgres")
    with pytest.raises(Unreachable, match="cannot be reached"):
        log.take()
    log.close()


def test_a_slow_link_has_a_large_record_in_time(request: pytest.FixtureRequest) -> None:
    """As many calls as it takes: the limit of one ends what does not answer."""
    pytest.importorskip("psycopg")
    from avmfs.store.sharedlog.postgres import PostgresLog

    server, name = request.getfixturevalue("postgres"), secrets.token_hex(8)
    near, link = PostgresLog(server.database(name)), Link(server.port)
    far = PostgresLog(server.over_tcp(link.port, name), call_s=5.0)
    large = secrets.token_bytes(5 << 20)
    near.create("c1")
    append(near, b"1", large, b"3")
    assert far.head() == 3
    link.delay_s = 0.1  # for each 64 KiB
    records = [*far.read(0, 9), *far.read(2, 9)]
    assert [each.number for each in records] == [1, 2, 3] and records[1].data == large
    assert far.take(1) == 3 and far.read(1, 9) == [], "nobody is to wait for who has the baton"
    far.give()
    assert [each.number for each in far.read(1, 9)] == [2]
    link.close()
    for log in (near, far):
        log.close()


def test_a_server_that_has_no_tables_yet_is_unreachable(request: pytest.FixtureRequest) -> None:
    """As while they are restored: nothing is missing then, for those who look names up."""
    pytest.importorskip("psycopg")
    from avmfs.store.sharedlog.postgres import PostgresLog

    log = PostgresLog(request.getfixturevalue("postgres").database(secrets.token_hex(8)))
    asks: list[Callable[[], object]] = [
        log.take,
        lambda: log.take(1),
        log.head,
        lambda: log.has(1, b"x"),
        lambda: log.append(record(1)),
        lambda: log.read(0, 1),
        lambda: log.keep(time.time()),
        lambda: log.report("a", 1, 17),
        log.hosts,
        log.snapshots,
    ]
    for ask in asks:
        with pytest.raises((Unreachable, InDoubt)):
            ask()
    with pytest.raises(NotFound):
        log.cluster()
    log.create("c1")
    append(log, b"1")
    log.close()


def test_while_somebody_reads_the_tables_for_long_what_is_cut_keeps_no_host_waiting(
    request: pytest.FixtureRequest,
) -> None:
    psycopg = pytest.importorskip("psycopg")
    from avmfs.store.sharedlog.postgres import HELD_S, PostgresLog

    address = request.getfixturevalue("postgres").database(secrets.token_hex(8))
    log, other = PostgresLog(address), PostgresLog(address)
    log.create("c1")
    append(log, b"1", b"2")
    log.put_snapshot(1, "a", [b"x"])
    failed: list[Exception] = []

    def cut() -> None:
        try:
            log.cut(1)
        except Exception as e:
            failed.append(e)

    with psycopg.connect(address) as dump:
        dump.execute("select count(*) from avm_record")
        cutting = threading.Thread(target=cut)
        cutting.start()
        while cutting.is_alive():
            assert other.take(2) == 2 and not other.has(2, b"x")
            other.give()
            time.sleep(0.01)
        assert isinstance(failed[0], Busy) and [each.number for each in other.read(0, 9)] == [2]
    log.cut(1)
    with log._asking() as db:
        row = db.execute("select setting::int from pg_settings where name = 'lock_timeout'").fetchone()
    assert row is not None and row[0] > HELD_S * 1000
    for each in (log, other):
        each.close()


def test_a_call_after_one_that_found_no_thread_to_limit_it_is_limited() -> None:
    pytest.importorskip("psycopg")
    from avmfs.store.sharedlog.postgres import _Watch

    watch, (near, far) = _Watch(), socket.socketpair()
    db: Any = near
    near.settimeout(300)
    with near, far:
        with (
            patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")),
            pytest.raises(RuntimeError),
            watch.limit(db, 0.0),
        ):
            pass
        with watch.limit(db, 0.0):
            assert near.recv(1) == b"", "nobody answers, and it ends"
    watch.close()


def test_who_holds_the_baton_and_says_nothing_loses_it(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psycopg")
    from avmfs.store.sharedlog import postgres

    monkeypatch.setattr(postgres, "HELD_S", 0.5)
    address = request.getfixturevalue("postgres").database(secrets.token_hex(8))
    silent, other = postgres.PostgresLog(address), postgres.PostgresLog(address)
    silent.create("c1")
    silent.take()
    assert other.take() == 0
    other.append(record(1))
    with pytest.raises((Unreachable, InDoubt)):
        silent.append(record(1))
    assert silent.take() == 1
    for log in (silent, other):
        log.close()


def test_a_server_looks_whether_a_host_that_says_nothing_is_there(request: pytest.FixtureRequest) -> None:
    """Else the session of one that lost its power keeps its locks for two hours."""
    pytest.importorskip("psycopg")
    from avmfs.store.sharedlog.postgres import PostgresLog

    server, name = request.getfixturevalue("postgres"), secrets.token_hex(8)
    server.database(name)
    log = PostgresLog(server.over_tcp(server.port, name))
    log.create("c1")
    with log._asking() as db:
        row = db.execute(
            "select current_setting('tcp_keepalives_idle')::int + current_setting('tcp_keepalives_count')::int"
            " * current_setting('tcp_keepalives_interval')::int"
        ).fetchone()
    log.close()
    assert row is not None and 0 < row[0] <= 30


def test_each_schema_that_an_address_chooses_has_a_log_of_its_own(request: pytest.FixtureRequest) -> None:
    psycopg = pytest.importorskip("psycopg")
    from avmfs.store.sharedlog.postgres import PostgresLog

    server, name = request.getfixturevalue("postgres"), secrets.token_hex(8)
    address = server.database(name)
    with psycopg.connect(address, autocommit=True) as db:
        db.execute("create schema team_a; create schema team_b")
    logs = [PostgresLog(f"{address}&options=-csearch_path%3Dteam_{team}") for team in "ab"]
    for log, cluster in zip(logs, ("c1", "c2"), strict=True):
        with pytest.raises(NotFound):
            log.cluster()
        log.create(cluster)
        append(log, cluster.encode())
    assert [log.cluster() for log in logs] == ["c1", "c2"]
    assert [[each.data for each in log.read(0, 9)] for log in logs] == [[b"c1"], [b"c2"]]
    for log in logs:
        log.close()


def test_a_host_whose_role_was_revoked_is_out(request: pytest.FixtureRequest) -> None:
    """With the rights that docs/SCALING.md gives, and from the next call on after they were taken away."""
    psycopg = pytest.importorskip("psycopg")
    from avmfs.store.sharedlog.postgres import PostgresLog

    role, name = f"build_{secrets.token_hex(4)}", secrets.token_hex(8)
    server = request.getfixturevalue("postgres")
    owner, host = PostgresLog(server.database(name)), PostgresLog(server.address(name).replace("avm@", f"{role}@"))
    owner.create("c1")
    owner.put_snapshot(0, "a", [b"x"])
    text = Path(__file__).parents[2].joinpath("docs/SCALING.md").read_text("utf-8")
    given = text.split("create role build_7", 1)[1].split("```", 1)[0].replace("build_7", role)
    with psycopg.connect(server.address(name), autocommit=True) as db:
        db.execute(f"create role {role} {given}")
        append(host, b"1")
        host.report("b", 1, 17)
        host.put_snapshot(1, "b", [b"y"])
        host.cut(1)
        db.execute(f"drop owned by {role}; drop role {role}")
    for asked in (lambda: append(host, b"2"), lambda: host.read(0, 9), lambda: host.head(), lambda: host.wait(0, 0.1)):
        with pytest.raises(Unreachable):
            asked()
    append(owner, b"2")
    assert [each.data for each in owner.read(0, 9)] == [b"2"]
    for log in (owner, host):
        log.close()
