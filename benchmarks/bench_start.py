"""How long programs take to start, beside an interpreter that does nothing, in one run.

    python -m benchmarks.bench_start [--quick] [--local DIR] [--json FILE]

Each program is started anew every time; the variants take turns. A command's time is until it has ended, a server's
until it has answered its first request. The column "cpu" is what the process itself used: it depends less on what else
the machine does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.figures import (
    BenchmarkError,
    machine,
    percentile,
    print_header,
    print_table,
    rotated,
    rounded,
    write_json,
)
from benchmarks.harness import filesystem_of, scratch_directory, stop_on_terminate, temporary_daemon

BASELINE = "python -c pass"
LIMIT_S = 60.0
AVM = "from avmfs.cli.main import main; main()"
MCP = "from avmfs.mcp.main import main; main()"
COMMANDS: Mapping[str, Sequence[str]] = {
    BASELINE: ["-c", "pass"],
    "avm --help": ["-c", AVM, "--help"],
    "avm read": ["-c", AVM, "-a", "bench", "read", "/memory/start.md"],
    "avm recall": ["-c", AVM, "-a", "bench", "recall", "what starts"],
    "import of the MCP SDK": ["-c", "from mcp.server.lowlevel.server import Server"],
}
SERVERS: Mapping[str, str] = {"avm-mcp, first answer": "initialize", "avm-mcp, list of tools": "tools/list"}
ALONE = {f"{name}, no daemon": name for name in ("avm read", "avm-mcp, first answer")}


@dataclass(frozen=True)
class Start:
    """One start: seconds of wall clock, and of CPU in the process itself."""

    wall_s: float
    cpu_s: float


def timed(name: str, environment: Mapping[str, str]) -> Start:
    """Start the program once. Raises BenchmarkError when it fails."""
    method = SERVERS.get(name)
    command = [sys.executable, *(COMMANDS[name] if method is None else ["-c", MCP, "--user", "bench"])]
    before = time.perf_counter()
    child = subprocess.Popen(
        command, env=dict(environment), cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    try:
        if method is None:
            child.stdin.close()
            child.stdout.read()
            _, status, usage = os.wait4(child.pid, 0)
            wall = time.perf_counter() - before
        else:
            for number, (asked, params) in enumerate(_requests(method)):
                child.stdin.write(
                    json.dumps({"jsonrpc": "2.0", "id": number, "method": asked, "params": params}).encode()
                )
                child.stdin.write(b"\n")
                child.stdin.flush()
                answer = json.loads(child.stdout.readline())
                if "result" not in answer:
                    raise BenchmarkError(f"{name}: {answer}")
            wall = time.perf_counter() - before
            child.stdin.close()
            child.stdout.read()
            _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise BenchmarkError(f"{name} ended with {child.returncode}: {child.stderr.read().decode()[-500:]}")
        return Start(wall, usage.ru_utime + usage.ru_stime)
    finally:
        if child.returncode is None:
            child.kill()
            child.wait()
        for pipe in (child.stdin, child.stdout, child.stderr):
            pipe.close()


def _requests(method: str) -> list[tuple[str, dict[str, object]]]:
    greeting: dict[str, object] = {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"},
    }  # fmt: skip
    return [("initialize", greeting), *([] if method == "initialize" else [(method, {})])]


def run(rounds: int, with_daemon: Mapping[str, str], without: Mapping[str, str]) -> dict[str, list[Start]]:
    """Every variant once a round, each round in another order; a first round is not counted."""
    names = [*COMMANDS, *SERVERS, *ALONE]
    found: dict[str, list[Start]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in rotated(names, number):
            start = timed(ALONE.get(name, name), without if name in ALONE else with_daemon)
            if number:
                found[name].append(start)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 rounds")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--local", type=Path, default=Path("/var/tmp"), help="a directory on the disk to use")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    stop_on_terminate()
    rounds = 3 if given.quick else given.rounds
    try:
        with temporary_daemon(given.local) as daemon, scratch_directory(given.local) as alone:
            (daemon.mountpoint / "memory/start.md").write_text("what starts has begun\n")
            folders = {f"AVM_{name}_DIR": str(alone / name) for name in ("CONFIG", "DATA", "RUNTIME")}
            without = {**daemon.environment, **folders}
            (alone / "CONFIG").mkdir()
            (alone / "CONFIG/config.yaml").write_text("embedding: {enabled: false}\n")
            _write_start(without)
            found = run(rounds, daemon.environment, without)
    except BenchmarkError as e:
        print(f"bench_start: {e}", file=sys.stderr)
        return 2
    print_header("start times", {**machine(), "disk": filesystem_of(given.local), "rounds": str(rounds)})
    base = statistics.median(each.cpu_s for each in found[BASELINE])
    rows = []
    for name, starts in found.items():
        wall = sorted(each.wall_s * 1e3 for each in starts)
        cpu = statistics.median(each.cpu_s for each in starts)
        rows.append(
            (name, rounded(statistics.median(wall)), rounded(wall[0]), rounded(percentile(wall, 0.99)),
             rounded(cpu * 1e3), f"{cpu / base:.1f}")
        )  # fmt: skip
    print_table(("program", "median ms", "best ms", "p99 ms", "cpu ms", "cpu / python"), rows)
    if given.json is not None:
        document = {name: [asdict(each) for each in starts] for name, starts in found.items()}
        write_json(given.json, {"machine": machine(), "starts": document})
    return 0


def _write_start(environment: Mapping[str, str]) -> None:
    """The file that `avm read` reads, in the store without a daemon."""
    command = [sys.executable, "-c", AVM, "-a", "bench", "write", "/memory/start.md", "what starts has begun"]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=LIMIT_S, cwd="/")
    if done.returncode:
        raise BenchmarkError(f"avm write: {done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
