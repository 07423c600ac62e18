"""One contract for EmbeddingStore and FAISSEmbeddingStore, flat and hnsw: what is added is found, what is saved is
there again, and a file that is not to be trusted is made anew."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from avmfs import AVM
from avmfs.embed.protocol import Batch, EmbeddingUnavailable
from avmfs.embedding import EmbeddingBackend, EmbeddingStore, StoredNode
from avmfs.errors import Invalid
from avmfs.faiss_store import FAISSEmbeddingStore, get_faiss_store
from tests.hashing import HashingEmbedding

Make = Callable[..., EmbeddingStore]
WORDS = "market risk coffee garden plan budget chips tea lisbon flight dentist vacuum disk fence paint milk eggs"
TEXTS = {"nvda.md": "NVDA shares look weak", "coffee.md": "coffee beans are out", "garden.md": "water the garden"}


class Counting(HashingEmbedding):
    """Hashing that counts what it embeds."""

    texts = 0

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        self.texts += len(texts)
        return super().embed_batch(texts, urgent=urgent)


@pytest.fixture
def avm(tmp_path: Path) -> Iterator[AVM]:
    with AVM(db=tmp_path / "avm.db", agent="alice", embeddings=False, environ={"HOME": str(tmp_path)}) as avm:
        for name, text in TEXTS.items():
            avm.write(f"/memory/{name}", text)
        yield avm


@pytest.fixture(params=["exact", "flat", "hnsw"])
def make(request: pytest.FixtureRequest, avm: AVM) -> Make:
    def build(
        embedder: HashingEmbedding | None = None, *, store: AVM = avm, path: Path | None = None
    ) -> EmbeddingStore:
        embedder = embedder or HashingEmbedding()
        if request.param == "exact":
            return EmbeddingStore(store, embedder, path=path)
        return FAISSEmbeddingStore(store, embedder, index_type=request.param, path=path)

    return build


def paths(index: EmbeddingStore, q: str, k: int = 5) -> list[str]:
    return [match.node.path for match in index.search(q, k=k)]


def filled(index: EmbeddingStore) -> EmbeddingStore:
    index.add_nodes([f"/memory/{name}" for name in TEXTS])
    return index


def test_what_is_added_is_found_by_its_words_with_its_text(make: Make) -> None:
    index = filled(make())
    assert len(index) == 3 and list(index) == [f"/memory/{name}" for name in sorted(TEXTS)]
    for node, score in index.search("coffee beans", k=1):
        assert (node.path, node.content) == ("/memory/coffee.md", TEXTS["coffee.md"])
        assert score > 0.6
    assert len(index.search("coffee", k=2)) == 2 and len(index.search("coffee", k=50)) == 3
    assert index.search("coffee", k=0) == []


def test_an_empty_index_finds_nothing(make: Make) -> None:
    assert make().search("coffee") == []


def test_a_larger_answer_may_begin_with_others(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal rows are in no order, and a graph that is walked further finds what is nearer."""
    index = filled(make())
    index.add_nodes([("/memory/nvda.md", "replaced"), ("/memory/nvda.md", "again")])  # two rows of nothing
    orders = {1: [3], 4: [2, 0, 3, 1], 5: [2, 0, 3, 1, 4]}
    monkeypatch.setattr(index._rows, "nearest", lambda _query, k: [(row, 0.5) for row in orders[k]])
    assert paths(index, "coffee", 1) == ["/memory/garden.md"]
    orders = {2: [3, 1], 5: [2, 3, 1, 4, 0]}
    assert sorted(paths(index, "coffee", 2)) == ["/memory/coffee.md", "/memory/garden.md"]


def test_nodes_come_as_paths_pairs_mappings_or_objects(make: Make) -> None:
    index = make()
    added = index.add_nodes(
        [
            "/memory/nvda.md",
            ("/memory/coffee.md", "coffee beans"),
            {"path": "/memory/garden.md", "content": "garden"},
            StoredNode("/memory/nvda.md", "NVDA shares look weak"),
        ]
    )
    assert len(index) == 3 and added >= 3
    for wrong in (
        5,
        ("/memory/a",),
        {"path": "/memory/a", "content": None},
        {"name": "a"},
        b"/memory/a",
        ("/memory/a", 5),
    ):
        with pytest.raises(Invalid, match="is no node"):
            index.add_nodes([wrong])  # type: ignore[list-item]


def test_what_the_store_returns_can_be_added(make: Make, avm: AVM) -> None:
    avm.write("/memory/deep/note.md", "deep")
    for given in (avm.search("coffee beans", limit=1), avm.list("/memory"), [avm.read("/memory/garden.md")]):
        index = make()
        index.add_nodes(given)
        assert [*index] == sorted(
            each.path if isinstance(each, StoredNode) else each["path"]
            for each in given
            if isinstance(each, StoredNode) or each.get("kind", "file") == "file"
        )
        assert len(index) >= 1 and index.search("garden", k=1)[0].node.content


