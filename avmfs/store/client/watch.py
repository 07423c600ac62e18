"""One watch for all who wait in this process: one connection to the writer and one thread, however many they are.

Owns who is told. Made by the writer's client. Else a few hundred readers of ``:inbox?wait=`` in one mount would take
the descriptors of the process that commits for everybody.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

Notify = Callable[[int], None]


class Watch(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None:
        """Returns when nothing will be notified any more."""
        ...


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
            self._waiting[me] = notify
            if self._watch is None:
                self._newest = None
                self._watch = self._begin(self._tell)
                self._watch.start()
            elif self._newest is not None:
                notify(self._newest)
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
