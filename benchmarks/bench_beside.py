"""Hot and uncached figures of one agent while others work: names that come and go, readers of a slow view.

    python -m benchmarks.bench_beside [--quick] [--local DIR] [--json FILE]

The others use another mount of the same daemon for names (create, rename and delete in turn, so many a second; in a
directory of their own, or "in it": in the one that is measured), and the measured mount itself for the view, `:help`
slowed down to 50 ms (plugin/sitecustomize.py).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.clients import REPLY_GRACE_S, START_DELAY_S, Client, breaking_off, started_clients
from benchmarks.daemons import agents, temporary_daemon
from benchmarks.figures import Round, Timing, summarize
from benchmarks.harness import ROOT, filesystem_of, scratch_directory
from benchmarks.minifs import compile_client, mounted_minifs
from benchmarks.mount_ops import FEW_NAMES, NAMES
from benchmarks.results import Table, Target, Value, measured
from benchmarks.rounds import take_turns
from benchmarks.script import Findings, Run, names_among, options, run_script

SLOW_MS = 50
OPERATIONS = ("stat", "read", "readdir")
VARIANTS = ("ext4", "C", "avmfs", "avmfs strict")
MOST = 4
PREPARE_S = 180.0


@dataclass(frozen=True)
class Others:
    """What goes on beside: names a second on another mount, perhaps in the directory that is measured; processes that
    read the slow view on the same mount."""

    names: int = 0
    here: bool = False
    viewers: int = 0

    def __str__(self) -> str:
        parts = [f"{self.names} names/s{' in it' if self.here else ''}"] if self.names else []
        parts += [f"{self.viewers} x {SLOW_MS} ms view"] if self.viewers else []
        return ", ".join(parts) or "nothing"


QUIET = Others()
CHURN = tuple(Others(names=names, here=here) for here in (False, True) for names in (10, 100))
VIEWS = (Others(viewers=1), Others(viewers=MOST))
BESIDE = (QUIET, *CHURN, *VIEWS)
Cell = tuple[str, Others]


def measure(run: Run) -> Findings:
    rounds = run.options.rounds or (1 if run.quick else 3)
    seconds = 0.3 if run.quick else 1.5
    names = FEW_NAMES if run.quick else NAMES
    environment = {"PYTHONPATH": str(ROOT / "benchmarks/plugin"), "AVM_BENCH_SLOW": f"help:{SLOW_MS}"}
    entries = agents("cached", "other") + agents("strict", coherence="strict")
    daemon = run.ending.enter_context(temporary_daemon(run.local, entries, environment=environment))
    bases = {
        "ext4": run.ending.enter_context(scratch_directory(run.local)),
        "C": run.ending.enter_context(mounted_minifs()),
        "avmfs": daemon.mountpoints["cached"],
        "avmfs strict": daemon.mountpoints["strict"],
    }
    run.begin(
        disk=filesystem_of(run.local),
        rounds=f"{rounds} of {seconds:g} s, interleaved; figures are medians of rounds",
        others="on avmfs only; ext4 and C are measured alone",
        readdir=f"{names:,} names listed and stat() of each",
    )
    failures: dict[str, str] = {}
    readers: dict[str, Client] = {}
    library = compile_client(run.ending.enter_context(scratch_directory(run.local)))
    for variant in VARIANTS:
        [readers[variant]] = run.ending.enter_context(started_clients("benchmarks.mount_ops", 1, os.environ))
        with breaking_off(variant, failures):
            readers[variant].call(
                "prepare",
                PREPARE_S,
                base=str(bases[variant]),
                prefix=_prefix(variant),
                client=0,
                names=names,
                database=None,
                servers=[],
                library=str(library) if library else None,
            )
    others = run.ending.enter_context(started_clients("benchmarks.beside_ops", MOST, os.environ))
    did: dict[Cell, list[float]] = {}

    def one(cell: Cell, variant: str, loop: int) -> Round | None:
        operation, beside = cell
        if beside is not QUIET and variant in ("ext4", "C"):
            return None
        start_ns = time.monotonic_ns() + int(START_DELAY_S * 1e9)
        when = {"start_ns": start_ns, "limit_s": seconds}
        busy = others[: max(beside.viewers, 1)]
        for client in busy:
            if beside.viewers:
                client.send("view", {"path": f"{bases[variant]}/:help", **when})
            elif beside.names:
                where = f"{_prefix(variant)}-names" if beside.here else "churn"
                folder = f"{daemon.mountpoints['other']}/memory/{where}"
                client.send("churn", {"folder": folder, "per_second": beside.names, **when})
            else:
                client.send("nothing", when)
        readers[variant].send("measure", {"operation": operation, "number": loop, "n": 1_000_000, **when})
        give_up = time.monotonic() + seconds + REPLY_GRACE_S
        found = summarize([Timing(*readers[variant].receive(give_up))])
        times = sum(client.receive(give_up) for client in busy)
        did.setdefault(cell, []).append(times / seconds)
        return found

    operations: Sequence[str] = run.options.ops
    cells = [(operation, beside) for operation in operations for beside in BESIDE]
    outcome = take_turns(rounds, cells, VARIANTS, failures, one)
    columns = (
        "operation",
        "beside",
        "variant",
        "N",
        "median us",
        "of rounds",
        "p99 us",
        "ops/s",
        "x alone",
        "x ext4",
        "x C",
        "others/s",
    )
    rows: list[Sequence[Value]] = []
    for cell in cells:
        rows += [()] if rows and cell[1] is QUIET else []
        alone = (cell[0], QUIET)
        for variant in VARIANTS:
            if (figure := outcome.figure(cell, variant)) is not None:
                rows.append(
                    (
                        cell[0],
                        str(cell[1]),
                        variant,
                        figure.n,
                        figure.median_us,
                        figure.rounds,
                        figure.p99_us,
                        figure.per_second,
                        outcome.ratio_median(cell, variant, variant, alone),
                        outcome.ratio_median(cell, variant, "ext4", alone),
                        outcome.ratio_median(cell, variant, "C", alone),
                        sum(did[cell]) / len(did[cell]) if cell[1] is not QUIET else None,
                    )
                )
    targets: list[Target] = []
    for beside in CHURN:  # alone the kernel answers: nothing of ours could miss it
        for operation, baseline, bound in (("stat", "ext4", 0.5), ("read", "C", 1.3), ("readdir", "ext4", 0.5)):
            if operation not in operations:
                continue
            values = outcome.ratios((operation, beside), "avmfs", baseline, (operation, QUIET))
            targets.append(measured(f"avmfs {operation}, beside {beside}, of {baseline}", values, ">=", bound))
    for beside in VIEWS:
        values = outcome.ratios(("stat", beside), "avmfs strict", "avmfs strict", ("stat", QUIET))
        targets.append(measured(f"avmfs strict stat, beside {beside}, of alone", values, ">=", 0.8))
    return Findings([Table("one client, others beside it", columns, rows)], targets, outcome.failures)


def _prefix(variant: str) -> str:
    """Of the names that a variant's client makes."""
    return f"beside-{VARIANTS.index(variant)}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_beside", "one round of 0.3 s")
    ops = OPERATIONS
    parser.add_argument("--ops", type=names_among(ops), default=ops, metavar="A,B", help=", ".join(ops))
    return run_script("avmfs beside others", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
