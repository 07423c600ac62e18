"""Keeping the audit's chain up with the log, anchoring it, and verifying it.

Owns the order of these steps. `Chainer` belongs to the housekeeping of a daemon, or to a command that opened the store
by itself; `verify` to the operator. Rows are hashed here, outside of the writer, from committed rows: the writer only
appends what comes out, a batch at a time. Reads in short transactions. No threads of its own.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from avmfs import calls
from avmfs.access import Principal
from avmfs.agents import anchors
from avmfs.store.identity import OPERATOR
from avmfs.store.queries.audit import Subject
from avmfs.store.rows import hash_chain
from avmfs.store.rows.hash_chain import Anchor, Batch, Verdict, Walk
from avmfs.store.store import Store
from avmfs.store.tx.audit_rows import WINDOW_NS

log = logging.getLogger(__name__)

BATCH: Final = 4096  # rows
NAMED: Final = 100  # forgeries that one verification names


class Chainer:
    """One per store and process. ``interval_s`` is how old the newest anchor may grow while there are newer rows;
    ``clock`` gives ns since the epoch."""

    def __init__(self, store: Store, path: Path, interval_s: float, clock: Callable[[], int]) -> None:
        self._store, self._path, self._clock = store, path, clock
        self._interval = int(interval_s * 1e9)
        self._newest: Anchor | None = None  # in the file
        self._warned = False

    def step(self) -> int:
        """Bring everything up to date; returns how many rows were chained."""
        with self._store.reading(OPERATOR) as reader:
            ripe = reader.audit.refusals_before(self._clock() - WINDOW_NS)
        if ripe:
            self._store.submit(OPERATOR, "settle_refusals")
        chained = 0
        while batch := self._next():
            reply = self._store.submit(
                OPERATOR, "extend_chain", first=batch.first, last=batch.last, hashes=batch.hashes, head=batch.head
            )
            chained += (batch.last - batch.first + 1) if reply["taken"] else 0
        self._anchor()
        return chained

    def due(self, older_than_s: float) -> bool:
        """Return whether the oldest row that is in no batch has waited for so long."""
        with self._store.reading(OPERATOR) as reader:
            waiting = reader.audit.unchained(1)
        return bool(waiting) and waiting[0].at < self._clock() - int(older_than_s * 1e9)

    def _next(self) -> Batch | None:
        with self._store.reading(OPERATOR) as reader:
            tip = reader.audit.tip()
            rows = reader.audit.unchained(BATCH)
        return hash_chain.extend(tip.head, rows) if rows else None

    def _anchor(self) -> None:
        """Note the head outside. What cannot be written is said in the log: the store itself is whole."""
        with self._store.reading(OPERATOR) as reader:
            tip = reader.audit.tip()
        now = self._clock()
        try:
            if self._newest is None:
                self._newest = max(anchors.read(self._path), key=lambda anchor: anchor.seq, default=Anchor(0, b""))
            if tip.seq < self._newest.seq:
                if not self._warned:
                    log.error(
                        "the log ends at row %d, but %s has seen row %d: avm audit verify",
                        tip.seq,
                        self._path,
                        self._newest.seq,
                    )
                self._warned = True
            elif tip.seq > self._newest.seq and not now - self._interval < self._newest.at <= now:
                # An anchor is on the disk at once: what it has seen must be, too, or a loss of power would look like
                # a log that somebody has cut.
                self._store.submit(OPERATOR, "sync")
                anchor = dataclasses.replace(tip, at=now)
                anchors.append(self._path, anchor)
                self._newest = anchor
        except OSError as e:  # AvmError among them
            if not self._warned:
                log.error("the audit's anchors cannot be kept in %s: %s", self._path, e)
            self._warned = True


class Verified(NamedTuple):
    """``altered``: triggers and tables of the audit that are not as they were made. ``forged``: what the store says of
    who wrote something and the log does not, a line each."""

    verdict: Verdict
    altered: tuple[str, ...] = ()
    forged: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.verdict.bad is None and not self.altered and not self.forged


def verify(store: Store, who: Principal, kept: Iterable[Anchor]) -> Verified:
    """Walk the whole chain, compare it with the anchors that were ``kept`` outside, and what says who wrote something
    with the log. Raises Denied for who is not the operator."""
    kept = tuple(kept)
    while True:
        with store.reading(who) as reader:
            start = reader.audit.start()
        found = _verified(store, who, kept, start)
        with store.reading(who) as reader:
            if found.verdict.bad is None or reader.audit.start() == start:  # else it was trimmed meanwhile
                return found


def _verified(store: Store, who: Principal, kept: Iterable[Anchor], start: Anchor | None) -> Verified:
    with store.reading(who) as reader:
        oldest, _ = reader.audit.bounds()
        altered = tuple(reader.audit.altered())
        told = start is None or reader.audit.trim_is_told(start)

    def batches() -> Iterator[Batch]:
        after = 0 if start is None else start.seq
        while True:
            calls.go_on()
            with store.reading(who) as reader:
                found = reader.audit.batches(after, 64)
            if not found:
                return
            yield from found
            after = found[-1].first

    def rows(first: int, last: int) -> list[hash_chain.Row]:
        with store.reading(who) as reader:
            return reader.audit.rows(first, last)

    def newest() -> int:
        with store.reading(who) as reader:
            return reader.audit.bounds()[1]

    verdict = Walk(kept, start).run(batches(), rows, newest, oldest)
    if start is not None and not told and verdict.bad is None:
        says = f"and all up to {start.seq} are gone, by a checkpoint that the log does not tell of"
        verdict = dataclasses.replace(verdict, bad=1, reason=says)
    return Verified(verdict, altered, tuple(_forged(store, who, 1 if start is None else start.seq + 1)))


def _forged(store: Store, who: Principal, kept_from: int) -> list[str]:
    found: list[str] = []
    after: Subject | None = (-1, 0)
    while after is not None and len(found) < NAMED:
        with store.reading(who) as reader:
            lines, after = reader.audit.misattributed(kept_from, after, BATCH)
        found += lines
    with store.reading(who) as reader:
        found += reader.audit.missent(NAMED)
    return found[:NAMED]
