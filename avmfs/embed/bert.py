"""A BERT encoder's forward pass, the mean over tokens, length 1: what MiniLM and its like are, in plain torch.

Owns the arithmetic for one batch. sentence-transformers and transformers do the same with a hundred Python modules and
their hooks, which for a question of ten tokens costs a third of the time. The weights stay those of the loaded model;
only query, key and value are laid side by side. Called by ``local``, which compares it with the loaded model before it
uses it. Threads: any, together: nothing is written after __init__.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_SHAPE = ["Transformer", "Pooling", "Normalize"]


class Encoder:
    """Made from a loaded model. Raises ValueError when that is not of this kind as far as its form tells; who makes one
    compares its vectors with the model's."""

    def __init__(self, transformer: SentenceTransformer) -> None:
        import torch
        from tokenizers import Tokenizer

        parts = list(transformer)
        if [type(part).__name__ for part in parts] != _SHAPE:
            raise ValueError("not a transformer, a mean and a length of 1")
        if str(transformer.device) != "cpu" or transformer.default_prompt_name is not None:
            raise ValueError("not on the processor, or with a prompt")
        model: Any = getattr(parts[0], "auto_model", None)
        config = model.config
        if type(model).__name__ != "BertModel" or config.hidden_act != "gelu":
            raise ValueError("not BERT")
        # A copy: the loaded model's own tokenizer is set up anew by every call, and so takes one thread at a time.
        self._tokenizer = Tokenizer.from_str(transformer.tokenizer.backend_tokenizer.to_str())
        self._tokenizer.enable_truncation(int(transformer.max_seq_length or config.max_position_embeddings))
        self._tokenizer.enable_padding(pad_id=config.pad_token_id)
        self._heads, self._width, self._eps = config.num_attention_heads, config.hidden_size, config.layer_norm_eps
        with torch.inference_mode():
            held = model.state_dict()
            self._words = held["embeddings.word_embeddings.weight"]
            kind = held["embeddings.token_type_embeddings.weight"][0]
            self._places = held["embeddings.position_embeddings.weight"] + kind
            self._norm = held["embeddings.LayerNorm.weight"], held["embeddings.LayerNorm.bias"]
            self._layers = [_layer(torch, held, f"encoder.layer.{at}") for at in range(config.num_hidden_layers)]

    def vectors(self, texts: list[str]) -> NDArray[np.float32]:
        """(n, width), each of length 1."""
        import torch
        import torch.nn.functional as f

        encoded = self._tokenizer.encode_batch(texts)

        def normed(x: Any, weight: Any, bias: Any) -> Any:
            return f.layer_norm(x, (self._width,), weight, bias, self._eps)

        with torch.inference_mode():
            ids = torch.tensor([each.ids for each in encoded])
            there = torch.tensor([each.attention_mask for each in encoded], dtype=torch.bool)
            seen = None if bool(there.all()) else there[:, None, None, :]
            count, length = ids.shape
            x = normed(f.embedding(ids, self._words) + self._places[:length], *self._norm)
            for (qkv, merged, norm), (up, down, norm_after) in self._layers:
                q, k, v = f.linear(x, *qkv).view(count, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
                heads = f.scaled_dot_product_attention(q, k, v, attn_mask=seen)
                said = heads.transpose(1, 2).reshape(count, length, self._width)
                x = normed(f.linear(said, *merged) + x, *norm)
                x = normed(f.linear(f.gelu(f.linear(x, *up)), *down) + x, *norm_after)
            weight = there[:, :, None].to(x.dtype)
            found = f.normalize((x * weight).sum(1) / weight.sum(1).clamp(min=1e-9))
        return np.asarray(found.numpy(), np.float32)


def _layer(torch: Any, held: dict[str, Any], name: str) -> tuple[Any, Any]:
    """Weight and bias of its linear maps and norms: those of attention, those of the rest."""

    def pair(part: str) -> tuple[Any, Any]:
        return held[f"{name}.{part}.weight"], held[f"{name}.{part}.bias"]

    three = [pair(f"attention.self.{part}") for part in ("query", "key", "value")]
    qkv = torch.cat([weight for weight, _ in three]), torch.cat([bias for _, bias in three])
    attention = qkv, pair("attention.output.dense"), pair("attention.output.LayerNorm")
    return attention, (pair("intermediate.dense"), pair("output.dense"), pair("output.LayerNorm"))
