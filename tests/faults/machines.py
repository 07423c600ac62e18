"""A daemon whose store lies on a disk that drops what was not synced, and what the power takes with it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.disk_model import Keep
from tests.dropping_disk import DroppingDisk
from tests.ext4_disk import Ext4Disk
from tests.faults.daemons import QUIET, Daemon, alive, wait

SETTINGS = QUIET + "limits: {unread: 100000}\naudit: {interval_s: 1}\nwebhooks: {allow: [127.0.0.1], backoff_s: 0.05}\n"
PROGRAM = Path(__file__).with_name("powered.py")


class Machine:
    """A daemon with its store on a disk that drops, and programs that work with it."""

    def __init__(self, root: Path, disk: DroppingDisk | Ext4Disk) -> None:
        self.disk = disk
        self.daemon = Daemon(root, forks=False)  # all of it has to be found by what it was started with
        self.daemon.environ["AVM_DATA_DIR"] = os.fspath(self.disk.path / "data")
        self._mark = f"AVM_DATA_DIR={self.disk.path}/data".encode()
        self.daemon.settings(SETTINGS)
        self.daemon.mounts("alice", "bob", "carol")

    @property
    def database(self) -> Path:
        return self.disk.path / "data/avm.db"

    def program(self, *arguments: object) -> subprocess.Popen[bytes]:
        words = [os.fspath(word) if isinstance(word, Path) else str(word) for word in arguments]
        with open(self.daemon.root / "programs.log", "ab") as said:
            return subprocess.Popen(
                [sys.executable, PROGRAM, *words],
                env=self.daemon.environ,
                cwd=self.daemon.root,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def processes(self) -> Iterator[int]:
        """All that work with this store, by their environment."""
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if self._mark in entry.read_bytes().split(b"\0"):
                    yield int(entry.parent.name)

    def power_loss(self, keep: Keep, seed: int) -> float:
        """When it was."""
        at = self.disk.cut(keep, seed)
        self.kill()
        self.disk.revive()
        wait(lambda: not any(alive(pid) for pid in self.processes()))
        return at

    def kill(self) -> None:
        for _ in range(2):  # a process may have been about to start another one
            for pid in list(self.processes()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for agent in self.daemon.agents:
            while self.daemon.mounted(agent):
                subprocess.run(["fusermount3", "-uz", self.daemon.at(agent)], timeout=200, check=True)
        shutil.rmtree(self.daemon.run, ignore_errors=True)  # it is in memory

    def close(self) -> None:
        self.kill()
        wait(lambda: not any(alive(pid) for pid in self.processes()))
        self.daemon.clean_up()


@contextlib.contextmanager
def machine(root: Path, disk: DroppingDisk | Ext4Disk) -> Iterator[Machine]:
    with disk:
        made = Machine(root, disk)
        try:
            yield made
        finally:
            made.close()
