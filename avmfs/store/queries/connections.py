"""Reading connections of one process, pooled.

Owns them, and the short read transactions on them. Called by the store. Connections are opened lazily, after any fork;
what a forked process inherits is not used and not even closed, which would drop the parent's locks.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import apsw

from avmfs.errors import Invalid, StoreFailed
from avmfs.store.rows.scopes import Scopes
from avmfs.store.schema import database
from avmfs.store.schema.fork_gate import GATE

Pooled = tuple[apsw.Connection, Scopes]


class Connections:
    """See the module. Threads may share it."""

    def __init__(self, path: Path, frozen: bool = False) -> None:
        self.path = path
        self._frozen = frozen
        self._idle: deque[Pooled] = deque()
        self._inherited: list[deque[Pooled]] = []

    def borrow(self) -> Pooled:
        """To be given back by the same thread."""
        GATE.enter()
        try:
            return self._idle.pop()
        except IndexError:
            pass
        try:
            return database.connect(self.path, writable=False, frozen=self._frozen), Scopes()
        except BaseException as e:
            GATE.leave()
            if isinstance(e, Invalid) and not self._frozen:  # it was one of ours when it was opened
                raise StoreFailed(f"the store is damaged: {e.reason}", e.filename) from e
            raise

    def give_back(self, pooled: Pooled) -> None:
        self._idle.append(pooled)
        GATE.leave()

    def forked(self) -> None:
        """This is a new process."""
        self._inherited.append(self._idle)
        self._idle = deque()

    def close(self) -> None:
        with GATE:
            while self._idle:
                self._idle.pop()[0].close()


class Snapshot:
    """A connection in a read transaction that ends with the block. A class, not a generator: this is on every path."""

    __slots__ = ("_connections", "_pooled")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def __enter__(self) -> Pooled:
        self._pooled = self._connections.borrow()
        try:
            self._pooled[0].execute("begin")
        except apsw.Error:
            self._connections.give_back(self._pooled)
            with database.translated(self._connections.path):
                raise
        return self._pooled

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        db = self._pooled[0]
        try:
            if not db.get_autocommit():
                db.execute("commit")
        except apsw.Error:
            with database.translated(self._connections.path):
                raise
        finally:
            self._connections.give_back(self._pooled)
        if isinstance(error, apsw.Error):
            with database.translated(self._connections.path):
                raise error


class Lone:
    """A connection for a single SELECT, which is a read transaction by itself."""

    __slots__ = ("_connections", "_pooled")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def __enter__(self) -> apsw.Connection:
        self._pooled = self._connections.borrow()
        return self._pooled[0]

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._connections.give_back(self._pooled)
        if isinstance(error, apsw.Error):
            with database.translated(self._connections.path):
                raise error
