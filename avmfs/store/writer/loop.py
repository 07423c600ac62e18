"""The one writer: group commit with exactly-once requests.

Owns the only connection that changes the store while a daemon runs. A process of its own, started by the
supervisor, which keeps the listening socket: connecting never fails, and requests queue while a
killed writer is replaced. One thread runs the loop; a second one checkpoints the WAL, a third one syncs it.

Protocol, in ``avmfs.wire`` frames. Greeting: {"v", "client", "agent", "proof"}; ``proof`` is
HMAC-SHA256(key, agent), so a connection speaks for one agent only; agent "*" (the door, the housekeeper)
names one in each request. Request: [number, agent | None, rights, command, arguments, route], rights being whether it
asks as the operator, or the id of the API key that was shown; one in flight per client; who does not know by which door
its request came leaves the route out. Reply: [number, None, result] or
[number, [errno, reason, path], None]. A number that was answered before gets the stored reply, recorded in the
transaction of the change: resending after a crash is safe. A refusal is not stored; it may be decided again. Greeting
with "watch" instead of "client": the peer receives [seq] after commits, several as one, at most once in "every"
seconds. Greeting with "sink" and a descriptor: its kernel is told of changes before their replies leave
(``kernel_notices``); the answer is [True].
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from avmfs import metrics, wire
from avmfs.access import Policy, Principal
from avmfs.errors import AvmError, Busy, Invalid, NoSpace, StoreFailed
from avmfs.store import commands
from avmfs.store.files.displaced import of_store
from avmfs.store.files.wal_header import CommitHeader
from avmfs.store.notify.change_ring import ChangeRing
from avmfs.store.schema import database
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer import rewriting, split_commit
from avmfs.store.writer.applied import AppliedRequests, refused, refused_instead, reply
from avmfs.store.writer.applier import Applier
from avmfs.store.writer.checkpoint import Checkpointer
from avmfs.store.writer.connections import Peer, Peers, requester
from avmfs.store.writer.disk_reserve import DiskReserve
from avmfs.store.writer.request import Request
from avmfs.store.writer.scheduler import Scheduler
from avmfs.store.writer.split_commit import PART
from avmfs.store.writer.wal_sync import WalSync

log = logging.getLogger(__name__)

IDLE_BEFORE_DRAIN_S = 0.02
SYNC_AT_LEAST_S = 1.0  # what nobody waits for is synced this often
REWRITES = 20  # times as long as the file took to be written anew, it is not again: others wait for it
RECENT = 8  # requests that tell how many are asking
DRAIN_STEP = 16
BEHIND_STEP = 4  # documents at a time where there is no idle time: others wait for each step
# So many documents may wait while there is no idle time: a search has to index them all first, which takes .3 s. Notes
# that change again meanwhile are indexed once.
LAG = 1500

_NOTHING = wire.pack({})
_Replies = list[tuple[Peer, bytes]]  # packed
_Asked = tuple[Peer, Request]


class Writer:
    """The loop. ``run`` returns after ``stop`` (callable from a signal handler's thread)."""

    AWAITS_TURN = False  # to begin a transaction, while others come who can be in it

    def __init__(self, listener: socket.socket, key: bytes, applier: Applier) -> None:
        self._applier = applier
        self._scheduler: Scheduler[Peer] = Scheduler(self._by_itself)
        self._peers = Peers(listener, key, self._scheduler.add)
        self._calls: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._may_drain = True
        self._left = 0  # so many documents waited for indexing at the end of its last step,
        self._waited = 0  # when so many had ever come to wait
        self._recent: deque[Any] = deque(maxlen=RECENT)  # who has asked: see _asker
        self._appended = False  # was an append the last request of the last transaction?
        self._closes = False  # did a sync follow the last append?
        self._begun = False  # is a transaction open?
        self._answers = AppliedRequests(applier.db)
        self._unsynced = False  # has anything been committed since the last sync began?
        self._synced_at = time.monotonic()
        header = CommitHeader(applier.path).read
        self._change_ring = ChangeRing(
            applier.db, applier.path, Path(listener.getsockname()), header, applier.take_rows
        )
        self._translated = database.translated(applier.path)
        self._reserve = DiskReserve(applier.path, applier.db)
        self._checkpointer = Checkpointer(applier.path, self._reserve)
        self._in_place = of_store(applier.path)
        self._rewritable = 0.0  # when the file may be written anew, by the monotonic clock
        self._batches = metrics.histogram("avm_commit_requests", metrics.SIZES)
        self._commits, self._syncs = metrics.histogram("avm_commit_seconds"), metrics.histogram("avm_sync_seconds")
        self._held: _Replies = []  # of whom a sync failed for
        self.on_failure: Callable[[str], None] = lambda reason: None  # why nothing can be written; "": it can again

    def stop(self) -> None:
        self._stopping = True
        self._peers.wake()

    def call(self, function: Callable[[], None]) -> None:
        """Run ``function`` in the loop's thread, between transactions."""
        self._calls.append(function)
        self._peers.wake()

    def set_rules(self, policy: Policy, index: IndexRules) -> None:
        """As the applier does, in ``call``; and index in idle time what that leaves to be indexed."""
        self._applier.set_rules(policy, index)
        self._may_drain = True

    def run(self) -> None:
        """Serve until stopped."""
        self._applier.admit, self._applier.weigh = self._reserve.admit, self._reserve.weigh
        self._applier.short = lambda: self._reserve.near
        self._applier.db.set_wal_hook(self._checkpointer.hook)
        self._applier.db.set_commit_hook(self._in_place.check)  # who ends us with what it raises has nothing committed
        self._checkpointer.start()
        self._log: WalSync[_Replies] = WalSync(self._applier.path, self._peers.wake)
        try:
            self._recover(failed=False)
            while not self._stopping:
                self._step()
        finally:
            self._log.close()
            self._send_synced()  # whom it failed for will ask the next writer
            self._checkpointer.stop(clean=self.clean)
            self._peers.close()
            self._change_ring.close()
            self._applier.close(clean=self.clean)

    @property
    def clean(self) -> bool:
        """Whether everything that was committed is on the disk, as far as syncs of it have told."""
        return self._log.failure is None

    def _step(self) -> None:
        busy = self._peers.poll(self._patience())
        if not self._log.idle:
            self._send_synced()
        if self._log.failure is not None:
            self._withstand()
            return
        self._run_calls()
        if self._scheduler:
            batch = self._scheduler.next()
            if len(batch) == 1 and self._only_in_parts(batch[0][1]):
                self._commit_in_parts(*batch[0])
            elif not batch[0][1].traits.rewrites or self._rewritten(*batch[0]):
                self._commit(batch)
        elif not busy and self._may_drain:
            self._drain()
        if self._log.failure is None:
            self._checkpointer.between_transactions()
        self._peers.tell_watchers(self._applier.seq)
        if self._unsynced and self._until_sync() <= 0.0:
            self._sync([])

    def _run_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()
            self._unsynced = True
            self._change_ring.tell()
            self._tell_sinks()

    def _patience(self) -> float | None:
        """How long nothing may happen, in seconds; None for ever."""
        if self._log.failure is not None:
            return 0.0 if self._scheduler else self._log.retry_s
        if self._scheduler:
            return 0.0
        if self._may_drain:
            return IDLE_BEFORE_DRAIN_S
        return max(0.0, self._until_sync()) if self._unsynced else None

    def _until_sync(self) -> float:
        return self._synced_at + SYNC_AT_LEAST_S - time.monotonic()

    def _withstand(self) -> None:
        """The disk has failed, and what is in the log may not be on it. What came after it would be lost with it, so
        nothing is committed until the log has been written anew."""
        if not self._log.idle:
            return  # the other thread is about to tell of the failure too; who asks meanwhile waits
        if self._log.retry_s == 0.0:
            self._recover(failed=True)
        if self._log.failure is not None:
            error = StoreFailed(f"nothing can be written: {self._log.failure}", os.fspath(self._applier.path))
            self._send_all([(peer, refused_instead(answer, error)) for peer, answer in self._held])
            self._held = []
            while self._scheduler:
                self._send_all([(peer, refused(request.number, error)) for peer, request in self._scheduler.next()])

    def _recover(self, *, failed: bool) -> None:
        """``failed``: since this process has the log open."""
        self._checkpointer.pause()
        if self._log.recover(self._applier.db):
            if failed:
                self._checkpointer.hear(self._applier.db)
            self._checkpointer.resume()
            self._unsynced = False
            self._send_all(self._held)
            self._held = []
        self.on_failure(str(self._log.failure or ""))

    def _by_itself(self, request: Request) -> bool:
        return request.traits.rewrites or self._only_in_parts(request)

    def _rewritten(self, peer: Peer, request: Request) -> bool:
        """Write the file anew if that is due, unless it was a moment ago. False: it failed, and the asker has heard."""
        began = time.monotonic()
        if began < self._rewritable or not rewriting.due(self._applier.db):
            return True
        try:
            self._checkpointer.emptied_by(lambda: rewriting.rewrite(self._applier.path))
        except AvmError as e:
            if not isinstance(e, Busy):
                log.error("writer: the store is not written anew: %s", e)
            self._send_all([(peer, refused(request.number, e))])
            return False
        finally:
            self._rewritable = time.monotonic() + REWRITES * (time.monotonic() - began)
        return True

    def _only_in_parts(self, request: Request) -> bool:
        return request.traits.fills_file and request.size > PART and self._reserve.only_in_parts(request.size)

    def _commit_in_parts(self, peer: Peer, request: Request) -> None:
        """All but the last, which is committed like any other request."""
        arguments = request.arguments
        assert peer.client is not None, "greeted"
        try:
            with self._translated:
                who = requester(self._applier.db, peer, request)
                last = self._answers.last(peer.client)
            edits = arguments["edits"] if isinstance(arguments.get("edits"), list) else []
            if last is None or last[0] < request.number:  # else it is answered, or refused
                pieces = list(split_commit.parts(edits))
                for part in pieces[:-1]:
                    self._applier.origin = peer.origin if request.traits.native else b""
                    self._applier.alone(who, request.command, {**arguments, "edits": part})
                    self._unsynced = True
                    self._change_ring.tell()
                    self._tell_sinks()
                    self._checkpointer.between_transactions()
                request = replace(request, arguments={**arguments, "edits": pieces[-1]})
        except AvmError as e:
            self._send_all([(peer, refused(request.number, e))])
        else:
            self._commit([(peer, request)])

    def _commit(self, batch: list[_Asked]) -> None:
        """One transaction for all that waits. Replies leave after COMMIT, and those that promise it after a sync of the
        log."""
        before, began = self._applier.db.total_changes(), time.perf_counter()
        replies: _Replies = []
        try:
            self._transact(batch, replies)
        except AvmError as e:
            self._change_ring.lost()
            self._applier.rollback()
            self._answers.forget()
            if not database.logged(e):
                log.error("writer: a transaction failed: %s", e)
            replies = self._without(batch, e)
        else:
            self._unsynced = self._unsynced or self._applier.db.total_changes() != before
        self._begun = False
        self._batches.observe(len(batch))
        self._commits.observe(time.perf_counter() - began)
        if self._applier.events:
            self._tell_sinks()
        self._recent.extend(_asker(peer) for peer, _ in batch)
        foreseen = self._foresees_sync(batch[-1][1].traits)
        unsynced = self._unsynced or not self._log.idle
        later = [unsynced and _promises(request) for _, request in batch]
        self._send_all([reply for reply, waits in zip(replies, later, strict=True) if not waits])
        if any(later):
            self._sync([reply for reply, waits in zip(replies, later, strict=True) if waits])
        elif foreseen:
            self._sync([])
        self._may_drain = True
        if self._left + self._applier.waiting - self._waited > LAG:
            self._drain(BEHIND_STEP)

    def _transact(self, batch: list[_Asked], replies: _Replies) -> None:
        """Raises AvmError when the transaction is lost."""
        self._apply(batch, replies)
        if len(batch) > 1 or self.AWAITS_TURN:  # one alone has nobody who would come meanwhile
            self._peers.poll(0.0)
            late = self._scheduler.late(everybody=self.AWAITS_TURN and self._begun)
            batch += late
            self._apply(late, replies)
        if self._begun:
            self._applier.commit()
            self._change_ring.tell()

    def _without(self, batch: list[_Asked], error: AvmError) -> _Replies:
        """The replies where there is no transaction. They wait for the disk like others."""
        met = [(peer, request.number, self._met(peer, request)) for peer, request in batch]
        return [(peer, said if isinstance(said, bytes) else refused(number, error)) for peer, number, said in met]

    def _apply(self, batch: list[_Asked], replies: _Replies) -> None:
        for peer, request in batch:
            replies.append((peer, self._answer(peer, request)))
            self._change_ring.gather()

    def _foresees_sync(self, last: commands.Traits) -> bool:
        """Return whether one alone appends and closes, again and again. Then the disk can be at work while it comes to
        that."""
        appended, self._appended = self._appended, last.appends
        if appended:
            self._closes = last.only_syncs
        return last.appends and self._closes and self._log.quick and self._alone()

    def _alone(self) -> bool:
        return len(set(self._recent)) == 1

    def _sync(self, replies: _Replies) -> None:
        """Answer once all that is committed is on the disk. Where nobody else is asking, or the disk is quick, the wait
        is here, and whoever asks meanwhile is in the next transaction: a thread would cost more than it saves."""
        self._unsynced, self._synced_at = False, time.monotonic()
        self._log.note.seq = self._applier.seq
        if self._log.idle and (self._log.quick or (len(replies) == 1 and self._alone())):
            try:
                began = time.perf_counter()
                self._log.now()
                self._syncs.observe(time.perf_counter() - began)
                self._in_place.check()  # what is in a log that has no name is lost with this process
            except OSError:
                self._held += replies
            else:
                self._send_all(replies)
        else:
            self._log.after(replies)

    def _send_synced(self) -> None:
        self._in_place.check()
        for replies, synced in self._log.done():
            if synced:
                self._send_all(replies)
            else:
                self._held += replies

    def _send_all(self, replies: _Replies) -> None:
        for peer, answer in replies:
            peer.waiting = False
            self._peers.send(peer, answer)

    def _met(self, peer: Peer, request: Request) -> bytes | Principal:
        """The packed reply to what is not to be done: it has been, or may not be, or changes nothing. Else who asks."""
        number = request.number
        assert peer.client is not None, "greeted"
        try:
            with self._translated:
                who = requester(self._applier.db, peer, request)
                last = self._answers.last(peer.client)
            if last is not None and last[0] == number:
                return reply(number, last[1])
            if last is not None and last[0] > number:
                # It lay in a socket that its client had given up, and would undo what the client did since.
                raise Busy("overtaken by a later request")
            if not request.command:
                raise Invalid("malformed request")
        except AvmError as e:
            return refused(number, e)
        return reply(number, _NOTHING) if request.traits.only_syncs else who  # there is nothing to keep of that

    def _answer(self, peer: Peer, request: Request) -> bytes:
        """The packed reply. Raises AvmError when the transaction is lost."""
        number, client, db = request.number, peer.client, self._applier.db
        who = self._met(peer, request)
        if isinstance(who, bytes):
            return who
        assert client is not None, "greeted"
        if not self._begun:
            self._applier.begin()
            self._begun = True
        packed = b""

        def record(result: Any) -> None:
            nonlocal packed
            packed = wire.pack(result)
            self._answers.record(client, number, packed)

        try:
            self._applier.origin = peer.origin if request.traits.native else b""
            result = self._applier.apply(who, request.command, request.arguments, record)
        except AvmError as e:
            if db.get_autocommit():
                raise
            return refused(number, e)
        except Exception:  # a defect in one command must not take the writer from everybody
            log.exception("writer: command %r failed", request.command)
            if db.get_autocommit():
                raise StoreFailed("the transaction was lost") from None
            return refused(number, StoreFailed("internal error; the daemon's log has the details"))
        self._answers.keep(client, number, packed)
        self._scheduler.applied(request, result)
        return reply(number, packed)

    def _tell_sinks(self) -> None:
        events, self._applier.events = self._applier.events, []
        if events:
            self._peers.tell_sinks(events)

    def _drain(self, limit: int = DRAIN_STEP) -> None:
        """Idle, or far behind: make the words of a few queued documents searchable."""
        self._waited = self._applier.waiting
        try:
            done = self._applier.alone(
                Principal("avmfs", operator=True, route="daemon"), "drain_lexical", {"limit": limit, "hurry": True}
            )
            self._change_ring.tell()
            self._left, self._unsynced = done["left"], self._unsynced or done["done"] > 0
            self._may_drain = self._left > 0
            if done["done"] and not self._left:
                self._peers.tell_watchers(self._applier.seq, again=True)  # what works behind us has waited for this
        except AvmError as e:
            if not isinstance(e, NoSpace) and not database.logged(e):  # DiskReserve has said so, once
                log.error("writer: indexing failed: %s", e)
            self._left, self._may_drain = 0, False
        except Exception:  # nor may one document
            log.exception("writer: indexing failed")
            self._left, self._may_drain = 0, False


def _asker(peer: Peer) -> Any:
    """A mount asks over several connections, one after the other most of the time."""
    return peer.origin or peer


def _promises(request: Request) -> bool:
    return request.traits.durable
