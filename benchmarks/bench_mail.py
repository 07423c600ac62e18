"""Messages between agents: two shell scripts in conversation, how soon a waiter wakes, what waiters cost others.

    python -m benchmarks.bench_mail [--quick] [--messages N] [--local DIR] [--json FILE]

The baseline is the same script over named pipes, with each message appended to a file and synced before it is sent:
what two shells cost that talk as durably without avmfs. Both have their turns in one run.
"""

from __future__ import annotations

import itertools
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.clients import Client, breaking_off, run_together, started_clients
from benchmarks.daemons import WORDS_ONLY, Daemon, agents, temporary_daemon
from benchmarks.figures import BenchmarkError, percentile
from benchmarks.harness import scratch_directory
from benchmarks.results import Table, Target, Value, measured
from benchmarks.script import Findings, Run, options, positive, run_script

WAYS = ("fifo", "avmfs")
PAUSE_S = 0.005  # between two messages, for the waiter to wait again
LIMIT_S = 300.0
SETTINGS = {**WORDS_ONLY, "limits": {"messages_per_minute": 1_000_000}}


def measure(run: Run) -> Findings:
    count: int = run.options.messages or (40 if run.quick else 1000)
    rounds = run.options.rounds or (1 if run.quick else 3)
    waiters = 4 if run.quick else 40
    run.begin(
        conversation=f"{count} messages between two sh scripts, {rounds} times each way in turn",
        waking=f"{count} messages, each {PAUSE_S * 1000:g} ms after the one before",
        waiting=f"{waiters} processes in :inbox?wait= on the mount that another one works on",
    )
    failures: dict[str, str] = {}
    tables: list[Table] = []
    targets: list[Target] = []
    with temporary_daemon(run.local, agents("alice", "bob"), SETTINGS) as daemon, scratch_directory(run.local) as here:
        places = {"avmfs": _mounts(daemon), "fifo": _pipes(here)}
        with breaking_off("conversation", failures):
            table, wrong, ratios = _conversations(places, count, rounds)
            tables.append(table)
            targets.append(Target("messages lost, doubled or out of order, wrong of all", wrong, "<=", 0))
            targets.append(measured("a message between scripts, times the pipe's", ratios, "<=", 2.0))
        with breaking_off("waking", failures):
            tables.append(_waking(places, count))
        with breaking_off("waiting", failures):
            table, shares = _beside(daemon, waiters, 0.3 if run.quick else 3.0, 1 if run.quick else 5)
            tables.append(table)
            targets.append(measured(f"work beside {waiters} waiters, share of the same without", shares, ">=", 0.9))
    return Findings(tables, targets, failures)


def _mounts(daemon: Daemon) -> tuple[str, str]:
    return str(daemon.mountpoints["alice"]), str(daemon.mountpoints["bob"])


def _pipes(here: Path) -> tuple[str, str]:
    """Two directories; the pipe to each is the other one's ``to-NAME``."""
    for name, other in (("alice", "bob"), ("bob", "alice")):
        (here / name).mkdir(exist_ok=True)
        os.mkfifo(here / name / "to-me")
        (here / name / f"to-{other}").symlink_to(here / other / "to-me")
    return str(here / "alice"), str(here / "bob")


def _conversations(places: dict[str, tuple[str, str]], count: int, rounds: int) -> tuple[Table, int, list[float]]:
    """Per way: ms from one message's arrival to the next one's, which is sending it, waking and a shell's programs."""
    steps: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    wrong = 0
    for _ in range(rounds):
        for way in WAYS:
            heard, told = _talk(places[way], way, count)
            # The one who begins gets the even numbers, the other one the odd ones.
            wrong += _wrong(heard, range(2, count + 1, 2)) + _wrong(told, range(1, count + 1, 2))
            times = [at for _, at in sorted(heard + told)]
            steps[way].append([(after - before) / 1e6 for before, after in itertools.pairwise(times)])
    rows: list[Sequence[Value]] = []
    middle = {}
    for way in WAYS:
        each = [statistics.median(one) for one in steps[way]]
        ordered = sorted(value for one in steps[way] for value in one)
        middle[way] = statistics.median(each)
        rows.append((way, len(ordered), middle[way], percentile(ordered, 0.99), max(each) - min(each)))
    ratios = [
        statistics.median(ours) / statistics.median(base)
        for ours, base in zip(steps["avmfs"], steps["fifo"], strict=True)
    ]
    rows.append(("avmfs / fifo", None, statistics.median(ratios), None, max(ratios) - min(ratios)))
    columns = ("way", "N", "p50 ms", "p99 ms", "range of rounds' p50")
    return Table("two sh scripts in conversation, per message", columns, rows), wrong, ratios


