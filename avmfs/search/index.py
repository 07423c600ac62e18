"""What search needs of a store: the seam that the store implements.

Owns one Protocol, and which rows of its table a question is about. An index is bound to one asker when it is made:
nothing in it counts, scores or returns a row that this asker cannot see, so neither results nor statistics tell of
others (ARCHITECTURE, decision 3).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from avmfs.node import Dispute, Hit
from avmfs.store.index.columns import NONE, Columns
from avmfs.store.index.postings import Postings


class SearchIndex(Protocol):
    """One snapshot, one asker."""

    def table(self) -> Columns:
        """The columns that ranking needs, of every passage that the asker sees."""
        ...

    def postings(self, terms: Sequence[str]) -> list[Postings]:
        """Where each term occurs; passages that the table does not have may be among them."""
        ...

    def phrase(self, terms: Sequence[str]) -> NDArray[np.int64]:
        """Ids of the passages in which these terms follow each other, ascending."""
        ...

    def nearest(
        self, model: str, vector: NDArray[np.float32], k: int, also: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Passage ids (n,), ascending, and their cosines with ``vector`` (dim,), of length 1: the ``k`` nearest of
        those that ``model`` has embedded, with all that tie with the last, and whichever of ``also`` it has.

        Raises Busy, with a reason for a person, when the vectors cannot be scanned now."""
        ...

    def hits(self, passages: Sequence[int], under: tuple[bytes, ...]) -> list[Hit]:
        """What is live and below the directory ``under``, in the order given; the others are left out."""
        ...

    def below(self, under: tuple[bytes, ...]) -> frozenset[int] | None:
        """Ids of the passages below a directory; None for everything."""
        ...

    def topics(self, under: tuple[bytes, ...]) -> tuple[list[tuple[str, str, int]], int]:
        """(key, name, number of files) of each topic below the directory, and how many files are about anything."""
        ...

    def about(self, key: str, under: tuple[bytes, ...], limit: int) -> list[Hit]:
        """The first passages of the files of one topic, newest first."""
        ...

    def seq(self) -> int:
        """The newest change that the asker may see in this snapshot."""
        ...

    def disputed(self, documents: Sequence[int]) -> list[Dispute]:
        """Links of the types in DISPUTES to these documents, and those of them that go both ways from them, from files
        that the asker sees."""
        ...


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is looked for: what stands below ``under``, in documents ``within`` (None: any), those apart that have an
    ``unwanted`` phrase."""

    under: tuple[bytes, ...] = ()
    unwanted: Sequence[Sequence[str]] = ()
    within: Collection[int] | None = None

    def rows(self, index: SearchIndex, table: Columns) -> NDArray[np.bool_] | None:
        """Which of the table's (n,) that is. None: all."""
        inside = index.below(self.under)
        if inside is None and not self.unwanted and self.within is None:
            return None
        found = np.full(len(table.passages), inside is None)
        if inside is not None:
            at = table.find(np.fromiter(inside, np.int64, len(inside)))
            found[at[at != NONE]] = True
        for terms in self.unwanted:
            at = table.find(index.phrase(terms))
            found &= ~np.isin(table.documents, table.documents[at[at != NONE]])
        if self.within is not None:
            found &= np.isin(table.documents, np.fromiter(self.within, np.int64, len(self.within)))
        return found


EVERYTHING: Final = Wanted()
