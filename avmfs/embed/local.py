"""The default engine: a model on this machine, by ONNX Runtime, or by torch where there is a GPU for it.

Owns that choice. Both give the same vectors under the same model id, so each may answer for the other. Called by the
process that serves vectors, and by Python users. Importing this module is cheap.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from avmfs.embed import weights
from avmfs.embed.onnx import OnnxEmbedding
from avmfs.embed.protocol import Batch, EmbeddingBackend
from avmfs.embed.transformer import TransformerEmbedding

_NVIDIA = Path("/dev/nvidia0")


class LocalEmbedding(EmbeddingBackend):
    """An Embedder that runs ``model`` here, loaded at the first use or by load().

    ``path`` is a folder with its weights; else see avmfs.embed.weights. ``device`` is cpu, mps, cuda, or auto for the
    best there is. Everything raises EmbeddingUnavailable when the model cannot be had.
    """

    def __init__(
        self,
        model: str = weights.DEFAULT_MODEL,
        path: str | os.PathLike[str] | None = None,
        device: str = "auto",
        allow_download: bool = True,
    ) -> None:
        self.engine: OnnxEmbedding | TransformerEmbedding
        if _on_gpu(device):
            self.engine = TransformerEmbedding(model, path, device, allow_download)
        else:
            self.engine = OnnxEmbedding(model, path, allow_download=allow_download)

    @property
    def model_id(self) -> str:
        """Name and weights, such as ``all-MiniLM-L6-v2@53aa5117``. Finds the weights, does not load them."""
        return self.engine.model_id

    @property
    def dimension(self) -> int:
        """Length of a vector. Loads the model."""
        return self.engine.dimension

    def load(self) -> None:
        """Load the model now. Does nothing when it is loaded."""
        self.engine.load()

    def embed(self, text: str) -> list[float]:
        """The vector of one text."""
        return [float(each) for each in self.embed_batch([text]).vectors[0]]

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        return self.engine.embed_batch(texts, urgent=urgent)


def _on_gpu(device: str) -> bool:
    """Whether torch is to compute: when asked for, or where it is installed beside a GPU. It is not imported here."""
    if device in ("cuda", "mps"):
        return True
    gpu = sys.platform == "darwin" or _NVIDIA.exists()
    return device == "auto" and gpu and importlib.util.find_spec("sentence_transformers") is not None
