"""A process that can have no more threads, for a moment."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from unittest.mock import patch


@contextlib.contextmanager
def refused_once(name: str) -> Iterator[threading.Event]:
    """The next thread to start whose name begins with ``name`` cannot be; set once it was refused."""
    start, refused = threading.Thread.start, threading.Event()

    def full(thread: threading.Thread) -> None:
        if thread.name.startswith(name) and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    with patch.object(threading.Thread, "start", full):
        yield refused
