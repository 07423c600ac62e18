"""Agents that write at once, each through a mount of its own, beside bare SQLite and the figures published for AVM.

    python -m benchmarks.bench_contention [--quick] [--local DIR] [--json FILE]

Every write is one note made durable in shared space: 500 to 900 bytes, 30 % of them new. The fdatasync figures are of
one process alone on the same disk, in turn with the others.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Mapping, Sequence

from benchmarks import processes
from benchmarks.clients import Client, breaking_off, run_together, started_clients
from benchmarks.daemons import agents, temporary_daemon
from benchmarks.figures import Round, summarize
from benchmarks.harness import filesystem_of, scratch_directory
from benchmarks.results import Table, Target, Value, measured
from benchmarks.rounds import Outcome, take_turns
from benchmarks.script import Findings, Run, options, positive_numbers, run_script
from benchmarks.store_ops import AT_FIRST

VARIANTS = ("fdatasync", "SQLite", "avmfs")
PUBLISHED: Mapping[int, tuple[float, float]] = {
    1: (454, 4.3),
    2: (421, 47.7),
    4: (362, 120.6),
    8: (298, 245.2),
    16: (210, 512.8),
}
"""Agents: operations a second together, 99th percentile in ms; the earlier AVM on an Apple M2 Pro."""
BEGIN_S = 120.0
SYNC_S = 1.0


def measure(run: Run) -> Findings:
    widths: Sequence[int] = run.options.agents
    rounds = run.options.rounds or (1 if run.quick else 3)
    seconds = run.options.seconds or (1.0 if run.quick else 5.0)
    names = [f"w{i:02}" for i in range(max(widths))]
    disk = run.ending.enter_context(scratch_directory(run.local))
    daemon = run.ending.enter_context(temporary_daemon(run.local, agents(*names)))
    run.begin(
        stores=f"on {filesystem_of(run.local)}",
        mounts=f"{len(names)}, as configured by default; all are there at every width",
        SQLite_variant="WAL, synchronous=FULL, busy timeout 60 s, three rows in one transaction a write",
        fdatasync_variant=f"8 KiB in place, one process, {SYNC_S:g} s before or after each width",
        rounds=f"{rounds} of {seconds:g} s, interleaved; figures are medians of rounds",
        fairness="writes of the slowest agent / of the fastest",
    )
    failures: dict[str, str] = {}
    pools: dict[str, list[Client]] = {}
    for variant in VARIANTS:
        clients = started_clients("benchmarks.write_ops", max(widths), os.environ)
        pools[variant] = run.ending.enter_context(clients)
    with breaking_off("avmfs", failures):
        pools["avmfs"][0].call("sync", BEGIN_S, folder=str(disk), start_ns=0, limit_s=0.1)  # the clients are up

    def one(width: int, variant: str, loop: int) -> Round:
        clients = pools[variant][:width]
        if variant == "fdatasync":
            return summarize(run_together(clients[:1], "sync", SYNC_S, [{"folder": str(disk)}]))
        for i, client in enumerate(clients):
            folder = f"{daemon.mountpoints[names[i]]}/memory/shared" if variant == "avmfs" else None
            client.send(
                "begin",
                {
                    "folder": folder,
                    "database": str(disk / "bare.db"),
                    "client": i,
                    "number": loop,
                    "at_first": AT_FIRST,
                },
            )
        for client in clients:
            client.receive_within(BEGIN_S)
        before = {role: processes.cpu_s(pids) for role, pids in roles.items()}
        found = summarize(run_together(clients, "write", seconds, [{} for _ in clients]))
        if variant == "avmfs":
            spent = {role: (processes.cpu_s(pids) - before[role]) * 1e6 / found.n for role, pids in roles.items()}
            cpu.setdefault(width, []).append(spent)
        return found

    roles = daemon.roles()
    cpu: dict[int, list[dict[str, float]]] = {}
    outcome = take_turns(rounds, widths, VARIANTS, failures, one)
    tables = [_table(outcome, widths), _disk(outcome, widths), _cpu(cpu)]
    return Findings(tables, _targets(outcome, widths), outcome.failures, _data(outcome, widths))


def _table(outcome: Outcome[int], widths: Sequence[int]) -> Table:
    columns = (
        "agents",
        "variant",
        "N",
        "total /s",
        "of one agent's",
        "median ms",
        "of rounds",
        "p99 ms",
        "max ms",
        "fairness",
        "x SQLite",
    )
    rows: list[Sequence[Value]] = []
    for width in widths:
        rows += [()] if rows else []
        for variant in VARIANTS[1:]:
            if (figure := outcome.figure(width, variant)) is not None:
                rows.append(
                    (
                        f"{width}",
                        variant,
                        figure.n,
                        figure.per_second,
                        outcome.ratio_median(width, variant, variant, widths[0]),
                        figure.median_us / 1e3,
                        figure.rounds,
                        figure.p99_us / 1e3,
                        figure.max_us / 1e3,
                        figure.fairness,
                        outcome.ratio_median(width, variant, "SQLite"),
                    )
                )
        if width in PUBLISHED:
            total, p99 = PUBLISHED[width]
            share = total / PUBLISHED[widths[0]][0] if widths[0] in PUBLISHED else None
            rows.append((f"{width}", "published", None, total, share, None, None, p99, None, None, None))
    return Table("agents that write at once, a mount each", columns, rows)


def _disk(outcome: Outcome[int], widths: Sequence[int]) -> Table:
    found = [(width, figure) for width in widths if (figure := outcome.figure(width, "fdatasync")) is not None]
    rows = [(f"{width}", one.n, one.median_us / 1e3, one.p99_us / 1e3, one.max_us / 1e3) for width, one in found]
    return Table("the disk alone: fdatasync", ("beside agents", "N", "median ms", "p99 ms", "max ms"), rows)


def _cpu(spent: Mapping[int, Sequence[Mapping[str, float]]]) -> Table:
    """What a write costs the daemon, whatever else the machine does: the median of rounds."""
    known = sorted({role for rounds in spent.values() for one in rounds for role in one})
    rows = []
    for width, rounds in spent.items():
        each = [statistics.median(one[role] for one in rounds) for role in known]
        rows.append((f"{width}", *each, sum(each)))
    return Table("CPU of the daemon's processes a write, us", ("agents", *known, "all"), rows)


def _targets(outcome: Outcome[int], widths: Sequence[int]) -> list[Target]:
    found: list[Target] = []
    syncs = [one.p99_us / 1e3 for width in widths for one in outcome.of(width, "fdatasync").values()]
    for width in widths:
        rounds = outcome.of(width, "avmfs").values()
        if width > 1:
            shares = outcome.ratios(width, "avmfs", "avmfs", 1) if 1 in widths else ()
            found.append(measured(f"{width} agents' total, of one agent's", shares, ">=", 0.6))
            found.append(measured(f"{width} agents: slowest of fastest", [one.fairness for one in rounds], ">=", 0.5))
        if width == 16 and syncs:
            bound = 20 + 3 * statistics.median(syncs)
            p99 = [one.p99_us / 1e3 for one in rounds]
            found.append(measured("16 agents' p99 in ms, of 20 + 3 x the p99 of fdatasync", p99, "<=", bound))
    return found


def _data(outcome: Outcome[int], widths: Sequence[int]) -> dict[str, object]:
    """For plots."""
    curves: dict[str, list[tuple[int, float, float]]] = {
        "published": [(width, *PUBLISHED[width]) for width in widths if width in PUBLISHED]
    }
    for variant in VARIANTS[1:]:
        figures = [(width, figure) for width in widths if (figure := outcome.figure(width, variant)) is not None]
        curves[variant] = [(width, figure.per_second, figure.p99_us / 1e3) for width, figure in figures]
    return {"agents, total per second, p99 in ms": curves}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_contention", "one round of a second")
    widths = [1, 2, 4, 8, 16]
    parser.add_argument("--agents", type=positive_numbers, default=widths, metavar="N,N", help="(1,2,4,8,16)")
    parser.add_argument("--seconds", type=float, metavar="S", help="5 a round, or 1 with --quick")
    return run_script("avmfs contention benchmark", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
