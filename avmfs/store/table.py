"""What ranking knows of every passage, as columns, and how passages stand to each other.

Owns the value ``Table`` and the arithmetic of neighbours: what was written just before in the same place, and which
notes are of one session. Made by the catalogue, read by search. Knows no SQL.

A neighbour is always of the same place *and* of the same visibility class: whoever sees a passage sees all that its
score is made of, and nothing that others keep to themselves can move it (DESIGN 3.4).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

SESSION_GAP: Final = 3 * 3600 * 10**9
"""Nanoseconds of silence in one place after which another session begins."""

NONE: Final = -1

ROW: Final = np.dtype(
    [
        ("passage", "i8"), ("document", "i8"), ("part", "i4"), ("scope", "i4"), ("place", "i8"), ("time", "i8"),
        ("seq", "i8"), ("length", "i4"), ("voice", "i4"), ("flags", "u1"), ("expires", "i8"),
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """Passages that one asker sees, in order of id, a column each (n,).

    ``times`` are ns since the epoch: when it was said. ``previous`` and ``next`` are positions in these columns, NONE
    for none; ``sessions`` numbers from 0. ``voices`` are numbers for who speaks, 0 for nobody known; ``voices_of``
    gives those that a term names.
    """

    passages: NDArray[np.int64]
    documents: NDArray[np.int64]
    lengths: NDArray[np.float32]
    times: NDArray[np.int64]
    voices: NDArray[np.int32]
    flags: NDArray[np.uint8]
    previous: NDArray[np.int64]
    next: NDArray[np.int64]
    sessions: NDArray[np.int64]
    voices_of: dict[str, frozenset[int]]

    def positions(self, passages: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where these ids (n,) stand; those that are not here are left out."""
        if not len(self.passages):
            return np.zeros(0, np.int64)
        at = np.minimum(np.searchsorted(self.passages, passages), len(self.passages) - 1)
        here: NDArray[np.int64] = at[self.passages[at] == passages]
        return here


def arrange(rows: NDArray[np.void], voices_of: dict[str, frozenset[int]]) -> Table:
    """The table of ``rows`` (n,) of dtype ROW, in any order."""
    rows = rows[np.argsort(rows["passage"], kind="stable")]
    count = len(rows)
    previous, following = np.full(count, NONE, np.int64), np.full(count, NONE, np.int64)
    sessions = np.zeros(count, np.int64)
    if count:
        # Told at the same time: in the order in which they were written.
        order = np.lexsort((rows["part"], rows["document"], rows["seq"], rows["time"], rows["scope"], rows["place"]))
        sorted_ = rows[order]
        apart = (
            (sorted_["place"][1:] != sorted_["place"][:-1])
            | (sorted_["scope"][1:] != sorted_["scope"][:-1])
            | (sorted_["time"][1:] - sorted_["time"][:-1] > SESSION_GAP)
        )
        sessions[order] = np.concatenate(([0], np.cumsum(apart)))
        together = ~apart
        previous[order[1:][together]] = order[:-1][together]
        following[order[:-1][together]] = order[1:][together]
    return Table(
        np.ascontiguousarray(rows["passage"]), np.ascontiguousarray(rows["document"]),
        rows["length"].astype(np.float32), np.ascontiguousarray(rows["time"]), np.ascontiguousarray(rows["voice"]),
        np.ascontiguousarray(rows["flags"]), previous, following, sessions, voices_of,
    )  # fmt: skip
