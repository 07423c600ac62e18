"""BM25 over what one asker may see, of a passage alone and of it with what stands around it.

Owns the formula. Called by the engine. The statistics (how many passages have a term, how many there are, how
long they are) come from visible rows alone; SQLite's own bm25() counts invisible ones, which leaks.
Source: Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the idf of
Lucene, which stays positive.

A short note leans on what was said around it: "Yes, on Tuesday" is about whatever was asked. So its words are also
matched together with those of the passages next to it in its session; a page stands for itself.

Only passages that some word reaches are ever touched: of a hundred thousand that is a few thousand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from avmfs.store.postings import Postings
from avmfs.store.table import NONE, Table

K1: Final = 1.2  # how soon further occurrences stop counting
B: Final = 0.75  # how much a long passage is held against it

COMMON: Final = 0.2
"""A term in more than this share of the passages says little and costs most: it is left out, unless all are."""

ENOUGH: Final = 50
"""Passages below which no term is called common: a share of a handful means nothing."""

PRIOR: Final = 1000
"""Coverage weighs terms as if there were at least so many passages. In a store of ten, the idf of a term is
mostly chance."""

LEANS: Final = 60.0
"""Terms of a passage at which those around it count for half as much."""

BEFORE: Final = (1.0, 0.5)
"""How much the passage before counts for one that leans on it, and the one before that."""
AFTER: Final = (0.5,)

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lexical:
    """Passages that have a word of the query, themselves or in what they lean on: ``positions`` in the table (m,),
    ascending. For each of them BM25 of its own words and of those with its context; and coverage: the share, 0 to 1, of
    the query's idf mass that it has, alone and with its context, terms that occur nowhere included."""

    positions: Places
    words: Floats
    context: Floats
    coverage: Floats
    near: Floats

    def over(self, positions: Places) -> Lexical:
        """The same over other ``positions`` (k,), ascending, that are all in the table: 0 where no word reaches."""
        count = len(self.positions)
        at = np.minimum(np.searchsorted(self.positions, positions), max(count - 1, 0))
        here = self.positions[at] == positions if count else np.zeros(len(positions), np.bool_)

        def spread(column: Floats) -> Floats:
            return np.where(here, column[at], 0.0) if count else np.zeros(len(positions))

        columns = (self.words, self.context, self.coverage, self.near)
        return Lexical(positions, *(spread(column) for column in columns))


def search(table: Table, postings: Sequence[Postings]) -> Lexical:
    """Score what the occurrences of the query's terms reach in ``table``."""
    count = len(table.passages)
    found = [_here(table, one) for one in postings]
    df = np.array([len(at) for at, _ in found], np.int64)
    if count >= ENOUGH and df[df <= COMMON * count].any():
        found = [one for one, n in zip(found, df, strict=True) if n <= COMMON * count]
        df = df[df <= COMMON * count]
    positions = _reached(table, [at for at, _ in found])
    words, context, coverage, near = (np.zeros(len(positions)) for _ in range(4))
    if not len(positions):
        return Lexical(positions, words, context, coverage, near)
    index = np.full(count, NONE, np.int32)  # of each reached passage in the columns
    index[positions] = np.arange(len(positions), dtype=np.int32)
    lengths = table.lengths[positions].astype(np.float64)
    lean = _leans(lengths)
    mean, wide_mean = _means(table)
    norm, wide_norm = _norm(lengths, mean), _norm(_together(table, positions, lengths, lean), wide_mean)
    mass = _idf(df, max(count, PRIOR))
    for (at, times), weight in zip(found, mass, strict=True):
        if not len(at):
            continue
        here = index[at]
        wide = np.zeros(len(positions))
        wide[here] = times
        for holders, leaning, share in _leaning(table, at):
            to = index[leaning]
            reached = to != NONE
            to = to[reached]
            wide[to] += share * lean[to] * times[holders[reached]]
        there = np.flatnonzero(wide)
        for places, frequency, into, shares, against in (
            (here, times, words, coverage, norm), (there, wide[there], context, near, wide_norm),
        ):  # fmt: skip
            into[places] += _idf(np.array(len(places)), count) * frequency * (K1 + 1) / (frequency + against[places])
            shares[places] += weight * np.minimum(frequency, 1.0)
    total = mass.sum()
    return Lexical(positions, words, context, np.minimum(coverage / total, 1.0), np.minimum(near / total, 1.0))


