"""The index process under a store of many vectors: what each process holds, and what a question costs.

    python -m benchmarks.bench_index [--sizes 0,10000,100000] [--questions 200] [--quick] [--json FILE]

Each size is a daemon of its own, on a store with that many random vectors, with the static engine, so that what is
measured is not a model. Proportional memory (PSS) is read from the kernel after the questions; it is the mount's growth
over a store without vectors that counts: it holds none. `nearest` is one question to an index process over its socket,
`search` AVM.semantic through the door, and through the mount the view; `in process` is a recall of 1,000 tokens without
a daemon, on one thread. All but `nearest` are of questions that were asked before, so their vectors are remembered.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy: as the daemon starts its children

import numpy as np

from avmfs import AVM
from avmfs.embed.static import StaticEmbedding
from avmfs.errors import Busy
from avmfs.store.index.client import IndexClient
from benchmarks import processes
from benchmarks.clients import breaking_off, started_clients
from benchmarks.daemons import agents, temporary_daemon, until_loaded
from benchmarks.figures import Figure, Round, Timing, over_rounds, summarize, timed_loop
from benchmarks.harness import filesystem_of, scratch_directory
from benchmarks.results import Table, Target, Value, measured
from benchmarks.script import Findings, Run, options, positive, run_script
from benchmarks.vector_store import BENCH, index_process, named_errors, plant

STATIC = {"embedding": {"engine": "static", "allow_download": False}}
QUESTIONS = [f"what is known about {word}" for word in ("coffee", "market", "dentist", "garden", "budget", "lisbon")]
DEPTH = 400
LIMIT_S = 60.0
READY_WITHIN_S = 120.0
MANY, MODERATE = 100_000, 10_000
MB = 1024 * 1024 / 1e6
WAYS = ("nearest", "search, door", "search, mount", "recall, in process")


@dataclass(frozen=True)
class Looked:
    """What one size showed in one round: MiB by role, and times by way of asking."""

    memory: Mapping[str, float]
    times: Mapping[str, Round]


def measure(run: Run) -> Findings:
    sizes: Sequence[int] = run.options.sizes or ([0, 1000] if run.quick else [0, MODERATE, MANY])
    questions: int = run.options.questions or (12 if run.quick else 200)
    rounds: int = run.options.rounds or 1
    dimension: int = run.options.dimension
    run.begin(
        stores=f"on {filesystem_of(run.local)}; random vectors of 200 small files; with 0, of a passage each",
        questions=f"{questions} of each kind; {len(QUESTIONS)} of them in turn, asked before",
        nearest=f"{DEPTH} of {dimension} dimensions",
        rounds=f"{rounds}, each with every size in turn; figures are medians of rounds",
    )
    failures: dict[str, str] = {}
    found: dict[int, list[Looked]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            with breaking_off(f"{size:,} vectors", failures), named_errors():
                found[size].append(_look(run.local, size, dimension, questions))
    looked = {size: each for size, each in found.items() if each}
    return Findings([_memory(looked), _times(looked)], _targets(looked), failures)


def _look(local: Path, count: int, dimension: int, questions: int) -> Looked:
    times: dict[str, Round] = {}
    model = StaticEmbedding()
    with scratch_directory(local) as folder:
        plant(folder / "avm.db", model.model_id, model.dimension, count)
        times["recall, in process"] = _in_process(folder, questions)
    if count:
        # A socket's path is limited to about a hundred bytes, and `local` may be long.
        with scratch_directory(local) as folder, scratch_directory(Path(tempfile.gettempdir())) as short:
            plant(folder / "avm.db", "random", dimension, count)
            with index_process(folder / "avm.db", short) as client:
                times["nearest"] = summarize([_nearest(client, dimension, questions)])

    def stock(database: Path) -> None:
        plant(database, model.model_id, model.dimension, count)

    with temporary_daemon(local, agents("bench"), STATIC, stock=stock) as daemon:
        until_loaded(daemon, vectors=count > 0)
        asked = _asked(questions)
        with AVM(agent="bench", environ=dict(daemon.environment)) as avm:
            for question in QUESTIONS:
                avm.semantic(question)
            times["search, door"] = summarize([timed_loop(avm.semantic, asked, LIMIT_S)])
        with started_clients("benchmarks.index_ops", 1, os.environ) as (client_process,):
            arguments = {"mountpoint": str(daemon.mountpoints["bench"]), "limit_s": LIMIT_S}
            client_process.call("search", 2 * LIMIT_S, questions=QUESTIONS, **arguments)  # ask before
            reply = client_process.call("search", 2 * LIMIT_S, questions=asked, **arguments)
            times["search, mount"] = summarize([Timing(*reply)])
        held = {role: sum(processes.memory(pid).proportional for pid in pids) for role, pids in daemon.roles().items()}
    return Looked(held, times)


def _asked(questions: int) -> list[str]:
    return [QUESTIONS[number % len(QUESTIONS)] for number in range(questions)]


def _in_process(folder: Path, questions: int) -> Round:
    """Recall on a store that this process has opened itself."""
    config = folder / "config.yaml"
    config.write_text(json.dumps(STATIC))
    folders = {f"AVM_{name}_DIR": str(folder) for name in ("CONFIG", "DATA", "RUNTIME")}
    environment = {**os.environ, **folders, "AVM_AUTOSTART": "0"}
    with AVM(db=folder / "avm.db", config=config, agent="bench", environ=environment) as avm:
        memory = avm.agent_memory()
        for question in QUESTIONS:
            memory.recall(question, max_tokens=1000)
        return summarize(
            [timed_loop(lambda question: memory.recall(question, max_tokens=1000), _asked(questions), LIMIT_S)]
        )


def _nearest(client: IndexClient, dimension: int, questions: int) -> Timing:
    random = np.random.default_rng(1)
    vectors = random.standard_normal((questions + 1, dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    nobody = np.zeros(0, np.int64)
    give_up = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            client.nearest(BENCH, "random", vectors[0], DEPTH, nobody)
            break
        except Busy:  # it is loading
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)
    return timed_loop(lambda vector: client.nearest(BENCH, "random", vector, DEPTH, nobody), vectors[1:], LIMIT_S)


# ---- what was found ----


def _held(looked: Sequence[Looked], role: str) -> float:
    return statistics.median(one.memory[role] for one in looked)


def _growth(found: Mapping[int, Sequence[Looked]], size: int) -> float | None:
    """Of the mount's child, in MiB, over a store without vectors."""
    return _held(found[size], "mount") - _held(found[0], "mount") if 0 in found and size in found else None


