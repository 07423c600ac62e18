"""The writer process: exactly once, all at once, whoever dies, floods, lies or hangs.

A real process on real files, killed with SIGKILL; the listening socket stays with the test, as it does with the
supervisor.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import socket
import statistics
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from avmfs_daemon import housekeeping

from avmfs import wire
from avmfs.access import Policy, Principal
from avmfs.errors import AvmError, Busy, Denied, Exists, Invalid, NoSpace, NotFound
from avmfs.store.backup import cluster
from avmfs.store.identity import ANYBODY, OPERATOR, proof
from avmfs.store.schema import database
from avmfs.store.schema.tables import MEMORY, SHARED
from avmfs.store.store import open_direct
from avmfs.store.writer.connections import REQUEST_LIMIT
from tests.contract.store_world import ALICE, BOB, RULES, WriterProcess, faults, rows
from tests.small_disks import small_disk

_BYTES = "select data from node join body on body.id = node.body where node.id = ?"

Start = Callable[..., WriterProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[WriterProcess] = []

    def launch(where: Path = tmp_path, **more: Any) -> WriterProcess:
        made.append(WriterProcess(where / "avm.db", tmp_path / "clock", socket_path=tmp_path / "w.sock", **more))
        return made[-1]

    yield launch
    for writer in made:
        writer.close()
        if writer.database.exists():
            assert faults(writer.database, Policy()) == []


@pytest.fixture
def writer(start: Start) -> WriterProcess:
    return start()


_OPEN: list[socket.socket] = []


@pytest.fixture(autouse=True)
def sockets_closed() -> Iterator[None]:
    yield
    while _OPEN:
        _OPEN.pop().close()


def connected(writer: WriterProcess) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    _OPEN.append(sock)
    sock.settimeout(300)
    deadline = time.monotonic() + 300
    while True:
        try:
            sock.connect(os.fspath(writer.address))
            return sock
        except BlockingIOError:  # the backlog is full for a moment
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


class Peer:
    """A client by hand, for what the real one would never do."""

    def __init__(
        self,
        writer: WriterProcess,
        agent: str = ANYBODY,
        client: bytes | None = None,
        said: dict[str, Any] | None = None,
    ) -> None:
        self.writer = writer
        self.sock = connected(writer)
        self.client = client or os.urandom(16)
        hello = {"v": wire.PROTOCOL, "client": self.client, "agent": agent, "proof": proof(writer.key, agent)}
        wire.send(self.sock, {**hello, **(said or {})})

    def send(self, number: Any, command: Any, arguments: Any, agent: Any = "alice", operator: Any = False) -> None:
        wire.send(self.sock, [number, agent, operator, command, arguments])

    def ask(
        self, number: int, command: str, agent: Any = "alice", operator: Any = False, **arguments: Any
    ) -> list[Any]:
        self.send(number, command, arguments, agent, operator)
        return list(wire.receive(self.sock))

    def hung_up(self) -> bool:
        try:
            return self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self.sock.close()


def create(name: bytes, exclusive: bool = True) -> dict[str, Any]:
    return {"parent": MEMORY, "name": name, "mode": 0o644, "exclusive": exclusive}


def serves_others(writer: WriterProcess) -> None:
    """The same process still answers somebody new."""
    assert writer.alive(), writer.log()
    before = writer.process and writer.process.pid
    peer = Peer(writer)
    assert peer.ask(1, "mark_read")[1] is None
    peer.close()
    assert writer.process is not None and writer.process.pid == before and writer.alive()


def stopped(writer: WriterProcess) -> None:
    assert writer.process is not None
    writer.process.send_signal(signal.SIGSTOP)


def continued(writer: WriterProcess) -> None:
    assert writer.process is not None
    writer.process.send_signal(signal.SIGCONT)


# Exactly once --------------------------------------------------------------------------------------------------


def test_a_resent_request_gets_the_first_reply(writer: WriterProcess) -> None:
    peer = Peer(writer)
    first = peer.ask(1, "create", **create(b"f"))
    assert first[1] is None
    assert peer.ask(1, "create", **create(b"f")) == first, "not Exists for its own success"
    again = Peer(writer, client=peer.client)
    assert again.ask(1, "create", **create(b"f")) == first
    refused = again.ask(2, "create", **create(b"f"))
    assert refused[2] is None and refused[1][0] == Exists.code
    assert again.ask(2, "create", **create(b"g"))[1] is None, "a refusal may be decided again"
    node = first[2]["node"]
    appended = again.ask(3, "append", node=node, handle=None, data=b"once")
    writer.kill()
    writer.start()
    resent = Peer(writer, client=peer.client)
    assert resent.ask(3, "append", node=node, handle=None, data=b"once") == appended
    assert rows(writer.database, _BYTES, node) == [(b"once",)]


def test_another_agents_client_number_fetches_and_burns_nothing(writer: WriterProcess) -> None:
    alice = Peer(writer, "alice")
    assert alice.ask(1, "enroll", agent=None)[1] is None
    made = alice.ask(2, "create", agent=None, **create(b"f"))
    bob = Peer(writer, "bob", client=alice.client)
    assert bob.ask(2, "mark_read", agent=None)[2] == {"count": 0}
    assert alice.ask(2, "create", agent=None, **create(b"f")) == made


def test_a_request_that_was_overtaken_is_not_applied_late(writer: WriterProcess) -> None:
    peer = Peer(writer)
    node = peer.ask(1, "create", **create(b"f"))[2]["node"]
    stopped(writer)
    peer.send(2, "write_path", {"path": [b"memory", b"f"], "data": b"old"})
    anew = Peer(writer, client=peer.client)  # the client gave the first connection up
    continued(writer)
    time.sleep(0.1)
    assert anew.ask(4, "write_path", path=[b"memory", b"f"], data=b"new")[1] is None
    late = Peer(writer, client=peer.client)
    assert late.ask(3, "write_path", path=[b"memory", b"f"], data=b"late")[1][0] == Busy.code
    assert rows(writer.database, _BYTES, node) == [(b"new",)]


def test_the_record_of_a_reply_and_its_change_are_one(writer: WriterProcess) -> None:
    peer = Peer(writer)
    assert peer.ask(1, "mark_read")[1] is None
    db = database.connect(writer.database, writable=True)
    db.execute("create trigger full before insert on applied begin select raise(abort, 'no'); end")
    try:
        assert peer.ask(2, "create", **create(b"f"))[1] is not None
        assert rows(writer.database, "select * from node where name = ?", b"f") == []
    finally:
        db.execute("drop trigger full")
        db.close()
    assert peer.ask(2, "create", **create(b"f"))[1] is None


def test_nothing_acknowledged_is_lost_and_nothing_applied_twice_over_kills(writer: WriterProcess) -> None:
    """Threads append numbered records and create exclusively while the writer is killed at random moments."""
    stores = [writer.attach("*") for _ in range(3)]  # three clients, two threads each
    made = stores[0].submit(ALICE, "create", **create(b"log"))["node"]
    acknowledged: list[list[bytes]] = [[] for _ in range(6)]
    created: list[list[bytes]] = [[] for _ in range(6)]
    wrong: list[str] = []
    over = threading.Event()

    def work(number: int) -> None:
        store, step = stores[number % 3], 0
        while not over.is_set():
            step += 1
            record = b"%d:%d\n" % (number, step)
            try:
                store.submit(ALICE, "append", node=made, handle=None, data=record)
                acknowledged[number].append(record)
                name = b"x-%d-%d" % (number, step)
                if store.submit(ALICE, "create", **create(name))["new"] is not True:
                    wrong.append(f"{name!r} was not new")
                created[number].append(name)
            except AvmError as e:
                wrong.append(f"{number}, {step}: {e!r}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    random_ = random.Random(11)
    for _ in range(10):
        time.sleep(random_.uniform(0.05, 0.5))
        writer.kill()
        time.sleep(random_.choice([0, 0, 0.1]))
        writer.start()
    time.sleep(0.3)
    over.set()
    for thread in threads:
        thread.join(300)
    for store in stores:
        store.close()
    assert wrong == []
    with writer.attach("*").reading(ALICE) as reader:
        written = reader.read(made, 0, 1 << 30).splitlines(keepends=True)
        names = {node.name for node in reader.children(MEMORY)}
    counted = Counter(written)
    assert [record for record, times in counted.items() if times != 1] == []
    assert set(written) == {record for each in acknowledged for record in each}, "every thread ended with an answer"
    for number in range(6):
        mine = [record for record in written if record.startswith(b"%d:" % number)]
        assert mine == acknowledged[number], "in the order in which it was asked"
        assert set(created[number]) <= names
    assert len(written) >= 6, "how many there are is a matter of the machine, but each thread has had its turn"
    versions = rows(writer.database, "select max(number) from version")[0][0]  # the oldest of many are not kept
    assert versions == len(written)


# Group commit --------------------------------------------------------------------------------------------------


def test_requests_that_wait_together_are_committed_together(writer: WriterProcess) -> None:
    peers = [Peer(writer) for _ in range(40)]
    for peer in peers:
        assert peer.ask(1, "mark_read")[1] is None
    seen: list[int] = []
    store = writer.attach("*")
    with store.watch(seen.append):
        time.sleep(0.3)
        before = len(seen)
        stopped(writer)
        for number, peer in enumerate(peers):
            peer.send(2, "create", create(b"n%d" % number))
        continued(writer)
        assert all(wire.receive(peer.sock)[1] is None for peer in peers)
        time.sleep(0.3)
    assert len(seen) - before <= 8, "one notice for each commit that changed something: far fewer than requests"
    assert len(rows(writer.database, "select * from node where cast(name as text) glob 'n*'")) == 40
    store.close()


def test_no_reply_leaves_before_its_commit(writer: WriterProcess) -> None:
    """While another connection holds the write lock, nobody is answered; then all are, and it is durable."""
    peers = [Peer(writer) for _ in range(5)]
    for peer in peers:
        assert peer.ask(1, "mark_read")[1] is None
    db = database.connect(writer.database, writable=True)
    db.execute("begin immediate")
    try:
        for number, peer in enumerate(peers):
            peer.send(2, "create", create(b"n%d" % number))
            peer.sock.settimeout(0.15)
            with pytest.raises(TimeoutError):
                wire.receive(peer.sock)
    finally:
        db.execute("rollback")
        db.close()
    for peer in peers:
        peer.sock.settimeout(300)
        assert wire.receive(peer.sock)[1] is None
    writer.kill()
    assert len(rows(writer.database, "select * from node where cast(name as text) glob 'n*'")) == 5


def test_one_failing_request_does_not_harm_the_others(writer: WriterProcess) -> None:
    peers = [Peer(writer) for _ in range(30)]
    for peer in peers:
        assert peer.ask(1, "mark_read")[1] is None
    stopped(writer)
    for number, peer in enumerate(peers):
        match number % 5:
            case 0:
                peer.send(2, "create", create(b"bad:meta"))
            case 1:
                peer.send(2, "no_such_command", {})
            case 2:
                peer.send(
                    2, "write_many", {"items": [[[b"memory", b"half"], b"x"], [[b"memory", b"private", b"x"], b"x"]]}
                )
            case _:
                peer.send(2, "create", create(b"n%d" % number))
    continued(writer)
    refused = [wire.receive(peer.sock)[1] is not None for peer in peers]
    assert refused == [number % 5 < 3 for number in range(30)]
    assert rows(writer.database, "select * from node where name = ?", b"half") == []
    assert len(rows(writer.database, "select * from node where cast(name as text) glob 'n*'")) == 12


# Hostile peers -------------------------------------------------------------------------------------------------


def test_a_connection_speaks_for_one_agent(writer: WriterProcess) -> None:
    alice = Peer(writer, "alice")
    assert alice.ask(1, "enroll", agent=None)[1] is None
    for agent, operator in (("bob", False), ("alice", True), (None, True), ("avmfs", True), (["alice"], False)):
        reply = alice.ask(2, "create", agent, operator, **create(b"f"))
        assert reply[1] is not None and reply[1][0] == Denied.code, (agent, operator)
    assert alice.ask(2, "create", None, False, **create(b"f"))[1] is None
    assert rows(writer.database, "select agent from log where op = 'create'") == [("alice",)]
    nameless = Peer(writer)
    assert nameless.ask(1, "mark_read", agent=None)[1] is not None
    serves_others(writer)


@pytest.mark.parametrize(
    "greeting",
    [
        {"proof": b"x" * 32},
        {"proof": None},
        {"proof": "text"},
        {"agent": "bob"},
        {"agent": None},
        {"agent": 7},
        {"v": 99},
        {"client": b"short"},
        {"client": None},
        {"client": 5},
        {"proof": b"x", "watch": True},
    ],
)
def test_who_cannot_show_whom_it_speaks_for_is_dropped(writer: WriterProcess, greeting: dict[str, Any]) -> None:
    peer = Peer(writer, "alice", said=greeting)
    peer.sock.settimeout(300)
    assert peer.hung_up()
    serves_others(writer)


LIES = {
    "a frame too large": struct.pack(">I", REQUEST_LIMIT + 1) + b"x",
    "the largest length": b"\xff\xff\xff\xff",
    "noise": os.urandom(5000),
    "pickle": pickle.dumps({"v": 1, "agent": "alice"}),
    "a framed pickle": struct.pack(">I", 40) + pickle.dumps({"v": 1, "agent": "alice"}).ljust(40, b"\0"),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "an empty frame": struct.pack(">I", 0),
    "many bad greetings at once": wire.frame({"v": 1}) * 50,
    "numbers": wire.frame(5) * 3,
    "lists": wire.frame([1, None, False, "mark_read", {}]) * 3,
    "deep": struct.pack(">I", 100_000) + b"\x91" * 100_000,
}


@pytest.mark.parametrize("what", LIES)
@pytest.mark.parametrize("greeted", [False, True], ids=["stranger", "greeted"])
def test_garbage_costs_the_peer_its_connection_and_nobody_else(writer: WriterProcess, what: str, greeted: bool) -> None:
    if greeted:
        sock = Peer(writer).sock
    else:
        sock = connected(writer)
    sock.settimeout(300)
    try:
        sock.sendall(LIES[what])
        if not (what in ("lists", "noise") and greeted):  # noise may begin as a long frame; one list is a request
            sock.shutdown(socket.SHUT_WR)
    except (BrokenPipeError, ConnectionResetError, OSError):
        pass
    serves_others(writer)
    sock.close()
    serves_others(writer)


@pytest.mark.parametrize(
    "item",
    [
        [1],
        [1, None, False, "mark_read", {}, 6],
        [1, None, False, "mark_read", {}, "", 7],
        {"a": 1},
        None,
        ["1", None, False, "mark_read", {}],
        [None, "alice", False, "mark_read", {}],
        [1.5, "alice", False, "mark_read", {}],
    ],
)
def test_a_malformed_request_costs_the_connection(writer: WriterProcess, item: Any) -> None:
    peer = Peer(writer)
    wire.send(peer.sock, item)
    assert peer.hung_up()
    serves_others(writer)


def test_malformed_commands_are_refused(writer: WriterProcess) -> None:
    peer = Peer(writer)
    cases: list[tuple[Any, Any]] = [
        (5, {}),
        ("mkdir", []),
        (None, None),
        ("mkdir", {5: 5}),
        ("__init__", {}),
        ("mkdir", {"tx": 1}),
        ([], {}),
        ({}, []),
    ]
    for number, (command, arguments) in enumerate(cases):
        # Something that has still to reach the disk: do they wait for it?
        assert peer.ask(2 * number + 1, "create", **create(b"f%d" % number))[1] is None
        peer.send(2 * number + 2, command, arguments)
        error = wire.receive(peer.sock)[1]
        assert error is not None and error[0] == Invalid.code, (command, arguments, error)
    assert peer.ask(2**62, "mark_read")[1] is None
    serves_others(writer)


def test_pipelined_requests_and_a_vanished_peer_do_no_harm(writer: WriterProcess) -> None:
    for count in (2, 600):
        peer = Peer(writer)
        request = [wire.frame([n, "alice", False, "mark_read", {}]) for n in range(1, count + 1)]
        try:
            peer.sock.sendall(b"".join(request))
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
        peer.close()
        serves_others(writer)
    for _ in range(300):  # gone between the question and its answer
        peer = Peer(writer)
        peer.send(1, "mark_read", {})
        peer.close()
    serves_others(writer)


def test_what_a_vanished_client_had_asked_is_applied_and_kept_for_it(writer: WriterProcess) -> None:
    serves_others(writer)
    peer = Peer(writer)
    peer.send(1, "create", create(b"f"))
    peer.close()
    deadline = time.monotonic() + 300
    while not rows(writer.database, "select 1 from node where name = ?", b"f") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert Peer(writer, client=peer.client).ask(1, "create", **create(b"f"))[1] is None


def test_a_peer_that_never_reads_its_replies_is_not_waited_for(writer: WriterProcess) -> None:
    hog = Peer(writer)
    items = [[[b"memory", b"many", b"%d" % n], b""] for n in range(4000)]
    hog.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    hog.send(1, "write_many", {"items": items})  # its reply is some 500 KB
    serves_others(writer)
    for number in range(2, 50):
        try:
            hog.sock.settimeout(1)
            hog.send(number, "mark_read", {})
        except OSError:
            break
    serves_others(writer)
    hog.close()
    serves_others(writer)


def test_half_a_frame_and_silence_hold_nobody_up(writer: WriterProcess) -> None:
    for data in (b"", b"\0", struct.pack(">I", 1000) + b"x", struct.pack(">I", REQUEST_LIMIT) + bytes(1000)):
        for greeted in (True, False):
            sock = Peer(writer).sock if greeted else connected(writer)
            sock.sendall(data)
    serves_others(writer)


def test_a_flood_of_connections_does_not_end_it(start: Start) -> None:
    writer = start(connections=48)
    friend = Peer(writer)
    assert friend.ask(1, "mark_read")[1] is None
    flood = [connected(writer) for _ in range(100)]
    assert friend.ask(2, "create", **create(b"f"))[1] is None
    serves_others(writer)
    for sock in flood:
        sock.close()
    assert friend.ask(3, "create", **create(b"g"))[1] is None


# Watching, the disk, the WAL -----------------------------------------------------------------------------------


def until(true: Callable[[], object], seconds: float = 300) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_watchers_are_told_of_commits_also_after_a_restart(writer: WriterProcess) -> None:
    told: list[int] = []
    store = writer.attach("*")
    with store.watch(told.append):
        for round_ in range(3):
            store.submit(ALICE, "create", **create(b"f%d" % round_))
            newest = rows(writer.database, "select max(seq) from log")[0][0]
            assert until(lambda newest=newest: newest in told), round_
            writer.kill()
            writer.start()
    assert told == sorted(told)
    count = len(told)
    store.submit(ALICE, "create", **create(b"after"))
    time.sleep(0.2)
    assert len(told) == count, "nobody watches any more"
    store.close()


def test_watchers_are_told_once_of_a_commit_that_leaves_nothing_to_index(writer: WriterProcess) -> None:
    told: list[int] = []
    store = writer.attach("*")
    with store.watch(told.append):
        for number in range(5):
            store.submit(ALICE, "mkdir", parent=MEMORY, name=b"d%d" % number, mode=0o755)
            newest = rows(writer.database, "select max(seq) from log")[0][0]
            assert until(lambda newest=newest: newest in told)
        time.sleep(0.3)
        counted = Counter(told[1:])  # but for where the watch began
        assert max(counted.values()) == 1, told
    store.close()


def test_a_burst_of_commits_wakes_who_keeps_house_once(writer: WriterProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words, vectors and deliveries of what is written wait for the end of a turn, whose length is no matter here."""
    monkeypatch.setattr(housekeeping, "SETTLE_S", 3600.0)
    monkeypatch.setattr(housekeeping, "IDLE_S", 3600.0)
    store, each, woken, steps = writer.attach("*"), list[int](), list[str](), list[str]()
    keeper = housekeeping.Housekeeper(store, None, also=[lambda: steps.append("step")])
    with store.watch(each.append), keeper.watching(lambda: woken.append("outbox")):
        assert until(lambda: each and woken), "each is told when its watch begins"
        thread = threading.Thread(target=keeper.run)  # there are tables by then
        thread.start()
        assert until(lambda: steps)
        for number in range(200):
            store.submit(ALICE, "mkdir", parent=MEMORY, name=b"d%d" % number, mode=0o755)
        newest = rows(writer.database, "select max(seq) from log")[0][0]
        assert until(lambda: newest in each)
        keeper.stop()
        thread.join(300)
    assert woken == ["outbox"] and 1 <= len(steps) <= 2
    store.close()


