"""Writes from many client processes to the avmfs store beside bare SQLite, in one run.

    python -m benchmarks.bench_store [--quick] [--local DIR] [--json FILE]

Each client writes texts of 500 to 900 bytes as fast as it is answered: 30 % creates, 70 % updates.
The baseline is bare_sqlite.py: as many processes, one durable transaction a write, and the busy handler.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.clients import Client, breaking_off, run_together, started_clients
from benchmarks.figures import (
    BenchmarkError,
    Figure,
    Round,
    machine,
    names_among,
    over_rounds,
    positive_numbers,
    print_header,
    print_table,
    rotated,
    rounded,
    spread_of,
    summarize,
    write_json,
)
from benchmarks.harness import filesystem_of, scratch_directory, stop_on_terminate, temporary_daemon

VARIANTS = ("sqlite", "avmfs")
BASELINE = "sqlite"
CONNECT_S = 60.0

Cell = tuple[int, str]
"""(number of clients, variant)"""


@dataclass(frozen=True)
class Plan:
    variants: Sequence[str]
    clients: Sequence[int]
    rounds: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """Rounds by cell and number, and for each variant that broke, why."""

    rounds: Mapping[Cell, Mapping[int, Round]]
    failures: Mapping[str, str]

    def figure(self, cell: Cell) -> Figure | None:
        baseline = self.rounds.get((cell[0], BASELINE), {})
        return over_rounds(self.rounds[cell], baseline) if cell in self.rounds else None


def run(plan: Plan, database: Path, environments: Mapping[str, Mapping[str, str]]) -> Outcome:
    """Measure every cell; the variants take turns within a round. `environments` are their clients'."""
    rounds: dict[Cell, dict[int, Round]] = {}
    failures: dict[str, str] = {}
    with contextlib.ExitStack() as ending:
        pools: dict[str, list[Client]] = {}
        for variant in plan.variants:
            pool = ending.enter_context(
                started_clients("benchmarks.store_ops", max(plan.clients), environments[variant])
            )
            pools[variant] = pool
            with breaking_off(variant, failures):
                for i, client in enumerate(pool):
                    client.call("connect", CONNECT_S, variant=variant, client=i, database=str(database))
        for number in range(plan.rounds):
            for place, clients in enumerate(plan.clients):
                for variant in rotated(plan.variants, number + place):
                    if variant in failures:
                        continue
                    loop = number * len(plan.clients) + place
                    with breaking_off(variant, failures):
                        done = _measure(plan, pools[variant][:clients], loop)
                        rounds.setdefault((clients, variant), {})[number] = done
    return Outcome(rounds, failures)


def _measure(plan: Plan, clients: Sequence[Client], loop: int) -> Round:
    for client in clients:
        client.call("begin", CONNECT_S, number=loop)
    return summarize(run_together(clients, "write", plan.seconds, [{} for _ in clients]))


def report(plan: Plan, outcome: Outcome) -> None:
    milliseconds = ("median ms", "p99 ms", "max ms")
    columns = ("clients", "variant", "N", "ops/s", *milliseconds, "fairness", "x sqlite", "of rounds")
    rows: list[Sequence[str]] = []
    for clients in plan.clients:
        rows += [()] if rows else []
        for variant in plan.variants:
            figure = outcome.figure((clients, variant))
            if figure is not None:
                rows.append(_row(clients, variant, figure))
    print()
    print_table(columns, rows)
    for variant, reason in outcome.failures.items():
        print(f"\n{variant} broke off: {reason}")


def _row(clients: int, variant: str, figure: Figure) -> Sequence[str]:
    return (
        str(clients),
        variant,
        f"{figure.n:,}",
        rounded(figure.per_second),
        rounded(figure.median_us / 1e3),
        rounded(figure.p99_us / 1e3),
        rounded(figure.max_us / 1e3),
        f"{figure.fairness:.2f}",
        rounded(figure.ratio),
        spread_of(figure) if variant != BASELINE else "",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 1 when a variant broke off; 2 when the run could not start."""
    options = _parser().parse_args(arguments)
    plan = Plan(
        variants=[name for name in VARIANTS if name in {*options.variants, BASELINE}],
        clients=options.clients,
        rounds=options.rounds or (1 if options.quick else 3),
        seconds=options.seconds or (0.5 if options.quick else 5.0),
    )
    stop_on_terminate()
    try:
        with contextlib.ExitStack() as ending:
            local = options.local.resolve()
            database = ending.enter_context(scratch_directory(local)) / "bare.db"
            environments: dict[str, Mapping[str, str]] = {BASELINE: os.environ}
            if "avmfs" in plan.variants:
                environments["avmfs"] = ending.enter_context(temporary_daemon(local)).environment
            facts = {
                **machine(),
                "stores": f"on {filesystem_of(local)}",
                "sqlite variant": "WAL, synchronous=FULL, busy timeout 60 s, one transaction a write",
                "rounds": f"{plan.rounds} of {plan.seconds:g} s, interleaved; figures are medians of rounds",
                "fairness": "writes of the slowest client / of the fastest",
            }
            print_header("avmfs store benchmark", facts)
            sys.stdout.flush()
            outcome = run(plan, database, environments)
    except BenchmarkError as error:
        print(f"bench_store: {error}", file=sys.stderr)
        return 2
    report(plan, outcome)
    if options.json:
        write_json(options.json, {"benchmark": "store", "facts": facts, **_document(outcome)})
    return 1 if outcome.failures else 0


def _document(outcome: Outcome) -> dict[str, object]:
    results = [
        {"clients": cell[0], "variant": cell[1], **asdict(figure)}
        for cell in outcome.rounds
        if (figure := outcome.figure(cell)) is not None
    ]
    return {"results": results, "failures": dict(outcome.failures)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_store", description=(__doc__ or "").partition("\n")[0]
    )
    option = parser.add_argument
    option("--quick", action="store_true", help="one round of half a second: does it run, not how fast")
    option("--json", type=Path, metavar="FILE", help="write the figures there as well")
    option(
        "--local",
        type=Path,
        metavar="DIR",
        default=Path("/var/tmp"),
        help="where the stores lie (%(default)s)",
    )
    option("--variants", type=names_among(VARIANTS), default=VARIANTS, metavar="A,B", help=",".join(VARIANTS))
    option(
        "--clients",
        type=positive_numbers,
        default=(1, 4, 16),
        metavar="N,N",
        help="client processes (1,4,16)",
    )
    option("--rounds", type=int, metavar="N", help="3, or 1 with --quick")
    option("--seconds", type=float, metavar="S", help="5 a round, or 0.5 with --quick")
    return parser


if __name__ == "__main__":
    sys.exit(main())
