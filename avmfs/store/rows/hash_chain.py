"""The hash chain over the log: what is hashed, and finding the first row that is not as it was.

Owns the canonical form of a log row and the walk that verifies it. h(n) = SHA-256(h(n-1) || canonical row n), h(0) is
32 zero bytes; the canonical row is content-free: of its paths it has a commitment, a hash over salt, path and old path,
each with its length, so that a purge may take path and salt away and leave the commitment (docs/AUDIT.md). Called by
the audit's reader, its command and by whoever extends the chain. Knows no SQL and no clock.

Rows that earlier versions chained were hashed without lengths. Nothing says by which rule a row was: no bytes are the
canonical form of a row by both, so a row agrees with its hash by one of them or was changed, and there is no mark that
could be set back. What the lengths do for newer rows does for the earlier ones that every row written has the same
shape (``Row.whole``), in which the boundaries between the fields can be nowhere else.

What is stored of a row is the first eight bytes of its running hash: enough to name the first row that differs; the
whole hash stands at the end of each batch, and in the anchors outside of the database.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

START: Final = bytes(32)
SHORT: Final = 8
COMMITMENT: Final = 32
SALT: Final = 8
_BY_LENGTH: Final = "avm log 2"
_NUMBER: Final = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the log, as stored. ``at`` is ns since the epoch."""

    seq: int
    at: int
    op: str
    agent: str
    route: str
    elevated: int
    node: int
    document: int | None
    version: int | None
    scope: int
    about: str | None
    path: bytes
    other: bytes | None
    salt: bytes

    @property
    def purged(self) -> bool:
        return len(self.salt) == COMMITMENT

    @property
    def whole(self) -> bool:
        """Whether it has the shape in which rows are written and purged."""
        if self.purged:
            return self.path == b"" and self.other is None
        renamed = self.other is None or (self.other != b"" and b"\0" not in self.path + self.other)
        return len(self.salt) == SALT and renamed


@dataclass(frozen=True, slots=True)
class Batch:
    """A row of the chain: log rows ``first`` to ``last``."""

    first: int
    last: int
    hashes: bytes
    head: bytes


@dataclass(frozen=True, slots=True)
class Anchor:
    """The running hash at ``seq`` as somebody outside of the database noted it at ``at`` (ns)."""

    seq: int
    head: bytes
    at: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """``bad`` is the first row that is not as it was chained, with the ``reason``; None: all are. ``rows`` were looked
    at, ``unchained`` newer ones are in no batch yet, ``purged`` have no path any more, those up to ``trimmed`` were
    removed in order, ``anchors`` agree."""

    bad: int | None
    reason: str
    rows: int
    head: bytes
    last: int
    unchained: int = 0
    purged: int = 0
    trimmed: int = 0
    anchors: int = 0


def commitment(row: Row, *, lengths: bool = True) -> bytes:
    """``lengths`` False: as it was before."""
    if row.purged:
        return row.salt
    if not lengths:
        return hashlib.sha256(row.salt + row.path + b"\0" + (row.other or b"")).digest()
    return committed(row.salt, row.path, row.other)


def committed(salt: bytes, path: bytes, other: bytes | None) -> bytes:
    """The commitment to the paths of a row."""
    fields = (salt, path) if other is None else (salt, path, other)
    return hashlib.sha256(b"".join(_NUMBER.pack(len(field)) + field for field in fields)).digest()


def canonical(row: Row, *, lengths: bool = True) -> bytes:
    """The row without its paths, as compact JSON, in which every text has its quotation marks. Its first item, a text,
    sets it apart from what it was before, which began with the number."""
    fields = [row.seq, row.at, row.op, row.agent, row.route, row.elevated, row.node, row.document, row.version]
    fields += [row.scope, row.about, commitment(row, lengths=lengths).hex()]
    return json.dumps([_BY_LENGTH, *fields] if lengths else fields, ensure_ascii=True, separators=(",", ":")).encode()


def follow(head: bytes, row: Row, *, lengths: bool = True) -> bytes:
    """The running hash after one more row."""
    return hashlib.sha256(head + canonical(row, lengths=lengths)).digest()


