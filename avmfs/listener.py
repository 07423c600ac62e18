"""Accepting connections, for every process that listens.

Owns what an accept loop must not get wrong: a client that has gone again is nothing, and without a free descriptor or
thread the loop neither ends nor spins. Called by the writer, the index, the door, live content, gossip and the
supervisor, who decide how many clients they have and what these may say. (The fd store, which must import nothing of
ours, accepts by itself.)
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5  # between two looks at whether it is over
PAUSE_S: Final = 0.05  # the socket stays readable while a client cannot be accepted


class Listener:
    """A listening socket, made non-blocking. One thread at a time."""

    def __init__(
        self, sock: socket.socket, name: str, full: Callable[[], object] = lambda: time.sleep(PAUSE_S)
    ) -> None:
        """``full`` is called when this process can have no more descriptors."""
        sock.setblocking(False)
        self.sock, self._name, self._full = sock, name, full
        self._told = False  # of that, since it was last possible

    def accept(self) -> socket.socket | None:
        """The next client, as a blocking socket; None when there is none."""
        try:
            client, _ = self.sock.accept()
        except (BlockingIOError, ConnectionError):
            return None
        except OSError as e:
            if not self._told:
                log.error("%s: cannot accept: %s", self._name, e)
            self._told = True
            self._full()
            return None
        self._told = False
        client.setblocking(True)
        return client

    def clients(self, stop: threading.Event) -> Iterator[socket.socket | None]:
        """Each that comes, and None every LOOK_S seconds at least, until ``stop`` is set."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.sock, selectors.EVENT_READ)
            while not stop.is_set():
                yield self.accept() if selector.select(LOOK_S) else None


def in_thread(name: str, serve: Callable[..., object], *arguments: Any) -> bool:
    """Have a client served in a thread of its own. False, and said in the log, where there is none to be had: the loop
    goes on, and the client may come again."""
    try:
        threading.Thread(target=serve, args=arguments, name=name, daemon=True).start()
    except RuntimeError as e:
        log.error("%s: %s", name, e)
        return False
    return True
