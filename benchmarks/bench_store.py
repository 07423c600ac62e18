"""Writes from many client processes to the avmfs store beside bare SQLite, in one run.

    python -m benchmarks.bench_store [--quick] [--local DIR] [--json FILE]

Each client writes texts of 500 to 900 bytes as fast as it is answered: 30 % creates, 70 % updates. The avmfs side goes
through the daemon by the Python API. The baseline is bare_sqlite.py: as many processes, one durable transaction a
write, and the busy handler.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from benchmarks.clients import Client, breaking_off, run_together, started_clients
from benchmarks.daemons import agents, temporary_daemon
from benchmarks.figures import Round, summarize
from benchmarks.harness import filesystem_of, scratch_directory
from benchmarks.results import Table, Value
from benchmarks.rounds import take_turns
from benchmarks.script import Findings, Run, options, positive_numbers, run_script

VARIANTS = ("SQLite", "avmfs")
CONNECT_S = 60.0


def measure(run: Run) -> Findings:
    widths: Sequence[int] = run.options.clients
    rounds = run.options.rounds or (1 if run.quick else 3)
    seconds = run.options.seconds or (0.5 if run.quick else 5.0)
    database = run.ending.enter_context(scratch_directory(run.local)) / "bare.db"
    daemon = run.ending.enter_context(temporary_daemon(run.local, agents("bench")))
    environments: Mapping[str, Mapping[str, str]] = {"SQLite": os.environ, "avmfs": daemon.environment}
    run.begin(
        stores=f"on {filesystem_of(run.local)}",
        SQLite_variant="WAL, synchronous=FULL, busy timeout 60 s, one transaction a write",
        rounds=f"{rounds} of {seconds:g} s, interleaved; figures are medians of rounds",
        fairness="writes of the slowest client / of the fastest",
    )
    failures: dict[str, str] = {}
    pools: dict[str, list[Client]] = {}
    for variant in VARIANTS:
        clients = started_clients("benchmarks.store_ops", max(widths), environments[variant])
        pools[variant] = run.ending.enter_context(clients)
        with breaking_off(variant, failures):
            for i, client in enumerate(pools[variant]):
                client.call("connect", CONNECT_S, variant=variant, client=i, database=str(database))

    def one(width: int, variant: str, loop: int) -> Round:
        clients = pools[variant][:width]
        for client in clients:
            client.call("begin", CONNECT_S, number=loop)
        return summarize(run_together(clients, "write", seconds, [{} for _ in clients]))

    outcome = take_turns(rounds, widths, VARIANTS, failures, one)
    rows: list[Sequence[Value]] = []
    for width in widths:
        rows += [()] if rows else []
        for variant in VARIANTS:
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
                        figure.max_us / 1e3,
                        figure.fairness,
                        outcome.ratio_median(width, variant, "SQLite"),
                    )
                )
    columns = ("clients", "variant", "N", "ops/s", "median ms", "of rounds", "p99 ms", "max ms", "fairness", "x SQLite")
    return Findings([Table("writes from client processes", columns, rows)], failures=outcome.failures)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_store", "one round of half a second")
    parser.add_argument("--clients", type=positive_numbers, default=[1, 4, 16], metavar="N,N", help="(1,4,16)")
    parser.add_argument("--seconds", type=float, metavar="S", help="5 a round, or 0.5 with --quick")
    return run_script("avmfs store benchmark", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
