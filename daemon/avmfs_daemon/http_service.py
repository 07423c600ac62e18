"""The place of the HTTP service in the supervisor: what it listens at, its process, and who is let in by a code.

Owns the listening socket, so that nobody is refused while the process is replaced. Called by the supervisor's loop
alone. It must not know what is served.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import socket
import time
from dataclasses import replace
from typing import Any, Final

from avmfs_config.gossip import Endpoint
from avmfs_config.http import HttpSettings

from avmfs_daemon.child import Child, ChildProcess
from avmfs_daemon.children import Children

log = logging.getLogger(__name__)

USUAL: Final = Endpoint("127.0.0.1", 7654)  # where it listens when somebody asks for it that no setting names
BACKLOG: Final = 128
RETRY_S: Final = 5.0  # before an address that could not be had is tried again
PENDING: Final = 64  # codes that the process was asked for


class HttpService:
    """`follow` the settings, at the start and whenever they change; `close` at the end."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self.settings = HttpSettings()
        self._files: list[tuple[int, int]] = []
        self._bound: Endpoint | None = None
        self._child: Child | None = None
        self._asked_for: Endpoint | None = None  # where, since somebody has asked for it
        self._numbers = itertools.count(1)
        self._pending: dict[int, tuple[ChildProcess, int]] = {}
        self.listener: socket.socket | None = None
        self.problem = ""
        self.next_try = float("inf")  # to `follow` once more

    def wanted(self, settings: HttpSettings) -> HttpSettings:
        """As the configuration says, or as somebody has asked for it since the daemon began."""
        return replace(settings, listen=self._asked_for) if settings.listen is None else settings

    def follow(self, settings: HttpSettings, *, anew: bool = False) -> Child | None:
        """Bring it to these settings; the child that is to be dismissed. ``anew``: every session ends, with the process
        that has them."""
        settings, before = self.wanted(settings), (self.settings, self._files)
        self.settings, self._files = settings, _files(settings)
        if settings.listen != self._bound or (settings.listen is not None and self.listener is None):
            told = self.problem
            self.close()
            self._listen(settings.listen)
            if self.problem and self.problem != told:
                log.error("http: %s", self.problem)
        if self.listener is None:
            ending, self._child = self._child, None
            return ending
        if self._child is None:
            self._child = Child("http", "http")
            self._children.add(self._child)
        elif anew or (self.settings, self._files) != before:
            self._children.replace(self._child)
        return None

    def sign_in(self, process: ChildProcess, number: int, asked: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to the door, which asks for a code; None: it comes later (`admitted`)."""
        if asked["start"] and self.listener is None:
            for where in (USUAL, replace(USUAL, port=0)):  # another daemon of this machine may have the usual one
                if self.listener is None:
                    self._asked_for = where
                    self.follow(replace(self.settings, listen=None))
        child = self._child
        if child is None or child.current is None or child.state != "ready":
            return {"state": self.status()["state"], "problem": self._problem()}
        if len(self._pending) >= PENDING:
            return {"state": "starting", "problem": ""}
        order = next(self._numbers)
        self._pending[order] = (process, number)
        told = {"number": order} | {name: asked[name] for name in ("agent", "operator", "stranger")}
        child.current.stream.tell({"admit": told})
        return None

    def admitted(self, message: dict[Any, Any]) -> None:
        """The process has made a code."""
        if (waiting := self._pending.pop(message["admitted"], None)) is not None:
            process, number = waiting
            answer = {"state": "ready", "url": self.url, "code": message["code"]}
            process.stream.tell({"answer": number, "value": answer})

    def lost(self) -> None:
        """The process has ended: the codes that it was asked for will not come."""
        for process, number in self._pending.values():
            answer = {"state": "starting", "problem": ""}
            process.stream.tell({"answer": number, "value": answer})
        self._pending.clear()

    @property
    def url(self) -> str:
        if self.listener is None:
            return ""
        host, port = self.listener.getsockname()[:2]
        name = self.settings.hosts[0] if self.settings.hosts else f"[{host}]" if ":" in host else host
        return f"{'https' if self.settings.cert else 'http'}://{name}:{port}"

    def status(self) -> dict[str, Any]:
        child = self._child
        state = ("failed" if self.problem else "off") if child is None else child.state
        pid = None if child is None or child.current is None else child.current.pid
        return {"state": state, "url": self.url, "pid": pid} | (
            {"error": problem} if (problem := self._problem()) else {}
        )

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()
        self.listener, self._bound, self.problem, self.next_try = None, None, "", float("inf")

    def _problem(self) -> str:
        return self.problem or (self._child.error if self._child is not None else "")

    def _listen(self, where: Endpoint | None) -> None:
        if where is None:
            return
        try:
            with contextlib.ExitStack() as stack:
                family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
                listener = stack.enter_context(socket.socket(family))
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.setsockopt(
                    socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
                )  # an answer of two pieces waits 40 ms else
                listener.bind((where.host, where.port))
                listener.listen(BACKLOG)
                listener.setblocking(False)
                stack.pop_all()
        except OSError as e:
            self.problem = f"cannot listen on {where}: {e.strerror or e}"
            self.next_try = time.monotonic() + RETRY_S
            return
        self.listener, self._bound = listener, where
        log.info("http: listening on %s", self.url)


def _files(settings: HttpSettings) -> list[tuple[int, int]]:
    """What is another of the certificate and its key once they are renewed."""
    with contextlib.suppress(OSError):
        found = [path.stat() for path in (settings.cert, settings.key) if path is not None]
        return [(each.st_ino, each.st_mtime_ns) for each in found]
    return []
