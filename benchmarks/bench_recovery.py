"""How long a client waits when a process of the daemon is killed.

    python -m benchmarks.bench_recovery [--victims child,writer,both] [--kills 100] [--quick]

Kills a process again and again with SIGKILL under load and reports, per kill, the longest time that any system call of
any client took from then on. Windows of the same length without a kill take turns with those and are the baseline. Any
error of a client, or one that hangs to the end, ends the run: with an exit status of 1.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from avmfs_daemon import control

from benchmarks.daemons import Daemon, agents, temporary_daemon
from benchmarks.figures import BenchmarkError, percentile
from benchmarks.harness import start_child
from benchmarks.results import Table, Value
from benchmarks.script import Findings, Run, names_among, options, positive, run_script

VICTIMS = ("child", "writer", "both")
WINDOW_S = {"child": 0.3, "writer": 0.8, "both": 0.8}
LIMIT_S = 60.0
HUNG_S = 10.0
"""A client that begins nothing for so long after the last window hangs."""

CLIENT = """
import os, struct, sys, time
place, kind, name, told = sys.argv[1:]
path = f"{place}/{name}"
told = os.open(told, os.O_WRONLY | os.O_CREAT)
with open(path, "w") as file:
    file.write("x" * 1024)
number = 0
while True:
    number += 1
    began = time.monotonic()
    os.pwrite(told, struct.pack("d", began), 0)
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


def measure(run: Run) -> Findings:
    kills: int = run.options.kills or (5 if run.quick else 100)
    clients: int = run.options.clients
    run.begin(
        kills=f"{kills} of each victim, alternating with as many quiet windows",
        clients=f"{clients} that read (open, read 1 KiB, close), {clients} that write and close",
    )
    data: dict[str, Any] = {}
    rows: list[Sequence[Value]] = []
    failures: dict[str, str] = {}
    for victim in run.options.victims:
        with temporary_daemon(run.local, agents("bench")) as daemon:
            killed, quiet, errors = _measure(daemon, victim, kills, clients)
        if errors:
            failures[f"kill -9 of {victim}"] = "\n".join(["a client failed:", *errors])
            break
        data[victim] = {"killed_s": killed, "quiet_s": quiet}
        rows += [_row(f"kill -9 of {victim}", killed), _row("  the same window without", quiet)]
    table = Table("longest wait of any client, ms", ("", "N", "median", "p90", "p99", "max"), rows)
    return Findings([table], failures=failures, data=data)


def _measure(daemon: Daemon, victim: str, kills: int, clients: int) -> tuple[list[float], list[float], list[str]]:
    """Seconds: the longest wait of each window that began with a kill, and of each that did not. Of clients that have
    failed, what they said."""
    place = daemon.mountpoints["bench"] / "memory"
    home = daemon.data.parent
    outputs, running = [], []
    for number in range(2 * clients):
        output = home / f"client{number}"
        kind = ("read", "write")[number % 2]
        command = [sys.executable, "-c", CLIENT, str(place), kind, f"{kind}{number}", f"{output}.began"]
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
        over = time.monotonic()
        while (now := time.monotonic()) < over + HUNG_S and min(map(_began, outputs)) < over:
            time.sleep(0.01)
    finally:
        for client in running:
            _end(client)
    waits, failures = [], []
    for output in outputs:
        lines = output.read_text().splitlines()
        numbers = [line.split() for line in lines if line[:1].isdigit()]
        waits += [(float(began), float(took)) for began, took in numbers]
        if len(numbers) < len(lines):
            failures.append("\n".join(line for line in lines if not line[:1].isdigit()))
        elif (began := _began(output)) < over:
            waits.append((began, now - began))
            failures.append(f"{output.name} hangs: what it began {now - began:.1f} s ago is not done")
    longest: dict[bool, list[float]] = {True: [], False: []}
    for kill, began, ended in windows:
        longest[kill].append(max((took for at, took in waits if at < ended and at + took > began), default=0.0))
    return sorted(longest[True]), sorted(longest[False]), failures


def _ready(environment: Mapping[str, str], victim: str) -> list[int]:
    """The pids to kill, once they serve. Raises BenchmarkError."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            found = control.ask(Path(environment["AVM_RUNTIME_DIR"]) / "control.sock", "status")
        except (control.ControlError, control.NotRunning) as error:
            raise BenchmarkError(f"the daemon does not answer: {error}") from error
        (mount,), store = found["mounts"], found["store"]
        states = {"child": [mount["state"]], "writer": [store["writer_state"]]}
        pids = {"child": [mount["pid"]], "writer": [store["writer_pid"]]}
        wanted = ("child", "writer") if victim == "both" else (victim,)
        if all(state == "ready" for each in wanted for state in states[each]):
            return [pid for each in wanted for pid in pids[each]]
        time.sleep(0.01)
    raise BenchmarkError("the daemon does not recover")


def _began(output: Path) -> float:
    """When a client's last operation began; 0: none has yet."""
    told = Path(f"{output}.began")
    return float(struct.unpack("d", told.read_bytes())[0]) if told.exists() and told.stat().st_size else 0.0


def _end(client: subprocess.Popen[bytes]) -> None:
    client.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        client.wait(10)


def _row(what: str, waits: Sequence[float]) -> Sequence[Value]:
    figures = [percentile(waits, share) for share in (0.5, 0.9, 0.99)] + [waits[-1]]
    return (what, len(waits), *(round(1000 * figure, 1) for figure in figures))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_recovery", "5 kills")
    parser.add_argument("--kills", type=positive, metavar="N", help="of each victim: 100, or 5 with --quick")
    parser.add_argument("--clients", type=positive, default=2, metavar="N", help="of each kind (%(default)s)")
    parser.add_argument("--victims", type=names_among(VICTIMS), default=VICTIMS, metavar="A,B", help=",".join(VICTIMS))
    return run_script("Recovery", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
