"""How relevant a passage is, on an absolute scale from 0 to 1.

Owns the calibration. Called by the engine; thresholds (``min_relevance``) and the figures that people see are
on this scale. It is apart from the ranking score on purpose: a score normalised by the best hit cannot say that
nothing fits.

Two witnesses, joined as a noisy-or: the cosine through a logistic, and the share of the query's words that the
passage has. Each can convince alone: a paraphrase shares no word, a ticket number has no meaning to a model.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

# MiniLM: unrelated texts lie at 0.0 to 0.2, related ones from 0.35, paraphrases at 0.4 to 0.7.
MIDDLE: Final = 0.4
STEEPNESS: Final = 12.0

CERTAIN: Final = 0.9
"""Relevance of a passage that has all words of the query and no vector."""

DAMPING: Final = 1.5
"""Exponent on coverage: one word of four in common (0.11) is a coincidence, three (0.58) are not."""


def relevance(cosine: NDArray[np.float64], coverage: NDArray[np.float64]) -> NDArray[np.float64]:
    """Element by element; a cosine of NaN is a passage without a vector. (n,) and (n,) to (n,), 0 to 1."""
    doubt_words = 1 - CERTAIN * np.power(np.clip(coverage, 0, 1), DAMPING)
    meaning = 1 / (1 + np.exp(-STEEPNESS * (np.nan_to_num(cosine, nan=-1.0) - MIDDLE)))
    return np.asarray(1 - (1 - meaning) * doubt_words, np.float64)
