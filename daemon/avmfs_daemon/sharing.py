"""Which of the hosts that share a store keeps house. Called by the keeper."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from avmfs.store.sharedlog.protocol import SharedLog, Unreachable

log = logging.getLogger(__name__)

ASKED_S: Final = 1.0


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
