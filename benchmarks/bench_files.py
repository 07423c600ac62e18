"""Large files, appends, rewrites and wide directories through the mount, beside ext4 and a C filesystem.

    python -m benchmarks.bench_files [--quick] [--local DIR] [--json FILE]

A durable write of ext4 is one with fsync; what costs nothing there without it (an append, a rewrite) is durable at each
close on avmfs, so ratios to ext4 are given only where both sync.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import wide
from benchmarks.clients import Client, breaking_off, run_together, started_clients
from benchmarks.daemons import Daemon, agents, temporary_daemon
from benchmarks.figures import Round, summarize
from benchmarks.harness import filesystem_of, scratch_directory
from benchmarks.minifs import mounted_minifs
from benchmarks.results import Table, Value, measured
from benchmarks.rounds import Outcome, take_turns
from benchmarks.script import Findings, Run, options, run_script

VARIANTS = ("ext4", "C", "avmfs")
APPENDS = ("one", "many", "held")
LIMIT_S = 300.0
NOTE_BYTES = 4096
REWRITE_STEPS = 10


def measure(run: Run) -> Findings:
    rounds = run.options.rounds or (1 if run.quick else 3)
    mib = 8 if run.quick else 100
    appends = 60 if run.quick else 5000
    rewrites = 100 if run.quick else 10_000
    names = 1000 if run.quick else 100_000
    daemon = run.ending.enter_context(temporary_daemon(run.local, agents("bench")))
    bases = {
        "ext4": run.ending.enter_context(scratch_directory(run.local)),
        "C": run.ending.enter_context(mounted_minifs()),
        "avmfs": daemon.mountpoints["bench"] / "memory",
    }
    run.begin(
        disk=filesystem_of(run.local),
        rounds=f"{rounds} but for the rewrites, interleaved; a wide directory of its own each",
        large_file=f"{mib} MiB in pieces of 1 MiB, with fsync; read after dropping its pages",
        appends=f"{appends:,} of 100 bytes, open, write, close; 'held': by one handle",
        rewrites=f"{rewrites:,} of one note of {NOTE_BYTES} bytes, 40 of them changed each time",
    )
    failures: dict[str, str] = {}
    clients: dict[str, Client] = {}
    for variant in VARIANTS:
        [clients[variant]] = run.ending.enter_context(started_clients("benchmarks.file_ops", 1, os.environ))
    large = _large(rounds, mib, bases, clients, failures)
    appended = _appends(rounds, appends, bases, clients, failures)
    tables = [_large_table(large, mib), _append_table(appended)]
    one_of_many = appended.ratios("one", "avmfs", "avmfs", "many")
    targets = [measured("avmfs: appends to one file, of appends to many", one_of_many, ">=", 0.5)]
    with breaking_off("rewrites", failures):
        tables.append(_rewrites(clients["avmfs"], bases["avmfs"] / "rewritten", rewrites, daemon))
    with breaking_off("wide directory", failures):
        table, first_ms = _wide(rounds, bases, clients, names, daemon)
        tables.append(table)
        targets.append(measured(f"avmfs: ms to the first of {names:,} entries", first_ms, "<=", 1000.0))
    return Findings(tables, targets, failures)


def _large(
    rounds: int, mib: int, bases: Mapping[str, Path], clients: Mapping[str, Client], failures: dict[str, str]
) -> Outcome[str]:
    def one(what: str, variant: str, loop: int) -> Round:
        arguments = {"path": f"{bases[variant]}/large", "mib": mib}
        [timing] = run_together([clients[variant]], f"{what}_large", LIMIT_S, [arguments])
        found = summarize([timing])
        span_s = (timing.ended_ns - timing.started_ns) / 1e9
        return Round(found.n, found.median_us, found.p99_us, found.max_us, mib / span_s, 1.0)

    return take_turns(rounds, ("write", "read"), VARIANTS, failures, one)


def _large_table(outcome: Outcome[str], mib: int) -> Table:
    rows: list[Sequence[Value]] = []
    for what in ("write", "read"):
        for variant in VARIANTS:
            if (figure := outcome.figure(what, variant)) is not None:
                to_disk, to_c = (outcome.ratio_median(what, variant, other) for other in ("ext4", "C"))
                piece = (figure.median_us / 1e3, figure.rounds, figure.max_us / 1e3)
                rows.append((what, variant, figure.per_second, *piece, to_disk, to_c))
    columns = ("", "variant", "MiB/s", "median ms per MiB", "of rounds", "max ms per MiB", "x ext4", "x C")
    return Table(f"a file of {mib} MiB", columns, rows)


def _appends(
    rounds: int, n: int, bases: Mapping[str, Path], clients: Mapping[str, Client], failures: dict[str, str]
) -> Outcome[str]:
    """`n` appends in all to one file, to many and by a held handle; a share of each a round, so that all grow alike."""
    share = max(1, n // rounds)
    for variant in VARIANTS:
        with breaking_off(variant, failures):
            clients[variant].call("append_prepare", LIMIT_S, folder=f"{bases[variant]}/appended", files=n)

    def one(to: str, variant: str, loop: int) -> Round:
        first = loop // len(APPENDS) * share
        arguments = {"folder": f"{bases[variant]}/appended", "to": to, "files": n, "first": first, "n": share}
        return summarize(run_together([clients[variant]], "append", LIMIT_S, [arguments]))

    return take_turns(rounds, APPENDS, VARIANTS, failures, one)


def _append_table(outcome: Outcome[str]) -> Table:
    rows: list[Sequence[Value]] = []
    for to in APPENDS:
        for variant in VARIANTS:
            if (figure := outcome.figure(to, variant)) is not None:
                to_many = outcome.ratio_median(to, variant, variant, "many")
                times = (figure.median_us, figure.rounds, figure.p99_us, figure.per_second)
                rows.append((to, variant, figure.n, *times, to_many, outcome.ratio_median(to, variant, "C")))
    columns = ("appends to", "variant", "N", "median us", "of rounds", "p99 us", "ops/s", "x many", "x C")
    return Table("appends", columns, rows)


def _rewrites(client: Client, path: Path, n: int, daemon: Daemon) -> Table:
    """How the store's files grow. What the WAL has at most is a question of luck between steps, hence ten of them."""
    client.call("rewrite_prepare", LIMIT_S, path=str(path), size=NOTE_BYTES)
    rows: list[Sequence[Value]] = []
    done = 0
    before = _sizes(daemon)
    for _ in range(REWRITE_STEPS):
        share = n // REWRITE_STEPS
        arguments = {"path": str(path), "size": NOTE_BYTES, "n": share}
        found = summarize(run_together([client], "rewrite", LIMIT_S, [arguments]))
        done += found.n
        database, log = _sizes(daemon)
        grown = (database + log - sum(before)) / done
        rows.append((f"{done:,}", database / 2**20, log / 2**20, grown, found.per_second))
    columns = ("rewrites", "database MiB", "WAL MiB", "bytes grown a rewrite", "ops/s")
    return Table(f"rewrites of one note of {NOTE_BYTES} bytes, with their history", columns, rows)


