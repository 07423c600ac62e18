"""How long a client waits when a process of the daemon is killed: python -m benchmarks.bench_recovery

Kills a process again and again with SIGKILL under load and reports, per kill, the longest time that any system call of
any client took from then on. Windows of the same length without a kill take turns with those and are the baseline. Any
error of a client ends the run: with an exit status of 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from avmfs_daemon import control

from benchmarks.daemons import Daemon, agents, temporary_daemon
from benchmarks.figures import BenchmarkError, percentile
from benchmarks.harness import start_child, stop_on_terminate
from benchmarks.results import Report, Table, Value, machine, print_facts, print_findings, write_json

VICTIMS = ("child", "writer", "both")
WINDOW_S = {"child": 0.3, "writer": 0.8, "both": 0.8}
LIMIT_S = 60.0

CLIENT = """
import os, sys, time
place, kind, name = sys.argv[1:]
path = f"{place}/{name}"
with open(path, "w") as file:
    file.write("x" * 1024)
number = 0
while True:
    number += 1
    began = time.monotonic()
    if kind == "read":
        with open(path, "rb") as file:
            assert len(file.read()) == 1024
    else:
        with open(path, "w") as file:
            file.write(str(number) * 100)
    took = time.monotonic() - began
    if took > 0.002:
        print(began, took, flush=True)
    if kind == "write":
        time.sleep(0.002)
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """0; 1 when a client saw an error; 2 when the run could not start."""
    options = _parser().parse_args(arguments)
    stop_on_terminate()
    kills = options.kills or (5 if options.quick else 100)
    facts = {
        **machine(), "kills": f"{kills} of each victim, alternating with as many quiet windows",
        "clients": f"{options.clients} that read (open, read 1 KiB, close), {options.clients} that write and close",
    }  # fmt: skip
    document: dict[str, Any] = {}
    rows: list[Sequence[Value]] = []
    failures: list[str] = []
    try:
        print_facts("avmfs recovery benchmark", facts)
        for victim in options.victims:
            with temporary_daemon(options.local.resolve(), agents("bench")) as daemon:
                killed, quiet = _measure(daemon, victim, kills, options.clients, failures)
            if failures:
                break
            document[victim] = {"killed_s": killed, "quiet_s": quiet}
            rows += [_row(f"kill -9 of {victim}", killed), _row("  the same window without", quiet)]
    except (BenchmarkError, control.ControlError, control.NotRunning) as error:
        print(f"bench_recovery: {error}", file=sys.stderr)
        return 2
    report = Report(
        "recovery", "Recovery", "python -m benchmarks.bench_recovery", facts,
        [Table("longest wait of any client, ms", ("", "N", "median", "p90", "p99", "max"), rows)], data=document,
    )  # fmt: skip
    print_findings(report)
    for failure in failures:
        print(f"a client failed:\n{failure}", file=sys.stderr)
    if options.json:
        write_json(options.json, report)
    return 1 if failures else 0


def _measure(
    daemon: Daemon, victim: str, kills: int, clients: int, failures: list[str]
) -> tuple[list[float], list[float]]:
    """Seconds: the longest wait of each window that began with a kill, and of each that did not."""
    place = daemon.mountpoints["bench"] / "memory"
    home = daemon.data.parent
    outputs, running = [], []
    for number in range(2 * clients):
        output = home / f"client{number}"
        kind = ("read", "write")[number % 2]
        command = [sys.executable, "-c", CLIENT, str(place), kind, f"{kind}{number}"]
        running.append(start_child(command, output, os.environ))
        outputs.append(output)
    windows: list[tuple[bool, float, float]] = []
    try:
        time.sleep(1)
        for _ in range(kills):
            for kill in (True, False):
                pids = _ready(daemon.environment, victim)
                began = time.monotonic()
                if kill:
                    for pid in pids:
                        os.kill(pid, signal.SIGKILL)
                time.sleep(WINDOW_S[victim])
                if kill:
                    _ready(daemon.environment, victim)
                windows.append((kill, began, time.monotonic()))
            if any(client.poll() is not None for client in running):
                break
        time.sleep(0.2)
    finally:
        for client in running:
            _end(client)
    waits = []
    for output in outputs:
        lines = output.read_text().splitlines()
        numbers = [line.split() for line in lines if line[:1].isdigit()]
        waits += [(float(began), float(took)) for began, took in numbers]
        if len(numbers) < len(lines):
            failures.append("\n".join(line for line in lines if not line[:1].isdigit()))
    longest: dict[bool, list[float]] = {True: [], False: []}
    for kill, began, ended in windows:
        longest[kill].append(max((took for at, took in waits if at < ended and at + took > began), default=0.0))
    return sorted(longest[True]), sorted(longest[False])


def _ready(environment: Mapping[str, str], victim: str) -> list[int]:
    """The pids to kill, once they serve. Raises BenchmarkError."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found = control.ask(Path(environment["AVM_RUNTIME_DIR"]) / "control.sock", "status")
        (mount,), store = found["mounts"], found["store"]
        states = {"child": [mount["state"]], "writer": [store["writer_state"]]}
        pids = {"child": [mount["pid"]], "writer": [store["writer_pid"]]}
        wanted = ("child", "writer") if victim == "both" else (victim,)
        if all(state == "ready" for each in wanted for state in states[each]):
            return [pid for each in wanted for pid in pids[each]]
        time.sleep(0.01)
    raise BenchmarkError("the daemon does not recover")


def _end(client: subprocess.Popen[bytes]) -> None:
    client.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        client.wait(10)


def _row(what: str, waits: Sequence[float]) -> Sequence[Value]:
    figures = [percentile(waits, share) for share in (0.5, 0.9, 0.99)] + [waits[-1]]
    return (what, len(waits), *(round(1000 * figure, 1) for figure in figures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few kills")
    parser.add_argument("--kills", type=int, help="of each victim")
    parser.add_argument("--clients", type=int, default=2, help="of each kind")
    parser.add_argument("--victims", type=lambda text: text.split(","), default=VICTIMS, metavar=",".join(VICTIMS))
    parser.add_argument("--local", type=Path, default=Path("/var/tmp"), help="directory on the disk to use")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
