"""Running commands in transactions: savepoints, rollbacks, and what has to be forgotten with them.

Owns the one writable connection of its process. Called by the writer, which batches, and by direct mode, which does
not. Knows no sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from avmfs.access import Policy, Principal
from avmfs.store import commands, database
from avmfs.store.sinks import Event
from avmfs.store.transaction import IndexRules, Scopes, Tx


class Applier:
    """See the module. One thread."""

    def __init__(
        self, path: Path, policy: Policy, index: IndexRules, *, orphans: bool, clock: Callable[[], int]
    ) -> None:
        self.path = path
        self.db = database.connect(path, writable=True)
        self.policy = policy
        self.index = index
        self._orphans = orphans
        self._clock = clock
        self._scopes = Scopes()
        self.origin = b""  # of the command that is applied next
        self.events: list[Event] = []  # of the commands applied since somebody took them

    def apply(
        self, who: Principal, command: str, arguments: dict[str, Any], record: Callable[[Any], None] | None = None
    ) -> Any:
        """One command in a savepoint of the open transaction, and ``record(reply)`` with it: both or neither.
        Raises domain errors, rolled back."""
        known = self._scopes.interned
        self.db.execute("savepoint request")
        try:
            tx = Tx(self.db, self.policy, self._scopes, who, self._clock(), self._orphans, self.index)
            with database.translated(self.path):
                reply = commands.run(tx, command, arguments)
                if record is not None:
                    record(reply)
            self.events += [Event(self.origin, op, node) for op, node in tx.events]
        except BaseException:
            # SQLite may have ended the whole transaction itself (disk full, I/O error).
            if not self.db.get_autocommit():
                self.db.execute("rollback to request")
                self.db.execute("release request")
            if self._scopes.interned != known:
                self._scopes.forget()
            raise
        self.db.execute("release request")
        return reply

    def alone(self, who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        """One command in a transaction of its own."""
        with database.translated(self.path):
            self.db.execute("begin immediate")
        try:
            reply = self.apply(who, command, arguments)
            with database.translated(self.path):
                self.db.execute("commit")
        except BaseException:
            self.rollback()
            raise
        return reply

    def rollback(self) -> None:
        """After a failure: nothing of the transaction stays, scopes that were interned in it are forgotten. Their
        numbers will be given to others."""
        if not self.db.get_autocommit():
            self.db.execute("rollback")
        self._scopes.forget()

    def set_rules(self, policy: Policy, index: IndexRules) -> None:
        """Other rules from now on: every scope is folded anew before the next request. The old ones stay in force
        when that fails."""
        before = self.policy, self.index
        self.policy, self.index = policy, index
        try:
            self.alone(Principal("avmfs", operator=True), "settle", {})
        except BaseException:
            self.policy, self.index = before
            raise

    def close(self) -> None:
        self.db.close()
