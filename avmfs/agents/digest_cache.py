"""The digests of this store: making them, and asking those that are known.

Owns the step of housekeeping that publishes digests, and what a process remembers of them between questions. A digest
is made of what everybody may learn and of nothing else, so there is one for all readers. It follows the topics with a
pause: whoever must not wait asks the librarian.
"""

from __future__ import annotations

import itertools
import operator
import threading
import time
from collections.abc import Callable
from typing import Final

from avmfs.agents import bloom
from avmfs.store.identity import OPERATOR
from avmfs.store.queries.discovery import Host
from avmfs.store.queries.nodes import Reader
from avmfs.store.store import Store

PAUSE_S: Final = 2.0
SHARE: Final = 50  # of the time, at most one part in so many goes into making digests


def publish(store: Store) -> int:
    """Make all digests of this store anew; how many are others than before."""
    with store.reading(OPERATOR) as reader:
        privacy = reader.discovery.topics_state()[1]
        rows = itertools.groupby(reader.discovery.known_to_all(), operator.itemgetter(0))
        made = [[agent, bloom.digest({key for _, key in group})] for agent, group in rows]
    return int(store.submit(OPERATOR, "publish_digests", digests=made, privacy=privacy)["changed"])


class Publisher:
    """The step for housekeeping: it does something when topics or modes have changed, not too often."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._state: tuple[int, int] | None = None
        self._not_before = float("-inf")

    def step(self) -> None:
        now = self._clock()
        if now < self._not_before:
            return
        with self._store.reading(OPERATOR) as reader:
            state = reader.discovery.topics_state()
        if state == self._state:
            return
        publish(self._store)
        self._state, done = state, self._clock()
        self._not_before = done + max(PAUSE_S, SHARE * (done - now))


class DigestCache:
    """All digests that the store has, laid out for questions; laid out anew when one has changed. Threads may share
    it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._kept: tuple[int, bloom.Directory, tuple[Host, ...]] | None = None

    def current(self, reader: Reader) -> tuple[bloom.Directory, tuple[Host, ...]]:
        state = reader.discovery.digest_state()
        kept = self._kept
        if kept is None or kept[0] != state:
            with self._mutex:
                kept = self._kept
                if kept is None or kept[0] != state:
                    rows = reader.discovery.digests()
                    directory = bloom.Directory([(bloom.Member(row.host, row.agent), row.bits) for row in rows])
                    kept = self._kept = (state, directory, tuple(reader.discovery.hosts()))
        return kept[1], kept[2]
