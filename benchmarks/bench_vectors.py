"""Ways to find the nearest of many vectors, side by side on real ones: how fast, and how many of the nearest.

    python -m benchmarks.bench_vectors --vectors FILE.npy [--sizes 1000,10000,100000] [--queries 200] [--json FILE]
    python -m benchmarks.bench_vectors --texts DIR [--engine onnx-int8] --vectors FILE.npy

FILE.npy holds float32 rows of length 1, as many as the largest size and the queries together; with --texts it is made
from the sentences of DIR/*.memories.jsonl (the evaluator's format) and, when those are too few, of the docstrings of
the installed Python packages. Random vectors will not do: graphs and signs look better or worse on them than they are.

Variants take turns, query by query. Recall is the share of the exact k nearest that a variant found; the baseline is
the exact product in numpy. All run on one thread, and what is timed is that thread's own CPU time: on a machine that
does other things too, the clock on the wall tells of those.
"""

# ruff: noqa: E402 (numpy reads its number of threads when it is imported)

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before numpy
    os.environ.setdefault(_name, "1")

import apsw
import numpy as np
from avmfs_config import EmbeddingSettings
from numpy.typing import NDArray

from avmfs.embed import engines
from avmfs.store import vectors as table_module
from avmfs.store.vectors import VectorTable
from benchmarks.figures import BenchmarkError, machine, percentile, print_header, print_table, write_json
from benchmarks.harness import scratch_directory

Matrix = NDArray[np.float32]
Search = Callable[[Matrix, int], Sequence[int]]
NOBODY = np.zeros(0, np.int64)
BASELINE = "numpy"


@dataclass(frozen=True)
class Cell:
    """One variant at one size: milliseconds of CPU, and recall of the k nearest, 0 to 1."""

    rows: int
    variant: str
    k: int
    recall: float
    median_ms: float
    p99_ms: float
    ratio: float
    """Of the baseline's median to this one's: above 1 is faster."""
    build_s: float


def numpy_exact(rows: Matrix) -> Search:
    def search(query: Matrix, k: int) -> Sequence[int]:
        scores = rows @ query
        best = np.argpartition(-scores, min(k, len(scores) - 1))[:k]
        return [int(row) for row in best]

    return search


def table(rows: Matrix, exact: int) -> Search:
    """The product's: exact below ``exact`` rows, signs first above."""
    kept = VectorTable(rows.shape[1])
    for at in range(0, len(rows), 4096):
        kept.put((at + n, 1, row.tobytes()) for n, row in enumerate(rows[at : at + 4096]))
    scopes = frozenset({1})

    def search(query: Matrix, k: int) -> Sequence[int]:
        before, table_module.EXACT = table_module.EXACT, exact  # type: ignore[misc]
        try:
            found = kept.nearest(scopes, query, k, NOBODY, None)
        finally:
            table_module.EXACT = before  # type: ignore[misc]
        return [int(passage) for passage in found.passages[np.argsort(-found.cosines)[:k]]]

    return search