def extend(head: bytes, rows: Sequence[Row]) -> Batch:
    """The next batch of the chain. ``rows`` are at least one, without gaps."""
    hashes = bytearray()
    for row in rows:
        head = follow(head, row)
        hashes += head[:SHORT]
    return Batch(rows[0].seq, rows[-1].seq, bytes(hashes), head)


class _Bad(Exception):
    def __init__(self, seq: int, reason: str) -> None:
        self.seq, self.reason = seq, reason


class Walk:
    """One verification. ``anchors`` are those of the files outside; ``start`` is where the chain begins: nothing, or
    what a trim left."""

    def __init__(self, anchors: Iterable[Anchor], start: Anchor | None = None) -> None:
        self._anchors = sorted(anchors, key=lambda anchor: anchor.seq)
        self._next = 0
        self._confirmed = 0  # rows up to here were confirmed by an anchor
        self._start = Anchor(0, START) if start is None else start
        self.at, self.head = self._start.seq, self._start.head
        self._rows = self._purged = self._agree = 0

    def run(
        self,
        batches: Iterable[Batch],
        rows: Callable[[int, int], Iterable[Row]],
        last: Callable[[], int],
        oldest: int | None,
    ) -> Verdict:
        """Look at everything. ``rows(first, last)`` are those of the log in order; ``oldest`` is the seq of the first
        one (None: there are none), ``last()`` that of the last one, asked when the chain has been walked: both grow."""
        newest = 0
        try:
            self._anchored()
            if oldest is not None and oldest <= self._start.seq:
                raise _Bad(oldest, "stands before the beginning of the chain")
            for batch in batches:
                self._batch(batch, rows)
            newest = last()
            if self._next < len(self._anchors):
                seen = self._anchors[-1].seq
                what = "is in no batch of the chain any more" if newest > self.at else "is gone, with all rows after it"
                raise _Bad(self.at + 1, f"{what}: an anchor has seen row {seen}")
            if newest < self.at:
                raise _Bad(newest + 1, "is gone")
        except _Bad as found:
            return self._verdict(found.seq, found.reason, newest or last())
        return self._verdict(None, "", newest)

    def _batch(self, batch: Batch, rows: Callable[[int, int], Iterable[Row]]) -> None:
        if batch.first != self.at + 1:
            raise _Bad(self.at + 1, f"is in no batch of the chain, which goes on at row {batch.first}")
        if len(batch.hashes) != SHORT * (batch.last - batch.first + 1):
            raise _Bad(batch.first, "its batch of the chain was changed")
        for row in rows(batch.first, batch.last):
            if row.seq != self.at + 1:
                raise _Bad(self.at + 1, "is gone")
            place = SHORT * (row.seq - batch.first)
            chained = batch.hashes[place : place + SHORT]
            by_rule = [
                head for rule in (True, False) if (head := follow(self.head, row, lengths=rule))[:SHORT] == chained
            ]
            if not by_rule or not row.whole:
                raise _Bad(row.seq, "is not as it was chained")
            self.head = by_rule[0]
            self.at = row.seq
            self._rows += 1
            self._purged += row.purged
            self._anchored()
        if self.at != batch.last:
            raise _Bad(self.at + 1, "is gone")
        if self.head != batch.head:
            raise _Bad(batch.last, "the head of its batch was changed")

    def _anchored(self) -> None:
        """Anchors are compared as the walk passes them."""
        while self._next < len(self._anchors) and self._anchors[self._next].seq <= self.at:
            anchor = self._anchors[self._next]
            self._next += 1
            if anchor.seq < self.at:
                continue  # before a trim: what it saw is gone
            if anchor.head != self.head:
                raise _Bad(
                    self._confirmed + 1,
                    f"or one after it was changed and chained anew: an anchor differs at row {self.at}",
                )
            self._confirmed, self._agree = anchor.seq, self._agree + 1

    def _verdict(self, bad: int | None, reason: str, newest: int) -> Verdict:
        found, unchained = (self._rows, self.head, self.at), max(0, newest - self.at)
        return Verdict(bad, reason, *found, unchained, self._purged, self._start.seq, self._agree)


def packed(about: dict[str, Any]) -> str:
    return json.dumps(about, sort_keys=True, separators=(",", ":"))
