"""Static vectors: a table of one vector per token, averaged. Hundreds of times faster than a model, and less exact.

Owns the loaded table and tokenizer. Called like ``local``. Tables: the one that the package ``wordllama`` carries
(the extra ``static``; its code is not imported), or any folder with ``model.safetensors`` and ``tokenizer.json`` as
model2vec writes them, multilingual ones included. Threads: any.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from avmfs.embed import knowledge
from avmfs.embed.protocol import Batch, EmbeddingUnavailable
from avmfs.extras import bring

WORDLLAMA: Final = "wordllama-256"
CHARACTERS: Final = 8192
"""More of a text is not read: an average over more words says nothing more."""

_TABLES: Final = ("embeddings", "embedding.weight")


class StaticEmbedding:
    """An Embedder over a table. ``path`` is its folder; None: the package's. Loaded at the first use or by load().

    Raises EmbeddingUnavailable when there is no table.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._loading = threading.Lock()
        self._loaded: _Table | None = None

    @property
    def model_id(self) -> str:
        """The folder's or package's name, and eight digits of the table's sha256."""
        return self._table().model_id

    @property
    def dimension(self) -> int:
        return int(self._table().rows.shape[1])

    def load(self) -> None:
        self._table()

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        table = self._table()
        vectors = np.zeros((len(texts), table.rows.shape[1]), np.float32)
        clean = [text[:CHARACTERS].encode("utf-8", "replace").decode() for text in texts]
        for vector, tokens in zip(vectors, table.tokens(clean), strict=True):
            if len(tokens):
                vector[:] = table.rows[tokens].mean(0)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        np.divide(vectors, lengths, out=vectors, where=lengths > 0)
        knowledge.weigh(table.tokenizer, clean, vectors, urgent)
        return Batch(table.model_id, vectors)

    def _table(self) -> _Table:
        if self._loaded is None:
            with self._loading:
                if self._loaded is None:
                    self._loaded = _Table(*self._place())
        return self._loaded

    def _place(self) -> tuple[str, Path, Path]:
        """The model's name, its table, its tokenizer."""
        if self._path is not None:
            return self._path.name, self._path / "model.safetensors", self._path / "tokenizer.json"
        spec = importlib.util.find_spec("wordllama")
        if spec is None or spec.origin is None:
            raise EmbeddingUnavailable(f"wordllama is not installed ({bring('static')}), and no path is set")
        package = Path(spec.origin).parent
        return (
            WORDLLAMA,
            package / "weights" / "l2_supercat_256.safetensors",
            package / "tokenizers" / "l2_supercat_tokenizer_config.json",
        )


class _Table:
    def __init__(self, name: str, table: Path, tokenizer: Path) -> None:
        try:
            from safetensors.numpy import load
            from tokenizers import Tokenizer
        except ImportError as error:
            raise EmbeddingUnavailable(f"{error.name} is not installed ({bring('static')})") from error
        try:
            data = table.read_bytes()
            tensors: dict[str, NDArray[Any]] = load(data)
            self.tokenizer = Tokenizer.from_file(str(tokenizer))
        except Exception as error:  # both libraries raise errors of their own, without a common base
            raise EmbeddingUnavailable(f"cannot load the table {table}: {str(error).splitlines()[0]}") from error
        found = next((tensors[key] for key in _TABLES if key in tensors), None)
        if found is None or found.ndim != 2:
            raise EmbeddingUnavailable(f"{table} has none of the tensors {', '.join(_TABLES)}")
        self.rows: NDArray[np.float32] = found.astype(np.float32)
        if "mapping" in tensors:  # model2vec: several tokens share a row, and each has a weight
            self.rows = self.rows[tensors["mapping"].astype(np.int64)]
        if "weights" in tensors:
            self.rows = self.rows * tensors["weights"].astype(np.float32)[:, None]
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.model_id = f"{name}@{hashlib.sha256(data).hexdigest()[:8]}"

    def tokens(self, texts: list[str]) -> list[NDArray[np.int64]]:
        encoded = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array([token for token in each.ids if token < len(self.rows)], np.int64) for each in encoded]
