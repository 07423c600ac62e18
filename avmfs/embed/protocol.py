"""What an embedding engine is: the seam between search and whatever computes vectors.

Implemented by the local model, the hashing stand-in, the query cache and the daemon's client; called by search
and by the indexer. Knows no model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class EmbeddingUnavailable(Exception):
    """No vectors, or no second opinion, for now. ``reason`` is one line for a person; search then answers without and
    shows it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Batch:
    """Vectors (n, dim), float32, in the order of the texts, each of length 1, or less as the model knows less of the
    text, down to 0 for one that says nothing to it (see knowledge). ``model`` names what computed them: vectors of two
    models are never compared."""

    model: str
    vectors: NDArray[np.float32]


class EmbeddingBackend(ABC):
    """An engine of a program's own, for EmbeddingStore and FAISSEmbeddingStore: a subclass says how one text becomes a
    vector, and ``model_id`` what computes it.

    >>> class Lengths(EmbeddingBackend):
    ...     def embed(self, text: str) -> list[float]:
    ...         return [float(len(text)), 1.0]
    >>> Lengths().embed_batch(["", "x"]).vectors.round(2).tolist()
    [[0.0, 1.0], [0.7099999785423279, 0.7099999785423279]]
    """

    @property
    def model_id(self) -> str:
        """What computes the vectors: those of two models are never compared. By default the name of the class."""
        return f"{type(self).__module__}.{type(self).__qualname__}"

    @abstractmethod
    def embed(self, text: str) -> Sequence[float]:
        """The vector of one text, of any length but 0; the same number of components each time."""

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        """See Embedder."""
        vectors = np.array([self.embed(text) for text in texts], np.float32)
        return Batch(self.model_id, vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))


class Embedder(Protocol):
    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        """Vectors of ``texts``. ``urgent``: somebody waits for the answer (a query), so go before the rest.

        Any str is taken; what is too long for the model is cut. Raises EmbeddingUnavailable.
        """
        ...


class Remembering(ABC):
    """An Embedder that remembers the vectors of questions, those of each ``asker`` apart: how soon an answer comes
    tells nobody what another has asked."""

    @abstractmethod
    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False, asker: str = "") -> Batch:
        """See Embedder."""


class Reranker(Protocol):
    def judged(self, question: str, texts: Sequence[str]) -> NDArray[np.float64]:
        """How well each of ``texts`` answers ``question``: (n,) from 0 to 1, within its own time limit. Raises
        EmbeddingUnavailable."""
        ...


def checked(figures: Sequence[float] | NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Figures of a re-ranker for ``count`` texts, from 0 to 1; those that are not are logits, all of them. Raises
    EmbeddingUnavailable for what is no such thing."""
    found = np.asarray(figures, np.float64)
    if found.shape != (count,) or not np.isfinite(found).all():
        raise EmbeddingUnavailable(f"no figure for each of {count} texts")
    if count and (found.min() < 0 or found.max() > 1):
        found = 1 / (1 + np.exp(-np.clip(found, -60, 60)))
    return found
