"""What embedding costs those who write, and how soon what was written is found by meaning.

    python -m benchmarks.bench_embedding [--engine torch] [--notes 2000] [--burst 1000] [--quick] [--json FILE]

Four parts, ratios within this run but for the second:

- writes through the door with embeddings on beside off: two daemons, of which one at a time is written to, and
  which have nothing left to embed when the other's turn comes;
- the time from the last acknowledged write until nothing waits for a vector, for 1 note and for --burst;
- embedding alone: the daemon's service, asked through its pipe as the keeper asks, beside a bare
  SentenceTransformer.encode of the same texts (of another engine: its own embed_batch), chunk by chunk in turns;
- a question's vector from that service, nothing else to do, and beside a client that has chunks embedded all the time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import apsw
from avmfs_config import EmbeddingSettings
from avmfs_config.settings import Engine as EngineName
from avmfs_daemon.embedding import YIELDING, EmbeddingService, PipeEmbedder

from avmfs import AVM
from avmfs.embed import engines
from avmfs.embed.transformer import TransformerEmbedding
from benchmarks.daemons import WORDS_ONLY, Daemon, agents, temporary_daemon
from benchmarks.figures import BenchmarkError, Round, percentile, summarize, timed_loop
from benchmarks.harness import filesystem_of
from benchmarks.results import Table, Value, measured
from benchmarks.rounds import Outcome, take_turns
from benchmarks.script import Findings, Run, add_models, options, positive, run_script
from benchmarks.texts import notes
from benchmarks.vector_store import named_errors

CHUNK = 128
LIMIT_S = 300.0
EMBEDDED_WITHIN_S = 600.0
SAME_WEIGHTS = ("auto", "onnx", "torch")
"""Engines beside which sentence-transformers' own encode() stands."""
Embed = Callable[[Sequence[str]], object]


def measure(run: Run) -> Findings:
    chosen = run.options
    rounds: int = chosen.rounds or (1 if run.quick else 3)
    count: int = chosen.notes or (30 if run.quick else 2000)
    burst: int = chosen.burst or (50 if run.quick else 1000)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Before there are threads of a model here: daemons are started by fork and exec.
    embedding = {"embedding": {"engine": chosen.engine, "allow_download": False}}
    settings = {"off": WORDS_ONLY, "on": embedding}
    daemons = {
        name: run.ending.enter_context(temporary_daemon(run.local, agents("bench"), how))
        for name, how in settings.items()
    }
    run.begin(
        engine=chosen.engine,
        stores=f"on {filesystem_of(run.local)}",
        rounds=f"{rounds}, interleaved, after one that warms up; figures are medians of rounds",
        writes=f"{count} notes of 15 to 70 words a round, one client",
        embedding_alone=f"{CHUNK} texts at once, {2 * rounds} times; both yield to others (nice {YIELDING})",
    )
    failures: dict[str, str] = {}
    with contextlib.ExitStack() as doors, named_errors():
        avms = {
            name: doors.enter_context(AVM(agent="bench", environ=dict(daemon.environment)))
            for name, daemon in daemons.items()
        }
        written = _writes(daemons, avms, rounds, count, failures)
        bursts = {1: [_embedded_after(avms["on"], 1, seed) for seed in range(2 if run.quick else 20)]}
        bursts[burst] = [_embedded_after(avms["on"], burst, 99)]
    with _service(chosen.engine, chosen.cache) as (ways, ask), named_errors():
        alone = _alone(ways, 2 * rounds, failures)
        asked = _beside(ask, ways["service"], rounds, 5 if run.quick else 40, failures)
    tables = [
        _rates("writes with embeddings", "off", written, 1),
        _bursts(bursts),
        _rates("alone", "bare", alone, CHUNK),
        _rates("a question's vector", "idle", asked, 1),
    ]
    slower = asked.ratios("question", "idle", "beside")
    shares = alone.ratios("alone", "service", "bare") if chosen.engine in SAME_WEIGHTS else ()
    targets = [
        measured("writes a second with embeddings on, of off", written.ratios("writes", "on", "off"), ">=", 0.9),
        measured("embedding alone, of bare SentenceTransformer.encode", shares, ">=", 0.8),
        measured("a question's vector beside embedding, times as long as alone", slower, "<=", 3.0),
    ]
    return Findings(tables, targets, failures)


# ---- writes ----


def _writes(
    daemons: Mapping[str, Daemon], avms: Mapping[str, AVM], rounds: int, count: int, failures: dict[str, str]
) -> Outcome[str]:
    def one(cell: str, name: str, loop: int) -> Round:
        files = [(f"/memory/round{loop}/{number}.md", text) for number, text in enumerate(notes(count, loop + 1))]
        timing = timed_loop(lambda file: avms[name].write(*file), files, LIMIT_S)
        _drain(daemons[name])
        return summarize([timing])

    for name in daemons:
        _drain(daemons[name])
        one("warm", name, -1)
    return take_turns(rounds, ["writes"], list(daemons), failures, one)


def _drain(daemon: Daemon) -> None:
    """Until nothing waits to be found. Raises BenchmarkError when the daemon has no model."""
    give_up = time.monotonic() + EMBEDDED_WITHIN_S
    while time.monotonic() < give_up:
        status = daemon.status()
        embedding, store = status.get("embedding", {}), status.get("store", {})
        state = embedding.get("state")
        if state not in (None, "loading", "ready", "off"):
            raise BenchmarkError(f"the daemon has no model: {embedding.get('reason')}")
        # What waits for vectors goes on waiting where there will be none.
        queues = ("waiting_lexical", "waiting_semantic") if state == "ready" else ("waiting_lexical",)
        if state in ("ready", "off") and not any(store.get(queue, 1) for queue in queues):
            return
        time.sleep(0.1)
    raise BenchmarkError(f"not all is embedded after {EMBEDDED_WITHIN_S:g} s")


