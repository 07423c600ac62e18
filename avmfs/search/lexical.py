"""BM25 over what one asker may see, of a passage alone and of it with what stands around it.

Owns the formula. Called by the engine. The statistics (how many passages have a term, how many there are, how
long they are) come from visible rows alone; SQLite's own bm25() counts invisible ones, which leaks.
Source: Robertson & Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009), with the idf of
Lucene, which stays positive.

A short note leans on what was said around it: "Yes, on Tuesday" is about whatever was asked. So its words are also
matched together with those of the passages next to it in its session; a page stands for itself.

Only passages that some word reaches are ever scored: of a hundred thousand that is a few thousand. What a term adds to
each is the same in every question, and remembered: people's words recur.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from avmfs.lru import LRU
from avmfs.store.index.columns import NONE, Columns
from avmfs.store.index.postings import Postings
from avmfs.text import segment

K1: Final = 1.2  # how soon further occurrences stop counting
B: Final = 0.75  # how much a long passage is held against it

COMMON: Final = 0.2
"""A term in more than this share of the passages says little and costs most: it is left out, unless all are."""

MANY: Final = 4000
"""Passages up to which none is left out: there they cost little, and a store of one matter is told apart by them too
("pressure", "flow": benchmarks/README.md)."""

PRIOR: Final = 1000
"""Coverage weighs terms as if there were at least so many passages. In a store of ten, the idf of a term is
mostly chance."""

LEANS: Final = 60.0
"""Terms of a passage at which those around it count for half as much."""

BEFORE: Final = (1.0, 0.5)
"""How much the passage before counts for one that leans on it, and the one before that."""
AFTER: Final = (0.5,)

KEPT: Final = 500_000
"""Positions of all terms that are remembered together, 17 bytes each."""

Floats = NDArray[np.float64]
Places = NDArray[np.int64]
Positions = NDArray[np.int32]
Counts = NDArray[np.int64]


Asking = Callable[[Sequence[str]], list[Postings]]
"""The occurrences of terms."""


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


@dataclass(frozen=True, slots=True)
class Term:
    """Where a term occurs in a table and what it reaches: positions and BM25 of the own words, and positions, BM25 and
    share of one occurrence of what has it with its context. None: it is common, and nobody has asked further."""

    count: int
    reach: tuple[Positions, Floats, Positions, Floats, Floats] | None

    @property
    def size(self) -> int:
        return 1 if self.reach is None else len(self.reach[0]) + len(self.reach[2])


class _Known:
    """Terms of all tables of this process; with every change to what an asker sees there is another table.
    Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._terms: LRU[tuple[int, str], Term] = LRU(KEPT, lambda term: term.size)

    def of(self, table: Columns, terms: Sequence[str]) -> dict[str, Term]:
        found = {}
        with self._lock:
            for term in terms:
                if (one := self._terms.get((table.number, term))) is not None:
                    found[term] = one
        return found

    def add(self, table: Columns, term: str, found: Term) -> None:
        with self._lock:
            self._terms.put((table.number, term), found)


_known: Final = _Known()


def search(table: Columns, terms: Sequence[str], postings: Asking) -> Lexical:
    """Score what the occurrences of the query's ``terms``, which are distinct, reach in ``table``. ``postings`` is
    asked for those that are not remembered."""
    count = len(table.passages)
    known, new = _terms(table, terms, postings)
    if count > MANY and any(0 < known[term].count <= COMMON * count for term in terms):
        terms = [term for term in terms if known[term].count <= COMMON * count]
    mass = _idf(np.array([known[term].count for term in terms], np.int64), max(count, PRIOR))
    reached = np.zeros(count, np.bool_)
    words, context, coverage, near = (np.zeros(count) for _ in range(4))
    for term, weight in zip(terms, mass, strict=True):
        if not known[term].count:
            continue
        if (reach := known[term].reach) is None:
            reach = _reach(table, *(new.get(term) or _here(table, postings([term])[0])))
            _known.add(table, term, Term(known[term].count, reach))
        at, gain, there, wide_gain, share = reach
        words[at] += gain
        coverage[at] += weight
        context[there] += wide_gain
        near[there] += weight * share
        reached[there] = True
    positions = np.flatnonzero(reached)
    total = mass.sum()
    return Lexical(
        positions,
        words[positions],
        context[positions],
        np.minimum(coverage[positions] / total, 1.0),
        np.minimum(near[positions] / total, 1.0),
    )