def test_who_wants_to_be_told_seldom_is_told_of_the_last_commit_too(writer: WriterProcess) -> None:
    told, store = list[int](), writer.attach("*")
    with store.watch(told.append, every_s=0.2):
        for number in range(50):
            store.submit(ALICE, "mkdir", parent=MEMORY, name=b"d%d" % number, mode=0o755)
        newest = rows(writer.database, "select max(seq) from log")[0][0]
        assert until(lambda: newest in told)
    store.close()


def test_who_watches_for_mail_is_told_of_nothing_else(writer: WriterProcess) -> None:
    told: list[int] = []
    store = writer.attach("*")
    with store.watch(told.append, mail=True):
        assert until(lambda: told)  # when the watch begins
        for who in (ALICE, BOB):
            store.submit(who, "enroll")
        store.submit(ALICE, "write_path", path=[b"memory", b"f"], data=b"x")
        time.sleep(0.2)
        count = len(told)
        assert count == 1
        limits = {"priority": "low", "expires": None, "body_limit": 9, "unread_limit": 9}
        store.submit(ALICE, "tell", recipient="bob", body="x", **limits)
        assert until(lambda: len(told) > count)
        count = len(told)
        store.submit(BOB, "mark_read")
        writer.kill()
        writer.start()
        assert until(lambda: len(told) > count)  # it may have missed one
        store.submit(ALICE, "tell", recipient="bob", body="x", **limits)
        assert until(lambda: len(told) > count + 1)
    store.close()


