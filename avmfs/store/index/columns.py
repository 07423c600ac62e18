"""What ranking knows of every passage, as columns, and how passages stand to each other.

Owns the value ``Columns`` and the arithmetic of neighbours: what was written just before in the same place, and which
notes are of one session and of one directory. Made by the catalogue, read by search. Knows no SQL.

A neighbour is always of the same place *and* of the same visibility class: whoever sees a passage sees all that its
score is made of, and nothing that others keep to themselves can move it (ARCHITECTURE, decision 3).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

SESSION_GAP: Final = 3 * 3600 * 10**9
"""Nanoseconds of silence in one place after which another session begins."""

NONE: Final = -1

SPARSE: Final = 4
"""Ids for each passage up to which positions are looked up in an array: four times faster than to search for them."""

Rows = dict[str, NDArray[Any]]
"""Rows of the dtype ROW, a column (n,) each: five times as fast to pick from as records are. In the order of reading:
place by place, scope by scope, and what was told at the same time in the order in which it was written."""

ROW: Final = np.dtype([
    ("passage", "i8"), ("document", "i8"), ("part", "i4"), ("scope", "i4"), ("place", "i8"), ("time", "i8"),
    ("seq", "i8"), ("length", "i4"), ("voice", "i4"), ("flags", "u1"), ("expires", "i8"),
])  # fmt: skip
_READING: Final = ("part", "document", "seq", "time", "scope", "place")  # the last decides first


@dataclass(frozen=True, slots=True)
class Columns:
    """Passages that one asker sees, in order of id, a column each (n,).

    ``times`` are ns since the epoch: when it was said. ``previous`` and ``next`` are positions in these columns, NONE
    for none; ``sessions`` and ``directories`` number from 0. ``voices`` are numbers for who speaks, 0 for nobody known,
    below 0 for an author whose text begins with nobody's name; ``voices_of`` gives those, above 0, that a term names.
    ``places`` has the position of each id counted from the first one, NONE for ids that are not here; it is empty where
    ids lie too far apart for that. ``means`` and ``columns`` are for whoever has computed a figure of the whole table
    or of each row once; no other table of this process has its ``number``.
    """

    passages: NDArray[np.int64]
    documents: NDArray[np.int64]
    lengths: NDArray[np.float32]
    times: NDArray[np.int64]
    voices: NDArray[np.int32]
    flags: NDArray[np.uint8]
    previous: NDArray[np.int32]
    next: NDArray[np.int32]
    sessions: NDArray[np.int32]
    directories: NDArray[np.int32]
    voices_of: Mapping[str, Collection[int]]
    places: NDArray[np.int32]
    means: dict[str, float] = field(default_factory=dict)
    columns: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    number: int = field(default_factory=itertools.count().__next__)

    def find(self, passages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where these ids (n,) stand (n,), NONE for those that are not here."""
        if not len(self.passages):
            return np.full(len(passages), NONE, np.int64)
        if len(self.places):
            offset = passages - self.passages[0]
            inside = (offset >= 0) & (offset < len(self.places))
            return np.where(inside, self.places[np.where(inside, offset, 0)], NONE).astype(np.int64)
        at = np.minimum(np.searchsorted(self.passages, passages), len(self.passages) - 1)
        return np.where(self.passages[at] == passages, at, NONE)


def picked(rows: Rows, which: NDArray[Any]) -> Rows:
    """Those that a mask (n,) or positions (m,) name."""
    return {name: column[which] for name, column in rows.items()}


def merged(rows: Rows, gone: NDArray[np.bool_], fresh: NDArray[np.void]) -> Rows:
    """``rows`` (n,) without those that are ``gone`` (n,), with ``fresh`` (m,) of dtype ROW, which are in any order.
    Only places with fresh rows are sorted."""
    stay = np.flatnonzero(~gone)
    touched = np.isin(rows["place"][stay], fresh["place"])
    part = np.concatenate((stay[touched], np.arange(len(gone), len(gone) + len(fresh))))
    rows = {name: np.concatenate((column, fresh[name])) for name, column in rows.items()}
    part = part[np.lexsort([rows[name][part] for name in _READING])]
    rest = stay[~touched]
    return picked(rows, np.insert(rest, np.searchsorted(rows["place"][rest], rows["place"][part]), part))


def ordered(rows: NDArray[np.void]) -> Rows:
    """``rows`` (n,) of dtype ROW, in any order."""
    nothing = {name: np.zeros(0, ROW[name]) for name in ROW.names or ()}
    return merged(nothing, np.zeros(0, np.bool_), rows)


def arrange(rows: Rows, voices_of: Mapping[str, Collection[int]]) -> Columns:
    """The table of ``rows``."""
    ids, place, scope, time = (rows[name] for name in ("passage", "place", "scope", "time"))
    count, places = len(ids), np.zeros(0, np.int32)
    by_id = np.zeros(0, np.int64)
    if count:
        first = ids.min()
        span = int(ids.max() - first) + 1
        if span <= SPARSE * count:
            places = np.full(span, NONE, np.int32)
            places[ids - first] = np.arange(count, dtype=np.int32)
            there = places != NONE
            by_id = places[there]
            places[there] = np.arange(count, dtype=np.int32)
        else:
            by_id = np.argsort(ids)
    order = np.empty(count, np.int32)  # where each row of the order of reading stands in the table
    order[by_id] = np.arange(count, dtype=np.int32)
    beside = place[1:] == place[:-1]
    together = beside & (scope[1:] == scope[:-1]) & (time[1:] - time[:-1] <= SESSION_GAP)
    previous, following = np.full(count, NONE, np.int32), np.full(count, NONE, np.int32)
    previous[order[1:][together]] = order[:-1][together]
    following[order[:-1][together]] = order[1:][together]
    sessions, directories = np.zeros(count, np.int32), np.zeros(count, np.int32)
    sessions[order[1:]], directories[order[1:]] = np.cumsum(~together), np.cumsum(~beside)
    names = ("passage", "document", "time", "voice", "flags")
    passages, documents, times, voices, flags = (rows[name][by_id] for name in names)
    lengths = rows["length"][by_id].astype(np.float32)
    near = (previous, following, sessions, directories)
    return Columns(passages, documents, lengths, times, voices, flags, *near, voices_of, places)
