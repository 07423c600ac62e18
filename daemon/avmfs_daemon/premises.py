"""What others find a running daemon by, and its store with it: kept in place while it runs.

Owns the two locks, the listening sockets, the supervisor's reading of the store, and the look at all of that every two
seconds. A logout removes the runtime directory, cleaners remove single sockets, people remove files whose names look
temporary. What has vanished is made anew, and whoever has only the old one is started anew.

Of the store's own files the log is the one that cannot be made anew: what was committed is in a file that has no name
any more, and others would begin another one. It is put back from the supervisor's descriptor, once no writer lives that
could add to it; then every process that has the old one open is ended, all is moved into the database, and they start
again. Mounts go on with what they had (``takeover``). Until that is done nothing is committed, and ``problem`` says
why.

Called by the supervisor's loop alone.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from avmfs_config import Paths, Settings

from avmfs import wire
from avmfs.api import autostart
from avmfs.store.files.displaced import OpenStoreFiles, described, index_of_log, leads_to, log_of
from avmfs.store.repair import wal_restore
from avmfs.store.store import Store
from avmfs_daemon import runtime
from avmfs_daemon.child_spec import Kind
from avmfs_daemon.children import Children
from avmfs_daemon.runtime import RuntimeProblem

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
STORE_LOCK_S: Final = 10.0  # a writer whose supervisor was killed finishes its commit before it lets go
_SERVING: Final[dict[str, str]] = {
    "index": runtime.INDEX,
    "live": runtime.LIVE,
    "door": runtime.DOOR,
    "writer": runtime.WRITER,
}


class Premises:
    """`next_look` is when `attend` has to be called, on the monotonic clock. Raises RuntimeProblem when somebody else
    is there."""

    def __init__(
        self,
        paths: Paths,
        settings: Settings,
        stack: contextlib.ExitStack,
        is_clean: Callable[[], bool],
        automatic: bool = False,
    ) -> None:
        """`is_clean`: whether everything that was committed is on the disk, as far as the writer knew at its end."""
        self._directory, self._database = paths.runtime_dir, paths.database
        self._settings = settings
        runtime.make_directory(self._directory, traversable=runtime.serves_others(settings))
        about: dict[str, Any] = {
            "pid": os.getpid(),
            "socket": os.fspath(self._directory / runtime.DOOR),
            "mounts_file": os.fspath(paths.mounts_file),
        }
        if automatic:  # it gives way to one that somebody starts
            about["automatic"] = True
        self._own_lock = stack.enter_context(runtime.hold(self._directory / "daemon", 0.5, about))
        self._store_lock = stack.enter_context(runtime.hold(self._database, STORE_LOCK_S, about, is_clean))
        self._listeners: dict[str, socket.socket] = {}
        self._bound: dict[str, OpenStoreFiles] = {}
        self._log = -1
        self._restored = -1  # the log that was put back, until the store is open with it
        self._attending = False
        self.problem = ""
        self.next_look = float("inf")

    @property
    def lock(self) -> int:
        """The descriptor of the store's lock."""
        return self._store_lock.descriptor

    @property
    def control(self) -> socket.socket:
        return self._listeners[runtime.CONTROL]

    def listener_of(self, kind: Kind) -> socket.socket | None:
        """What children of this kind listen at."""
        return self._listeners.get(_SERVING.get(kind, ""))

    def open(self, stack: contextlib.ExitStack, opened: Callable[[], Store]) -> None:
        """Listen, and open the store, which `database.prepare` has seen to."""
        stack.callback(self._close)
        for name in (runtime.WRITER, runtime.INDEX, runtime.LIVE, runtime.CONTROL, runtime.DOOR):
            self._listen(name)
        self._opened = opened
        self._open_store()
        autostart.forget(self._database)
        self.next_look = time.monotonic() + LOOK_S

    def admit(self, settings: Settings) -> None:
        """Let in who may come by these settings."""
        self._settings = settings
        with contextlib.suppress(RuntimeProblem, OSError):  # it will be made with these
            runtime.check_own(self._directory)
            self._directory.chmod(0o711 if runtime.serves_others(settings) else 0o700)
            (self._directory / runtime.DOOR).chmod(runtime.door_mode(settings))

    def attend(self, children_of: Children, anew: Callable[[], None]) -> None:
        """See that all is in place; `anew` is called when the runtime directory's own was made anew, to do the rest."""
        self.next_look = time.monotonic() + LOOK_S
        if self._attending:  # a process that is ended here is heard of here
            return
        self._attending = True
        try:
            problem = self._attended(children_of, anew)
        finally:
            self._attending = False
        if problem and problem != self.problem:
            log.critical("%s", problem)
        elif self.problem and not problem:
            log.warning("no longer so: %s", self.problem)
        self.problem = problem
        for child in children_of.all:
            if child.kind == "door" and child.state == "failed" and not child.processes:
                self._turn_away(child.error)

    def _turn_away(self, reason: str) -> None:
        """Whoever has come to the door, for which no process can be started, and which so nobody else takes in."""
        waiting, listener = select.poll(), self._listeners[runtime.DOOR]
        waiting.register(listener, select.POLLIN)
        with contextlib.suppress(OSError):  # no descriptor: they wait on, or they have gone
            while waiting.poll(0):
                come, _ = listener.accept()
                with come:
                    wire.send(come, {"error": [errno.EAGAIN, f"the daemon's door does not open: {reason}", None]})

    def _attended(self, children_of: Children, anew: Callable[[], None]) -> str:
        """What is not as it should be, and cannot be helped now."""
        writer = [child for child in children_of.all if child.kind == "writer"]
        try:
            displaced = self._files.displaced()
            if self._database in displaced:  # perhaps with all that is beside it: nothing may be made there
                raise RuntimeProblem(f"{described([self._database])}; put it back, or stop the daemon")
            if self._store_lock.renew():
                log.warning("%s: the lock was removed or replaced; taken anew", self._database)
                children_of.halt(writer)  # it has the old one
            if displaced:
                children_of.halt(writer)
                self._put_back(displaced, lambda: children_of.halt(list(children_of.all)))
        except (RuntimeProblem, OSError) as e:
            children_of.halt(writer)
            return f"nothing is written to {self._database}: {e}"
        try:
            if self._directory.is_dir():
                runtime.check_own(self._directory)
        except (RuntimeProblem, OSError) as e:
            children_of.halt([])  # who starts opens files there, which may lead anywhere
            return f"nothing is opened in the runtime directory: {e}"
        children_of.go_on()
        try:
            self._renew_directory(children_of, anew)
        except (RuntimeProblem, OSError) as e:
            return f"the runtime directory cannot be made anew: {e}"
        return ""

    # The runtime directory -----------------------------------------------------------------------------------

    def _renew_directory(self, children_of: Children, anew: Callable[[], None]) -> None:
        if not self._directory.is_dir():
            runtime.make_directory(self._directory, traversable=runtime.serves_others(self._settings))
        renewed = self._own_lock.renew()
        lost = [name for name, bound in self._bound.items() if bound.displaced()]
        for name in lost:
            self._listen(name)
            for child in [child for child in children_of.all if _SERVING.get(child.kind) == name]:
                children_of.replace(child)
        anew()
        if renewed or lost:
            log.warning("%s: removed, and made anew: %s", self._directory, ", ".join(lost) or "its lock")

    def _listen(self, name: str) -> None:
        mode = runtime.door_mode(self._settings) if name == runtime.DOOR else 0o600
        listener = runtime.listen(self._directory / name, mode)
        if (before := self._listeners.get(name)) is not None:
            before.close()
        self._listeners[name] = listener
        self._bound[name] = OpenStoreFiles(self._directory / name)

    # The store's files ---------------------------------------------------------------------------------------

    def _open_store(self) -> None:
        self.store = self._opened()
        # The connection that this opens stays: no process that ends is the last, which would remove the log in order.
        self.store.queue_lengths()
        self._files = OpenStoreFiles(self._database, log_of(self._database), index_of_log(self._database))
        before, self._log = self._log, os.open(log_of(self._database), os.O_RDONLY | os.O_CLOEXEC)
        restored, self._restored = self._restored, -1
        for descriptor in (before, restored):
            if descriptor >= 0:
                os.close(descriptor)

    def _put_back(self, displaced: list[Path], end_all: Callable[[], None]) -> None:
        """Have every process open the files that the names lead to, with all in them that was committed. Nobody writes
        meanwhile. Raises RuntimeProblem, OSError; can be repeated then."""
        log.critical("%s; putting back what was committed", described(displaced))
        name = log_of(self._database)
        if self._restored < 0 or not leads_to(name, self._restored):  # else it only has to be moved
            # Also where it is only the index that is lost: of what is in the log, all is then on the disk for sure.
            restored = wal_restore.restore_log(self._database, self._log, foreign=name in displaced)
            if self._restored >= 0:
                os.close(self._restored)
            self._restored = restored
        end_all()
        self.store.close()
        wal_restore.begin_anew(self._database)
        self._open_store()
        log.warning("%s: all that was committed is in the database", self._database)

    def _close(self) -> None:
        """When no other process is left."""
        for listener in self._listeners.values():
            listener.close()
        if self._log < 0:
            return
        try:
            displaced = self._files.displaced()
            if displaced and self._database not in displaced:
                self._put_back(displaced, lambda: None)
        except (RuntimeProblem, OSError) as e:
            log.critical("%s: what was committed last is lost: %s", self._database, e)
        self.store.close()
        os.close(self._log)