def test_all_who_wait_for_mail_in_one_process_share_a_connection(writer: WriterProcess) -> None:
    """Else some hundred readers of one mount's :inbox?wait= would leave none for the other agents' commits."""
    store = writer.attach("*")
    for who in (ALICE, BOB):
        store.submit(who, "enroll")

    def connections() -> int:
        # Sockets alone: the writer opens and closes files by itself.
        assert writer.process is not None
        count, place = 0, f"/proc/{writer.process.pid}/fd"
        for number in os.listdir(place):
            with contextlib.suppress(FileNotFoundError):
                count += os.readlink(f"{place}/{number}").startswith("socket:")
        return count

    before = connections()
    told: list[list[int]] = [[] for _ in range(50)]
    with contextlib.ExitStack() as stack:
        for each in told:
            stack.enter_context(store.watch(each.append, mail=True))
        assert until(lambda: all(told)), "each is told when its watch begins"
        assert connections() == before + 1
        counts = [len(each) for each in told]
        limits = {"priority": "low", "expires": None, "body_limit": 9, "unread_limit": 9}
        store.submit(ALICE, "tell", recipient="bob", body="x", **limits)
        assert until(lambda: all(len(each) > count for each, count in zip(told, counts, strict=True)))
    assert until(lambda: connections() == before)
    store.close()


