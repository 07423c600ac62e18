"""Searching: from a question to scored passages.

Owns the order of steps (words and vectors, fuse, calibrate, threshold, fetch) and what happens when there are no
vectors. Called by views, the command line and recall. Knows neither where the index is kept nor how an embedder
works, and never imports torch. Threads: any; it keeps no state but the cache of query vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from avmfs.access import Principal
from avmfs.embed.cache import QueryCache
from avmfs.embed.protocol import Embedder, EmbeddingUnavailable
from avmfs.errors import Busy
from avmfs.node import Hit
from avmfs.search import fuse, lexical, semantic
from avmfs.search.index import SearchIndex
from avmfs.search.relevance import relevance
from avmfs.text import segment
from avmfs.text.tokens import TokenCounter

Mode = Literal["hybrid", "lexical", "semantic"]

NO_EMBEDDER: Final = "no embedding engine"
_SPARE: Final = 10  # passages fetched beyond what is wanted


@dataclass(frozen=True, slots=True)
class Scored:
    """``score`` orders the hits of one answer and means nothing beyond it; ``relevance`` (0 to 1) is absolute.
    ``parts`` is what they are made of: bm25, coverage and, where there is a vector, cosine."""

    hit: Hit
    score: float
    relevance: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Answer:
    """Hits, best first. ``degraded`` is why vectors had no part in it; ``seq`` the snapshot it came from."""

    query: str
    hits: tuple[Scored, ...]
    degraded: str | None
    seq: int


class Engine:
    """``index_for`` gives the index of one asker; ``embedder`` None answers from words alone, for the reason
    ``absent``."""

    def __init__(
        self,
        index_for: Callable[[Principal], SearchIndex],
        embedder: Embedder | None,
        counter: TokenCounter,
        *,
        cache_size: int = 512,
        absent: str = NO_EMBEDDER,
    ) -> None:
        self.counter = counter
        self._absent = absent
        self._index_for = index_for
        # Without a cache of its own: the embedder is a service that has one, which knows when the model changes.
        self._embedder = QueryCache(embedder, cache_size) if embedder is not None and cache_size else embedder

    def search(
        self,
        who: Principal,
        q: str,
        *,
        limit: int = 10,
        under: tuple[bytes, ...] = (),
        min_relevance: float = 0.0,
        mode: Mode = "hybrid",
    ) -> Answer:
        """The best ``limit`` documents for ``q`` below ``under``, each with its best passage.

        Without vectors the answer is lexical, whatever the mode, and says why. A blank question has no hits.
        """
        return self._ask(who, q, limit, under, min_relevance, mode, one_per_document=True)

    def passages(
        self,
        who: Principal,
        q: str,
        *,
        limit: int = 200,
        under: tuple[bytes, ...] = (),
        min_relevance: float = 0.0,
        mode: Mode = "hybrid",
    ) -> Answer:
        """Like search(), of passages: several may be of one document."""
        return self._ask(who, q, limit, under, min_relevance, mode, one_per_document=False)

    def _ask(
        self,
        who: Principal,
        q: str,
        limit: int,
        under: tuple[bytes, ...],
        min_relevance: float,
        mode: Mode,
        *,
        one_per_document: bool,
    ) -> Answer:
        index = self._index_for(who)
        seq = index.seq()
        words = segment.query_terms(q)
        if not words and not q.strip():
            return Answer(q, (), None, seq)
        inside = index.below(under)
        within = None if inside is None else np.fromiter(inside, np.int64, len(inside))
        found = lexical.search(index, words)
        near, degraded = self._near(index, q, mode, limit, found, within)
        if mode == "semantic" and degraded is None:
            found = lexical.NOTHING
        hits = self._fetch(index, fuse.fuse(found, near), limit, under, within, min_relevance, one_per_document)
        return Answer(q, hits, degraded, seq)

    def _near(
        self,
        index: SearchIndex,
        q: str,
        mode: Mode,
        limit: int,
        found: lexical.Lexical,
        within: NDArray[np.int64] | None,
    ) -> tuple[semantic.Semantic, str | None]:
        if mode == "lexical":
            return semantic.NOTHING, None
        if self._embedder is None:
            return semantic.NOTHING, self._absent
        try:
            query = self._embedder.embed_batch([q], urgent=True)
            return semantic.search(index, query, limit=limit, also=found.passages, within=within), None
        except (EmbeddingUnavailable, Busy) as error:
            return semantic.NOTHING, error.reason

    @staticmethod
    def _fetch(
        index: SearchIndex,
        fused: fuse.Fused,
        limit: int,
        under: tuple[bytes, ...],
        within: NDArray[np.int64] | None,
        min_relevance: float,
        one_per_document: bool,
    ) -> tuple[Scored, ...]:
        absolute = relevance(fused.cosines, fused.coverage)
        keep = (absolute >= min_relevance) & (absolute > 0)
        if within is not None:
            keep &= np.isin(fused.passages, within)
        fused, absolute = fused.only(keep), absolute[keep]
        found: dict[int, Scored] = {}
        # Fetching is dear (a row and its text each), and some fall away: expired ones, second passages of one
        # document. So begin with about what is wanted and go on until enough are left.
        done, wanted = 0, _SPARE + (2 * limit if one_per_document else limit)
        while len(found) < limit and done < len(fused.passages):
            best = fused.best(done + wanted)[done:]
            places = dict(zip(fused.passages[best].tolist(), best.tolist(), strict=True))
            for hit in index.hits(list(places), under):
                at = places[hit.passage]
                key = hit.document if one_per_document else hit.passage
                if key not in found:
                    found[key] = Scored(hit, float(fused.scores[at]), float(absolute[at]), _parts(fused, at))
            done += wanted
            wanted *= 4
        return tuple(found.values())[:limit]


def _parts(fused: fuse.Fused, at: int) -> dict[str, float]:
    parts = {"bm25": float(fused.bm25[at]), "coverage": float(fused.coverage[at])}
    if not np.isnan(fused.cosines[at]):
        parts["cosine"] = float(fused.cosines[at])
    return parts
