"""At the door: one agent's long work takes turns, ends at a limit, and ends when its client hangs up."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

import pytest

from avmfs import calls
from avmfs.access import Key, Principal
from avmfs.agents import waiting
from avmfs.errors import AvmError, Busy, Interrupted, TimedOut
from avmfs.rpc import fairness
from avmfs.rpc.fairness import ClientsCall, Fairness
from avmfs.store.store import Store

LIMIT_S = 200.0
ALICE, BOB = Principal("alice"), Principal("bob")


class Client:
    """One that has asked for something. ``step`` has its thread look once; ``said`` is what came of it."""

    def __init__(self, door: Fairness, who: Principal, work: Callable[[], object]) -> None:
        self.own, self.theirs = socket.socketpair()
        self.said: list[AvmError | None] = []
        self.looked, self.over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, args=(door, who, work), daemon=True)
        self._thread.start()

    def _work(self, door: Fairness, who: Principal, work: Callable[[], object]) -> None:
        self.call = calls.working.call = call = door.call(self.theirs, who)
        try:
            work()
            self.said.append(None)
        except AvmError as e:
            self.said.append(e)
        self.looked.set()
        self.over.wait(LIMIT_S)
        call.done()

    def end(self) -> None:
        self.over.set()
        self._thread.join(LIMIT_S)
        self.own.close()
        self.theirs.close()
        assert not self._thread.is_alive()


class Asks(Protocol):
    def __call__(self, who: Principal, work: Callable[[], object] = calls.go_on) -> Client: ...


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asks]:
    """Whatever looks is heavy, and its client is looked at."""
    monkeypatch.setattr(fairness, "HEAVY_S", -1.0)
    monkeypatch.setattr(fairness, "LOOK_S", 0.01)
    monkeypatch.setattr(fairness, "TURN_S", LIMIT_S)
    door, made = Fairness(), list[Client]()

    def ask(who: Principal, work: Callable[[], object] = calls.go_on) -> Client:
        made.append(Client(door, who, work))
        return made[-1]

    yield ask
    for client in made:
        client.over.set()
    for client in made:
        client.end()


def test_who_went_while_its_call_slept_is_missed_at_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "LOOK_S", LIMIT_S)
    own, theirs = socket.socketpair()
    with theirs:
        call = Fairness().call(theirs, BOB)
        call.rest()
        own.close()
        call.look()
        assert call.given_up


def test_a_second_heavy_request_of_an_agent_waits_and_others_do_not(asks: Asks) -> None:
    first = asks(BOB)
    assert first.looked.wait(LIMIT_S)
    second = asks(BOB)
    assert not second.looked.wait(0.2)
    other = asks(ALICE)
    assert other.looked.wait(LIMIT_S) and other.said == [None]
    assert not second.looked.is_set()
    first.end()
    assert second.looked.wait(LIMIT_S) and second.said == [None]


def test_one_that_waits_for_its_turn_ends_with_its_client(asks: Asks) -> None:
    first = asks(BOB)
    assert first.looked.wait(LIMIT_S)
    second = asks(BOB)
    second.own.close()
    assert second.looked.wait(LIMIT_S) and isinstance(second.said[0], Interrupted)
    second.end()
    first.end()
    third = asks(BOB)
    assert third.looked.wait(LIMIT_S) and third.said == [None], "nothing is held by who left"


def test_nobody_waits_for_a_turn_for_long(asks: Asks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "TURN_S", 0.05)
    assert asks(BOB).looked.wait(LIMIT_S)
    second = asks(BOB)
    assert second.looked.wait(LIMIT_S) and isinstance(second.said[0], Busy)


def test_work_in_steps_gives_way_between_them_and_is_never_refused_itself(
    asks: Asks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fairness, "SLICE_S", 0.0)
    begun, over = threading.Event(), threading.Event()

    def steps() -> None:
        while not over.is_set():
            calls.next_step()
            begun.set()

    first = asks(BOB, steps)
    assert begun.wait(LIMIT_S)
    second = asks(BOB)
    assert second.looked.wait(LIMIT_S) and second.said == [None]
    monkeypatch.setattr(fairness, "TURN_S", 0.0)
    assert not first.looked.wait(0.2), "it waits until the other one is answered"
    second.end()
    over.set()
    assert first.looked.wait(LIMIT_S) and first.said == [None]


def test_who_finds_too_many_waiting_is_refused_but_not_at_once(asks: Asks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks again at once would have a thread at work all the time."""
    monkeypatch.setattr(fairness, "WAITING", 1)
    monkeypatch.setattr(fairness, "PLACE_S", LIMIT_S)
    first = asks(BOB)
    assert first.looked.wait(LIMIT_S)
    second, third = asks(BOB), asks(BOB)
    queue = cast(Any, first.call._turn.queue)
    deadline = time.monotonic() + LIMIT_S
    while not (first.call._turn.waiting and queue._cond._waiters):  # one for its turn, one for a place
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert not second.looked.is_set() and not third.looked.is_set()
    monkeypatch.setattr(fairness, "PLACE_S", 0.01)
    fourth = asks(BOB)
    assert fourth.looked.wait(LIMIT_S) and isinstance(fourth.said[0], Busy)
    first.end()
    second.over.set()
    third.over.set()
    assert all(each.looked.wait(LIMIT_S) for each in (second, third)) and second.said == third.said == [None]


