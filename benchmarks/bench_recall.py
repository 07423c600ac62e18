"""What a recall costs from the question to the answer, by engine, size and the way of asking, with its parts.

    python -m benchmarks.bench_recall [--sizes 1000,10000] [--engines torch,onnx-int8] [--questions 60] [--quick]

Each size and engine is a store of its own, one note a file, asked in this process (on one thread but for the model's
own) and then through a daemon: the view `:recall`, and the program `avm recall`. A *new* question needs a vector; a
*known* one was asked before, so that its vector is remembered. `vector` is the engine alone, `search` is AVM.search:
what recall takes beyond it is packing. The program also takes what it takes to start (`avm --help`). The column "cpu"
is this process's, on average: on a busy machine it tells more than the clock. The second table has the memory of the
daemon's processes after all these questions.

The notes are paragraphs of the docstrings of installed packages; of more than 10,000 each is the first half of one and
the second of another. To embed 10,000 of them takes minutes: their vectors are planted, a static table's in the model's
name and dimension. It costs the same to search among them, but what is found means nothing: how good recall is,
`recall_quality` measures. To write 100,000 takes minutes too: `--stores FOLDER` keeps the stores, and takes those that
are there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast, get_args

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy: as the daemon starts its children

import apsw
import numpy as np
from avmfs_config import EmbeddingSettings
from avmfs_config.settings import Engine as EngineName

from avmfs import AVM
from avmfs.access import Policy
from avmfs.embed import engines
from avmfs.embed.protocol import Batch
from avmfs.embed.static import StaticEmbedding
from avmfs.search.indexer import embed_pending
from avmfs.store.identity import OPERATOR
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules
from benchmarks import processes
from benchmarks.bench_start import AVM as PROGRAM
from benchmarks.bench_start import mcp_server
from benchmarks.clients import breaking_off, started_clients
from benchmarks.daemons import Daemon, agents, temporary_daemon, until_loaded
from benchmarks.figures import BenchmarkError, Round, Timing, over_rounds, summarize, timed_loop
from benchmarks.harness import filesystem_of, scratch_directory
from benchmarks.results import Table, Target, Value, measured
from benchmarks.script import Findings, Run, add_models, names_among, options, positive, positive_numbers, run_script
from benchmarks.texts import Matrix, sentences
from benchmarks.vector_store import BENCH, named_errors

ENGINES: Sequence[str] = get_args(EngineName)
DISTINCT = 10_000
KNOWN = 6
WAYS = 6
"""Each asks new questions of its own."""
"""Questions that are asked again and again."""
TOKENS = 1000
LIMIT_S = 60.0
MODERATE = 10_000
BOUNDS_MS = {"torch": 20.0, "onnx-int8": 6.0}
SEARCH, NEW, SEEN = "search, in process", "new", "known"


@dataclass(frozen=True)
class Asked:
    """One loop of questions, and the processor time of each where this process answers them itself."""

    round: Round
    cpu_ms: float | None = None


Rounds = dict[tuple[str, str], Asked]
"""By way of asking and kind of question."""


Held = dict[str, processes.Memory]
"""By process of the daemon."""


@dataclass(frozen=True)
class Questions:
    known: Sequence[str]
    new: Sequence[Sequence[str]]
    """One list for each way, so that none has been asked before."""


class Planted:
    """An embedder in a model's name and dimension, as fast as a table."""

    def __init__(self, model: str, dimension: int) -> None:
        self._model = model
        self._table = StaticEmbedding()
        random = np.random.default_rng(0)
        self._turned = random.standard_normal((self._table.dimension, dimension)).astype(np.float32)

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        rows: Matrix = self._table.embed_batch(texts).vectors @ self._turned
        return Batch(self._model, rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9))


def measure(run: Run) -> Findings:
    chosen = run.options
    sizes: Sequence[int] = chosen.sizes or ([200] if run.quick else [1000, MODERATE])
    names: Sequence[str] = chosen.engines or (["static"] if run.quick else list(BOUNDS_MS))
    count: int = chosen.questions or (6 if run.quick else 60)
    programs: int = chosen.programs or (2 if run.quick else 10)
    rounds: int = chosen.rounds or 1
    texts = sentences(None, min(max(sizes), DISTINCT) + KNOWN + rounds * WAYS * count)
    notes, asked = (
        texts[: min(max(sizes), DISTINCT)],
        [_question(text) for text in texts[-(KNOWN + rounds * WAYS * count) :]],
    )
    run.begin(
        stores=f"on {filesystem_of(run.local)}; a paragraph a note; planted vectors",
        questions=f"{count} new and {count} known ones of each kind; {programs} programs",
        answers=f"of {TOKENS:,} tokens",
        rounds=f"{rounds}, each with every size and engine in turn; figures are medians of rounds",
    )
    chosen.cache.mkdir(parents=True, exist_ok=True)
    failures: dict[str, str] = {}
    found: dict[tuple[int, str], list[Rounds]] = {}
    held: dict[tuple[int, str], Held] = {}
    with scratch_directory(run.local) as scratch:
        folder = chosen.stores or scratch
        for size in sizes:
            with breaking_off(f"{size:,} notes", failures), named_errors():
                _write(folder / f"{size}.db", notes, size)
        for number in range(rounds):
            for size in sizes:
                for name in names:
                    part = asked[KNOWN + number * WAYS * count :]
                    questions = Questions(asked[:KNOWN], [part[at * count :][:count] for at in range(WAYS)])
                    with breaking_off(f"{size:,} notes, {name}", failures), named_errors():
                        one, held[size, name] = _look(
                            run.local, folder / f"{size}.db", name, chosen.cache, questions, programs
                        )
                        found.setdefault((size, name), []).append(one)
    return Findings([_table(found), _memory(held)], _targets(found), failures, {"percentiles, ms": _curves(found)})


