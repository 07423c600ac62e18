"""MiniLM and its like without torch: ONNX Runtime, in full precision or with 8-bit weights.

Owns the loaded session. The ONNX file stands beside the weights; else the model is made from them (see bert), in memory
at each load, or, with 8-bit weights, which takes seconds, once in the cache folder. Importing this module is cheap.

Full precision gives torch's vectors (cosine 1.0000) under the same model id, so that either may answer for the
other. Eight bits give others (cosine 0.97 to 0.99), which have an id of their own.

Threads: any, together, so that a query waits for no batch; a batch is shared among as many threads as there are cores.
A process that has run it must never fork.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from avmfs.embed import bert, knowledge, weights
from avmfs.embed.protocol import Batch, EmbeddingUnavailable
from avmfs.extras import bring

Precision = Literal["fp32", "int8"]

SLICE: Final = 8
"""Texts computed in one go, by one thread: about 0.15 s of MiniLM. More of them are as long as the longest, and leave
the caches."""

_CHARACTERS_PER_TOKEN: Final = 32  # see transformer
_BESIDE: Final[dict[Precision, tuple[str, ...]]] = {
    "fp32": ("onnx/model.onnx", "model.onnx"),
    "int8": ("onnx/model_int8.onnx", "onnx/model_quantized.onnx"),
}


class OnnxEmbedding:
    """An Embedder that runs ``model`` on ONNX Runtime, loaded at the first use or by load().

    ``path`` is a folder with its weights; else see avmfs.embed.weights. ``cache`` is where 8-bit weights are kept.
    Raises EmbeddingUnavailable when the runtime, the weights or what it takes to export them is missing.
    """

    def __init__(
        self,
        model: str = weights.DEFAULT_MODEL,
        path: str | os.PathLike[str] | None = None,
        *,
        cache: Path | None = None,
        precision: Precision = "fp32",
        allow_download: bool = True,
        threads: int = 0,
    ) -> None:
        self.model = model
        self.precision: Precision = precision
        self._path = None if path is None else Path(path)
        self._cache = cache
        self._allow_download = allow_download
        self._threads = threads or os.cpu_count() or 1
        self._workers: ThreadPoolExecutor | None = None
        self._loading = threading.Lock()
        self._found: weights.Weights | None = None
        self._loaded: _Session | None = None

    @property
    def model_id(self) -> str:
        """As local.LocalEmbedding's; with 8-bit weights ``-int8`` follows."""
        with self._loading:
            found = self._weights().model_id
        return found if self.precision == "fp32" else f"{found}-int8"

    @property
    def dimension(self) -> int:
        return int(self.embed_batch(["dimension"]).vectors.shape[1])

    def load(self) -> None:
        self._session()

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        session = self._session()
        limit = _CHARACTERS_PER_TOKEN * session.longest
        clean = [text.encode("utf-8", "replace").decode().strip()[:limit] for text in texts]
        order = sorted(range(len(clean)), key=lambda at: len(clean[at]))  # a slice is as long as its longest
        vectors = np.zeros((len(clean), session.dimension), np.float32)
        slices = [order[at : at + SLICE] for at in range(0, len(order), SLICE)]
        computed = self._computed(session, [[clean[place] for place in each] for each in slices])
        for places, found in zip(slices, computed, strict=True):
            vectors[places] = found
        knowledge.weigh(session.tokenizer, clean, vectors, urgent)
        return Batch(self.model_id, vectors)

    def _computed(self, session: _Session, slices: list[list[str]]) -> Iterable[NDArray[np.float32]]:
        """In this thread, or by several with this one's priority."""
        if len(slices) < 2 or self._threads < 2:
            return map(session.run, slices)
        with self._loading:
            if self._workers is None:
                self._workers = ThreadPoolExecutor(self._threads, "embed")
        return self._workers.map(session.run, slices)

    def _weights(self) -> weights.Weights:
        if self._found is None:
            self._found = weights.resolve(self.model, self._path, allow_download=self._allow_download)
        return self._found

    def _session(self) -> _Session:
        if self._loaded is None:
            with self._loading:
                if self._loaded is None:
                    found = self._weights()
                    self._loaded = _Session(found.path, _model(found, self.precision, self._cache))
        return self._loaded


