"""What tests of the daemon share: one configuration, its processes and mounts, and waiting with a limit."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from avmfs_config import find_paths
from avmfs_daemon import control, mountpoint

from avmfs.rpc.client import RemoteDoor
from tests import forked

REPOSITORY = Path(__file__).parents[2]
QUIET = "embedding: {enabled: false}\n"


# Parts of log lines, for pytest.mark.logs: what the daemon says when a test kills one of its processes.
KILLED = "ended: killed by SIGKILL"
FORK_SERVER_KILLED = "ended: ended with status 255"
HOLDER_KILLED = "the holder has ended: starting another one"

LIMIT_S = 500.0
"""Guards against what never happens; on a busy machine everything takes its time."""
SOON_S = 25.0
"""For what happens at once, and would otherwise only when some other limit is over."""


def wait(condition: Callable[[], Any], limit_s: float = LIMIT_S) -> float:
    """Seconds until the condition held. It is asked ever more rarely, and no more than half of the time: what it asks
    has the machine to itself meanwhile."""
    started = asked = time.monotonic()
    while not condition():
        elapsed = (now := time.monotonic()) - started
        assert elapsed < limit_s, "nothing happened in time"
        time.sleep(max(min(0.05, 0.005 + elapsed / 20), now - asked))
        asked = time.monotonic()
    return time.monotonic() - started


def alive(pid: int) -> bool:
    """Or ending: as long as a thread of it does, it holds its files and locks."""
    with contextlib.suppress(OSError, IndexError):
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" or len(os.listdir(f"/proc/{pid}/task")) > 1
    return False


def began(pid: int) -> str | None:
    """When a process did, in ticks of the kernel's: its number may be somebody else's later."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return None


class Pids:
    """Processes, by number, of which those that have ended are none any more: numbers come round within minutes."""

    def __init__(self) -> None:
        self._began: dict[int, str] = {}

    def add(self, *pids: int) -> None:
        self._began |= {pid: at for pid in pids if (at := began(pid)) is not None}

    def __iter__(self) -> Iterator[int]:
        return iter([pid for pid, at in self._began.items() if began(pid) == at])

    def clear(self) -> None:
        self._began.clear()


def kill_and_wait(pid: int) -> None:
    """Until it has ended, and init has heard of it: who starts a daemon at once may come before a killed one has let go
    of its lock, or while its number still is somebody's."""
    os.kill(pid, signal.SIGKILL)
    wait(lambda: not Path(f"/proc/{pid}").exists())


