"""BM25 over what one asker may see.

Owns the formula. Called by the engine. The statistics (how many passages have a term, how many there are, how
long they are) come from visible rows alone; SQLite's own bm25() counts invisible ones, which leaks.
Source: Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the idf of
Lucene, which stays positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from avmfs.search.index import SearchIndex

K1: Final = 1.2  # how soon further occurrences stop counting
B: Final = 0.75  # how much a long passage is held against it

COMMON: Final = 0.2
"""A term in more than this share of the passages says little and costs most: it is left out, unless all are."""

ENOUGH: Final = 50
"""Passages below which no term is called common: a share of a handful means nothing."""

PRIOR: Final = 1000
"""Coverage weighs terms as if there were at least so many passages. In a store of ten, the idf of a term is
mostly chance."""


@dataclass(frozen=True, slots=True)
class Lexical:
    """Passages that have a query term: ids (n,) ascending, BM25 (n,) > 0, and coverage (n,): the share, 0 to 1,
    of the query's idf mass that the passage matches, terms that occur nowhere included."""

    passages: NDArray[np.int64]
    scores: NDArray[np.float64]
    coverage: NDArray[np.float64]


NOTHING: Final = Lexical(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


def search(index: SearchIndex, terms: Sequence[str]) -> Lexical:
    """Score every visible passage with at least one of ``terms`` (distinct index terms)."""
    count, total = index.corpus()
    found = [np.unique(index.postings(term), return_counts=True) for term in terms]
    if not any(len(ids) for ids, _ in found):
        return NOTHING
    telling = [one for one in found if len(one[0]) <= COMMON * count]
    if count >= ENOUGH and any(len(ids) for ids, _ in telling):
        found = telling
    return _score(index, found, count, total)


def _score(
    index: SearchIndex, found: list[tuple[NDArray[np.int64], NDArray[np.int64]]], count: int, total: int
) -> Lexical:
    df = np.array([len(ids) for ids, _ in found])
    idf = _idf(df, count)
    mass = _idf(df, max(count, PRIOR))
    passages, where = np.unique(np.concatenate([ids for ids, _ in found]), return_inverse=True)
    frequency = np.concatenate([times for _, times in found])
    average = max(total / max(count, 1), 1.0)
    norm = K1 * (1 - B + B * index.lengths(passages).astype(np.float64) / average)
    gain = np.repeat(idf, df) * frequency * (K1 + 1) / (frequency + norm[where])
    scores = _sums(where, gain, len(passages))
    coverage = _sums(where, np.repeat(mass, df), len(passages)) / mass.sum()
    return Lexical(passages, scores, np.minimum(coverage, 1.0))


def _sums(where: NDArray[np.int64], values: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    return np.bincount(where, values, size).astype(np.float64)


def _idf(df: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    return np.log1p((max(count, 1) - np.minimum(df, count) + 0.5) / (df + 0.5))