def _question(text: str) -> str:
    """A few words of a paragraph: nothing that means anything in a path or to the search."""
    return " ".join(re.findall("[a-z]+", text.lower())[:8]) or "what"


# ---- the store ----


def _write(database: Path, notes: Sequence[str], count: int) -> None:
    """A store of `count` notes whose words are indexed, unless it is there; no vectors yet."""
    if database.exists():
        return
    store = open_direct(database, Policy(), IndexRules())
    try:
        store.submit(BENCH, "enroll")
        for number, note in enumerate(notes[:count] if count <= len(notes) else _spliced(notes, count)):
            store.submit(BENCH, "write_path", path=[b"memory", b"%d.md" % number], data=note.encode())
        while store.queue_lengths()[0]:
            store.submit(OPERATOR, "drain_lexical", limit=64)
    finally:
        store.close()


def _spliced(notes: Sequence[str], count: int) -> Iterator[str]:
    words, random = [note.split() for note in notes], np.random.default_rng(0)
    for number in range(count):
        one, other = (words[at] for at in random.integers(0, len(words), 2))
        yield " ".join(one[: len(one) // 2] + other[len(other) // 2 :]) + f" {number}."


def _plant(source: Path, database: Path, model: str, dimension: int) -> None:
    """Vectors in this model's name, and a copy of the store."""
    store = open_direct(source, Policy(), IndexRules())
    try:
        embed_pending(store, Planted(model, dimension), model)
    finally:
        store.close()
    db = apsw.Connection(os.fspath(source))
    try:
        db.execute("vacuum into ?", (os.fspath(database),))
    finally:
        db.close()


# ---- asking ----


def _look(
    local: Path, source: Path, name: str, cache: Path, questions: Questions, programs: int
) -> tuple[Rounds, Held]:
    settings = {"embedding": {"engine": name, "allow_download": False}}
    engine = engines.make(EmbeddingSettings(engine=cast(EngineName, name), allow_download=False), cache)
    for text in questions.known:
        engine.embed_batch([text], urgent=True)
    times: Rounds = {}
    times["vector, in process", NEW] = _timed(lambda text: engine.embed_batch([text], urgent=True), questions.new[0])
    with scratch_directory(local) as folder:
        _plant(source, folder / "avm.db", engine.model_id, engine.dimension)
        times |= _in_process(folder, settings, cache, questions)

        def stock(database: Path) -> None:
            shutil.copy(folder / "avm.db", database)
            (database.parent / "models").symlink_to(cache)

        with temporary_daemon(local, agents("bench"), settings, stock=stock) as daemon:
            until_loaded(daemon)
            times |= _by_mount(daemon, questions)
            times |= _by_mcp(daemon, questions)
            times |= _by_program(daemon, questions, programs)
            held = {role: processes.memory(pid) for role, (pid, *_) in sorted(daemon.roles().items())}
    return times, held


def _in_process(folder: Path, settings: Mapping[str, object], cache: Path, questions: Questions) -> Rounds:
    """On a store that this process has opened itself."""
    (folder / "config.yaml").write_text(json.dumps(settings))
    (folder / "models").symlink_to(cache)
    folders = {f"AVM_{name}_DIR": str(folder) for name in ("CONFIG", "DATA", "RUNTIME")}
    environment = {**os.environ, **folders, "AVM_AUTOSTART": "0"}
    opened = partial(AVM, db=folder / "avm.db", config=folder / "config.yaml", agent="bench", environ=environment)

    def first(question: str) -> None:
        with opened() as avm:
            avm.agent_memory().recall(question, max_tokens=TOKENS)

    found = {("open and first recall", NEW): _timed(first, questions.new[2][-1:])}
    with opened() as avm:
        memory = avm.agent_memory()

        def recall(question: str) -> object:
            return memory.recall(question, max_tokens=TOKENS)

        found |= _both(SEARCH, avm.search, questions.known, questions.new[1])
        return found | _both("recall, in process", recall, questions.known, questions.new[2][:-1])


def _both(way: str, ask: Callable[[str], object], known: Sequence[str], new: Sequence[str]) -> Rounds:
    for question in known:
        ask(question)
    again = _again(known, len(new))
    return {
        (way, SEEN): _timed(ask, again),
        (way, NEW): _timed(ask, new),
    }


def _timed(ask: Callable[[str], object], some: Sequence[str]) -> Asked:
    before = time.process_time()
    found = summarize([timed_loop(ask, some, LIMIT_S)])
    return Asked(found, (time.process_time() - before) / found.n * 1e3)


def _again(known: Sequence[str], count: int) -> list[str]:
    return [known[number % len(known)] for number in range(count)]


def _by_mount(daemon: Daemon, questions: Questions) -> Rounds:
    known, new = questions.known, questions.new[3]
    with started_clients("benchmarks.index_ops", 1, os.environ) as (client,):

        def ask(some: Sequence[str]) -> Asked:
            place = str(daemon.mountpoints["bench"])
            told = {"mountpoint": place, "questions": list(some), "tokens": TOKENS, "limit_s": LIMIT_S}
            reply = client.call("recall", 2 * LIMIT_S, **told)
            return Asked(summarize([Timing(*reply)]))

        ask(known)
        return {
            ("recall, mount", SEEN): ask(_again(known, len(new))),
            ("recall, mount", NEW): ask(new),
        }


def _by_mcp(daemon: Daemon, questions: Questions) -> Rounds:
    """By an `avm-mcp` that has started, over its pipes."""
    known, new = questions.known, questions.new[5]
    with mcp_server(daemon.environment) as call:

        def recall(question: str) -> None:
            call("tools/call", {"name": "avm_recall", "arguments": {"query": question, "max_tokens": TOKENS}})

        found = _both("recall, MCP", recall, known, new)
    return {key: Asked(one.round) for key, one in found.items()}


def _by_program(daemon: Daemon, questions: Questions, count: int) -> Rounds:
    def run(words: Sequence[str]) -> None:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words],
            env=dict(daemon.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise BenchmarkError(f"avm {words[0]}: {done.stderr.strip()}")

    def recall(question: str) -> None:
        run(["-a", "bench", "recall", question, "--max-tokens", str(TOKENS)])

    found = _both("avm recall", recall, questions.known[:1], questions.new[4][:count])
    start = timed_loop(lambda word: run([word]), ["--help"] * count, LIMIT_S)
    return {("avm --help", ""): Asked(summarize([start])), **{key: Asked(one.round) for key, one in found.items()}}


# ---- what was found ----


def _table(found: Mapping[tuple[int, str], Sequence[Rounds]]) -> Table:
    rows: list[Sequence[Value]] = []
    for (size, name), looks in found.items():
        rows += [()] if rows else []
        for way, kind in looks[0]:
            figure = over_rounds([one[way, kind].round for one in looks])
            spent = [cpu for one in looks if (cpu := one[way, kind].cpu_ms) is not None]
            cpu_ms = statistics.median(spent) if spent else None
            times = (figure.median_us / 1e3, figure.rounds, figure.p99_us / 1e3)
            rows.append((f"{size:,}", name, way, kind, figure.n, *times, cpu_ms))
    return Table(
        "one question", ("notes", "engine", "way", "question", "N", "median ms", "of rounds", "p99 ms", "cpu ms"), rows
    )


def _curves(found: Mapping[tuple[int, str], Sequence[Rounds]]) -> dict[str, list[float]]:
    """For a picture: of the last round of the last engine at the largest size."""
    looks = found[max(found, key=lambda one: one[0])] if found else []
    return {
        f"{way}, {kind}": [us / 1e3 for us in one.round.curve_us]
        for way, kind in (looks[-1] if looks else {})
        if (one := looks[-1][way, kind]).round.curve_us
    }


def _memory(held: Mapping[tuple[int, str], Held]) -> Table:
    rows = [
        (f"{size:,}", name, role, used.proportional, used.private)
        for (size, name), roles in held.items()
        for role, used in roles.items()
    ]
    return Table("memory", ("notes", "engine", "process", "proportional MiB", "private MiB"), rows)


def _targets(found: Mapping[tuple[int, str], Sequence[Rounds]]) -> list[Target]:
    targets = []
    for name, bound in BOUNDS_MS.items():
        looks = found.get((MODERATE, name))
        took = [one[SEARCH, NEW].round.median_us / 1e3 for one in looks or ()]
        targets.append(
            measured(f"search in process, {MODERATE:,} notes, a new question, {name}, ms", took, "<=", bound)
        )
    return targets


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_recall", "200 notes, the static engine, 6 questions")
    parser.add_argument("--sizes", type=positive_numbers, metavar="N,N", help=f"1000,{MODERATE}")
    parser.add_argument("--engines", type=names_among(ENGINES), metavar="A,B", help=",".join(BOUNDS_MS))
    parser.add_argument("--questions", type=positive, metavar="N", help="of each kind: 60")
    parser.add_argument("--programs", type=positive, metavar="N", help="`avm recall`s of each kind: 10")
    parser.add_argument("--stores", type=Path, metavar="FOLDER", help="where stores are kept between runs, N.db each")
    add_models(parser)
    return run_script("a recall, from the question to the answer", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
