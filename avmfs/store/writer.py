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
seconds. Greeting with "sink" and a descriptor: its kernel is told of changes before their replies leave (``sinks``);
the answer is [True].
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from avmfs import wire
from avmfs.access import ROUTES, Principal
from avmfs.errors import AvmError, Busy, Denied, Invalid, NoSpace, StoreFailed
from avmfs.store import commands, database, keys, piecemeal
from avmfs.store.applier import Applier
from avmfs.store.checkpoint import Checkpointer
from avmfs.store.durable import LogSync
from avmfs.store.headroom import Headroom
from avmfs.store.news import News
from avmfs.store.peers import Peer, Peers
from avmfs.store.piecemeal import PART
from avmfs.store.sinks import NATIVE
from avmfs.store.turns import SYNC, Turns, written
from avmfs.store.walheader import CommitHeader

log = logging.getLogger(__name__)

IDLE_BEFORE_DRAIN_S = 0.02
SYNC_AT_LEAST_S = 1.0  # what nobody waits for is synced this often
RECENT = 8  # requests that tell how many are asking
ANSWERED = 4096  # clients whose last reply is in memory
DRAIN_STEP = 16
BEHIND_STEP = 4  # documents at a time where there is no idle time: others wait for each step
# So many documents may wait while there is no idle time: a search has to index them all first, which takes .3 s. Notes
# that change again meanwhile are indexed once.
LAG = 1500
ANYBODY = "*"
APPEND = "append"

_NOTHING = wire.pack({})

_Replies = list[tuple[Peer, bytes]]  # packed
_Asked = tuple[Peer, list[Any]]


