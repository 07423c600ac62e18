"""fork(2) while other threads are at work in SQLite.

Owns the gate through which a process goes into SQLite. Connections of one process to one file share mutexes, by the
file's inode; one that is locked when a process forks stays so in the child for ever, and the child's own connection
waits for it. So a fork waits until nobody is inside, and who wants in waits until it has been made.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Final

_PATIENCE_S: Final = 10.0  # then it is made as it is: somebody is at a very long question


class _Gate:
    def __init__(self) -> None:
        self.open_in_child()

    def enter(self) -> None:
        """Followed by leave() in the same thread. May be nested."""
        me = threading.get_ident()
        with self._changed:
            while self._forking and me not in self._inside:
                self._changed.wait()
            self._inside[me] = self._inside.get(me, 0) + 1

    def leave(self) -> None:
        me = threading.get_ident()
        with self._changed:
            left = self._inside[me] - 1
            if left:
                self._inside[me] = left
                return
            del self._inside[me]
            if self._forking:
                self._changed.notify_all()

    def sleep(self, seconds: float) -> None:
        """Whoever waits for something of others does so outside: a fork need not wait with him."""
        self.leave()
        try:
            time.sleep(seconds)
        finally:
            self.enter()

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def close(self) -> None:
        """Before a fork: the gate stays locked until one of the two below."""
        me = threading.get_ident()
        self._changed.acquire()
        self._forking = True
        self._changed.wait_for(lambda: not self._inside.keys() - {me}, _PATIENCE_S)

    def open_in_parent(self) -> None:
        self._forking = False
        self._changed.notify_all()
        self._changed.release()

    def open_in_child(self) -> None:
        """Nobody is inside: of all threads there is only this one."""
        self._changed = threading.Condition(threading.Lock())
        self._inside: dict[int, int] = {}  # thread: how many times
        self._forking = False


GATE: Final = _Gate()
os.register_at_fork(before=GATE.close, after_in_parent=GATE.open_in_parent, after_in_child=GATE.open_in_child)
