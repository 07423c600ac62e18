"""Calling the door of a running daemon.

Owns the client's side of the protocol. Light on purpose: a command that only asks the daemon imports this, the
wire and the errors, and no store, numpy or model.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from avmfs import wire
from avmfs.errors import NO_TEXT, Busy, Invalid, TooBig, from_wire
from avmfs.rpc import times

WAIT_S = 30.0  # that one call of ``inbox`` waits: nobody's thread is held for long by a client that is gone
REQUEST_LIMIT = 16 * 1024 * 1024  # bytes; the door hangs up on more
BODY_MOST: Final = REQUEST_LIMIT * 3 // 2  # bytes of an HTTP request: what the door takes, as base64
CONNECT_S = 5.0  # for a daemon whose queue of new clients is full


class Door(Protocol):
    """Somewhere methods can be called: a daemon, or this process itself."""

    agent: str  # who it speaks for
    urgent: str  # banner of unread urgent mail, as of the last call

    def call(self, method: str, /, **arguments: Any) -> Any: ...
    def close(self) -> None: ...


class OpenDoor(Door, Protocol):
    """One that is kept open from call to call."""

    def ended(self) -> bool:
        """Whether another is to be opened in its place."""


class RemoteDoor:
    """A daemon's door, as one agent, or whose ``key`` this is. Threads may share it; calls are one after the other."""

    def __init__(
        self,
        address: Path,
        agent: str | None,
        *,
        operator: bool = False,
        timeout_s: float = 120.0,
        key: str = "",
        route: str = "",
        stranger: bool = False,
        owner: int | None = None,
    ) -> None:
        """``owner``: whose daemon it has to be, where that is known."""
        how: dict[str, Any] = {"operator": operator, "timeout_s": timeout_s, "key": key, "route": route}
        how |= {"stranger": stranger, "owner": owner}
        self.urgent = ""
        self.again = partial(RemoteDoor, address, agent, **how)  # another one like this
        self._mutex = threading.Lock()
        self._number = 0
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.settimeout(timeout_s)
        try:
            _connect(self._sock, address, owner)
            with contextlib.suppress(BrokenPipeError):  # turned away already: what comes next is why
                greeting = {"v": wire.PROTOCOL, "agent": agent, "operator": operator, "route": route}
                greeting |= ({"key": key} if key else {}) | ({"stranger": True} if stranger else {})
                wire.send(self._sock, greeting)
            reply = wire.receive(self._sock)
        except (OSError, EOFError) as e:
            self._sock.close()
            raise Busy(f"the daemon does not answer ({e})", os.fspath(address)) from e
        if "error" in reply:
            self._sock.close()
            raise from_wire(*reply["error"])
        self.agent = str(reply["ok"]["agent"])

    def call(self, method: str, /, **arguments: Any) -> Any:
        """The method's result. Raises what it raised; Busy when the daemon went away; TooBig for more bytes than it
        takes at once."""
        with self._mutex:
            self._number += 1
            try:
                request = wire.frame({"id": self._number, "method": method, "arguments": times.told(arguments)})
            except UNSENDABLE as e:
                raise unsendable(method, arguments, e) from None
            if len(request) > REQUEST_LIMIT:
                raise TooBig(
                    f"{len(request)} bytes at once; a daemon takes {REQUEST_LIMIT}: write it through a mount, or in"
                    " pieces with append"
                )
            try:
                self._sock.sendall(request)
                reply = wire.receive(self._sock)
            except (OSError, EOFError, wire.FrameError) as e:
                self.close()  # after a time limit, the answer to come would pass for the next one
                raise Busy(f"the daemon went away during {method}; whether it was done is not known ({e})") from e
            self.urgent = reply["urgent"]
        if reply["error"] is not None:
            raise from_wire(*reply["error"])
        return reply["result"]

    def ended(self) -> bool:
        """Whether the daemon has closed this connection, for its silence or with its own end. While a thread waits for
        an answer nobody can tell: then it has not."""
        if not self._mutex.acquire(blocking=False):
            return False
        try:
            if self._sock.fileno() < 0:
                return True
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            return bool(poll.poll(0))  # nothing but its end comes without a request
        finally:
            self._mutex.release()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # a thread that waits for an answer wakes up
        self._sock.close()


def await_mail(ask: Callable[[float], dict[str, Any]], wait: float) -> dict[str, Any]:
    """``ask``, the method ``inbox`` given how long it waits, until something is unread or ``wait`` seconds are over."""
    deadline = time.monotonic() + wait
    while True:
        found = ask(min(WAIT_S, max(0.0, deadline - time.monotonic())))
        if time.monotonic() >= deadline or any(not message["read"] for message in found["messages"]):
            return found


UNSENDABLE: Final = (OverflowError, TypeError, ValueError)


def unsendable(method: str, arguments: dict[str, Any], error: Exception) -> Invalid:
    """Why a call cannot be sent: the argument is named that is of no type of ours, beyond 64 bits or too deep."""
    if isinstance(error, UnicodeEncodeError):
        return Invalid(f"{method}: {NO_TEXT}")
    for name, value in arguments.items():
        try:
            wire.pack(value)
        except TypeError:
            return Invalid(f"{method}: {name}: wrong type {type(value).__name__}")
        except (OverflowError, ValueError) as e:
            return Invalid(f"{method}: {name}: {e}")
    return Invalid(f"{method}: {error}")


def _connect(sock: socket.socket, address: Path, owner: int | None) -> None:
    """connect(2), again while it says EAGAIN: more clients at once than fit in the listener's queue."""
    deadline = time.monotonic() + CONNECT_S
    while True:
        try:
            return wire.connect(sock, address, owner)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
