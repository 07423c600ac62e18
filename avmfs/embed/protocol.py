"""What an embedding engine is: the seam between search and whatever computes vectors.

Implemented by the local model, the hashing stand-in, the query cache and the daemon's client; called by search
and by the indexer. Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class EmbeddingUnavailable(Exception):
    """No vectors for now. ``reason`` is one line for a person; search then answers from words and shows it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Batch:
    """Vectors (n, dim), float32, each of length 1 (or 0, for a text that says nothing to the model), in the
    order of the texts. ``model`` names what computed them: vectors of two models are never compared."""

    model: str
    vectors: NDArray[np.float32]


class Embedder(Protocol):
    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        """Vectors of ``texts``. ``urgent``: somebody waits for the answer (a query), so go before the rest.

        Any str is taken; what is too long for the model is cut. Raises EmbeddingUnavailable.
        """
        ...
