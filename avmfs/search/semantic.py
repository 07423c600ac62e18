"""The passages nearest in meaning to a question, among what one asker may see.

Owns how many are asked for. Called by the engine. Where the vectors are scanned is the index's matter: in another
process, as a rule. What is asked for here is enough for an exact ranking of words and meaning together: a passage
that is neither among the DEPTH nearest nor among those found by words stands behind DEPTH others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from avmfs.embed.protocol import Batch
from avmfs.search.index import SearchIndex

DEPTH: Final = 1_000
"""Nearest passages that are asked for. An answer has 200 hits at most, several of which may be of one document."""

NOBODY: Final = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Semantic:
    """Passages that have a vector: ids (n,) ascending, cosines (n,) from -1 to 1."""

    passages: NDArray[np.int64]
    cosines: NDArray[np.float64]


NOTHING: Final = Semantic(np.zeros(0, np.int64), np.zeros(0))


def search(
    index: SearchIndex,
    query: Batch,
    *,
    depth: int = DEPTH,
    also: NDArray[np.int64] = NOBODY,
    within: NDArray[np.int64] | None = None,
) -> Semantic:
    """The ``depth`` passages nearest to the first vector of ``query`` among vectors of the same model, and the
    cosines of ``also`` (what words have found). ``within``: only among these. Raises Busy."""
    return Semantic(*index.nearest(query.model, query.vectors[0], depth, also, within))
