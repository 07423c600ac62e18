"""What permissions, quotas, audit and subscriptions cost agents that write at once, all of them together.

    python -m benchmarks.bench_guarded [--quick] [--local DIR] [--json FILE]

Two daemons, each with a mount for every agent, take turns within each round. "off" has a configuration that says
nothing of them, and chains its audit once an hour (rows of the log are always written). "on" has rules by pattern and
group, a quota of every kind for every agent, an API key for where is written, the audit as it is by default, and two
agents that are told of each change, one in batches and one throttled. The workload is bench_contention's.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks import processes
from benchmarks.clients import breaking_off, run_together, started_clients
from benchmarks.daemons import WORDS_ONLY, Daemon, agents, temporary_daemon
from benchmarks.figures import Round, summarize
from benchmarks.harness import filesystem_of
from benchmarks.results import Table, Value, measured
from benchmarks.rounds import take_turns
from benchmarks.script import Findings, Run, options, positive_numbers, run_script
from benchmarks.store_ops import AT_FIRST

OFF, ON = "off", "on"
BEGIN_S = 120.0
PLENTY = 10**12
QUOTA: Mapping[str, int] = {"nodes": PLENTY, "bytes": PLENTY, "history_bytes": PLENTY, "unread": 100}
EVERYTHING: Mapping[str, Any] = {
    "permissions": [
        {"pattern": "/memory/secret/*", "access": "none"},
        {"pattern": "/memory/read-only/*", "access": "ro"},
        {"pattern": "/memory/shared/*", "access": "rw", "groups": ["writers"]},
        {"pattern": "/memory/*", "access": "rw"},
    ],
    "default_access": "ro",
}


def measure(run: Run) -> Findings:
    widths: Sequence[int] = run.options.agents
    rounds = run.options.rounds or (1 if run.quick else 5)
    seconds = run.options.seconds or (1.0 if run.quick else 4.0)
    names = [f"w{i:02}" for i in range(max(widths))]
    settings: Mapping[str, Mapping[str, Any]] = {
        OFF: {**WORDS_ONLY, "audit": {"interval_s": 3600}},
        ON: {
            **WORDS_ONLY,
            **EVERYTHING,
            "agents": {name: {"groups": ["writers"], "quota": QUOTA} for name in names},
        },
    }
    daemons = {
        variant: run.ending.enter_context(temporary_daemon(run.local, agents(*names), given))
        for variant, given in settings.items()
    }
    run.ending.enter_context(_watched(daemons[ON]))
    run.begin(
        stores=f"on {filesystem_of(run.local)}",
        mounts=f"{len(names)} in each daemon",
        rounds=f"{rounds} of {seconds:g} s, interleaved; figures are medians of rounds",
    )
    failures: dict[str, str] = {}
    pools = {
        variant: run.ending.enter_context(started_clients("benchmarks.write_ops", max(widths), os.environ))
        for variant in daemons
    }
    roles = {variant: daemon.roles() for variant, daemon in daemons.items()}
    cpu: dict[str, list[float]] = {OFF: [], ON: []}

    def one(width: int, variant: str, loop: int) -> Round:
        clients = pools[variant][:width]
        for i, client in enumerate(clients):
            folder = f"{daemons[variant].mountpoints[names[i]]}/memory/shared"
            client.send(
                "begin",
                {
                    "folder": folder,
                    "database": None,
                    "client": i,
                    "number": loop,
                    "at_first": AT_FIRST,
                },
            )
        for client in clients:
            client.receive_within(BEGIN_S)
        pids = [pid for each in roles[variant].values() for pid in each]
        before = processes.cpu_s(pids)
        found = summarize(run_together(clients, "write", seconds, [{} for _ in clients]))
        if width == widths[-1]:
            cpu[variant].append((processes.cpu_s(pids) - before) * 1e6 / found.n)
        return found

    with breaking_off(ON, failures):
        outcome = take_turns(rounds, widths, (OFF, ON), failures, one)
    rows: list[Sequence[Value]] = []
    for width in widths:
        for variant in (OFF, ON):
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
                        outcome.ratio_median(width, variant, OFF),
                        statistics.median(cpu[variant]) if width == widths[-1] and cpu[variant] else None,
                    )
                )
    columns = ("agents", "all of it", "N", "writes/s", "median ms", "of rounds", "p99 ms", "x off", "CPU us a write")
    targets = [
        measured(f"{width} agents: writes with all of it on, of off", outcome.ratios(width, ON, OFF), ">=", 0.8)
        for width in widths
    ]
    return Findings([Table("agents that write at once", columns, rows)], targets, outcome.failures)


@contextlib.contextmanager
def _watched(daemon: Daemon) -> Iterator[None]:
    """A key for where is written, and two who are told of every change."""
    from avmfs.avm import AVM

    environment = {name: value for name, value in daemon.environment.items() if name != "AVM_AGENT"}
    with contextlib.ExitStack() as stack:
        for agent, mode in (("reader", "batched"), ("other", "throttled")):
            asker = stack.enter_context(AVM(agent=agent, environ=environment))
            asker.subscribe("/memory/shared/*", mode=mode)
        asker.create_api_key(paths=["/memory/shared/*"], actions=["read", "write", "search"])
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_guarded", "one round of a second")
    parser.add_argument("--agents", type=positive_numbers, default=[1, 8], metavar="N,N", help="(1,8)")
    parser.add_argument("--seconds", type=float, metavar="S", help="4 a round, or 1 with --quick")
    return run_script("avmfs guarded writes benchmark", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