def test_who_finds_no_thread_to_wait_for_mail_keeps_no_other_from_it(writer: WriterProcess) -> None:
    told, store = list[int](), writer.attach("*")
    with (
        patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")),
        pytest.raises(RuntimeError),
        store.watch(told.append, mail=True),
    ):
        pass
    with store.watch(told.append, mail=True):
        assert until(lambda: len(told) == 1), "each is told when its watch begins"
    store.close()


def test_a_watcher_that_does_not_read_is_told_later(writer: WriterProcess) -> None:
    lazy = Peer(writer, said={"watch": True})
    peer = Peer(writer)
    for number in range(1, 400):
        assert peer.ask(number, "create", **create(b"n%d" % number))[1] is None
    newest, last = rows(writer.database, "select max(seq) from log")[0][0], 0
    while last != newest:
        (last,) = wire.receive(lazy.sock)
    serves_others(writer)


def wal(writer: WriterProcess) -> int:
    return writer.database.with_name(writer.database.name + "-wal").stat().st_size


def test_the_wal_stays_bounded(writer: WriterProcess) -> None:
    stores = [writer.attach("*") for _ in range(4)]
    most = [0]

    def write(number: int) -> None:
        random_ = random.Random(number)
        for step in range(750):
            name = b"%d-%d" % (number, step % 100)
            stores[number].submit(ALICE, "write_path", path=[b"memory", name], data=random_.randbytes(3000))
            if step % 20 == 0:
                most[0] = max(most[0], wal(writer))
                with stores[number].reading(ALICE) as reader:
                    reader.child(MEMORY, name)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert rows(writer.database, "select count(*) from version") == [(3000,)]
    assert most[0] < 64 << 20
    for store in stores:
        store.close()


