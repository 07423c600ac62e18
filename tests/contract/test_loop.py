"""The writer's loop, step by step: what comes before what, who is told, and what a failure leaves."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from avmfs import wire
from avmfs.access import Policy, Principal
from avmfs.errors import AvmError, Busy, Invalid, NoSpace, Stale, StoreFailed
from avmfs.store import commands
from avmfs.store.files.displaced import Displaced
from avmfs.store.identity import ANYBODY, OPERATOR
from avmfs.store.rows.log_ops import Event
from avmfs.store.schema import database
from avmfs.store.schema.tables import MEMORY
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer import loop, rewriting
from avmfs.store.writer.applier import Applier
from avmfs.store.writer.connections import Peer
from avmfs.store.writer.disk_reserve import DiskReserve
from avmfs.store.writer.loop import BEHIND_STEP, DRAIN_STEP, IDLE_BEFORE_DRAIN_S, REWRITES, SYNC_AT_LEAST_S, Writer
from avmfs.store.writer.request import parse
from avmfs.store.writer.split_commit import PART
from avmfs.store.writer.wal_sync import WalSync

FAILED = OSError(5, "Input/output error")
LIMIT_S = 200.0
TICK_S = 0.25  # what anything takes


class Asker:
    """A connection that was greeted."""

    def __init__(self, steps: Steps, client: bytes, origin: bytes) -> None:
        self._steps = steps
        self._other, mine = socket.socketpair()
        mine.setblocking(False)
        self._other.settimeout(LIMIT_S)
        self.peer = Peer(mine, client=client * 16, agent=ANYBODY, origin=origin)
        self.number = 0

    def asks(self, command: Any, number: int = 0, agent: str = "alice", **arguments: Any) -> Asker:
        self.number = number or self.number + 1
        request = parse([self.number, agent, agent == "root", command, arguments])
        assert request is not None
        self.peer.waiting = True
        self._steps.writer._scheduler.add(self.peer, request)
        return self

    def told(self) -> Any:
        """The result, or why not; "" while there is no reply."""
        if self.peer.waiting:
            return ""
        number, refusal, result = wire.receive(self._other)
        assert number == self.number
        return result if refusal is None else (refusal[0], refusal[1])

    def does(self, command: Any, **more: Any) -> Any:
        self.asks(command, **more)
        self._steps.step()
        return self.told()

    def close(self) -> None:
        self._other.close()
        self.peer.sock.close()


class Steps:
    """A writer that makes a step when the test says so, and stands still otherwise. Its clock is the test's, and its
    disk, which may fail. ``did``: what it has done of what is noted."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        database.prepare(root / "avm.db")
        self.applier = Applier(root / "avm.db", Policy(), IndexRules(), orphans=True, clock=time.time_ns)
        self.applier.alone(OPERATOR, "settle", {})
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.fspath(root / "sock"))
        self.listener.listen(8)
        self.now, self._counter = 1000.0, 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now, perf_counter=self._count)
        monkeypatch.setattr(loop, "time", clock)
        self.writer = Writer(self.listener, b"k" * 32, self.applier)
        self.said: list[str] = []
        self.writer.on_failure = self.said.append
        self.did: list[str] = []
        self.error: OSError | None = None
        self.quick = True
        self.patience: list[float | None] = []
        self.busy = False  # has anything happened that is no request?
        self.comes: Callable[[], object] = lambda: None  # when it looks again within a transaction
        monkeypatch.setattr(self.writer._peers, "poll", self._poll)
        monkeypatch.setattr(os, "fdatasync", self._fdatasync)
        monkeypatch.setattr(WalSync, "quick", property(lambda log: self.quick))
        self.patch = monkeypatch.setattr
        self._askers: list[Asker] = []
        self._asked: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._step = self.writer._step
        monkeypatch.setattr(self.writer, "_step", self._steps)
        self.raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ended.get(timeout=LIMIT_S) is None

    def _run(self) -> None:
        try:
            self.writer.run()
        except BaseException as e:
            self.raised = e
        self._ended.put(self.raised)

    def _steps(self) -> None:
        self._ended.put(None)
        self._asked.get()()

    def _count(self) -> float:
        self._counter += TICK_S
        return self._counter

    def _poll(self, patience_s: float | None) -> bool:
        self.patience.append(patience_s)
        if len(self.patience) == 2:
            self.comes()
        return self.busy

    def _fdatasync(self, descriptor: int) -> None:
        self.did.append("sync")
        if self.error is not None:
            raise self.error

    def step(self, does: Callable[[], None] | None = None) -> float | None:
        """The patience that it had with its peers. Raises what ends the writer."""
        self.patience.clear()
        self._asked.put(does or self._step)
        if (error := self._ended.get(timeout=LIMIT_S)) is not None:
            raise error
        return self.patience[0] if self.patience else None

    def settle(self) -> None:
        """Until there is nothing left to be done."""
        for _ in range(20):
            if self.writer._may_drain or self.writer._unsynced:
                self.now += SYNC_AT_LEAST_S
                self.step()
        assert not (self.writer._may_drain or self.writer._unsynced)
        self.writer._synced_at = self.now
        self.did.clear()

    def asker(self, client: bytes = b"c", origin: bytes = b"") -> Asker:
        self._askers.append(Asker(self, client, origin))
        return self._askers[-1]

    def note(self, owner: Any, *names: str) -> None:
        """From now on these calls are among what was done."""
        for name in names:
            self.patch(owner, name, self.noted(name, getattr(owner, name)))

    def noted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any, **more: Any) -> Any:
            self.did.append(name)
            return real(*given, **more)

        return noted

    def one(self, statement: str, *values: Any) -> Any:
        return self.applier.db.execute(statement, values).get

    def end(self) -> None:
        if self._thread.is_alive():
            self.writer._stopping = True
            self._asked.put(lambda: None)
            self._thread.join(LIMIT_S)
            assert not self._thread.is_alive()

    def close(self) -> None:
        self.error = None
        self.end()
        for asker in self._askers:
            asker.close()
        self.listener.close()


