"""The fd store seen from outside: starting it, finding one that outlived its supervisor, and one mount's entry in it.

Called by the supervisor (`FdStoreClient`) and by mount children (`FdStoreEntry`). See `fdstore` for the protocol.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from avmfs_config import Mount

from avmfs import wire
from avmfs.store.files.displaced import OpenStoreFiles
from avmfs_daemon import fdstore, runtime
from avmfs_daemon.mountpoint import mounts_at

log = logging.getLogger(__name__)

SOCKET = "hold.sock"
ANSWER_S = 5.0
LIMIT_S = 60.0  # without a supervisor; AVM_HOLD_S
COME_BACK_S = 10.0  # for the supervisor to start another holder
PROCESS, BELOW = "process", "below"  # a pidfd of the child; the directory under the mount
_OURS = (PROCESS, BELOW)


def identity(mount: Mount | None, database: Path, device: str) -> dict[str, Any]:
    """What has to be the same for a mount of a supervisor before to be gone on with: its entry in the configuration,
    the store, the kernel's name of the mount."""
    found = database.stat()
    return {"mount": repr(mount), "store": [found.st_dev, found.st_ino], "device": device}


class FdStoreLost(runtime.RuntimeProblem):
    """The holder does not answer."""


class _Line:
    """One connection. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._mutex = threading.Lock()
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(ANSWER_S)
        try:
            wire.connect(self.sock, path)
        except OSError as e:
            self.sock.close()
            raise FdStoreLost(f"{path}: {e.strerror or e}") from None

    def say(self, do: str, descriptor: int | None = None, **what: Any) -> None:
        data = json.dumps({"do": do, **what}).encode()
        try:
            with self._mutex:
                socket.send_fds(self.sock, [data], [] if descriptor is None else [descriptor])
        except OSError as e:
            raise FdStoreLost(str(e)) from None

    def ask(self, do: str, **what: Any) -> tuple[dict[str, Any], dict[str, int]]:
        """The last message of the answer, and the descriptors that came with those before."""
        found: dict[str, int] = {}
        try:
            with self._mutex:
                self.sock.send(json.dumps({"do": do, **what}).encode())
                while True:
                    data, descriptors, _, _ = socket.recv_fds(self.sock, fdstore.MESSAGE * 4, 1)
                    if not data:
                        raise FdStoreLost("closed")
                    message = json.loads(data)
                    if "name" not in message:
                        return message, found
                    if descriptors:  # else this process may have no more of them
                        os.set_inheritable(descriptors[0], False)
                        found[message["name"]] = descriptors[0]
        except (OSError, ValueError, FdStoreLost) as e:
            for descriptor in found.values():
                os.close(descriptor)
            raise FdStoreLost(str(e)) from None


class FdStoreClient:
    """The supervisor's side. `fd_entries` are those of a holder that was found, with what their mounts said of
    themselves; `pid` is the holder's."""

    def __init__(self, directory: Path, limit_s: float) -> None:
        self.path = directory / SOCKET
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None  # None: one that was found
        self.fd_entries: dict[str, dict[str, Any]] = {}
        self.pid = 0
        try:
            self._line = _Line(self.path)
            self._found_at = OpenStoreFiles(self.path)
            self._line.say("watch")
            said, _ = self._line.ask("boxes")
            self.pid = int(said["pid"])
            self.fd_entries = {name: about for name, about in said["boxes"].items() if isinstance(about, dict)}
            for name in said["boxes"].keys() - self.fd_entries.keys():
                self.discard(name)
        except FdStoreLost:
            self._start()

    @property
    def descriptor(self) -> int:
        """Readable when the holder is gone."""
        return self._line.sock.fileno()

    def again(self) -> None:
        """After its end: another holder. Children find it by themselves. RuntimeProblem, OSError: can be repeated."""
        self._line.sock.close()
        self.pid = 0  # it may be another process's by now
        if self._process is not None:
            self._process.kill()  # one that could not be reached when it was started
            self._process.wait()
        self._start()

    def fits(self, fd_entry: str, mount: Mount, database: Path) -> bool:
        """Return whether it is the entry of just this mount, still mounted, with nobody serving it any more."""
        there = mounts_at(mount.mountpoint)
        if not there or self.fd_entries[fd_entry] != identity(mount, database, there[-1].device):
            return False
        process = self.get(fd_entry, PROCESS)
        if process is None:
            return False
        try:
            return end_process(process)
        finally:
            os.close(process)

    def put(self, fd_entry: str, name: str, descriptor: int) -> None:
        with self._answering(f"{name} of a mount is not held"):
            self._line.say("put", descriptor, box=fd_entry, name=name)

    def get(self, fd_entry: str, name: str) -> int | None:
        with self._answering(f"{name} of a mount is not to be had"):
            return self._line.ask("get", box=fd_entry, name=name)[1].get(name)
        return None

    def discard(self, fd_entry: str) -> None:
        """Close everything in an entry: the kernel ends the mount with its last descriptor."""
        with self._answering("a box is not emptied"):
            self._line.say("discard", box=fd_entry)
            self._line.ask("sync")

    @contextlib.contextmanager
    def _answering(self, what: str) -> Iterator[None]:
        """A holder that hangs may not hold up the supervisor: it is ended, and replaced when that is noticed."""
        try:
            yield
        except FdStoreLost as e:
            log.error("%s: %s", what, e)
            if self.pid > 1:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(self.pid, signal.SIGKILL)

    def leave(self) -> None:
        """To whoever comes next, within the limit."""
        self._line.sock.close()

    def end(self) -> None:
        with _logged("the holder is not ended"):
            self._line.say("end")
        self._line.sock.close()
        self.path.unlink(missing_ok=True)
        if self._process is not None:
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def listen_again(self) -> None:
        """Where the holder's socket has vanished, let it be found again. Raises RuntimeProblem."""
        if self._found_at.displaced():
            with self._listener() as listener, self._answering("the holder cannot be found again"):
                self._line.say("listen", listener.fileno())

    def _listener(self) -> socket.socket:
        listener = runtime.listen(self.path, 0o600, socket.SOCK_SEQPACKET)
        self._found_at = OpenStoreFiles(self.path)
        return listener

    def _start(self) -> None:
        with self._listener() as listener:
            self._process = subprocess.Popen(
                [sys.executable, "-ISB", fdstore.__file__, str(listener.fileno()), str(self._limit_s)],
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        self.pid = self._process.pid
        self._line = _Line(self.path)
        self._line.say("watch")


def end_left(directory: Path) -> bool:
    """End a holder that has outlived its supervisor, and what it held. Was there one?"""
    try:
        line = _Line(directory / SOCKET)
        line.say("end")
        with contextlib.suppress(TimeoutError, OSError):
            line.sock.recv(1)  # its end
    except FdStoreLost:
        return False
    finally:
        (directory / SOCKET).unlink(missing_ok=True)
    return True


def pid_of_left(directory: Path, *, with_mounts: bool = False) -> int | None:
    """The process of a holder that answers, and has mounts that can be gone on with. Its time limit goes on."""
    try:
        line = _Line(directory / SOCKET)
        with contextlib.closing(line.sock):
            said, _ = line.ask("boxes")
            return int(said["pid"]) if not with_mounts or any(said["boxes"].values()) else None
    except (FdStoreLost, KeyError, TypeError, ValueError):
        return None


def end_process(pidfd: int) -> bool:
    """Make sure that a child of a supervisor before is gone. False when it does not go."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    return bool(select.select([pidfd], [], [], 2.0)[0])


class FdStoreEntry:
    """A mount child's entry: see avmfs.fuse.handover.FdEntry. When the holder is replaced, everything is put there
    again."""

    def __init__(self, directory: Path, name: str) -> None:
        self._path = directory / SOCKET
        self._name = name
        self._line = self._connected()
        self._put: dict[str, int] = {}
        self._about: dict[str, Any] | None = None
        self.put(PROCESS, os.pidfd_open(os.getpid()))
        threading.Thread(target=self._watch, name="box", daemon=True).start()

    def put(self, name: str, descriptor: int) -> None:
        self._put[name] = descriptor
        with _logged(f"{name} is not held"):
            self._line.say("put", descriptor, box=self._name, name=name)

    def drop(self, name: str) -> None:
        self._put.pop(name, None)
        with _logged(f"{name} is still held"):
            self._line.say("drop", box=self._name, name=name)

    def take(self) -> dict[str, int]:
        line = _Line(self._path)  # the other one is being watched
        with contextlib.closing(line.sock), _logged("nothing can be taken over"):
            _, found = line.ask("take", box=self._name)
            for name in _OURS:
                if (descriptor := found.pop(name, None)) is not None:
                    os.close(descriptor)
            self._put.update(found)
            return found
        return {}

    def empty(self) -> None:
        for name in [name for name in self._put if name not in _OURS]:
            os.close(self._put[name])
            self.drop(name)

    def tell(self, about: dict[str, Any]) -> None:
        """What a supervisor after this one has to know before it goes on with the mount."""
        self._about = about
        with _logged("the mount is not described"):
            self._line.say("about", box=self._name, value=about)

    def _connected(self) -> _Line:
        """Waits for the supervisor to replace a holder that has ended."""
        deadline = time.monotonic() + COME_BACK_S
        while True:
            try:
                return _Line(self._path)
            except FdStoreLost:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _watch(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                select.select([self._line.sock], [], [])  # nothing comes but the end
            try:
                self._line = self._connected()
            except FdStoreLost as e:
                log.error("this mount will not survive its process: %s", e)
                return
            for name, descriptor in list(self._put.items()):
                self.put(name, descriptor)
            if self._about is not None:
                self.tell(self._about)


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    try:
        yield
    except FdStoreLost as e:
        log.error("%s: %s", what, e)
