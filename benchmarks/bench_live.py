"""Live content: reads of other files beside readers of a source that hangs, and fetches for many readers at an expiry.

    python -m benchmarks.bench_live [--quick] [--local DIR] [--json FILE]

One daemon, two mounts. Alone and beside 20 readers of 20 paths of a hung source (10 through each mount), taking turns,
one program opens, reads and closes a note, and a live file that was fetched before. Then 100 threads, half of them
through each mount, read one path whose answer has just expired: what counts is how often its program was run.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.daemons import WORDS_ONLY, Daemon, agents, temporary_daemon
from benchmarks.figures import BenchmarkError
from benchmarks.harness import filesystem_of, scratch_directory
from benchmarks.results import Table, Target, Value, measured
from benchmarks.script import Findings, Run, options, run_script

READERS, CROWD = 20, 100
PATIENCE_S = 120.0
TTL_S = 2
READ = """
import json, sys, time
took = []
for _ in range(int(sys.argv[2])):
    begun = time.perf_counter_ns()
    with open(sys.argv[1], "rb", buffering=0) as file:
        file.read(4096)
    took.append(time.perf_counter_ns() - begun)
print(json.dumps(took))
"""
CROWDED = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
def read(number):
    with open(sys.argv[2 + number % (len(sys.argv) - 2)], "rb", buffering=0) as file:
        return file.read(4096).decode()
with ThreadPoolExecutor(int(sys.argv[1])) as pool:
    print(json.dumps(list(pool.map(read, range(int(sys.argv[1]))))))
"""


def program(code: str, *words: object) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode:
        raise BenchmarkError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout)


def until(what: str, done: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{what}: not within {PATIENCE_S:g} s")
        time.sleep(0.02)


def opened(gate: Path) -> bool:
    """Let go who has the pipe open by now; never the last step."""
    with contextlib.suppress(OSError):  # nobody has
        os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    return False


def all_ended(readers: list[subprocess.Popen[bytes]]) -> bool:
    return all(each.poll() is not None for each in readers)


@contextlib.contextmanager
def hanging(daemon: Daemon, place: Path, number: int) -> Iterator[None]:
    """Readers of a source that hangs until the end."""
    mounts = [*daemon.mountpoints.values()]
    paths = [mounts[n % len(mounts)] / f"live/hung/{number}-{n}" for n in range(READERS)]
    readers = [subprocess.Popen(["cat", path], stdout=subprocess.DEVNULL) for path in paths]
    try:
        until("the source is asked", lambda: len(list(place.glob(f"asked-{number}-*"))) >= 8)  # as many as it may be
        yield
        if any(each.poll() is not None for each in readers):
            raise BenchmarkError("a reader of the hung source has not waited")
    finally:
        until("readers of the hung source end", lambda: opened(place / "gate") or all_ended(readers))


def measure(run: Run) -> Findings:
    rounds, reads = (1, 50) if run.quick else (run.options.rounds or 5, 500)
    place = run.ending.enter_context(scratch_directory(run.local))
    os.mkfifo(place / "gate")
    hung = f"sh -c 'touch {place}/asked-$0; cat {place}/gate; echo on' ${{n}}"  # waits without work
    counted = f"sh -c 'sleep 0.3; echo x >> {place}/fetched; wc -l < {place}/fetched'"
    script: dict[str, Any] = {"handler": "script", "timeout_s": PATIENCE_S}
    providers = [
        {**script, "pattern": "/live/hung/{n}", "config": {"command": hung}},
        {**script, "pattern": "/live/kept", "config": {"command": "uptime"}, "ttl": 3600},
        {**script, "pattern": "/live/counted", "config": {"command": counted}, "ttl": TTL_S, "stale_s": 0},
    ]
    daemon = run.ending.enter_context(
        temporary_daemon(run.local, agents("alice", "bob"), {**WORDS_ONLY, "providers": providers})
    )
    alice, bob = daemon.mountpoints["alice"], daemon.mountpoints["bob"]
    program("import sys; open(sys.argv[1], 'w').write('a note'); print(0)", alice / "memory/note.md")
    run.begin(stores=f"on {filesystem_of(run.local)}", rounds=f"{rounds} of {reads} reads, interleaved")
    took: dict[tuple[str, bool], list[list[int]]] = {}
    for number in range(rounds):
        for name in ("memory/note.md", "live/kept"):
            program(READ, alice / name, 20)  # it has been looked at before
            took.setdefault((name, False), []).append(program(READ, alice / name, reads))
        with hanging(daemon, place, number):
            for name in ("memory/note.md", "live/kept"):
                took.setdefault((name, True), []).append(program(READ, alice / name, reads))
    rows: list[Sequence[Value]] = []
    targets = []
    for name in ("memory/note.md", "live/kept"):
        alone = [statistics.median(each) for each in took[name, False]]
        for beside in (False, True):
            pairs = zip(took[name, beside], alone, strict=True)
            ratios = [statistics.median(each) / first for each, first in pairs]
            all_of = sorted(each for one in took[name, beside] for each in one)
            median, p99 = (all_of[int(len(all_of) * share)] / 1e3 for share in (0.5, 0.99))
            rows.append((name, READERS if beside else 0, len(all_of), median, p99, statistics.median(ratios)))
        said = f"{name}: median beside {READERS} readers of a hung source, of alone"
        targets.append(measured(said, ratios, "<=", 1.5))
    fetched = [expired(place, alice, bob) for _ in range(1 if run.quick else 5)]
    targets.append(Target(f"fetches for {CROWD} readers at an expiry", max(fetched), "<=", 1))
    tables = [
        Table("reads of other files", ("file", "readers that hang", "N", "median us", "p99 us", "x alone"), rows),
        Table("readers at an expiry", ("readers", "times", "fetches each"), [(CROWD, len(fetched), max(fetched))]),
    ]
    return Findings(tables, targets)


def expired(place: Path, alice: Path, bob: Path) -> float:
    """Fetches for CROWD readers of an answer that has expired."""
    log = place / "fetched"
    program(CROWDED, 1, alice / "live/counted")
    before = len(log.read_text().splitlines())
    time.sleep(TTL_S + 0.5)
    said = set(program(CROWDED, CROWD, alice / "live/counted", bob / "live/counted"))
    if said != {f"{before + 1}\n"}:
        raise BenchmarkError(f"readers were shown {sorted(said)}, not answer {before + 1}")
    return float(len(log.read_text().splitlines()) - before)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_live", "one round of 50 reads")
    return run_script("avmfs live content benchmark", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
