"""Remembering the vectors of queries.

Owns a small LRU in front of an embedder, for queries only: documents are embedded once and their vectors
stored. Called by search. Knows no model. Threads: any; the lock is never held while embedding.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from avmfs.embed.protocol import Batch, Embedder


class QueryCache:
    """An Embedder that keeps the last ``size`` vectors of another one.

    The key is a digest of the whole text: two long questions with a common beginning are two questions.
    """

    def __init__(self, embedder: Embedder, size: int = 512) -> None:
        self._embedder = embedder
        self._size = size
        self._model = ""
        self._kept: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()
        self._lock = threading.Lock()

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        keys = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        with self._lock:
            model = self._model
            known = {key: self._kept[key] for key in keys if key in self._kept}
            for key in known:
                self._kept.move_to_end(key)
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        if missing or not texts:
            fresh = self._embedder.embed_batch(list(missing.values()), urgent=urgent)
            if known and fresh.model != model:
                # The engine changed under us: its vectors and the kept ones are not comparable.
                missing = dict(zip(keys, texts, strict=True))
                known = {}
                fresh = self._embedder.embed_batch(list(missing.values()), urgent=urgent)
            if not texts:
                return fresh
            model = fresh.model
            known |= dict(zip(missing, fresh.vectors, strict=True))
            self._keep(model, {key: known[key] for key in missing})
        return Batch(model, np.stack([known[key] for key in keys]))

    def _keep(self, model: str, vectors: dict[bytes, NDArray[np.float32]]) -> None:
        with self._lock:
            if model != self._model:
                self._kept.clear()
                self._model = model
            # A copy: a row of the batch would keep the whole batch alive.
            self._kept.update((key, vector.copy()) for key, vector in vectors.items())
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
