"""A real daemon with real mounts, and the hands to work with them.

Every wait and every program that is started has a time limit. An operation on a mount that hangs is ended by killing
the daemon, which makes the kernel answer it with an error.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from avmfs_config import find_paths
from avmfs_daemon import control

from tests import forked
from tests.faults.daemons import alive, began
from tests.log_lines import unexpected

LIMIT_S = 300.0
START_S = 300.0
STOP_S = 120.0
PORTABLE = os.environ.get("AVM_FRONT_END") == "portable"


def until(condition: Callable[[], Any], limit_s: float = LIMIT_S, *, every_s: float = 0.02) -> Any:
    """The condition's value once it is true. Fails after the limit."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s} s"
        time.sleep(every_s)
    return value


def rounds(count: int, *players: Callable[[int], object]) -> list[tuple[Any, ...]]:
    """``count`` rounds; in each all players start at once, when all have done the one before. Results by round."""
    barrier = threading.Barrier(len(players))

    def run(player: Callable[[int], object]) -> list[object]:
        results = []
        try:
            for number in range(count):
                barrier.wait(LIMIT_S)
                results.append(player(number))
        except BaseException:
            barrier.abort()
            raise
        return results

    with ThreadPoolExecutor(len(players)) as pool:
        return list(zip(*pool.map(run, players), strict=True))


