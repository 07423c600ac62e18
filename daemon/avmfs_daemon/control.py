"""The control socket: how `stop`, `status` and `reload` reach the running daemon.

Owns the server part, which lives in the supervisor's loop and never blocks it, and the clients' functions. One
request per connection, in `avmfs.wire` frames: {"v", "do"}; the reply is {"ok": value} or {"error": text}.
Only the daemon's own user and root are listened to.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from avmfs_config import Paths

from avmfs import wire
from avmfs.listener import Listener
from avmfs.store.files.store_lock import StoreLock, daemon_in
from avmfs_daemon import runtime
from avmfs_daemon.framed_stream import FRAME_LIMIT, Closed, FramedStream

log = logging.getLogger(__name__)

PEERS = 16
PATIENCE_S = 5.0
ANSWER_S = 30.0  # for requests that take time
MADE_ANEW_S = 5.0  # for a daemon to notice that its socket was removed

T = TypeVar("T")


class NotRunning(Exception):
    """No daemon listens there."""


class ControlError(Exception):
    """The daemon answered that it could not; `str()` is why."""


class Unreachable(ControlError):
    """Whether one listens there cannot be found out."""


class Peer:
    """One connection. `reply` may come later than the request, within ANSWER_S."""

    def __init__(self, server: ControlServer, stream: FramedStream, deadline: float) -> None:
        self._server = server
        self.stream = stream
        self.deadline = deadline
        self.asked = False

    def reply(self, value: dict[str, Any]) -> None:
        self._server.answer(self, value)

    def reply_and_stay(self, value: dict[str, Any]) -> None:
        """The connection stays open until this process ends: that is what the client waits for."""
        self.deadline = float("inf")
        self.reply(value)


class ControlServer:
    """Serves `listener` in the loop of `selector`, whose data are functions of the event mask. `handle(operation,
    peer)` is called once per valid request. Peers past PEERS are turned away, silent ones dropped after PATIENCE_S."""

    def __init__(
        self, listener: socket.socket, selector: selectors.BaseSelector, handle: Callable[[str, Peer], None]
    ) -> None:
        self._listener = Listener(listener, "control")
        self._selector = selector
        self._handle = handle
        self._peers: set[Peer] = set()
        self._register()

    def listen(self, listener: socket.socket) -> None:
        """On this one from now on; who is connected stays."""
        if listener is not self._listener.sock:
            self._selector.unregister(self._listener.sock)
            self._listener = Listener(listener, "control")
            self._register()

    def _register(self) -> None:
        self._selector.register(self._listener.sock, selectors.EVENT_READ, self._accept)

    def next_deadline(self) -> float:
        return min((peer.deadline for peer in self._peers), default=float("inf"))

    def expire(self, now: float) -> None:
        for peer in [peer for peer in self._peers if peer.deadline <= now]:
            self._drop(peer)

    def answer(self, peer: Peer, value: dict[str, Any]) -> None:
        if peer in self._peers:
            peer.stream.tell(value)

    def close(self) -> None:
        for peer in list(self._peers):
            if peer.deadline != float("inf"):
                self._drop(peer)
        self._selector.unregister(self._listener.sock)

    def _accept(self, mask: int) -> None:
        sock = self._listener.accept()
        if sock is None:
            return
        if len(self._peers) >= PEERS or wire.peer_uid(sock) not in (os.geteuid(), 0):
            sock.close()
            return
        peer = Peer(self, FramedStream(sock.detach(), FRAME_LIMIT), time.monotonic() + PATIENCE_S)
        self._peers.add(peer)
        peer.stream.attend(
            self._selector, lambda requests: self._requested(peer, requests), lambda reason: self._drop(peer)
        )

    def _requested(self, peer: Peer, requests: list[Any]) -> None:
        for request in requests:
            operation = request.get("do") if isinstance(request, dict) else None
            if peer.asked or not isinstance(operation, str) or request.get("v") != wire.PROTOCOL:
                raise Closed("not a request of this version")
            peer.asked = True
            peer.deadline = time.monotonic() + ANSWER_S
            self._handle(operation, peer)

    def _drop(self, peer: Peer) -> None:
        self._peers.discard(peer)
        peer.stream.close()


def reached(paths: Paths, do: Callable[[Path], T]) -> T:
    """`do`, given the control socket of the daemon that serves this store: where this environment has it, else where
    the store's lock says that it is. One whose socket was removed is given the time to make it anew. Raises NotRunning
    or ControlError."""
    try:
        return do(paths.runtime_dir / runtime.CONTROL)
    except Unreachable:
        holder = _holder(paths.database)
        if holder is None or (there := Path(holder["socket"]).parent) == paths.runtime_dir:
            raise
        return do(there / runtime.CONTROL)
    except NotRunning:
        deadline = time.monotonic() + MADE_ANEW_S
        while (holder := _holder(paths.database)) is not None:
            try:
                return do(Path(holder["socket"]).parent / runtime.CONTROL)
            except NotRunning:
                if time.monotonic() > deadline:
                    raise ControlError(
                        f"a daemon (pid {holder['pid']}) serves {paths.database}, but cannot be asked: its socket in"
                        f" {Path(holder['socket']).parent} is gone. It will be back when there is room for it;"
                        f" kill {holder['pid']} stops the daemon"
                    ) from None
                time.sleep(0.05)
        raise


def dismiss_automatic(paths: Paths) -> None:
    """End a daemon that a command has started, of this store or in this runtime directory. Raises ControlError."""
    for look in (StoreLock(paths.database).holder, partial(daemon_in, paths.runtime_dir)):
        with contextlib.suppress(PermissionError, NotRunning):
            holder = look()
            if holder is not None and holder.get("automatic"):
                stop(Path(holder["socket"]).parent / runtime.CONTROL, PATIENCE_S + MADE_ANEW_S)


def _holder(database: Path) -> dict[str, Any] | None:
    """The daemon that lives and has the store's lock, if we may know."""
    with contextlib.suppress(PermissionError):
        holder = StoreLock(database).holder()
        if holder is not None and holder["socket"]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder["pid"], 0)
                return holder
    return None


