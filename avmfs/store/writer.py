"""The one writer: group commit with exactly-once requests.

Owns the only connection that changes the store while a daemon runs. A process of its own, started by the
supervisor, which keeps the listening socket: connecting never fails, and requests queue while a
killed writer is replaced. One thread runs the loop; a second one checkpoints the WAL, a third one syncs it.

Protocol, in ``avmfs.wire`` frames. Greeting: {"v", "client", "agent", "proof"}; ``proof`` is
HMAC-SHA256(key, agent), so a connection speaks for one agent only; agent "*" (the door, the housekeeper)
names one in each request. Request: [number, agent | None, operator, command, arguments]; one in flight per
client. Reply: [number, None, result] or [number, [errno, reason, path], None]. A number that was
answered before gets the stored reply, recorded in the transaction of the change: resending after a
crash is safe. A refusal is not stored; it may be decided again. Greeting with "watch" instead of
"client": the peer receives [seq] after commits, several as one, at most once in "every" seconds. Greeting with
"sink" and a descriptor: its kernel is told of changes before their replies leave (``sinks``); the answer is [True].
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import math
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from avmfs import wire
from avmfs.access import Principal
from avmfs.errors import AvmError, Busy, Denied, Invalid, StoreFailed
from avmfs.store import commands, database
from avmfs.store.applier import Applier
from avmfs.store.checkpoint import Checkpointer
from avmfs.store.durable import LogSync
from avmfs.store.sinks import NATIVE, Sink, parse

log = logging.getLogger(__name__)

BATCH = 256
REQUEST_LIMIT = 32 * 1024 * 1024
IDLE_BEFORE_DRAIN_S = 0.02
SYNC_AT_LEAST_S = 1.0  # what nobody waits for is synced this often
RECENT = 8  # requests that tell how many are asking
ANSWERED = 4096  # clients whose last reply is in memory
DRAIN_STEP = 16
LAG = 1000  # so many documents may wait while there is no idle time: a search would have to index them all first
ANYBODY = "*"
SYNC = "sync"

_Replies = list[tuple["_Connection", list[Any]]]


def proof(key: bytes, agent: str) -> bytes:
    """What a process shows to speak for ``agent``. Made by the supervisor, which alone has the key."""
    return hmac.new(key, agent.encode(), hashlib.sha256).digest()


@dataclass(slots=True, eq=False)
class _Connection:
    sock: socket.socket
    frames: wire.Assembler = field(default_factory=lambda: wire.Assembler(REQUEST_LIMIT))
    client: bytes | None = None
    agent: str | None = None
    watching: bool = False
    origin: bytes = b""
    descriptors: list[int] = field(default_factory=list)  # what a sink sent along
    waiting: bool = False  # for the reply to its request
    out: bytearray = field(default_factory=bytearray)
    watched: int = 0  # the seq that it was told last
    every: float = 0.0
    told_at: float = -math.inf

    def forget_descriptors(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())

    @property
    def gone(self) -> bool:
        return self.sock.fileno() < 0


class Writer:
    """The loop. ``run`` returns after ``stop`` (callable from a signal handler's thread)."""

    def __init__(self, listener: socket.socket, key: bytes, applier: Applier) -> None:
        self._listener = listener
        self._key = key
        self._applier = applier
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._queue: deque[tuple[_Connection, list[Any]]] = deque()
        self._watchers: set[_Connection] = set()
        self._sinks: dict[_Connection, Sink] = {}
        self._calls: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._may_drain = True
        self._backlog = 0  # at most so many documents wait for their words to be indexed
        self._seq = 0
        self._recent: deque[_Connection] = deque(maxlen=RECENT)
        self._answered: dict[bytes, tuple[int, bytes]] = {}  # a client's last number and packed reply, as stored
        self._unsynced = True  # has anything been committed since the last sync began? Before a crash, perhaps
        self._synced_at = time.monotonic()
        self._checkpointer = Checkpointer(applier.path)

    def stop(self) -> None:
        self._stopping = True
        self._wake_up()

    def call(self, function: Callable[[], None]) -> None:
        """Run ``function`` in the loop's thread, between transactions."""
        self._calls.append(function)
        self._wake_up()

    def _wake_up(self) -> None:
        self._waker.send(b"x")

    def run(self) -> None:
        """Serve until stopped."""
        self._listener.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        database.run(self._applier.db, "pragma synchronous = normal")  # and LogSync does the rest
        self._applier.db.set_wal_hook(self._checkpointer.hook)
        self._checkpointer.start()
        self._seq = self._applier.seq
        self._log: LogSync[_Replies] = LogSync(self._applier.path, self._wake_up)
        try:
            while not self._stopping:
                self._step()
        finally:
            self._log.close()
            with contextlib.suppress(OSError):  # LogSync has said so; who waits will ask the next writer
                self._send_synced()
            self._checkpointer.stop()
            for registered in list(self._selector.get_map().values()):
                if isinstance(registered.data, _Connection):
                    registered.data.forget_descriptors()
                    registered.data.sock.close()
            self._selector.close()
            self._wake.close()
            self._waker.close()
            self._applier.close()

    def _step(self) -> None:
        events = self._selector.select(0 if self._queue else self._patience())
        for registered, mask in events:
            if isinstance(registered.data, _Connection):
                if mask & selectors.EVENT_WRITE:
                    self._flush(registered.data)
                if mask & selectors.EVENT_READ:
                    self._read(registered.data)
            else:
                registered.data()
        self._send_synced()
        while self._calls:
            self._calls.popleft()()
            self._unsynced = True
            self._tell_sinks()
        if self._queue:
            self._commit([self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))])
        elif not events and self._may_drain:
            self._drain()
        for peer in [peer for peer in self._watchers if peer.watched != self._seq]:
            self._notify(peer)
        if self._unsynced and time.monotonic() - self._synced_at > SYNC_AT_LEAST_S:
            self._sync([])

    def _patience(self) -> float | None:
        """How long nothing need happen."""
        due = [peer.told_at + peer.every for peer in self._watchers if peer.every and peer.watched != self._seq]
        left = max(0.0, min(due) - time.monotonic()) if due else math.inf
        if self._may_drain:
            left = min(left, IDLE_BEFORE_DRAIN_S)
        return left if left < math.inf else None

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as e:
            self._make_room(e)
            return
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, _Connection(sock))

    def _make_room(self, error: OSError) -> None:
        """Out of descriptors: whoever has not said who he is has to go."""
        peers = [key.data for key in self._selector.get_map().values() if isinstance(key.data, _Connection)]
        strangers = [peer for peer in peers if peer.agent is None]
        log.error("writer: cannot accept: %s; dropping %d of %d peers", error, len(strangers), len(peers))
        for peer in strangers:
            self._drop(peer)
        if not strangers:
            time.sleep(0.05)  # the listener stays readable: do not spin

    def _woken(self) -> None:
        self._wake.recv(4096)

    def _read(self, peer: _Connection) -> None:
        try:
            if peer.agent is None:
                data, descriptors, _, _ = socket.recv_fds(peer.sock, 1 << 20, 2)
                if descriptors:
                    peer.forget_descriptors()
                    peer.descriptors = list(descriptors)
            else:
                data = peer.sock.recv(1 << 20)
            frames = peer.frames.feed(data)
        except BlockingIOError:
            return
        except OSError:
            self._drop(peer)
            return
        except wire.FrameError as e:
            log.warning("writer: dropping a peer: %s", e)
            self._drop(peer)
            return
        if not data:
            self._drop(peer)
        for item in frames:
            if peer.gone:
                return
            if peer.agent is None:
                self._greet(peer, item)
            elif peer.watching or not isinstance(item, list) or len(item) != 5 or type(item[0]) is not int:
                self._drop(peer)
            elif peer.waiting or peer.out:
                log.warning("writer: dropping a peer that does not wait for its reply")
                self._drop(peer)
            else:
                peer.waiting = True
                self._queue.append((peer, item))

    def _greet(self, peer: _Connection, item: Any) -> None:
        agent = item.get("agent") if isinstance(item, dict) else None
        shown = item.get("proof") if isinstance(item, dict) else None
        if (
            not isinstance(agent, str) or not isinstance(shown, bytes) or item.get("v") != wire.PROTOCOL
            or not hmac.compare_digest(shown, proof(self._key, agent))
        ):  # fmt: skip
            log.warning("writer: a peer could not show whom it speaks for")
            self._drop(peer)
            return
        peer.agent = agent
        if "sink" in item:
            self._add_sink(peer, item["sink"])
        elif item.get("watch"):
            peer.watching = True
            peer.every = float(item["every"]) if isinstance(item.get("every"), (int, float)) else 0.0
            self._watchers.add(peer)
            self._notify(peer)
        elif isinstance(item.get("client"), bytes) and len(item["client"]) == 16:
            # The id is bound to the agent: nobody can fetch or burn another's replies by guessing an id.
            peer.client = hashlib.sha256(agent.encode() + b"\0" + item["client"]).digest()[:16]
            peer.origin = item["origin"] if isinstance(item.get("origin"), bytes) else b""
        else:
            self._drop(peer)

    def _commit(self, batch: list[tuple[_Connection, list[Any]]]) -> None:
        """One transaction for all that waits. Replies leave after COMMIT, and after a sync of the log where one of
        them promises that."""
        replies: _Replies = []
        before = self._applier.db.total_changes()
        try:
            self._applier.begin()
            for peer, item in batch:
                replies.append((peer, self._answer(peer, item)))
            self._applier.commit()
        except AvmError as e:
            self._applier.rollback()
            self._applier.events.clear()
            self._answered.clear()
            log.error("writer: a transaction failed: %s", e)
            replies = [(peer, _refusal(item[0], e)) for peer, item in batch]
        else:
            self._unsynced = self._unsynced or self._applier.db.total_changes() != before
        self._tell_sinks()
        self._recent.extend(peer for peer, _ in batch)
        if self._unsynced and any(_promises(item) for _, item in batch):
            self._sync(replies)
        else:
            self._send_all(replies)
        self._may_drain = True
        self._seq = self._applier.seq
        self._backlog += len(batch)
        if self._backlog > LAG:
            self._drain()

    def _sync(self, replies: _Replies) -> None:
        """Answer once all that is committed is on the disk. Where nobody else is asking, the wait is here: a thread
        would cost more than it saves."""
        self._unsynced, self._synced_at = False, time.monotonic()
        if self._log.idle and {peer for peer, _ in replies} >= set(self._recent):
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
            self._send(peer, reply)

    def _answer(self, peer: _Connection, item: list[Any]) -> list[Any]:
        number, name, operator, command, arguments = item
        db = self._applier.db
        try:
            who = self._principal(peer, name, operator)
            last = self._last_answer(peer)
            if last is not None and last[0] == number:
                return [number, None, wire.unpack(last[1])]
            if last is not None and last[0] > number:
                # It lay in a socket that its client had given up, and would undo what the client did since.
                raise Busy("overtaken by a later request")
            if not isinstance(command, str) or not isinstance(arguments, dict):
                raise Invalid("malformed request")
            if command == SYNC:  # changes nothing, so there is nothing to keep of it
                return [number, None, {}]
            packed = b""

            def record(reply: Any) -> None:
                nonlocal packed
                packed = wire.pack(reply)
                db.execute(
                    "insert or replace into applied(client, num, reply, at) values(?, ?, ?, ?)",
                    (peer.client, number, packed, time.time_ns()),
                )

            self._applier.origin = peer.origin if command in NATIVE else b""
            reply = self._applier.apply(who, command, arguments, record)
            assert peer.client is not None, "greeted"
            self._answered[peer.client] = number, packed
            return [number, None, reply]
        except AvmError as e:
            if db.get_autocommit():
                raise
            return _refusal(number, e)
        except Exception:  # a defect in one command must not take the writer from everybody
            log.exception("writer: command %r failed", command)
            if db.get_autocommit():
                raise StoreFailed("the transaction was lost") from None
            return _refusal(number, StoreFailed("internal error; the daemon's log has the details"))

    def _last_answer(self, peer: _Connection) -> tuple[int, bytes] | None:
        """The number and the packed reply of the last request that was applied for this client."""
        assert peer.client is not None, "greeted"
        known = self._answered.get(peer.client)
        if known is None:
            if len(self._answered) > ANSWERED:
                self._answered.clear()
            row: Any = self._applier.db.execute(
                "select num, reply from applied where client = ?", (peer.client,)
            ).fetchone()
            if row is None:
                return None
            known = self._answered[peer.client] = row[0], bytes(row[1])
        return known

    @staticmethod
    def _principal(peer: _Connection, name: Any, operator: Any) -> Principal:
        if peer.agent != ANYBODY:
            if operator or name not in (None, peer.agent):
                raise Denied(f"this connection speaks for {peer.agent} only")
            return Principal(str(peer.agent))
        if not isinstance(name, str):
            raise Invalid("a request needs the agent it is for")
        return Principal(name, operator=bool(operator))

    def _add_sink(self, peer: _Connection, said: Any) -> None:
        """A mount lets its kernel cache: from now on it hears of every change, until its connection ends."""
        sink = parse(said, peer.descriptors)
        if sink is None:
            self._drop(peer)
            return
        peer.watching = True  # it has nothing more to ask
        self._sinks[peer] = sink
        self._send(peer, [True])

    def _tell_sinks(self) -> None:
        """After a commit, before its replies."""
        events, self._applier.events = self._applier.events, []
        if not events:
            return
        for peer, sink in list(self._sinks.items()):
            try:
                sink.tell(events)
            except OSError as e:
                log.info("writer: a mount's cache is gone: %s", e)
                self._drop(peer)

    def _drain(self) -> None:
        """Idle, or far behind: make the words of a few queued documents searchable."""
        try:
            done = self._applier.alone(
                Principal("avmfs", operator=True), "drain_lexical", {"limit": DRAIN_STEP, "hurry": True}
            )
            self._backlog, self._unsynced = done["left"], True
            self._may_drain = self._backlog > 0
            if done["done"] and not self._backlog:
                for peer in self._watchers:  # what works behind us has waited for this
                    peer.watched = -1
        except AvmError as e:
            log.error("writer: indexing failed: %s", e)
            self._backlog, self._may_drain = 0, False
        except Exception:  # nor may one document
            log.exception("writer: indexing failed")
            self._backlog, self._may_drain = 0, False

    def _send(self, peer: _Connection, reply: Any) -> None:
        if peer.gone:
            return
        peer.out += wire.frame(reply)
        self._flush(peer)

    def _flush(self, peer: _Connection) -> None:
        try:
            while peer.out:
                del peer.out[: peer.sock.send(peer.out)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(peer)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.out else 0)
        if self._selector.get_key(peer.sock).events != wanted:
            self._selector.modify(peer.sock, wanted, peer)

    def _notify(self, peer: _Connection) -> None:
        """Tell a watcher the newest seq, unless it has not yet taken the last one, or was told a moment ago and wants
        to be told seldom: then later."""
        now = time.monotonic()
        if not peer.out and now - peer.told_at >= peer.every:
            peer.watched, peer.told_at = self._seq, now
            self._send(peer, [self._seq])

    def _drop(self, peer: _Connection) -> None:
        """Forget a connection. What it had asked is still applied: it may come back for the answer."""
        self._watchers.discard(peer)
        if (sink := self._sinks.pop(peer, None)) is not None:
            sink.close()
        peer.forget_descriptors()  # the kernel ends a mount when its last descriptor is closed
        if not peer.gone:
            self._selector.unregister(peer.sock)
            peer.sock.close()


def _promises(item: list[Any]) -> bool:
    return not isinstance(item[3], str) or commands.promises_durability(item[3])


def _refusal(number: int, error: AvmError) -> list[Any]:
    return [number, [error.code, error.reason, error.filename], None]
