"""What one request may take of the door, whose process all agents share.

Owns the call of a request that a client waits for. What a request does without looking here is short. Work that goes on
asks now and then whether it should (``calls.go_on``): not once its client has hung up, not beyond a limit of
processor time, and from HEAVY_S on only while no other heavy request of the same agent is at work, so that many of one
agent take no more of the processor from others than one does. What sleeps until something happens has no turn, and
what may take minutes gives it up between its steps, so that nothing else of its agent is refused meanwhile.
"""

from __future__ import annotations

import math
import select
import socket
import threading
import time
from typing import Final

from avmfs import calls
from avmfs.access import Principal
from avmfs.errors import Busy, TimedOut

HEAVY_S: Final = 0.02  # of processor time
LIMIT_S: Final = 30.0
TURN_S: Final = 5.0  # that it waits for its turn: it may have a snapshot open, from which on the log grows
WAITING: Final = 4  # requests of one agent at once
SLICE_S: Final = 0.5  # that work in steps keeps its turn while others wait,
BREATH_S: Final = 0.01  # and leaves it to them to take it
PLACE_S: Final = 1.0  # until one more is refused: who then asks again at once takes HEAVY_S each time
LOOK_S: Final = 0.1  # between two looks at a client


class _Turn:
    """``work`` is held by the one heavy request of an agent, a place in ``queue`` by each that waits for that; with
    those that have given way they are ``waiting``."""

    def __init__(self) -> None:
        self.waiting: set[ClientsCall] = set()
        self.work, self.queue = threading.Lock(), threading.BoundedSemaphore(WAITING)


class Fairness:
    """One per door."""

    def __init__(self) -> None:
        self._scheduler: dict[tuple[str, bool | str], _Turn] = {}  # by agent, and as whom it asks

    def call(self, client: socket.socket, who: Principal) -> ClientsCall:
        """A request that is about to be answered, in this thread. ``done`` when it is."""
        whose = who.name, who.rights  # a key may be narrow: it keeps no other one up
        turn = self._scheduler.get(whose) or self._scheduler.setdefault(whose, _Turn())
        return ClientsCall(client, turn)


class ClientsCall(calls.Call):
    """See the module. ``resting``: it last waited for something to happen."""

    __slots__ = ("_began", "_client", "_holds", "_looked", "_since", "_turn", "resting")
    look_every_s = 1.0

    def __init__(self, client: socket.socket, turn: _Turn) -> None:
        super().__init__()
        self._client, self._turn, self._holds = client, turn, False
        self._began, self._looked, self._since = time.thread_time(), time.monotonic(), 0.0
        self.resting = False

    def look(self) -> None:
        if self.resting:  # what it slept for came, and its client may have gone just before
            self.resting, self._looked = False, 0.0
        used = time.thread_time() - self._began
        if used > LIMIT_S:
            raise TimedOut(f"a request may take {LIMIT_S:g} s of the daemon's processor: ask for less")
        self._look_at_client()
        if used > HEAVY_S and not self._holds:
            self._await_turn()

    def _await_turn(self) -> None:
        if self._take(0):
            return
        if not self._turn.queue.acquire(timeout=PLACE_S):
            raise Busy(f"a long request of this agent is being answered, and {WAITING} more wait for that: ask later")
        try:
            self._wait(TURN_S)
        finally:
            self._turn.queue.release()

    def _wait(self, most_s: float) -> None:
        until = time.monotonic() + most_s
        self._turn.waiting.add(self)
        try:
            while not self.given_up and not self._take(LOOK_S):
                self._look_at_client()
                if time.monotonic() > until:
                    raise Busy(f"other long requests of this agent were being answered for {most_s:g} s: ask later")
        finally:
            self._turn.waiting.discard(self)

    def _take(self, timeout_s: float) -> bool:
        self._holds, self._since = self._turn.work.acquire(timeout=timeout_s), time.monotonic()
        return self._holds

    def give_way(self) -> None:
        if self._holds and self._turn.waiting and time.monotonic() - self._since >= SLICE_S:
            self.done()
            time.sleep(BREATH_S)
            self._wait(math.inf)  # what it has done so far is not to be lost

    def rest(self) -> None:
        self.resting = True
        self.done()
        self._look_at_client()

    def done(self) -> None:
        if self._holds:
            self._holds = False
            self._turn.work.release()

    def _look_at_client(self) -> None:
        if time.monotonic() - self._looked <= LOOK_S:
            return
        self._looked = time.monotonic()
        poll = select.poll()
        poll.register(self._client, 0)
        # Not of one that has only ended its own side: it may wait for the answer.
        if any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0)):
            self.give_up()