def test_work_ends_when_its_client_hangs_up_and_not_when_it_only_asks_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fairness, "LOOK_S", -1.0)
    own, theirs = socket.socketpair()
    with own, theirs:
        monkeypatch.setattr(calls.working, "call", Fairness().call(theirs, BOB), raising=False)
        calls.go_on()
        own.shutdown(socket.SHUT_WR)
        calls.go_on()
        own.close()
        with pytest.raises(Interrupted):
            calls.go_on()


def test_light_work_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "HEAVY_S", 1e9)
    door = Fairness()
    own, theirs = socket.socketpair()
    with own, theirs:
        for _ in range(2):
            monkeypatch.setattr(calls.working, "call", door.call(theirs, BOB), raising=False)
            calls.go_on()


def test_a_request_has_so_much_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "LIMIT_S", -1.0)
    own, theirs = socket.socketpair()
    with own, theirs:
        monkeypatch.setattr(calls.working, "call", Fairness().call(theirs, BOB), raising=False)
        with pytest.raises(TimedOut, match="of the daemon's processor"):
            calls.go_on()


class Watched:
    """The writer's notices of a store: whoever watches is told once, as it begins, and then by ``notify``."""

    def __init__(self) -> None:
        self.notify: Callable[[int], None] = lambda seq: None
        self.mail, self.watched, self.asked = threading.Event(), threading.Event(), threading.Event()

    def watch(self, notify: Callable[[int], None], mail: bool = False) -> AbstractContextManager[None]:
        self.notify = notify
        notify(0)
        self.watched.set()
        return nullcontext()

    def ready(self) -> bool:
        if self.watched.is_set():
            self.asked.set()
        return self.mail.is_set()

    def until_mail(self) -> None:
        assert waiting.until(cast(Store, self), self.ready, LIMIT_S)


def test_who_waits_for_mail_gives_its_turn_back_and_takes_none(asks: Asks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientsCall, "look_every_s", 0.01)
    store = Watched()

    def work() -> None:
        calls.go_on()  # takes the turn
        store.until_mail()

    first = asks(BOB, work)
    assert store.asked.wait(LIMIT_S)
    for _ in range(3):
        second = asks(BOB)
        assert second.looked.wait(LIMIT_S / 2) and second.said == [None]
        second.end()
    first.own.close()
    assert first.looked.wait(LIMIT_S) and isinstance(first.said[0], Interrupted)


def test_mail_arrives_while_another_request_has_the_turn(asks: Asks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientsCall, "look_every_s", 0.01)
    assert asks(BOB).looked.wait(LIMIT_S)
    store = Watched()
    second = asks(BOB, store.until_mail)
    assert store.asked.wait(LIMIT_S) and not second.looked.wait(0.1)
    store.mail.set()
    store.notify(1)
    assert second.looked.wait(LIMIT_S / 2) and second.said == [None]


def test_few_wait_for_a_turn_and_more_are_refused_at_once(asks: Asks) -> None:
    first = asks(BOB)
    assert first.looked.wait(LIMIT_S)
    looked = threading.Semaphore(0)

    def work() -> None:
        try:
            calls.go_on()
        finally:
            looked.release()

    more = [asks(BOB, work) for _ in range(fairness.WAITING + 1)]
    assert looked.acquire(timeout=LIMIT_S / 2) and not looked.acquire(timeout=0.2)
    for each in (first, *more):
        each.over.set()
    assert all(each.looked.wait(LIMIT_S) for each in more)
    refused = [each.said[0] for each in more if each.said != [None]]
    assert len(refused) == 1 and isinstance(refused[0], Busy) and f"{fairness.WAITING} more" in str(refused[0])


def test_who_shows_an_api_key_does_not_take_the_turn_of_its_agent(asks: Asks) -> None:
    keys = [Principal("bob", key=Key(name, None, ("read",))) for name in ("k1", "k2")]
    first = asks(keys[0])
    assert first.looked.wait(LIMIT_S)
    second = asks(keys[0])
    for who in (Principal("bob"), keys[1]):
        other = asks(who)
        assert other.looked.wait(LIMIT_S / 2) and other.said == [None]
    assert not second.looked.is_set(), "one turn a key"
