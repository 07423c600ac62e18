"""The writer of a host that shares its store: every transaction is in the shared log before it is committed here.

Owns ``ReplicatedApplier``, which takes the baton, lays down what others have appended, lets commands change the store,
and appends what they changed, as the record that follows the last one applied here; the loop around it is
``following``'s. The log decides and SQLite carries out:

- the number is taken: the transaction is rolled back, the others' records are applied, the commands run again;
- it is not known whether the log has the record: that is looked up, with the baton, before anything else is done;
- the process ends between the two commits: the next one finds the record in the log, with the replies of its commands;
- the log has it and the commit here fails: the process ends, so that it is as if it had been killed between them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import apsw

from avmfs.access import Policy, Principal
from avmfs.errors import AvmError, ReadOnly, StoreFailed
from avmfs.store.identity import OPERATOR
from avmfs.store.rows.log_ops import Event
from avmfs.store.rows.log_position import Position, place
from avmfs.store.rows.nodes import LogRow
from avmfs.store.rows.stored_policy import digest, digest_in_force, stored_people
from avmfs.store.sharedlog.protocol import InDoubt, Overtaken, Record, SharedLog, Unreachable
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer import replica as replicas
from avmfs.store.writer.applier import Applier
from avmfs.store.writer.replica import Replica

log = logging.getLogger(__name__)

ATTEMPTS: Final = 20  # at a transaction that others overtake
AT_ONCE: Final = 64  # records in a local transaction, and so many may be left to be applied with the baton held
DOUBT_S: Final = 10.0  # for so long a record is looked for
AGAIN_S: Final = 0.2
QUICK_S: Final = 1.0  # a link that fails within this time was cut, and is made anew
_OTHERS: Final = (
    "the rules of this host's config.yaml are not those in force in the shared store: make them the same, or put these"
    " in force everywhere: avm-daemon reload"
)


class CommitLost(BaseException):
    """The log has what could not be committed here. Ends the process; the next one applies it from the log."""


class ReplicatedApplier(Applier):
    """See the module. ``followed`` is called when records of others have been applied. ``down``: why nothing can be
    written at present."""

    def __init__(
        self,
        path: Path,
        policy: Policy,
        index: IndexRules,
        *,
        orphans: bool,
        clock: Callable[[], int],
        shared_log: SharedLog,
        host: str,
    ) -> None:
        self._log, self.host = shared_log, host
        self.replica = Replica(path)
        super().__init__(path, policy, index, orphans=orphans, clock=clock)
        self.words = []
        self.down: AvmError | None = ReadOnly("the shared log has not answered yet")
        self.followed: Callable[[], None] = lambda: None
        self._session: apsw.Session | None = None
        self._row_list: list[LogRow] = []  # of this transaction
        self._event_list: list[Event] = []
        self._unapplied = True  # may the log have a record of ours that is not applied here?
        self.suspect = True  # are the rules in force perhaps not ours?
        self.differs = ""  # as last compared
        self._publishing = False
        self.taking = False
        self.appended = 0  # the newest record that is known to be in the log and to be ours

    @property
    def number(self) -> int:
        """Of the newest record that is applied here."""
        return self.replica.at.number

    # A transaction ----------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._take()
        try:
            self._require_rules()
            super().begin()
        except BaseException:
            self._log.give()
            raise
        self._session = replicas.session(self.db)

    def apply(
        self, who: Principal, command: str, arguments: dict[str, Any], record: Callable[[Any], None] | None = None
    ) -> Any:
        rows, events = len(self.rows), len(self.events)
        reply = super().apply(who, command, arguments, record)
        self._row_list += self.rows[rows:]
        self._event_list += self.events[events:]
        return reply

    def commit(self) -> None:
        assert self._session is not None and self.words is not None
        patch = self._session.patchset()
        self._end_session()
        if patch:
            data = replicas.packed(patch, self.words, self._row_list, self._event_list, self.replica.at.last)
            record = Record(self.number + 1, os.urandom(16), self.host, data)
            self._append(record)
            self._commit_appended(record)
        else:
            self._log.give()
            super().commit()
        self._forget_told()

    def _commit_appended(self, record: Record) -> None:
        at = replace(self.replica.at, number=record.number, last=record.token.hex())
        try:
            place(self.db, at)
            super().commit()
        except Exception as e:
            raise CommitLost(f"record {at.number} is in the shared log, and cannot be committed here: {e}") from e
        self.replica.at = at

    def rollback(self) -> None:
        self._end_session()
        self._log.give()
        self._forget_told()
        super().rollback()

    def alone(self, who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        for _ in range(ATTEMPTS):
            try:
                return super().alone(who, command, arguments)
            except Overtaken as e:
                overtaken = e
        raise overtaken

    def _end_session(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _forget_told(self) -> None:
        self.words = []
        self._row_list, self._event_list = [], []

    # The log ----------------------------------------------------------------------------------------------

    def _append(self, record: Record) -> None:
        """Raises Overtaken or Unreachable when the log has not got it, InDoubt when that cannot be known now."""
        began = time.monotonic()
        try:
            self._log.append(record, bytes.fromhex(self.replica.at.last))
        except Unreachable as e:
            if time.monotonic() - began > QUICK_S:  # who waits for an answer has waited long enough
                self.down = e
                raise
            self._append_again(record, e)
        except InDoubt as e:
            log.warning("%s", e)
            self._append_again(record, e)
        self.appended = record.number

    def _append_again(self, record: Record, failed: Unreachable | InDoubt) -> None:
        """With the baton: whoever has it has waited for the end of our lost transaction. Where the log has not got the
        record, its number may be free still: the link was cut, or the baton was lost, as it is by who holds it for
        long."""
        deadline = time.monotonic() + DOUBT_S
        while True:
            try:
                if self._log.take() < record.number:
                    self._log.append(record, bytes.fromhex(self.replica.at.last))
                    return
                self._log.give()  # it is there for good, and may be large
                found = self._log.read(record.number - 1, 1)
                break
            except (Unreachable, InDoubt) as e:
                failed = failed if isinstance(failed, InDoubt) else e
            if isinstance(failed, Unreachable):
                raise Overtaken(failed.reason) from failed  # the next attempt finds out whether the log is there
            if time.monotonic() > deadline:
                self._unapplied = True
                raise failed
            time.sleep(AGAIN_S)
        if not found or found[0].token != record.token:
            raise Overtaken(f"record {record.number} is another host's")

    def _take(self) -> None:
        """The baton, with all that others have appended applied here."""
        self.taking = True
        try:
            self._take_and_follow()
        finally:
            self.taking = False

    def _take_and_follow(self) -> None:
        while True:
            try:
                newest = self._asked()  # ways while nobody else can have the baton are dear: records come with it
                self.require(self._log, newest, self.replica.at)
                if self.number < newest <= self.number + AT_ONCE and (came := self._log.read(self.number, AT_ONCE)):
                    self.follow(came, newest)
                if self.number == newest:
                    self._unapplied = False
                    return
                self._log.give()  # nobody is to wait for what is more, or large
                while self.number < newest:
                    self.follow(self._log.read(self.number, AT_ONCE), newest)
            except AvmError as e:
                self._log.give()
                self.down = e
                raise

    def _asked(self) -> int:
        began = time.monotonic()
        try:
            return self._log.take(self.number)
        except Unreachable:
            if time.monotonic() - began > QUICK_S:
                raise
            return self._log.take(self.number)  # a link that was cut while nobody used it

    def require(self, log: SharedLog, newest: int, had: Position) -> None:
        """Raises StoreFailed where the log ends before what this host had of it, or with another record."""
        if newest < had.number or (newest == had.number and not log.has(newest, bytes.fromhex(had.last))):
            raise StoreFailed(
                f"the shared log ends at record {newest}, and this host has {had.number}, or another one: it has lost"
                " records, as by a failover without synchronous replication; avm cluster join brings this store anew"
            )

    def follow(self, records: Sequence[Record], newest: int = 0) -> None:
        """Apply what others have appended. Between transactions."""
        if newest > self.number and not records:
            raise StoreFailed(f"the shared log ends at {newest}, and has not what follows {self.number}")
        done = self.replica.apply(records)
        self._stale = True
        self.rows += done.rows
        self.events += done.events
        self.seq = max([self.seq, *(row[0] for row in done.rows)])
        self.suspect = self.suspect or done.settings
        self.followed()

    def resolve(self) -> None:
        """Before anybody is told that a request has not been answered yet."""
        if self._unapplied:
            self._take()
            self._log.give()

    # Rules ------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """What is done when a daemon starts. Rules of this host that have changed since it was at one with the others
        are put in force; where others' have changed meanwhile, theirs stand."""
        self.resolve()
        if self._in_force() in (None, self._rules(), self.replica.at.rules):
            self._publish(lambda: self.alone(OPERATOR, "settle", {}))

    def set_rules(self, policy: Policy, index: IndexRules) -> None:
        self._publish(lambda: super(ReplicatedApplier, self).set_rules(policy, index))

    def _publish(self, change: Callable[[], object]) -> None:
        self._publishing = True
        try:
            change()
        finally:
            self._publishing, self.suspect = False, True
        self._require_rules()

    def _require_rules(self) -> None:
        """Raises ReadOnly while others have put other rules in force: what is written here would be seen by them."""
        if self._publishing:
            return
        self.compare()
        if self.differs:
            raise ReadOnly(self.differs)

    def compare(self) -> None:
        """Find out whether others have put other rules in force. In the writer's thread, between transactions."""
        if self.suspect:
            mine = self._rules()
            self.differs = "" if mine == self._in_force() else _OTHERS
            self.suspect = False
            if not self.differs:
                self.replica.agree(mine)

    def _rules(self) -> str:
        with self._translated:
            return digest(self._configured.joined(stored_people(self.db)).plain)

    def _in_force(self) -> str | None:
        with self._translated:
            return digest_in_force(self.db)

    def close(self, *, clean: bool = True) -> None:
        self._log.close()
        self.replica.close()
        super().close(clean=clean)
