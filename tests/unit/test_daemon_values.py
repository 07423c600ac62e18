"""Small parts of the daemon: rules on the wire, non-blocking frames, the runtime directory."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import selectors
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from avmfs_config import ConfigError, Mount, Settings, default_settings
from avmfs_config.gossip import Endpoint
from avmfs_config.http import HttpSettings
from avmfs_daemon import child_runtime, control, fdstore_client, forkserver, runtime, status_text, supervisor
from avmfs_daemon import takeover as takeover_module
from avmfs_daemon.child import Child
from avmfs_daemon.child_spec import rules_from, rules_message
from avmfs_daemon.children import Children
from avmfs_daemon.embedding import EmbeddingService
from avmfs_daemon.entrypoints import _enroll
from avmfs_daemon.fdstore_client import FdStoreLost
from avmfs_daemon.framed_stream import UNSENT_LIMIT, Closed, FramedStream
from avmfs_daemon.http_service import HttpService
from avmfs_daemon.mountpoint import Mountpoint
from avmfs_daemon.runtime import RuntimeProblem
from avmfs_daemon.supervisor import Supervisor
from avmfs_daemon.takeover import Takeover
from avmfs_daemon.writer_rules import WriterRules

from avmfs import wire
from avmfs.access import Person, Policy, Principal
from avmfs.errors import Busy, ReadOnly
from avmfs.memory import Memory
from tests.faults.daemons import wait
from tests.hashing import HashingEmbedding
from tests.unit.views_fixtures import opened


def test_rules_survive_the_pipe() -> None:
    settings = default_settings()
    policy, index = rules_from(wire.unpack(wire.pack(rules_message(settings))))
    assert policy.digest == rules_from(rules_message(settings))[0].digest
    assert [rule.pattern for rule in policy.rules] == [rule.pattern for rule in settings.permissions]
    assert index.ignore == settings.search.ignore


class Hung:
    """A writer of which nothing is heard, and what it was sent."""

    def __init__(self) -> None:
        self.child = Child("writer", "writer")
        self.child.current = Mock()
        self.sent: list[dict[str, Any]] = []
        self.child.current.stream.tell = self.sent.append
        self.rules = WriterRules(self.child)

    def change(self, before: Settings, settings: Settings, *heard: dict[str, Any]) -> str:
        def turn_until(condition: Callable[[], bool], limit_s: float) -> bool:
            for each in heard:
                self.rules.heard(each)
            return condition()

        return self.rules.change(before, settings, turn_until)


PARTS = ("_children", "_notifier", "_premises", "_http")
OLD = default_settings()
NEW = replace(OLD, default_access="none")


def test_a_writer_that_says_nothing_has_not_taken_the_rules_and_is_sent_those_of_before() -> None:
    writer = Hung()
    writer.rules.begin(OLD)
    assert "not confirmed" in writer.change(OLD, NEW) and writer.rules.problem
    assert [each["rules"] for each in writer.sent] == [rules_message(NEW), rules_message(OLD)]
    writer.rules.heard({"rules": 1})  # late
    assert writer.rules.problem
    writer.rules.heard({"rules": 2})
    assert not writer.rules.problem
    assert writer.change(OLD, NEW, {"rules": 3}) == "" and not writer.rules.problem


def test_a_late_refusal_is_told_until_the_rules_are_in_force(caplog: pytest.LogCaptureFixture) -> None:
    writer = Hung()
    writer.rules.begin(OLD)
    assert writer.change(OLD, NEW)
    writer.rules.heard({"rules": 1})
    writer.rules.heard({"rules": 2, "refused": "the disk is full"})
    assert "the disk is full" in writer.rules.problem and "the disk is full" in caplog.text
    assert writer.change(OLD, OLD, {"rules": 3}) == ""  # though the configuration is the same
    assert writer.sent[-1]["rules"] == rules_message(OLD) and not writer.rules.problem
    assert writer.change(OLD, OLD) == "" and len(writer.sent) == 3


def test_rules_that_a_writer_began_with_are_others_once_it_has_taken_others() -> None:
    writer = Hung()
    writer.rules.begin(OLD)
    assert writer.change(OLD, NEW, {"rules": 1}) == ""
    assert "not confirmed" in writer.change(NEW, OLD) and writer.rules.problem
    assert writer.sent[-1]["rules"] == rules_message(NEW)
    writer.rules.heard({"rules": 2})  # late: it has the old ones, until it takes what was sent after them
    assert "not confirmed" in writer.change(NEW, NEW)


def test_a_refusal_does_not_say_that_those_in_force_have_been_taken() -> None:
    writer = Hung()
    writer.rules.begin(OLD)
    assert writer.change(OLD, NEW)
    assert writer.change(OLD, NEW, {"rules": 3, "refused": "the disk is full"}) == "the disk is full"
    assert writer.rules.problem and writer.sent[-1]["rules"] == rules_message(OLD)
    writer.rules.heard({"rules": 4})
    assert not writer.rules.problem


def test_a_writer_that_starts_has_the_rules_that_it_begins_with() -> None:
    writer = Hung()
    writer.rules.begin(OLD)  # before the reload
    assert writer.change(OLD, NEW, {"ready": True}, {"rules": 2}) == ""
    assert [each["rules"] for each in writer.sent] == [rules_message(NEW)] * 2  # it may not have heard the first time
    writer.rules.begin(OLD)  # begun meanwhile
    assert writer.change(NEW, OLD, {"ready": True}) == ""
    writer.child.current = None
    assert writer.change(OLD, NEW) == "" and not writer.rules.problem


def pair() -> tuple[FramedStream, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(300)
    return FramedStream(ours.detach()), theirs


def test_frames_are_collected_from_pieces() -> None:
    stream, peer = pair()
    data = wire.frame({"a": 1}) + wire.frame([2])
    peer.sendall(data[:3])
    assert stream.read() == []
    peer.sendall(data[3:])
    assert stream.read() == [{"a": 1}, [2]]
    assert stream.read() == []  # does not wait
    peer.close()
    with pytest.raises(Closed):
        stream.read()
    stream.close()


def test_a_peer_that_does_not_read_is_given_up_on_and_never_waited_for() -> None:
    stream, peer = pair()
    with pytest.raises(Closed, match="does not read"):
        for _ in range(10 * UNSENT_LIMIT // 1000):
            stream.send("x" * 1000)
    stream.close()
    peer.close()


def test_what_did_not_fit_is_sent_later() -> None:
    stream, peer = pair()
    stream.send("x" * 500_000)
    assert stream.unsent
    got = bytearray()
    while len(got) < 500_000:
        got += peer.recv(1 << 16)
        stream.flush()
    assert not stream.unsent
    assert wire.unpack(bytes(got[4:])) == "x" * 500_000
    stream.close()
    peer.close()


def test_the_runtime_directory_is_private_and_our_own(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    runtime.make_directory(directory, traversable=False)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.chmod(0o777)
    runtime.make_directory(directory, traversable=True)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o711
    link = tmp_path / "link"
    link.symlink_to(directory)
    with pytest.raises(RuntimeProblem, match="not a directory"):
        runtime.make_directory(link, traversable=False)
    with pytest.raises(RuntimeProblem, match="too long"):
        runtime.make_directory(tmp_path / ("x" * 100), traversable=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory away")
def test_a_runtime_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(RuntimeProblem, match="another user"):
        runtime.make_directory(tmp_path, traversable=False)


def test_what_is_remembered_comes_back_and_damage_counts_as_nothing(tmp_path: Path) -> None:
    assert runtime.remembered(tmp_path) == {}
    runtime.remember(tmp_path, {Path("/mnt/a b"): 0o750})
    assert runtime.remembered(tmp_path) == {Path("/mnt/a b"): 0o750}
    for damaged in ("", "{", "[]", '{"mountpoints": 3}', '{"mountpoints": {"/x": "y"}}'):
        (tmp_path / runtime.STATE).write_text(damaged)
        assert runtime.remembered(tmp_path) == {}


def test_nobody_listening_is_not_running(tmp_path: Path) -> None:
    with pytest.raises(control.NotRunning):
        control.ask(tmp_path / "control.sock", "status")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "stale"))
    with pytest.raises(control.NotRunning):
        control.stop(tmp_path / "stale", 1)


def test_who_asks_while_a_child_is_started_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    for module in (control, supervisor):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    heard: list[str] = []
    ours, theirs = socket.socketpair()
    with selectors.DefaultSelector() as selector, socket.socket(socket.AF_UNIX) as client, ours, theirs:
        server = control.ControlServer(
            runtime.listen(tmp_path / "s", 0o600), selector, lambda operation, peer: heard.append(operation)
        )
        never: Any = {"next_deadline.return_value": float("inf"), "next_beat": float("inf")}
        other = Mock(next_look=float("inf"), next_try=float("inf"), **never)
        of: Any = SimpleNamespace(_selector=selector, _control=server, **dict.fromkeys(PARTS, other))
        client.connect(os.fspath(tmp_path / "s"))
        Supervisor._turn(of, float("inf"))

        def start(mask: int) -> None:
            selector.unregister(ours)
            client.sendall(wire.frame({"v": wire.PROTOCOL, "do": "status"}))
            now[0] += 2 * control.PATIENCE_S

        selector.register(ours, selectors.EVENT_READ, start)
        theirs.send(b"x")
        for _ in range(2):
            Supervisor._turn(of, now[0] + 5)
        assert heard == ["status"]
        server.close()
        server._listener.sock.close()


def once(error: Exception, well: Callable[..., Any]) -> Callable[..., Any]:
    """A function that raises the error at its first call."""
    errors = [error]

    def called(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return well(*arguments)

    return called


@pytest.mark.parametrize("missing", ["thread", "pipe", "place in the selector"])
def test_a_child_for_which_something_is_missing_is_tried_again(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context, none = multiprocessing.get_context("spawn"), OSError(errno.EMFILE, "Too many open files")
    served: list[str] = []

    def serve(connection: Connection, name: str) -> None:
        connection.close()
        served.append(name)

    serving: Callable[..., Any] = serve
    with selectors.DefaultSelector() as selector:
        if missing == "thread":
            serving = once(RuntimeError("can't start new thread"), serve)
        elif missing == "pipe":
            monkeypatch.setattr(context, "Pipe", once(none, context.Pipe), raising=False)
        else:
            monkeypatch.setattr(selector, "register", once(none, selector.register))
        children = Children(
            selector,
            context,
            Mock(of=lambda kind: print),
            spec_for=lambda child, control, embedding: SimpleNamespace(embedding=embedding, fd_entry=None),  # type: ignore
            serve=serving,
            heard=Mock(),
            lost=Mock(),
            gone=Mock(),
            fd_entries=Mock(),
        )
        children.add(child := Child("keeper", "keeper"))
        assert child.current is None and "cannot be started" in child.error and not selector.get_map()
        while child.current is None:
            time.sleep(max(0.0, children.next_deadline() - time.monotonic()))
            children.tend()
        assert len(selector.get_map()) == 2 and served
        children.halt([child])
        assert not selector.get_map()


@contextlib.contextmanager
def holder_killed(directory: Path) -> Iterator[tuple[Takeover, selectors.BaseSelector, Callable[[], None]]]:
    """What takes over, what it watches by, and what tells it that its holder has been killed."""
    takeover = Takeover(directory, [], directory / "avm.db", {})
    assert takeover.holder_pid
    with selectors.DefaultSelector() as selector:
        takeover.watch(selector, list)
        os.kill(takeover.holder_pid, signal.SIGKILL)
        ((key, mask),) = selector.select(300)
        yield takeover, selector, lambda: key.data(mask)
    takeover.end()


@pytest.mark.skipif(forkserver.SPAWNS, reason="has no holder")
@pytest.mark.parametrize("what", ["process", "answer"])
def test_a_holder_that_cannot_be_replaced_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    with holder_killed(tmp_path) as (takeover, selector, told):
        before = takeover.holder_pid
        with monkeypatch.context() as patch:
            if what == "process":
                patch.setattr(subprocess, "Popen", Mock(side_effect=BlockingIOError))
            else:
                patch.setattr(fdstore_client, "_Line", Mock(side_effect=FdStoreLost))
            told()
            with pytest.raises((RuntimeProblem, OSError)):
                takeover.keep()
        takeover.keep()
        assert selector.get_map() and takeover.holder_pid not in (0, before)


@pytest.mark.skipif(forkserver.SPAWNS, reason="has no holder")
def test_a_holder_that_ends_at_its_start_is_not_replaced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover_module, "LIVES_S", 1000.0, raising=False)
    with holder_killed(tmp_path) as (takeover, selector, told):
        before = takeover.holder_pid
        told()
        assert not selector.get_map() and takeover.holder_pid == before
        takeover.keep()  # at the supervisor's next look
        assert selector.get_map() and takeover.holder_pid not in (0, before)


@pytest.mark.skipif(forkserver.SPAWNS, reason="has no holder")
def test_how_long_mounts_are_held_is_a_number_of_seconds(tmp_path: Path) -> None:
    for text in ("1m", "-1", "inf", "nan"):
        with pytest.raises(ConfigError, match="environment: AVM_HOLD_S: expected seconds"):
            Takeover(tmp_path, [], tmp_path / "avm.db", {"AVM_HOLD_S": text})
    none = Takeover(tmp_path, [], tmp_path / "avm.db", {"AVM_HOLD_S": "0"})
    assert none.holder_pid is None
    none.end()
    for text in ("", "0.001"):
        takeover = Takeover(tmp_path, [], tmp_path / "avm.db", {"AVM_HOLD_S": text})
        with selectors.DefaultSelector() as selector:
            takeover.watch(selector, list)
            takeover.discard("none")  # which it answers
            assert takeover.holder_pid and not selector.select(0)
        takeover.end()


def test_a_mount_whose_directory_cannot_be_looked_at_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mountpoint, "prepare", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    child = Child("mount alice", "mount", Mount(Path("/m/alice"), "alice"))
    Takeover.give_directory(Mock(_inherited={}), child, [])
    assert child.state == "failed" and "Too many open files" in child.error


def test_an_address_of_a_family_that_the_machine_has_not_is_a_problem_of_the_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "socket", Mock(side_effect=OSError(errno.EAFNOSUPPORT, "Address family not supported")))
    service = HttpService(Mock())
    service.follow(HttpSettings(listen=Endpoint("::1", 0)))
    assert "Address family not supported" in service.problem and service.next_try < float("inf")


def test_a_model_for_which_there_is_no_thread_has_failed_until_the_next_load(monkeypatch: pytest.MonkeyPatch) -> None:
    service = EmbeddingService()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        service.load(HashingEmbedding)
        service.reranking.load(Mock())
        for status in (service.status(), service.reranking.status()):
            assert (status["state"], status["reason"]) == ("failed", "can't start new thread")
    service.load(HashingEmbedding)
    wait(lambda: service.status()["state"] == "ready")


def test_status_is_a_table_for_people() -> None:
    mount = {
        "agent_id": "alice",
        "mountpoint": "/a",
        "pid": 7,
        "state": "ready",
        "restarts": 0,
        "since": 0.0,
        "unread": 3,
    }
    broken = {**mount, "agent_id": "bob", "pid": None, "state": "failed", "error": "/b: not a directory"}
    lines = status_text.status_text(
        {
            "pid": 1,
            "version": "0.1.0",
            "mounts": [mount, broken],
            "isolation": "advisory",
            "embedding": {"state": "loading", "model": "", "dimension": 0, "reason": "the model is still loading"},
            "store": {"path": "/d/avm.db", "waiting_lexical": 1, "waiting_semantic": 2, "writer_pid": 3},
        }
    ).splitlines()
    assert lines[2].split() == ["AGENT", "STATE", "PID", "RESTARTS", "SINCE", "UNREAD", "MOUNTPOINT"]
    assert "  bob: /b: not a directory" in lines
    assert "embedding  loading (the model is still loading)" in lines
    assert lines[-1] == "waiting    1 for words, 2 for vectors"


def test_status_tells_of_a_clock_that_is_not_that_of_the_shared_log() -> None:
    said = {"host": "b", "record": 7, "behind": 0, "error": "", "ahead_s": -660.4}
    assert status_text._cluster(said)[1].strip() == "its clock is 660 s behind the log's: it does not keep house"
    assert "is 6 s ahead of the log's" in status_text._cluster({**said, "ahead_s": 6.0})[1]
    assert status_text._cluster({**said, "ahead_s": 1.0}) == ["shared log b, record 7"]


def test_status_tells_of_deliveries_as_its_json_does() -> None:
    figures = {
        "subscriptions": 3,
        "hooks": 1,
        "waiting": 8,
        "retrying": 2,
        "dead": 5,
        "unread": 4,
        "sent": 9,
        "delivering": 6,
        "oldest_s": 62.0,
    }
    lines = status_text._outbox(figures)
    assert lines[0] == (
        "outbox     3 subscriptions and 1 hooks: 8 waiting (2 being repeated), 6 at work, 4 unread, 9 delivered,"
        " the oldest due for 1m 2s"
    )
    assert "5 dead letters: avm subscriptions --dead -a AGENT (of hooks: --operator)" in lines[1] and len(lines) == 2
    assert len(status_text._outbox({**figures, "dead": 0, "oldest_s": None})) == 1
    assert status_text._outbox({**figures, "subscriptions": 0, "hooks": 0}) == status_text._outbox({}) == []


def test_what_a_predecessor_says_last_does_not_stand_for_its_successor() -> None:
    keeper = Child("keeper", "keeper")
    before, now = Mock(), Mock()
    keeper.current, keeper.retiring = now, [before]
    supervisor: Any = SimpleNamespace(_figures={})
    for process, state in ((now, "failed: others can read the key"), (before, "on")):
        Supervisor._heard(supervisor, keeper, process, {"figures": {"state": state}, "of": "gossip"})
    assert supervisor._figures == {"gossip": {"state": "failed: others can read the key"}}


def test_many_that_ask_the_supervisor_are_few_questions() -> None:
    """Those of a kind come one after the other; what has no arguments is answered once for all who ask meanwhile."""
    asked: list[tuple[float, dict[str, Any]]] = []

    def tell(message: dict[str, Any]) -> None:
        asked.append((time.monotonic(), message))
        questions.answered({"answer": message["ask"], "value": [message["do"], message["arguments"], len(asked)]})

    questions = child_runtime.Questions(tell)
    with ThreadPoolExecutor(20) as pool:
        began = time.monotonic()
        states = list(pool.map(lambda _: questions.ask("status", {}), range(200)))
        assert len(asked) <= (time.monotonic() - began) / child_runtime.APART_S + 1
        assert {*map(str, states)} == {f"['status', {{}}, {n + 1}]" for n in range(len(asked))}
        asked.clear()
        signed = list(pool.map(lambda n: questions.ask("sign_in", {"agent": n}), range(20)))
        assert [each[1] for each in signed] == [{"agent": n} for n in range(20)] and len(asked) == 20
        moments = [at for at, _ in asked]
        assert min(b - a for a, b in pairwise(moments)) >= child_runtime.APART_S


def test_a_supervisor_that_does_not_answer_keeps_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_runtime, "ASK_S", 0.2)
    questions = child_runtime.Questions(lambda message: None)
    with ThreadPoolExecutor(4) as pool:
        for waiting in [pool.submit(questions.ask, "status", {}) for _ in range(4)]:
            with pytest.raises(Busy):
                waiting.result(300)


def test_who_has_never_been_is_not_mounted_while_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Being named in the configuration gives nobody a private space."""
    with opened(tmp_path, Policy(people={"carol": Person()})) as world:
        been = world.agent("alice").memory
        monkeypatch.setattr(world.store, "submit", Mock(side_effect=ReadOnly("nothing can be written")))
        _enroll(been)
        with pytest.raises(ReadOnly):
            _enroll(Memory(world.around, Principal("carol", route="mount")))
