"""Housekeeping beside the writer: indexing, vectors, expiry, orphans.

Runs in one supervised child. Reads the store, submits commands, asks for vectors; holds no state that a restart
would lose. Woken after commits, and every few seconds in case a notice was missed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from avmfs.embed.protocol import Embedder, EmbeddingUnavailable
from avmfs.errors import AvmError
from avmfs.search.indexer import embed_some
from avmfs.store.protocol import Store
from avmfs.store.submit import OPERATOR

log = logging.getLogger(__name__)

IDLE_S: Final = 5.0
RETRY_S: Final = 1.0  # while the model is loading
SETTLE_S: Final = 0.1  # between two looks at what was committed; the writer indexes the words, as soon as it is idle
CHORES_S: Final = 30.0
ORPHAN_S: Final = 120.0
CLIENTS_S: Final = 24 * 3600.0
CLIENT_SILENCE_NS: Final = 7 * 24 * 3600 * 1_000_000_000


class InformedEmbedder(Embedder, Protocol):
    def info(self) -> tuple[str, int]: ...


class Keeper:
    """`run` works until `stop`; both that and `wake` may be called from any thread."""

    def __init__(
        self, store: Store, embedder: InformedEmbedder | None, clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], int] = time.time_ns,
    ) -> None:  # fmt: skip
        self._store = store
        self._embedder = embedder
        self._clock = clock
        self._wall_clock = wall_clock
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._model = ""
        self._pause = IDLE_S
        self._orphans: dict[int, tuple[int, float]] = {}  # node: (newest hold seen, since when by our clock)
        self._chores_at = self._clients_at = clock()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        self._stopping.set()
        self._woken.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                more = self.step()
            except AvmError as e:
                log.error("%s", e)
                more = False
            if not more:
                self._woken.wait(self._pause)
                self._woken.clear()

    def step(self) -> bool:
        """One piece of each kind of work; whether more waits."""
        _, semantic = self._store.queue_lengths()
        more = self._embed(semantic > 0) if self._embedder is not None else False
        if self._clock() >= self._chores_at:
            self._chores_at = self._clock() + CHORES_S
            if self._store.anything_expired():
                self._store.submit(OPERATOR, "reap_expired")
            self.reap_orphans()
        if self._clock() >= self._clients_at:
            self._clients_at = self._clock() + CLIENTS_S
            self._store.submit(OPERATOR, "forget_clients", before=self._wall_clock() - CLIENT_SILENCE_NS)
        return more

    def reap_orphans(self) -> None:
        """Free unlinked files on which no mount has renewed its hold while we watched for ORPHAN_S.

        By our own monotonic clock, so that neither a jump of the wall clock nor a suspended machine frees the
        bytes of a file that is open.
        """
        now, watched = self._clock(), self._orphans
        self._orphans = {}
        for node, held in self._store.orphans():
            seen, since = watched.get(node, (None, now))
            self._orphans[node] = (held, since if seen == held else now)
        over = [node for node, (_, since) in self._orphans.items() if now - since >= ORPHAN_S]
        if over:
            self._store.submit(OPERATOR, "reap_orphans", nodes=over)

    def _embed(self, waiting: bool) -> bool:
        assert self._embedder is not None
        self._pause = IDLE_S
        try:
            model, _ = self._embedder.info()
            if model != self._model:
                # Vectors of another model are of no use to this one; what lacks its own is queued again.
                self._store.submit(OPERATOR, "reindex", model=model)
                self._model, waiting = model, True
            if not waiting:
                return False
            return embed_some(self._store, self._embedder, model)
        except EmbeddingUnavailable:
            self._pause = RETRY_S
            return False
