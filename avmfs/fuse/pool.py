"""Threads for requests that may wait: commits, slow views, lock waits.

Owns the workers. They are made as needed and kept while there is work, so that a hundred parked readers of
``:inbox?wait=`` do not keep a commit waiting for a thread.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

IDLE_S = 30.0
MOST = 512


class Pool:
    """``submit`` never blocks its caller, but past MOST waiting tasks they queue."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._idle = 0
        self._threads = 0
        self._mutex = threading.Lock()

    def submit(self, task: Callable[[], None]) -> None:
        with self._mutex:
            grow = self._idle == 0 and self._threads < MOST
            if grow:
                self._threads += 1
            elif self._idle:
                self._idle -= 1
        self._tasks.put(task)
        if grow:
            threading.Thread(target=self._work, name="request", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=IDLE_S)
            except queue.Empty:
                with self._mutex:
                    # Somebody may have counted on this thread between the time-out and here.
                    if self._tasks.empty():
                        self._idle = max(0, self._idle - 1)
                        self._threads -= 1
                        return
                continue
            task()
            with self._mutex:
                self._idle += 1
