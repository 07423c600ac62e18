"""File operations through the avmfs mount beside ext4, tmpfs, a C filesystem, one on mfusepy, and C with SQLite.

    python -m benchmarks.bench_mount [--quick] [--local DIR] [--json FILE]

"C" is minifs (cfs/minifs.c): one thread on libfuse3, no kernel caching. Ratios are of operations a second; above 1 is
faster.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import mount_ops, processes
from benchmarks.clients import Client, breaking_off, run_together, started_clients
from benchmarks.daemons import agents, temporary_daemon
from benchmarks.figures import BenchmarkError, Round, summarize
from benchmarks.harness import filesystem_of, scratch_directory
from benchmarks.leanfs import mounted_leanfs
from benchmarks.minifs import MOUNT_OPTIONS, compile_client, mounted_minifs
from benchmarks.pyfs import mounted_pyfs
from benchmarks.results import Table, Target, Value, measured
from benchmarks.rounds import Outcome, take_turns
from benchmarks.script import Findings, Run, names_among, options, positive_numbers, run_script

VARIANTS = {
    "ext4": "the disk that --local lies on",
    "tmpfs": "/dev/shm",
    "C": f"minifs: -s -f -o {MOUNT_OPTIONS}, entry, attribute and negative timeouts 0",
    "C2": "minifs once more: how far its ratio strays from 1 is how far any ratio of the run may",
    "C+SQLite": "minifs, and then the least SQLite statements for it, durable (bare_rows.py)",
    "mfusepy": "pyfs.py: in memory, libfuse's threads, timeouts 0",
    "mfusepy -s": "the same without threads",
    "Python": "leanfs.py: the least that Python with one writer process can do, everything cached",
    "avmfs strict": "a mount with coherence: strict, where the kernel keeps nothing",
    "avmfs": "a mount as configured by default",
}
OPTIONAL = ("C2", "mfusepy -s", "Python")
MEMORY_DISK = Path("/dev/shm")
N = {
    "stat": 20_000,
    "miss": 20_000,
    "read": 4000,
    "overwrite": 400,
    "append": 400,
    "create": 300,
    "rename": 300,
    "unlink": 300,
    "readdir": 10,
}
QUICK = {name: max(1, n // 20) for name, n in N.items()}
PREPARE_S = 180.0

Cell = tuple[str, int]
"""(operation, number of clients)"""
Cpu = Mapping[tuple[Cell, str], Sequence[float]]
"""Microseconds that a variant's servers spent on an operation, by round; of one client only."""


@dataclass(frozen=True)
class Plan:
    operations: Sequence[str]
    clients: Sequence[int]
    rounds: int
    n: Mapping[str, int]
    names: int
    limit_s: float


def measure(run: Run) -> Findings:
    plan = Plan(
        operations=run.options.ops,
        clients=run.options.clients,
        rounds=run.options.rounds or (1 if run.quick else 3),
        n=QUICK if run.quick else N,
        names=mount_ops.FEW_NAMES if run.quick else mount_ops.NAMES,
        limit_s=1.0 if run.quick else 3.0,
    )
    variants = run.options.variants
    if run.options.one_cpu:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    opened = _open(run, variants)
    places = {variant: place for variant, place in opened.items() if variant in variants}
    scratch = run.ending.enter_context(scratch_directory(run.local))
    database, library = scratch / "bare.db", compile_client(scratch)
    kinds = {filesystem_of(place.base) for variant, place in places.items() if variant == "ext4"}
    run.begin(
        variants="; ".join(f"{name}: {VARIANTS[name]}" for name in places),
        disk=f"{filesystem_of(run.local)}, also under the stores" + "".join(f" ({kind})" for kind in kinds),
        N=", ".join(f"{plan.n[name]:,} {name}" for name in plan.operations) + " a client and round",
        rounds=f"{plan.rounds}, interleaved; figures are medians of rounds",
        names=f"{plan.names:,} that are looked up, read and listed, two directories deep",
        state="names and bytes touched once before each loop of stat, miss, read, readdir",
        client="in C; where SQLite goes with an operation, in Python" if library else "in Python: no cc",
        **({"placement": "clients and servers together on one CPU"} if run.options.one_cpu else {}),
    )
    outcome, cpu = _run(plan, places, database, library)
    tables = [_table(plan, outcome, cpu, list(places), clients) for clients in plan.clients]
    return Findings(tables, _targets(plan, outcome), outcome.failures)


@dataclass(frozen=True)
class Place:
    """Where a variant lies, and the processes that serve it."""

    base: Path
    servers: Sequence[int] = ()


def _open(run: Run, variants: Sequence[str]) -> dict[str, Place]:
    places: dict[str, Place] = {}
    for variant in variants:
        before = set(processes.descendants(os.getpid()))
        match variant:
            case "ext4":
                base = run.ending.enter_context(scratch_directory(run.local))
            case "tmpfs":
                if not MEMORY_DISK.is_dir():
                    raise BenchmarkError(f"no {MEMORY_DISK} here: leave tmpfs out with --variants")
                base = run.ending.enter_context(scratch_directory(MEMORY_DISK))
            case "C" | "C2" | "C+SQLite":
                base = run.ending.enter_context(mounted_minifs())
            case "mfusepy" | "mfusepy -s":
                base = run.ending.enter_context(mounted_pyfs(threads=variant == "mfusepy"))
            case "Python":
                base = run.ending.enter_context(mounted_leanfs(run.local))
            case _:
                continue
        places[variant] = Place(base, sorted(set(processes.descendants(os.getpid())) - before))
    ours = {"avmfs": "cached", "avmfs strict": "strict"}
    if any(variant in ours for variant in variants):
        entries = agents("cached") + agents("strict", coherence="strict")
        daemon = run.ending.enter_context(temporary_daemon(run.local, entries))
        servers = processes.descendants(daemon.pid)
        places |= {variant: Place(daemon.mountpoints[agent], servers) for variant, agent in ours.items()}
    return {variant: places[variant] for variant in VARIANTS if variant in places}


