"""One ranking out of all signals.

Owns how signals are added and the way ties are broken; the weights are configuration. Called by the engine. Measured
(LoCoMo, Cranfield, XQuAD, CMRC): the cosine plus max-normalised BM25 is the best or level; reciprocal rank fusion lets
weak vectors do harm (12 to 21 points of R@10 in Chinese) and stays out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from avmfs_config import SearchWeights
from numpy.typing import NDArray

from avmfs.store.index.columns import Columns
from avmfs.text import speech

POOL: Final = 2000
"""Candidates that are looked at closely: those with the best sum of words, context, cosine and the like."""

BEST_OF: Final = 3  # of a session, of a document, of a directory
CROWD: Final = (0.1, 30)
"""Share of all passages, and number, above which those of one directory are a crowd: of six hundred lines of a log,
dozens come near to any question by chance, and would fill an answer before the one line elsewhere that is meant."""
PAGES: Final = 1 / 3
ALONE: Final = 0.15
ENOUGH: Final = 0.35

CONTEXTUAL: Final = frozenset(("when", "question", "length", "event"))
"""Signals of what kind of remark it is. Outside of talk, each of them costs more on some kind of store than it brings
on another (benchmarks/README.md)."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Candidates: positions in the table (m,), ascending, their scores (m,) and what each signal has added (m,)."""

    positions: NDArray[np.int64]
    scores: Floats
    parts: Mapping[str, Floats]

    def only(self, keep: NDArray[np.bool_]) -> Ranked:
        return Ranked(self.positions[keep], self.scores[keep], {name: part[keep] for name, part in self.parts.items()})

    def best(self, k: int) -> NDArray[np.int64]:
        """Indexes of the ``k`` best candidates, best first, equal scores by passage id."""
        at = reaching(self.scores, k)
        order = np.lexsort((self.positions[at], -self.scores[at]))
        return at[order][:k]


def reaching(scores: Floats, k: int) -> NDArray[np.int64]:
    """Indexes of all scores that reach the ``k``-th best, ascending.

    All of them: which members of a tie a partition returns depends on the length of the array, and would tell of
    rows elsewhere.
    """
    if k <= 0 or not len(scores):
        return np.zeros(0, np.int64)
    if k >= len(scores):
        return np.arange(len(scores))
    return np.flatnonzero(scores >= np.partition(scores, -k)[-k])


def fuse(
    table: Columns,
    at: NDArray[np.int64],
    signals: Mapping[str, Floats],
    weights: SearchWeights,
    brevity: float = 1.0,
    known: float = 1.0,
    clear: float = 1.0,
    wanted: NDArray[np.bool_] | None = None,
) -> Ranked:
    """Add up ``signals``, each (m,) over positions ``at`` (m,) in the table, ascending; words and context as shares of
    the best.

    What surrounds a passage, and how it is said, tells something in talk alone (signals.dialogue): elsewhere CONTEXTUAL
    signals are 0, and its own words get a share ALONE of the context's weight, half of it more or less as ``clear`` (-1
    to 1) says how well the cosines tell these texts apart. The context is the words once more where passages are long,
    and vectors of pages are better than those of remarks: so its weight falls to PAGES of it as ``brevity`` (0 to 1, of
    the whole store) falls. ``known`` is the share of the question's words that the best passage has: the best of poor
    matches is no good one, so below ENOUGH words count less.

    A passage without a vector (a cosine of NaN) must not lose against those that were embedded already: see _guessed.
    Candidates have a word of the query, or a vector: the best POOL, and as many of the rows of the table that are
    ``wanted`` (n,).
    """
    cosine = signals["cosine"]
    blind = np.isnan(cosine)
    words, context = share(signals["words"]), share(signals["context"])
    cosine = _guessed(cosine, blind, words)
    trust = min(1.0, known / ENOUGH) ** 2
    talk = signals.get("dialogue", np.ones(len(at)))
    alone = weights.words + weights.context * (1 - talk) * (ALONE - clear / 6)
    wide = weights.context * talk * (PAGES + (1 - PAGES) * brevity)
    parts = {"cosine": weights.cosine * cosine, "words": trust * alone * words, "context": trust * wide * context}
    for name in ("speaker", "date", "when", "question", "length", "event", "phrase", "decay"):
        if name in signals:
            parts[name] = getattr(weights, name) * signals[name] * (talk if name in CONTEXTUAL else 1.0)
    base = np.sum(list(parts.values()), axis=0)
    eligible = np.flatnonzero(~blind | (words > 0) | (context > 0))
    best = eligible[reaching(base[eligible], POOL)]
    if wanted is not None and len(best) < len(eligible):
        here = eligible[wanted[at[eligible]]]
        best = np.union1d(best, here[reaching(base[here], POOL)])
    parts = {name: part[best] for name, part in parts.items()}
    scores, chosen = base[best], at[best]
    talk = talk[best]
    parts["document"] = weights.document * (_best_of(scores, table.documents[chosen]) - scores)
    scores = scores + parts["document"]
    parts["session"] = weights.session * talk * _best_of(scores, table.sessions[chosen])
    scores = scores + parts["session"]
    parts["next"] = weights.next * talk * _of_neighbour(scores, table.next[chosen], chosen)
    asked = talk * ((table.flags[table.previous[chosen]] & speech.ASKS) != 0)  # of those that have one
    parts["answer"] = weights.answer * asked * _of_neighbour(scores, table.previous[chosen], chosen)
    scores = scores + parts["next"] + parts["answer"]
    parts["crowd"] = weights.crowd * _crowded(table, chosen, scores)
    return Ranked(chosen, scores + parts["crowd"], parts)