def test_an_engine_of_ones_own_says_how_one_text_becomes_a_vector(avm: AVM, tmp_path: Path) -> None:
    class Letters(EmbeddingBackend):
        def embed(self, text: str) -> list[float]:
            return [float(text.lower().count(letter)) for letter in "abcdefghijklmnopqrstuvwxyz"]

    class Unfinished(EmbeddingBackend): ...

    index = EmbeddingStore(avm, Letters(), path=tmp_path / "own.vectors")
    index.add_nodes([("/memory/z.md", "zzz zz"), ("/memory/q.md", "qq q")])
    index.save()
    assert index.model.endswith("Letters") and index.dimension == 26
    found = EmbeddingStore(avm, Letters(), path=tmp_path / "own.vectors").search("z", k=1)
    assert found == [], "the store shows no such file"
    index.add_nodes(["/memory/coffee.md"])
    assert index.search("coffee", k=1)[0].score > 0.5
    with pytest.raises(TypeError, match="abstract"):
        Unfinished()  # type: ignore[abstract]


def test_a_node_is_embedded_again_only_when_its_text_has_changed(make: Make, avm: AVM) -> None:
    embedder = Counting()
    index = filled(make(embedder))
    before = embedder.texts
    assert index.add_nodes([f"/memory/{name}" for name in TEXTS]) == 0 and embedder.texts == before
    avm.write("/memory/coffee.md", "tea leaves instead")
    assert index.add_nodes(["/memory/coffee.md"]) == 1
    assert paths(index, "tea leaves", 1) == ["/memory/coffee.md"]
    assert len(index) == 3 and sorted(paths(index, "tea", 10)) == [f"/memory/{name}" for name in sorted(TEXTS)]


def test_what_is_removed_or_gone_from_the_store_is_not_found(make: Make, avm: AVM) -> None:
    index = filled(make())
    assert index.remove("/memory/coffee.md") and not index.remove("/memory/coffee.md")
    assert paths(index, "coffee") and "/memory/coffee.md" not in paths(index, "coffee")
    avm.delete("/memory/garden.md")
    assert paths(index, "garden") == ["/memory/nvda.md"]


def test_what_has_become_another_thing_is_not_found_and_hides_no_other(make: Make, avm: AVM) -> None:
    index = make()
    avm.write("/memory/d/tea.md", "tea leaves of the coffee market")
    index.add_nodes(["/memory/coffee.md", "/memory/d/tea.md", "/memory/garden.md"])
    avm.delete("/memory/coffee.md")
    avm.write("/memory/coffee.md/beans.md", "in a directory of its name")
    assert paths(index, "coffee garden") == ["/memory/garden.md", "/memory/d/tea.md"]
    avm.delete("/memory/d", recursive=True)
    avm.write("/memory/d", "a file where its directory was")
    assert paths(index, "coffee garden") == ["/memory/garden.md"]


def test_another_agents_index_shows_nothing_private(make: Make, avm: AVM, tmp_path: Path) -> None:
    written = avm.agent_memory().remember("coffee secrets of alice", title="secret")
    with AVM(db=tmp_path / "avm.db", agent="bob", embeddings=False, environ={"HOME": str(tmp_path)}) as bob:
        index = make(store=bob)
        index.rebuild()
        assert written not in index and len(index) == 3
        index.add_nodes([(written, "coffee secrets of alice")])  # bob had its text from somewhere
        assert written not in paths(index, "coffee secrets")


def test_what_was_saved_is_there_again_without_embedding(make: Make) -> None:
    filled(make()).save()
    embedder = Counting()
    index = make(embedder)
    assert index.rebuilt is None and embedder.texts == 1, "the probe for its dimension"
    assert len(index) == 3 and paths(index, "coffee beans", 1) == ["/memory/coffee.md"]
    assert index.path.stat().st_mode & 0o077 == 0


