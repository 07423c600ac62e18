"""ls -l, grep -r, find and git status over notes in a mount, beside ext4 and a C filesystem.

    python -m benchmarks.bench_programs [--quick] [--local DIR] [--json FILE]

The same files with the same git repository, packed, in every variant. Each program has run once before it is measured,
so that what may be cached is; a strict mount caches nothing. Starting the program is part of the time everywhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.clients import Client, breaking_off, run_together, started_clients
from benchmarks.daemons import agents, temporary_daemon
from benchmarks.figures import Round, summarize
from benchmarks.harness import filesystem_of, scratch_directory
from benchmarks.minifs import mounted_minifs
from benchmarks.results import Table, Value, measured
from benchmarks.rounds import take_turns
from benchmarks.script import Findings, Run, names_among, options, positive, run_script

VARIANTS = ("ext4", "C", "avmfs", "avmfs strict")
PROGRAMS = ("ls -l", "find", "grep -r", "git status")
TIMES = {"ls -l": 10, "find": 3, "grep -r": 2, "git status": 2}
PREPARE_S = 500.0
LIMIT_S = 60.0


def measure(run: Run) -> Findings:
    notes = run.options.notes or (300 if run.quick else 10_000)
    listed = 100 if run.quick else 1000
    rounds = run.options.rounds or (1 if run.quick else 3)
    variants: Sequence[str] = run.options.variants
    bases = _open(run, variants)
    disk = run.ending.enter_context(scratch_directory(run.local))
    run.begin(
        notes=f"{notes:,} of about 1 KB in 100 folders; ls -l of {listed:,} others; no xattrs",
        disk=filesystem_of(run.local),
        rounds=f"{rounds}, interleaved; figures are medians of rounds",
    )
    failures: dict[str, str] = {}
    pools: dict[str, Client] = {}
    filling: list[Sequence[Value]] = []
    source = str(disk / "source")
    for variant in variants:
        clients = started_clients("benchmarks.program_ops", 1, os.environ)
        [pools[variant]] = run.ending.enter_context(clients)
    with breaking_off("source", failures):
        pools[variants[0]].call("source", PREPARE_S, folder=source, notes=notes, listed=listed)
    for variant in variants:
        with breaking_off(variant, failures):
            round_ = _copied(pools[variant], source, _into(bases[variant]))
            filling.append((variant, notes + listed, round_, (notes + listed) / round_))

    def one(program: str, variant: str, loop: int) -> Round:
        arguments = {
            "program": program,
            "into": _into(bases[variant]),
            "times": TIMES[program],
            "notes": notes,
            "listed": listed,
        }
        run_together([pools[variant]], "run", LIMIT_S, [{**arguments, "times": 1}])
        return summarize(run_together([pools[variant]], "run", LIMIT_S, [arguments]))

    outcome = take_turns(rounds, PROGRAMS, variants, failures, one)
    rows: list[Sequence[Value]] = []
    for program in PROGRAMS:
        rows += [()] if rows else []
        for variant in variants:
            if (figure := outcome.figure(program, variant)) is not None:
                rows.append(
                    (
                        program,
                        variant,
                        figure.n,
                        figure.median_us / 1e3,
                        figure.rounds,
                        figure.max_us / 1e3,
                        outcome.ratio_median(program, variant, "ext4"),
                        outcome.ratio_median(program, variant, "C"),
                    )
                )
    tables = [
        Table("programs", ("program", "variant", "N", "median ms", "of rounds", "max ms", "x ext4", "x C"), rows),
        Table("making the files, cp -r and one git status", ("variant", "files", "seconds", "files/s"), filling),
    ]
    strict = outcome.ratios("ls -l", "avmfs strict", "C")
    targets = [measured("avmfs strict: ls -l of C", strict, ">=", 0.6)]
    return Findings(tables, targets, outcome.failures)


def _open(run: Run, variants: Sequence[str]) -> Mapping[str, Path]:
    bases: dict[str, Path] = {}
    if "ext4" in variants:
        bases["ext4"] = run.ending.enter_context(scratch_directory(run.local))
    if "C" in variants:
        bases["C"] = run.ending.enter_context(mounted_minifs())
    if any(variant.startswith("avmfs") for variant in variants):
        entries = agents("cached") + agents("strict", coherence="strict")
        daemon = run.ending.enter_context(temporary_daemon(run.local, entries))
        bases |= {"avmfs": daemon.mountpoints["cached"], "avmfs strict": daemon.mountpoints["strict"]}
    return bases


def _into(base: Path) -> str:
    """Two agents of one daemon must not have the same folder."""
    return f"{base}/memory/programs-{base.name}"


def _copied(client: Client, source: str, into: str) -> float:
    """Seconds that filling a variant took."""
    [timing] = run_together([client], "copy", PREPARE_S, [{"folder": source, "into": into}])
    return (timing.ended_ns - timing.started_ns) / 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_programs", "300 notes, one round")
    parser.add_argument("--notes", type=positive, metavar="N", help="10000, or 300 with --quick")
    parser.add_argument("--variants", type=names_among(VARIANTS), default=VARIANTS, metavar="A,B")
    return run_script("avmfs with programs", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
