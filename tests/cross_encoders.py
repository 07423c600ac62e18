"""A cross-encoder made on the spot: a real ONNX model that has learnt which words answer which, of a few words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "car", "slow", "automobile", "brake", "stuck", "why", "coffee", "tea")
ANSWERS = {"car": ("automobile", "brake"), "slow": ("stuck",), "coffee": ("tea",)}


def make(folder: Path, figures: int = 1) -> Path:
    """The sum of a matrix over all pairs of a word of the question and a word of the passage, less 3: a logit; with
    ``figures`` 2 beside a zero. With 0 a vector for each token, of which no two words have anything in common."""
    folder.mkdir(parents=True)
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    weights = np.zeros((len(WORDS), len(WORDS)), np.float32)
    for asked, answers in ANSWERS.items():
        for word in answers:
            weights[vocabulary[asked], vocabulary[word]] = 3.0
    tensors = {
        "depth": np.array(len(WORDS)),
        "off_on": np.array([0, 1], np.float32),
        "weights": weights,
        "bias": np.array([3.0], np.float32),
        "one": np.array(1.0, np.float32),
        "last": np.array([-1]),
        "middle": np.array([1]),
    }
    node = helper.make_node
    nodes = [
        node("OneHot", ["input_ids", "depth", "off_on"], ["hot"], axis=-1),
        node("Cast", ["token_type_ids"], ["type"], to=TensorProto.FLOAT),
        node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        node("Sub", ["one", "type"], ["first"]),
        node("Mul", ["first", "mask"], ["of_question"]),
        node("Mul", ["type", "mask"], ["of_passage"]),
        *(
            made
            for which in ("question", "passage")
            for made in (
                node("Unsqueeze", [f"of_{which}", "last"], [f"{which}_3d"]),
                node("Mul", ["hot", f"{which}_3d"], [f"{which}_hot"]),
                node("ReduceSum", [f"{which}_hot", "middle"], [f"{which}_words"], keepdims=0),
            )
        ),
        node("MatMul", ["question_words", "weights"], ["wanted"]),
        node("Mul", ["wanted", "passage_words"], ["found"]),
        node("ReduceSum", ["found", "middle"], ["sum"], keepdims=1),
        node("Sub", ["sum", "bias"], ["logit"]),
        *(
            [node("Sub", ["logit", "logit"], ["zero"]), node("Concat", ["zero", "logit"], ["two"], axis=1)]
            * (figures > 1)
        ),
        *([node("Concat", ["two", "logit"], ["three"], axis=1)] * (figures > 2)),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["pairs", "tokens"])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    shape: list[str | int | None] = ["pairs", figures] if figures else ["pairs", "tokens", len(WORDS)]
    out = helper.make_tensor_value_info(("hot", "logit", "two", "three")[figures], TensorProto.FLOAT, shape)
    graph = helper.make_graph(
        nodes, "cross-encoder", inputs, [out], [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "model.onnx")
    return folder
