"""What each part of the store is worth: the same work with one part taken out; reads hot and cold; caches by size.

    python -m benchmarks.bench_ablation [--quick] [--parts A,B] [--local DIR] [--json FILE]

Writes go to the product's writer over its socket (ablation_writer.py), or through the Python API of daemons that differ
in their configuration. Reads are from a name to its bytes in one process, 500 memories of 1 KB.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from avmfs import AVM
from benchmarks.ablation_ops import PATTERNS
from benchmarks.ablation_writer import running_writer
from benchmarks.clients import Client, breaking_off, run_together, started_clients
from benchmarks.daemons import WORDS_ONLY, agents, temporary_daemon, until_loaded
from benchmarks.figures import Round, Timing, summarize
from benchmarks.harness import filesystem_of, scratch_directory
from benchmarks.results import Table, Value
from benchmarks.rounds import Outcome, take_turns
from benchmarks.script import Findings, Run, names_among, options, run_script
from benchmarks.texts import notes

WRITERS: Mapping[str, Sequence[str]] = {
    "all on": (),
    "no sync (WAL, NORMAL)": ("promise",),
    "sync in each commit (WAL, FULL)": ("beside",),
    "no group commit, syncs shared": ("single",),
    "no group commit, sync in each": ("single", "beside"),
    "rollback journal, FULL": ("journal",),
    "no word index": ("words",),
}
"""Parts taken out; ablation_writer.py says what each then is."""
MOUNTS = 8
PARTS = ("writer", "daemon", "reads", "model")
WITHOUT_MODEL = PARTS[:3]
READS = (
    "open, SELECT, close",
    "SELECT, prepared",
    "store, by SQL",
    "store, no node remembered",
    "store, no body remembered",
    "store, remembered",
    "dict",
)
PUBLISHED_READS = {"open, SELECT, close": 3_300.0, "store, remembered": 724_000.0}
SIZES = (10, 50, 100, 200)
PUBLISHED_SIZES = {10: 0.954, 50: 0.977, 100: 0.971, 200: 0.975}
"""Hit rates with Zipf accesses; the earlier AVM."""
PUBLISHED_PATTERNS = {"Zipf": 0.948, "working set": 0.788, "temporal": 0.672, "uniform": 0.640}
MATRIX: Mapping[str, tuple[Sequence[str], bool, bool]] = {
    "baseline": (("journal",), False, False),
    "+ WAL": ((), False, False),
    "+ WAL + cache": ((), True, False),
    "+ async embedding": (("journal",), False, True),
    "all on": ((), True, True),
}
"""Parts taken out of the store, is it read from its cache, are texts embedded later."""
PUBLISHED_MATRIX = {
    "baseline": (1_293.0, 3_339.0),
    "+ WAL": (1_354.0, 3_256.0),
    "+ WAL + cache": (1_281.0, 1_318_704.0),
    "+ async embedding": (1_300.0, 3_135.0),
    "all on": (1_327.0, 1_401_896.0),
}
BURSTS = (1, 100, 1000)  # notes
POLL_S = 0.05
CONNECT_S = 120.0
Kind = tuple[str, Mapping[str, Any]]
"""A daemon: coherence of its mounts, its config.yaml."""
OPS = "benchmarks.ablation_ops"


def measure(run: Run) -> Findings:
    rounds = run.options.rounds or (1 if run.quick else 3)
    seconds = run.options.seconds or (0.4 if run.quick else 3.0)
    run.begin(
        stores=f"on {filesystem_of(run.local)}",
        rounds=f"{rounds} of {seconds:g} s, interleaved; figures are medians of rounds",
        writer="a request is one note of 500 to 900 bytes, whose reply promises durability (but with 'no sync')",
        patterns="see accesses() in ablation_ops.py; the oldest read bodies go first, nodes are all remembered",
        published="the earlier AVM on an Apple M2 Pro",
    )
    folder = run.ending.enter_context(scratch_directory(run.local))
    failures: dict[str, str] = {}
    data: dict[str, Any] = {}
    tables: list[Table] = []
    for part in run.options.parts:
        with breaking_off(part, failures):
            match part:
                case "writer":
                    tables.append(_writers(run, folder, rounds, seconds, failures))
                case "daemon":
                    tables.append(_daemons(run, rounds, seconds, failures))
                case "reads":
                    [reader] = run.ending.enter_context(started_clients(OPS, 1, os.environ))
                    reader.call("open", CONNECT_S, database=str(folder / "reads.db"), parts=[])
                    tables.append(_reads(reader, rounds, seconds, failures))
                    tables += _patterns(reader, run.quick, data)
                case "model":
                    tables.append(_embedding(run, rounds, seconds, failures))
                    tables.append(_searchable(run, rounds))
                    tables.append(_matrix(run, folder, rounds, seconds, data))
    return Findings(tables, failures=failures, data=data)


def _writers(run: Run, folder: Path, rounds: int, seconds: float, failures: dict[str, str]) -> Table:
    widths = (1, 2) if run.quick else (1, 16)
    pools: dict[str, list[Client]] = {}
    for variant, parts in WRITERS.items():
        with breaking_off(variant, failures):
            address = run.ending.enter_context(running_writer(folder, parts))
            pools[variant] = run.ending.enter_context(started_clients(OPS, max(widths), os.environ))
            for i, client in enumerate(pools[variant]):
                client.call("attach", CONNECT_S, client=i, **asdict(address))
    outcome = take_turns(rounds, widths, list(WRITERS), failures, _writing(pools, seconds))
    rows = _write_rows(outcome, widths, list(WRITERS), "all on")
    columns = ("clients", "writer", "N", "ops/s", "median ms", "of rounds", "p99 ms", "fairness", "x all on")
    return Table("writes, one part taken out of the writer", columns, rows)


def _daemons(run: Run, rounds: int, seconds: float, failures: dict[str, str]) -> Table:
    """What a configuration changes: who is told of commits, and whether vectors are made behind them."""
    kinds: dict[str, Kind] = {
        "as configured by default, no embedding": ("close-to-open", WORDS_ONLY),
        "no invalidation (strict mounts)": ("strict", WORDS_ONLY),
        "no word index": ("close-to-open", {**WORDS_ONLY, "search": {"ignore": ["*"]}}),
    }
    title = "writes through the Python API"
    return _compared(run, title, kinds, (1, 4) if run.quick else (1, 8), rounds, seconds, failures)


def _embedding(run: Run, rounds: int, seconds: float, failures: dict[str, str]) -> Table:
    """The model beside the writes: vectors are made behind them, on the same cores."""
    kinds: dict[str, Kind] = {
        "no embedding": ("close-to-open", WORDS_ONLY),
        "embedding behind the writes": ("close-to-open", {}),
    }
    title = "writes through the Python API while texts are embedded"
    return _compared(run, title, kinds, (1,) if run.quick else (1, 8), rounds, seconds, failures)


def _searchable(run: Run, rounds: int) -> Table:
    """From the end of a burst of writes of one agent until all of it is found by meaning."""
    taken: dict[int, list[tuple[float, float]]] = {burst: [] for burst in (BURSTS[:2] if run.quick else BURSTS)}
    with (
        temporary_daemon(run.local, agents("bench"), {}) as daemon,
        AVM(agent="bench", environ=daemon.environment) as avm,
    ):
        until_loaded(daemon, vectors=False)
        for number in range(rounds):
            for burst, times in taken.items():
                began = time.monotonic()
                for place, text in enumerate(notes(burst, seed=1000 * number + burst)):
                    avm.write(f"/memory/{number}/{burst}/{place}.md", text)
                written = time.monotonic()
                until_loaded(daemon, every_s=POLL_S)
                times.append((written - began, time.monotonic() - written))
    rows = [
        (
            burst,
            len(times),
            *(statistics.median(column) for column in zip(*times, strict=True)),
            max(after for _, after in times),
        )
        for burst, times in taken.items()
    ]
    columns = ("notes at once", "N", "written in s", "then found by meaning after s", "longest s")
    return Table("time to searchable", columns, rows)


def _compared(
    run: Run,
    title: str,
    kinds: Mapping[str, Kind],
    widths: Sequence[int],
    rounds: int,
    seconds: float,
    failures: dict[str, str],
) -> Table:
    """Daemons that differ in their configuration, the first one the baseline."""
    names = [f"m{i}" for i in range(MOUNTS)]
    pools: dict[str, list[Client]] = {}
    for variant, (coherence, settings) in kinds.items():
        with breaking_off(variant, failures):
            entries = agents(*names, coherence=coherence)
            daemon = run.ending.enter_context(temporary_daemon(run.local, entries, settings))
            clients = started_clients("benchmarks.store_ops", max(widths), daemon.environment)
            pools[variant] = run.ending.enter_context(clients)
            for i, client in enumerate(pools[variant]):
                client.call("connect", CONNECT_S, variant="avmfs", client=i, database="")
    outcome = take_turns(rounds, widths, list(kinds), failures, _writing(pools, seconds))
    first = next(iter(kinds))
    rows = _write_rows(outcome, widths, list(kinds), first)
    columns = (
        "clients",
        f"daemon with {MOUNTS} mounts",
        "N",
        "ops/s",
        "median ms",
        "of rounds",
        "p99 ms",
        "fairness",
        "x first",
    )
    return Table(title, columns, rows)


def _writing(pools: Mapping[str, Sequence[Client]], seconds: float) -> Any:
    def one(width: int, variant: str, loop: int) -> Round:
        clients = pools[variant][:width]
        for client in clients:
            client.call("begin", CONNECT_S, number=loop)
        return summarize(run_together(clients, "write", seconds, [{} for _ in clients]))

    return one


def _write_rows(outcome: Outcome[int], widths: Sequence[int], variants: Sequence[str], base: str) -> list[Any]:
    rows: list[Sequence[Value]] = []
    for width in widths:
        rows += [()] if rows else []
        for variant in variants:
            if (figure := outcome.figure(width, variant)) is not None:
                rows.append(
                    (
                        f"{width}",
                        variant,
                        figure.n,
                        figure.per_second,
                        figure.median_us / 1e3,
                        figure.rounds,
                        figure.p99_us / 1e3,
                        figure.fairness,
                        outcome.ratio_median(width, variant, base),
                    )
                )
    return rows


def _reads(reader: Client, rounds: int, seconds: float, failures: dict[str, str]) -> Table:
    def one(cell: str, how: str, loop: int) -> Round:
        return summarize(run_together([reader], "read", seconds / 3, [{"how": how, "n": 200_000}]))

    outcome = take_turns(rounds, ["read"], READS, failures, one)
    rows: list[Sequence[Value]] = []
    for how in READS:
        if (figure := outcome.figure("read", how)) is not None:
            to_sql = outcome.ratio_median("read", how, "SELECT, prepared")
            times = (figure.median_us, figure.rounds, figure.p99_us, figure.per_second)
            rows.append((how, figure.n, *times, to_sql, PUBLISHED_READS.get(how)))
    columns = ("read", "N", "median us", "of rounds", "p99 us", "reads/s", "x SELECT, prepared", "published /s")
    return Table("reads, hot and cold", columns, rows)


def _patterns(reader: Client, quick: bool, data: dict[str, Any]) -> list[Table]:
    n = 2000 if quick else 50_000
    rows: list[Sequence[Value]] = []
    hits: dict[str, dict[int, float]] = {}
    for pattern in PATTERNS:
        rows += [()] if rows else []
        for size in SIZES:
            arguments = {"pattern": pattern, "size": size, "n": n, "start_ns": 0, "limit_s": 60.0}
            found = reader.call("pattern", CONNECT_S, **arguments)
            figure = summarize([Timing(*found["timing"])])
            hits.setdefault(pattern, {})[size] = found["hits"]
            published = PUBLISHED_SIZES[size] if pattern == "Zipf" else None
            rows.append(
                (
                    pattern,
                    size,
                    figure.n,
                    found["hits"],
                    found["lru_hits"],
                    figure.median_us,
                    figure.p99_us,
                    figure.per_second,
                    published,
                )
            )
    data["hit rate by pattern and size"] = hits
    columns = (
        "accesses",
        "bodies kept",
        "N",
        "hit rate",
        "an LRU's",
        "median us",
        "p99 us",
        "reads/s",
        "published hit rate",
    )
    averages = [
        (pattern, sum(by_size.values()) / len(by_size), PUBLISHED_PATTERNS[pattern])
        for pattern, by_size in hits.items()
    ]
    return [
        Table("hit rates by access pattern and cache size", columns, rows),
        Table("hit rates by access pattern, mean of the sizes", ("accesses", "hit rate", "published"), averages),
    ]


def _matrix(run: Run, folder: Path, rounds: int, seconds: float, data: dict[str, Any]) -> Table:
    """The published study's configurations: one process, its own store."""
    clients: dict[str, Client] = {}
    failures: dict[str, str] = {}
    for number, (name, (parts, _, later)) in enumerate(MATRIX.items()):
        [clients[name]] = run.ending.enter_context(started_clients(OPS, 1, os.environ))
        clients[name].call("open", CONNECT_S, database=str(folder / f"matrix{number}.db"), parts=list(parts))
        if not later:
            clients[name].call("load_model", CONNECT_S)

    def one(what: str, name: str, loop: int) -> Round:
        _, cached, later = MATRIX[name]
        if what == "read":
            how = "store, remembered" if cached else "store, by SQL"
            return summarize(run_together([clients[name]], "read", seconds / 3, [{"how": how, "n": 200_000}]))
        clients[name].call("begin", CONNECT_S, number=loop)
        return summarize(run_together([clients[name]], "remember", seconds, [{"embed": not later}]))

    outcome = take_turns(rounds, ("write", "read"), list(MATRIX), failures, one)
    rows: list[Sequence[Value]] = []
    for name in MATRIX:
        write, read = outcome.figure("write", name), outcome.figure("read", name)
        rows.append(
            (
                name,
                write.per_second if write else None,
                read.per_second if read else None,
                outcome.ratio_median("write", name, "baseline"),
                outcome.ratio_median("read", name, "baseline"),
                *PUBLISHED_MATRIX[name],
            )
        )
    data["ablation"] = [list(row[:3]) for row in rows]
    columns = ("parts", "writes/s", "reads/s", "writes x baseline", "reads x baseline", "published writes", "reads")
    return Table("the published study's configurations", columns, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_ablation", "rounds of 0.4 s")
    parser.add_argument(
        "--parts",
        type=names_among(PARTS),
        default=WITHOUT_MODEL,
        metavar="A,B",
        help=f"{', '.join(PARTS)}; all but the last, which takes minutes and the embedding model",
    )
    parser.add_argument("--seconds", type=float, metavar="S", help="3 a round, or 0.4 with --quick")
    return run_script("avmfs ablation", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
