"""A second opinion: the best hits of a question, read once more by a model that sees question and passage together.

Owns what it changes: the order, and never what is found or how relevant all of it is. Called by the engine. Knows no
model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from avmfs_config import RerankSettings

from avmfs.embed.protocol import EmbeddingUnavailable, Reranker
from avmfs.node import RERANKER
from avmfs.search.engine import Scored

CHARACTERS: Final = 2000
"""Of a passage that are read: as many as a cross-encoder takes."""
MOST: Final = 1.0
"""Score of the best hit up to which what is said counts in shares of it: what lies above (talk has 3, for its sessions
and contexts) is no nearness."""


@dataclass(frozen=True, slots=True)
class Second:
    """Who is asked, and how much it counts."""

    reranker: Reranker
    settings: RerankSettings

    def on(self, found: Sequence[Scored], q: str) -> tuple[list[Scored], str | None]:
        """``found``, best first, with the first of them in a new order, and why that could not be. Their relevance
        stays, of the first one the highest: what ranks higher is no less relevant."""
        head, tail = found[: self.settings.top], found[self.settings.top :]
        if not head:
            return list(found), None
        try:
            said = self.reranker.judged(q, [scored.hit.text[:CHARACTERS] for scored in head])
        except EmbeddingUnavailable as e:
            return list(found), f"{RERANKER}: {e.reason}"
        unit = self.settings.weight * min(max(0.0, *(scored.score for scored in head)), MOST)
        weighed = [
            replace(scored, score=scored.score + unit * figure, parts={**scored.parts, "rerank": unit * figure})
            for scored, figure in zip(head, said.tolist(), strict=True)
        ]
        ordered = sorted(weighed, key=lambda scored: -scored.score)  # stable
        figures = sorted((scored.relevance for scored in head), reverse=True)
        return [
            *(replace(scored, relevance=figure) for scored, figure in zip(ordered, figures, strict=True)),
            *tail,
        ], None
