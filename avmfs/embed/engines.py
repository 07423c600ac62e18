"""Which engine the configuration names.

Owns the choice. Called by the process that serves vectors, and where no daemon runs. Nothing is loaded here: an
engine loads at its first use. Every engine is an Embedder, with ``model_id`` and ``dimension``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from avmfs_config import EmbeddingSettings

from avmfs.embed.local import LocalEmbedding
from avmfs.embed.onnx import OnnxEmbedding
from avmfs.embed.protocol import Embedder
from avmfs.embed.static import StaticEmbedding
from avmfs.embed.transformer import TransformerEmbedding
from avmfs.embed.universal import UniversalEmbedding


class Engine(Embedder, Protocol):
    @property
    def model_id(self) -> str: ...
    @property
    def dimension(self) -> int: ...


def make(settings: EmbeddingSettings, cache: Path) -> Engine:
    """The engine of ``settings``; ``cache`` is a folder for files that are made from weights."""
    match settings.engine:
        case "onnx" | "onnx-int8":
            return OnnxEmbedding(
                settings.model,
                settings.path,
                cache=cache,
                allow_download=settings.allow_download,
                precision="int8" if settings.engine == "onnx-int8" else "fp32",
            )
        case "static":
            return StaticEmbedding(settings.path)
        case "universal":
            return UniversalEmbedding()
        case "torch":
            return TransformerEmbedding(settings.model, settings.path, settings.device, settings.allow_download)
        case _:
            return LocalEmbedding(settings.model, settings.path, settings.device, settings.allow_download)