def test_a_long_reader_holds_no_writer_up(writer: WriterProcess) -> None:
    store = writer.attach("*")
    data = random.Random(1).randbytes(40_000)
    store.submit(ALICE, "write_path", path=[b"memory", b"first"], data=b"x")

    def small(count: int) -> float:
        """Seconds that one takes."""
        took = []
        for number in range(count):
            before = time.monotonic()
            store.submit(ALICE, "write_path", path=[b"memory", b"g%d" % (number % 10)], data=b"small")
            took.append(time.monotonic() - before)
        return statistics.median(took)

    usual = small(100)
    with store.reading(BOB) as reader:
        names = [node.name for node in reader.children(MEMORY)]
        for number in range(900):  # beyond where the WAL is to be restarted, which cannot be done now
            store.submit(ALICE, "write_path", path=[b"memory", b"f%d" % (number % 10)], data=data)
        assert wal(writer) > 8000 * 4096, "the case that was meant"
        took = small(300)
        assert [node.name for node in reader.children(MEMORY)] == names, "its own snapshot"
    usual = max(usual, small(100))  # others may have begun to use the machine meanwhile
    assert took < 0.1 + 10 * usual, (took, usual)
    grown = wal(writer)
    for number in range(30):
        store.submit(ALICE, "write_path", path=[b"memory", b"h%d" % number], data=data)
        time.sleep(0.05)
    assert wal(writer) <= grown + (2 << 20), "the log is used anew once the reader is gone"
    store.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Of 8 MB. Needs root."""
    with small_disk(tmp_path / "disk", "8m") as where:
        yield where


def test_a_full_disk_is_told_and_survived(disk: Path, start: Start) -> None:
    writer = start(disk)
    store = writer.attach("*", patience_s=200)
    store.submit(ALICE, "enroll")
    store.submit(ALICE, "write_path", path=[b"memory", b"keep"], data=b"kept")
    (disk / "ballast").write_bytes(bytes(2 << 20))
    random_, written = random.Random(3), 0
    with pytest.raises(NoSpace):
        for number in range(1000):
            store.submit(ALICE, "write_path", path=[b"memory", b"f%d" % number], data=random_.randbytes(30_000))
            written += 1
    refused = 0
    for number in range(20):  # small ones may still fit; then they too are refused
        try:
            store.submit(ALICE, "write_path", path=[b"memory", b"small%d" % number], data=b"small")
            written += 1
        except NoSpace:
            refused += 1
    assert refused
    for number in range(20):  # the mount of a new agent can start: it is where files are removed
        store.submit(Principal(f"late{number}"), "enroll")
    with store.reading(ALICE) as reader:
        keep = reader.child(MEMORY, b"keep")
        assert keep is not None and reader.read(keep.id, 0, 9) == b"kept"
        assert len(reader.children(MEMORY)) == written + 3
    assert writer.alive()
    process = writer.process
    (disk / "ballast").unlink()
    for number in range(20):
        store.submit(Principal(f"late{number}"), "enroll")
    for number in range(5):
        store.submit(ALICE, "write_path", path=[b"memory", b"after%d" % number], data=b"works again")
    assert writer.process is process and writer.alive()
    for number in range(20):
        with store.reading(Principal(f"late{number}")) as reader:
            assert [node.name for node in reader.children(4)] == [b"late%d" % number]
    store.close()
    writer.close()
    assert database.integrity(writer.database) == [] and faults(writer.database, Policy()) == []


# The client ----------------------------------------------------------------------------------------------------


def test_a_client_waits_for_a_writer_that_is_being_replaced(writer: WriterProcess) -> None:
    store = writer.attach("*")
    store.submit(ALICE, "enroll")
    writer.kill()
    threading.Timer(0.7, writer.start).start()
    assert store.submit(ALICE, "create", **create(b"f"))["new"] is True
    store.close()


def test_a_client_gives_up_after_its_patience(writer: WriterProcess) -> None:
    patient = writer.attach("*")
    patient.submit(ALICE, "enroll")  # it is up
    store = writer.attach("*", patience_s=0.5)
    writer.kill()
    with pytest.raises(Busy):
        store.submit(ALICE, "create", **create(b"f"))
    writer.start()
    patient.submit(ALICE, "enroll")
    patient.close()
    assert store.submit(ALICE, "create", **create(b"g"))["new"] is True
    store.close()


def test_errors_arrive_as_what_they_were(writer: WriterProcess) -> None:
    store = writer.attach("*")
    with pytest.raises(NotFound) as found:
        store.submit(ALICE, "unlink", parent=MEMORY, name=b"none")
    assert found.value.filename == "none" and isinstance(found.value, FileNotFoundError)
    with pytest.raises(Denied):
        store.submit(ALICE, "settle")
    assert store.submit(OPERATOR, "settle") == {"rescoped": False}
    assert store.submit(ALICE, "set_attributes", node=SHARED) == {}
    store.close()


def test_kept_replies_of_silent_clients_are_dropped(writer: WriterProcess) -> None:
    stores = [writer.attach("*") for _ in range(5)]
    for store in stores:
        store.submit(ALICE, "mark_read")
    assert rows(writer.database, "select count(*) from applied") == [(5,)]
    stores[0].submit(OPERATOR, "forget_clients", before=0)
    assert rows(writer.database, "select count(*) from applied") == [(5,)]
    stores[0].submit(OPERATOR, "forget_clients", before=time.time_ns() + 10**9)
    assert rows(writer.database, "select count(*) from applied") == [(1,)], "its own reply is recorded after it"
    for store in stores:
        store.submit(ALICE, "mark_read")
        store.close()


def test_it_stops_in_order(writer: WriterProcess) -> None:
    store = writer.attach("*")
    store.submit(ALICE, "create", **create(b"f"))
    assert writer.stop() == 0
    assert "Traceback" not in writer.log()
    store.close()


def test_a_host_that_waits_for_its_turn_takes_all_along_who_came_meanwhile(
    start: Start, tmp_path: Path, postgres: Any
) -> None:
    from avmfs.store.sharedlog.postgres import PostgresLog

    address = postgres.database(os.urandom(8).hex())
    open_direct(tmp_path / "avm.db", Policy(), RULES).close()
    with contextlib.closing(PostgresLog(address)) as log:
        cluster.init(tmp_path / "avm.db", log, tmp_path.name)
        peers = [Peer(writer, client=os.urandom(16)) for writer in [start(log=address)] * 6]
        for peer in peers:
            assert peer.ask(1, "write_path", path=[b"memory", b"first"], data=b"x")[1] is None
        newest = log.take()
        for number, peer in enumerate(peers):
            peer.send(2, "write_path", {"path": [b"memory", b"%d" % number], "data": b"x"})
            time.sleep(0.0 if number else 0.5)  # the writer has begun with the first one, and waits
        log.give()
        assert [wire.receive(peer.sock)[1] for peer in peers] == [None] * 6
        assert log.head() < newest + len(peers)  # on a busy machine some come too late for the first turn