def _run(plan: Plan, places: Mapping[str, Place], database: Path, library: Path | None) -> tuple[Outcome[Cell], Cpu]:
    failures: dict[str, str] = {}
    pools: dict[str, list[Client]] = {}
    cpu: dict[tuple[Cell, str], list[float]] = {}
    with contextlib.ExitStack() as ending:
        for variant, place in places.items():
            # A pool for each variant: a client stuck in one mount does not cost the others theirs.
            pool = ending.enter_context(started_clients("benchmarks.mount_ops", max(plan.clients), os.environ))
            pools[variant] = pool
            prefix = f"bench-{os.getpid()}-{list(places).index(variant)}"
            rows = str(database) if variant == "C+SQLite" else None
            with breaking_off(variant, failures):
                for i, client in enumerate(pool):
                    client.call(
                        "prepare",
                        PREPARE_S,
                        base=str(place.base),
                        prefix=prefix,
                        client=i,
                        names=plan.names,
                        database=rows,
                        servers=list(place.servers),
                        library=str(library) if library else None,
                    )

        def one(cell: Cell, variant: str, loop: int) -> Round:
            found = _measure(plan, pools[variant][: cell[1]], cell[0], loop)
            if cell[1] == 1 and places[variant].servers:
                cpu.setdefault((cell, variant), []).append(pools[variant][0].call("cpu", PREPARE_S) * 1e6 / found.n)
            return found

        cells = [(operation, clients) for clients, operation in itertools.product(plan.clients, plan.operations)]
        return take_turns(plan.rounds, cells, list(places), failures, one), cpu


def _measure(plan: Plan, clients: Sequence[Client], operation: str, loop: int) -> Round:
    arguments = [{"operation": operation, "number": loop, "n": plan.n[operation]} for _ in clients]
    timings = run_together(clients, "measure", plan.limit_s, arguments)
    if operation in ("create", "rename", "unlink"):
        for client in clients:
            client.call("forget", PREPARE_S, number=loop)
    return summarize(timings)


def _table(plan: Plan, outcome: Outcome[Cell], cpu: Cpu, variants: Sequence[str], clients: int) -> Table:
    columns = [
        "operation",
        "variant",
        "N",
        "median us",
        "p99 us",
        "ops/s",
        "x C",
        "of rounds",
        "x C+SQLite",
        "x ext4",
        *(["server CPU us"] if clients == 1 else []),
    ]
    rows: list[Sequence[Value]] = []
    for operation in plan.operations:
        rows += [()] if rows else []
        cell = (operation, clients)
        for variant in variants:
            if (figure := outcome.figure(cell, variant)) is None:
                continue
            to_c = outcome.ratio(cell, variant, "C")
            spread = None if to_c is None or plan.rounds == 1 else f"{to_c.least:.2f}..{to_c.most:.2f}"
            spent = cpu.get((cell, variant))
            rows.append(
                (
                    operation,
                    variant,
                    figure.n,
                    figure.median_us,
                    figure.p99_us,
                    figure.per_second,
                    to_c.median if to_c else None,
                    spread,
                    outcome.ratio_median(cell, variant, "C+SQLite"),
                    outcome.ratio_median(cell, variant, "ext4"),
                    *([statistics.median(spent) if spent else None] if clients == 1 else []),
                )
            )
    return Table(f"{clients} client process{'es' if clients > 1 else ''}", columns, rows)


def _targets(plan: Plan, outcome: Outcome[Cell]) -> list[Target]:
    found: list[Target] = []

    def target(variant: str, operation: str, clients: int, baseline: str, bound: float) -> None:
        if operation in plan.operations and clients in plan.clients:
            values = outcome.ratios((operation, clients), variant, baseline)
            found.append(measured(f"{variant} {operation}, {clients} client(s), of {baseline}", values, ">=", bound))

    for clients in plan.clients:
        for operation in ("stat", "read"):
            target("avmfs strict", operation, clients, "C", 0.6)
        for operation in mount_ops.COMMITTING:
            target("avmfs", operation, clients, "C+SQLite", 0.7)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_mount", "one round of a twentieth")
    default = [name for name in VARIANTS if name not in OPTIONAL]
    parser.add_argument(
        "--variants", type=names_among(list(VARIANTS)), default=default, metavar="A,B", help=", ".join(VARIANTS)
    )
    ops = mount_ops.OPERATIONS
    parser.add_argument("--ops", type=names_among(ops), default=ops, metavar="A,B", help=", ".join(ops))
    parser.add_argument("--clients", type=positive_numbers, default=[1, 4], metavar="N,N", help="processes (1,4)")
    parser.add_argument("--one-cpu", action="store_true", help="everything that the run starts shares one CPU (Linux)")
    return run_script("avmfs mount benchmark", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
