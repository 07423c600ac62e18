"""A door that stands as long as its program does: in every process that a fork makes, and when the daemon has let go
or has come; and the same to the tree as it was.

Owns when a door is opened anew. A connection or a database handle must not be used on both sides of a fork, so a child
opens its own; and a daemon closes a connection that was silent for long, or with its own end. Called by the Python API.
Threads may share one. What a child inherits is left alone, never closed: it is its parent's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakSet

from avmfs.errors import Busy, Invalid, ReadOnly
from avmfs.rpc.client import Door, OpenDoor, RemoteDoor
from avmfs.rpc.tracing import traced


class ReconnectingDoor:
    """``opener`` is told whether this process is a fork's child. ``door`` raises what it raises. ``store`` names the
    memory in traces."""

    def __init__(self, opener: Callable[[bool], OpenDoor], store: str) -> None:
        self._opener, self._store = opener, store
        self._mutex = threading.Lock()
        self._left: list[OpenDoor] = []  # of a parent: dropping the last reference would close them
        self._closed = self._forked = False
        self._door: OpenDoor | None = opener(False)
        _STANDING.add(self)

    @property
    def door(self) -> Door:
        """The one of this process, open. Raises Invalid once it has been closed."""
        return traced(self._opened(), self._store)

    def _opened(self) -> OpenDoor:
        door = self._door
        if door is not None and not door.ended():
            return door
        with self._mutex:
            if self._closed:
                raise Invalid("closed: open another")
            if self._door is door:
                try:
                    self._door = self._opener(self._forked)
                except Busy:
                    if door is None or isinstance(door, RemoteDoor):
                        raise
                    return door  # the daemon that has the store by now does not listen yet: reading needs none
                if door is not None:
                    door.close()
            assert self._door is not None
            return self._door

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            door, self._door = self._door, None  # what it held in memory goes with it
        if door is not None:
            door.close()

    def after_fork(self) -> None:
        self._mutex = threading.Lock()  # a thread that no longer exists may hold the other
        self._forked = True
        if self._door is not None and not self._closed:
            self._left.append(self._door)
            self._door = None


_STANDING: WeakSet[ReconnectingDoor] = WeakSet()


def _forked() -> None:
    for each in list(_STANDING):
        each.after_fork()


os.register_at_fork(after_in_child=_forked)


_BY_PATH: Final = frozenset(("entries", "history", "links", "listing", "read", "tree", "version"))
_BELOW: Final = frozenset(("recall", "search"))
_ANYWHEN: Final = frozenset(("inbox", "urgent", "user", "warmup"))


class PastDoor:
    """``door``, whose paths are those of then. Raises ReadOnly for all but reading, listing and searching."""

    def __init__(self, door: Door, at: str) -> None:
        self.inner, self._at = door, at
        self.agent, self.urgent = door.agent, door.urgent

    def call(self, method: str, /, **arguments: Any) -> Any:
        key = "path" if method in _BY_PATH else "under" if method in _BELOW else None
        if key is not None:
            arguments[key] = f"/@{self._at}/{str(arguments.get(key) or '/').lstrip('/')}"
        elif method not in _ANYWHEN:
            raise ReadOnly("the past can only be read, listed and searched")
        return self.inner.call(method, **arguments)

    def close(self) -> None:
        self.inner.close()


class PastConnection(ReconnectingDoor):
    """See ReconnectingDoor."""

    def __init__(self, opener: Callable[[bool], OpenDoor], store: str, at: str) -> None:
        self._at = at
        super().__init__(opener, store)

    @property
    def door(self) -> Door:
        return PastDoor(super().door, self._at)