def _embedded_after(avm: AVM, count: int, seed: int) -> float:
    """Seconds from the last acknowledged write until nothing waits for a vector."""
    for number, text in enumerate(notes(count, 10_000 + seed)):
        avm.write(f"/memory/burst{seed}-{count}/{number}.md", text)
    began = time.perf_counter()
    db = apsw.Connection(str(avm.database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        while db.execute("select (select count(*) from semantic_queue) + (select count(*) from lexical_queue)").get:
            if time.perf_counter() - began > EMBEDDED_WITHIN_S:
                raise BenchmarkError(f"{count} notes are not embedded after {EMBEDDED_WITHIN_S:g} s")
            time.sleep(0.002)
    finally:
        db.close()
    return time.perf_counter() - began


# ---- embedding alone ----


@contextlib.contextmanager
def _service(engine: EngineName, cache: Path) -> Iterator[tuple[Mapping[str, Embed], Callable[[str], object]]]:
    """Two ways to have texts embedded by one loaded model, the daemon's service and without it; and how to ask the
    service for the vector of a question."""
    loaded = engines.make(EmbeddingSettings(engine=engine, allow_download=False), cache)
    service = EmbeddingService()
    service.load(lambda: loaded)
    clients = []
    for name in ("keeper", "asker"):
        ours, theirs = multiprocessing.Pipe()
        service.serve(ours, name)
        clients.append(PipeEmbedder(theirs, LIMIT_S))
    keeper, asker = clients
    while service.status()["state"] == "loading":
        time.sleep(0.05)
    if service.status()["state"] != "ready":
        raise BenchmarkError(f"no model here: {service.status().get('reason')}")
    bare: Embed = loaded.embed_batch
    if engine in SAME_WEIGHTS:
        transformer = TransformerEmbedding(device="cpu", allow_download=False)._loaded()

        def encode(some: Sequence[str]) -> object:
            return transformer.encode(list(some), batch_size=32, normalize_embeddings=True, show_progress_bar=False)

        bare = encode
    # One thread for all calls, as in the service: torch starts helpers of its own for each thread that calls it.
    with ThreadPoolExecutor(1, initializer=_yield) as thread:
        ways = {"service": keeper.embed_batch, "bare": lambda some: thread.submit(bare, some).result()}
        yield ways, lambda question: asker.embed_batch([question], urgent=True)


def _alone(ways: Mapping[str, Embed], rounds: int, failures: dict[str, str]) -> Outcome[str]:
    def one(cell: str, name: str, loop: int) -> Round:
        return summarize([timed_loop(ways[name], [notes(CHUNK, loop + 1)], LIMIT_S)])

    for name in ways:
        one("warm", name, -1)
    return take_turns(rounds, ["alone"], list(ways), failures, one)


def _beside(
    ask: Callable[[str], object], embed: Embed, rounds: int, count: int, failures: dict[str, str]
) -> Outcome[str]:
    def one(cell: str, name: str, loop: int) -> Round:
        # No question twice: its vector would be remembered.
        questions = [f"what did we decide about the market in round {loop} of {name}, part {n}" for n in range(count)]
        with _embedding(embed) if name == "beside" else contextlib.nullcontext():
            return summarize([timed_loop(ask, questions, LIMIT_S)])

    one("warm", "idle", -1)
    return take_turns(rounds, ["question"], ["idle", "beside"], failures, one)


@contextlib.contextmanager
def _embedding(embed: Embed) -> Iterator[None]:
    """One chunk after the other, until the end."""
    over = threading.Event()
    begun = threading.Event()

    def work() -> None:
        while not over.is_set():
            begun.set()
            embed(notes(CHUNK, 1))

    with ThreadPoolExecutor(1) as thread:
        working = thread.submit(work)
        try:
            begun.wait(LIMIT_S)
            yield
        finally:
            over.set()
            working.result()


def _yield() -> None:
    """At the priority that the service has: on a busy machine it would else be priorities that are compared."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), YIELDING)


# ---- what was found ----


def _rates(what: str, baseline: str, outcome: Outcome[str], items: int) -> Table:
    """Of the one cell of an outcome; an operation is of so many `items`."""
    rows: list[Sequence[Value]] = []
    for cell, name in sorted(outcome.rounds, key=lambda each: each[1] != baseline):
        figure = outcome.figure(cell, name)
        share = outcome.ratio(cell, name, baseline)
        if figure is not None:
            spread = (share.median, share.least, share.most) if share is not None else (None, None, None)
            row = (name, figure.n, figure.per_second * items, figure.median_us / 1e3, figure.p99_us / 1e3, *spread)
            rows.append(row)
    columns = ("variant", "N", "texts/s", "median ms", "p99 ms", f"x {baseline}", "least", "most")
    return Table(what, columns, rows)


def _bursts(bursts: Mapping[int, Sequence[float]]) -> Table:
    rows = [
        (f"{count:,}", len(took), statistics.median(took), percentile(sorted(took), 0.99))
        for count, took in bursts.items()
    ]
    return Table("from the last answered write until all have vectors", ("notes", "N", "median s", "p99 s"), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_embedding", "one round of 30 notes")
    parser.add_argument("--engine", choices=get_args(EngineName), default="auto", help="(%(default)s)")
    parser.add_argument("--notes", type=positive, metavar="N", help="a round: 2000")
    parser.add_argument("--burst", type=positive, metavar="N", help="written at once: 1000")
    add_models(parser)
    return run_script("what embedding costs", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
