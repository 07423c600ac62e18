"""Housekeeping beside the writer: indexing, vectors, expiry, orphans, mail that was read.

Runs in one supervised child. Reads the store, submits commands, asks for vectors; holds no state that a restart
would lose. Woken after commits, and every few seconds in case a notice was missed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, Protocol

from avmfs_config import Limits

from avmfs.agents.auditing import Chainer
from avmfs.embed.protocol import Embedder, EmbeddingUnavailable
from avmfs.errors import AvmError, StoreFailed
from avmfs.localtime import DAY_NS
from avmfs.search.indexer import BATCH, embed_some, follow_model
from avmfs.store.identity import OPERATOR
from avmfs.store.schema import database
from avmfs.store.store import Store

log = logging.getLogger(__name__)

IDLE_S: Final = 5.0
RETRY_S: Final = 1.0  # while the model is loading
SETTLE_S: Final = 0.1  # between two looks at what was committed; the writer indexes the words, as soon as it is idle
CHORES_S: Final = 30.0
LOOK_S: Final = 10.0  # between two looks at files without a name: one that was open at neither can be freed
ORPHAN_S: Final = 120.0  # where it is not known what is open: a mount says every half minute what it still has
ASKED: Final = 5_000  # files at a look,
REAPED: Final = 256  # and so many go at once: others wait for it
ROUNDS: Final = 100  # of one kind of work at a look
MAIL_S: Final = 300.0
MAIL_AT_ONCE: Final = 1000  # in one transaction, for which others wait
PAST_S: Final = 600.0  # between two looks at what the past and the trash need not keep
CLIENTS_S: Final = 24 * 3600.0
CLIENT_SILENCE_NS: Final = 7 * DAY_NS
TELL_S: Final = 1.0  # between reports of progress
BUSY_PER_S: Final = 50.0  # so many changes a second come from somebody who writes as fast as it goes;
PACE_S: Final = 0.5  # measured over at least this long, unless so many came sooner
HOLD_S: Final = 1.0  # meanwhile vectors are made this often at most,
TRICKLE: Final = 8  # only so many,
RESTS: Final = 20  # and after so many times as long as it took: texts are long or short, and processors busy


def trim_mail(store: Store, limits: Limits, now: int) -> int:
    """Remove messages that were read and are too old or too many; ``now`` is ns since the epoch. Return how many
    deliveries. Unread mail is never trimmed: how much of it there can be is limited where it is sent."""
    before, keep = now - limits.read_days * DAY_NS, limits.read_messages
    return _in_rounds(
        lambda limit: store.submit(OPERATOR, "trim_mail", before=before, keep=keep, limit=limit)["count"], MAIL_AT_ONCE
    )


def _in_rounds(work: Callable[[int], int], at_once: int) -> int:
    """Do so much in one transaction, again until less was left. Returns how much was done."""
    total = 0
    for _ in range(ROUNDS):
        done = work(at_once)
        total += done
        if done < at_once:
            break
    return total


def _each(chores: Iterable[Callable[[], object]]) -> None:
    """Do all of them. Raises what the first that failed did, when the others had their turn."""
    failed: AvmError | None = None
    for chore in chores:
        try:
            chore()
        except AvmError as e:
            failed = failed or e
    if failed is not None:
        raise failed


class InformedEmbedder(Embedder, Protocol):
    def info(self) -> tuple[str, int]: ...


class Housekeeper:
    """`run` works until `stop`; both that and `wake` may be called from any thread. `report` hears of progress in
    giving passages their vectors; `also` is called in every round, and sees to it itself how often it works.
    `open_among` says which of these nodes a mount has open, None where that is not known; `gone` hears of those
    that are freed. While `may` says no,
    all of it is left to somebody else."""

    def __init__(
        self,
        store: Store,
        embedder: InformedEmbedder | None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], int] = time.time_ns,
        report: Callable[[dict[str, Any]], None] = lambda figures: None,
        also: Sequence[Callable[[], None]] = (),
        limits: Limits | None = None,
        chainer: Chainer | None = None,
        open_among: Callable[[list[int]], list[int] | None] = lambda nodes: None,
        may: Callable[[], bool] = lambda: True,
        gone: Callable[[list[int]], None] = lambda nodes: None,
    ) -> None:
        self._store = store
        self._embedder = embedder
        self._clock = clock
        self._wall_clock = wall_clock
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._model = ("", 0)
        self._report = report
        self._also = also
        self._figures: dict[str, Any] = {"embedded": 0, "per_second": None, "last_burst": 0, "searchable_after_s": None}
        self._since: float | None = None  # by our clock: when passages began to wait for vectors
        self._burst, self._told_at = 0, float("-inf")
        self._embedded_at, self._took = float("-inf"), 0.0  # the last time, and for how long
        self._newest = 0  # the last change that we heard of
        self._pace, self._paced_at, self._paced = 0.0, clock(), 0  # changes a second, as of when, up to which change
        self._pause = IDLE_S
        self._orphans: dict[int, tuple[int, float]] = {}  # node: (newest hold seen, since when by our clock)
        self._open_among = open_among
        self._may = may
        self._gone = gone
        self._closed: dict[int, float] = {}  # node: since when it is known that it is open nowhere
        self._limits = limits or Limits()
        self._chores_at = self._wipe_at = self._orphans_at = self._clients_at = clock()
        self._mail_at = clock() + MAIL_S
        self._past_at = clock() + PAST_S
        self._chainer = chainer
        self._said = ""
        self._unsummed = True  # may there be contents without a checksum?

    def wake(self, seq: int = 0) -> None:
        """Something was committed: ``seq`` is the newest change."""
        if (
            not self._newest or self._clock() - self._paced_at > 2 * PACE_S
        ):  # nobody wrote: that is no part of how fast somebody does now
            self._pace, self._paced_at, self._paced = 0.0, self._clock(), self._newest or seq
        self._newest = max(self._newest, seq)
        self._woken.set()

    def watching(self, also: Callable[[], None]) -> AbstractContextManager[None]:
        """Be woken, and ``also`` call, a few times a second while somebody commits, and not at every commit."""

        def told(seq: int) -> None:
            also()
            self.wake(seq)

        return self._store.watch(told, every_s=SETTLE_S)

    def stop(self) -> None:
        self._stopping.set()
        self._woken.set()

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                more = self.step() if self._may() else self.of_this_host()
                self._said = ""
            except AvmError as e:
                if str(e) != self._said and not database.logged(e):  # the same at every look
                    log.error("%s", e)
                self._said, more = str(e), False
            if not more:
                self._woken.wait(self._pause)
                self._woken.clear()

    def of_this_host(self) -> bool:
        """What each host has to do to its own file, also where another one keeps house."""
        if self._clock() >= self._wipe_at:
            self._wipe_at = self._clock() + CHORES_S
            if self._store.unwiped():  # whoever purged has not seen to it
                self._store.submit(OPERATOR, "wipe")
        return False

    def step(self) -> bool:
        """One piece of each kind of work; whether more waits."""
        waiting = self._store.vectors_wait()
        try:
            return self._embed(waiting) if self._embedder is not None else False
        finally:  # whatever keeps passages from their vectors keeps nothing else from being done
            self._do_chores()

    def _do_chores(self) -> None:
        _each([*self._own_chores(), self.of_this_host, *self._also])

    def _own_chores(self) -> Iterator[Callable[[], object]]:
        """Those whose time has come. The next one is set before, should it fail."""
        if self._clock() >= self._chores_at:
            self._chores_at = self._clock() + CHORES_S
            yield self._reap_expired
            if self._chainer is not None:
                yield self._chainer.step
            yield self._sum_contents
        if self._clock() >= self._orphans_at:
            self._orphans_at = self._clock() + LOOK_S
            yield self.reap_orphans
        if self._clock() >= self._mail_at:
            self._mail_at = self._clock() + MAIL_S
            yield lambda: trim_mail(self._store, self._limits, self._wall_clock())
        if self._clock() >= self._past_at:
            self._past_at = self._clock() + PAST_S
            yield from (self._trim_trash, self._trim_past)
        if self._clock() >= self._clients_at:
            self._clients_at = self._clock() + CLIENTS_S
            before = self._wall_clock() - CLIENT_SILENCE_NS
            yield lambda: self._store.submit(OPERATOR, "forget_clients", before=before)

    def _reap_expired(self) -> None:
        if self._store.anything_expired():
            _in_rounds(lambda limit: self._store.submit(OPERATOR, "reap_expired", limit=limit)["reaped"], REAPED)

    def _sum_contents(self) -> None:
        if self._unsummed:
            self._unsummed = self._store.submit(OPERATOR, "sum_contents")["more"]

    def _trim_trash(self) -> None:
        before, most = self._wall_clock() - self._limits.trash_days * DAY_NS, self._limits.trash_bytes
        _in_rounds(
            lambda limit: self._store.submit(OPERATOR, "trim_trash", before=before, most=most, limit=limit)["removed"],
            REAPED,
        )

    def _trim_past(self) -> None:
        if self._store.submit(OPERATOR, "trim_past")["more"]:
            self._past_at = self._clock() + PACE_S

    def reap_orphans(self) -> None:
        """Free unlinked files that no mount had open at two looks, or, where that is not known, on which none has
        renewed its hold while we watched for ORPHAN_S.

        At two looks, for what was about to be opened at the first. By our own monotonic clock, so that neither a jump
        of the wall clock nor a suspended machine frees the bytes of a file that is open.
        """
        now, watched = self._clock(), self._orphans
        self._orphans = {}
        for node, held in self._store.orphans():
            seen, since = watched.get(node, (None, now))
            self._orphans[node] = (held, since if seen == held else now)
        asked = list(self._orphans)[:ASKED]
        found = self._open_among(asked) if asked else []
        known = [] if found is None else set(asked).difference(found)
        answered = self._clock()  # which may have taken a while: the next look is to be that much later
        self._orphans_at = answered + LOOK_S
        self._closed = {node: self._closed.get(node, answered) for node in known}
        for node in found or ():
            self._orphans[node] = (self._orphans[node][0], answered)
        over = [
            node
            for node, (_, since) in self._orphans.items()
            if now - since >= ORPHAN_S or now - self._closed.get(node, now) >= LOOK_S
        ]
        self._gone(over)
        _each(partial(self._free, over[first : first + REAPED]) for first in range(0, len(over), REAPED))

    def _free(self, nodes: list[int]) -> None:
        """One that is damaged keeps none of the others; a huge one may take several looks."""
        try:
            for _ in range(ROUNDS):
                if not self._store.submit(OPERATOR, "reap_orphans", nodes=nodes)["more"]:
                    break
        except StoreFailed:
            if len(nodes) == 1:
                raise
            _each(partial(self._free, [node]) for node in nodes)

    def _embed(self, waiting: bool) -> bool:
        assert self._embedder is not None
        self._pause = IDLE_S
        try:
            model = self._embedder.info()
            if model != self._model:
                # Vectors of another model are of no use to this one; what lacks its own is queued, a slice at a time.
                if follow_model(self._store, *model):
                    waiting = True
                else:
                    self._model = model
                waiting = waiting or self._store.vectors_wait()
            if not waiting:
                self._settle()
                return model != self._model
            return self._embed_some(model[0]) or model != self._model
        except EmbeddingUnavailable:
            self._pause = RETRY_S
            return False

    def _embed_some(self, model: str) -> bool:
        assert self._embedder is not None
        began = self._clock()
        busy = self._others_write()
        if busy and began - self._embedded_at < max(HOLD_S, RESTS * self._took):
            self._pause = PACE_S  # the end of the writing is no notice
            return False
        if self._since is None:
            self._since, self._burst = began, 0
        done = embed_some(self._store, self._embedder, model, TRICKLE if busy else BATCH, self._others_write)
        self._embedded_at = self._clock()
        took = self._took = self._embedded_at - began
        self._burst += done
        self._figures["embedded"] += done
        self._figures["per_second"] = round(done / took, 1) if took > 0 and done else self._figures["per_second"]
        self._tell()
        return done > 0

    def _others_write(self) -> bool:
        """Return whether somebody is writing as fast as it goes, whom embedding would slow down."""
        now, changes = self._clock(), self._newest - self._paced
        # A second's worth is known at once: who has begun to write does not wait until the pace has been measured.
        if (elapsed := now - self._paced_at) >= PACE_S or changes >= BUSY_PER_S:
            self._pace = changes / max(elapsed, PACE_S)
            self._paced_at, self._paced = now, self._newest
        return self._pace >= BUSY_PER_S

    def _settle(self) -> None:
        """The queue is empty: how long the last burst of writes took to become searchable by meaning."""
        if self._since is not None:
            self._figures["last_burst"] = self._burst
            self._figures["searchable_after_s"] = round(self._clock() - self._since, 3)
            self._since = None
            self._told_at = float("-inf")
            self._tell()

    def _tell(self) -> None:
        if self._clock() - self._told_at >= TELL_S:
            self._told_at = self._clock()
            self._report(dict(self._figures))
