"""Ways to find the nearest of many vectors, side by side on real ones: how fast, and how many of the nearest.

    python -m benchmarks.bench_vectors [--vectors FILE.npy] [--texts DIR] [--engine onnx-int8] [--quick] [--json FILE]

FILE.npy holds float32 rows of length 1, as many as the largest size and the queries together. When there is no such
file it is made, from the sentences of DIR/*.memories.jsonl (the evaluator's format) and, when those are too few, of
the docstrings of the installed Python packages. Random vectors will not do: graphs and signs look better or worse on
them than they are.

Variants take turns, query by query. Recall is the share of the exact k nearest that a variant found; the baseline is
the exact product in numpy. All run on one thread, and what is timed is that thread's own CPU time: on a machine that
does other things too, the clock on the wall tells of those.
"""

# ruff: noqa: E402 (numpy reads its number of threads when it is imported)

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # before numpy
    os.environ.setdefault(_name, "1")

import apsw
import numpy as np
from avmfs_config import EmbeddingSettings
from avmfs_config.settings import Engine as EngineName
from numpy.typing import NDArray

from avmfs.embed import engines
from avmfs.embed.protocol import EmbeddingUnavailable
from avmfs.store.index import vectors as table_module
from avmfs.store.index.vectors import VectorTable
from benchmarks.figures import BenchmarkError, percentile
from benchmarks.harness import scratch_directory
from benchmarks.results import Table, Value
from benchmarks.script import Findings, Run, add_models, names_among, options, positive, positive_numbers, run_script
from benchmarks.texts import Matrix, sentences

Search = Callable[[Matrix, int], Sequence[int]]
NOBODY: NDArray[np.int64] = np.zeros(0, np.int64)
BASELINE = "numpy"
VARIANTS = (BASELINE, "table exact", "table signs", "faiss flat", "faiss hnsw", "sqlite")
SLOW_QUERIES = 10
"""SQLite's brute force gets no more: it takes a tenth of a second or more each."""


# ---- the variants ----


def numpy_exact(rows: Matrix) -> Search:
    def search(query: Matrix, k: int) -> Sequence[int]:
        scores = rows @ query
        best = np.argpartition(-scores, min(k, len(scores) - 1))[:k]
        return [int(row) for row in best]

    return search


def table(rows: Matrix, exact: int) -> Search:
    """The product's: exact below `exact` rows, signs first above."""
    kept = VectorTable(rows.shape[1])
    for at in range(0, len(rows), 4096):
        kept.put((at + n, 1, row.tobytes()) for n, row in enumerate(rows[at : at + 4096]))
    scopes = frozenset({1})

    def search(query: Matrix, k: int) -> Sequence[int]:
        before, table_module.EXACT = table_module.EXACT, exact  # type: ignore[misc]
        try:
            found = kept.nearest(scopes, query, k, NOBODY)
        finally:
            table_module.EXACT = before  # type: ignore[misc]
        return [int(passage) for passage in found.passages[np.argsort(-found.cosines)[:k]]]

    return search


