"""Which engine the configuration names.

Owns the choice, and that the agents of one process share an engine where no daemon runs. Called there, and by the
process that serves vectors. Nothing is loaded here: an engine loads at its first use. Every engine is an Embedder, with
``model_id`` and ``dimension``.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

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


_made: WeakValueDictionary[tuple[EmbeddingSettings, Path, int], Engine] = WeakValueDictionary()
_making = threading.Lock()


def shared(settings: EmbeddingSettings, cache: Path) -> Engine:
    """As `make`; the one that this process has already, while anything refers to it: a model takes some 90 MB and a
    second to load, and `AVM.agent_memory` opens a door for each agent. A forked process makes its own."""
    key = settings, cache, os.getpid()
    with _making:
        found = _made.get(key)
        if found is None:
            found = _made[key] = make(settings, cache)
        return found


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
