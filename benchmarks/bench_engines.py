"""Embedding engines side by side: what a query costs, how near their vectors are to torch's, what they retrieve.

    python -m benchmarks.bench_engines [--data DIR] [--sets xquad_en,cran] [--engines torch,onnx] [--quick]

DIR holds SET.memories.jsonl and SET.queries.jsonl in the evaluator's format. Retrieval is by vectors alone: R@10 is the
share of a question's relevant memories among its ten nearest. Without DIR there is no retrieval, and the texts are
docstrings of the installed Python packages. The baseline is torch. An engine that is not installed breaks off.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast, get_args

import numpy as np
from avmfs_config import EmbeddingSettings
from avmfs_config.settings import Engine as EngineName

from avmfs.embed import engines
from avmfs.embed.protocol import EmbeddingUnavailable
from benchmarks.clients import breaking_off
from benchmarks.figures import BenchmarkError, Round, summarize, timed_loop
from benchmarks.results import Table, Value
from benchmarks.rounds import Outcome, take_turns
from benchmarks.script import Findings, Run, add_models, names_among, options, positive, run_script
from benchmarks.texts import Matrix, Questions, read_set, recall_of_ten, sentences

BASELINE = "torch"
SAME_WEIGHTS = ("torch", "onnx", "onnx-int8")
"""Those whose vectors are meant to be the baseline's."""
ENGINES: Sequence[str] = get_args(EngineName)
BATCH = 32
LIMIT_S = 60.0


def measure(run: Run) -> Findings:
    chosen = run.options
    rounds: int = chosen.rounds or (1 if run.quick else 5)
    count: int = chosen.queries or (20 if run.quick else 100)
    memories: int = chosen.memories or (2 * BATCH if run.quick else 240)
    wanted = chosen.engines or ((BASELINE, "static") if run.quick else ENGINES)
    names = [name for name in ENGINES if name == BASELINE or name in wanted]
    sets: list[Questions] = []
    if chosen.data is not None:
        sets = [read_set(chosen.data, name, memories, count) for name in chosen.sets.split(",")]
        texts, asked = list(sets[0].memories), list(sets[0].questions)
    else:
        found = sentences(None, memories + count)
        texts, asked = found[:memories], found[memories:]
    run.begin(
        queries=f"{len(asked)}, each a batch of its own",
        batches=f"{len(texts)} texts in batches of {BATCH}",
        rounds=f"{rounds}, interleaved, each with all texts; figures are medians of rounds",
        retrieval="by vectors alone" if sets else "not measured: no --data",
    )
    failures: dict[str, str] = {}
    loaded: dict[str, tuple[engines.Engine, float]] = {}
    for name in names:
        with breaking_off(name, failures):
            loaded[name] = _loaded(name, chosen.cache)
    work: Mapping[str, Sequence[Sequence[str]]] = {
        "query": [[text] for text in asked],
        "batch": [texts[at : at + BATCH] for at in range(0, len(texts), BATCH)],
    }

    def one(cell: str, name: str, loop: int) -> Round:
        engine, urgent = loaded[name][0], cell == "query"
        return summarize([timed_loop(lambda some: engine.embed_batch(some, urgent=urgent), work[cell], LIMIT_S)])

    outcome = take_turns(rounds, list(work), names, failures, one)
    tables = [_cost(outcome, loaded, len(texts) / len(work["batch"]))]
    if fitting := [name for name in names if name not in failures]:
        tables.append(_quality({name: loaded[name][0] for name in fitting}, texts, sets))
    return Findings(tables, failures=outcome.failures)


def _loaded(name: str, cache: Path) -> tuple[engines.Engine, float]:
    """An engine that has answered once, and the seconds that took."""
    began = time.perf_counter()
    settings = EmbeddingSettings(engine=cast(EngineName, name), allow_download=False)
    engine = engines.make(settings, cache)
    try:
        engine.embed_batch(["ready"])
    except EmbeddingUnavailable as problem:
        raise BenchmarkError(problem.reason) from problem
    return engine, time.perf_counter() - began


def _cost(outcome: Outcome[str], loaded: Mapping[str, tuple[engines.Engine, float]], batch: float) -> Table:
    rows: list[Sequence[Value]] = []
    for name, (_, load_s) in loaded.items():
        query, batches = outcome.figure("query", name), outcome.figure("batch", name)
        if query is not None and batches is not None:
            rows.append(
                (
                    name,
                    load_s,
                    query.n,
                    query.median_us / 1e3,
                    query.p99_us / 1e3,
                    outcome.ratio_median("query", name, BASELINE),
                    batches.per_second * batch,
                    outcome.ratio_median("batch", name, BASELINE),
                )
            )
    columns = (
        "engine",
        "load s",
        "N",
        "query ms",
        "p99 ms",
        f"x {BASELINE}",
        "texts/s in batches",
        f"texts/s, x {BASELINE}",
    )
    return Table("what a vector costs", columns, rows)


def _quality(engines_: Mapping[str, engines.Engine], texts: Sequence[str], sets: Sequence[Questions]) -> Table:
    rows: list[Sequence[Value]] = []
    baseline: Matrix | None = None
    for name, engine in engines_.items():
        vectors = engine.embed_batch(texts).vectors
        baseline = vectors if name == BASELINE else baseline
        cosine: float | None = None
        if baseline is not None and name in SAME_WEIGHTS:
            cosine = float(np.einsum("ij,ij->i", vectors, baseline).mean())
        recalls = [
            recall_of_ten(engine.embed_batch(one.questions).vectors, engine.embed_batch(one.memories).vectors, one)
            for one in sets
        ]
        rows.append((name, engine.model_id, vectors.shape[1], cosine, *recalls))
    columns = ("engine", "model", "dimensions", f"cosine to {BASELINE}", *(f"R@10 {one.name}" for one in sets))
    return Table("what a vector is worth", columns, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_engines", "torch and static, one round of 20 queries")
    parser.add_argument("--data", type=Path, metavar="DIR", help="of the sets")
    parser.add_argument("--sets", default="xquad_en,cran,xquad_zh,xquad_zh2en", metavar="A,B", help="(%(default)s)")
    parser.add_argument("--engines", type=names_among(ENGINES), metavar="A,B", help=",".join(ENGINES))
    parser.add_argument("--memories", type=positive, metavar="N", help="of a set: 240")
    parser.add_argument("--queries", type=positive, metavar="N", help="of a set: 100")
    add_models(parser)
    return run_script("embedding engines", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
