"""The runtime directory: who owns it, the sockets in it, and what a later start has to clean up.

Called by the supervisor, and by `stop` when there is no daemon but leftovers of one. Whoever calls holds the
directory's lock.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from avmfs_config import Settings
from avmfs_config.paths import not_own, require_own, too_long

from avmfs import metrics
from avmfs.agents import presence
from avmfs.errors import Busy
from avmfs.store.files.displaced import OpenStoreFiles
from avmfs.store.files.store_lock import StoreLock
from avmfs_daemon.mountpoint import Mountpoint, MountpointError, detach_stale, mounts_at

log = logging.getLogger(__name__)

WRITER, INDEX, DOOR, LIVE, CONTROL = "writer.sock", "index.sock", "avm.sock", "live.sock", "control.sock"
STATE = "state.json"
LOCKS = "locks"  # of the mounts: which byte ranges programs have locked
OUTBOX = "outbox.lock"  # of who delivers
BACKLOG = 256
KILLED_S = 2.0  # for the kernel to end what was killed


class RuntimeProblem(Exception):
    """The daemon cannot run here; `str()` is one line for a person."""


def make_directory(path: Path, *, traversable: bool) -> None:
    """Create or check the directory; `traversable` lets other users reach the sockets in it by name."""
    if problem := too_long(path):
        raise RuntimeProblem(f"{path}: {problem}")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as e:
        raise RuntimeProblem(f"{path}: {e.strerror}") from None
    check_own(path)
    path.chmod(0o711 if traversable else 0o700)


def check_own(directory: Path) -> None:
    """Raises RuntimeProblem where it is not this user's: its notes and links are somebody else's."""
    if problem := not_own(directory):
        raise RuntimeProblem(f"{directory}: {problem}")


class RuntimeLock:
    """The lock beside `path`, held until `release`. Raises RuntimeProblem naming the holder."""

    def __init__(self, path: Path, wait_s: float, about: dict[str, Any]) -> None:
        self._lock = StoreLock(path)
        self._about = about
        try:
            self.descriptor = self._acquired(wait_s)
        except RuntimeProblem:
            if not _end_abandoned(self._lock):
                raise
            self.descriptor = self._acquired(KILLED_S)

    def renew(self) -> bool:
        """Where the lock's file was removed or replaced, others could take it: take the one of that name now. Was it
        so? Raises RuntimeProblem while somebody else has it, OSError."""
        if self._lock.names(self.descriptor):
            return False
        before, self.descriptor = self.descriptor, self._acquired(0)
        os.close(before)
        return True

    def release(self, *, clean: bool) -> None:
        """See `StoreLock.release`."""
        self._lock.release(self.descriptor, clean=clean)

    def _acquired(self, wait_s: float) -> int:
        try:
            descriptor = self._lock.acquire(wait_s)
        except Busy as e:
            holder = self._lock.holder()
            raise RuntimeProblem(running(holder) if holder else str(e)) from None
        try:
            self._lock.note(descriptor, self._about)
        except OSError as e:  # a full disk: others are kept out all the same
            log.error("%s: cannot note who holds it: %s", self._lock.path, e.strerror)
        return descriptor


@contextlib.contextmanager
def hold(
    path: Path, wait_s: float, about: dict[str, Any], is_clean: Callable[[], bool] = lambda: True
) -> Iterator[RuntimeLock]:
    """The lock beside `path`, while the block lasts. Raises RuntimeProblem naming the holder. `is_clean` is asked at
    the end."""
    held = RuntimeLock(path, wait_s, about)
    try:
        yield held
    finally:
        held.release(clean=is_clean())


def running(holder: dict[str, Any]) -> str:
    """What there is to know of the daemon that wrote `holder` into its lock."""
    where = f" in {Path(holder['socket']).parent}" if holder["socket"] else ""
    return f"already running (pid {holder['pid']}){where}; avm-daemon stop ends it"


def _end_abandoned(lock: StoreLock) -> bool:
    """End a writer that hangs (SIGSTOP, a debugger) and whose supervisor is gone: it would have let go by itself, and
    nobody else can make it. What it has acknowledged is in the store. Was there one?"""
    holder = lock.holder()
    if holder is None or Path(f"/proc/{holder['pid']}").exists() or not Path("/proc/self/fd").exists():
        return False
    ended = False
    locked = lock.path.stat()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
            if (entry / "comm").read_text() != "avm writer\n":
                continue
            process = os.pidfd_open(int(entry.name))
            try:
                if any(os.path.samestat(each.stat(), locked) for each in (entry / "fd").iterdir()):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    log.warning("ended a writer (pid %s) that hung after its supervisor had gone", entry.name)
                    ended = True
            finally:
                os.close(process)
    return ended


def serves_others(settings: Settings) -> bool:
    """Whether other Unix users may come through the door."""
    return any(uid != os.geteuid() for uid in settings.uids)


def door_mode(settings: Settings) -> int:
    return 0o666 if serves_others(settings) else 0o600


def listen(path: Path, mode: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """A listening socket at `path`, in place of what a run before left there. Raises RuntimeProblem."""
    listener = socket.socket(socket.AF_UNIX, kind)
    before = os.umask(0o177)  # nobody else connects before the mode is set
    try:
        path.unlink(missing_ok=True)
        listener.bind(os.fspath(path))
        path.chmod(mode)
    except OSError as e:
        listener.close()
        raise RuntimeProblem(f"{path}: cannot listen there: {e.strerror}") from None
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    return listener


def remember(directory: Path, mountpoints: Mapping[Path, int]) -> OpenStoreFiles:
    """Note which directories are about to be mounted on, and their modes, for whoever cleans up after a kill. The note.
    Where that cannot be written (a full disk) the note before stays: serving and an end in order do not need it."""
    new = directory / (STATE + ".new")
    try:
        require_own(directory)  # by now it may be somebody's whose names lead anywhere
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w") as file:
            json.dump(
                {"mountpoints": {os.fspath(path): mode for path, mode in mountpoints.items()}}, file, sort_keys=True
            )
        new.replace(directory / STATE)
    except OSError as e:
        log.error("%s: cannot note the mountpoints for a start after a kill: %s", directory / STATE, e.strerror)
    return OpenStoreFiles(directory / STATE)


def remembered(directory: Path) -> dict[Path, int]:
    """The directories of the run before, if it did not end in order. A damaged note counts as none."""
    try:
        noted: Any = json.loads((directory / STATE).read_bytes())
        return {Path(path): int(mode) for path, mode in noted["mountpoints"].items()}
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def clean_up(directory: Path, keep: Collection[Path] = (), awaited: Collection[Path] = ()) -> int:
    """Take away what a killed daemon left: dead mounts, protections, sockets, temporary files. Mounts removed.
    ``keep``: mountpoints whose mounts are gone on with. ``awaited``: those that get another mount soon, which a dead
    one is to cover until then. What is left for these is noted still."""
    count = 0
    kept = {}
    for path, mode in remembered(directory).items():
        if path in keep or (path in awaited and mounts_at(path)):
            kept[path] = mode
            continue
        try:
            count += detach_stale(path)
            if path.is_dir():
                Mountpoint.prepare(path, mode, must_be_empty=False).close()
        except MountpointError as problem:
            log.warning("cleaning up after an earlier run: %s", problem)
    if kept:
        remember(directory, kept)
    for name in (*([] if kept else [STATE]), WRITER, INDEX, DOOR, LIVE, CONTROL):
        (directory / name).unlink(missing_ok=True)
    shown = [directory / presence.FOLDER, directory / metrics.FOLDER]  # nobody is here any more
    for left in (*shown, *([] if keep else [directory / LOCKS]), *directory.glob("pymp-*")):
        shutil.rmtree(left, ignore_errors=True)
    return count
