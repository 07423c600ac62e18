"""fcntl and flock locks that hold across mounts.

Owns one lock file per locked node in the daemon's runtime folder. An agent's lock is mirrored there as an
open-file-description lock (fcntl(2) F_OFD_SETLK) with the same byte range, one description per lock owner,
so that the kernel decides conflicts between mount processes and drops all locks of one that dies.
flock locks use a second file per node: the two kinds do not conflict on Linux. Which process holds a range, and
whether one that would wait is waited for in turn, is known of the processes of this mount (`vfs/lock_owners.py`).
Linux only: elsewhere the front end leaves locking to the kernel, within one mount.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from avmfs.errors import Busy, Interrupted, WouldDeadlock
from avmfs.listener import in_thread
from avmfs.vfs.lock_owners import Range, Wait, held_by, is_circle

SUPPORTED = hasattr(fcntl, "F_OFD_SETLK")
_FLOCK = struct.Struct("hhqqi4x")  # struct flock on 64-bit Linux: type, whence, start, len, pid
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05
_LOOK_S = 1.0
_MADE_ANEW_S = 5.0  # for the supervisor to notice that the runtime folder has vanished
log = logging.getLogger(__name__)


class Holder(Protocol):
    """Holds descriptors by name, whatever happens to this process: the locks on them stay."""

    def put(self, name: str, descriptor: int) -> None: ...
    def drop(self, name: str) -> None: ...


_KINDS = ("range", "whole", "alone")  # fcntl, flock; that no other mount has any of the first
_Key = tuple[str, int, int]  # kind, node, owner, which is 0 of the last kind


class _Owned(NamedTuple):
    """What an owner's locks of a node are held by. ``through``: the handle that the first of them was asked for by;
    ``pid``: the process that asked, 0 if the kernel did not say."""

    descriptor: int
    name: str  # at the holder
    through: int
    pid: int


class LockTable:
    """The locks of one mount. Thread-safe. ``interrupted`` tells whether the waiting client gave up; ``held`` are the
    descriptors that a process before gave to ``holder``, by name. ``ending`` is called with the node before a lock of
    it ends, or may end with becoming a shared one: its next holder is to find what was written under it."""

    def __init__(
        self,
        folder: Path,
        interrupted: Callable[[], bool],
        holder: Holder | None = None,
        held: Mapping[str, int] | None = None,
        ending: Callable[[int], None] = lambda node: None,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._interrupted, self._ending = interrupted, ending
        self._holder = holder
        self._owned: dict[_Key, _Owned] = {}
        self._through: dict[int, set[_Key]] = {}  # by handle: what began through it
        self._ends: set[_Key] = set()  # an owner that comes to have the number of one that goes is another one
        self._waiting: dict[int, Wait] = {}  # by thread
        self._mutex = threading.Lock()
        self._watched = False
        for name, descriptor in (held or {}).items():
            _, what, *numbers = name.split(" ")
            node, owner, through, pid = [*(int(number, 16) for number in numbers), 0, 0][:4]
            self._own((what, node, owner), _Owned(descriptor, name, through, pid))

    def set_range(
        self,
        node: int,
        owner: int,
        kind: int,
        start: int,
        length: int,
        *,
        wait: bool,
        through: int = 0,
        pid: int = 0,
        alone: bool = False,
    ) -> None:
        """F_SETLK (or F_SETLKW): ``kind`` is F_RDLCK, F_WRLCK or F_UNLCK; length 0 reaches to the end of file;
        ``through`` is the number of the handle; ``alone``: another mount's lock is in the way, even if both are
        shared, until all who have some there have closed the file, so nothing need be there before. Raises Busy
        (EAGAIN) on a conflict, Interrupted when a waiter gave up, WouldDeadlock for one that waits for a process of
        this mount that waits for it."""
        if kind != fcntl.F_WRLCK and not alone and ("range", node, owner) in self._owned:
            self._ending(node)
        request = _request(kind, start, length)
        alone = alone and kind != fcntl.F_UNLCK

        def attempt(descriptor: int) -> None:
            if alone and (mounts := self._descriptor(("alone", node, 0), 0, 0, make=True)) is not None:
                fcntl.flock(mounts, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)

        self._until_granted(
            ("range", node, owner),
            attempt,
            wait,
            through,
            pid,
            make=kind != fcntl.F_UNLCK,
            wanted=(kind, start, length),
        )

    def conflict(self, node: int, owner: int, kind: int, start: int, length: int) -> tuple[int, int, int, int] | None:
        """F_GETLK: (kind, start, length, process) of a lock in the way, or None. The process is 0 where another mount
        knows it."""
        request = _request(kind, start, length)
        with self._mutex:
            owned = self._owned.get(("range", node, owner))
            descriptor = self._lock_file("range", node) if owned is None else owned.descriptor
            try:
                answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, request)
            finally:
                if owned is None:
                    os.close(descriptor)
            found, _, at, size, _ = _FLOCK.unpack(answer)
            if found == fcntl.F_UNLCK:
                return None
            there = Range.of(found, at, size)
            pids = (each.pid for _, each, held in self._held_by_others(node, owner) if held == there)
            return found, at, size, next(pids, 0)

    def set_whole(self, node: int, owner: int, operation: int) -> None:
        """flock(2). Raises Busy for LOCK_NB on a conflict, Interrupted when a waiter gave up."""
        wanted = operation & (fcntl.LOCK_SH | fcntl.LOCK_EX | fcntl.LOCK_UN)
        if wanted != fcntl.LOCK_EX and ("whole", node, owner) in self._owned:
            self._ending(node)
        self._until_granted(
            ("whole", node, owner),
            lambda descriptor: fcntl.flock(descriptor, wanted | fcntl.LOCK_NB),
            not operation & fcntl.LOCK_NB,
            make=wanted != fcntl.LOCK_UN,
        )

    def forget(self, node: int, owner: int, what: str) -> None:
        """An owner is gone (close(2)): its locks of a kind ("range", "whole") end."""
        key, alone = (what, node, owner), ("alone", node, 0)
        if key not in self._owned:  # as with most who close a file
            return
        with self._mutex:
            owned = self._owned.get(key)
            ends = owned is not None and (alone in self._owned or bool(held_by(owned.descriptor)))
            if ends:
                self._ends.add(key)
        try:
            if ends:
                self._ending(node)
        finally:
            with self._mutex:  # to the end: the next one of this owner has the same name at the holder
                self._ends.discard(key)
                self._end(key)
                if alone in self._owned and not any(key[:2] == ("range", node) for key in self._owned):
                    self._end(alone)

    def _end(self, key: _Key) -> None:
        owned = self._owned.pop(key, None)
        if owned is None:
            return
        self._through.get(owned.through, set()).discard(key)
        if self._holder is not None:
            # Its copy lives for a moment longer, and with it what is locked.
            if key[0] == "range":
                request = _request(fcntl.F_UNLCK, 0, 0)
                fcntl.fcntl(owned.descriptor, fcntl.F_OFD_SETLK, request)
            else:
                fcntl.flock(owned.descriptor, fcntl.LOCK_UN)
            self._holder.drop(owned.name)
        os.close(owned.descriptor)

    def closed(self, handle: int) -> None:
        """The last descriptor of a handle is closed, and the locks of its open file description (F_OFD_SETLK) end.

        The kernel says so of no range: it takes FLUSH to end them, which tells of a process. But of a process that
        took one through this handle FLUSH has come by now, so what began through it and is left is no process'."""
        if handle in self._through:
            with self._mutex:
                left = self._through.pop(handle)
            for what, node, owner in left:
                self.forget(node, owner, what)

    def close(self) -> None:
        with self._mutex:
            all_owned, self._owned, self._through = list(self._owned.values()), {}, {}
        for owned in all_owned:
            os.close(owned.descriptor)

    def _until_granted(
        self,
        key: _Key,
        attempt: Callable[[int], object],
        wait: bool,
        through: int = 0,
        pid: int = 0,
        *,
        make: bool,
        wanted: tuple[int, int, int] | None = None,
    ) -> None:
        pause = _FIRST_PAUSE_S
        try:
            while True:
                try:
                    # Another thread of a waiting process may close the file, and with it the descriptor (`forget`).
                    with self._mutex:
                        if make and key in self._ends:
                            raise BlockingIOError(errno.EAGAIN, "")
                        descriptor = self._descriptor(key, through, pid, make=make)
                        if descriptor is not None:
                            attempt(descriptor)
                    return
                except OSError as e:
                    if e.errno not in (errno.EAGAIN, errno.EACCES):
                        raise
                    if not wait:
                        raise Busy("locked by another process") from None
                # A blocking call here could not be called off: a killed client would hang until the lock came free.
                if self._interrupted():
                    raise Interrupted("the waiting process was interrupted")
                if wanted is not None and pause == _FIRST_PAUSE_S:
                    self._begin_to_wait(Wait(*key[1:], Range.of(*wanted)))
                time.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE_S)
        finally:
            if pause != _FIRST_PAUSE_S:
                with self._mutex:
                    self._waiting.pop(threading.get_ident(), None)

    def _begin_to_wait(self, wanted: Wait) -> None:
        """Whoever begins to wait last closes the circle and is told: a lock that is granted closes none."""
        with self._mutex:
            if is_circle(wanted, self._waiting.values(), self._held_by_others):
                raise WouldDeadlock("the process that holds the lock waits for this one")
            self._waiting[threading.get_ident()] = wanted

    def _held_by_others(self, node: int, owner: int) -> Iterator[tuple[int, _Owned, Range]]:
        """Ranges of a node that other owners of this mount hold. Whoever calls holds the mutex."""
        for (what, where, other), owned in self._owned.items():
            if where == node and other != owner and what == "range":
                for held in held_by(owned.descriptor):
                    yield other, owned, held

    def _descriptor(self, key: _Key, through: int, pid: int, *, make: bool) -> int | None:
        """Whoever calls holds the mutex for as long as it uses what it gets."""
        owned = self._owned.get(key)
        if owned is None and make:
            what, node, owner = key
            descriptor = self._lock_file(what, node)
            name = f"{NAME}{what} {node:x} {owner:x} {through:x} {pid:x}"
            owned = _Owned(descriptor, name, through, pid)
            self._own(key, owned)
            if self._holder is not None:
                self._holder.put(name, descriptor)
        return None if owned is None else owned.descriptor

    def _lock_file(self, what: str, node: int) -> int:
        """Raises Busy where the runtime folder has vanished, and is not made anew soon."""
        deadline = time.monotonic() + _MADE_ANEW_S
        while True:
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                return os.open(_path(self._folder, what, node), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                if time.monotonic() > deadline:
                    raise Busy("there is no runtime folder to lock in", os.fspath(self._folder)) from None
                time.sleep(_LONGEST_PAUSE_S)

    def _own(self, key: _Key, owned: _Owned) -> None:
        self._owned[key] = owned
        if owned.through:
            self._through.setdefault(owned.through, set()).add(key)
        if not self._watched:
            self._watched = in_thread("locks", self._watch)  # else with the next lock

    def _watch(self) -> None:
        """For as long as there are locks: where a lock's file was removed, other mounts would lock another one."""
        while True:
            time.sleep(_LOOK_S)
            with self._mutex:
                if not self._owned:
                    self._watched = False
                    return
                for key, owned in list(self._owned.items()):
                    if not os.fstat(owned.descriptor).st_nlink:
                        self._move(key, owned)

    def _move(self, key: _Key, owned: _Owned) -> None:
        """Hold in the file of that name what is held in one that has none any more."""
        what, node, _ = key
        descriptor = -1
        try:
            descriptor = self._lock_file(what, node)
            for held in held_by(owned.descriptor):
                if what != "range":
                    shared = held.kind == fcntl.F_RDLCK
                    fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                else:
                    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _request(held.kind, held.start, held.length))
        except OSError as e:  # somebody else has locked it meanwhile; or no room
            log.error("a lock whose file was removed holds within this mount alone: %s", e)
            if descriptor >= 0:
                os.close(descriptor)
            return
        self._owned[key] = owned._replace(descriptor=descriptor)
        if self._holder is not None:
            self._holder.put(owned.name, descriptor)
        os.close(owned.descriptor)


def _request(kind: int, start: int, length: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)


NAME = "lock "


def forget_files(folder: Path, nodes: Iterable[int]) -> None:
    """Files of the tree that are gone for good, so that nobody can lock them any more."""
    for node in nodes:
        for what in _KINDS:
            _path(folder, what, node).unlink(missing_ok=True)


def _path(folder: Path, what: str, node: int) -> Path:
    return folder / f"{node:016x}.{what}"


def clear(folder: Path) -> None:
    """At the start of a daemon: no mount is up, so no lock file is in use."""
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
