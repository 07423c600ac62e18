"""The lock that says who may write to a store.

Owns the lock file beside the database. Imports next to nothing: every command asks it first whether a daemon
holds the store.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from avmfs_config.paths import not_own

from avmfs.errors import Busy

COMMAND_S: Final = 60.0  # for another command to be through: on a busy machine one takes seconds, and many wait
TOLD_S: Final = 2.0  # without a word of it


class StoreLock:
    """The lock beside the database: a daemon holds it for its life, direct mode for one command.

    flock(2) belongs to the open file, so it ends with its last holder, however that dies. The file
    tells who holds it: {"pid", "socket"}, of a daemon also {"mounts_file"}.

    It is blank only when its last holder has said that whatever it committed is on the disk. That needs neither room
    nor a sync: after power loss there is nothing in memory that is not on the disk.
    """

    def __init__(self, database_path: Path) -> None:
        self.path = database_path.with_name(database_path.name + ".lock")
        self.unclean = False  # did the holder before not say so? Known to who holds it now

    def acquire(self, wait_s: float, command_s: float = 0.0, sleep: Callable[[float], None] = time.sleep) -> int:
        """The descriptor that holds the lock. Raises Busy naming the holder: after ``wait_s``, or when a command has it
        after ``command_s`` where that is more. While it sleeps no file is open."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        began, told = time.monotonic(), command_s <= TOLD_S
        while True:
            missing = not self.path.exists()  # removed, perhaps: nothing is known of the last holder
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self.names(descriptor):
                    break
                os.close(descriptor)  # the file was removed meanwhile, and excludes nobody
            except BlockingIOError:
                os.close(descriptor)
                waited = time.monotonic() - began
                if waited >= wait_s or (waited >= TOLD_S and not told):
                    holder = self.holder()
                    if waited >= (wait_s if holder else max(wait_s, command_s)):
                        who = f"the daemon with pid {holder['pid']}" if holder else "another command"
                        raise Busy(f"in use by {who}", os.fspath(self.path)) from None
                    if not holder and not told:
                        told = True
                        _say(f"{self.path}: waiting for another command")
                sleep(0.005)
        self.unclean = missing or bool(os.pread(descriptor, 1, 0).strip())
        if os.fstat(descriptor).st_size > 1:
            os.pwrite(descriptor, b"\0", 0)
        else:
            os.ftruncate(descriptor, 1)  # a hole, which needs no room either
        return descriptor

    def note(self, descriptor: int, about: dict[str, Any]) -> None:
        """Tell of whoever holds it. Raises OSError where there is no room for that."""
        self._write(descriptor, json.dumps(about).encode())

    def names(self, descriptor: int) -> bool:
        """Return whether the lock's name leads to this open file. Else others may take another lock under it."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(descriptor))
        except FileNotFoundError:
            return False

    def release(self, descriptor: int, *, clean: bool, everywhere: bool = False) -> None:
        """``clean``: all that was committed under the lock is on the disk, and no sync of it has failed.
        ``everywhere``: also for a child that was forked meanwhile, and has the descriptor too."""
        if clean and os.fstat(descriptor).st_size > 1:
            self._write(descriptor, b"")
        elif clean:
            os.ftruncate(descriptor, 0)
        if everywhere:  # not before what the next holder reads is written
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    @property
    def clean(self) -> bool:
        """Return whether nobody holds it now, and the last holder's end was clean."""
        try:
            return not self.path.read_bytes().strip()
        except FileNotFoundError:
            return False

    @staticmethod
    def _write(descriptor: int, text: bytes) -> None:
        """The file keeps its length: on a full disk, what it gave back could not be had again."""
        os.pwrite(descriptor, text.ljust(os.fstat(descriptor).st_size), 0)

    def holder(self) -> dict[str, Any] | None:
        """Who wrote itself into the lock file, if anybody holds it now, and "uid", the file's user."""
        try:
            with open(self.path, "rb") as file:
                said = dict(json.loads(file.read()))  # blank: nobody has, and who takes the lock now is not disturbed
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return said | {"uid": os.fstat(file.fileno()).st_uid}
                fcntl.flock(file, fcntl.LOCK_UN)  # closing it is not enough where a child is forked in this moment
                return None
        except (FileNotFoundError, ValueError, TypeError):
            return None


def daemon_in(runtime_dir: Path) -> dict[str, Any] | None:
    """The daemon whose runtime directory this is. In one that is somebody else's nothing is opened: a lock there may be
    a fifo, or name any socket."""
    try:
        strange = not_own(runtime_dir)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return None if strange else StoreLock(runtime_dir / "daemon").holder()


def _say(text: str) -> None:
    import logging  # which a command that asks a daemon can do without

    logging.getLogger(__name__).warning("%s", text)
