"""How long programs take to start, beside an interpreter that does nothing, in one run.

    python -m benchmarks.bench_start [--quick] [--embedding] [--programs A,B] [--local DIR] [--json FILE]

Each program is started anew every time; the variants take turns. A command's time is until it has ended, a server's
until it has answered its last request, a hook's until its client may go on. The column "cpu" is what the process itself
used: it depends less on what else the machine does. Bytecode is kept, as of an installed program, also where the
environment says otherwise: else it is the compiler that is measured.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from benchmarks.clients import breaking_off
from benchmarks.daemons import WORDS_ONLY, agents, temporary_daemon
from benchmarks.figures import BenchmarkError, Round, Timing, summarize
from benchmarks.harness import filesystem_of, scratch_directory
from benchmarks.results import Table, Value
from benchmarks.rounds import Outcome, take_turns
from benchmarks.script import Findings, Run, names_among, options, run_script

BASELINE = "python -c pass"
LIMIT_S = 60.0
WITH_MODEL: Mapping[str, object] = {"embedding": {"allow_download": False}}
NOTE = "/memory/start.md"
AVM = "from avmfs.cli.main import main; main()"
MCP = "from avmfs.mcp.main import main; main()"
COMMANDS: Mapping[str, Sequence[str]] = {
    BASELINE: ["-c", "pass"],
    "avm --help": ["-c", AVM, "--help"],
    "avm read": ["-c", AVM, "-a", "bench", "read", NOTE],
    "avm recall": ["-c", AVM, "-a", "bench", "recall", "what starts"],
    "avm tree": ["-c", AVM, "-a", "bench", "tree"],
    "import of the MCP SDK": ["-c", "from mcp.server.lowlevel.server import Server"],
}
_SESSION = {"session_id": "bench", "cwd": "/src/bench"}
_PROMPT = {**_SESSION, "prompt": "what starts?"}
HOOKS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "hook claude session-start": ("SessionStart", {**_SESSION, "source": "startup"}),
    "hook claude prompt": ("UserPromptSubmit", _PROMPT),
    "hook claude session-end": ("PostCompact", {**_SESSION, "trigger": "auto", "compact_summary": "It has started."}),
    "hook codex session-start": ("SessionStart", {**_SESSION, "source": "startup"}),
    "hook codex prompt": ("UserPromptSubmit", _PROMPT),
    "hook gemini session-start": ("SessionStart", {**_SESSION, "source": "startup"}),
    "hook gemini prompt": ("BeforeAgent", _PROMPT),
    "hook cursor session-start": ("sessionStart", {"conversation_id": "bench", "workspace_roots": ["/src/bench"]}),
}
"""What the client says of each event."""
SERVERS: Mapping[str, str] = {"avm-mcp: first answer": "initialize", "avm-mcp: list of tools": "tools/list"}
GREETING: Mapping[str, object] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}
ALONE = {f"{name} without daemon": name for name in ("avm read", "avm-mcp: first answer")}
PROGRAMS = (*COMMANDS, *SERVERS, *HOOKS, *ALONE)


def measure(run: Run) -> Findings:
    rounds = run.options.rounds or (1 if run.quick else 15)
    programs: Sequence[str] = [BASELINE, *(name for name in run.options.programs if name != BASELINE)]
    settings = WITH_MODEL if run.options.embedding else WORDS_ONLY
    daemon = run.ending.enter_context(temporary_daemon(run.local, agents("bench"), settings))
    alone = run.ending.enter_context(scratch_directory(run.local))
    folders = {f"AVM_{name}_DIR": alone / name for name in ("CONFIG", "DATA", "RUNTIME")}
    for folder in folders.values():
        folder.mkdir(mode=0o700)
    (alone / "CONFIG/config.yaml").write_text("embedding: {enabled: false}\n")
    without = {**daemon.environment, **{name: str(folder) for name, folder in folders.items()}}
    run.begin(
        disk=filesystem_of(run.local),
        rounds=f"{rounds}, interleaved, and one before them that warms the page cache; a round is one start of each",
        embeddings="the default model's" if run.options.embedding else "off",
        daemon="runs, its store has one note; 'without daemon': the program opens a store of its own",
    )
    for environment in (daemon.environment, without):
        _write_note(environment)
    failures: dict[str, str] = {}
    cpu: dict[str, list[float]] = {name: [] for name in programs}

    def started(name: str) -> Timing:
        timing, used = start(ALONE.get(name, name), without if name in ALONE else daemon.environment)
        cpu[name].append(used)
        return timing

    for name in programs:
        with breaking_off(name, failures):
            started(name)
        cpu[name].clear()

    def one(cell: str, name: str, loop: int) -> Round:
        return summarize([started(name)])

    outcome = take_turns(rounds, ["start"], programs, failures, one)
    return Findings([_table(outcome, programs, cpu)], failures=outcome.failures)


def start(name: str, environment: Mapping[str, str]) -> tuple[Timing, float]:
    """Start a program once: its time as one operation, and the seconds of CPU of the process itself. Raises
    BenchmarkError when it fails or takes longer than LIMIT_S."""
    method = SERVERS.get(name)
    if name in HOOKS:
        hook, client, event = name.split()
        arguments = ["-c", AVM, hook, "--client", client, "-a", "bench", event]
    else:
        arguments = list(COMMANDS[name]) if method is None else ["-c", MCP, "--user", "bench"]
    requests = [] if method is None else _requests(method)
    with tempfile.TemporaryFile() as complaints:
        before = time.monotonic_ns()
        with subprocess.Popen(
            [sys.executable, *arguments],
            env=_keeping_bytecode(environment),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
        ) as child:
            assert child.stdin is not None and child.stdout is not None
            guard = threading.Timer(LIMIT_S, child.kill)
            guard.start()
            try:
                for request in requests:
                    child.stdin.write(request)
                    child.stdin.flush()
                    answer = child.stdout.readline()
                    if b'"result"' not in answer:
                        raise BenchmarkError(f"{name} answers {answer[:500]!r}{_end(complaints)}")
                if name in HOOKS:
                    child.stdin.write(_said(name))
                answered = time.monotonic_ns()
                child.stdin.close()
                child.stdout.read()
                _, status, usage = os.wait4(child.pid, 0)
                ended = answered if requests else time.monotonic_ns()
                child.returncode = os.waitstatus_to_exitcode(status)
            except BrokenPipeError:
                raise BenchmarkError(f"{name} ended too early{_end(complaints)}") from None
            finally:
                guard.cancel()
                if child.returncode is None:
                    child.kill()
        if child.returncode:
            raise BenchmarkError(f"{name} ended with status {child.returncode}{_end(complaints)}")
    return Timing([ended - before], before, ended), usage.ru_utime + usage.ru_stime


@contextlib.contextmanager
def mcp_server(environment: Mapping[str, str]) -> Iterator[Callable[[str, Mapping[str, object]], bytes]]:
    """An avm-mcp of the agent "bench" that has been greeted; each call is one request, and the line it answers with."""
    with (
        tempfile.TemporaryFile() as complaints,
        subprocess.Popen(
            [sys.executable, "-c", MCP, "--user", "bench"],
            env=_keeping_bytecode(environment),
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
        ) as child,
    ):
        numbers = itertools.count()

        def call(method: str, params: Mapping[str, object]) -> bytes:
            assert child.stdin is not None and child.stdout is not None
            request = {"jsonrpc": "2.0", "id": next(numbers), "method": method, "params": params}
            guard = threading.Timer(LIMIT_S, child.kill)
            guard.start()
            try:
                child.stdin.write(json.dumps(request).encode() + b"\n")
                child.stdin.flush()
                answer = child.stdout.readline()
            except BrokenPipeError:
                answer = b""
            finally:
                guard.cancel()
            if b'"result"' not in answer or b'"isError":true' in answer.replace(b" ", b""):
                raise BenchmarkError(f"avm-mcp answers {answer[:500]!r} to {method}{_end(complaints)}")
            return answer

        try:
            call("initialize", GREETING)
            yield call
        finally:
            child.kill()


def _keeping_bytecode(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _end(complaints: IO[bytes]) -> str:
    complaints.seek(0)
    return ": " + complaints.read()[-500:].decode(errors="replace")


def _said(name: str) -> bytes:
    event, said = HOOKS[name]
    return json.dumps({"hook_event_name": event, **said}).encode()


def _requests(method: str) -> list[bytes]:
    """Lines; the greeting comes first."""
    asked = [("initialize", GREETING), *([] if method == "initialize" else [(method, {})])]
    return [
        json.dumps({"jsonrpc": "2.0", "id": number, "method": name, "params": params}).encode() + b"\n"
        for number, (name, params) in enumerate(asked)
    ]


def _table(outcome: Outcome[str], programs: Sequence[str], cpu: Mapping[str, Sequence[float]]) -> Table:
    base = outcome.of("start", BASELINE)
    rows: list[Sequence[Value]] = []
    for name in programs:
        found = outcome.of("start", name)
        if not found:
            continue
        times = sorted(one.median_us / 1e3 for one in found.values())
        ratios = [one.median_us / base[number].median_us for number, one in found.items() if number in base]
        used = statistics.median(cpu[name])
        rows.append(
            (
                name,
                len(times),
                statistics.median(times),
                times[0],
                times[-1],
                statistics.median(ratios) if ratios else None,
                used * 1e3,
                used / statistics.median(cpu[BASELINE]) if cpu[BASELINE] else None,
            )
        )
    columns = ("program", "N", "median ms", "least ms", "most ms", "times python", "cpu ms", "cpu, times python")
    return Table("from the start of a program to its end or its answer", columns, rows)


def _write_note(environment: Mapping[str, str]) -> None:
    """What `avm read` reads, by the program itself."""
    command = [sys.executable, "-c", AVM, "-a", "bench", "write", NOTE, "what starts has begun"]
    try:
        subprocess.run(command, env=dict(environment), capture_output=True, timeout=LIMIT_S, cwd="/", check=True)
    except subprocess.CalledProcessError as error:
        raise BenchmarkError(f"avm write: {error.stderr.decode(errors='replace')[-500:]}") from error
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"avm write: not done after {LIMIT_S:g} s") from error


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_start", "one start of each")
    parser.add_argument("--embedding", action="store_true", help="with the default model")
    parser.add_argument("--programs", type=names_among(PROGRAMS), default=PROGRAMS, metavar="A,B")
    return run_script("start times", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
