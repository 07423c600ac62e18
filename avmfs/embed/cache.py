"""Remembering the vectors of queries.

Owns a small LRU for queries only (documents are embedded once and their vectors stored), and an embedder that has
one. The service that holds the model keeps one for all processes; where no daemon runs, search wraps its engine.
Knows no model. Threads: any; the lock is never held while embedding.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from avmfs.embed.protocol import Batch, Embedder, Remembering
from avmfs.lru import LRU

SIZE: Final = 512

Vectors = NDArray[np.float32]


class Remembered:
    """The last ``size`` vectors of queries, each under its model, who asked, and a digest of the whole text: two long
    questions with a common beginning are two questions."""

    def __init__(self, size: int = SIZE) -> None:
        self._kept: LRU[tuple[str, str, bytes], Vectors] = LRU(size)
        self._lock = threading.Lock()

    def known(self, model: str, asker: str, texts: Sequence[str]) -> dict[str, Vectors]:
        """Of ``texts``, those whose vectors of ``model`` are kept of this asker."""
        keys = {text: (model, asker, _digest(text)) for text in texts}
        with self._lock:
            found = {text: self._kept.get(key) for text, key in keys.items()}
        return {text: vector for text, vector in found.items() if vector is not None}

    def keep(self, model: str, asker: str, vectors: dict[str, Vectors]) -> None:
        # A copy: a row of a batch would keep the whole batch alive.
        copies = {(model, asker, _digest(text)): vector.copy() for text, vector in vectors.items()}
        with self._lock:
            for key, vector in copies.items():
                self._kept.put(key, vector)


class QueryCache(Remembering):
    """An Embedder that remembers what another one gave."""

    def __init__(self, embedder: Embedder, size: int = SIZE) -> None:
        self._embedder = embedder
        self._remembered = Remembered(size)
        self._model = ""

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False, asker: str = "") -> Batch:
        model = self._model
        known = self._remembered.known(model, asker, texts)
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        if missing or not texts:
            fresh = self._embedder.embed_batch(missing, urgent=urgent)
            if not texts:
                return fresh
            if known and fresh.model != model:
                # The engine changed under us: its vectors and the kept ones are not comparable.
                missing, known = list(dict.fromkeys(texts)), {}
                fresh = self._embedder.embed_batch(missing, urgent=urgent)
            self._model = model = fresh.model
            new = dict(zip(missing, fresh.vectors, strict=True))
            self._remembered.keep(model, asker, new)
            known |= new
        return Batch(model, np.stack([known[text] for text in texts]))


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
