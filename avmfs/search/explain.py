"""Where a document stands in the ranking for a question, and why: what ``:why`` prints.

Owns the reasons. Called by views. Knows neither formats nor how the ranking is made, only its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from avmfs.search import lexical
from avmfs.search.engine import Ranking, Scored
from avmfs.search.index import SearchIndex
from avmfs.store.index.columns import NONE
from avmfs.text import segment


@dataclass(frozen=True, slots=True)
class Words:
    """Index terms of the question: those that a passage has, those that stand only around it, and the rest."""

    own: tuple[str, ...]
    near: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankExplanation:
    """``rank`` counts documents from 1; None: no candidate, which has neither a word of the question nor a vector near
    it. ``of`` is how many documents that were looked for were candidates; ``passages`` how many of the document's are
    indexed."""

    best: Scored | None
    rank: int | None
    of: int
    passages: int


def explained(index: SearchIndex, ranking: Ranking, document: int) -> RankExplanation:
    """Of the document's best passage."""
    if ranking.wanted is not None:
        ranking = ranking.only(ranking.wanted[ranking.candidates.positions])
    table, candidates = ranking.table, ranking.candidates
    documents = table.documents[candidates.positions]
    indexed = int(np.count_nonzero(table.documents == document))
    order = candidates.best(len(documents))
    mine = np.flatnonzero(documents[order] == document)
    everybody = len(np.unique(documents))
    if not len(mine):
        return RankExplanation(None, None, everybody, indexed)
    at = int(order[mine[0]])
    rank = len(np.unique(documents[order[: mine[0] + 1]]))
    hits = index.hits([int(ranking.passages()[at])], ())
    return RankExplanation(ranking.scored(hits[0], at) if hits else None, rank, everybody, indexed)


def unwanted_in(index: SearchIndex, ranking: Ranking, document: int, unwanted: Sequence[Sequence[str]]) -> list[str]:
    """Those of the ``unwanted`` phrases that a document has."""
    own = ranking.table.passages[ranking.table.documents == document]
    return [" ".join(terms) for terms in unwanted if np.isin(index.phrase(terms), own).any()]


def matched(index: SearchIndex, ranking: Ranking, q: str, passages: Sequence[int]) -> dict[int, Words]:
    """Which words of ``q`` each passage has."""
    terms = segment.query_terms(q)
    holders = [frozenset(one.passages.tolist()) for one in index.postings(terms)]
    table = ranking.table
    found = {}
    for passage, at in zip(passages, table.find(np.array(passages)).tolist(), strict=True):
        # One that was indexed anew since the answer has other passages in the table.
        near_by = np.zeros(0, np.int64) if at == NONE else lexical.leans_on(table, at)
        around = frozenset(table.passages[near_by].tolist())
        own = tuple(term for term, ids in zip(terms, holders, strict=True) if passage in ids)
        near = tuple(term for term, ids in zip(terms, holders, strict=True) if around & ids and term not in own)
        found[passage] = Words(own, near, tuple(term for term in terms if term not in own and term not in near))
    return found