def _sizes(daemon: Daemon) -> tuple[int, int]:
    """Of the database and its WAL, in bytes; never opened, only asked for."""
    database = next(daemon.data.glob("*.db"))
    log = database.with_name(f"{database.name}-wal")
    return database.stat().st_size, log.stat().st_size if log.exists() else 0


def _wide(
    rounds: int, bases: Mapping[str, Path], clients: Mapping[str, Client], names: int, daemon: Daemon
) -> tuple[Table, list[float]]:
    """With the milliseconds to the mount's first entry in each round, of a directory that nobody has listed before."""
    found: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for number in range(rounds):
        wide.fill(daemon, "bench", f"/memory/wide{number}", names)
        for variant in ("ext4", "C"):
            clients[variant].call("fill", LIMIT_S, folder=f"{bases[variant]}/wide{number}", first=0, count=names)
        for when in ("first", "again"):
            for variant in VARIANTS:
                arguments = {"folder": f"{bases[variant]}/wide{number}", "expected": names, "stat": when == "first"}
                found[when, variant].append(clients[variant].call("list_wide", LIMIT_S, **arguments))
    rows: list[Sequence[Value]] = []
    for (when, variant), listed in found.items():
        to_disk = [disk["whole_s"] / one["whole_s"] for disk, one in zip(found[when, "ext4"], listed, strict=True)]
        first, whole, looked = (
            statistics.median(one[what] for one in listed) * 1e3 for what in ("first_s", "whole_s", "stat_s")
        )
        rows.append((when, variant, first, whole, statistics.median(to_disk), looked or None))
    columns = ("listed", "variant", "ms to the first entry", "ms to the last", "x ext4", "ms to stat() each")
    first_ms = [one["first_s"] * 1e3 for one in found["first", "avmfs"]]
    return Table(f"a directory of {names:,} entries", columns, rows), first_ms


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_files", "8 MiB, 60 appends, 100 rewrites, 1,000 names")
    return run_script("avmfs with large files, logs and wide directories", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
