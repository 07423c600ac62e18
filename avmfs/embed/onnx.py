"""MiniLM and its like without torch: ONNX Runtime, in full precision or with 8-bit weights.

Owns the loaded session, and the ONNX file: found beside the weights, or made from them once with torch and kept in
the cache folder. Called like ``local``. Importing this module is cheap; the extra ``onnx`` brings the runtime.

Full precision gives torch's vectors (cosine 1.0000) under the same model id, so that either may answer for the
other. Eight bits give others (cosine 0.97 to 0.99), which have an id of their own.

Threads: any, together, so that a query waits for no batch. A process that has run it must never fork.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from avmfs.embed import weights
from avmfs.embed.protocol import Batch, EmbeddingUnavailable

Precision = Literal["fp32", "int8"]

SLICE: Final = 16
_CHARACTERS_PER_TOKEN: Final = 32  # see local
_BESIDE: Final[dict[Precision, tuple[str, ...]]] = {
    "fp32": ("onnx/model.onnx", "model.onnx"),
    "int8": ("onnx/model_int8.onnx", "onnx/model_quantized.onnx"),
}


class OnnxEmbedding:
    """An Embedder that runs ``model`` on ONNX Runtime, loaded at the first use or by load().

    ``path`` is a folder with its weights; else see avmfs.embed.weights. ``cache`` is where an exported file is kept.
    Raises EmbeddingUnavailable when the runtime, the weights or what it takes to export them is missing.
    """

    def __init__(
        self,
        model: str = weights.DEFAULT_MODEL,
        path: str | os.PathLike[str] | None = None,
        *,
        cache: Path,
        precision: Precision = "fp32",
        allow_download: bool = True,
        threads: int = 0,
    ) -> None:
        self.model = model
        self.precision: Precision = precision
        self._path = None if path is None else Path(path)
        self._cache = cache
        self._allow_download = allow_download
        self._threads = threads  # 0: as many as there are cores
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
        for at in range(0, len(order), SLICE):
            places = order[at : at + SLICE]
            vectors[places] = session.run([clean[place] for place in places])
        return Batch(self.model_id, vectors)

    def _weights(self) -> weights.Weights:
        if self._found is None:
            self._found = weights.resolve(self.model, self._path, allow_download=self._allow_download)
        return self._found

    def _session(self) -> _Session:
        if self._loaded is None:
            with self._loading:
                if self._loaded is None:
                    found = self._weights()
                    self._loaded = _Session(found.path, onnx_file(found, self.precision, self._cache), self._threads)
        return self._loaded


class _Session:
    """One model: tokens, run, mean over tokens, length 1. Threads: both libraries take several at a time."""

    def __init__(self, folder: Path, file: Path, threads: int) -> None:
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError as error:
            raise EmbeddingUnavailable(f"{error.name} is not installed (pip install 'avmfs[onnx]')") from error
        self._require_mean(folder)
        self.longest = int(_json(folder / "sentence_bert_config.json").get("max_seq_length") or 512)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # Threads that spin while there is nothing to do take the cores from whoever reads and writes.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # both libraries raise bare Exceptions
            raise EmbeddingUnavailable(f"cannot load the model in {file}: {str(error).splitlines()[0]}") from error
        self._tokenizer.enable_truncation(self.longest)
        self._tokenizer.enable_padding()
        self._inputs = {each.name for each in self._session.get_inputs()}
        self.dimension = int(
            _json(folder / "config.json").get("hidden_size") or self._session.get_outputs()[0].shape[-1]
        )

    @staticmethod
    def _require_mean(folder: Path) -> None:
        pooling = _json(folder / "1_Pooling" / "config.json")
        if pooling and not pooling.get("pooling_mode_mean_tokens", pooling.get("pooling_mode") == "mean"):
            raise EmbeddingUnavailable(f"{folder}: only models that pool by the mean can run on ONNX")

    def run(self, texts: list[str]) -> NDArray[np.float32]:
        encoded = self._tokenizer.encode_batch(texts)
        ids = np.array([each.ids for each in encoded], np.int64)
        mask = np.array([each.attention_mask for each in encoded], np.int64)
        fed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = self._session.run(None, {name: value for name, value in fed.items() if name in self._inputs})[0]
        weight = mask[:, :, None].astype(np.float32)
        mean = (hidden * weight).sum(1) / np.maximum(weight.sum(1), 1e-9)
        length = np.linalg.norm(mean, axis=1, keepdims=True)
        return np.asarray(mean / np.maximum(length, 1e-12), np.float32)


def onnx_file(found: weights.Weights, precision: Precision, cache: Path) -> Path:
    """The model as ONNX: beside the weights, in the cache, or made there now. Raises EmbeddingUnavailable."""
    for name in _BESIDE[precision]:
        if (found.path / name).is_file():
            return found.path / name
    name = found.model_id.replace("/", "_")
    kept = cache / f"{name}-{precision}.onnx"
    if not kept.is_file():
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = Path(folder) / "model.onnx"
            if precision == "fp32":
                _export(found.path, made)
            else:
                _quantise(onnx_file(found, "fp32", cache), made)
            with open(made, "rb") as file:
                os.fsync(file.fileno())
            made.replace(kept)  # whole or not at all
    return kept


def _export(folder: Path, file: Path) -> None:
    """With torch, which is needed for this alone."""
    try:
        import torch
        from transformers import AutoModel
    except ImportError as error:
        raise EmbeddingUnavailable(f"{error.name} is needed once, to export {folder} to ONNX") from error

    class Named(torch.nn.Module):  # the exporter passes arguments by place, the model takes them by name
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:
            return self.model(input_ids=ids, attention_mask=mask, token_type_ids=types, return_dict=True)[0]

    names = ["input_ids", "attention_mask", "token_type_ids"]
    try:
        model = AutoModel.from_pretrained(str(folder), local_files_only=True, attn_implementation="eager").eval()
        example = torch.ones((2, 8), dtype=torch.long)
        axes = {name: {0: "texts", 1: "tokens"} for name in [*names, "last_hidden_state"]}
        with torch.inference_mode(), contextlib.redirect_stdout(None):
            torch.onnx.export(
                Named(model),
                (example, example, torch.zeros_like(example)),
                str(file),
                input_names=names,
                output_names=["last_hidden_state"],
                dynamic_axes=axes,
                opset_version=17,
                dynamo=False,
            )
    except Exception as error:  # torch's exporter raises whatever it meets
        raise EmbeddingUnavailable(f"cannot export {folder} to ONNX: {type(error).__name__}: {error}") from error


def _quantise(source: Path, file: Path) -> None:
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise EmbeddingUnavailable(
            f"{error.name} is needed once, for 8-bit weights (pip install 'avmfs[onnx]')"
        ) from error
    quantize_dynamic(source, file, weight_type=QuantType.QInt8, per_channel=True)


def _json(file: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise EmbeddingUnavailable(f"cannot read {file}: {error}") from error
    return found
