"""Connections to the daemon's door, one caller's apart from every other's, kept for the next request.

Owns how many there are, of one agent whatever it shows, and when one is closed. A call goes the way of any client's:
identity, limits, turns and time limits are the door's own. Threads share it; each call has a connection for itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from avmfs.errors import Busy, Denied
from avmfs.rpc.client import RemoteDoor

EACH: Final = 16  # connections of one agent
ALL: Final = 96  # of everybody: with those of MCP less than the door takes of one Unix user
FULL: Final = "too many requests are being answered: ask later"
KEPT_S: Final = 60.0  # an idle one; less than the door waits


class Unauthorized(Denied):
    """Nobody is let in by what was shown."""


@dataclass(frozen=True, slots=True)
class Caller:
    """As whom the door is asked: an agent, perhaps as the operator, or whose ``key`` that is (``agent`` None then).
    ``stranger``: another Unix user than the daemon's has signed in."""

    agent: str | None
    operator: bool = False
    key: str = field(default="", repr=False)
    stranger: bool = False


NOBODY: Final = Caller("")


class Line:
    """One call under way. ``hang_up``, from any thread, ends it with Busy, in the door as well."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._door: RemoteDoor | None = None
        self.over = False

    def use(self, door: RemoteDoor | None) -> None:
        with self._mutex:
            self._door = door
            if self.over and door is not None:
                door.close()

    def hang_up(self) -> None:
        with self._mutex:
            self.over = True
            if self._door is not None:
                self._door.close()


class Doors:
    """``close`` when nobody asks any more."""

    def __init__(self, address: Path) -> None:
        self._address = address
        self._mutex = threading.Lock()
        self._idle: dict[Caller, list[tuple[RemoteDoor, float]]] = {}
        self._taken: Counter[str] = Counter()  # by ``whose``
        self._agents: dict[str, str] = {}  # of API keys that have let somebody in

    def call(self, caller: Caller, method: str, arguments: dict[str, Any], line: Line | None = None) -> tuple[Any, str]:
        """The method's result, and the banner of unread urgent mail. Raises what the door raises, Unauthorized for a
        key that opens nothing, Busy for too many calls at once."""
        door, fresh = self.take(caller)
        good = False
        try:
            if line is not None:
                line.use(door)
            result = door.call(method, **arguments)
            good = True
            return result, door.urgent
        except Denied:
            if caller.key and not fresh:
                self._open(caller).close()  # perhaps the key was revoked meanwhile: a new greeting says so
            good = True
            raise
        except OSError as e:
            good = not isinstance(e, Busy)
            raise
        finally:
            if line is not None:
                line.use(None)
            self.put_back(caller, door, good and (line is None or not line.over))

    def admit(self, caller: Caller) -> None:
        """Raises Unauthorized, Denied or Busy where the door does not let this caller in."""
        door, _ = self.take(caller)
        self.put_back(caller, door, True)

    def agent_of(self, caller: Caller) -> str:
        """Whom a caller speaks for."""
        door, _ = self.take(caller)
        self.put_back(caller, door, True)
        return door.agent

    def whose(self, caller: Caller) -> str:
        """The agent that a caller counts as; the key itself until it has let somebody in."""
        return self._agents.get(caller.key, caller.key) if caller.agent is None else caller.agent

    def take(self, caller: Caller) -> tuple[RemoteDoor, bool]:
        """A connection of this caller's own until it is put back, and whether it is a new one."""
        with self._mutex:
            who = self.whose(caller)
            if self._taken[who] >= EACH or self._taken.total() >= ALL:
                raise Busy(FULL)
            self._taken[who] += 1
            kept = self._idle.get(caller, [])
            while kept:
                door, since = kept.pop()
                if time.monotonic() - since < KEPT_S and not door.ended():
                    return door, False
                door.close()
            self._idle.pop(caller, None)
            spare = self._surplus()
        for door in spare:
            door.close()
        try:
            door = self._open(caller)
        except BaseException:
            with self._mutex:
                self._taken[who] -= 1
            raise
        with self._mutex:
            self._taken[who] -= 1
            self._taken[door.agent] += 1
            full = self._taken[door.agent] > EACH
            if caller.key:
                self._agents[caller.key] = door.agent
        if full:  # by another key of the same agent, while it was not known whose this one is
            self.put_back(caller, door, True)
            raise Busy(FULL)
        return door, True

    def put_back(self, caller: Caller, door: RemoteDoor, good: bool) -> None:
        with self._mutex:
            self._taken[door.agent] -= 1
            self._taken += Counter()  # without those that have none
            if good:
                self._idle.setdefault(caller, []).append((door, time.monotonic()))
        if not good:
            door.close()

    def close(self) -> None:
        with self._mutex:
            kept = [door for doors in self._idle.values() for door, _ in doors]
            self._idle.clear()
        for door in kept:
            door.close()

    def _open(self, caller: Caller) -> RemoteDoor:
        try:
            return RemoteDoor(
                self._address,
                caller.agent,
                operator=caller.operator,
                timeout_s=120,
                key=caller.key,
                route="http",
                stranger=caller.stranger,
                owner=os.geteuid(),
            )
        except Denied as e:
            if caller.key:
                self._forget(caller)
                raise Unauthorized(e.reason) from None
            raise

    def _forget(self, caller: Caller) -> None:
        with self._mutex:
            kept = self._idle.pop(caller, [])
        for door, _ in kept:
            door.close()

    def _surplus(self) -> list[RemoteDoor]:
        """Idle ones that are too old, and the oldest of what would be too many, taken out. Under the mutex."""
        now = time.monotonic()
        everything = sorted(
            ((since, caller, door) for caller, kept in self._idle.items() for door, since in kept), key=lambda e: e[0]
        )
        room = ALL - self._taken.total()
        out = [e for number, e in enumerate(everything) if now - e[0] > KEPT_S or len(everything) - number > room]
        for since, caller, door in out:
            self._idle[caller].remove((door, since))
            if not self._idle[caller]:
                del self._idle[caller]
        return [door for _, _, door in out]
