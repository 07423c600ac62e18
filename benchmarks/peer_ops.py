"""One memory, one history: filled, and asked. A process of its own in the peer's own environment, where avmfs is not.

    PYTHON benchmarks/peer_ops.py PEER < REQUEST > ANSWER

REQUEST is JSON: {"folder", "turns": [{"id", "text", "vector"}], "questions": [{"text", "vector"}], "k"}. ANSWER's last
line is {"version", "added_s": [...], "asked_s": [...], "hits": [[id, ...], ...]}. Vectors are given, so that all
memories rank by the same ones and no time is a model's. Imports nothing of this project, and the peer where it is used.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

Turn = Mapping[str, Any]
Add = Callable[[Turn], object]
Ask = Callable[[Turn, int], Sequence[str]]


def mem0(folder: str, turns: Sequence[Turn]) -> tuple[Add, Ask]:
    """mem0ai without a language model (infer=False), its default vector store, Qdrant, in files."""
    os.environ.update(MEM0_TELEMETRY="False", MEM0_DIR=folder, OPENAI_API_KEY="none: no model is asked")
    dimension = len(turns[0]["vector"])
    store = {"path": f"{folder}/qdrant", "embedding_model_dims": dimension, "on_disk": True}
    memory = importlib.import_module("mem0").Memory.from_config(
        {"vector_store": {"provider": "qdrant", "config": store}, "history_db_path": f"{folder}/history.db"}
    )
    known: dict[str, Sequence[float]] = {}

    class Given:
        config = type("Config", (), {"embedding_dims": dimension})()

        def embed(self, text: str, *_: Any, **__: Any) -> Sequence[float]:
            return known[text]

        def embed_batch(self, texts: Sequence[str], *_: Any, **__: Any) -> list[Sequence[float]]:
            return [known[text] for text in texts]

    memory.embedding_model = Given()

    def add(turn: Turn) -> object:
        known[turn["text"]] = turn["vector"]
        return memory.add(turn["text"], user_id="bench", infer=False, metadata={"turn": turn["id"]})

    def ask(question: Turn, k: int) -> Sequence[str]:
        known[question["text"]] = question["vector"]
        found = memory.search(question["text"], filters={"user_id": "bench"}, top_k=k, threshold=0.0)
        return [hit["metadata"]["turn"] for hit in found["results"]]

    return add, ask


def chroma(folder: str, turns: Sequence[Turn]) -> tuple[Add, Ask]:
    """chromadb in files, by cosine."""
    library = importlib.import_module("chromadb")
    settings = library.config.Settings(anonymized_telemetry=False)
    client = library.PersistentClient(path=folder, settings=settings)
    collection = client.create_collection("bench", metadata={"hnsw:space": "cosine"}, embedding_function=None)

    def add(turn: Turn) -> object:
        return collection.add(ids=[turn["id"]], embeddings=[turn["vector"]], documents=[turn["text"]])

    def ask(question: Turn, k: int) -> Sequence[str]:
        found = collection.query(query_embeddings=[question["vector"]], n_results=k)
        return list(found["ids"][0])

    return add, ask


def langgraph(folder: str, turns: Sequence[Turn]) -> tuple[Add, Ask]:
    """LangGraph's own store, in memory: the one in SQLite wants a Python that loads extensions."""
    known: dict[str, Sequence[float]] = {}

    def embed(texts: Sequence[str]) -> list[Sequence[float]]:
        return [known[text] for text in texts]

    index = {"dims": len(turns[0]["vector"]), "embed": embed, "fields": ["text"]}
    store = importlib.import_module("langgraph.store.memory").InMemoryStore(index=index)

    def add(turn: Turn) -> object:
        known[turn["text"]] = turn["vector"]
        return store.put(("bench",), turn["id"], {"text": turn["text"]})

    def ask(question: Turn, k: int) -> Sequence[str]:
        known[question["text"]] = question["vector"]
        return [item.key for item in store.search(("bench",), query=question["text"], limit=k)]

    return add, ask


def lance(folder: str, turns: Sequence[Turn]) -> tuple[Add, Ask]:
    """LanceDB in files: words and vectors together, by its default reciprocal rank fusion. Its index of words is made
    when the first question comes; until then it is asked for nothing."""
    rows = [{name: turns[0][name] for name in ("id", "text", "vector")}]
    table = importlib.import_module("lancedb").connect(folder).create_table("bench", rows)
    table.delete("true")
    ready = False

    def add(turn: Turn) -> object:
        return table.add([{name: turn[name] for name in ("id", "text", "vector")}])

    def ask(question: Turn, k: int) -> Sequence[str]:
        nonlocal ready
        if not ready:
            table.create_fts_index("text")
            ready = True
        found = table.search(query_type="hybrid").vector(question["vector"]).text(question["text"]).limit(k).to_list()
        return [row["id"] for row in found]

    return add, ask


PEERS: Mapping[str, tuple[str, Callable[[str, Sequence[Turn]], tuple[Add, Ask]]]] = {
    "mem0": ("mem0ai", mem0),
    "chroma": ("chromadb", chroma),
    "langgraph": ("langgraph-checkpoint", langgraph),
    "lancedb": ("lancedb", lance),
}
"""The package, and how it is opened."""


def main() -> None:
    package, opened = PEERS[sys.argv[1]]
    told = json.load(sys.stdin)
    add, ask = opened(told["folder"], told["turns"])
    added, asked, hits = [], [], []
    for turn in told["turns"]:
        began = time.perf_counter()
        add(turn)
        added.append(time.perf_counter() - began)
    for question in told["questions"]:
        began = time.perf_counter()
        found = ask(question, told["k"])
        asked.append(time.perf_counter() - began)
        hits.append(list(found))
    print(json.dumps({"version": version(package), "added_s": added, "asked_s": asked, "hits": hits}), flush=True)


if __name__ == "__main__":
    main()
