"""A cross-encoder on ONNX Runtime: reads question and passage together, and says how well the one answers the other.

Owns the loaded session. The folder is the user's own: tokenizer.json, and an ONNX file of BERT, RoBERTa or their like
that gives one figure for a pair, a logit, or two, of which the second is for yes. Where it gives a vector for each
token, or where there are but the weights of a BERT, as of the embedding model itself, question and passage are read
apart and compared token by token (Khattab & Zaharia, "ColBERT", 2020). Threads: any, together. A process that has run
it must never fork.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from avmfs.embed import bert
from avmfs.embed.protocol import EmbeddingUnavailable, checked
from avmfs.embed.weights import read_json

FILES: Final = ("onnx/model.onnx", "model.onnx", "onnx/model_quantized.onnx", "onnx/model_int8.onnx")
WEIGHTS: Final = "model.safetensors"
SLICE: Final = 8
"""Pairs computed in one go; between two the time is looked at."""
LONGEST: Final = 512
ASKED: Final = 1000  # characters of a question that are read
_KNOWN: Final = frozenset(("input_ids", "attention_mask", "token_type_ids"))


class CrossEncoder:
    """A Reranker, loaded at the first use or by load()."""

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self.name = folder.name
        self._folder = folder
        self._timeout = timeout_s
        self._loading = threading.Lock()
        self._loaded: tuple[Any, Any] | None = None

    def load(self) -> None:
        self._parts()

    def judged(self, question: str, texts: Sequence[str]) -> NDArray[np.float64]:
        tokenizer, session = self._parts()
        deadline = time.monotonic() + self._timeout
        asked, *clean = (text.encode("utf-8", "replace").decode() for text in (question[:ASKED], *texts))
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))  # a slice is as long as its longest
        apart = len(session.get_outputs()[0].shape) == 3
        wanted = self._tokens(tokenizer, session, [asked])[0] if apart else None
        figures = np.zeros(len(texts))
        for start in range(0, len(order), SLICE):
            if time.monotonic() > deadline:
                raise EmbeddingUnavailable(f"not done within {self._timeout:g} s")
            places = order[start : start + SLICE]
            if wanted is None:
                figures[places] = self._logits(tokenizer, session, [(asked, clean[at]) for at in places])
            else:
                found = self._tokens(tokenizer, session, [clean[at] for at in places])
                figures[places] = [_nearest(wanted, each) for each in found]
        if wanted is None:
            return checked(1 / (1 + np.exp(-np.clip(figures, -60, 60))), len(texts))
        # All texts are alike to some degree, and a figure that all have would make less of what else tells them apart.
        return checked(np.clip(figures - figures.min(initial=np.inf), 0.0, 1.0), len(texts))

    def _logits(self, tokenizer: Any, session: Any, pairs: list[tuple[str, str]]) -> NDArray[np.float64]:
        out = self._run(session, tokenizer.encode_batch(pairs)).reshape(len(pairs), -1)
        if out.shape[1] not in (1, 2):
            raise EmbeddingUnavailable(f"{self._folder}: expected one or two figures for a pair, not {out.shape[1]}")
        return np.asarray(out[:, 0] if out.shape[1] == 1 else out[:, 1] - out[:, 0])

    def _tokens(self, tokenizer: Any, session: Any, texts: list[str]) -> list[NDArray[np.float64]]:
        """Of each text the vectors of its tokens (t, width), of length 1, without those that the model adds."""
        encoded = tokenizer.encode_batch(texts)
        out = self._run(session, encoded)
        out /= np.maximum(np.linalg.norm(out, axis=2, keepdims=True), 1e-12)
        own = [np.array(each.attention_mask) > np.array(each.special_tokens_mask) for each in encoded]
        return [rows[here] for rows, here in zip(out, own, strict=True)]

    def _run(self, session: Any, encoded: Any) -> NDArray[np.float64]:
        fed = {
            "input_ids": np.array([each.ids for each in encoded], np.int64),
            "attention_mask": np.array([each.attention_mask for each in encoded], np.int64),
            "token_type_ids": np.array([each.type_ids for each in encoded], np.int64),
        }
        wanted = {each.name for each in session.get_inputs()}
        try:
            return np.asarray(session.run(None, {name: fed[name] for name in wanted})[0], np.float64)
        except Exception as error:  # the runtime raises bare Exceptions
            raise EmbeddingUnavailable(f"the model failed: {str(error).splitlines()[0]}") from error

    def _parts(self) -> tuple[Any, Any]:
        with self._loading:
            if self._loaded is None:
                self._loaded = _load(self._folder)
            return self._loaded


def _load(folder: Path) -> tuple[Any, Any]:
    file = next((folder / name for name in (*FILES, WEIGHTS) if (folder / name).is_file()), None)
    if file is None or not (folder / "tokenizer.json").is_file():
        raise EmbeddingUnavailable(f"no cross-encoder in {folder}: expected tokenizer.json, and {' or '.join(FILES)}")
    try:
        import onnxruntime
        from tokenizers import Tokenizer
    except ImportError as error:
        raise EmbeddingUnavailable(f"{error.name} is not installed (pip install avmfs)") from error
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        model = bert.model(folder) if file.name == WEIGHTS else str(file)
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    except EmbeddingUnavailable:
        raise
    except Exception as error:  # both libraries raise bare Exceptions
        raise EmbeddingUnavailable(f"cannot load the model in {folder}: {str(error).splitlines()[0]}") from error
    if unknown := {each.name for each in session.get_inputs()} - _KNOWN:
        raise EmbeddingUnavailable(f"{folder}: the model wants {', '.join(sorted(unknown))}, which nobody has")
    said = read_json(folder / "tokenizer_config.json").get("model_max_length")
    tokenizer.enable_truncation(min(int(said), LONGEST) if isinstance(said, (int, float)) and said > 0 else LONGEST)
    pads = (tokenizer.token_to_id(token) for token in ("[PAD]", "<pad>"))
    tokenizer.enable_padding(pad_id=next((pad for pad in pads if pad is not None), 0))
    return tokenizer, session


def _nearest(asked: NDArray[np.float64], told: NDArray[np.float64]) -> float:
    """The mean of the cosines of the question's tokens (q, width) with the nearest of the text's (t, width)."""
    return float((asked @ told.T).max(axis=1).mean()) if len(asked) and len(told) else 0.0
