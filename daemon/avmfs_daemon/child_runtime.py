"""A child's life: its log, its signals, its conversation with the supervisor, and its end.

Used by every entry function in `entrypoints`. A child ends when it is told to, at SIGTERM, or at once when the
supervisor is gone (its end of the control pipe is then closed by the kernel, however it died).

Threads: one watches the control pipe and SIGTERM for the whole life; `on_stop`, `on_rules`, `on_admit` and
`on_orphaned` are called there.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any, Final

from avmfs_config import ConfigError

from avmfs import metrics, wire
from avmfs.errors import AvmError, Busy, Invalid
from avmfs.logs import log_of_daemon
from avmfs.store.files.displaced import Displaced
from avmfs_daemon.child_spec import ChildSpec
from avmfs_daemon.fdstore_client import FdStoreLost
from avmfs_daemon.mountpoint import MountpointError

log = logging.getLogger(__name__)

MESSAGE_LIMIT: Final = 4 * 1024 * 1024
GRACE_S: Final = 3.0
ASK_S: Final = 10.0
APART_S: Final = 0.05  # between two questions of a kind: the supervisor's loop is everybody's


@dataclass
class _Kind:
    """Of questions. ``answer``: the last one, which came ``at``."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    at: float = 0.0
    answer: dict[str, Any] = field(default_factory=dict)


class Questions:
    """What clients have this process ask the supervisor, however many they are: of each kind one at a time, APART_S
    apart. The answer to one without arguments is as long everybody's."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._numbers = itertools.count(1)
        self._kinds: dict[str, _Kind] = {}
        self._answers: dict[int, dict[str, Any] | None] = {}
        self._answered = threading.Condition()

    def ask(self, operation: str, arguments: dict[str, Any]) -> Any:
        """Raises Busy without an answer in time, Invalid for a refusal."""
        kind = self._kinds.setdefault(operation, _Kind())
        if not kind.turn.acquire(timeout=ASK_S):
            raise Busy("too many ask the daemon: ask later")
        try:
            rest = kind.at + APART_S - time.monotonic()
            if arguments or rest <= 0.0:
                time.sleep(max(0.0, rest))
                kind.answer, kind.at = self._asked(operation, arguments), time.monotonic()
            answer = kind.answer
        finally:
            kind.turn.release()
        if "error" in answer:
            raise Invalid(str(answer["error"]))
        return answer.get("value")

    def answered(self, message: dict[str, Any]) -> None:
        with self._answered:
            if message["answer"] in self._answers:
                self._answers[message["answer"]] = message
                self._answered.notify_all()

    def _asked(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        with self._answered:
            self._answers[number] = None
        self._tell({"ask": number, "do": operation, "arguments": arguments})
        with self._answered:
            self._answered.wait_for(lambda: self._answers[number] is not None, ASK_S)
            answer = self._answers.pop(number)
        if answer is None:
            raise Busy("the daemon does not answer")
        return answer


class ChildRuntime:
    """`on_stop(message)` has to make the entry function return; past GRACE_S the process ends regardless, unless
    `lingers(message)` says that it goes on for so many seconds with what is under way."""

    def __init__(self, spec: ChildSpec) -> None:
        self._control = spec.control
        self._sending = threading.Lock()
        self._questions = Questions(self.tell)
        self.ask = self._questions.ask  # the supervisor
        self._over = threading.Event()
        self._wake, self._signalled = socket.socketpair()
        self.on_stop: Callable[[dict[str, Any]], None] = lambda message: os._exit(0)
        self.lingers: Callable[[dict[str, Any]], float] = lambda message: 0.0
        self.on_terminated: Callable[[], None] | None = None  # None: as when told to stop
        self.on_rules: Callable[[dict[str, Any]], None] = lambda message: None
        self.on_admit: Callable[[dict[str, Any]], None] = lambda message: None
        self.on_orphaned: Callable[[], None] = lambda: None

    def ready(self) -> None:
        """Tell the supervisor that this child serves."""
        self.tell({"ready": True})

    def tell(self, message: dict[str, Any]) -> None:
        # A supervisor that is gone is noticed by the watching thread.
        with self._sending, contextlib.suppress(OSError):
            self._control.send_bytes(wire.pack(message))

    def figures(self, of: str, said: dict[str, Any]) -> None:
        """What `status` shows of a part of the daemon."""
        self.tell({"figures": said, "of": of})

    def begin(self) -> None:
        self._signalled.setblocking(False)
        signal.set_wakeup_fd(self._signalled.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda number, frame: None)  # the byte in the wakeup descriptor is what counts
        for ignored in (signal.SIGINT, signal.SIGHUP):
            signal.signal(ignored, signal.SIG_IGN)
        threading.Thread(target=self._watch, name="supervisor", daemon=True).start()

    def end(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while True:
            if self._wake in connection.wait([self._control, self._wake]):
                self._wake.recv(64)
                if self.on_terminated is not None:
                    self.on_terminated()
                self._stop({})
            try:
                message = wire.unpack(self._control.recv_bytes(MESSAGE_LIMIT)) if self._control.poll() else {}
            except (EOFError, OSError, wire.FrameError):
                with contextlib.suppress(Exception):  # nothing may keep an orphan alive
                    self.on_orphaned()
                os._exit(0)
            if "stop" in message:
                self._stop(message)
            elif "rules" in message:
                self.on_rules(message)
            elif "admit" in message:
                self.on_admit(message["admit"])
            elif "answer" in message:
                self._questions.answered(message)

    def _stop(self, message: dict[str, Any]) -> None:
        lingers = 0.0
        try:
            self.on_stop(message)
            if lingers := self.lingers(message):
                self.tell({"lingers": lingers})
            else:
                self._over.wait(GRACE_S)
        finally:
            if not lingers:
                os._exit(0)


@contextlib.contextmanager
def living(spec: ChildSpec) -> Iterator[ChildRuntime]:
    """The frame of an entry function: afterwards the process is gone, with an error told if there was one."""
    log_of_daemon(spec.name, as_json=spec.settings.log.format == "json")
    with contextlib.suppress(OSError):  # Linux: what `ps -o comm` and `top` show
        Path("/proc/self/comm").write_text(f"avm {spec.name.removeprefix('mount ')}"[:15])
    if spec.settings.http.metrics:
        try:
            metrics.begin(spec.runtime_dir / metrics.FOLDER, spec.name)
        except OSError as e:
            log.warning("what this process does is not counted for others: %s", e)
    runtime = ChildRuntime(spec)
    runtime.begin()
    code = 1
    try:
        yield runtime
        code = 0
    except (AvmError, ConfigError, Displaced, MountpointError, FdStoreLost) as e:
        log.error("%s", e)
        runtime.tell({"error": str(e)})
    except BaseException as e:  # a child's main: whatever it is, it is logged and reported
        log.exception("ended by an error")
        runtime.tell({"error": f"{type(e).__name__}: {e}".splitlines()[0]})
    finally:
        runtime.end()
        logging.shutdown()
        os._exit(code)