def _wrong(got: list[list[int]], expected: Sequence[int]) -> int:
    """How many messages were lost, came twice or out of order."""
    numbers = [number for number, _ in got]
    return sum(a != b for a, b in itertools.zip_longest(numbers, expected))


def _talk(places: tuple[str, str], way: str, count: int) -> list[list[list[int]]]:
    """What each of the two got, the one who begins first."""
    with started_clients("benchmarks.mail_ops", 2, os.environ) as clients:
        for client, place, to, begins in zip(clients, places, ("bob", "alice"), ("first", "second"), strict=True):
            client.send(
                "talk",
                {
                    "place": place,
                    "way": way,
                    "to": to,
                    "count": count,
                    "begins": begins,
                    "limit_s": LIMIT_S,
                },
            )
        return [client.receive_within(LIMIT_S + 10) for client in clients]


def _waking(places: dict[str, tuple[str, str]], count: int) -> Table:
    rows: list[Sequence[Value]] = []
    for way in WAYS:
        with started_clients("benchmarks.mail_ops", 2, os.environ) as (sender, receiver):
            receiver.send("receive", {"place": places[way][1], "way": way, "count": count, "limit_s": LIMIT_S})
            sender.send(
                "send",
                {
                    "place": places[way][0],
                    "way": way,
                    "to": "bob",
                    "count": count,
                    "pause_s": PAUSE_S,
                },
            )
            took = sorted(each / 1e6 for each in sender.receive_within(LIMIT_S))
            arrived = sorted(each / 1e6 for each in receiver.receive_within(LIMIT_S + 10))
        if len(arrived) != count:
            raise BenchmarkError(f"{way}: {len(arrived)} of {count} messages came")
        rows.append(
            (
                way,
                count,
                percentile(took, 0.5),
                percentile(took, 0.99),
                percentile(arrived, 0.5),
                percentile(arrived, 0.99),
            )
        )
    columns = ("way", "N", "sent, p50 ms", "p99 ms", "read by the waiter, p50 ms", "p99 ms")
    return Table("from the beginning of a message's sending, without a shell", columns, rows)


def _beside(daemon: Daemon, waiters: int, seconds: float, rounds: int) -> tuple[Table, list[float]]:
    """Files written and read a second on one mount, alone and while others wait in its inbox, in turn."""
    place = str(daemon.mountpoints["bob"])
    alone, beside = [], []
    with started_clients("benchmarks.mail_ops", 1, os.environ) as [worker]:
        _rate(worker, place, seconds)  # the first has files to make
        for _ in range(rounds):
            alone.append(_rate(worker, place, seconds))
            with started_clients("benchmarks.mail_ops", waiters, os.environ) as parked:
                for client in parked:
                    client.send("park", {"place": place})
                _rate(worker, place, seconds / 3)  # they are there
                beside.append(_rate(worker, place, seconds))
                with started_clients("benchmarks.mail_ops", 1, os.environ) as [sender]:
                    sender.call(
                        "send",
                        LIMIT_S,
                        place=str(daemon.mountpoints["alice"]),
                        way="avmfs",
                        to="bob",
                        count=1,
                        pause_s=0.0,
                    )
                for client in parked:
                    client.receive_within(LIMIT_S)
                with started_clients("benchmarks.mail_ops", 1, os.environ) as [reader]:
                    reader.call("receive", LIMIT_S, place=place, way="avmfs", count=1, limit_s=LIMIT_S)
    shares = [b / a for a, b in zip(alone, beside, strict=True)]
    rows: list[Sequence[Value]] = [
        ("alone", rounds, statistics.median(alone)),
        (f"beside {waiters} waiters", rounds, statistics.median(beside)),
        ("share", None, statistics.median(shares)),
    ]
    return Table("small files written and read, a second", ("on one mount", "rounds", "median"), rows), shares


def _rate(worker: Client, place: str, seconds: float) -> float:
    (timing,) = run_together([worker], "busy", seconds, [{"place": place}])
    return len(timing.samples_ns) / ((timing.ended_ns - timing.started_ns) / 1e9)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_mail", "40 messages, 4 waiters")
    parser.add_argument("--messages", type=positive, metavar="N", help="of a conversation: 1000, or 40 with --quick")
    return run_script("messages between agents", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
