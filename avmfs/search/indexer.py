"""Giving passages their vectors: one batch, or all that wait.

Called by the daemon's keeper behind the writes, and before a search where no daemon runs. Reads the queue from the
store and puts vectors back through it; a restart loses nothing.
"""

from __future__ import annotations

from typing import Final

from avmfs.access import Principal
from avmfs.embed.protocol import Embedder
from avmfs.store.protocol import Store

BATCH: Final = 32
_OPERATOR: Final = Principal("avmfs", operator=True)


def embed_some(store: Store, embedder: Embedder, model: str) -> bool:
    """One batch of passages; whether anything was done. Raises EmbeddingUnavailable."""
    passages = store.pending_passages(model, BATCH)
    if not passages:
        idle = store.idle_documents(model, 2 * BATCH)
        if idle:
            store.submit(_OPERATOR, "skip_vectors", documents=idle, model=model)
        return bool(idle)
    batch = embedder.embed_batch([text for _, _, text in passages])
    vectors = [
        [number, vector.astype("<f4").tobytes()] for (number, _, _), vector in zip(passages, batch.vectors, strict=True)
    ]
    return bool(store.submit(_OPERATOR, "put_vectors", model=batch.model, vectors=vectors)["stored"])


def embed_pending(store: Store, embedder: Embedder, model: str) -> None:
    """Words and vectors for everything that waits. Raises EmbeddingUnavailable."""
    while store.queue_lengths()[0]:
        store.submit(_OPERATOR, "drain_lexical", limit=64)
    while store.queue_lengths()[1] and embed_some(store, embedder, model):
        pass
