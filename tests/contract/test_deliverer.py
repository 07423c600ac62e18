"""The deliverer on a real store, with receivers that answer as a test says: tries, pauses, dead letters, figures."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from avmfs_config import Hook, WebhookSettings
from avmfs_daemon import deliveries
from avmfs_daemon.deliveries import Deliverer

from avmfs.access import Principal
from avmfs.agents import http_delivery
from avmfs.errors import Busy, Denied
from avmfs.store.schema import database
from tests.contract.store_world import ALICE, BOB, CAROL, Mode, World

URL = "https://example.com/hook"


@pytest.fixture(params=["direct"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param


class Receivers:
    """Stands for the network: what was posted where, and ``answer`` to it."""

    def __init__(self) -> None:
        self.got: list[tuple[str, str]] = []  # (host, webhook-id)
        self.answer: Callable[[str], None] = lambda host: None
        self.mutex = threading.Lock()

    def post(self, request: http_delivery.Request, allowed: Any, timeout_s: float) -> int:
        with self.mutex:
            self.got.append((request.destination.host, request.headers["webhook-id"]))
        self.answer(request.destination.host)
        return 200

    def ids(self, host: str = "example.com") -> list[str]:
        with self.mutex:
            return [message for where, message in self.got if where == host]


@pytest.fixture
def receivers(monkeypatch: pytest.MonkeyPatch) -> Receivers:
    found = Receivers()
    monkeypatch.setattr(http_delivery, "post", found.post)
    monkeypatch.setattr(deliveries, "IDLE_S", 0.05)
    monkeypatch.setattr(deliveries, "TELL_S", 0.05)
    return found


@pytest.fixture
def started(world: World, receivers: Receivers) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    running: list[Deliverer] = []

    def start(*hooks: Hook, **settings: Any) -> list[dict[str, Any]]:
        figures: list[dict[str, Any]] = []
        wanted = WebhookSettings(**{"attempts": 3, "backoff_s": 0.01, **settings})
        lock = world.path.with_name("outbox.lock")
        running.append(Deliverer(world.store, wanted, hooks, home="/", lock=lock, report=figures.append))
        running[-1].start()
        return figures

    yield start
    for each in running:
        each.stop()
        each._thread.join(300)
        assert not each._busy


def until(condition: Callable[[], Any], limit_s: float = 300.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.01)


def subscribe(world: World, who: Any = BOB, url: str = URL, pattern: str = "/memory/*") -> None:
    world.do(who, "subscribe", pattern=pattern, mode="realtime", every=None, url=url)


def state(world: World, who: Any = BOB) -> tuple[int, int, int]:
    """(sent, waiting, dead)."""
    with world.reading(who) as reader:
        (found,) = reader.outbox.subscriptions()
    return found.sent, found.waiting, found.dead


def test_what_fails_is_tried_again_under_its_id_and_then_a_dead_letter(
    world: World, receivers: Receivers, started: Any
) -> None:
    def answer(host: str) -> None:
        if len(receivers.got) <= 3:
            raise http_delivery.PostFailed("answered 500")

    receivers.answer = answer
    subscribe(world)
    world.write(ALICE, "/memory/a", b"x")
    figures = started()
    until(lambda: state(world) == (1, 0, 1))
    first, *others = receivers.ids()
    assert receivers.ids().count(first) == 3 and others[2:] and first not in others[2:]
    with world.reading(BOB) as reader:
        (letter,) = reader.outbox.dead()
    assert (letter.message, letter.attempts, letter.error) == (first, 3, "answered 500")
    until(lambda: figures and (figures[-1]["dead"], figures[-1]["sent"], figures[-1]["waiting"]) == (1, 1, 0))
    world.do(BOB, "redeliver", messages=None)
    until(lambda: state(world) == (2, 0, 0))
    assert receivers.ids()[-1] == first


@pytest.mark.parametrize("error", [Denied("not public"), http_delivery.PostFailed("answered 410", final=True)])
def test_what_can_never_succeed_is_a_dead_letter_at_once(
    world: World, receivers: Receivers, started: Any, error: Exception
) -> None:
    def answer(host: str) -> None:
        raise error

    receivers.answer = answer
    subscribe(world)
    for n in range(4):
        world.write(ALICE, f"/memory/{n}", b"x")
    started()
    until(lambda: state(world) == (0, 0, 8))
    assert len(receivers.got) == len(set(receivers.got)) == 8


def test_a_defect_is_a_failure_and_no_loop(
    world: World, receivers: Receivers, started: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(host: str) -> None:
        raise KeyError("a defect")

    receivers.answer = answer
    subscribe(world)
    world.write(ALICE, "/memory/a", b"x")
    started()
    until(lambda: state(world) == (0, 0, 2))
    assert len(receivers.got) == 6 and "KeyError" in caplog.text


def test_a_thread_that_cannot_start_keeps_no_subscription(
    world: World, receivers: Receivers, started: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refused = threading.Thread.start, [True]

    def full(thread: threading.Thread) -> None:
        if thread.name == "delivery" and refused:
            refused.clear()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", full)
    subscribe(world)
    world.write(ALICE, "/memory/a", b"x")
    started()
    until(lambda: state(world) == (2, 0, 0))
    assert "can't start new thread" in caplog.text


def test_a_receiver_that_asks_for_time_gets_it(world: World, receivers: Receivers, started: Any) -> None:
    def answer(host: str) -> None:
        raise http_delivery.PostFailed("answered 503", wait_s=3600.0)

    receivers.answer = answer
    subscribe(world)
    world.write(ALICE, "/memory/a", b"x")
    started()
    until(lambda: receivers.got)
    time.sleep(0.3)
    assert len(receivers.got) == 1 and state(world) == (0, 2, 0)


def test_one_receiver_that_does_not_answer_holds_up_only_its_own(
    world: World, receivers: Receivers, started: Any
) -> None:
    over = threading.Event()

    def answer(host: str) -> None:
        if host == "slow.example":
            over.wait(300)

    receivers.answer = answer
    for n in range(20):  # one agent with many of them
        subscribe(world, CAROL, f"https://slow.example/{n}")
    subscribe(world)
    world.write(ALICE, "/memory/a", b"x")
    started()
    try:
        until(lambda: state(world) == (2, 0, 0), 250)
        assert 1 <= len(receivers.ids("slow.example")) <= deliveries.OF_ONE_AGENT + 1
    finally:
        over.set()
    until(lambda: len(set(receivers.ids("slow.example"))) == 40)


def test_damage_is_in_the_log_once_however_often_it_is_met(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    deliverer = Deliverer(world.store, WebhookSettings(), (), home="/", lock=world.path.with_name("outbox.lock"))
    busy = Busy("no writer")  # what is no damage is said until it is over
    turns: list[Any] = ["its bytes", busy, busy, "its pages", "its bytes", 0.0, busy]

    def turn() -> float:
        if not turns:
            deliverer.stop()
            return 0.0
        deliverer.wake()
        met = turns.pop(0)
        if isinstance(met, float):
            return met
        raise database.damaged(met, "/memory/deliveries") if isinstance(met, str) else met

    monkeypatch.setattr(deliverer, "turn", turn)
    deliverer._run()
    said = [record.getMessage().partition(";")[0] for record in caplog.records]
    damage = [f"/memory/deliveries: its {what}" for what in ("bytes", "pages")]
    assert said == [damage[0], "outbox: no writer", damage[1], "outbox: no writer"]


def test_a_look_sees_both_commits_of_a_save(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that redirects has the file emptied first, and what wakes us is that."""
    deliverer = Deliverer(world.store, WebhookSettings(), (), home="/", lock=world.path.with_name("outbox.lock"))
    world.write(ALICE, "/memory/a", b"1")
    subscribe(world)
    world.clock.advance(3600)
    world.edit(ALICE, "/memory/a", ["t", 0], handle=1)

    def meanwhile(seconds: float) -> bool:
        world.edit(ALICE, "/memory/a", ["w", 0, b"saved"], handle=1)
        return False

    monkeypatch.setattr(deliverer._stopping, "wait", meanwhile)
    deliverer._fill()
    os.close(deliverer._lock)
    assert (world.document(ALICE, "/memory/a").head, world.node(ALICE, "/memory/a").size) == (2, 5)
    assert state(world) == (0, 1, 0)


