"""BM25 over what one asker may see, of a passage alone and of it with what stands before it.

Owns the formula. Called by the engine. The statistics (how many passages have a term, how many there are, how
long they are) come from visible rows alone; SQLite's own bm25() counts invisible ones, which leaks.
Source: Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the idf of
Lucene, which stays positive.

A short note leans on what was said before it: "Yes, on Tuesday" is about whatever was asked. So its words are also
matched together with those of the passage before it in its session; a page stands for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from avmfs.store.table import Table

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
"""Terms of a passage at which the one before it counts for half."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Lexical:
    """For every passage (n,): BM25 of its own words and of those with its context; and coverage: the share, 0 to 1, of
    the query's idf mass that it has, alone and with its context, terms that occur nowhere included."""

    words: Floats
    context: Floats
    coverage: Floats
    near: Floats


def search(table: Table, postings: Sequence[NDArray[np.int64]]) -> Lexical:
    """Score the passages of ``table`` by the occurrences of each query term."""
    count = len(table.passages)
    if not count or not postings:
        zeros = np.zeros(count)
        return Lexical(zeros, zeros, zeros, zeros)
    found = [np.bincount(table.positions(ids), minlength=count).astype(np.float64) for ids in postings]
    df = np.array([np.count_nonzero(times) for times in found])
    if count >= ENOUGH and df[df <= COMMON * count].any():
        found = [times for times, n in zip(found, df, strict=True) if n <= COMMON * count]
        df = df[df <= COMMON * count]
    lean = leaning(table)
    behind = np.flatnonzero(lean)
    before = table.previous[behind]
    lengths = table.lengths.astype(np.float64)
    together = lengths.copy()
    together[behind] += lean[behind] * lengths[before]
    norm, wide_norm = _norm(lengths), _norm(together)
    mass = _idf(df, max(count, PRIOR))
    words, context, coverage, near = np.zeros(count), np.zeros(count), np.zeros(count), np.zeros(count)
    for times, n, weight in zip(found, df, mass, strict=True):
        if not n:
            continue
        wide = times.copy()
        wide[behind] += lean[behind] * times[before]
        for frequency, into, shares, against in ((times, words, coverage, norm), (wide, context, near, wide_norm)):
            at = np.flatnonzero(frequency)
            times_at = frequency[at]
            into[at] += _idf(np.array(len(at)), count) * times_at * (K1 + 1) / (times_at + against[at])
            shares[at] += weight * np.minimum(times_at, 1.0)
    total = mass.sum()
    return Lexical(words, context, np.minimum(coverage / total, 1.0), np.minimum(near / total, 1.0))


def leaning(table: Table) -> Floats:
    """How much of the passage before it counts for each (n,): 0 where there is none in its session."""
    share = shortness(table)
    return np.where((table.previous >= 0) & (share > 0.02), share, 0.0)


def brevity(table: Table) -> float:
    """Is this a store of short notes (1) or of pages (0)?"""
    return float(shortness(table).mean()) if len(table.passages) else 0.0


def shortness(table: Table) -> Floats:
    """Is it a remark, which leans on what surrounds it (1), or a page, which stands for itself (0)? (n,)"""
    return np.asarray(1 / (1 + (table.lengths.astype(np.float64) / LEANS) ** 4))


def _norm(lengths: Floats) -> Floats:
    return K1 * (1 - B + B * lengths / max(float(lengths.mean()), 1.0))


def _idf(df: NDArray[np.int64], count: int) -> Floats:
    return np.asarray(np.log1p((max(count, 1) - np.minimum(df, count) + 0.5) / (df + 0.5)))
