"""The writer of a host that shares its store: every transaction is in the shared log before it is committed here.

Owns ``ReplicatedApplier``, which takes the baton, lays down what others have appended, lets commands change the store,
and appends what they changed, as the record that follows the last one applied here; and ``ReplicatedWriter``, the loop
around it, with a thread that hears of others' records. The log decides and SQLite carries out:

- the number is taken: the transaction is rolled back, the others' records are applied, the commands run again;
- it is not known whether the log has the record: that is looked up, with the baton, before anything else is done;
- the process ends between the two commits: the next one finds the record in the log, with the replies of its commands;
- the log has it and the commit here fails: the process ends, so that it is as if it had been killed between them.

While the log is not there every change is refused (EROFS), or waits for it as long as configured; reading goes on. What
a client asked as the first thing since this process began, another one may have appended for it: that is EIO.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
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
from avmfs.store.schema import tables
from avmfs.store.sharedlog.protocol import InDoubt, Overtaken, Record, SharedLog, Unreachable
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer import replica as replicas
from avmfs.store.writer.applier import Applier
from avmfs.store.writer.connections import Peer
from avmfs.store.writer.loop import DRAIN_STEP, Writer
from avmfs.store.writer.replica import Replica
from avmfs.store.writer.request import Request

log = logging.getLogger(__name__)

ATTEMPTS: Final = 20  # at a transaction that others overtake
AT_ONCE: Final = 64  # records in a local transaction, and so many may be left to be applied with the baton held
DOUBT_S: Final = 10.0  # for so long a record is looked for
HEARTBEAT_S: Final = 2.0
AGAIN_S: Final = 0.2
QUICK_S: Final = 1.0  # a link that fails within this time was cut, and is made anew
STOP_S: Final = 2.0
START_S: Final = 5.0  # so long the first changes wait in any case
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
        self._suspect = True  # are the rules in force perhaps not ours?
        self._differs = ""
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
                found = self._log.read(record.number - 1, 1)
                self._log.give()
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
                if self.number < newest <= self.number + AT_ONCE:
                    self.follow(self._log.read(self.number, AT_ONCE), newest)
                if self.number == newest:
                    self._unapplied = False
                    return
                self._log.give()  # nobody is to wait for what is more
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
        self._suspect = self._suspect or done.settings
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
            self._publishing, self._suspect = False, True
        self._require_rules()

    def _require_rules(self) -> None:
        """Raises ReadOnly while others have put other rules in force: what is written here would be seen by them."""
        if self._publishing:
            return
        if self._suspect:
            mine = self._rules()
            self._differs = "" if mine == self._in_force() else _OTHERS
            self._suspect = False
            if not self._differs:
                self.replica.agree(mine)
        if self._differs:
            raise ReadOnly(self._differs)

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


class ReplicatedWriter(Writer):
    """``heard``: the log as another connection, for what others append. ``wait_s``: so long a change waits for a log
    that is not there. ``tell`` is called with how this host stands, every few seconds and when that changes."""

    AWAITS_TURN = True

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        applier: ReplicatedApplier,
        heard: SharedLog,
        wait_s: float = 0.0,
        tell: Callable[[dict[str, Any]], None] = lambda figures: None,
    ) -> None:
        super().__init__(listener, key, applier)
        self._replicated = applier
        self._wait_s = wait_s
        self._begun_at = time.monotonic()
        self._change_ring.hear(applier.replica.db)
        applier.followed = self._tell_followed
        self._follower = _Follower(self, applier, heard, tell)
        self._first: dict[bytes | None, int] = {}  # number of each client that asked while the log was not there

    def run(self) -> None:
        db = self._replicated.replica.db
        db.set_wal_hook(self._checkpointer.hook)
        db.set_commit_hook(self._in_place.check)
        self._follower.start()
        try:
            super().run()
        finally:
            self._follower.stop()

    def _tell_followed(self) -> None:
        self._unsynced = True
        self._answers.forget()  # one of the records may have been ours, in doubt until now, with its replies
        self._change_ring.tell()
        self._tell_sinks()
        self._peers.tell_watchers(self._applier.seq, again=True)

    def _transact(self, batch: list[tuple[Peer, Request]], replies: list[tuple[Peer, bytes]]) -> None:
        for _ in range(ATTEMPTS):
            try:
                self._replicated.resolve()
                super()._transact(batch, replies)
                return
            except Overtaken as e:
                overtaken = e
                self._change_ring.lost()
                self._applier.rollback()
                self._answers.forget()
                self._begun = False
                replies.clear()
        raise overtaken

    def _commit(self, batch: list[tuple[Peer, Request]]) -> None:
        if self._ready(batch):
            super()._commit(batch)

    def _commit_in_parts(self, peer: Peer, request: Request) -> None:
        if self._ready([(peer, request)]):
            super()._commit_in_parts(peer, request)

    def _drain(self, limit: int = DRAIN_STEP) -> None:
        if self._replicated.down is None:
            super()._drain(limit)
        else:
            self._may_drain = False

    def _ready(self, batch: list[tuple[Peer, Request]]) -> bool:
        """Return whether the log is there, or was when it was last asked. Else they have heard."""
        deadline = max(time.monotonic() + self._wait_s, 0 if self._follower.settled else self._begun_at + START_S)
        while (down := self._replicated.down) is not None:
            left = deadline - time.monotonic()
            if left <= 0 or self._stopping:
                self._sync([said for each in batch for said in self._without([each], self._refusal(*each, down))])
                return False
            self._peers.poll(min(left, AGAIN_S))
            self._run_calls()
        self._first.clear()
        return True

    def _refusal(self, peer: Peer, request: Request, down: AvmError) -> AvmError:
        if self._replicated._unapplied and self._first.setdefault(peer.client, request.number) == request.number:
            return StoreFailed(f"it is not known whether the shared log has this change: {down.reason}")
        return ReadOnly(f"nothing can be written: {down.reason}")


class _Follower(threading.Thread):
    """Hears of records, and has the writer's thread apply them."""

    def __init__(
        self,
        writer: Writer,
        applier: ReplicatedApplier,
        shared_log: SharedLog,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__(name="follow", daemon=True)
        self._writer, self._applier, self._log = writer, applier, shared_log
        self._tell = tell
        self._over = threading.Event()
        self._reported = -math.inf
        self.settled = False
        self._said = ""

    def stop(self) -> None:
        self._over.set()
        self.join(STOP_S)

    def run(self) -> None:
        newest = 0
        while not self._over.is_set():
            try:
                newest = self._round()
            except AvmError as e:
                self._applier.down = e
                if str(e) != self._said:
                    log.warning("%s", e)
                    self._said = str(e)
                    self._report(newest)
                self._over.wait(AGAIN_S)
        self._log.close()

    def _round(self) -> int:
        applier = self._applier
        had = applier.replica.at
        newest = self._log.wait(max(had.number, applier.appended), HEARTBEAT_S)
        applier.require(self._log, newest, had)
        if not self.settled:
            self._in_writer(self._come_up)
        while max(applier.number, applier.appended) < newest and not self._over.is_set():
            if applier.taking:  # it will have them itself
                self._in_writer(lambda: None)
                continue
            records = self._log.read(applier.number, AT_ONCE)
            self._in_writer(partial(applier.follow, records, newest))
        if applier.down is not None:
            self._in_writer(self._come_up)
        if time.monotonic() - self._reported >= HEARTBEAT_S:
            self._reported = time.monotonic()
            self._log.report(applier.host, applier.number, tables.VERSION)
            self._report(newest)
        return newest

    def _come_up(self) -> None:
        if not self.settled:
            self._applier.settle()
            self.settled = True
        self._applier.down = None
        if self._said:
            log.info("the shared log is there again")
            self._said = ""

    def _report(self, newest: int) -> None:
        number = self._applier.number
        lag = max(0, newest - number)
        self._tell({"host": self._applier.host, "record": number, "behind": lag, "error": self._said})

    def _in_writer(self, work: Callable[[], None]) -> None:
        """Run in the writer's thread. Raises what that raises."""
        done = threading.Event()
        failed: list[AvmError] = []

        def run() -> None:
            try:
                work()
            except AvmError as e:
                failed.append(e)
            finally:
                done.set()

        self._writer.call(run)
        while not done.wait(AGAIN_S):
            if self._over.is_set():
                return
        if failed:
            raise failed[0]
