"""An embedder without a model: feature hashing of words.

Similar words, similar vectors; no synonyms. Threads: any.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from avmfs.embed.protocol import Batch
from avmfs.text import segment


class HashingEmbedding:
    """Signed feature hashing (Weinberger et al., 2009) of the index terms into ``dimension`` buckets.

    Deterministic across processes and machines. A text without a term is the zero vector.
    """

    def __init__(self, dimension: int = 64) -> None:
        self.dimension = dimension
        self.model_id = f"hashing-{dimension}"

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            self._fill(row, text)
        return Batch(self.model_id, vectors)

    def _fill(self, row: NDArray[np.float32], text: str) -> None:
        for term in segment.terms(text):
            digest = hashlib.blake2b(term.encode(), digest_size=8).digest()
            row[int.from_bytes(digest[:7], "big") % self.dimension] += 1.0 if digest[7] & 1 else -1.0
        length = float(np.linalg.norm(row))
        if length:
            row /= length
