"""EmbeddingStore on FAISS: exact ("flat") or approximate ("hnsw") search over many nodes.

    from avmfs.embedding import LocalEmbedding
    from avmfs.faiss_store import FAISSEmbeddingStore

    index = FAISSEmbeddingStore(avm, LocalEmbedding(), index_type="hnsw")
    index.add_nodes(paths)
    index.save()
    results = index.search("market analysis", k=5)

Owns the FAISS index inside an EmbeddingStore; all else is ``embedding``'s. faiss is imported when a store is made.
It runs on one thread: on two cores, two are slower. A process that has run it must never fork.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Final, Literal, get_args

import numpy as np

from avmfs.embed.local import LocalEmbedding
from avmfs.embed.protocol import Embedder, EmbeddingUnavailable
from avmfs.embedding import EmbeddingStore, Match, NodeSource, Rows, StoredNode, Vectors
from avmfs.errors import Invalid
from avmfs.extras import bring

__all__ = ["FAISSEmbeddingStore", "IndexType", "Match", "StoredNode", "get_faiss_store"]

IndexType = Literal["flat", "hnsw"]

# Measured on real MiniLM vectors by benchmarks/bench_vectors.py.
NEIGHBOURS: Final = 32
BUILD_BREADTH: Final = 100
SEARCH_BREADTH: Final = 128


class FaissRows:
    """Rows in a FAISS index of inner products: rows have length 1, so these are cosines."""

    def __init__(self, index: Any) -> None:
        self._index = index

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def append(self, vectors: Vectors) -> None:
        if len(vectors):
            self._index.add(np.ascontiguousarray(vectors, np.float32))

    def nearest(self, query: Vectors, k: int) -> list[tuple[int, float]]:
        if not len(self) or k < 1:
            return []
        if hasattr(self._index, "hnsw"):
            self._index.hnsw.efSearch = max(SEARCH_BREADTH, 2 * k)
        scores, rows = self._index.search(np.ascontiguousarray(query[None, :], np.float32), k)
        found = [(int(row), float(score)) for row, score in zip(rows[0], scores[0], strict=True) if row >= 0]
        return sorted(found, key=lambda one: (-one[1], one[0]))

    def vectors(self) -> Vectors:
        return np.asarray(self._index.reconstruct_n(0, len(self)), np.float32)

    def dump(self) -> bytes:
        return bytes(_faiss().serialize_index(self._index).tobytes())


class FAISSEmbeddingStore(EmbeddingStore):
    """See EmbeddingStore. ``index_type`` "flat" compares every row, "hnsw" walks a graph of neighbours: faster from
    some ten thousand nodes on, and now and then without one of the nearest."""

    def __init__(
        self,
        store: NodeSource,
        embedder: Embedder,
        index_type: IndexType = "flat",
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        if index_type not in get_args(IndexType):
            raise Invalid(f"index_type {index_type!r}: expected {' or '.join(get_args(IndexType))}")
        self.index_type = index_type
        self.kind = f"faiss-{index_type}"
        super().__init__(store, embedder, path=path)

    def _new_rows(self) -> Rows:
        faiss = _faiss()
        if self.index_type == "flat":
            return FaissRows(faiss.IndexFlatIP(self.dimension))
        index = faiss.IndexHNSWFlat(self.dimension, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = BUILD_BREADTH
        return FaissRows(index)

    def _load_rows(self, data: bytes) -> Rows:
        # Only bytes whose checksum was right come here: FAISS trusts what it reads.
        return FaissRows(_faiss().deserialize_index(np.frombuffer(data, np.uint8)))


_made: weakref.WeakKeyDictionary[NodeSource, dict[str, FAISSEmbeddingStore]] = weakref.WeakKeyDictionary()


def get_faiss_store(
    store: NodeSource, embedder: Embedder | None = None, index_type: IndexType = "flat"
) -> FAISSEmbeddingStore:
    """The index of this kind for ``store``: the same one at every call. ``embedder`` None is LocalEmbedding(); one
    that is named counts at the first call."""
    indexes = _made.setdefault(store, {})
    if index_type not in indexes:
        indexes[index_type] = FAISSEmbeddingStore(store, embedder or LocalEmbedding(), index_type)
    return indexes[index_type]


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise EmbeddingUnavailable(f"faiss-cpu is not installed ({bring('faiss')})") from error
    faiss.omp_set_num_threads(1)
    return faiss