def brevity(table: Table) -> float:
    """Is this a store of short notes (1) or of pages (0)?"""
    if "brevity" not in table.means:
        table.means["brevity"] = float(shortness(table.lengths).mean()) if len(table.passages) else 0.0
    return table.means["brevity"]


def shortness(lengths: NDArray[np.float32]) -> Floats:
    """Is it a remark, which leans on what surrounds it (1), or a page, which stands for itself (0)? (n,)"""
    return np.asarray(1 / (1 + (lengths.astype(np.float64) / LEANS) ** 4))


def leans_on(table: Table, at: int) -> Places:
    """Positions of what the words of the passage ``at`` are matched together with."""
    one = np.array([at])
    if not _leans(table.lengths[one].astype(np.float64)).any():
        return one[:0]
    return np.concatenate([there for _, there, _ in _steps(one, *_around(table))])


def _leans(lengths: Floats) -> Floats:
    """How much of the passages around it counts."""
    share = np.asarray(1 / (1 + (lengths / LEANS) ** 4))
    return np.where(share > 0.02, share, 0.0)


def _here(table: Table, posting: Postings) -> tuple[Places, NDArray[np.int64]]:
    at = table.find(posting.passages)
    here = at != NONE
    return at[here], posting.times[here]


def _reached(table: Table, holders: Sequence[Places]) -> Places:
    """Whatever has a term, and what leans on it."""
    reached = np.zeros(len(table.passages), np.bool_)
    for at in holders:
        reached[at] = True
        for _, leaning, _ in _leaning(table, at):
            reached[leaning[_leans(table.lengths[leaning].astype(np.float64)) > 0]] = True
    return np.flatnonzero(reached)


def _leaning(table: Table, at: Places) -> Iterator[tuple[Places, Places, float]]:
    """What may lean on the passages ``at``."""
    return _steps(at, (table.next, BEFORE), (table.previous, AFTER))


def _steps(at: Places, *ways: tuple[NDArray[np.int32], Sequence[float]]) -> Iterator[tuple[Places, Places, float]]:
    """From the passages ``at`` (n,) along columns of neighbours, step by step: indexes (k,) in ``at``, the positions
    (k,) that they have led to, each but once, and the share of this step."""
    for column, shares in ways:
        which, there = np.arange(len(at)), at
        for share in shares:
            step = column[there]
            here = step != NONE
            which, there = which[here], step[here]
            yield which, there, share


def _around(table: Table) -> tuple[tuple[NDArray[np.int32], tuple[float, ...]], ...]:
    return (table.previous, BEFORE), (table.next, AFTER)


def _together(table: Table, at: Places, lengths: Floats, lean: Floats) -> Floats:
    """Lengths of the passages ``at`` with what they lean on."""
    together = lengths.copy()
    for which, there, share in _steps(at, *_around(table)):
        together[which] += share * lean[which] * table.lengths[there]
    return together


def _means(table: Table) -> tuple[float, float]:
    """Mean length of a passage, and of one with what it leans on."""
    if "length" not in table.means:
        lengths = table.lengths.astype(np.float64)
        every = np.arange(len(lengths))
        table.means["together"] = float(_together(table, every, lengths, _leans(lengths)).mean())
        table.means["length"] = float(lengths.mean())
    return table.means["length"], table.means["together"]


def _norm(lengths: Floats, mean: float) -> Floats:
    return K1 * (1 - B + B * lengths / max(mean, 1.0))


def _idf(df: NDArray[np.int64], count: int) -> Floats:
    return np.asarray(np.log1p((max(count, 1) - np.minimum(df, count) + 0.5) / (df + 0.5)))