def test_a_hook_that_fails_is_logged_and_not_repeated(
    world: World, started: Any, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    ran = tmp_path / "ran"
    world.write(ALICE, "/memory/before", b"x")
    figures = started(Hook("/memory/*", ("/bin/sh", "-c", f"echo >> {ran}; echo no >&2; exit 7"), "write"))
    until(lambda: figures and figures[-1]["hooks"] == 1)
    world.write(ALICE, "/memory/a", b"x")
    until(lambda: figures[-1]["dead"] == 1)
    time.sleep(0.2)
    assert ran.read_text() == "\n" and "status 7: no" in caplog.text
    operator = Principal("alice", operator=True)
    with world.reading(ALICE) as reader:
        assert reader.outbox.dead() == [] and world.do(ALICE, "redeliver") == {"count": 0}
    world.unlink(ALICE, "/memory/a")
    with world.reading(operator) as reader:
        (letter,) = reader.outbox.dead()
    assert (letter.url, letter.pattern, letter.events[0].path) == ("hook /bin/sh", "/memory/*", "/memory/a")
    assert "status 7: no" in letter.error
    assert world.do(operator, "redeliver", messages=[letter.message]) == {"count": 1}
    until(lambda: ran.read_text() == "\n\n" and figures[-1]["dead"] == 1)
