"""How near each passage is in meaning to a question, among what one asker may see.

Owns how many cosines are asked for. Called by the engine. Where the vectors are scanned is the index's matter: in
another process, as a rule. Of a store of moderate size all are asked for. Of a large one those of the nearest, and of
all that words have found, alone or by what was said before: nothing else can come far in the ranking.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from avmfs.embed.protocol import Batch
from avmfs.search.index import SearchIndex
from avmfs.store.table import Table

ALL: Final = 10_000
"""Passages of which all cosines are asked for: 120 KB, about a millisecond from another process."""
DEPTH: Final = 2000
"""Of more than that, so many of the nearest are asked for."""
FAR: Final = 0.0
"""The cosine of a passage that is not among them: unrelated texts have one about there."""


def nothing(table: Table) -> NDArray[np.float64]:
    """No vectors: NaN for each passage."""
    return np.full(len(table.passages), np.nan)


def search(index: SearchIndex, table: Table, query: Batch, found: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cosine of each passage of ``table`` (n,) with the first vector of ``query``, FAR where it is not asked for; NaN
    for a passage without a vector of the same model, which is known of those that words have ``found`` (positions in
    the table). Raises Busy."""
    count = len(table.passages)
    if not count:
        return nothing(table)
    few = count <= ALL
    cosines = nothing(table) if few else np.full(count, FAR)
    also = table.passages[found]
    passages, near = index.nearest(query.model, query.vectors[0], count if few else DEPTH, also, None)
    if not few:
        cosines[found] = np.nan
    if len(passages):
        at = np.minimum(np.searchsorted(table.passages, passages), count - 1)
        known = table.passages[at] == passages
        cosines[at[known]] = near[known]
    return cosines