@pytest.fixture
def unstarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    made = Steps(tmp_path, monkeypatch)
    yield made
    made.close()


@pytest.fixture
def steps(unstarted: Steps) -> Steps:
    unstarted.start()
    unstarted.asker(b"e").does("enroll")
    unstarted.settle()
    return unstarted


def create(name: str) -> dict[str, Any]:
    return {"parent": MEMORY, "name": name.encode(), "mode": 0o644, "exclusive": True}


def mkdir(name: str) -> dict[str, Any]:
    return {"parent": MEMORY, "name": name.encode(), "mode": 0o755}


def commit(node: int, data: bytes = b"x") -> dict[str, Any]:
    return {"node": node, "handle": None, "edits": [["w", 0, data]]}


# One request after the other -------------------------------------------------------------------------------------


def test_what_was_answered_is_answered_again_and_what_is_older_never(steps: Steps) -> None:
    asker = steps.asker()
    node = asker.does("create", **create("f"))["node"]
    replies = [asker.does("append", node=node, handle=1, data=b"%d" % number) for number in range(4)]
    assert asker.does("append", number=asker.number, node=node, handle=1, data=b"3") == replies[-1]
    assert steps.one("select size from node where id = ?", node) == 4
    assert asker.does("append", number=2, node=node, handle=1, data=b"0")[0] == Busy.code
    assert (
        asker.does("append", number=9, node=node, handle=1, data=b"4") and asker.does("", number=10)[0] == Invalid.code
    )
    assert asker.does(None, number=10) == (Invalid.code, "malformed request")
    assert asker.does("sync", number=10) == {} and asker.does("mark_read", number=10) == {"count": 0}, (
        "nothing is kept of it"
    )


def test_the_kernel_that_asked_is_known_where_its_command_is_one_of_kernels(steps: Steps) -> None:
    asker = steps.asker(origin=b"mount")
    told: list[Event] = []
    steps.patch(steps.writer._peers, "tell_sinks", told.extend)
    asker.does("create", **create("f"))
    asker.does("write_path", path=[b"memory", b"g"], data=b"x")
    assert {event.origin for event in told if event.op == "create" and event.name == b"f"} == {b"mount"}
    assert {event.origin for event in told if event.name == b"g"} == {b""}