class Daemon:
    """One configuration and data directory, and the daemon that may be running on it."""

    def __init__(self, root: Path, forks: bool = True) -> None:
        """``forks``: what it runs is forked from a process that has it loaded (`tests.forked`)."""
        self.root, self.forks = root, forks
        self.config, self.run = root / "config", root / "run"
        self.config.mkdir(exist_ok=True)
        self.environ = {
            **os.environ,
            "AVM_CONFIG_DIR": str(self.config),
            "AVM_DATA_DIR": str(root / "data"),
            "AVM_RUNTIME_DIR": str(self.run),
            "AVM_AUTOSTART": "0",
            "PYTHONPATH": os.pathsep.join(str(REPOSITORY / part) for part in (".", "daemon", "config")),
        }
        self.agents: list[str] = []
        self.pids, self.supervisors = Pids(), Pids()
        self.holder = 0
        self._doors: list[RemoteDoor] = []
        self.settings(QUIET)

    def mounts(self, *agents: str, more: str = "") -> None:
        self.agents = sorted({*self.agents, *agents})
        lines = [f"  - {{mountpoint: {self.at(agent)}, agent_id: {agent}{more}}}" for agent in agents]
        (self.config / "mounts.yaml").write_text("mounts:\n" + "\n".join(lines) + "\n" if agents else "mounts: []\n")

    def settings(self, text: str) -> None:
        (self.config / "config.yaml").write_text(text)

    def at(self, agent: str) -> Path:
        return self.root / agent

    def door(self, agent: str = "bob", **more: Any) -> RemoteDoor:
        """Closed with the daemon at the latest: one that a failed test leaves open would fail a later test."""
        self._doors.append(RemoteDoor(self.run / "avm.sock", agent, timeout_s=200, **more))
        return self._doors[-1]

    def command(self, *arguments: str, expect: int = 0) -> str:
        done = self.run_command(*arguments)
        assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr, self.log())
        return done.stdout + done.stderr

    def run_command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run_module("avmfs_daemon", *arguments)

    def avm(self, *arguments: str, agent: str = "", data: str = "") -> subprocess.CompletedProcess[str]:
        return self.run_module("avmfs.cli", *arguments, data=data, **({"AVM_AGENT": agent} if agent else {}))

    def run_module(self, module: str, *arguments: str, data: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        """`python -m MODULE`, in the environment with ``more``."""
        environ, start = self.environ | more, forked.run if self.forks else forked.interpreted
        done = start(module, arguments, environ, self.root, data.encode(), LIMIT_S)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self) -> None:
        said = self.command("start", "--daemon")
        self.whole_family()
        assert len(said.splitlines()) == 1, (said, self.log())  # no mount has failed

    def status(self) -> dict[str, Any]:
        """What `avm-daemon status --json` prints, asked from here: a process for each question took most of the time.
        The answer comes at once: one just after a kill may still be of the time before it."""
        try:
            status: dict[str, Any] = control.reached(find_paths(self.environ), lambda path: control.ask(path, "status"))
        except (control.NotRunning, control.ControlError) as e:
            raise AssertionError(f"{e}\n{self.log()}") from None
        self.pids.add(status["pid"])
        self.supervisors.add(status["pid"])
        return status

    def doctor(self, *about: str) -> list[dict[str, str]]:
        """What it finds about these; its exit code is 1 just where something is wrong."""
        done = self.avm("doctor", "--quick", "--json")
        assert done.stdout, (done.returncode, done.stderr, self.log())
        found: list[dict[str, str]] = json.loads(done.stdout)
        assert done.returncode == any(each["state"] == "problem" for each in found), (done.returncode, found)
        return [each for each in found if each["about"] in about]

    def mount(self, agent: str) -> dict[str, Any]:
        return next(mount for mount in self.status()["mounts"] if mount["agent_id"] == agent)

    def state(self, agent: str) -> str | None:
        found = [mount["state"] for mount in self.status()["mounts"] if mount["agent_id"] == agent]
        return found[0] if found else None

    def family(self) -> dict[str, int]:
        """The pid of every process of the daemon, by the name it shows; all are remembered for the teardown."""
        status = self.status()
        found = {"supervisor": status["pid"]}
        if status.get("holder_pid"):  # after a killed supervisor it is nobody's child
            self.holder = found["holder"] = status["holder_pid"]
            self.pids.add(self.holder)
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, parent = entry.read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":  # killed, which the supervisor has not come to
                    children.setdefault(int(parent), []).append(int(entry.parent.name))
        todo = [found["supervisor"]]
        while todo:
            for pid in children.get(todo.pop(), []):
                todo.append(pid)
                self.pids.add(pid)
                with contextlib.suppress(OSError):
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                    if name.startswith("avm "):
                        found[name.removeprefix("avm ")] = pid
                    elif b"multiprocessing.forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found["fork server"] = pid
        return found

    def whole_family(self) -> dict[str, int]:
        """The same, once each process that every daemon has is there and has its name."""
        found: dict[str, int] = {}

        def whole() -> bool:
            found.clear()
            found.update(self.family())
            return {"writer", "index", "door", "keeper"} <= found.keys()

        wait(whole)
        return found

    def mounted(self, agent: str) -> bool:
        return bool(mountpoint.mounts_at(self.at(agent)))

    def log(self) -> str:
        path = self.root / "data" / "logs" / "avm-daemon.log"
        return path.read_text() if path.exists() else ""

    def gone(self) -> bool:
        return not any(alive(pid) for pid in self.pids)

    def orphaned(self) -> bool:
        """After its supervisor was killed: only the holder is left."""
        return not any(alive(pid) for pid in {*self.pids} - {self.holder})

    def kill_all(self) -> None:
        """Every process of it at once; those that end with another one are no error."""
        for pid in set(self.family().values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait(self.gone)
        self.pids.clear()

    def clean_up(self) -> None:
        """By pid and by mountpoint only."""
        for door in self._doors:
            door.close()
        with contextlib.suppress(Exception):
            self.family()
        # The supervisor first, whose number need not be the lowest: it would replace a holder that ends.
        supervisors = {*self.supervisors}
        for pid in sorted(self.pids, key=lambda pid: pid not in supervisors):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for agent in self.agents:
            while self.mounted(agent):
                subprocess.run(["fusermount3", "-uz", str(self.at(agent))], timeout=300)
            with contextlib.suppress(OSError):
                set_immutable(self.at(agent), False)


AS_USER = """
import json, os, socket, sys, time
from avmfs import wire
from avmfs.errors import AvmError
from avmfs.rpc.client import RemoteDoor
sock, uid = sys.argv[1], int(sys.argv[2])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
def said(do):
    try:
        return do()
    except OSError as e:
        return e.errno
"""


def as_user(daemon: Daemon, uid: int, code: str) -> Any:
    """What a program of another user prints, from JSON."""
    done = subprocess.run(
        [sys.executable, "-c", AS_USER + code, str(daemon.run / "avm.sock"), str(uid)],
        env=daemon.environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def is_immutable(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flags = struct.unpack("Q", fcntl.ioctl(descriptor, mountpoint.FS_IOC_GETFLAGS, bytes(8)))[0]
        return bool(flags & mountpoint.FS_IMMUTABLE_FL)
    finally:
        os.close(descriptor)


def set_immutable(path: Path, wanted: bool) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flags = struct.unpack("Q", fcntl.ioctl(descriptor, mountpoint.FS_IOC_GETFLAGS, bytes(8)))[0]
        bit = mountpoint.FS_IMMUTABLE_FL
        new = flags | bit if wanted else flags & ~bit
        fcntl.ioctl(descriptor, mountpoint.FS_IOC_SETFLAGS, struct.pack("Q", new))
    finally:
        os.close(descriptor)