class _Session:
    """One model: tokens, run, mean over tokens, length 1. Threads: both libraries take several at a time."""

    def __init__(self, folder: Path, model: Path | bytes) -> None:
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError as error:
            raise EmbeddingUnavailable(f"{error.name} is not installed (pip install avmfs)") from error
        self._require_mean(folder)
        self.longest = int(weights.read_json(folder / "sentence_bert_config.json").get("max_seq_length") or 512)
        options = onnxruntime.SessionOptions()
        # A second thread helps little with a question, and on a busy machine each of a hundred meetings of the two may
        # wait for its turn of the processor (p99 beside a batch 4.4 ms, with two threads 10.5). Batches have threads.
        options.intra_op_num_threads = 1
        try:
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # both libraries raise bare Exceptions
            raise EmbeddingUnavailable(f"cannot load the model in {folder}: {str(error).splitlines()[0]}") from error
        self.tokenizer.enable_truncation(self.longest)
        self.tokenizer.enable_padding()
        self._inputs = {each.name for each in self._session.get_inputs()}
        self.dimension = int(
            weights.read_json(folder / "config.json").get("hidden_size") or self._session.get_outputs()[0].shape[-1]
        )

    @staticmethod
    def _require_mean(folder: Path) -> None:
        pooling = weights.read_json(folder / "1_Pooling" / "config.json")
        if pooling and not pooling.get("pooling_mode_mean_tokens", pooling.get("pooling_mode") == "mean"):
            raise EmbeddingUnavailable(f"{folder}: only models that pool by the mean can run on ONNX")

    def run(self, texts: list[str]) -> NDArray[np.float32]:
        encoded = self.tokenizer.encode_batch(texts)
        ids = np.array([each.ids for each in encoded], np.int64)
        mask = np.array([each.attention_mask for each in encoded], np.int64)
        fed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = self._session.run(None, {name: value for name, value in fed.items() if name in self._inputs})[0]
        weight = mask[:, :, None].astype(np.float32)
        mean = (hidden * weight).sum(1) / np.maximum(weight.sum(1), 1e-9)
        length = np.linalg.norm(mean, axis=1, keepdims=True)
        return np.asarray(mean / np.maximum(length, 1e-12), np.float32)


def _model(found: weights.Weights, precision: Precision, cache: Path | None) -> Path | bytes:
    """The file beside the weights, or one that was made; fp32 is made anew each time. Raises EmbeddingUnavailable."""
    for name in _BESIDE[precision]:
        if (found.path / name).is_file():
            return found.path / name
    if precision == "fp32":
        return bert.model(found.path)
    if cache is None:
        raise EmbeddingUnavailable("8-bit weights need a folder for the file that is made of them")
    kept = cache / f"{found.model_id.replace('/', '_')}-{precision}.onnx"
    if not kept.is_file():
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = Path(folder) / "model.onnx"
            _quantise(found, made)
            with open(made, "rb") as file:
                os.fsync(file.fileno())
            made.replace(kept)  # whole or not at all
    return kept


def _quantise(found: weights.Weights, file: Path) -> None:
    source = next((found.path / name for name in _BESIDE["fp32"] if (found.path / name).is_file()), None)
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        what = f"{error.name} is needed once, for 8-bit weights ({bring('int8')})"
        raise EmbeddingUnavailable(what) from error
    if source is None:
        source = file.with_name("fp32.onnx")
        source.write_bytes(bert.model(found.path))
    # The type of what ONNX Runtime's own operators give out, which its shape inference does not know: float32.
    types = {"DefaultTensorType": 1}
    quantize_dynamic(source, file, weight_type=QuantType.QInt8, per_channel=True, extra_options=types)
