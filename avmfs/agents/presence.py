"""Who is here: which agents have a mount or a door open, since when.

Owns a folder of the runtime directory: a lock that each process holds while it lives, named by its pid, and a symlink
beside it for each agent that it serves, whose target says who. Nothing is to be tidied after a kill: what a process
left that holds its lock no more is taken away by whoever looks. Called by mounts, the door, and views. It promises
nothing: where the folder cannot be written, an agent is served all the same, and is not seen here.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from avmfs_config.paths import not_own, require_own

log = logging.getLogger(__name__)

FOLDER: Final = "present"  # of the runtime directory; the supervisor takes it away when it stops


@dataclass(slots=True)
class Presence:
    """One process's part in it. Threads may share it."""

    folder: Path
    _mutex: threading.Lock = field(default_factory=threading.Lock)
    _lock: int | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextlib.contextmanager
    def entered(self, agent: str, route: str, now: int) -> Iterator[None]:
        """The agent is here during the block."""
        name = self.folder / f"{os.getpid()}.{next(self._numbers)}"
        try:
            require_own(self.folder.parent)
            with self._mutex:
                if self._lock is None:
                    self._lock = self._locked()
            name.symlink_to(f"{agent} {now} {route}")
        except OSError as e:
            log.info("%s is not shown as present: %s", agent, e)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # never made, or gone with the runtime directory
                name.unlink()

    def _locked(self) -> int:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        mine = self.folder / str(os.getpid())
        for left in self.folder.glob(f"{os.getpid()}.*"):  # by another process of before that had this number
            left.unlink(missing_ok=True)
        while True:
            lock = os.open(mine, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(lock), mine.stat()):
                    return lock
            except FileNotFoundError:  # whoever looks has taken it for one that was left
                pass
            os.close(lock)

    def all(self) -> dict[str, dict[str, int]]:
        """Of each agent that is here by which routes, and since when (ns) by each."""
        alive: dict[str, bool] = {}
        found: dict[str, dict[str, int]] = {}
        for name in self._names():
            pid, dot, _ = name.partition(".")
            if pid not in alive:
                alive[pid] = self._lives(pid)
            with contextlib.suppress(FileNotFoundError):
                if not alive[pid]:
                    (self.folder / name).unlink()
                elif dot:
                    agent, since, route = os.readlink(self.folder / name).split(" ")
                    routes = found.setdefault(agent, {})
                    routes[route] = min(int(since), routes.get(route, int(since)))
        return found

    def _names(self) -> list[str]:
        """What is in the folder; nothing where the runtime directory is somebody else's by now, so it may be any."""
        if not self.folder.is_dir() or not_own(self.folder.parent):
            return []
        return sorted(os.listdir(self.folder))

    def _lives(self, pid: str) -> bool:
        try:
            lock = os.open(self.folder / pid, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False
