"""Giving passages their vectors: one batch, or all that wait.

Called by the daemon's keeper behind the writes, and before a search where no daemon runs. Reads the queue from the
store and puts vectors back through it; a restart loses nothing but the batch under way. When the model changes, what
lacks its vectors is queued a slice at a time, and searches go on meanwhile with what there is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from avmfs.access import Principal
from avmfs.embed.protocol import Embedder
from avmfs.store.store import Store

BATCH: Final = 128
"""Passages in one commit: a second of MiniLM, 200 KB."""

PIECE: Final = 16
"""Passages that are embedded at once: two slices, for two threads. After each it can be left at that."""

_OPERATOR: Final = Principal("avmfs", operator=True, route="daemon")


def follow_model(store: Store, model: str, dimension: int) -> bool:
    """Have the store's vectors be of this model from now on; whether more is to be queued for that."""
    known = store.vector_model()
    if known is not None and (known.model, known.dimension, known.settled) == (model, dimension, True):
        return False
    return bool(store.submit(_OPERATOR, "follow_model", model=model, dimension=dimension)["left"])


def embed_some(
    store: Store, embedder: Embedder, model: str, limit: int = BATCH, enough: Callable[[], bool] = lambda: False
) -> int:
    """Embed up to ``limit`` passages, fewer once ``enough()``, and commit them. Return how many were dealt with. Raise
    EmbeddingUnavailable."""
    passages = store.pending_passages(model, limit)
    if not passages:
        idle = store.idle_documents(model, 2 * BATCH)
        if idle:
            store.submit(_OPERATOR, "skip_vectors", documents=idle, model=model)
        return len(idle)
    # Texts of about one length together: a batch is computed as long as its longest.
    passages = sorted(passages, key=lambda passage: len(passage[2]))
    vectors: list[list[object]] = []
    used = ""
    for first in range(0, len(passages), PIECE):
        piece = passages[first : first + PIECE]
        batch = embedder.embed_batch([text for _, _, text in piece])
        if used not in ("", batch.model):
            break  # the model has changed: the rest is for the next call
        used = batch.model
        vectors += (
            [number, vector.astype("<f4").tobytes()]
            for (number, _, _), vector in zip(piece, batch.vectors, strict=True)
        )
        if enough():
            break
    return int(store.submit(_OPERATOR, "put_vectors", model=used, vectors=vectors)["stored"])


def embed_pending(store: Store, embedder: Embedder, model: str) -> None:
    """Words and vectors for everything that waits. Raises EmbeddingUnavailable."""
    while store.words_wait():
        store.submit(_OPERATOR, "drain_lexical", limit=64)
    known = store.vector_model()
    if known is None or known.model != model or not known.settled:
        dimension = embedder.embed_batch(["dimension"]).vectors.shape[1]
        while follow_model(store, model, dimension):
            pass
    while store.vectors_wait() and embed_some(store, embedder, model):
        pass