class Writer:
    """The loop. ``run`` returns after ``stop`` (callable from a signal handler's thread)."""

    def __init__(self, listener: socket.socket, key: bytes, applier: Applier) -> None:
        self._applier = applier
        self._turns: Turns[Peer] = Turns(self._only_in_parts)
        self._peers = Peers(listener, key, self._turns.add)
        self._calls: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._may_drain = True
        self._left = 0  # so many documents waited for indexing at the end of its last step,
        self._waited = 0  # when so many had ever come to wait
        self._recent: deque[Any] = deque(maxlen=RECENT)  # who has asked: see _asker
        self._last_command: Any = None  # of the last transaction
        self._closes = False  # did a sync follow the last append?
        self._begun = False  # is a transaction open?
        self._answered: dict[bytes, tuple[int, bytes]] = {}  # a client's last number and packed reply, as stored
        self._unsynced = True  # has anything been committed since the last sync began? Before a crash, perhaps
        self._synced_at = time.monotonic()
        header = CommitHeader(applier.path).read
        self._news = News(applier.db, applier.path, Path(listener.getsockname()), header, applier.take_rows)
        self._headroom = Headroom(applier.path, applier.db)
        self._checkpointer = Checkpointer(applier.path, self._headroom)

    def stop(self) -> None:
        self._stopping = True
        self._peers.wake()

    def call(self, function: Callable[[], None]) -> None:
        """Run ``function`` in the loop's thread, between transactions."""
        self._calls.append(function)
        self._peers.wake()

    def run(self) -> None:
        """Serve until stopped."""
        database.run(self._applier.db, "pragma synchronous = normal")  # and LogSync does the rest
        self._applier.admit = self._headroom.admit
        self._applier.db.set_wal_hook(self._checkpointer.hook)
        self._checkpointer.start()
        self._log: LogSync[_Replies] = LogSync(self._applier.path, self._peers.wake)
        try:
            while not self._stopping:
                self._step()
        finally:
            self._log.close()
            with contextlib.suppress(OSError):  # LogSync has said so; who waits will ask the next writer
                self._send_synced()
            self._checkpointer.stop()
            self._peers.close()
            self._news.close()
            self._applier.close()

    def _step(self) -> None:
        patience = 0.0 if self._turns else IDLE_BEFORE_DRAIN_S if self._may_drain else None
        busy = self._peers.poll(patience)
        if not self._log.idle:
            self._send_synced()
        while self._calls:
            self._calls.popleft()()
            self._unsynced = True
            self._news.tell()
            self._tell_sinks()
        if self._turns:
            batch = self._turns.next()
            if self._only_in_parts(batch[0][1]):
                self._commit_in_parts(*batch[0])
            else:
                self._commit(batch)
        elif not busy and self._may_drain:
            self._drain()
        self._checkpointer.between_transactions()
        self._peers.tell_watchers(self._applier.seq)
        if self._unsynced and time.monotonic() - self._synced_at > SYNC_AT_LEAST_S:
            self._sync([])

    def _only_in_parts(self, item: list[Any]) -> bool:
        return item[3] == piecemeal.COMMAND and (size := written(item)) > PART and self._headroom.only_in_parts(size)

    def _commit_in_parts(self, peer: Peer, item: list[Any]) -> None:
        """All but the last, which is committed like any other request."""
        number, name, rights, command, arguments, *said = item
        assert peer.client is not None, "greeted"
        try:
            who = self._principal(peer, name, rights, said[0] if said else "")
            last = self._last_answer(peer.client)
            edits = arguments["edits"] if isinstance(arguments.get("edits"), list) else []
            if last is None or last[0] < number:  # else it is answered, or refused
                pieces = list(piecemeal.parts(edits))
                for part in pieces[:-1]:
                    self._applier.origin = peer.origin if command in NATIVE else b""
                    self._applier.alone(who, command, {**arguments, "edits": part})
                    self._unsynced = True
                    self._news.tell()
                    self._tell_sinks()
                    self._checkpointer.between_transactions()
                item = [number, name, rights, command, {**arguments, "edits": pieces[-1]}, *said]
        except AvmError as e:
            self._send_all([(peer, _refused(number, e))])
        else:
            self._commit([(peer, item)])

    def _commit(self, batch: list[_Asked]) -> None:
        """One transaction for all that waits. Replies leave after COMMIT, and those that promise it after a sync of the
        log."""
        before = self._applier.db.total_changes()
        replies: _Replies = []
        try:
            self._apply(batch, replies)
            if len(batch) > 1:  # one alone has nobody who would come meanwhile
                self._peers.poll(0.0)
                late = self._turns.late()
                batch += late
                self._apply(late, replies)
            if self._begun:
                self._applier.commit()
                self._news.tell()
        except AvmError as e:
            self._news.lost()
            self._applier.rollback()
            self._answered.clear()
            log.error("writer: a transaction failed: %s", e)
            replies = [(peer, _refused(item[0], e)) for peer, item in batch]
        else:
            self._unsynced = self._unsynced or self._applier.db.total_changes() != before
        self._begun = False
        if self._applier.events:
            self._tell_sinks()
        for peer, _ in batch:
            self._recent.append(_asker(peer))
        foreseen = self._foresees_sync(batch[-1][1][3])
        unsynced = self._unsynced or not self._log.idle
        later = [unsynced and _promises(item) for _, item in batch]
        self._send_all([reply for reply, waits in zip(replies, later, strict=True) if not waits])
        if any(later):
            self._sync([reply for reply, waits in zip(replies, later, strict=True) if waits])
        elif foreseen:
            self._sync([])
        self._may_drain = True
        if self._left + self._applier.waiting - self._waited > LAG:
            self._drain(BEHIND_STEP)

    def _apply(self, batch: list[_Asked], replies: _Replies) -> None:
        for peer, item in batch:
            replies.append((peer, self._answer(peer, item)))
            self._news.gather()

    def _foresees_sync(self, command: Any) -> bool:
        """Does one alone append and close, again and again? Then the disk can be at work while it comes to that."""
        last, self._last_command = self._last_command, command
        if last == APPEND:
            self._closes = command == SYNC
        return command == APPEND and self._closes and self._log.quick and self._alone()

    def _alone(self) -> bool:
        return len(set(self._recent)) == 1

    def _sync(self, replies: _Replies) -> None:
        """Answer once all that is committed is on the disk. Where nobody else is asking, or the disk is quick, the wait
        is here, and whoever asks meanwhile is in the next transaction: a thread would cost more than it saves."""
        self._unsynced, self._synced_at = False, time.monotonic()
        if self._log.idle and (self._log.quick or (len(replies) == 1 and self._alone())):
            self._log.now()
            self._send_all(replies)
        else:
            self._log.after(replies)

    def _send_synced(self) -> None:
        for replies in self._log.done():
            self._send_all(replies)

    def _send_all(self, replies: _Replies) -> None:
        for peer, reply in replies:
            peer.waiting = False
            self._peers.send(peer, reply)

    def _answer(self, peer: Peer, item: list[Any]) -> bytes:
        """The packed reply. Raises AvmError when the transaction is lost."""
        number, name, rights, command, arguments, *said = item
        db = self._applier.db
        client = peer.client
        assert client is not None, "greeted"
        try:
            who = self._principal(peer, name, rights, said[0] if said else "")
            last = self._last_answer(client)
            if last is not None and last[0] == number:
                return _reply(number, last[1])
            if last is not None and last[0] > number:
                # It lay in a socket that its client had given up, and would undo what the client did since.
                raise Busy("overtaken by a later request")
            if not isinstance(command, str) or not isinstance(arguments, dict):
                raise Invalid("malformed request")
        except AvmError as e:
            return _refused(number, e)
        if command == SYNC:  # changes nothing, so there is nothing to keep of it
            return _reply(number, _NOTHING)
        if not self._begun:
            self._applier.begin()
            self._begun = True
        packed = b""

        def record(reply: Any) -> None:
            nonlocal packed
            packed = wire.pack(reply)
            self._applier.do(
                "insert or replace into applied(client, num, reply, at) values(?, ?, ?, ?)",
                (client, number, packed, time.time_ns()),
            )

        try:
            self._applier.origin = peer.origin if command in NATIVE else b""
            reply = self._applier.apply(who, command, arguments, record)
        except AvmError as e:
            if db.get_autocommit():
                raise
            return _refused(number, e)
        except Exception:  # a defect in one command must not take the writer from everybody
            log.exception("writer: command %r failed", command)
            if db.get_autocommit():
                raise StoreFailed("the transaction was lost") from None
            return _refused(number, StoreFailed("internal error; the daemon's log has the details"))
        self._answered[client] = number, packed
        self._turns.applied(command, arguments, reply)
        return _reply(number, packed)

    def _last_answer(self, client: bytes) -> tuple[int, bytes] | None:
        """The number and the packed reply of the last request that was applied for this client."""
        known = self._answered.get(client)
        if known is None:
            if len(self._answered) > ANSWERED:
                self._answered.clear()
            row: Any = self._applier.db.execute("select num, reply from applied where client = ?", (client,)).fetchone()
            if row is None:
                return None
            known = self._answered[client] = row[0], bytes(row[1])
        return known

    def _principal(self, peer: Peer, name: Any, rights: Any, route: Any) -> Principal:
        if route not in ROUTES:
            raise Invalid(f"no route is called {route!r}")
        if peer.agent != ANYBODY:
            if rights or name not in (None, peer.agent):
                raise Denied(f"this connection speaks for {peer.agent} only")
            return _plain(str(peer.agent), False, route)
        if not isinstance(name, str):
            raise Invalid("a request needs the agent it is for")
        if isinstance(rights, str):
            return replace(keys.principal(self._applier.db, name, rights, time.time_ns()), route=route)
        return _plain(name, bool(rights), route)

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
            self._news.tell()
            self._left, self._unsynced = done["left"], True
            self._may_drain = self._left > 0
            if done["done"] and not self._left:
                self._peers.tell_watchers(self._applier.seq, again=True)  # what works behind us has waited for this
        except AvmError as e:
            if not isinstance(e, NoSpace):  # Headroom has said so, once
                log.error("writer: indexing failed: %s", e)
            self._left, self._may_drain = 0, False
        except Exception:  # nor may one document
            log.exception("writer: indexing failed")
            self._left, self._may_drain = 0, False


@lru_cache(maxsize=1024)
def _plain(name: str, operator: bool, route: str) -> Principal:
    return Principal(name, operator=operator, route=route)


def _asker(peer: Peer) -> Any:
    """A mount asks over several connections, one after the other most of the time."""
    return peer.origin or peer


def _promises(item: list[Any]) -> bool:
    return not isinstance(item[3], str) or commands.promises_durability(item[3])


def _reply(number: int, packed: bytes) -> bytes:
    """What ``wire.pack([number, None, result])`` makes, with the result packed already."""
    return b"\x93" + wire.pack(number) + b"\xc0" + packed


def _refused(number: int, error: AvmError) -> bytes:
    return wire.pack([number, [error.code, error.reason, error.filename], None])