def unheard_of(q: str, postings: Asking) -> bool:
    """Return whether ``q`` is an identifier that occurs nowhere, nor its numbers. Another one's is no answer, however
    near to it a model finds "ORD-5582" and "ORD-9999"."""
    if not (wanted := segment.identifier(q)):
        return False
    whole, begun, *numbers = map(len, postings(wanted))
    return not whole and not begun and not all(numbers)


def _terms(
    table: Columns, terms: Sequence[str], postings: Asking
) -> tuple[dict[str, Term], dict[str, tuple[Places, Counts]]]:
    """What is known of each, and where those are that were not."""
    known = _known.of(table, terms)
    missing = [term for term in terms if term not in known]
    new = {}
    for term, posting in zip(missing, postings(missing) if missing else (), strict=True):
        new[term] = _here(table, posting)
        known[term] = Term(len(new[term][0]), None)
        _known.add(table, term, known[term])
    return known, new


def _reach(table: Columns, at: Places, times: Counts) -> tuple[Positions, Floats, Positions, Floats, Floats]:
    count = len(table.passages)
    lean, norm, wide_norm = _norms(table)
    wide = np.zeros(count)
    wide[at] = times
    for holders, leaning, share in _steps(at, (table.next, BEFORE), (table.previous, AFTER)):
        wide[leaning] += share * lean[leaning] * times[holders]
    there = np.flatnonzero(wide)
    frequency = wide[there]
    gain = _idf(np.array(len(at)), count) * times * (K1 + 1) / (times + norm[at])
    wide_gain = _idf(np.array(len(there)), count) * frequency * (K1 + 1) / (frequency + wide_norm[there])
    return at.astype(np.int32), gain, there.astype(np.int32), wide_gain, np.minimum(frequency, 1.0)


def brevity(table: Columns) -> float:
    """Return how far this is a store of short notes (1) and not of pages (0)."""
    if "brevity" not in table.means:
        table.means["brevity"] = float(shortness(table.lengths).mean()) if len(table.passages) else 0.0
    return table.means["brevity"]


def shortness(lengths: NDArray[np.float32]) -> Floats:
    """Return how far each is a remark, which leans on what surrounds it (1), and not a page, which stands for itself
    (0). (n,)"""
    return np.asarray(1 / (1 + np.square(np.square(lengths.astype(np.float64) / LEANS))))  # ** 4 is ten times as slow


def leans_on(table: Columns, at: int) -> Places:
    """Positions of what the words of the passage ``at`` are matched together with."""
    one = np.array([at])
    if not _leans(table.lengths[one]).any():
        return one[:0]
    return np.concatenate([there for _, there, _ in _steps(one, *_around(table))])


def _leans(lengths: NDArray[np.float32]) -> Floats:
    """How much of the passages around it counts."""
    share = shortness(lengths)
    return np.where(share > 0.02, share, 0.0)


def _here(table: Columns, posting: Postings) -> tuple[Places, NDArray[np.int64]]:
    at = table.find(posting.passages)
    here = at != NONE
    return at[here], posting.times[here]


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


def _around(table: Columns) -> tuple[tuple[NDArray[np.int32], tuple[float, ...]], ...]:
    return (table.previous, BEFORE), (table.next, AFTER)


def _together(table: Columns, lean: Floats) -> Floats:
    """Lengths of all passages with what they lean on."""
    lengths = np.append(table.lengths, 0.0).astype(np.float64)  # the last is NONE
    around = np.zeros(len(lean))
    for column, shares in _around(table):
        there, onward = column, np.append(column, NONE)
        for share in shares:
            around += share * lengths[there]
            there = onward[there]
    return lengths[:-1] + lean * around


def _norms(table: Columns) -> tuple[Floats, Floats, Floats]:
    """Of all passages: how much they lean, and what their lengths are held against, alone and with what they lean
    on."""
    if "norm" not in table.columns:
        lengths = table.lengths.astype(np.float64)
        lean = table.columns["lean"] = _leans(table.lengths)
        together = _together(table, lean)
        table.columns["wide norm"] = _norm(together, float(together.mean()))
        table.columns["norm"] = _norm(lengths, float(lengths.mean()))
    return table.columns["lean"], table.columns["norm"], table.columns["wide norm"]


def _norm(lengths: Floats, mean: float) -> Floats:
    return K1 * (1 - B + B * lengths / max(mean, 1.0))


def _idf(df: NDArray[np.int64], count: int) -> Floats:
    return np.asarray(np.log1p((max(count, 1) - np.minimum(df, count) + 0.5) / (df + 0.5)))