def test_a_defect_in_one_command_costs_its_asker_an_error_and_the_others_nothing(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    apply = steps.applier.apply

    def defective(who: Principal, command: str, arguments: dict[str, Any], record: Any) -> Any:
        def after(result: Any) -> None:
            record(result)
            if command == "mkdir":
                raise RuntimeError("a defect")

        return apply(who, command, arguments, after)

    monkeypatch.setattr(steps.applier, "apply", defective)
    askers = [steps.asker(client) for client in (b"a", b"b", b"c")]
    askers[0].asks("create", **create("f"))
    askers[1].asks("mkdir", **mkdir("d"))
    assert askers[2].does("create", **create("g"))["new"] and askers[0].told()["new"]
    assert askers[1].told() == (StoreFailed.code, "internal error; the daemon's log has the details")
    assert "'mkdir' failed" in caplog.text and steps.one("select count(*) from node where name = ?", b"d") == 0
    assert steps.one("select count(*) from applied where client = ?", b"b" * 16) == 0


@pytest.mark.parametrize("error", [RuntimeError("a defect"), StoreFailed("disk I/O error")])
def test_who_is_in_a_transaction_that_is_lost_hears_so_and_may_ask_again(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """SQLite ends one itself where the disk is full or fails."""
    apply, losses = steps.applier.apply, [error]

    def lost(who: Principal, command: str, arguments: dict[str, Any], record: Any) -> Any:
        if command == "mkdir" and losses:
            steps.applier.db.execute("rollback")
            raise losses.pop()
        return apply(who, command, arguments, record)

    monkeypatch.setattr(steps.applier, "apply", lost)
    steps.note(steps.writer._change_ring, "lost", "tell")
    steps.note(steps.writer._peers, "tell_sinks")
    one, other, early, late, syncs = (steps.asker(each) for each in (b"a", b"b", b"c", b"d", b"f"))
    done = [asker.does("create", **create(name)) for asker, name in ((early, "early"), (late, "late"))]
    steps.did.clear()
    before = steps.applier.seq
    early.asks("create", number=1, **create("early"))
    one.asks("create", **create("f"))
    other.asks("mkdir", **mkdir("d"))
    syncs.asks("sync")
    late.asks("create", number=1, **create("late"))
    steps.step()
    assert [early.told(), late.told(), syncs.told()] == [*done, {}], "it has nothing of theirs"
    refusal = other.told()
    said = "disk I/O error" if isinstance(error, StoreFailed) else "the transaction was lost"
    assert one.told() == refusal == (StoreFailed.code, said)
    assert steps.did == ["lost", "sync"] and steps.applier.seq == before and not steps.writer._unsynced
    assert one.does("create", number=1, **create("f"))["new"], "not the answer of what never came to be"
    assert other.does("mkdir", number=1, **mkdir("d"))["node"]
    assert steps.one("select count(*) from node where name in (?, ?)", b"f", b"d") == 2


def test_what_other_rules_leave_to_be_indexed_is_indexed_in_idle_time(steps: Steps) -> None:
    steps.asker().does("write_path", path=[b"memory", b"a.tmp"], data=b"words")
    steps.settle()
    assert steps.one("select count(*) from passage") == 1
    steps.writer.call(lambda: steps.writer.set_rules(Policy(), IndexRules(("*.tmp",))))
    steps.step()
    steps.settle()
    assert steps.one("select count(*) from passage") == 0


def test_a_request_says_whom_it_is_for(steps: Steps) -> None:
    asker = steps.asker()
    assert asker.does("reap_expired")[0] == asker.does("reap_expired", agent="bob")[0] == 13
    assert asker.does("reap_expired", agent="root") == {"reaped": 0}
    asker.peer.agent = "carol"
    assert asker.does("mark_read")[0] == 13, "its connection speaks for another one"


# A transaction ---------------------------------------------------------------------------------------------------


def test_caches_hear_of_a_commit_before_its_author_does(steps: Steps) -> None:
    steps.note(steps.applier, "begin", "commit")
    steps.note(steps.writer._change_ring, "gather", "tell")
    steps.note(steps.writer._peers, "tell_sinks", "send")
    one, other = steps.asker(b"a"), steps.asker(b"b")
    one.asks("create", **create("f"))
    other.does("create", **create("g"))
    assert steps.did == ["begin", "gather", "gather", "commit", "tell", "gather", "tell_sinks", "send", "send"]
    assert one.told()["new"]
    steps.did.clear()
    one.does("sync")
    assert "commit" not in steps.did and "begin" not in steps.did, "there is nothing to be committed"
    one.does("create", **create("f"))
    assert "tell_sinks" not in steps.did and steps.did.count("commit") == 1, "a refusal is counted"


def test_how_many_asked_and_how_long_it_took_is_measured(steps: Steps) -> None:
    measured: dict[str, list[float]] = {name: [] for name in ("_batches", "_commits", "_syncs")}
    for name, found in measured.items():
        setattr(steps.writer, name, SimpleNamespace(observe=found.append))
    steps.asker(b"a").asks("create", **create("f"))
    steps.asker(b"b").does("mkdir", **mkdir("d"))
    assert measured == {"_batches": [2], "_commits": [TICK_S], "_syncs": [TICK_S]}


def test_who_comes_while_others_are_served_finishes_what_it_began(steps: Steps) -> None:
    one, other, late = (steps.asker(client) for client in (b"a", b"b", b"l"))
    node = late.does("create", **create("f"))["node"]
    steps.settle()
    steps.note(steps.applier, "commit")
    steps.comes = lambda: late.asks("commit", **commit(node))
    one.does("create", **create("g"))
    assert steps.patience == [0.0], "one alone has nobody to look for"
    one.asks("create", **create("h"))
    other.does("create", **create("i"))
    assert steps.patience == [0.0, 0.0] and steps.did == ["commit", "commit", "sync"]
    assert late.told()["size"] == 1 and one.told()["new"]


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("command", ["sync", "create"])
def test_where_hosts_take_turns_whoever_comes_meanwhile_is_in_it(steps: Steps, turns: bool, command: str) -> None:
    one, late = steps.asker(b"a"), steps.asker(b"l")
    steps.writer.AWAITS_TURN = turns
    answer = steps.writer._answer

    def comes(*asked: Any) -> bytes:
        steps.patch(steps.writer, "_answer", answer)
        late.asks("create", **create("late"))
        return answer(*asked)

    steps.patch(steps.writer, "_answer", comes)
    one.does(command, **(create("f") if command == "create" else {}))
    assert bool(late.told()) is (turns and command == "create"), "where a transaction has begun"


# Syncs -----------------------------------------------------------------------------------------------------------


def test_who_waits_in_the_loop_and_who_beside_it(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the loop where the disk is quick, or one alone asks and nobody else would have to wait; never where a sync
    is under way."""
    writer, log = steps.writer, steps.writer._log
    idle = [True]
    monkeypatch.setattr(WalSync, "idle", property(lambda log: idle[0]))
    monkeypatch.setattr(log, "after", lambda replies: steps.did.append(f"after {len(replies)}"))
    monkeypatch.setattr(writer, "_send_all", lambda replies: steps.did.append(f"answers {len(replies)}"))
    one, other = (steps.asker(client).peer for client in (b"a", b"b"))
    here, beside = ["sync", "answers {}"], ["after {}"]
    for is_idle, quick, replies, askers, expected in (
        *((True, True, count, who, here) for count in (0, 1, 2) for who in ([one], [one, other])),
        *((True, False, 1, [one], here), (True, False, 0, [one], beside), (True, False, 2, [one], beside)),
        *((True, False, 1, [one, other], beside), (True, False, 1, [], beside)),
        *((False, True, 1, [one], beside), (False, False, 1, [one], beside)),
    ):
        idle[0], steps.quick = is_idle, quick
        writer._recent.clear()
        writer._recent.extend(askers)
        writer._unsynced, writer._synced_at = True, 0.0
        steps.did.clear()
        writer._sync([(one, b"")] * replies)
        assert steps.did == [each.format(replies) for each in expected], (is_idle, quick, replies, len(askers))
        assert not writer._unsynced and writer._synced_at == steps.now
        assert log.note.seq == steps.applier.seq
    idle[0] = True


def test_who_waits_beside_the_loop_is_told_in_a_later_step(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    woken, asker = threading.Event(), steps.asker()
    monkeypatch.setattr(steps.writer._log, "_wake", woken.set)
    steps.quick = False
    steps.writer._recent.append(steps.asker(b"o").peer)
    asker.asks("mkdir", **mkdir("d"))
    steps.step()
    assert woken.wait(LIMIT_S) and asker.told() == ""
    steps.note(steps.writer._in_place, "check")
    steps.note(steps.writer._peers, "send")
    steps.did.clear()
    steps.step()
    assert asker.told()["node"] and steps.did[:2] == ["check", "send"], "of a log that others find"
    steps.did.clear()
    steps.step()
    assert "check" not in steps.did, "nobody waits"


def test_connections_of_one_mount_are_one_asker(steps: Steps) -> None:
    writer = steps.writer
    peers = [steps.asker(b"a", b"m").peer, steps.asker(b"b", b"m").peer, steps.asker(b"c").peer, steps.asker(b"d").peer]
    for asked, alone in (([0, 1], True), ([0, 2], False), ([2, 3], False), ([3, 3], True), ([], False)):
        writer._recent.clear()
        writer._recent.extend(loop._asker(peers[number]) for number in asked)
        assert writer._alone() is alone


def test_a_sync_is_foreseen_of_one_alone_that_closes_after_each_append(steps: Steps) -> None:
    writer, asker = steps.writer, steps.asker(b"a")
    append, sync, other = (commands.traits(name) for name in ("append", "sync", "create"))
    writer._recent.clear()
    writer._recent.append(asker.peer)
    heard: list[bool] = []
    for last in (append, sync, append, sync, sync, append, append, append, sync, append, other, append, sync, append):
        heard.append(writer._foresees_sync(last))
    assert heard == [False, False, True, False, False, True, False, False, False, True, False, False, False, True]
    for quick, more in ((False, []), (True, [object()])):
        writer._foresees_sync(sync)
        steps.quick = quick
        writer._recent.extend(more)
        assert not writer._foresees_sync(append), "of a slow disk, or among others"


def test_what_is_foreseen_is_synced_and_nobody_waits_for_it(steps: Steps) -> None:
    asker = steps.asker()
    node = asker.does("create", **create("f"))["node"]
    writer = steps.writer
    for _ in range(8):
        asker.does("append", node=node, handle=1, data=b"x")
        asker.does("sync")
    steps.did.clear()
    steps.note(writer, "_send_all")
    asker.does("append", node=node, handle=1, data=b"x")
    assert steps.did == ["_send_all", "sync", "_send_all"] and not writer._unsynced
    asker.does("sync")
    assert steps.did[3:] == ["_send_all"], "it is there"


def test_only_what_promises_it_waits_and_only_while_something_is_unsynced(steps: Steps) -> None:
    asker = steps.asker()
    steps.note(steps.writer, "_sync")
    for command, arguments, waits in (
        ("sync", {}, False),
        ("enroll", {}, True),
        ("sync", {}, False),
        ("create", create("f"), False),
        ("sync", {}, True),
        ("sync", {}, False),
        ("mkdir", mkdir("d"), True),
        ("mkdir", mkdir("d"), False),  # it is refused
    ):
        steps.did.clear()
        asker.does(command, **arguments)
        assert ("_sync" in steps.did) is waits, (command, steps.did)
    steps.writer._may_drain = False
    asker.does("create", **create("g"))
    for passed, synced in ((SYNC_AT_LEAST_S / 2, False), (SYNC_AT_LEAST_S / 2, True), (SYNC_AT_LEAST_S, False)):
        steps.now += passed
        steps.did.clear()
        steps.writer._may_drain = False
        steps.step()
        assert ("sync" in steps.did) is synced


def test_how_long_the_loop_sleeps(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, log = steps.writer, steps.writer._log
    monkeypatch.setattr(WalSync, "retry_s", property(lambda log: 7.0))
    writer._synced_at = steps.now - SYNC_AT_LEAST_S / 4
    left = 3 * SYNC_AT_LEAST_S / 4
    for failed, drains, unsynced, alone, asked in (
        *((False, False, False, None, 0.0), (False, False, True, left, 0.0)),
        *((False, True, False, IDLE_BEFORE_DRAIN_S, 0.0), (False, True, True, IDLE_BEFORE_DRAIN_S, 0.0)),
        *((True, False, False, 7.0, 0.0), (True, True, True, 7.0, 0.0)),
    ):
        log.failure = FAILED if failed else None
        writer._may_drain, writer._unsynced = drains, unsynced
        assert writer._patience() == alone
        asker = steps.asker().asks("sync")
        assert writer._patience() == asked
        writer._scheduler.next()
        asker.peer.waiting = False
    log.failure, writer._may_drain, writer._unsynced = None, False, True
    writer._synced_at = steps.now - 2 * SYNC_AT_LEAST_S
    assert writer._patience() == 0.0, "nothing below that"
    assert steps.step() == 0.0


# A disk that fails -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [False, True], ids=["in the loop", "beside it"])
def test_a_promise_that_the_disk_does_not_take_is_kept_or_refused(
    steps: Steps, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, log, asker, other = steps.writer, steps.writer._log, steps.asker(b"a"), steps.asker(b"b")
    woken = threading.Event()
    if beside:
        monkeypatch.setattr(log, "_wake", woken.set)
        steps.quick = False
        writer._recent.extend([asker.peer, other.peer])
    hears = writer._checkpointer
    steps.note(hears, "pause", "hear", "resume", "between_transactions")
    done = ["pause", "hear", "resume"]

    def fails(name: str) -> None:
        steps.error = FAILED
        steps.did.clear()
        woken.clear()
        asker.asks("mkdir", **mkdir(name))
        steps.step()
        assert not beside or woken.wait(LIMIT_S)
        assert asker.told() == "" and writer.clean is False

    fails("once")
    steps.error = None
    steps.step()
    assert asker.told()["node"] and steps.said == ["", ""] and writer.clean
    assert [each for each in steps.did if each in done] == done
    assert "between_transactions" not in steps.did[steps.did.index("pause") :] and not writer._unsynced
    steps.quick = True  # nothing is left to the other thread
    steps.settle()
    steps.quick = not beside
    fails("twice")
    other.asks("mkdir", **mkdir("d"))
    steps.step()
    refusal = (StoreFailed.code, f"nothing can be written: {FAILED}")
    assert asker.told() == other.told() == refusal and not writer._scheduler and not writer._held
    assert steps.said[2:] == [str(FAILED)] and "resume" not in steps.did
    assert "between_transactions" not in steps.did[steps.did.index("pause") :]
    assert steps.one("select count(*) from node where name = ?", b"d") == 0, "nothing follows it"
    tried = steps.did.count("sync")
    assert other.does("mkdir", **mkdir("d")) == refusal and steps.did.count("sync") == tried, "not at once again"
    log._retry_at = 0.0
    steps.error, steps.quick = None, True
    steps.step()
    assert steps.said[3:] == [""] and writer.clean and "resume" in steps.did
    assert other.does("mkdir", **mkdir("d"))["node"]


def test_a_log_is_not_written_anew_while_a_sync_of_it_is_under_way(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle, log, asker = [False], steps.writer._log, steps.asker()
    monkeypatch.setattr(WalSync, "idle", property(lambda log: idle[0]))
    steps.note(steps.writer._checkpointer, "pause")
    log.failure = FAILED
    assert asker.does("mkdir", **mkdir("d")) == "" and steps.did == [], "neither refused nor done"
    idle[0] = True
    steps.step()
    assert "pause" in steps.did and log.failure is None and asker.told() == ""
    steps.step()
    assert asker.told()["node"]


def test_a_start_makes_no_checkpoint_of_what_it_finds(unstarted: Steps) -> None:
    checkpointer = unstarted.writer._checkpointer
    unstarted.note(checkpointer, "start", "pause", "hear", "resume")
    unstarted.start()
    assert [each for each in unstarted.did if each != "sync"] == ["start", "pause", "resume"]
    assert unstarted.said == [""] and checkpointer.is_alive()
    unstarted.note(unstarted.writer, "_drain")
    unstarted.did.clear()
    assert unstarted.writer._left == 0
    assert unstarted.step() == IDLE_BEFORE_DRAIN_S and unstarted.did == ["_drain"], (
        "something may have been left to index"
    )
    assert unstarted.asker().does("create", **create("f"))["new"] and unstarted.did == ["_drain"], "synced a moment ago"


# Between transactions --------------------------------------------------------------------------------------------


def test_what_the_loop_is_called_for_is_heard_of(steps: Steps) -> None:
    writer = steps.writer
    told: list[Event] = []
    steps.patch(writer._peers, "tell_sinks", told.extend)
    steps.note(writer._change_ring, "tell")
    steps.note(writer._peers, "wake")

    def changes() -> None:
        steps.did.append("changes")
        steps.applier.alone(OPERATOR, "write_path", {"path": [b"memory", b"f"], "data": b"x"})

    writer.call(changes)
    writer.call(lambda: steps.did.append("called"))
    assert steps.did == ["wake", "wake"]
    steps.step()
    assert steps.did[2:6] == ["changes", "tell", "called", "tell"] and {event.name for event in told} >= {b"f"}
    assert writer._unsynced and writer._patience() is not None and not steps.applier.events
    steps.did.clear()
    writer.stop()
    assert steps.did == ["wake"] and writer._stopping
    writer._stopping = False


def test_notes_are_indexed_where_nothing_else_is_to_be_done(steps: Steps) -> None:
    writer, drained = steps.writer, list[int]()
    alone = steps.applier.alone

    def noted(who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        assert who.operator and who.route == "daemon" and command == "drain_lexical" and arguments["hurry"] is True
        drained.append(arguments["limit"])
        return alone(who, command, arguments)

    steps.patch(steps.applier, "alone", noted)
    asker = steps.asker()
    for number in range(DRAIN_STEP + 1):
        asker.does("write_path", path=[b"memory", b"f%d" % number], data=b"words")
        assert drained == [] and writer._may_drain
    steps.busy = True
    steps.step()
    assert drained == []
    steps.busy = False
    again: list[bool] = []
    steps.patch(writer._peers, "tell_watchers", lambda seq, again_=again, **more: again_.extend(more.values()))
    writer._unsynced = False
    steps.step()
    assert drained == [DRAIN_STEP] and writer._may_drain and writer._left == 1 and writer._unsynced and again == []
    steps.step()
    assert drained == [DRAIN_STEP] * 2 and not writer._may_drain and writer._left == 0 and again == [True]
    steps.step()
    assert drained == [DRAIN_STEP] * 2, "nothing has come"
    writer._unsynced, writer._may_drain = False, True
    steps.step()
    assert len(drained) == 3 and not writer._unsynced and again == [True], "nothing was done"


@pytest.mark.parametrize("error", [NoSpace("full"), StoreFailed("disk I/O error"), RuntimeError("a defect")])
def test_indexing_that_fails_is_tried_again_after_the_next_change(
    steps: Steps, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    writer, alone, tried = steps.writer, steps.applier.alone, list[str]()

    def fails(who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        tried.append(command)
        raise error

    asker = steps.asker()
    asker.does("write_path", path=[b"memory", b"f"], data=b"words")
    steps.patch(steps.applier, "alone", fails)
    writer._left = 5
    steps.step()
    steps.step()
    assert tried == ["drain_lexical"] and writer._left == 0 and not writer._may_drain
    assert ("indexing failed" in caplog.text) is not isinstance(error, NoSpace)
    asker.does("enroll")
    steps.step()
    assert len(tried) == 2
    steps.patch(steps.applier, "alone", alone)
    asker.does("enroll")
    steps.settle()
    assert steps.one("select count(*) from document where due is not null") == 0


def test_so_many_notes_wait_before_there_is_idle_time_and_no_more(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LAG", 6)
    limits: list[int] = []
    drain = steps.writer._drain
    monkeypatch.setattr(steps.writer, "_drain", lambda limit=DRAIN_STEP: (limits.append(limit), drain(limit)))
    asker = steps.asker()
    drained = []
    for number in range(1, 13):
        asker.does("write_path", path=[b"memory", b"%d" % number], data=b"words")
        drained += [number] if len(limits) > len(drained) else []
        assert steps.writer._left + steps.applier.waiting - steps.writer._waited == steps.one(
            "select count(*) from document where due is not null"
        )
    assert limits == [BEHIND_STEP] * 2 and drained == [7, 7 + BEHIND_STEP]


def test_the_file_is_written_anew_where_it_is_due_and_then_not_for_a_while(
    steps: Steps, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[AvmError] = []

    def rewrite(path: Path) -> None:
        assert path == steps.applier.path
        steps.did.append("rewrite")
        steps.now += 2.0
        if failures:
            raise failures.pop()

    due = [True]
    monkeypatch.setattr(rewriting, "due", lambda db: due[0])
    monkeypatch.setattr(rewriting, "rewrite", rewrite)
    steps.note(steps.writer._checkpointer, "emptied_by")
    asker, other = steps.asker(b"a"), steps.asker(b"b")

    def wiped(*, alone: bool = False) -> Any:
        steps.did.clear()
        asker.asks("wipe")
        if not alone:
            other.asks("enroll")
        steps.step()
        assert alone or other.peer.waiting, "it is by itself"
        steps.step()
        return asker.told()

    assert wiped()["wiped"] and steps.did[:2] == ["emptied_by", "rewrite"]
    steps.now += 2.0 * REWRITES - 0.5
    assert wiped()["wiped"] and "rewrite" not in steps.did
    steps.now += 0.5
    assert wiped()["wiped"] and "rewrite" in steps.did
    steps.now += 2.0 * REWRITES
    due[0] = False
    assert wiped()["wiped"] and "rewrite" not in steps.did
    due[0] = True
    for error in (Busy("a reader"), NoSpace("a page")):
        failures[:] = [error]
        assert wiped() == (error.code, error.reason)
        assert ("not written anew" in caplog.text) is isinstance(error, NoSpace)
        assert wiped()["wiped"] and "rewrite" not in steps.did
        steps.now += 2.0 * REWRITES


# In parts --------------------------------------------------------------------------------------------------------


def test_on_a_full_disk_what_is_large_is_committed_in_parts(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, asker, other = steps.writer, steps.asker(b"a", b"mount"), steps.asker(b"b")
    full = [False]
    monkeypatch.setattr(DiskReserve, "only_in_parts", lambda reserve, size: full[0])
    node = asker.does("create", **create("f"))["node"]
    applied: list[tuple[int, bytes]] = []
    apply = steps.applier.apply

    def noted(who: Principal, command: str, arguments: dict[str, Any], record: Any = None) -> Any:
        applied.append((sum(len(edit[2]) for edit in arguments.get("edits", ())), steps.applier.origin))
        return apply(who, command, arguments, record)

    monkeypatch.setattr(steps.applier, "apply", noted)
    steps.note(writer._change_ring, "tell")
    steps.note(writer._peers, "tell_sinks", "send")
    steps.note(writer._checkpointer, "between_transactions")
    data = os.urandom(2 * PART + 7)
    assert asker.does("commit", **commit(node, data))["size"] == len(data)
    assert applied == [(len(data), b"mount")], "there is room"
    full[0] = True
    applied.clear()
    other.asks("mark_read")
    assert asker.does("commit", **commit(node, data[:PART]))["size"] == len(data)
    assert other.told() == {"count": 0} and applied == [(0, b""), (PART, b"mount")], "it is not large"
    other.does("mark_read")
    applied.clear()
    steps.did.clear()
    asker.asks("commit", **commit(node, data[::-1]))
    other.asks("mark_read")
    steps.step()
    assert other.peer.waiting, "it is by itself"
    answer = asker.told()
    assert answer["size"] == len(data) and applied == [(PART, b"mount")] * 2 + [(7, b"mount")]
    part = ["tell", "tell_sinks", "between_transactions"]
    assert [each for each in steps.did if each != "sync"] == [*part, *part, "tell", "tell_sinks", "send", part[2]]
    monkeypatch.setattr(steps.applier, "apply", apply)
    steps.step()
    assert other.told() == {"count": 0}
    monkeypatch.setattr(steps.applier, "apply", noted)
    applied.clear()
    assert asker.does("commit", number=asker.number, **commit(node, data[::-1])) == answer and applied == []
    assert asker.does("commit", number=1, **commit(node, data))[0] == Busy.code and applied == []
    assert asker.does("write_path", number=19, path=[b"memory", b"g"], data=data)["size"] == len(data)
    applied.clear()
    assert asker.does("commit", number=20, node=node, handle=None, edits=7, data=data)[0] == Invalid.code
    applied.clear()
    assert steps.asker(b"n").does("commit", **commit(node, data[::-1]))["size"] == len(data) and len(applied) == 3
    applied.clear()
    missing = asker.does("commit", **commit(10**9, data))
    assert missing[0] == Stale.code and applied == [(PART, b"mount")], "refused with its first part"


def test_where_the_disk_fills_up_as_several_are_taken_none_is_left_out(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker, other = steps.asker(b"a"), steps.asker(b"b")
    node = asker.does("create", **create("f"))["node"]
    full = iter([False])
    monkeypatch.setattr(DiskReserve, "only_in_parts", lambda reserve, size: next(full, True))
    asker.asks("commit", **commit(node, bytes(PART + 1)))
    assert other.does("mark_read") == {"count": 0} and asker.told()["size"] == PART + 1


def test_of_parts_that_were_committed_the_disk_hears_too(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    """When what follows them is refused."""
    asker = steps.asker()
    node = asker.does("create", **create("f"))["node"]
    steps.settle()
    monkeypatch.setattr(DiskReserve, "only_in_parts", lambda reserve, size: True)
    alone, parts = steps.applier.alone, list[int]()

    def full(who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        if len(parts) == 1:
            raise NoSpace("the disk that holds the store is full")
        parts.append(1)
        return alone(who, command, arguments)

    monkeypatch.setattr(steps.applier, "alone", full)
    assert asker.does("commit", **commit(node, bytes(3 * PART)))[0] == NoSpace.code
    assert steps.writer._unsynced and steps.one("select size from node where id = ?", node) == PART


# Beginning and end -----------------------------------------------------------------------------------------------


def test_what_a_writer_heeds_from_its_start_on(steps: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, asker = steps.writer, steps.asker()
    near = [True]
    monkeypatch.setattr(
        DiskReserve, "near", property(lambda reserve: near[0], lambda reserve, value: None), raising=False
    )
    assert steps.applier.short() is True
    near[0] = False
    assert steps.applier.short() is False
    assert steps.applier.admit == writer._reserve.admit
    pages: list[int] = []
    monkeypatch.setattr(writer._reserve, "committed", pages.append)
    asker.does("create", **create("f"))
    assert pages and pages[-1] > 0, "as SQLite tells of each commit"
    Path(f"{steps.applier.path}-shm").rename(steps.applier.path.with_name("elsewhere"))
    asker.asks("create", **create("g"))
    with pytest.raises(Displaced):
        steps.step()
    assert asker.told() == "" and isinstance(steps.raised, Displaced)


@pytest.mark.parametrize("clean", [True, False])
def test_what_ends_in_which_order(unstarted: Steps, clean: bool) -> None:
    steps = unstarted
    steps.start()
    writer = steps.writer
    asker = steps.asker()
    asker.does("mkdir", **mkdir("d"))
    told: list[Any] = []
    if not clean:
        writer._log.failure = FAILED
    stop, close = writer._checkpointer.stop, steps.applier.close

    def stops(*, clean: bool) -> None:
        steps.did.append("stop")
        told.append(clean)
        stop(clean=clean)

    def closes(*, clean: bool) -> None:
        steps.did.append("applier")
        told.append(clean)
        close(clean=clean)

    steps.patch(writer._checkpointer, "stop", stops)
    steps.patch(steps.applier, "close", closes)
    for owner, name in (
        *((writer._log, "close"), (writer, "_send_synced"), (writer._peers, "close")),
        (writer._change_ring, "close"),
    ):
        steps.patch(owner, name, steps.noted(f"{type(owner).__name__}.{name}", getattr(owner, name)))
    steps.did.clear()
    steps.end()
    assert steps.did == [
        *("WalSync.close", *(["sync"] if clean else []), "Writer._send_synced", "stop"),
        *("Peers.close", "ChangeRing.close", "applier"),
    ]
    assert told == [clean, clean] and steps.raised is None
