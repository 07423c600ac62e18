"""Which of the hosts that share a store keeps house, and what a strict mount waits for. Called by the keeper and by
mounts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from avmfs.errors import StoreFailed
from avmfs.store.sharedlog.protocol import SharedLog, Unreachable

log = logging.getLogger(__name__)

ASKED_S: Final = 1.0
FOLLOWED_S: Final = 10.0  # so long a look waits for what others have appended to be applied here
_AGAIN_S: Final = 0.0005


class House:
    """One host at a time does what is to be done once: vectors, deliveries, expiry, the audit's chain. ``begins`` is
    called when that is this host, ``ends`` when it was and can no longer be sure."""

    def __init__(self, shared: SharedLog) -> None:
        self._log = shared
        self._asked_at = float("-inf")
        self._mine = False
        self.begins: Callable[[], None] = lambda: None
        self.ends: Callable[[], None] = lambda: None

    def mine(self) -> bool:
        if time.monotonic() - self._asked_at < ASKED_S:
            return self._mine
        self._asked_at = time.monotonic()
        try:
            mine = self._log.keep()
        except Unreachable as e:
            log.info("who keeps house is not known: %s", e)
            mine = False
        if mine and not self._mine:
            self.begins()
        elif self._mine and not mine:
            self.ends()
        self._mine = mine
        return mine


class Head:
    """The end of the shared log. What is read after ``wait`` is no older than what any host had acknowledged before.
    ``followed`` says up to where this host has it."""

    def __init__(self, shared: SharedLog, followed: Callable[[], int]) -> None:
        self._log, self._followed = shared, followed
        self._mutex = threading.Lock()
        self._asked_at, self._newest = float("-inf"), 0

    def wait(self) -> None:
        """From many threads. Raises StoreFailed where the log does not say, or this host does not follow."""
        newest, began = self._ask(time.monotonic()), time.monotonic()
        while self._followed() < newest:
            if time.monotonic() - began > FOLLOWED_S:
                raise StoreFailed(f"coherence is strict, and record {newest} of the shared log is not applied here yet")
            time.sleep(_AGAIN_S)

    def _ask(self, now: float) -> int:
        """Whoever has waited while another one began to ask takes that answer."""
        with self._mutex:
            if self._asked_at <= now:
                asked_at = time.monotonic()
                try:
                    self._newest = self._log.head()
                except Unreachable as e:
                    raise StoreFailed(f"coherence is strict: {e.reason}") from e
                self._asked_at = asked_at
            return self._newest
