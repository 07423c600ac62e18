"""The holder: a process that keeps descriptors while those who use them die.

Run as a program of its own by the supervisor, with a listening socket and a time limit; imports the standard library
only, so that it stays small. It knows boxes, names and descriptors, and nothing of what they are. It outlives a
supervisor that is killed; when no other one has come within the limit, it closes everything and ends, and whoever
waits for a mount that it held gets an error. The other end is `fdstore_client`.

Protocol: messages of JSON over SOCK_SEQPACKET, {"do", "box", "name"}, a descriptor beside a "put". "take" and "get"
are answered by one {"name"} per descriptor and a last {"end"}; "boxes" by {"boxes": {box: about}, "pid"}; "sync" by
{"end"}; the others by nothing. A connection that says "watch" is a supervisor's; "listen" comes with another listening
socket, where the name of the one before has vanished.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from typing import Any

MESSAGE = 64 * 1024
PATIENCE_S = 5.0  # for a peer to take its answer, and for the first one to come


class FdStore:
    """The loop. One thread."""

    def __init__(self, listener: socket.socket, limit_s: float) -> None:
        self._listener = listener
        self._limit_s = limit_s
        self._selector = selectors.DefaultSelector()
        self._entries: dict[str, dict[str, int]] = {}
        self._about: dict[str, Any] = {}
        self._watching: set[socket.socket] = set()
        self._alone_since = time.monotonic() + PATIENCE_S  # whoever has started it comes
        self._ended = False

    def run(self) -> None:
        """Until told to end, or alone for too long."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        while not self._ended:
            left = None if self._watching else self._alone_since + self._limit_s - time.monotonic()
            if left is not None and left <= 0:
                break
            for key, _ in self._selector.select(left):
                if key.fileobj is self._listener:
                    sock, _ = self._listener.accept()
                    sock.settimeout(PATIENCE_S)
                    self._selector.register(sock, selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket):
                    self._read(key.fileobj)

    def _read(self, sock: socket.socket) -> None:
        descriptors: list[int] = []
        try:
            data, descriptors, _, _ = socket.recv_fds(sock, MESSAGE, 1)
            message = json.loads(data) if data else None
            if isinstance(message, dict):
                self._do(sock, message, descriptors)
                return
        except (OSError, ValueError):
            pass
        finally:
            for descriptor in descriptors:  # what a put did not take
                os.close(descriptor)
        self._selector.unregister(sock)
        sock.close()
        if sock in self._watching:
            self._watching.discard(sock)
            self._alone_since = time.monotonic()

    def _do(self, sock: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
        what, fd_entry, name = (str(message.get(key, "")) for key in ("do", "box", "name"))  # boxes, on the wire
        held = self._entries.get(fd_entry, {})
        if what == "put" and descriptors:
            self._drop(fd_entry, name)
            self._entries.setdefault(fd_entry, {})[name] = descriptors.pop()
        elif what == "drop":
            self._drop(fd_entry, name)
        elif what == "discard":
            for each in list(held):
                self._drop(fd_entry, each)
            self._entries.pop(fd_entry, None)
            self._about.pop(fd_entry, None)
        elif what == "about":
            self._entries.setdefault(fd_entry, {})
            self._about[fd_entry] = message.get("value")
        elif what in ("take", "get"):
            for each, descriptor in held.items():
                if what == "take" or each == name:
                    socket.send_fds(sock, [json.dumps({"name": each}).encode()], [descriptor])
            sock.send(b'{"end": true}')
        elif what == "boxes":
            about = {each: self._about.get(each) for each in self._entries}
            sock.send(json.dumps({"boxes": about, "pid": os.getpid()}).encode())
        elif what == "sync":
            sock.send(b'{"end": true}')
        elif what == "watch":
            self._watching.add(sock)
        elif what == "listen" and descriptors:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = socket.socket(fileno=descriptors.pop())
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif what == "end":
            self._ended = True

    def _drop(self, fd_entry: str, name: str) -> None:
        descriptor = self._entries.get(fd_entry, {}).pop(name, None)
        if descriptor is not None:
            os.close(descriptor)


def main(listener: int, limit_s: float) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # a terminal's, or a service manager's: only its supervisor ends it
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as comm:
        comm.write("avm holder")
    with socket.socket(fileno=listener) as sock:
        FdStore(sock, limit_s).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
