"""One watch for all who wait in this process: one connection to the writer and one thread, however many they are.

Owns who is told. Made by the writer's client. Else a few hundred readers of ``:inbox?wait=`` in one mount would take
the descriptors of the process that commits for everybody.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from avmfs import wire

Notify = Callable[[int], None]


class Watch(threading.Thread):
    """One watcher's connection to the writer, made anew whenever it ends, until ``stop``."""

    def __init__(self, address: Path, greeting: dict[str, Any], notify: Notify) -> None:
        super().__init__(name="watch", daemon=True)
        self._address, self._greeting, self._notify = address, greeting, notify
        self._over = threading.Event()
        self._mutex = threading.Lock()
        self._sock: socket.socket | None = None

    def run(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(OSError, EOFError, wire.FrameError), socket.socket(socket.AF_UNIX) as sock:
                with self._mutex:
                    self._sock = sock
                wire.connect(sock, self._address)
                wire.send(sock, self._greeting)
                frames = wire.Assembler()
                while data := sock.recv(65536):
                    if self._over.is_set():
                        break
                    for (seq,) in frames.feed(data)[-1:]:
                        self._notify(seq)
            self._over.wait(0.05)

    def stop(self) -> None:
        """Returns when nothing will be notified any more."""
        self._over.set()
        with self._mutex, contextlib.suppress(OSError):  # not connected, or closed already
            if self._sock is not None:
                self._sock.shutdown(socket.SHUT_RDWR)
        self.join(2)


class SharedWatch:
    """``begin`` makes a watch that tells of what is given to it, at its start and then of commits. Threads share it."""

    def __init__(self, begin: Callable[[Notify], Watch]) -> None:
        self._begin = begin
        self._mutex = threading.Lock()
        self._waiting: dict[object, Notify] = {}
        self._watch: Watch | None = None
        self._newest: int | None = None  # what the watch has told last

    @contextlib.contextmanager
    def joined(self, notify: Notify) -> Iterator[None]:
        """``notify`` is told what a watch of its own would tell it, until the block ends. It must not wait."""
        me = object()
        with self._mutex:
            if self._watch is None:
                self._newest = None
                watch = self._begin(self._tell)
                watch.start()  # where there is no thread for it, nobody waits for it either
                self._watch = watch
            elif self._newest is not None:
                notify(self._newest)
            self._waiting[me] = notify
        try:
            yield
        finally:
            over = None
            with self._mutex:
                del self._waiting[me]
                if not self._waiting:
                    over, self._watch = self._watch, None
            if over is not None:
                over.stop()

    def _tell(self, seq: int) -> None:
        with self._mutex:
            self._newest = seq
            for notify in self._waiting.values():
                notify(seq)
