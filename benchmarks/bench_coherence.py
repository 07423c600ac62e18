"""What one mount has done, how soon and how surely others see it: races that try to break the promise.

    python -m benchmarks.bench_coherence [--quick] [--mounts 2,8] [--json FILE]

See race_ops.py for what is judged. ext4 (every "mount" the same directory) shows that the judge is right; loopback,
whose kernel caches are kept for a second as FUSE has it by default, that it can find a violation.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import race_ops
from benchmarks.clients import Client, breaking_off, started_clients
from benchmarks.daemons import agents, temporary_daemon
from benchmarks.figures import percentile
from benchmarks.harness import scratch_directory
from benchmarks.loopback import mounted_loopbacks
from benchmarks.race_ops import KINDS
from benchmarks.results import Table, Target, Value, measured
from benchmarks.script import Findings, Run, names_among, options, positive, positive_numbers, run_script

VARIANTS = ("ext4", "loopback", "avmfs", "avmfs strict")
CHECKS, QUICK_CHECKS = 20_000, 400
SHARE = {"ext4": 0.05, "loopback": 0.01, "avmfs": 1.0, "avmfs strict": 0.25}
"""Of the checks: the first two are there to judge the judge."""
SESSION_S = 240.0
GRACE_S = 60.0
BOARDS = Path("/dev/shm")


@dataclass(frozen=True)
class Races:
    """What all lookers of one kind of change found; `seen_after` in ms, ascending."""

    changes: int
    checks: int
    looks: int
    wrong: int
    late: int
    seen_after: Sequence[float]
    examples: Sequence[object]


def measure(run: Run) -> Findings:
    widths: Sequence[int] = run.options.mounts
    variants: Sequence[str] = run.options.variants
    checks = run.options.checks or (QUICK_CHECKS if run.quick else CHECKS)
    most = max(widths)
    places: dict[str, list[Path]] = {}
    for variant in variants:
        match variant:
            case "ext4":
                places[variant] = [run.ending.enter_context(scratch_directory(run.local))] * most
            case "loopback":
                places[variant] = run.ending.enter_context(mounted_loopbacks(most))
            case _:
                how = "strict" if variant == "avmfs strict" else "close-to-open"
                entries = agents(*(f"m{i}" for i in range(most)), coherence=how)
                daemon = run.ending.enter_context(temporary_daemon(run.local, entries))
                places[variant] = [point / "memory/shared" for point in daemon.mountpoints.values()]
    board = run.ending.enter_context(scratch_directory(BOARDS)) / "board"
    run.begin(
        checks=f"{checks:,} a width on avmfs: each looker's first look after each change; others "
        + ", ".join(f"{variant} x {SHARE[variant]:g}" for variant in variants if SHARE[variant] != 1),
        wrong="looks that began after a change was acknowledged and saw an older state",
        seen_after="from the acknowledgement to the end of the first right look, lookers pausing up to 0.2 ms",
        size="what stat() reports: may lag by milliseconds, but on strict mounts",
    )
    clients = run.ending.enter_context(started_clients("benchmarks.race_ops", most, os.environ))
    failures: dict[str, str] = {}
    found: dict[tuple[str, int, str], Races] = {}
    for width in widths:
        for place, kind in enumerate(run.options.kinds):
            for variant in variants:
                if variant in failures:
                    continue
                changes = max(4, int(checks * SHARE[variant] / len(run.options.kinds) / (width - 1)))
                with breaking_off(variant, failures):
                    folders = [f"{base}/race-{width}-{place}" for base in places[variant][:width]]
                    # Each mount has its turn as the one that changes.
                    turn = place % width
                    folders = folders[turn:] + folders[:turn]
                    found[variant, width, kind] = _races(kind, folders, clients[:width], board, changes)
    tables = [_table(found, variants, width) for width in widths]
    return Findings(tables, _targets(found, widths, checks), failures, {"examples": _examples(found)})


def _races(kind: str, folders: Sequence[str], clients: Sequence[Client], board: Path, changes: int) -> Races:
    race_ops.make_board(board)
    changer, *lookers = clients
    changer.call("prepare", GRACE_S, folder=folders[0], kind=kind)
    for number, client in enumerate(lookers):
        client.send("look", {"kind": kind, "folder": folders[number + 1], "board": str(board), "looker": number})
    time.sleep(0.05)  # lookers have looked before the first change
    changer.send(
        "change",
        {
            "kind": kind,
            "folder": folders[0],
            "board": str(board),
            "lookers": len(lookers),
            "changes": changes,
            "limit_s": SESSION_S,
        },
    )
    made = changer.receive_within(SESSION_S + GRACE_S)
    said = [client.receive_within(GRACE_S) for client in lookers]
    return Races(
        made,
        sum(one["checks"] for one in said),
        sum(one["looks"] for one in said),
        sum(one["wrong"] for one in said),
        sum(one["late"] for one in said),
        sorted(ns / 1e6 for one in said for ns in one["seen_after"]),
        [example for one in said for example in one["examples"]][: race_ops.EXAMPLES],
    )


def _table(found: Mapping[tuple[str, int, str], Races], variants: Sequence[str], width: int) -> Table:
    columns = ("change", "variant", "changes", "checks", "wrong", "still wrong after 2 s", "p50 ms", "p99 ms", "max ms")
    rows: list[Sequence[Value]] = []
    for kind in KINDS:
        some = [(variant, found[variant, width, kind]) for variant in variants if (variant, width, kind) in found]
        rows += [()] if rows and some else []
        for variant, races in some:
            after = races.seen_after
            times = [percentile(after, share) for share in (0.5, 0.99, 1)] if after else [None] * 3
            rows.append((kind, variant, races.changes, races.checks, races.wrong, races.late, *times))
    return Table(f"{width} mounts, one changes and {width - 1} look", columns, rows)


def _targets(found: Mapping[tuple[str, int, str], Races], widths: Sequence[int], checks: int) -> list[Target]:
    targets: list[Target] = []
    for width in widths:
        for variant, kinds in (("avmfs", [k for k in KINDS if KINDS[k].promised]), ("avmfs strict", list(KINDS))):
            some = [found[variant, width, kind] for kind in kinds if (variant, width, kind) in found]
            if some:
                wrong, of = sum(one.wrong for one in some), sum(one.checks for one in some)
                targets.append(Target(f"{variant}, {width} mounts: wrong of {of:,} checks", wrong, "<=", 0))
        if (sizes := found.get(("avmfs", width, "size"))) is not None and sizes.seen_after:
            what = f"avmfs, {width} mounts: p99 until stat() has the new size, ms"
            targets.append(measured(what, sizes.seen_after, "<=", 20, 0.99))
    if loopback := [races for (variant, _, _), races in found.items() if variant == "loopback"]:
        wrong = sum(races.wrong for races in loopback)
        targets.append(Target("the judge finds wrong looks on loopback", wrong, ">=", 1))
    if ext4 := [races for (variant, _, _), races in found.items() if variant == "ext4"]:
        targets.append(Target("the judge finds none on ext4", sum(races.wrong for races in ext4), "<=", 0))
    return targets


def _examples(found: Mapping[tuple[str, int, str], Races]) -> dict[str, object]:
    """[acknowledged, seen, begun] of wrong looks."""
    return {
        f"{variant}, {width}, {kind}": races.examples
        for (variant, width, kind), races in found.items()
        if races.examples
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_coherence", f"{QUICK_CHECKS} checks")
    parser.add_argument("--mounts", type=positive_numbers, default=[2, 8], metavar="N,N", help="widths (2,8)")
    parser.add_argument("--checks", type=positive, metavar="N", help=f"a width on avmfs ({CHECKS})")
    parser.add_argument("--variants", type=names_among(VARIANTS), default=VARIANTS, metavar="A,B")
    parser.add_argument("--kinds", type=_kinds, default=list(KINDS), metavar="A;B", help="; ".join(KINDS))
    return run_script("avmfs coherence benchmark", parser, measure, arguments)


def _kinds(text: str) -> list[str]:
    return (
        names_among(list(KINDS))(text)
        if ";" not in text and text in KINDS
        else [kind for kind in KINDS if kind in text.split(";")]
    )


if __name__ == "__main__":
    sys.exit(main())
