"""A BERT encoder as an ONNX model, made from its weights without torch.

Owns the graph: token ids, mask and types in, the last hidden state out, as the files of the hub have it. MiniLM, E5,
BGE and their like are BERT with other sizes, which ``config.json`` tells. Called by ``onnx`` for a model that comes
without an ONNX file: half a second for MiniLM, and for that long three times the memory of the weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from avmfs.embed import onnx_file
from avmfs.embed.protocol import EmbeddingUnavailable
from avmfs.extras import bring

_OPSET: Final = 17  # the first with LayerNormalization
_IR: Final = 9  # what ONNX Runtime 1.19 reads
_CONTRIBUTED: Final = "com.microsoft"
"""ONNX Runtime's own operators: attention and GELU in one step each."""

Array = NDArray[Any]


def model(folder: Path) -> bytes:
    """The ONNX file of the encoder whose config.json and model.safetensors are in ``folder``.

    Raises EmbeddingUnavailable when it is no BERT, when its weights are not those of its configuration, or when a
    library is missing.
    """
    try:
        onnx_file.messages()  # said here, not in the middle of the graph
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ImportError as error:
        raise EmbeddingUnavailable(f"{error.name} is not installed (pip install avmfs)") from error
    try:
        config = json.loads((folder / "config.json").read_bytes())
        weights = load_file(folder / "model.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise EmbeddingUnavailable(f"cannot load the model in {folder}: {error}") from error
    kind = config.get("model_type"), config.get("hidden_act"), config.get("position_embedding_type", "absolute")
    if kind != ("bert", "gelu", "absolute"):
        raise EmbeddingUnavailable(
            f"{folder} has a model of another form ({', '.join(map(str, kind))}); an ONNX model is made of BERT alone."
            f" Put the model's own model.onnx there, or {bring('torch')} and set embedding: {{engine: torch}}"
        )
    try:
        return _Graph(config, weights).model()
    except KeyError as error:
        raise EmbeddingUnavailable(f"the model in {folder} lacks the weights {error}") from error


class _Graph:
    """Nodes and tensors in the order in which they are made; each method returns the name of what it adds."""

    def __init__(self, config: dict[str, Any], weights: dict[str, Array]) -> None:
        # Files of BertModel name weights from "embeddings", those of its descendants from "bert.embeddings".
        self._weights = {name.removeprefix("bert."): each for name, each in weights.items()}
        self._heads = int(config["num_attention_heads"])
        self._width = int(config["hidden_size"])
        self._layers = int(config["num_hidden_layers"])
        self._eps = float(config.get("layer_norm_eps", 1e-12))
        self._nodes: list[Any] = []
        self._tensors: dict[str, Any] = {}

    def model(self) -> bytes:
        hidden = self._embeddings()
        for index in range(self._layers):
            hidden = self._layer(f"encoder.layer.{index}", hidden)
        self._nodes[-1].output[0] = "last_hidden_state"
        axes: list[str | int] = ["texts", "tokens"]
        names = ("input_ids", "attention_mask", "token_type_ids")
        return onnx_file.model(
            "bert",
            self._nodes,
            [onnx_file.value_info(name, onnx_file.INT64, axes) for name in names],
            [onnx_file.value_info("last_hidden_state", onnx_file.FLOAT, [*axes, self._width])],
            list(self._tensors.values()),
            ir_version=_IR,
            opsets={"": _OPSET, _CONTRIBUTED: 1},
        )

    def _embeddings(self) -> str:
        length = self._add("Gather", self._add("Shape", "input_ids"), self._tensor("one", np.array(1)))
        ends = self._add("Unsqueeze", length, self._tensor("first", np.array([0])))
        places = self._add("Slice", self._weight("embeddings.position_embeddings.weight"), "first", ends)
        words = self._add("Gather", self._weight("embeddings.word_embeddings.weight"), "input_ids")
        types = self._add("Gather", self._weight("embeddings.token_type_embeddings.weight"), "token_type_ids")
        self._mask = self._add("Cast", "attention_mask", to=6)  # int32, as Attention takes it
        return self._norm("embeddings.LayerNorm", self._add("Add", self._add("Add", words, types), places))

    def _layer(self, name: str, hidden: str) -> str:
        parts = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        weight = self._tensor(f"{name}.qkv", np.hstack([self._weights[f"{part}.weight"].T for part in parts]))
        bias = self._tensor(f"{name}.qkv.bias", np.hstack([self._weights[f"{part}.bias"] for part in parts]))
        heads = self._add("Attention", hidden, weight, bias, self._mask, domain=_CONTRIBUTED, num_heads=self._heads)
        merged = self._linear(f"{name}.attention.output.dense", heads)
        hidden = self._norm(f"{name}.attention.output.LayerNorm", self._add("Add", merged, hidden))
        up = self._add("Gelu", self._linear(f"{name}.intermediate.dense", hidden), domain=_CONTRIBUTED)
        down = self._linear(f"{name}.output.dense", up)
        return self._norm(f"{name}.output.LayerNorm", self._add("Add", down, hidden))

    def _linear(self, name: str, given: str) -> str:
        # Transposed here, once: MatMul takes (in, out), torch keeps (out, in).
        weight = self._tensor(f"{name}.weight", np.ascontiguousarray(self._weights[f"{name}.weight"].T))
        return self._add("Add", self._add("MatMul", given, weight), self._weight(f"{name}.bias"))

    def _norm(self, name: str, given: str) -> str:
        weights = self._weight(f"{name}.weight"), self._weight(f"{name}.bias")
        return self._add("LayerNormalization", given, *weights, epsilon=self._eps)

    def _weight(self, name: str) -> str:
        return self._tensor(name, self._weights[name])

    def _tensor(self, name: str, value: Array) -> str:
        kept = value if value.dtype == np.int64 else np.ascontiguousarray(value, np.float32)
        self._tensors[name] = onnx_file.tensor(name, kept)
        return name

    def _add(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(onnx_file.node(kind, list(inputs), name, domain, attributes))
        return name
