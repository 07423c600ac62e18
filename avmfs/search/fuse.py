"""One ranking out of words and vectors.

Owns the weights and the way ties are broken. Called by the engine. Measured (LoCoMo, Cranfield, XQuAD, CMRC):
of the simple fusions, the cosine plus a max-normalised BM25 is the best or level; reciprocal rank fusion lets
weak vectors do harm (12 to 21 points of R@10 in Chinese) and stays out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from avmfs.search.lexical import Lexical
from avmfs.search.semantic import Semantic

COSINE: Final = 1.0
LEXICAL: Final = 0.4


@dataclass(frozen=True, slots=True)
class Fused:
    """Candidates: ids (n,) ascending and, for each, score, cosine (NaN: no vector yet), BM25, coverage."""

    passages: NDArray[np.int64]
    scores: NDArray[np.float64]
    cosines: NDArray[np.float64]
    bm25: NDArray[np.float64]
    coverage: NDArray[np.float64]

    def only(self, keep: NDArray[np.bool_]) -> Fused:
        return Fused(self.passages[keep], self.scores[keep], self.cosines[keep], self.bm25[keep], self.coverage[keep])

    def best(self, k: int) -> NDArray[np.int64]:
        """Positions of the ``k`` best, best first, equal scores by passage id.

        All scores that reach the k-th are sorted: which members of a tie a partition returns depends on the
        length of the array, and would tell of rows elsewhere.
        """
        if k <= 0 or not len(self.passages):
            return np.zeros(0, np.int64)
        if k < len(self.scores):
            bar = np.partition(self.scores, -k)[-k]
            pool = np.flatnonzero(self.scores >= bar)
        else:
            pool = np.arange(len(self.scores))
        order = np.lexsort((self.passages[pool], -self.scores[pool]))
        return pool[order][:k]


def fuse(lexical: Lexical, semantic: Semantic) -> Fused:
    """Score = COSINE * cosine + LEXICAL * bm25 / best bm25; a passage without a vector has its lexical part
    alone. Candidates are all passages of both."""
    passages = np.union1d(lexical.passages, semantic.passages)
    cosines = np.full(len(passages), np.nan)
    cosines[np.searchsorted(passages, semantic.passages)] = semantic.cosines
    bm25, coverage = np.zeros(len(passages)), np.zeros(len(passages))
    where = np.searchsorted(passages, lexical.passages)
    bm25[where], coverage[where] = lexical.scores, lexical.coverage
    top = float(bm25.max(initial=0.0)) or 1.0
    return Fused(passages, COSINE * np.nan_to_num(cosines) + LEXICAL * bm25 / top, cosines, bm25, coverage)
