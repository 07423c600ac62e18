"""Running commands in transactions: savepoints, rollbacks, and what has to be forgotten with them.

Owns the one writable connection of its process. Called by the writer, which batches, and by direct mode, which does
not. Knows no sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from avmfs.access import Policy, Principal
from avmfs.errors import AvmError
from avmfs.store import commands
from avmfs.store.rows.api_keys import require_valid
from avmfs.store.rows.log_ops import Event
from avmfs.store.rows.nodes import LogRow
from avmfs.store.rows.stored_policy import stored_people
from avmfs.store.schema import database
from avmfs.store.tx import audit_rows
from avmfs.store.tx.memo import WriterMemo
from avmfs.store.tx.quota import Charges
from avmfs.store.tx.states import States
from avmfs.store.tx.transaction import IndexRules, Tx

_NEWEST = "select max(seq) from log"


class Applier:
    """See the module. One thread. ``shared``: other processes write too, between this one's transactions."""

    def __init__(
        self,
        path: Path,
        policy: Policy,
        index: IndexRules,
        *,
        orphans: bool,
        clock: Callable[[], int],
        shared: bool = False,
    ) -> None:
        self.path = path
        self.db = database.connect(path, writable=True)
        self.do = self.db.cursor().execute  # see Tx.do
        self.policy = policy  # as configured, joined by the agents that the store itself knows of
        self._configured = policy
        self._charges = Charges(self.db)
        self._states = States(self.db)
        self.short: Callable[[], bool] = lambda: False  # is there no room for what could be done without?
        self.index = index
        self._orphans = orphans
        self._clock = clock
        self.admit: Callable[[str, dict[str, Any]], None] | None = None  # says which commands there is room for
        self.weigh: Callable[[str], None] = lambda command: None  # and whether there was, of one that has been done
        self._shared = shared
        self._known = WriterMemo()
        if not shared:
            database.run(self.db, "pragma synchronous = normal")  # and LogSync does the rest
            self._known.watch(self.db)
        self._stale = True  # what is known has to be read anew before the next request
        self._untouched: bool  # is a transaction open in which nothing has been done?
        self._translated = database.translated(path)
        self.origin = b""  # of the command that is applied next
        # Of the commands applied since somebody took them: what caches have to hear of, and the rows of the log.
        self.events: list[Event] = []
        self.rows: list[LogRow] = []
        self.words: list[tuple[int, str | None]] | None = None  # as of Tx, where other hosts have to hear of them
        self.seq: int = self.db.execute(_NEWEST).get or 0  # the newest row appended to the log,
        self._before = self.seq  # before this transaction

    def begin(self) -> None:
        """Open a transaction that may write."""
        with self._translated:
            self.do("begin immediate")
        self._before = self.seq
        self._stale = self._stale or self._shared
        self._untouched = True

    def commit(self) -> None:
        with self._translated:
            self.do("commit")
        self._known.undo.clear()

    def apply(
        self, who: Principal, command: str, arguments: dict[str, Any], record: Callable[[Any], None] | None = None
    ) -> Any:
        """One command in the open transaction, and ``record(reply)`` with it: both or neither. Raises domain errors,
        rolled back. The first command of a transaction needs no savepoint, which would make SQLite copy every page
        before it is changed: it is undone with the transaction, and another one is opened."""
        if self._stale:
            with self._translated:
                self._renew()
        first, self._untouched = self._untouched, False
        interned, undo, self._known.moved = self._known.scopes.interned, len(self._known.undo), False
        changes = self.db.total_changes()
        self._charges.begin()
        self._states.begin()
        if not first:
            self.db.execute("savepoint request")
        tx = self._tx(who)
        try:
            with self._translated:
                require_valid(self.db, who, tx.now)
                if self.admit is not None:
                    self.admit(command, arguments)
                reply = commands.run(tx, command, arguments)
                if tx.states is not None:
                    tx.states.settle(self.do, tx.rows[-1][0] if tx.rows else None)
                self.weigh(command)
                self._charges.settle(tx)
                audit_rows.told(tx, command, self.db.total_changes() != changes)
                if record is not None:
                    record(reply)
        except BaseException as error:
            # SQLite may have ended the whole transaction itself (disk full, I/O error).
            if not self.db.get_autocommit():
                if first:
                    with self._translated:
                        self.db.execute("rollback")
                        self.do("begin immediate")
                else:
                    self.db.execute("rollback to request")
                    self.db.execute("release request")
            self._known.doubt(undo)
            if self._known.scopes.interned != interned or self._known.moved:
                self._forget()
            if isinstance(error, audit_rows.REFUSALS) and not self.db.get_autocommit():
                self._count_refusal(who, command, arguments, error)
            raise
        if not first:
            self.db.execute("release request")
        self.events += [Event(self.origin, *event) for event in tx.events]
        self.rows += tx.rows
        if self.words is not None:
            self.words += tx.words or ()
        self.seq = tx.seq or self.seq
        self._stale = self._stale or tx.snapped
        if tx.policy is not self.policy:
            self._adopt(tx.policy)
        return reply

    @property
    def waiting(self) -> int:
        """How many documents have come to wait for indexing, as a number that only grows."""
        return self._known.waiting

    def _tx(self, who: Principal) -> Tx:
        here, rules = (self.db, self.do, self.policy, self._known), (self.index, self._configured)
        tx = Tx(*here, who, self._clock(), self._orphans, not self.short(), *rules)
        if self.words is not None:
            tx.words = []
        if self._states.kept:
            tx.states = self._states
            self._states.short = self.short
        return tx

    def _renew(self) -> None:
        """Others may have written, or what was learnt was rolled back."""
        self._known.renew(self.db)
        if self._shared:
            self.seq = self._before = self.db.execute(_NEWEST).get or 0
        self._adopt(self._configured.joined(stored_people(self.db)))
        self._stale = self._untouched = False  # triggers are made in the transaction, which so is no more as it began

    def _adopt(self, policy: Policy) -> None:
        self.policy = policy
        self._charges.keep(policy.quotas)
        # What a snapshot has is kept in any case.
        self._states.keep(bool(self.index.past_days or self.db.execute("select 1 from snapshot limit 1").get))

    def _count_refusal(self, who: Principal, command: str, arguments: dict[str, Any], error: AvmError) -> None:
        with self._translated:
            if self._stale:  # what was learnt in the command is forgotten with it
                self._renew()
            tx = self._tx(who)
            audit_rows.refused(tx, command, arguments, error)

    def alone(self, who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        """One command in a transaction of its own."""
        self.begin()
        try:
            reply = self.apply(who, command, arguments)
            self.commit()
        except BaseException as error:
            if isinstance(error, AvmError) and error.recorded:
                self.commit()  # nothing but that it was refused
            else:
                self.rollback()
            raise
        return reply

    def take_rows(self) -> list[LogRow]:
        """What the commands since the last time have appended to the log."""
        rows, self.rows = self.rows, []
        return rows

    def rollback(self) -> None:
        """After a failure: nothing of the transaction stays, scopes that were interned in it are forgotten. Their
        numbers will be given to others."""
        self.events.clear()
        self.rows.clear()
        if not self.db.get_autocommit():
            self.db.execute("rollback")
        self.seq = self._before
        self._known.doubt(0)
        self._forget()

    def _forget(self) -> None:
        self._known.forget()
        self._charges.forget()
        self._states.forget()
        self._stale = True

    def set_rules(self, policy: Policy, index: IndexRules) -> None:
        """Other rules from now on: every scope is folded anew before the next request. The old ones stay in force
        when that fails."""
        before = self._configured, self.index
        self._configured, self.index, self._stale = policy, index, True
        try:
            self.alone(Principal("avmfs", operator=True, route="daemon"), "settle", {})
        except BaseException:
            self._configured, self.index = before
            self._stale = True
            raise

    def close(self, *, clean: bool = True) -> None:
        """Close the connection. Of the last one SQLite moves the log into the database, if all is ``clean``."""
        self.db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(not clean))
        self.db.close()