def _figure(looked: Sequence[Looked], way: str) -> Figure | None:
    rounds = [one.times[way] for one in looked if way in one.times]
    return over_rounds(rounds) if rounds else None


def _memory(found: Mapping[int, Sequence[Looked]]) -> Table:
    rows: list[Sequence[Value]] = []
    for size, looked in found.items():
        held = [_held(looked, role) for role in ("mount", "door", "index")]
        rows.append((f"{size:,}", held[0], _growth(found, size), *held[1:]))
    columns = ("vectors", "mount MiB", "more than without", "door MiB", "index MiB")
    return Table("proportional memory", columns, rows)


def _times(found: Mapping[int, Sequence[Looked]]) -> Table:
    rows: list[Sequence[Value]] = []
    for size, looked in found.items():
        rows += [()] if rows else []
        for way in WAYS:
            if (figure := _figure(looked, way)) is not None:
                base = _figure(found[0], way) if 0 in found else None
                rows.append(
                    (
                        f"{size:,}",
                        way,
                        figure.n,
                        figure.median_us / 1e3,
                        figure.rounds,
                        figure.p99_us / 1e3,
                        figure.median_us / base.median_us if base is not None else None,
                    )
                )
    return Table(
        "one question", ("vectors", "way", "N", "median ms", "of rounds", "p99 ms", "times without vectors"), rows
    )


def _targets(found: Mapping[int, Sequence[Looked]]) -> list[Target]:
    """Of memory alone: an answer that is remembered could not miss a time."""
    with_all, without = found.get(MANY, ()), found.get(0, ())
    grown = [(one.memory["mount"] - base.memory["mount"]) * MB for one, base in zip(with_all, without, strict=False)]
    return [measured(f"a mount's memory with {MANY:,} vectors, MB more than without", grown, "<=", 30)]


def _sizes(text: str) -> list[int]:
    """An argparse type: '0,1000' as [0, 1000]."""
    sizes = [int(number) for number in text.split(",")]
    if min(sizes) < 0:
        raise ValueError(text)
    return sizes


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_index", "1,000 vectors, 12 questions")
    parser.add_argument("--sizes", type=_sizes, metavar="N,N", help=f"0,{MODERATE},{MANY}")
    parser.add_argument("--dimension", type=positive, default=384, metavar="N", help="of `nearest` (%(default)s)")
    parser.add_argument("--questions", type=positive, metavar="N", help="200")
    return run_script("one process that scans vectors", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
