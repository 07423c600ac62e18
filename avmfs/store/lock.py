"""The lock that says who may write to a store.

Owns the lock file beside the database. Imports next to nothing: every command asks it first whether a daemon
holds the store.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from avmfs.errors import Busy


class StoreLock:
    """The lock beside the database: a daemon holds it for its life, direct mode for one command.

    flock(2) belongs to the open file, so it ends with its last holder, however that dies. The file
    tells who holds it: {"pid", "socket"}.
    """

    def __init__(self, database_path: Path) -> None:
        self.path = database_path.with_name(database_path.name + ".lock")

    def acquire(self, wait_s: float, about: dict[str, Any] | None = None) -> int:
        """The descriptor that holds the lock. Raises Busy naming the holder."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    holder = self.holder()
                    who = f"the daemon with pid {holder['pid']}" if holder else "another command"
                    raise Busy(f"in use by {who}", os.fspath(self.path)) from None
                time.sleep(0.005)
        if about is not None:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(about).encode(), 0)
        return descriptor

    def release(self, descriptor: int) -> None:
        os.ftruncate(descriptor, 0)
        os.close(descriptor)

    def holder(self) -> dict[str, Any] | None:
        """Who wrote itself into the lock file, if anybody holds it now."""
        try:
            with open(self.path, "rb") as file:
                said = file.read()
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return dict(json.loads(said)) if said else None
                return None
        except (FileNotFoundError, ValueError):
            return None
