"""How near passages are in meaning to a question, among what one asker may see.

Owns how many cosines are asked for. Called by the engine. Where the vectors are scanned is the index's matter: in
another process, as a rule. Of a store of moderate size all are asked for. Of a large one those of the nearest, and of
what words have found: nothing else can come far in the ranking.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from avmfs.search.index import SearchIndex
from avmfs.store.index.columns import NONE, Columns

ALL: Final = 4_000
"""Passages of which all cosines are asked for: 60 KB, well under a millisecond from another process."""
DEPTH: Final = 500
"""Of more than that, so many of the nearest are asked for."""

Places = NDArray[np.int64]


def depth(table: Columns) -> int | None:
    """How many candidates each source is asked for; None: all there are."""
    return None if len(table.passages) <= ALL else DEPTH


def search(
    index: SearchIndex, table: Columns, model: str, vector: NDArray[np.float32], found: Places
) -> tuple[Places, NDArray[np.float64]]:
    """Positions in ``table`` (m,), ascending: those of ``found`` (ascending) and the nearest; and the cosine of each
    with ``vector``; NaN for one without a vector of that model. Raises Busy."""
    if not len(table.passages):  # nothing to be near: nor does it matter then whether there are vectors yet
        return found, np.full(len(found), np.nan)
    wanted = depth(table)
    k = len(table.passages) if wanted is None else wanted
    passages, near = index.nearest(model, vector, k, table.passages[found])
    at = table.find(passages)
    known = at != NONE  # a vector may be newer than the table
    at, near = at[known], near[known]
    cosines = np.full(len(table.passages), np.nan)
    cosines[at] = near
    chosen = np.zeros(len(table.passages), np.bool_)
    chosen[found] = chosen[at] = True
    positions = np.flatnonzero(chosen)
    return positions, cosines[positions]