def _guessed(cosine: Floats, blind: NDArray[np.bool_], words: Floats) -> Floats:
    """``cosine`` with a figure for passages without one: as near as any passage whose words say less, and as the
    nearest of all in proportion to its own words. So none that has fewer words gets ahead by its vector alone."""
    if not blind.any() or blind.all():
        return np.nan_to_num(cosine)
    found = np.where(blind, max(float(cosine[~blind].max()), 0.0) * words, cosine)
    rivals, mine = np.flatnonzero(~blind & (words > 0)), np.flatnonzero(blind & (words > 0))
    if len(rivals) and len(mine):
        order = rivals[np.argsort(words[rivals], kind="stable")]
        beaten = np.searchsorted(words[order], words[mine], side="right")
        nearest = np.concatenate(([0.0], np.maximum.accumulate(cosine[order])))
        found[mine] = np.maximum(found[mine], nearest[beaten])
    return found


def share(values: Floats) -> Floats:
    """Of the best."""
    top = float(values.max(initial=0.0))
    return values / top if top > 0 else values


def _best_of(scores: Floats, groups: NDArray[np.int32] | NDArray[np.int64]) -> Floats:
    """For each candidate the mean of the BEST_OF best of its group."""
    places, number = _grouped(scores, groups)
    top = places < BEST_OF
    means = np.bincount(number[top], scores[top]) / np.bincount(number[top])
    return np.asarray(means[number])


def _crowded(table: Columns, chosen: NDArray[np.int64], scores: Floats) -> Floats:
    """For each candidate the logarithm of how many times CROWD stands in its directory, where there are others; 0 for
    the BEST_OF best of each directory, so that no answer is lost for standing in a large one."""
    if "crowd" not in table.columns:
        count = np.bincount(table.directories)[table.directories]
        least = max(CROWD[0] * len(count), CROWD[1])
        table.columns["crowd"] = np.log(np.where(count < len(count), np.maximum(count / least, 1.0), 1.0))
    crowd = table.columns["crowd"][chosen]
    return np.where(_grouped(scores, table.directories[chosen])[0] < BEST_OF, 0.0, crowd) if crowd.any() else crowd


def _grouped(
    scores: Floats, groups: NDArray[np.int32] | NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which each is in its group, from 0 for the best, and the number of that group among those here."""
    order = np.lexsort((-scores, groups))
    ordered, index = groups[order], np.arange(len(order))
    first = np.concatenate(([True], ordered[1:] != ordered[:-1]))[: len(order)]
    places, number = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    places[order] = index - np.maximum.accumulate(np.where(first, index, 0))
    number[order] = np.cumsum(first) - 1
    return places, number


def _of_neighbour(scores: Floats, neighbours: NDArray[np.int32], chosen: NDArray[np.int64]) -> Floats:
    """For each candidate the score of its neighbour, 0 where that is no candidate."""
    at = np.minimum(np.searchsorted(chosen, neighbours), max(len(chosen) - 1, 0))
    there = (neighbours >= 0) & (chosen[at] == neighbours) if len(chosen) else np.zeros(0, np.bool_)
    return np.where(there, scores[at], 0.0)
