"""How relevant a passage is, on an absolute scale from 0 to 1.

Owns the calibration. Called by the engine; thresholds (``min_relevance``) and the figures that people see are
on this scale. It is apart from the ranking score on purpose: a score normalised by the best hit cannot say that
nothing fits.

Two questions, multiplied. Is there an answer at all? That is judged from the passages for which three witnesses say
most, joined as a noisy-or: meaning and words of one passage together, the meaning alone (a paraphrase shares no word)
and the words alone (a ticket number means nothing to a model). And is this passage part of it? That is what it shows
itself, or how far its score stands out between the middle of the field and the best, whichever is more: what continues
an answer often shows nothing by itself.

The constants are rounded from logistic fits (benchmarks/recall_quality.py --calibrate) on questions of LoCoMo and
XQuAD, English and Chinese, against questions that nothing in the same store answers, many of which name somebody who
speaks there. They suit the default model; another one whose cosines all lie high is brought near its scale by what its
cosines have in common.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

BOTH: Final = (-14.6, 19.9, 17.2)
"""Bias, and weights of the cosine and of the coverage."""
MEANING: Final = (-7.2, 20.0)
WORDS: Final = (-9.4, 14.0)
OTHERWISE: Final = (20.0, 0.25)
"""So much times what a cosine lacks of this is taken from the log odds of words alone: "most" and "planet" stand in a
page on something else too, and a model may see that."""

BLIND: Final = (-4.6, 16.0)
"""Words where there is no vector: nobody else can tell."""

SCALES: Final = {"use-multilingual-3": 1.4}
"""What a model's cosines are multiplied by, to mean what the default model's do: those of unrelated texts lie closer
together."""

CHANCE: Final = 0.1
"""Cosines of unrelated texts spread about so much: of many some are near by chance. The largest of n lies some
sqrt(2 ln n) spreads above their mean; the fits are from stores where that is USUAL."""
USUAL: Final = 3.5
FEWEST: Final = -0.05

COMMON: Final = 0.12
"""Mean cosine up to which a model tells texts apart. What lies above it says nothing (MiniLM on Chinese: 0.34, on
German: 0.3)."""
COMMON_JOINT: Final = 0.35  # where words agree, more of it is believed

NAMED: Final = 0.15
"""What a speaker's name in the question and before the passage adds to their cosine, where the name was left out of it:
measured, so that the same share of questions finds nothing as with the name."""

STANDS_OUT: Final = 0.75
"""Exponent on the share of the best score. A fifth of the way from the middle to the best is 0.3: 99 % of the relevant
passages among the first hundred lie above it."""
PAGES: Final = 3.0
"""Times so much for a page: it can speak for itself, and does not lean on what surrounds it."""

SAYS: Final = 4.0
"""Terms from which a passage may be as relevant as what it stands beside. "Ann: thanks!" has two: by its own evidence
it may be anything, but by its place no more than a quarter, (2 / 4) squared."""

BRIEF: Final = (-5.0, 6.0, 20.0)
"""Added to the log odds that there is an answer: this, so much of the brevity of the store, and of the mean cosine,
together UPLIFT at most and DOUBT at least. A note of a line that answers is less near to its question than a page is;
of pages on the world at large one is near to any question; and a question on what the store is about is near to all of
it. Chosen by what is silent on all sets (benchmarks/README.md)."""
DOUBT, UPLIFT = -0.5, 1.2
BRIEF_BLIND: Final = 2.0
"""So much of the brevity, where there are no vectors."""
MANY: Final = 100
"""Passages from which all of it counts: of a handful of notes, one that answers stands out."""

WORDLESS: Final = (-6.0, 12.0)
"""In place of all that, where no passage has any of the question's words, though there are WORDS_ASKED, as none has of
one in another script: bias and weight of the nearest cosine and of how far it lies above the FIELD-th. Of English
paragraphs that answer a Chinese question, and of eight stores that do not (benchmarks/README.md)."""
WORDS_ASKED: Final = 4
FIELD: Final = 30

Floats = NDArray[np.float64]


def relevance(
    scores: Floats,
    cosines: Floats,
    coverage: Floats,
    shortness: Floats,
    terms: Floats | None = None,
    named: Floats | None = None,
    brevity: float | None = None,
    count: int = 0,
    known: float = 1.0,
    asked: int = 0,
) -> Floats:
    """Of each candidate (n,) to (n,); a cosine of NaN is a passage without a vector. ``shortness`` is 1 for a remark,
    0 for a page; ``terms`` is how many each has, none given: enough. ``named`` is 1 where the one who speaks is named
    in the question, if it was asked without the name. ``brevity`` is the whole store's: 1 for notes, 0 for pages;
    ``count`` is how many passages it has, ``known`` how far the model knows the question (0 to 1), ``asked`` how many
    words that has."""
    if not len(scores):
        return scores
    if named is not None:
        cosines = cosines + NAMED * named
    seen = cosines[~np.isnan(cosines)]
    shift = _chance(len(seen))
    # Of all but the nearest: it would weigh against itself where there are few.
    common = float((seen.sum() - seen.max()) / (len(seen) - 1)) if len(seen) > 1 else 0.0
    blind = np.isnan(cosines)
    near = np.where(blind, seen.max() if len(seen) else np.nan, cosines) - shift
    told_by = _witnesses(near, coverage, common, known)
    best = _joined(told_by.max(axis=1))
    if asked >= WORDS_ASKED and count >= MANY and len(seen) >= FIELD and not coverage.any():
        nearest, field = np.partition(seen, (-1, -FIELD))[[-1, -FIELD]]
        best = _sure(WORDLESS[0] + WORDLESS[1] * (2 * nearest - field - shift))
    elif brevity is not None:
        told = min(max(BRIEF[0] + BRIEF[1] * brevity + BRIEF[2] * common, DOUBT), UPLIFT)
        odds = math.exp((told if len(seen) else BRIEF_BLIND * brevity) * min(1.0, count / MANY))
        best = best * odds / (1 + best * (odds - 1))
    own = np.where(blind, _alone(coverage), _joined(told_by))
    middle, top = float(np.median(scores)), float(scores.max())
    share = (scores - middle) / (top - middle) if top > middle else (scores == top).astype(np.float64)
    stands_out = np.clip(share, 0.0, 1.0) ** (STANDS_OUT * (PAGES + (1 - PAGES) * shortness))
    found = best * np.maximum(stands_out, own)
    order = np.argsort(-scores, kind="stable")
    # What ranks higher is no less relevant: the ranking has seen more.
    found[order] = np.maximum.accumulate(found[order][::-1])[::-1]
    # Unless it says next to nothing: "ok" ranks high beside an answer, and is none.
    return np.asarray(found if terms is None else np.minimum(found, np.maximum(best * own, (terms / SAYS) ** 2)))


def scale(model: str) -> float:
    """By how much its cosines are too close together; 1 for a model that nobody has measured."""
    return SCALES.get(model, 1.0)


def _witnesses(near: Floats, coverage: Floats, common: float, known: float) -> Floats:
    """What meaning, both and words say of each passage (3, n); words alone, where there are no vectors at all."""
    if np.isnan(near).all():
        return np.stack([np.zeros(len(near)), np.zeros(len(near)), _alone(coverage)])
    meaning = _sure(MEANING[0] + MEANING[1] * (near - max(0.0, common - COMMON)))
    both = _sure(BOTH[0] + BOTH[1] * (near - max(0.0, common - COMMON_JOINT)) + BOTH[2] * coverage)
    words = _sure(WORDS[0] + WORDS[1] * coverage - known * OTHERWISE[0] * np.maximum(OTHERWISE[1] - near, 0.0))
    return np.stack([meaning, both, words])


def _joined(witnesses: Floats) -> Floats:
    return np.asarray(1 - np.prod(1 - witnesses, axis=0))


def _alone(coverage: Floats) -> Floats:
    return np.where(coverage > 0, _sure(BLIND[0] + BLIND[1] * coverage), 0.0)


def _chance(count: int) -> float:
    return max(CHANCE * (math.sqrt(2 * math.log(max(count, 2))) - USUAL), FEWEST)


def _sure(value: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-np.clip(value, -60.0, 60.0))))
