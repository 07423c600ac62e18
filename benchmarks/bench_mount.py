"""File operations through the avmfs mount beside a local disk, tmpfs and a minimal C filesystem, in one run.

    python -m benchmarks.bench_mount [--quick] [--avmfs MOUNTPOINT] [--local DIR] [--json FILE]

The baseline is minifs (cfs/minifs.c): one C thread on libfuse3, no kernel caching. A ratio above 1 is faster.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import mount_ops
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
from benchmarks.minifs import MOUNT_OPTIONS, mounted_minifs

DEFAULT_VARIANTS = ("local", "tmpfs", "minifs", "avmfs")
VARIANTS = (*DEFAULT_VARIANTS, "minifs2")
"""minifs2 is the baseline once more: how far its ratio strays from 1 is how far any ratio of the run may."""
BASELINE = "minifs"
MEMORY_DISK = Path("/dev/shm")
FULL = {"stat": 4000, "read": 2000, "overwrite": 1000, "create": 1000, "readdir": 5}
QUICK = {"stat": 400, "read": 200, "overwrite": 100, "create": 100, "readdir": 2}
PREPARE_S = 120.0

Cell = tuple[str, int, str]
"""(operation, number of clients, variant)"""


@dataclass(frozen=True)
class Plan:
    operations: Sequence[str]
    clients: Sequence[int]
    rounds: int
    n: Mapping[str, int]
    limit_s: float


@dataclass(frozen=True)
class Outcome:
    """Rounds by cell and number, and for each variant that broke, why."""

    rounds: Mapping[Cell, Mapping[int, Round]]
    failures: Mapping[str, str]

    def figure(self, cell: Cell) -> Figure | None:
        operation, clients, _ = cell
        baseline = self.rounds.get((operation, clients, BASELINE), {})
        return over_rounds(self.rounds[cell], baseline) if cell in self.rounds else None


def run(plan: Plan, bases: Mapping[str, Path], borrowed: bool) -> Outcome:
    """Measure every cell; the variants take turns within a round, so that a slow minute hits all of them.

    `borrowed` says that the avmfs mount is not ours, so that what is made there is removed again.
    """
    rounds: dict[Cell, dict[int, Round]] = {}
    failures: dict[str, str] = {}
    most = max(plan.clients)
    with contextlib.ExitStack() as ending:
        if borrowed:
            ending.callback(_clear, bases["avmfs"], failures)
        pools: dict[str, list[Client]] = {}
        for variant, base in bases.items():
            # A pool for each variant: a client stuck in one mount does not cost the others theirs.
            pools[variant] = ending.enter_context(started_clients("benchmarks.mount_ops", most, os.environ))
            with breaking_off(variant, failures):
                pools[variant][0].call("prepare", PREPARE_S, base=str(base), prefix=_prefix(), clients=most)
        cells = list(itertools.product(plan.clients, plan.operations))
        for number in range(plan.rounds):
            for place, (clients, operation) in enumerate(cells):
                for variant in rotated(list(bases), number + place):
                    if variant in failures:
                        continue
                    loop = number * len(cells) + place
                    with breaking_off(variant, failures):
                        done = _measure(plan, pools[variant][:clients], operation, bases[variant], loop)
                        rounds.setdefault((operation, clients, variant), {})[number] = done
    return Outcome(rounds, failures)


def _measure(plan: Plan, clients: Sequence[Client], operation: str, base: Path, loop: int) -> Round:
    each: list[dict[str, object]] = [
        {"base": str(base), "prefix": _prefix(), "client": i, "number": loop} for i in range(len(clients))
    ]
    n = plan.n[operation]
    loops = [{**own, "operation": operation, "n": n} for own in each]
    timings = run_together(clients, "measure", plan.limit_s, loops)
    if operation == "create":
        for client, own in zip(clients, each, strict=True):
            client.call("forget_created", PREPARE_S, **own)
    return summarize(timings)


def _clear(base: Path, failures: Mapping[str, str]) -> None:
    """Remove what a run made in a mount that is not ours; by a new client, for the others may be stuck."""
    if "avmfs" not in failures:
        with breaking_off("avmfs", {}), started_clients("benchmarks.mount_ops", 1, os.environ) as (client,):
            client.call("clear", PREPARE_S, base=str(base), prefix=_prefix())


def _prefix() -> str:
    return f"bench-{os.getpid()}"


def report(plan: Plan, outcome: Outcome, variants: Sequence[str]) -> None:
    """A table for each number of clients, the variants of an operation beside one another."""
    columns = ("operation", "variant", "N", "median us", "p99 us", "ops/s", "x minifs", "of rounds")
    for clients in plan.clients:
        rows: list[Sequence[str]] = []
        for operation in plan.operations:
            rows += [()] if rows else []
            for variant in variants:
                figure = outcome.figure((operation, clients, variant))
                if figure is not None:
                    rows.append(_row(operation, variant, figure))
        print(f"\n{clients} client process{'es' if clients > 1 else ''}")
        print_table(columns, rows)
    for variant, reason in outcome.failures.items():
        print(f"\n{variant} broke off: {reason}")


def _row(operation: str, variant: str, figure: Figure) -> Sequence[str]:
    return (
        operation,
        variant,
        f"{figure.n:,}",
        rounded(figure.median_us),
        rounded(figure.p99_us),
        rounded(figure.per_second),
        rounded(figure.ratio),
        spread_of(figure) if variant != BASELINE else "",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 1 when a variant broke off; 2 when the run could not start."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.one_cpu and options.avmfs:
        parser.error("--one-cpu cannot move the server behind --avmfs, so the ratios would compare nothing")
    variants = [name for name in VARIANTS if name in {*options.variants, BASELINE}]
    plan = Plan(
        operations=options.ops,
        clients=options.clients,
        rounds=options.rounds or (1 if options.quick else 3),
        n=QUICK if options.quick else FULL,
        limit_s=options.limit or (5.0 if options.quick else 30.0),
    )
    stop_on_terminate()
    if options.one_cpu:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    try:
        with contextlib.ExitStack() as ending:
            local = options.local.resolve()
            bases: dict[str, Path] = {}
            kinds: dict[str, str] = {}
            for variant in variants:
                base = _open_variant(variant, local, options.avmfs, ending)
                bases[variant] = base
                kinds[variant] = filesystem_of(base)
            facts = {
                **machine(),
                "variants": ", ".join(f"{name} ({kind})" for name, kind in kinds.items()),
                "minifs": f"-s -f -o {MOUNT_OPTIONS}, entry, attribute and negative timeouts 0",
                "N": ", ".join(f"{plan.n[name]:,} {name}" for name in plan.operations) + " a client and round",
                "rounds": f"{plan.rounds}, interleaved; figures are medians of rounds",
            }
            if options.one_cpu:
                facts["placement"] = "clients and servers together on one CPU"
            if "avmfs" in variants and options.avmfs is None:
                facts["store"] = f"on {filesystem_of(local)}"
            print_header("avmfs mount benchmark", facts)
            sys.stdout.flush()
            outcome = run(plan, bases, borrowed="avmfs" in bases and options.avmfs is not None)
    except BenchmarkError as error:
        print(f"bench_mount: {error}", file=sys.stderr)
        return 2
    report(plan, outcome, variants)
    if options.json:
        write_json(options.json, {"benchmark": "mount", "facts": facts, **_document(outcome)})
    return 1 if outcome.failures else 0


def _open_variant(variant: str, local: Path, avmfs: Path | None, ending: contextlib.ExitStack) -> Path:
    match variant:
        case "local":
            return ending.enter_context(scratch_directory(local))
        case "tmpfs":
            if not MEMORY_DISK.is_dir():
                raise BenchmarkError(f"no {MEMORY_DISK} here: leave tmpfs out with --variants")
            return ending.enter_context(scratch_directory(MEMORY_DISK))
        case "minifs" | "minifs2":
            return ending.enter_context(mounted_minifs())
        case _:
            if avmfs:
                return avmfs.absolute()  # resolve() would ask the mount
            return ending.enter_context(temporary_daemon(local)).mountpoint


def _document(outcome: Outcome) -> dict[str, object]:
    results = [
        {"operation": cell[0], "clients": cell[1], "variant": cell[2], **asdict(figure)}
        for cell in outcome.rounds
        if (figure := outcome.figure(cell)) is not None
    ]
    return {"results": results, "failures": dict(outcome.failures)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_mount", description=(__doc__ or "").partition("\n")[0]
    )
    option, ops = parser.add_argument, mount_ops.OPERATIONS
    option("--quick", action="store_true", help="one round of a tenth: does it run, not how fast")
    option("--json", type=Path, metavar="FILE", help="write the figures there as well")
    option("--avmfs", type=Path, metavar="DIR", help="an avmfs already mounted (else a daemon is started)")
    option(
        "--local",
        type=Path,
        metavar="DIR",
        default=Path("/var/tmp"),
        help="the disk, for the store too (%(default)s)",
    )
    option(
        "--variants",
        type=names_among(VARIANTS),
        default=DEFAULT_VARIANTS,
        metavar="A,B",
        help=",".join(VARIANTS),
    )
    option("--ops", type=names_among(ops), default=ops, metavar="A,B", help=",".join(ops))
    option("--clients", type=positive_numbers, default=(1, 4), metavar="N,N", help="client processes (1,4)")
    option("--rounds", type=int, metavar="N", help="3, or 1 with --quick")
    option("--one-cpu", action="store_true", help="everything this run starts shares one CPU (Linux)")
    option("--limit", type=float, metavar="S", help="seconds a loop may take before it is cut short")
    return parser


if __name__ == "__main__":
    sys.exit(main())