def needs(*programs: str) -> pytest.MarkDecorator:
    """Skips the test, and says so, where one of these is not installed."""
    missing = [name for name in programs if shutil.which(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def linux_only(reason: str) -> pytest.MarkDecorator:
    """Skips the test, and says why, where the front end is the portable one."""
    return pytest.mark.skipif(PORTABLE, reason=reason)


def sh(
    command: str,
    *,
    cwd: Path | None = None,
    limit_s: float = LIMIT_S,
    check: bool = True,
    data: str | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run in bash; what it printed. Fails when its exit code is not 0, unless told not to."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        timeout=limit_s,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        input=data,
        env={**os.environ, "LC_ALL": "C.UTF-8", **(env or {})},
    )
    if check:
        assert done.returncode == 0, f"{command}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def python(code: str, *arguments: object, limit_s: float = LIMIT_S) -> str:
    """Run a program in a process of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(os.fspath, map(str, arguments))],
        timeout=limit_s,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def running(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python program while the block lasts, its stdin and stdout piped; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def line_from(process: subprocess.Popen[str], limit_s: float = LIMIT_S) -> str:
    """The next line that a program prints; killed if it prints none in time."""
    assert process.stdout is not None
    timer = threading.Timer(limit_s, process.kill)
    timer.start()
    try:
        return process.stdout.readline().strip()
    finally:
        timer.cancel()


def code_of(function: Callable[..., object], *arguments: Any) -> int | None:
    """The errno of the OSError that it raises, None where it does not."""
    try:
        function(*arguments)
    except OSError as e:
        return e.errno
    return None


def cat(path: Path | str) -> str:
    """A view or file to its end, as cat(1) reads it: to the read that returns nothing."""
    return cat_bytes(path).decode("utf-8", "surrogateescape")


def cat_bytes(path: Path | str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        pieces: list[bytes] = []
        while piece := os.read(descriptor, 131072):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def echo(text: str, path: Path | str) -> None:
    """What `echo text > path` does: truncates what is there, never creates a view."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def view(path: Path, suffix: str) -> Path:
    """``note.md`` and ``:meta`` -> ``note.md:meta``."""
    return path.with_name(path.name + suffix)


def release_claims(world: World, paths: Sequence[str]) -> None:
    """Ends what any agent holds of ``paths`` below its mount: who measures what stays has no lease that runs out."""
    for mount in world.mounts.values():
        for path in paths:
            with suppress(OSError):  # another's claim, or a file that this agent may not change
                echo("release", view(mount / path.lstrip("/"), ":claim"))


def meta(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cat(view(path, ":meta")))
    return found


@dataclass(frozen=True)
class Place:
    """A directory of one test's own, as both agents see it. ``path`` is its path in the mounts."""

    path: str
    alice: Path
    bob: Path


@dataclass
class World:
    """One daemon; ``mounts[agent]`` is where that agent's mount is. Everything lies below ``root``."""

    entries: Sequence[dict[str, Any]]
    settings: str = "embedding: {enabled: false}\n"
    root: Path = field(init=False)
    mounts: dict[str, Path] = field(init=False)
    process: forked.Forked | subprocess.Popen[bytes] | None = None
    ours: dict[int, str] = field(default_factory=dict)
    expected: list[str] = field(default_factory=list)  # parts of log lines that are no problem

    def __post_init__(self) -> None:
        # Not pytest's tmp_path: the paths of sockets are limited to 103 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="avmt-", dir="/tmp"))
        for name in ("config", "data", "run"):
            (self.root / name).mkdir()
        self.mounts = {}
        for entry in self.entries:
            mountpoint = self.root / entry["agent_id"]
            mountpoint.mkdir()
            entry["mountpoint"] = os.fspath(mountpoint)
            self.mounts[entry["agent_id"]] = mountpoint
        (self.root / "config/mounts.yaml").write_text(json.dumps({"mounts": list(self.entries)}))
        (self.root / "config/config.yaml").write_text(self.settings)

    @property
    def environ(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if name == "AVM_FRONT_END" or not name.startswith("AVM_")
        }
        return {
            **kept,
            "AVM_CONFIG_DIR": str(self.root / "config"),
            "AVM_DATA_DIR": str(self.root / "data"),
            "AVM_RUNTIME_DIR": str(self.root / "run"),
            "AVM_AUTOSTART": "0",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }

    def start(self) -> None:
        with open(self.root / "log", "ab") as log, open(os.devnull, "rb") as nothing:
            files = (nothing.fileno(), log.fileno(), log.fileno())
            self.process = forked.start("avmfs_daemon", ["start"], self.environ, self.root, files=files)
        try:
            until(self._ready, START_S)
        except AssertionError as e:
            raise AssertionError(f"the mounts are not ready: {e}\n{self.log()[-8000:]}") from None
        self.note_pids()

    def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the daemon ended:\n{self.log()}"
        found = self.status()
        states = [mount["state"] for mount in found["mounts"]] if found is not None else []
        return states == ["ready"] * len(self.entries)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        done = forked.run("avmfs_daemon", arguments, self.environ, self.root, timeout=LIMIT_S)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def status(self) -> dict[str, Any] | None:
        """What the daemon says of itself, None while it says nothing."""
        with suppress(control.NotRunning, control.ControlError):
            found: dict[str, Any] = control.reached(find_paths(self.environ), lambda path: control.ask(path, "status"))
            return found
        return None

    def log(self) -> str:
        return (self.root / "log").read_text(errors="replace")

    def note_pids(self) -> None:
        """Remember the daemon's processes, with their start times: the only ones that may ever be killed."""
        if self.process is None or self.process.poll() is not None:
            return
        wanted = [self.process.pid]
        while wanted:
            pid = wanted.pop()
            if (born := _born(pid)) is not None:
                self.ours[pid] = born
                wanted += _children(pid)

    def left(self) -> list[int]:
        """Processes of the daemon that still run."""
        return [pid for pid, born in self.ours.items() if _born(pid) == born]

    def mounted(self) -> list[str]:
        """Mountpoints below the root, from the kernel's table; never touches them."""
        with open("/proc/self/mounts") as table:
            return [line.split()[1] for line in table if line.split()[1].startswith(f"{self.root}/")]

    def kill(self) -> None:
        """The daemon and all that it started, at once."""
        self.note_pids()
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(STOP_S)

    def end(self) -> None:
        """Stop the daemon and take everything away. Fails when something stayed or went wrong on the way."""
        problems: list[str] = []
        try:
            if self.process is not None:
                self.note_pids()
                try:
                    self.command("stop")
                    code = self.process.wait(STOP_S)
                    problems += [f"the daemon ended with {code}"] if code else []
                except subprocess.TimeoutExpired:
                    problems.append("the daemon did not stop")
                problems += [f"process {pid} is left" for pid in self.left()]
            problems += [f"{path} is still mounted" for path in self.mounted()]
            log = self.log() if self.process is not None else ""
            problems += [f"log: {line}" for line in unexpected(log, self.expected)]
            if problems:
                problems.append(log[-8000:])
        finally:
            self.kill()
            for path in self.mounted():
                subprocess.run(["fusermount3", "-uz", path], timeout=LIMIT_S, check=False, capture_output=True)
            if not self.mounted():
                shutil.rmtree(self.root)
        assert not problems, "\n".join(problems)


class OnTwoHosts(World):
    """bob's mount is another daemon's, with a home and a copy of the store of its own; ``log`` is what makes them one.
    Mounts are strict, or who is told of something on one host might look before it has come to the other."""

    def __init__(self, entries: Sequence[dict[str, Any]], settings: str, log: str) -> None:
        kept = [{**entry, "coherence": "strict"} for entry in entries]
        shared = f"store: {{log: '{log}', host: %s}}\n"
        there = [entry for entry in kept if entry["agent_id"] == "bob"]
        super().__init__([entry for entry in kept if entry not in there], settings + shared % "a")
        self.other = World(there, settings + shared % "b")
        self.mounts.update(self.other.mounts)

    def start(self) -> None:
        self.join(self, "init")
        super().start()
        self.join(self.other, "join")
        self.other.start()

    def join(self, world: World, how: str) -> None:
        done = forked.run("avmfs.cli", ["cluster", how], world.environ, world.root, timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr

    def kill(self) -> None:
        self.other.kill()
        super().kill()

    def end(self) -> None:
        self.other.expected = self.expected
        try:
            self.other.end()
        finally:
            super().end()


def housekeeping_is_done(world: World, sharing: str) -> bool:
    """What has expired is gone, which those who saw it see in every number that changes then; and what ``sharing`` lets
    everybody learn is told. The keeper gets to both within half a minute: who compares what an agent is shown before
    and after something else waits for it first."""
    database = world.root / "data/avm.db"
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        [expired] = db.execute("select count(*) from node where expires <= ?", (time.time_ns(),)).fetchone()
        [told] = db.execute("select count(*) from digest where agent = ?", (sharing,)).fetchone()
    return bool(expired == 0 and told == 1)


def quoted(path: Path | str) -> str:
    return shlex.quote(os.fspath(path))


def _born(pid: int) -> str | None:
    """When a process started, in ticks since boot; None for one that is gone or a zombie."""
    return began(pid) if alive(pid) else None


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, task.read_text().split())
    return found
