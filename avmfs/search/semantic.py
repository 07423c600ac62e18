"""The passages nearest in meaning to a question, among what one asker may see.

Owns how many are asked for. Called by the engine. Where the vectors are scanned is the index's matter: in another
process, as a rule. What is asked for here is enough for an exact ranking of words and meaning together: a passage
that is neither among the nearest nor among those found by words stands behind all of the former.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from avmfs.embed.protocol import Batch
from avmfs.search.index import SearchIndex

DEPTH: Final = 400
"""Nearest passages that are asked for at least; two for each hit that is wanted, as several may be of one document."""

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
    limit: int = 0,
    also: NDArray[np.int64] = NOBODY,
    within: NDArray[np.int64] | None = None,
) -> Semantic:
    """The passages nearest to the first vector of ``query`` among vectors of the same model, enough for ``limit``
    hits, and the cosines of ``also`` (what words have found). ``within``: only among these. Raises Busy."""
    return Semantic(*index.nearest(query.model, query.vectors[0], max(DEPTH, 2 * limit), also, within))
