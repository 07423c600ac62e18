"""How relevant a passage is, on an absolute scale from 0 to 1.

Owns the calibration. Called by the engine; thresholds (``min_relevance``) and the figures that people see are
on this scale. It is apart from the ranking score on purpose: a score normalised by the best hit cannot say that
nothing fits.

Two witnesses, joined as a noisy-or: the cosine through a logistic, and the share of the query's words that the
passage has. Each can convince alone: a paraphrase shares no word, a ticket number has no meaning to a model.

The constants are rounded from a fit on XQuAD and LoCoMo questions, gold passages against the three best hits of
questions about something else, then moved a little towards letting paraphrases of short notes pass. At 0.3, some
97 % of the gold passages pass and about a tenth of those hits.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

# MiniLM: unrelated texts lie at 0.0 to 0.2, related ones from 0.35, paraphrases at 0.4 to 0.7.
MIDDLE: Final = 0.36
STEEPNESS: Final = 14.0

CERTAIN: Final = 0.95
"""Relevance of a passage that has all words of the query, whatever it means."""

DAMPING: Final = 2.0
"""Exponent on coverage: one word of four in common is a coincidence, three are not."""


def relevance(cosine: NDArray[np.float64], coverage: NDArray[np.float64]) -> NDArray[np.float64]:
    """Element by element; (n,) and (n,) to (n,), 0 to 1.

    A cosine of NaN is a passage without a vector: its words are the only witness and count undamped.
    """
    blind = np.isnan(cosine)
    words = CERTAIN * np.power(np.clip(coverage, 0, 1), np.where(blind, 1.0, DAMPING))
    meaning = np.where(blind, 0.0, 1 / (1 + np.exp(-STEEPNESS * (np.nan_to_num(cosine) - MIDDLE))))
    return np.asarray(1 - (1 - meaning) * (1 - words), np.float64)