def faiss_index(rows: Matrix, graph: bool) -> Search:
    import faiss

    faiss.omp_set_num_threads(1)
    index: Any = faiss.IndexFlatIP(rows.shape[1])
    if graph:
        index = faiss.IndexHNSWFlat(rows.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = 100
    index.add(rows)

    def search(query: Matrix, k: int) -> Sequence[int]:
        if graph:
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
        scored = [
            (float(np.frombuffer(data, np.float32) @ query), n) for n, data in db.execute("select id, data from vector")
        ]
        return [n for _, n in sorted(scored, reverse=True)[:k]]

    return search


# ---- the measurement ----


def measure(run: Run) -> Findings:
    chosen = run.options
    sizes: Sequence[int] = chosen.sizes or ([1000] if run.quick else [1000, 10_000, 100_000])
    count: int = chosen.queries or (20 if run.quick else 200)
    ks: Sequence[int] = chosen.k or ([10] if run.quick else [10, 1000])
    rounds: int = run.options.rounds or 1
    variants = [name for name in VARIANTS if name == BASELINE or name in chosen.variants]
    engine: EngineName = chosen.engine or ("static" if run.quick else "onnx-int8")
    rows, source = _vectors(chosen.vectors, chosen.texts, engine, chosen.cache, max(sizes) + count)
    run.begin(
        vectors=f"{source}, {rows.shape[1]} dimensions",
        queries=f"{count}, not among the rows; {rounds} times; SQLite: {SLOW_QUERIES}",
        time="CPU of one thread; every query goes to all variants in turn",
    )
    queries, rest = rows[:count], rows[count:]
    found: list[Sequence[Value]] = []
    folder = run.ending.enter_context(scratch_directory(run.local))
    for size in sizes:
        part = np.ascontiguousarray(rest[:size])
        for k in ks:
            if k < size:
                found += [()] if found else []
                found += _compared(part, queries, k, rounds, folder, variants)
    columns = ("variant", "rows", "k", "N", "recall", "median ms", "p99 ms", f"x {BASELINE}", "made in s")
    return Findings([Table("the k nearest of many vectors", columns, found)])


def _compared(
    rows: Matrix, queries: Matrix, k: int, rounds: int, folder: Path, variants: Sequence[str]
) -> list[Sequence[Value]]:
    """A row of the table for each variant."""
    makers: dict[str, Callable[[], Search]] = {
        BASELINE: lambda: numpy_exact(rows),
        "table exact": lambda: table(rows, 10**9),
        "table signs": lambda: table(rows, 0),
        "faiss flat": lambda: faiss_index(rows, graph=False),
        "faiss hnsw": lambda: faiss_index(rows, graph=True),
        "sqlite": lambda: sqlite_brute_force(rows, folder / "vectors.db"),
    }
    made: dict[str, tuple[Search, float]] = {}
    for name in variants:
        began = time.thread_time()
        made[name] = makers[name](), time.thread_time() - began
    times: dict[str, list[float]] = {name: [] for name in variants}
    hits = dict.fromkeys(variants, 0)
    for query in np.concatenate([queries] * rounds):
        exact = set(np.argsort(-(rows @ query), kind="stable")[:k].tolist())
        for name in variants:
            if name == "sqlite" and len(times[name]) >= SLOW_QUERIES:
                continue
            began = time.thread_time()
            nearest = made[name][0](query, k)
            times[name].append((time.thread_time() - began) * 1e3)
            hits[name] += len(exact & set(nearest))
    found: list[Sequence[Value]] = []
    for name in variants:
        n, median = len(times[name]), statistics.median(times[name])
        base = statistics.median(times[BASELINE][:n])  # of the same queries
        recall, p99 = hits[name] / (k * n), percentile(sorted(times[name]), 0.99)
        found.append((name, len(rows), k, n, recall, median, p99, base / median, made[name][1]))
    return found


def _vectors(file: Path | None, texts: Path | None, engine: EngineName, cache: Path, count: int) -> tuple[Matrix, str]:
    """The rows, and where they are from. A `file` that is not there is made."""
    if file is not None and file.exists():
        try:
            rows: Matrix = np.load(file)
        except (OSError, ValueError) as error:
            raise BenchmarkError(f"{file}: {error}") from error
        if rows.ndim != 2 or len(rows) < count:
            raise BenchmarkError(f"{file}: {len(rows)} rows; {count} are needed")
        return rows, file.name
    rows = _embedded(sentences(texts, count), engine, cache)
    if file is not None:
        np.save(file, rows)
    return rows, f"{count} sentences by the engine {engine}"


def _embedded(texts: Sequence[str], engine: EngineName, cache: Path) -> Matrix:
    embedder = engines.make(EmbeddingSettings(engine=engine, allow_download=False), cache)
    parts = []
    try:
        for at in range(0, len(texts), 512):
            parts.append(embedder.embed_batch(texts[at : at + 512]).vectors)
            if at % 10_240 == 0 and at:
                print(f"  {at} of {len(texts)} texts embedded", file=sys.stderr)
    except EmbeddingUnavailable as error:
        raise BenchmarkError(f"{engine}: {error.reason}") from error
    return np.concatenate(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_vectors", "1,000 rows, 20 queries, vectors of the static engine")
    parser.add_argument("--vectors", type=Path, metavar="FILE", help="made when it is not there")
    parser.add_argument("--texts", type=Path, metavar="DIR", help="of memories; docstrings make up for what is missing")
    parser.add_argument("--engine", choices=get_args(EngineName), help="onnx-int8, or static with --quick")
    add_models(parser)
    parser.add_argument("--sizes", type=positive_numbers, metavar="N,N", help="1000,10000,100000")
    parser.add_argument("--k", type=positive_numbers, metavar="N,N", help="10,1000")
    parser.add_argument("--queries", type=positive, metavar="N", help="200")
    parser.add_argument("--variants", type=names_among(VARIANTS), default=VARIANTS, metavar="A,B")
    return run_script("the nearest of many vectors", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
