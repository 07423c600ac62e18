"""Making commits survive power loss beside the writer's loop.

Owns a descriptor of the write-ahead log, and a thread that syncs it. The writer's connection commits with
``synchronous=normal``: the frames of a commit are written, not yet synced (wal.c). What ``synchronous=full`` adds is
one fdatasync of the log after them, which is done here: one for all commits that wait, while the next ones are being
applied. Until then their authors are not answered. A second descriptor of the log is harmless: SQLite's locks are on
the -shm file and the database.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

QUICK_S: Final = 0.0005  # a sync that takes no longer costs all who ask less than the way to another thread and back
RECENT: Final = 16  # syncs by which the disk is judged

Waiting = TypeVar("Waiting")


class LogSync(Generic[Waiting]):
    """Syncs, in this thread (``now``) or beside it (``after``). ``wake`` is called in the other thread when something
    can be taken with ``done``."""

    def __init__(self, database: Path, wake: Callable[[], None]) -> None:
        self._fd = os.open(f"{os.fspath(database)}-wal", os.O_RDWR | os.O_CLOEXEC)
        self._wake = wake
        self._asked: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Waiting] = queue.SimpleQueue()
        self._under_way = 0
        self._took: deque[float] = deque(maxlen=RECENT)  # seconds
        self._failure: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Is nobody waiting for the other thread?"""
        return self._under_way == 0

    @property
    def quick(self) -> bool:
        """Is the disk done before anything else could be? The shortest sync tells: others waited for a processor."""
        return min(self._took, default=math.inf) < QUICK_S

    def now(self) -> None:
        """Returns when every commit made so far is on the disk. Raises OSError when that cannot be had."""
        begun = time.monotonic()
        os.fdatasync(self._fd)
        self._took.append(time.monotonic() - begun)

    def after(self, waiting: Waiting) -> None:
        """Once every commit made so far is on the disk, ``waiting`` comes out of ``done``."""
        self._under_way += 1
        self._asked.put(waiting)

    def done(self) -> list[Waiting]:
        """What may be answered now, oldest first. Raises OSError when a sync failed: what was waiting is not safe."""
        if self._failure is not None:
            raise self._failure
        found: list[Waiting] = []
        while not self._done.empty():
            found.append(self._done.get_nowait())
        self._under_way -= len(found)
        return found

    def close(self) -> None:
        """Finish what was asked; ``done`` has it."""
        self._asked.put(None)
        self._thread.join()
        os.close(self._fd)

    def _run(self) -> None:
        over = False
        while not over:
            waiting = [self._asked.get()]
            while not self._asked.empty():  # one sync serves all who wait
                waiting.append(self._asked.get_nowait())
            over = None in waiting
            try:
                self.now()
            except OSError as e:
                log.critical("the store's log cannot be written to the disk: %s", e)
                self._failure = e
                over = True
            else:
                for one in waiting:
                    if one is not None:
                        self._done.put(one)
            self._wake()