def faiss_index(rows: Matrix, kind: str) -> Search:
    import faiss

    faiss.omp_set_num_threads(1)
    if kind == "flat":
        index = faiss.IndexFlatIP(rows.shape[1])
    else:
        index = faiss.IndexHNSWFlat(rows.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 100
    index.add(rows)

    def search(query: Matrix, k: int) -> Sequence[int]:
        if kind != "flat":
            index.hnsw.efSearch = max(128, 2 * k)
        return [int(row) for row in index.search(query[None, :], k)[1][0]]

    return search


def sqlite_brute_force(rows: Matrix, path: Path) -> Search:
    path.unlink(missing_ok=True)
    db = apsw.Connection(str(path))
    db.execute("create table vector(id integer primary key, data blob not null)")
    with db:
        db.executemany("insert into vector values(?, ?)", ((n, row.tobytes()) for n, row in enumerate(rows)))

    def search(query: Matrix, k: int) -> Sequence[int]:
        scored = [(float(np.frombuffer(data, np.float32) @ query), n) for n, data in
                  db.execute("select id, data from vector")]  # fmt: skip
        return [n for _, n in sorted(scored, reverse=True)[:k]]

    return search


def measure(rows: Matrix, queries: Matrix, ks: Sequence[int], folder: Path, variants: Sequence[str]) -> Iterator[Cell]:
    makers: dict[str, Callable[[], Search]] = {
        BASELINE: lambda: numpy_exact(rows),
        "table exact": lambda: table(rows, 10**9),
        "table signs": lambda: table(rows, 0),
        "faiss flat": lambda: faiss_index(rows, "flat"),
        "faiss hnsw": lambda: faiss_index(rows, "hnsw"),
        "sqlite": lambda: sqlite_brute_force(rows, folder / "vectors.db"),
    }
    made: dict[str, tuple[Search, float]] = {}
    for name in variants:
        began = time.thread_time()
        made[name] = makers[name](), time.thread_time() - began
        print(f"  {len(rows)} rows: {name} made in {made[name][1]:.2f} s", file=sys.stderr)
    for k in ks:
        if k >= len(rows):
            continue
        times: dict[str, list[float]] = {name: [] for name in variants}
        hits = dict.fromkeys(variants, 0)
        for number, query in enumerate(queries):
            exact = set(np.argsort(-(rows @ query), kind="stable")[:k].tolist())
            for name in variants:
                if name == "sqlite" and number >= 10:  # a tenth of a second or more each
                    continue
                began = time.thread_time()
                found = made[name][0](query, k)
                times[name].append((time.thread_time() - began) * 1e3)
                hits[name] += len(exact & set(found))
        base = statistics.median(times[BASELINE])
        for name in variants:
            ordered = sorted(times[name])
            median = statistics.median(ordered)
            recall = hits[name] / (k * len(ordered))
            yield Cell(len(rows), name, k, recall, median, percentile(ordered, 0.99), base / median, made[name][1])


def sentences(folder: Path, count: int) -> list[str]:
    """Distinct texts of 20 to 400 characters."""
    found: dict[str, None] = {}
    for file in sorted(folder.glob("*.memories.jsonl")):
        for line in file.read_text("utf-8").splitlines():
            _take(found, re.split(r"(?<=[.!?。！？])\s*", json.loads(line)["text"]))
    for root in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")):
        for source in sorted(Path(root).rglob("*.py")):
            if len(found) >= count:
                break
            try:
                tree = ast.parse(source.read_text("utf-8"))
            except (SyntaxError, ValueError, RecursionError, OSError):
                continue  # a test file that is meant to be none
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    _take(found, (ast.get_docstring(node) or "").split("\n\n"))
    return list(found)[:count]


def _take(found: dict[str, None], texts: Sequence[str]) -> None:
    for text in texts:
        clean = " ".join(text.split())
        if 20 <= len(clean) <= 400:
            found[clean] = None


def embedded(texts: list[str], engine: str, cache: Path) -> Matrix:
    embedder = engines.make(EmbeddingSettings(engine=engine), cache)  # type: ignore[arg-type]
    parts = []
    for at in range(0, len(texts), 512):
        parts.append(embedder.embed_batch(texts[at : at + 512]).vectors)
        if at % 10_240 == 0:
            print(f"  {at} of {len(texts)} texts embedded", file=sys.stderr)
    return np.concatenate(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--texts", type=Path)
    parser.add_argument("--engine", default="onnx-int8")
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--k", default="10,1000")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--variants", default="numpy,table exact,table signs,faiss flat,faiss hnsw,sqlite")
    parser.add_argument("--local", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    sizes = [int(size) for size in asked.sizes.split(",")]
    try:
        if asked.texts is not None:
            texts = sentences(asked.texts, max(sizes) + asked.queries)
            np.save(asked.vectors, embedded(texts, asked.engine, asked.vectors.parent))
        rows: Matrix = np.load(asked.vectors)
        if len(rows) < max(sizes) + asked.queries:
            raise BenchmarkError(
                f"{asked.vectors}: {len(rows)} rows; {max(sizes)} and {asked.queries} queries are needed"
            )
        queries, rows = rows[: asked.queries], rows[asked.queries :]
        facts = {**machine(), "vectors": f"{asked.vectors.name}, {rows.shape[1]} dimensions", "N": str(asked.queries)}
        print_header("the nearest of many vectors", facts)
        cells: list[Cell] = []
        with scratch_directory(asked.local) as folder:
            for size in sizes:
                part = np.ascontiguousarray(rows[:size])
                cells += measure(part, queries, [int(k) for k in asked.k.split(",")], folder, asked.variants.split(","))
    except (BenchmarkError, OSError) as problem:
        print(f"bench_vectors: {problem}", file=sys.stderr)
        return 2
    print_table(
        ["variant", "rows", "k", "recall", "median ms", "p99 ms", f"x {BASELINE}", "build s"],
        [[c.variant, str(c.rows), str(c.k), f"{c.recall:.4f}", f"{c.median_ms:.3f}", f"{c.p99_ms:.3f}",
          f"{c.ratio:.2f}", f"{c.build_s:.2f}"] for c in cells],
    )  # fmt: skip
    if asked.json is not None:
        write_json(asked.json, {"facts": facts, "cells": [asdict(cell) for cell in cells]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
