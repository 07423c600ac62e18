"""fcntl and flock locks that hold across mounts.

Owns one lock file per locked node in the daemon's runtime folder. An agent's lock is mirrored there as an
open-file-description lock (fcntl(2) F_OFD_SETLK) with the same byte range, one description per lock owner,
so that the kernel decides conflicts between mount processes and drops all locks of one that dies.
flock locks use a second file per node: the two kinds do not conflict on Linux. Linux only: elsewhere the
front end leaves locking to the kernel, within one mount.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from avmfs.errors import Busy, Interrupted, Invalid

SUPPORTED = hasattr(fcntl, "F_OFD_SETLK")
_FLOCK = struct.Struct("hhqqi4x")  # struct flock on 64-bit Linux: type, whence, start, len, pid
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05


class Holder(Protocol):
    """Holds descriptors by name, whatever happens to this process: the locks on them stay."""

    def put(self, name: str, descriptor: int) -> None: ...
    def drop(self, name: str) -> None: ...


class LockTable:
    """The locks of one mount. Thread-safe. ``interrupted`` tells whether the waiting client gave up; ``held`` are the
    descriptors that a process before gave to ``holder``, by name."""

    def __init__(
        self, folder: Path, interrupted: Callable[[], bool], holder: Holder | None = None,
        held: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._interrupted = interrupted
        self._holder = holder
        self._owned: dict[tuple[str, int, int], int] = {}
        self._mutex = threading.Lock()
        for name, descriptor in (held or {}).items():
            _, what, node, owner = name.split(" ")
            self._owned[what, int(node, 16), int(owner, 16)] = descriptor

    def set_range(self, node: int, owner: int, kind: int, start: int, length: int, *, wait: bool) -> None:
        """F_SETLK (or F_SETLKW): ``kind`` is F_RDLCK, F_WRLCK or F_UNLCK; length 0 reaches to the end of file.
        Raises Busy (EAGAIN) on a conflict, Interrupted when a waiter gave up."""
        descriptor = self._descriptor("range", node, owner, make=kind != fcntl.F_UNLCK)
        if descriptor is None:
            return
        request = _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
        self._until_granted(lambda: fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request), wait)

    def conflict(self, node: int, owner: int, kind: int, start: int, length: int) -> tuple[int, int, int] | None:
        """F_GETLK: (kind, start, length) of a lock in the way, or None."""
        descriptor = self._descriptor("range", node, owner, make=True)
        if descriptor is None:
            raise Invalid("no lock file")
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
        found, _, at, size, _ = _FLOCK.unpack(answer)
        return None if found == fcntl.F_UNLCK else (found, at, size)

    def set_whole(self, node: int, owner: int, operation: int) -> None:
        """flock(2). Raises Busy for LOCK_NB on a conflict, Interrupted when a waiter gave up."""
        wanted = operation & (fcntl.LOCK_SH | fcntl.LOCK_EX | fcntl.LOCK_UN)
        descriptor = self._descriptor("whole", node, owner, make=wanted != fcntl.LOCK_UN)
        if descriptor is None:
            return
        self._until_granted(lambda: fcntl.flock(descriptor, wanted | fcntl.LOCK_NB), wait=not operation & fcntl.LOCK_NB)

    def forget(self, node: int, owner: int, what: str) -> None:
        """An owner is gone (close(2)): its locks of a kind ("range", "whole") end."""
        with self._mutex:
            descriptor = self._owned.pop((what, node, owner), None)
        if descriptor is not None:
            if self._holder is not None:
                # Its copy lives for a moment longer, and with it what is locked.
                if what == "range":
                    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
                else:
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                self._holder.drop(_name(what, node, owner))
            os.close(descriptor)

    def close(self) -> None:
        with self._mutex:
            descriptors, self._owned = list(self._owned.values()), {}
        for descriptor in descriptors:
            os.close(descriptor)

    def _until_granted(self, attempt: Callable[[], object], wait: bool) -> None:
        pause = _FIRST_PAUSE_S
        while True:
            try:
                attempt()
                return
            except OSError as e:
                if e.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                if not wait:
                    raise Busy("locked by another process") from None
            # A blocking call here could not be called off: a killed client would hang until the lock came free.
            if self._interrupted():
                raise Interrupted("the waiting process was interrupted")
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _descriptor(self, what: str, node: int, owner: int, *, make: bool) -> int | None:
        key = (what, node, owner)
        with self._mutex:
            if key not in self._owned and make:
                path = self._folder / f"{node:016x}.{what}"
                self._owned[key] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                if self._holder is not None:
                    self._holder.put(_name(what, node, owner), self._owned[key])
            return self._owned.get(key)


NAME = "lock "


def _name(what: str, node: int, owner: int) -> str:
    return f"{NAME}{what} {node:x} {owner:x}"


def clear(folder: Path) -> None:
    """At the start of a daemon: no mount is up, so no lock file is in use."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