def test_any_name_of_a_file_is_one(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    filled(make(path=Path("-"))).save()
    assert (tmp_path / "-").stat().st_mode & 0o077 == 0
    assert len(make(path=Path("-"))) == 3


@pytest.mark.parametrize("other", [{"db": "b.db"}, {"db": "avm.db", "at": "-0s"}])
def test_the_index_of_another_store_or_instant_is_another_one(
    make: Make, tmp_path: Path, other: dict[str, str]
) -> None:
    filled(make()).save()
    named = {**other, "db": str(tmp_path / other["db"])}
    with AVM(**named, agent="alice", embeddings=False, environ={"HOME": str(tmp_path)}) as avm:
        assert len(make(store=avm)) == 0


def test_an_index_of_another_model_is_made_anew_from_its_nodes(make: Make, avm: AVM) -> None:
    index = make()
    index.add_nodes(["/memory/nvda.md", "/memory/coffee.md"])
    index.save()
    index = make(HashingEmbedding(32))
    assert index.rebuilt is not None and "of the model hashing-64, now it is hashing-32" in index.rebuilt
    assert list(index) == ["/memory/coffee.md", "/memory/nvda.md"] and paths(index, "coffee", 1) == [
        "/memory/coffee.md"
    ]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other", "header"])
def test_a_damaged_file_is_never_believed(make: Make, damage: str) -> None:
    index = make()
    index.add_nodes(["/memory/nvda.md"])
    index.save()
    data = bytearray(index.path.read_bytes())
    match damage:
        case "flip":
            data[-40] ^= 0x40
        case "cut":
            del data[-100:]
        case "empty":
            data.clear()
        case "other":
            data[:] = b"SQLite format 3\0" + bytes(2000)
        case "header":
            magic, header, body = bytes(data).split(b"\n", 2)
            data[:] = b"\n".join([magic, json.dumps({**json.loads(header), "count": 7}).encode(), body])
    index.path.write_bytes(data)
    again = make()
    assert again.rebuilt is not None
    assert len(again) == 3, "from all that the agent sees"
    assert paths(again, "coffee beans", 1) == ["/memory/coffee.md"]


def test_a_kill_while_saving_leaves_the_index_as_it_was(make: Make, avm: AVM, tmp_path: Path) -> None:
    index = filled(make())
    index.save()
    before = index.path.read_bytes()
    program = f"""
import os
from avmfs import AVM
from tests.hashing import HashingEmbedding
from avmfs.embedding import EmbeddingStore
from avmfs.faiss_store import FAISSEmbeddingStore
avm = AVM(db={str(tmp_path / "avm.db")!r}, agent="alice", embeddings=False, environ={{"HOME": {str(tmp_path)!r}}})
kind = {index.kind!r}
index = (EmbeddingStore(avm, HashingEmbedding()) if kind == "exact"
         else FAISSEmbeddingStore(avm, HashingEmbedding(), index_type=kind.removeprefix("faiss-")))
index.add_nodes([("/memory/more", "more")])
os.fsync = lambda descriptor: os.kill(os.getpid(), 9)
index.save()
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, timeout=300)
    assert done.returncode == -9
    assert index.path.read_bytes() == before
    assert make().rebuilt is None


def test_rows_of_replaced_nodes_go_at_the_next_save(make: Make) -> None:
    index = make()
    for version in range(20):
        index.add_nodes([(f"/memory/{name}", f"{text} {version}") for name, text in TEXTS.items()])
    assert len(index._rows) == 60
    index.save()
    assert len(index._rows) == 3 == len(make())
    assert paths(index, "coffee beans", 1) == ["/memory/coffee.md"]


def test_the_nearest_of_many_are_found(make: Make, avm: AVM) -> None:
    """Exactly, or nearly so by hnsw."""
    chooser = random.Random(4)
    texts = {f"/memory/many/{n}": " ".join(chooser.choices(WORDS.split(), k=6)) for n in range(400)}
    for path, text in texts.items():
        avm.write(path, text)
    index = make()
    index.add_nodes(texts.items())
    rows = HashingEmbedding().embed_batch(list(texts.values())).vectors
    found, wanted = 0, 0
    for q in ("coffee budget", "flight to lisbon", "paint the fence", "milk and eggs"):
        cosines = rows @ HashingEmbedding().embed_batch([q]).vectors[0]
        bar = float(np.sort(cosines)[-10])
        matches = index.search(q, k=10)
        assert [match.score for match in matches] == sorted((match.score for match in matches), reverse=True)
        wanted += 10
        found += sum(match.score >= bar - 1e-5 for match in matches)
    assert found == wanted if index.kind != "faiss-hnsw" else found >= 0.9 * wanted


def test_a_store_of_a_model_that_changed_under_it_says_so(make: Make) -> None:
    embedder = HashingEmbedding()
    index = filled(make(embedder))
    embedder.model_id = "other"
    with pytest.raises(EmbeddingUnavailable, match="this index is of"):
        index.search("coffee")
    with pytest.raises(EmbeddingUnavailable, match="this index is of"):
        index.add_nodes([("/memory/x", "x")])


def test_get_faiss_store_gives_the_same_index_at_every_call(avm: AVM) -> None:
    index = get_faiss_store(avm, HashingEmbedding(), "hnsw")
    assert get_faiss_store(avm, index_type="hnsw") is index
    assert isinstance(index, FAISSEmbeddingStore) and index.index_type == "hnsw"
    with pytest.raises(Invalid, match="expected flat or hnsw"):
        get_faiss_store(avm, HashingEmbedding(), "ivf")  # type: ignore[arg-type]


def test_neither_faiss_nor_torch_is_imported_before_it_is_used() -> None:
    program = "import sys, avmfs.embedding, avmfs.faiss_store; print({'faiss', 'torch'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, env={**os.environ}
    )
    assert done.stdout.strip() == "set()", done.stderr
