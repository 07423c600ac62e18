"""Embedding engines side by side: what a query costs, how near their vectors are to torch's, what they retrieve.

    python -m benchmarks.bench_engines --data DIR [--sets xquad_en,cran,xquad_zh2en] [--engines torch,onnx,...]

DIR holds SET.memories.jsonl and SET.queries.jsonl in the evaluator's format. Retrieval is by vectors alone, at most
--memories and --queries of a set: R@10 is the share of a question's relevant memories among its ten nearest. The
baseline is torch; variants take turns query by query.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from avmfs_config import EmbeddingSettings
from numpy.typing import NDArray

from avmfs.embed import engines
from avmfs.embed.protocol import EmbeddingUnavailable
from benchmarks.figures import machine, percentile, print_header, print_table, write_json

BASELINE = "torch"
Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Figures:
    """Of one engine; cosine is to the baseline's vectors, None for a model of another dimension."""

    engine: str
    model: str
    dimension: int
    load_s: float
    query_ms: float
    query_p99_ms: float
    ratio: float
    per_second: float
    cosine: float | None
    recall: Mapping[str, float]


@dataclass(frozen=True)
class Set:
    name: str
    ids: list[str]
    memories: list[str]
    questions: list[str]
    relevant: list[set[str]]


def read_set(folder: Path, name: str, memories: int, queries: int) -> Set:
    """The memories that the first questions need, filled up with others."""

    def lines(kind: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in (folder / f"{name}.{kind}.jsonl").read_text("utf-8").splitlines()]

    asked = lines("queries")[:queries]
    needed = {str(each) for query in asked for each in query["relevant"]}  # type: ignore[attr-defined]
    stored = lines("memories")
    stored.sort(key=lambda memory: memory["id"] not in needed)
    stored = stored[: max(memories, len(needed))]
    return Set(
        name, [str(memory["id"]) for memory in stored], [str(memory["text"]) for memory in stored],
        [str(query["text"]) for query in asked],
        [{str(each) for each in query["relevant"]} for query in asked],  # type: ignore[attr-defined]
    )  # fmt: skip


def recall(questions: Matrix, memories: Matrix, one: Set) -> float:
    order = np.argsort(-(questions @ memories.T), axis=1, kind="stable")[:, :10]
    found = [
        len(relevant & {one.ids[at] for at in row}) / len(relevant)
        for row, relevant in zip(order, one.relevant, strict=True)
    ]
    return float(np.mean(found))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--sets", default="xquad_en,cran,xquad_zh,xquad_zh2en")
    parser.add_argument("--engines", default="torch,onnx,onnx-int8,static,universal")
    parser.add_argument("--memories", type=int, default=240)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--cache", type=Path, default=Path("/var/tmp/avmfs-models"))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    sets = [read_set(asked.data, name, asked.memories, asked.queries) for name in asked.sets.split(",")]
    names = asked.engines.split(",")
    loaded, load_s = {}, {}
    for name in names:
        began = time.perf_counter()
        engine = engines.make(EmbeddingSettings(engine=name), asked.cache)
        try:
            engine.embed_batch(["ready"])
        except EmbeddingUnavailable as problem:
            print(f"bench_engines: {name}: {problem.reason}", file=sys.stderr)
            return 2
        loaded[name], load_s[name] = engine, time.perf_counter() - began
    times: dict[str, list[float]] = {name: [] for name in names}
    for question in sets[0].questions:
        for name in names:
            began = time.perf_counter()
            loaded[name].embed_batch([question], urgent=True)
            times[name].append((time.perf_counter() - began) * 1e3)
    results: list[Figures] = []
    baseline: Matrix | None = None
    for name in names:
        began, count = time.perf_counter(), 0
        recalls: dict[str, float] = {}
        first: Matrix | None = None
        for one in sets:
            memories = loaded[name].embed_batch(one.memories).vectors
            questions = loaded[name].embed_batch(one.questions).vectors
            count += len(memories) + len(questions)
            first = memories if first is None else first
            recalls[one.name] = recall(questions, memories, one)
        took = time.perf_counter() - began
        assert first is not None
        baseline = first if name == BASELINE else baseline
        comparable = baseline is not None and baseline.shape == first.shape and name.startswith(("torch", "onnx"))
        cosine = float(np.einsum("ij,ij->i", first, baseline).mean()) if comparable and baseline is not None else None
        median = statistics.median(times[name])
        results.append(
            Figures(
                name, loaded[name].model_id, first.shape[1], load_s[name], median,
                percentile(sorted(times[name]), 0.99), statistics.median(times[names[0]]) / median, count / took,
                cosine, recalls,
            )
        )  # fmt: skip
    facts = {**machine(), "N": f"{asked.queries} questions a set", "baseline": names[0]}
    print_header("embedding engines", facts)
    print_table(
        ["engine", "dim", "load s", "query ms", "p99 ms", f"x {names[0]}", "texts/s", "cosine",
         *[f"R@10 {one.name}" for one in sets]],
        [[r.engine, str(r.dimension), f"{r.load_s:.1f}", f"{r.query_ms:.2f}", f"{r.query_p99_ms:.2f}",
          f"{r.ratio:.2f}", f"{r.per_second:.0f}", "-" if r.cosine is None else f"{r.cosine:.4f}",
          *[f"{r.recall[one.name]:.3f}" for one in sets]] for r in results],
    )  # fmt: skip
    if asked.json is not None:
        write_json(asked.json, {"facts": facts, "engines": [asdict(result) for result in results]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
