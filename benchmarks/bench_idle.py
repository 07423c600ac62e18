"""What a daemon costs that has nothing to do: CPU, memory, time to start; and a child that has shown many nodes.

    python -m benchmarks.bench_idle [--quick] [--local DIR] [--json FILE]

CPU is of all the daemon's processes together, by the kernel's per-process clocks, as a share of one core; nobody
touches the mounts meanwhile. Linux only.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks import processes, wide
from benchmarks.clients import breaking_off, started_clients
from benchmarks.daemons import WORDS_ONLY, Daemon, agents, temporary_daemon, until_loaded
from benchmarks.results import Table, Target, Value, measured
from benchmarks.script import Findings, Run, options, positive, run_script

SETTLE_S = 2.0
LOOK_S = 300.0


def measure(run: Run) -> Findings:
    count: int = run.options.mounts
    seconds, looks = (2.0, 1) if run.quick else (20.0, 3)
    nodes: int = run.options.nodes or (1000 if run.quick else 100_000)
    rounds = run.options.rounds or (1 if run.quick else 5)
    run.begin(
        mounts=f"{count}, as configured by default; embeddings "
        + ("on" if run.options.embedding else "off (--embedding loads the model)"),
        idle=f"{looks} times {seconds:g} s, {SETTLE_S:g} s after the mounts were ready",
        start=f"10 mounts, {rounds} times, store and page cache warm but the first: until stat() of each root returned",
    )
    settings = {} if run.options.embedding else WORDS_ONLY
    failures: dict[str, str] = {}
    tables: list[Table] = []
    targets: list[Target] = []
    with breaking_off("idle", failures), temporary_daemon(run.local, agents(*_names(count)), settings) as daemon:
        time.sleep(SETTLE_S)
        if run.options.embedding:
            until_loaded(daemon, vectors=False)
        table, shares = _idle(daemon, seconds, looks)
        tables += [table, _memory(daemon)]
        targets.append(measured(f"CPU of an idle daemon with {count} mounts, %", shares, "<=", 0.5))
    with breaking_off("start", failures):
        starts = sorted(_start(run, settings) for _ in range(rounds))
        middle = starts[len(starts) // 2]
        columns = ("mounts", "N", "median s", "least s", "most s")
        tables.append(
            Table(
                "from starting the daemon to ten mounts that answer",
                columns,
                [("10", len(starts), middle, starts[0], starts[-1])],
            )
        )
    with breaking_off("nodes", failures), temporary_daemon(run.local, agents("bench"), settings) as daemon:
        tables.append(_served(daemon, nodes))
    return Findings(tables, targets, failures)


def _names(count: int) -> list[str]:
    return [f"idle{i:02}" for i in range(count)]


def _idle(daemon: Daemon, seconds: float, looks: int) -> tuple[Table, list[float]]:
    """Percent of one core by role, the median of looks, and of all in each look."""
    roles = daemon.roles()
    seen: list[dict[str, float]] = []
    for _ in range(looks):
        before = {role: processes.cpu_s(pids) for role, pids in roles.items()}
        begun = time.monotonic()
        time.sleep(seconds)
        lasted = time.monotonic() - begun
        seen.append({role: (processes.cpu_s(pids) - before[role]) / lasted * 100 for role, pids in roles.items()})
    rows: list[Sequence[Value]] = []
    for role, pids in roles.items():
        share = statistics.median(one[role] for one in seen)
        rows.append((role, len(pids), share, share / len(pids)))
    every = [sum(one.values()) for one in seen]
    rows.append(("all", sum(map(len, roles.values())), statistics.median(every), None))
    return Table("CPU of an idle daemon", ("processes", "how many", "% of a core", "% each"), rows), every


def _memory(daemon: Daemon) -> Table:
    rows: list[Sequence[Value]] = []
    total = 0.0
    for role, pids in daemon.roles().items():
        each = [processes.memory(pid) for pid in pids]
        proportional = [one.proportional for one in each]
        total += sum(proportional)
        n = len(each)
        resident, private = sum(one.resident for one in each) / n, sum(one.private for one in each) / n
        rows.append((role, n, resident, sum(proportional) / n, max(proportional), private))
    rows.append(("all together", None, None, total, None, None))
    columns = ("processes", "how many", "resident MiB", "proportional MiB", "at most", "private MiB")
    return Table("memory of an idle daemon, a process on average", columns, rows)


def _start(run: Run, settings: Mapping[str, object]) -> float:
    """Seconds from starting the process to the last of ten roots that answered a stat()."""
    with started_clients("benchmarks.idle_ops", 1, os.environ) as (client,):
        # The client waits for each mountpoint to be a mount, which takes no help from the daemon.
        entries = agents(*_names(10))
        with temporary_daemon(
            run.local,
            entries,
            settings,
            on_start=lambda points: client.send(
                "until_mounted", {"mountpoints": [str(point) for point in points], "limit_s": LOOK_S}
            ),
        ) as daemon:
            answered_ns: int = client.receive_within(LOOK_S)
            return answered_ns / 1e9 - daemon.started


def _served(daemon: Daemon, nodes: int) -> Table:
    """A child's memory before anything, after `nodes` nodes have been listed and looked up, and after a while."""
    [pid] = daemon.roles()["mount"]
    rows: list[Sequence[Value]] = []

    def note(when: str) -> None:
        now = processes.memory(pid)
        rows.append((when, now.resident, now.proportional, now.private))

    note("before")
    wide.fill(daemon, "bench", "/memory/wide", nodes)
    note(f"{nodes:,} files made by others")
    with started_clients("benchmarks.file_ops", 1, os.environ) as (client,):
        folder = f"{daemon.mountpoints['bench']}/memory/wide"
        client.call("list_wide", LOOK_S, folder=folder, expected=nodes, stat=True)
        note("listed, and each looked up")
        client.call("list_wide", LOOK_S, folder=folder, expected=nodes, stat=True)
        note("once more")
    columns = ("a mount's child", "resident MiB", "proportional MiB", "private MiB")
    return Table(f"after serving {nodes:,} nodes", columns, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_idle", "2 s, 1,000 nodes")
    parser.add_argument("--mounts", type=positive, default=16, metavar="N", help="of the idle daemon (%(default)s)")
    parser.add_argument("--nodes", type=positive, metavar="N", help="that a child shows: 100000, or 1000 with --quick")
    parser.add_argument("--embedding", action="store_true", help="with the model, as configured by default")
    return run_script("avmfs at rest", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