def ask(path: Path, operation: str, timeout_s: float = ANSWER_S) -> Any:
    """One request to the daemon whose control socket is `path`. Raises NotRunning or ControlError."""
    with _asked(path, operation, timeout_s) as (_, value):
        return value


def stop(path: Path, timeout_s: float) -> int:
    """Tell the daemon to stop and wait until it has gone; its pid. Raises NotRunning or ControlError."""
    with _asked(path, "stop", timeout_s) as (sock, value):
        pid = int(value["pid"])
        watched = _watch(pid)
        try:
            while sock.recv(4096):  # the daemon closes the connection with its end
                pass
        except TimeoutError:
            raise ControlError(f"the daemon (pid {pid}) has not stopped within {timeout_s:g} s") from None
        except OSError:
            pass
        if watched is not None:
            select.select([watched], [], [], 2)
            os.close(watched)
        return pid


def _watch(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


@contextlib.contextmanager
def _asked(path: Path, operation: str, timeout_s: float) -> Iterator[tuple[socket.socket, Any]]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout_s)
        try:
            wire.connect(sock, path, 0 if os.geteuid() else None)  # root may ask the daemon of any user
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            raise NotRunning("avm-daemon is not running") from None
        except OSError as e:
            raise Unreachable(f"{path}: {e.strerror or e}") from None
        try:
            wire.send(sock, {"v": wire.PROTOCOL, "do": operation})
            reply = wire.receive(sock, limit=16 * FRAME_LIMIT)
        except (OSError, EOFError, wire.FrameError) as e:
            raise ControlError(f"the daemon does not answer: {e}") from None
        if not isinstance(reply, dict) or "ok" not in reply:
            raise ControlError(str(reply.get("error")) if isinstance(reply, dict) else "not an answer")
        yield sock, reply["ok"]
