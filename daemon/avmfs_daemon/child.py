"""One child that the supervisor keeps alive: its process, its state, when to try again.

Owns starting and killing of one process at a time, and the rule of patience. Called by the supervisor's loop
alone; nothing here waits, except for the fork server's answer (milliseconds).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from avmfs_config import Mount

from avmfs_daemon.child_spec import ChildSpec, Kind
from avmfs_daemon.entrypoints import Entry
from avmfs_daemon.framed_stream import FramedStream
from avmfs_daemon.mountpoint import Mountpoint

State = Literal["starting", "ready", "restarting", "failed"]

READY_S, READY_MOST_S = 15.0, 180.0  # to get ready: as long again while it is seen to be at it; in all
_AT_IT = 0.01  # of that time, running or waiting for a processor
SHORT_LIFE_S = 1.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 5.0
FAILED_AFTER = 3  # attempts in a row that never got ready
ABOUT = frozenset(("survives", "caching", "caching_reason", "link"))  # what a mount says of itself
STOP_S = 4.0  # from being told to stop until being killed


class ChildProcess:
    """One running process and our end of its control pipe."""

    def __init__(self, process: BaseProcess, control: Connection, fd_entry: str | None) -> None:
        self.handle = process
        self.fd_entry = fd_entry
        self.pid = process.pid or 0
        self.sentinel = process.sentinel
        self.stream = FramedStream(os.dup(control.fileno()))
        control.close()
        self.ready_at: float | None = None
        self._begun = time.monotonic()
        self._ran = 0.0
        self.kill_at = self._begun + READY_S
        self.told_to_stop = False
        self.lingers = False  # since then, with what was under way
        self.error = ""
        self.heard = (0, 0)  # in this second, that many messages
        # Names the process for good, even where the fork server is gone and the number may be used again.
        self._pidfd: int | None = None
        with contextlib.suppress(AttributeError, OSError):
            self._pidfd = os.pidfd_open(self.pid)

    def goes_on(self, now: float) -> bool:
        """It is not ready in time. Return whether that is for want of a processor, or much to do: then it has as long
        again. What waits for something that does not come has hardly run since the last look."""
        before, self._ran = self._ran, _ran_s(self.pid)
        if self._ran - before < READY_S * _AT_IT or now >= self._begun + READY_MOST_S:
            return False
        self.kill_at = now + READY_S
        return True

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            elif self.handle.is_alive():
                os.kill(self.pid, signal.SIGKILL)

    def bury(self) -> None:
        """After the end. The fork server's own death looks like the death of all its children: make it so."""
        self.kill()
        self.stream.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        with contextlib.suppress(ValueError):
            self.handle.join(0.1)
            self.handle.close()


class Child:
    """The place of one child; `mount` and `mountpoint` are of mounts."""

    def __init__(self, name: str, kind: Kind, mount: Mount | None = None, mountpoint: Mountpoint | None = None) -> None:
        self.name = name
        self.kind = kind
        self.mount = mount
        self.mountpoint = mountpoint
        self.current: ChildProcess | None = None
        self.retiring: list[ChildProcess] = []
        self.state: State = "starting"
        self.since = time.time()
        self.restarts = 0
        self.starts = 0
        self.error = ""
        self.wanted = True
        self.stale = False  # runs with settings that are no longer in force
        self.retry_at: float | None = None
        self.fd_entry: str | None = None  # of a mount: what a child leaves to its successor
        self.about: dict[str, str] = {}  # of a mount: what it can do
        self._pause = FIRST_PAUSE_S
        self._attempts = 0
        self._quick_ends = 0

    @property
    def resumes(self) -> bool:
        """Whether a successor can go on with the mount as it is."""
        return self.fd_entry is not None and self.about.get("survives") == "resume"

    @property
    def processes(self) -> list[ChildProcess]:
        return [*([self.current] if self.current else []), *self.retiring]

    @property
    def settled(self) -> bool:
        """It serves, or has shown that it does not for now."""
        return self.state in ("ready", "failed")

    def change(self, state: State, error: str = "") -> None:
        if state != self.state:
            self.since = time.time()
        self.state, self.error = state, error

    def start(self, context: BaseContext, entry: Entry, spec: ChildSpec, control: Connection) -> ChildProcess:
        """Start a process; `control` is our end of its pipe. Raises OSError or EOFError when the fork server fails."""
        self.retry_at = None
        self.restarts += self.starts > 0
        self.starts += 1
        self.stale = False
        # BaseContext has no Process in the type stubs; every real context does.
        process: BaseProcess = context.Process(target=entry, args=(spec,), name=self.name)  # type: ignore[attr-defined]
        process.start()
        self.current = ChildProcess(process, control, spec.fd_entry)
        return self.current

    def became_ready(self, process: ChildProcess) -> None:
        process.ready_at = time.monotonic()
        self._attempts = 0
        self.change("ready")

    def lost(self, process: ChildProcess | None, error: str, *, killed: bool = False) -> None:
        """The current process died, or could not be started (None): decide when to try again. `killed` from outside,
        which says nothing about whether its successor will live."""
        self.current = None
        lived = time.monotonic() - process.ready_at if process and process.ready_at is not None else 0.0
        self._quick_ends = 0 if lived > SHORT_LIFE_S else self._quick_ends + (process is not None and not killed)
        if lived > SHORT_LIFE_S or killed:
            self._pause = FIRST_PAUSE_S
            self.retry_at = time.monotonic()
        else:
            self.retry_at = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, LONGEST_PAUSE_S)
        if process is None or (process.ready_at is None and not killed):
            self._attempts += 1
        if self._attempts >= FAILED_AFTER:
            self.change("failed", error)
        else:
            self.change("restarting" if self.state in ("ready", "restarting") else self.state, error)

    @property
    def hopeless(self) -> bool:
        """Whether successors die of what they take over."""
        return self.resumes and self._quick_ends >= FAILED_AFTER

    def status(self) -> dict[str, Any]:
        assert self.mount is not None
        status: dict[str, Any] = {
            "agent_id": self.mount.agent_id,
            "mountpoint": os.fspath(self.mount.mountpoint),
            "pid": self.current.pid if self.current else None,
            "state": self.state,
            "restarts": self.restarts,
            "since": round(self.since, 3),
            "survives": self.about.get("survives", ""),
            "caching": self.about.get("caching", "none"),
            "caching_reason": self.about.get("caching_reason", ""),
        }
        if self.mount.link is not None:
            status |= {"link": os.fspath(self.mount.link), "link_problem": self.about.get("link", "")}
        return status | ({"error": self.error} if self.error else {})


def _ran_s(pid: int) -> float:
    """Seconds that its first thread has run or waited for a processor; 0 where that is not known."""
    with contextlib.suppress(OSError, ValueError):
        ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return (int(ran) + int(waited)) / 1e9
    return 0.0
