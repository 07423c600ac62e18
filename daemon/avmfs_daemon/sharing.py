"""Which of the hosts that share a store keeps house, what it does to the log, and what a strict mount waits for. Called
by the keeper and by mounts."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from avmfs import calls
from avmfs.calls import Background
from avmfs.errors import AvmError, Busy, NotFound, Stale, StoreFailed
from avmfs.store.identity import OPERATOR
from avmfs.store.sharedlog.protocol import SharedLog, Unreachable
from avmfs.store.store import Store

log = logging.getLogger(__name__)

ASKED_S: Final = 1.0
FOLLOWED_S: Final = 10.0  # so long a look waits for what others have appended to be applied here
PAUSE_S: Final = 60.0  # after one that found the log's tables read: each keeps all hosts waiting for a moment
SILENT_S: Final = 60.0  # a host of which nothing was heard for so long is not waited for
_AGAIN_S: Final = 0.0005
_LOOK_S: Final = 0.2  # as often who waits for another one's answer looks whether anybody waits for its own


class House:
    """One host at a time does what is to be done once: vectors, deliveries, expiry, the audit's chain. ``begins`` is
    called when that is this host, ``ends`` when it was and can no longer be sure. ``refused`` says why no change is
    taken here, "" where they are: another host can do what this one cannot write down."""

    def __init__(self, shared: SharedLog, refused: Callable[[], str] = lambda: "") -> None:
        self._log, self._refused = shared, refused
        self._asked_at = float("-inf")
        self._mine = False
        self.begins: Callable[[], None] = lambda: None
        self.ends: Callable[[], None] = lambda: None

    def mine(self) -> bool:
        if time.monotonic() - self._asked_at < ASKED_S:
            return self._mine
        self._asked_at = time.monotonic()
        try:
            mine = self._log.keep(time.time(), not self._refused())
        except Unreachable as e:
            log.info("who keeps house is not known: %s", e)
            mine = False
        if mine and not self._mine:
            self.begins()
        elif self._mine and not mine:
            self.ends()
        self._mine = mine
        return mine


class Forgetting:
    """What was purged goes from the shared log as well: a snapshot without it takes the place of all before. Hosts that
    are there are waited for; one that has been silent for SILENT_S joins anew. ``open_log`` makes a connection.
    ``step`` may be called at any time: a snapshot takes its time, in a thread of its own."""

    def __init__(self, store: Store, open_log: Callable[[], SharedLog], database: Path, host: str) -> None:
        self._store, self._open_log, self._database, self._host = store, open_log, database, host
        self._taken: tuple[str, int] | None = None  # for which purge a snapshot is there, and its number
        self._work = Background("forgetting")
        self._again_at = 0.0
        self._said = ""  # of what went wrong last

    def step(self) -> None:
        if not self._work.busy and time.monotonic() >= self._again_at and self._store.uncut() is not None:
            self._work.start(self._run)

    def _run(self) -> None:
        try:
            self.run()
            self._said = ""
        except AvmError as e:
            if str(e) != self._said:  # a log that cannot be reached says so at every look
                log.error("what was purged is not out of the shared log yet: %s", e)
            self._said = str(e)

    def run(self) -> None:
        """Raises AvmError; can be repeated."""
        from avmfs.store.backup import cluster

        purged = self._store.uncut()
        if purged is None:
            return
        if self._store.unwiped():
            with contextlib.suppress(Busy):  # a reader is in the way
                self._store.submit(OPERATOR, "wipe")
            if self._store.unwiped():
                return
        with contextlib.closing(self._open_log()) as shared:
            if self._taken is None or self._taken[0] != purged:
                try:
                    self._taken = purged, cluster.snapshot(self._database, shared, self._host)
                except (Busy, Stale):  # purged again meanwhile, or another host has put a newer one: at the next look
                    return
            number = self._taken[1]
            if any(each.number < number and each.age_s < SILENT_S for each in shared.hosts()):
                return
            try:
                shared.cut(number)
            except NotFound:  # others have put newer ones
                self._taken = None
                raise
            except Busy:
                self._again_at = time.monotonic() + PAUSE_S
                raise
        self._store.submit(OPERATOR, "wipe", cut=purged)
        log.info("what was purged is out of the shared log, which begins behind record %d", number)


class Head:
    """The end of the shared log. What is read after ``wait`` is no older than what any host had acknowledged before.
    ``followed`` says up to where this host has it."""

    def __init__(self, shared: SharedLog, followed: Callable[[], int]) -> None:
        self._log, self._followed = shared, followed
        self._mutex = threading.Lock()
        self._asked_at, self._newest = float("-inf"), 0
        self._failure = ""  # of that ask

    def wait(self) -> None:
        """From many threads. Raises StoreFailed where the log does not say, or this host does not follow."""
        newest, began = self._ask(time.monotonic()), time.monotonic()
        while self._followed() < newest:
            if time.monotonic() - began > FOLLOWED_S:
                raise StoreFailed(f"coherence is strict, and record {newest} of the shared log is not applied here yet")
            calls.go_on()
            time.sleep(_AGAIN_S)

    def _ask(self, now: float) -> int:
        """Whoever has waited while another one began to ask takes that answer; and who began before one failed has
        waited long enough."""
        while not self._mutex.acquire(timeout=_LOOK_S):
            calls.go_on()
        try:
            if self._asked_at <= now:
                began = time.monotonic()
                try:
                    self._newest, self._failure, self._asked_at = self._log.head(), "", began
                except Unreachable as e:
                    self._failure, self._asked_at = e.reason, time.monotonic()
            if self._failure:
                raise StoreFailed(f"coherence is strict: {self._failure}")
            return self._newest
        finally:
            self._mutex.release()
