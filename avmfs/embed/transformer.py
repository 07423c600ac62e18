"""Any sentence-transformers model, on the processor or a GPU; the extra ``torch`` brings what it needs.

Owns the loaded model. Called by the process that serves vectors, and by Python users. Must not be imported
for its effects: importing it is cheap, loading takes seconds and 500 MB, and a process that has loaded it must
never fork (torch's threads do not survive; a child that uses them hangs for good).

Threads: any, one at a time, in slices, so that a query waits for one slice at most.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from avmfs.embed import knowledge, weights
from avmfs.embed.protocol import Batch, EmbeddingUnavailable
from avmfs.extras import bring

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

log = logging.getLogger(__name__)

SLICE: Final = 16
"""Texts computed in one go: about 0.1 s of MiniLM on two cores. More of them cost more each: they are as long as the
longest, and leave the caches."""

ON_CUDA: Final = 128
"""The same where CUDA computes: an H100 embeds 1,770 texts/s in slices of 16 and 4,090 in these; more gain nothing."""

ALONE: Final = 1000
"""Characters that one thread computes alone, all texts as long as the longest. A second one helps little with a
question, and on a busy machine each of a hundred meetings of the two may wait for its turn of the processor."""

# The model reads max_seq_length tokens (256). Tokenizing a megabyte to throw it away would take seconds, and
# no token of running text has more than this many characters on average.
_CHARACTERS_PER_TOKEN: Final = 32

_WAITING: Final = "OMP_WAIT_POLICY"
_NOISY: Final = ("sentence_transformers", "transformers", "huggingface_hub", "httpx", "httpx2")


class TransformerEmbedding:
    """An Embedder that runs ``model`` here, loaded at the first use or by load().

    ``path`` is a folder with its weights; else see avmfs.embed.weights. ``device`` is cpu, mps, cuda, or auto
    for the best there is. Everything raises EmbeddingUnavailable when the model cannot be had.
    """

    def __init__(
        self,
        model: str = weights.DEFAULT_MODEL,
        path: str | os.PathLike[str] | None = None,
        device: str = "auto",
        allow_download: bool = True,
    ) -> None:
        self.model = model
        self._path = None if path is None else Path(path)
        self._device = None if device == "auto" else device
        self._allow_download = allow_download
        self._weights: weights.Weights | None = None
        self._transformer: SentenceTransformer | None = None
        self._threads = 1
        self._loading = threading.Lock()
        self._running = threading.Lock()  # the tokenizer refuses a second thread ("Already borrowed")

    @property
    def model_id(self) -> str:
        """Name and weights, such as ``all-MiniLM-L6-v2@53aa5117``. Finds the weights, does not load them."""
        return self._found().model_id

    @property
    def dimension(self) -> int:
        """Length of a vector. Loads the model."""
        loaded = self._loaded()
        # The name changed in sentence-transformers 6.
        ask = getattr(loaded, "get_embedding_dimension", None) or loaded.get_sentence_embedding_dimension
        if (dimension := ask()) is None:
            raise EmbeddingUnavailable(f"{self.model} does not tell its dimension")
        return int(dimension)

    @property
    def source(self) -> str:
        """Where the weights came from, for a person."""
        return self._found().source

    def load(self) -> None:
        """Load the model now (3 to 8 s, most of it imports). Does nothing when it is loaded."""
        self._loaded()

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        transformer = self._loaded()
        limit = _CHARACTERS_PER_TOKEN * (transformer.max_seq_length or 512)
        clean = [text.encode("utf-8", "replace").decode().strip()[:limit] for text in texts]
        order = sorted(range(len(clean)), key=lambda at: len(clean[at]))  # a slice is as long as its longest
        vectors = np.zeros((len(clean), self.dimension), np.float32)
        size = ON_CUDA if transformer.device.type == "cuda" else SLICE
        for at in range(0, len(clean), size):
            places = order[at : at + size]
            few = len(places) * len(clean[places[-1]]) <= ALONE
            asked = [clean[place] for place in places]
            with _threads(1 if few else self._threads), self._running:
                vectors[places] = transformer.encode(
                    asked, batch_size=size, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=False
                )
        if (vocabulary := getattr(transformer.tokenizer, "backend_tokenizer", None)) is not None:
            with self._running:
                knowledge.weigh(vocabulary, clean, vectors, urgent)
        return Batch(self.model_id, vectors)

    def _found(self) -> weights.Weights:
        with self._loading:
            if self._weights is None:
                self._weights = weights.resolve(self.model, self._path, allow_download=self._allow_download)
            return self._weights

    def _loaded(self) -> SentenceTransformer:
        if self._transformer is not None:
            return self._transformer
        folder = self._found().path
        with self._loading:
            if self._transformer is None:
                with _quietly():
                    loaded = _load(folder, self._device)
                    import torch

                    self._threads = int(torch.get_num_threads())
                self._transformer = loaded
            return self._transformer


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """With so many threads of torch's behind this one; another thread's calls keep theirs."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _load(folder: Path, device: str | None) -> SentenceTransformer:
    # All files are here. Without this the libraries ask the hub about them, and offline that takes a minute.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Its thread pool does not survive a fork and says so on stderr.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        with _sleeping_threads():
            importlib.import_module("torch")
        from huggingface_hub.utils.tqdm import disable_progress_bars
        from sentence_transformers import SentenceTransformer
        from transformers.utils import logging as transformers_logging
    except ImportError as error:
        raise EmbeddingUnavailable(
            f"{error.name or 'sentence-transformers'} is not installed ({bring('torch')})"
        ) from error
    disable_progress_bars()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return SentenceTransformer(str(folder), device=device, local_files_only=True)
    except (OSError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EmbeddingUnavailable(f"cannot load the model in {folder}: {reason}") from error


@contextmanager
def _sleeping_threads() -> Iterator[None]:
    """What torch loads here reads how its threads are to wait for each other. By default they run in a loop: with other
    programs on the same processors that takes twice the work, and ten times the time for a question."""
    if _WAITING in os.environ:
        yield
        return
    os.environ[_WAITING] = "PASSIVE"
    try:
        yield
    finally:
        del os.environ[_WAITING]  # programs started from here choose for themselves


@contextmanager
def _quietly() -> Iterator[None]:
    """No chatter of the libraries while they load; errors are raised, not logged."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
