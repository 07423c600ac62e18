"""Whoever is connected to the writer: clients with requests, watchers, kernel caches.

Owns the sockets and their loop: accepting, greeting, frames in and out, who waits for what. Called by ``loop``, in
one thread; only ``wake`` may be called from others. Knows nothing of what a request means.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import apsw

from avmfs import wire
from avmfs.access import ROUTES, Principal
from avmfs.errors import Denied, Invalid
from avmfs.listener import PAUSE_S, Listener
from avmfs.store.identity import ANYBODY, shown_agent
from avmfs.store.notify.kernel_notices import Sink, noticed, parse_sink
from avmfs.store.rows import api_keys
from avmfs.store.rows.log_ops import Event
from avmfs.store.writer.request import Request, parse

log = logging.getLogger(__name__)

REQUEST_LIMIT = 32 * 1024 * 1024


@dataclass(slots=True, eq=False)
class Peer:
    sock: socket.socket
    frames: wire.Assembler = field(default_factory=lambda: wire.Assembler(REQUEST_LIMIT))
    client: bytes | None = None
    agent: str | None = None
    watching: bool = False
    origin: bytes = b""
    descriptors: list[int] = field(default_factory=list)  # what a sink sent along
    waiting: bool = False  # for the reply to its request
    out: bytearray = field(default_factory=bytearray)
    blocked: bool = False  # its socket took no more of that
    watched: int = 0  # what it was told of last
    mail: bool = False  # it watches for messages alone
    every: float = 0.0
    told_at: float = -math.inf

    def forget_descriptors(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())

    @property
    def gone(self) -> bool:
        return self.sock.fileno() < 0


class Peers:
    """``asked`` is called with each request of a client."""

    def __init__(self, listener: socket.socket, key: bytes, asked: Callable[[Peer, Request], None]) -> None:
        self._listener = Listener(listener, "writer", self._make_room)
        self._key = key
        self._asked = asked
        self._selector = selectors.DefaultSelector()
        self._wake, self._waker = socket.socketpair()
        self._watchers: set[Peer] = set()
        self._kernel_sinks: dict[Peer, Sink] = {}
        self._seq = 0  # the newest that there is to be told
        self._tells = 0  # commits with messages among them
        self._wake.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)

    def wake(self) -> None:
        """End ``poll``. From any thread."""
        with contextlib.suppress(OSError):  # the loop may have looked in between, and ended
            self._waker.send(b"x")

    def poll(self, patience_s: float | None) -> bool:
        """Wait for something to happen, and see to it. Has anything?"""
        events = self._selector.select(self._until_due(patience_s))
        for registered, mask in events:
            if isinstance(registered.data, Peer):
                if mask & selectors.EVENT_WRITE:
                    self._flush(registered.data)
                if mask & selectors.EVENT_READ:
                    self._read(registered.data)
            else:
                registered.data()
        return bool(events)

    def _until_due(self, patience_s: float | None) -> float | None:
        """Watchers that want to be told seldom are told then."""
        due = [p.told_at + p.every for p in self._watchers if p.every and p.watched != self._newest(p)]
        if not due:
            return patience_s
        left = max(0.0, min(due) - time.monotonic())
        return left if patience_s is None else min(left, patience_s)

    def close(self) -> None:
        for registered in list(self._selector.get_map().values()):
            if isinstance(registered.data, Peer):
                registered.data.forget_descriptors()
                registered.data.sock.close()
        self._selector.close()
        self._wake.close()
        self._waker.close()

    # Telling -------------------------------------------------------------------------------------------

    def tell_watchers(self, seq: int, *, again: bool = False) -> None:
        """Those that have not been told of ``seq``; with ``again`` all, since something else has happened."""
        self._seq = seq
        for peer in list(self._watchers):
            if again and not peer.mail:
                peer.watched = -1
            if peer.watched != self._newest(peer):
                self._notify(peer)

    def _newest(self, peer: Peer) -> int:
        """What a watcher is to be told of."""
        return self._tells if peer.mail else self._seq

    def tell_sinks(self, events: Sequence[Event]) -> None:
        """After a commit, before its replies."""
        self._tells += any(event.op == "tell" for event in events)
        notices = noticed(events)
        for peer, sink in list(self._kernel_sinks.items()):
            try:
                sink.tell(notices)
            except OSError as e:
                log.info("writer: a mount's cache is gone: %s", e)
                self._drop(peer)

    def send(self, peer: Peer, packed: bytes) -> None:
        """``packed`` is one value as ``wire.pack`` makes it."""
        if peer.gone:
            return
        peer.out += wire.framed(packed)
        self._flush(peer)

    def _flush(self, peer: Peer) -> None:
        try:
            while peer.out:
                del peer.out[: peer.sock.send(peer.out)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(peer)
            return
        if peer.blocked != bool(peer.out):
            peer.blocked = bool(peer.out)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.blocked else 0)
            self._selector.modify(peer.sock, wanted, peer)

    def _notify(self, peer: Peer) -> None:
        """Tell a watcher the newest seq, unless it has not yet taken the last one, or was told a moment ago and wants
        to be told seldom: then later."""
        now = time.monotonic()
        if not peer.out and now - peer.told_at >= peer.every:
            peer.watched, peer.told_at = self._newest(peer), now
            self.send(peer, wire.pack([self._seq]))

    # Listening -----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        sock = self._listener.accept()
        if sock is not None:
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ, Peer(sock))

    def _make_room(self) -> None:
        """Out of descriptors: whoever has not said who he is has to go."""
        peers = [key.data for key in self._selector.get_map().values() if isinstance(key.data, Peer)]
        strangers = [peer for peer in peers if peer.agent is None]
        log.error("writer: dropping %d of %d peers", len(strangers), len(peers))
        for peer in strangers:
            self._drop(peer)
        if not strangers:
            time.sleep(PAUSE_S)

    def _woken(self) -> None:
        self._wake.recv(4096)

    def _read(self, peer: Peer) -> None:
        try:
            if peer.agent is None:
                data, descriptors, _, _ = socket.recv_fds(peer.sock, wire.PIECE, 2)
                if descriptors:
                    peer.forget_descriptors()
                    peer.descriptors = list(descriptors)
            else:
                data = peer.sock.recv(wire.PIECE)
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
            elif peer.watching or (request := parse(item)) is None:
                self._drop(peer)
            elif peer.waiting or peer.out:
                log.warning("writer: dropping a peer that does not wait for its reply")
                self._drop(peer)
            else:
                peer.waiting = True
                self._asked(peer, request)

    def _greet(self, peer: Peer, item: Any) -> None:
        agent = shown_agent(self._key, item)
        if agent is None:
            log.warning("writer: a peer could not show whom it speaks for")
            self._drop(peer)
            return
        peer.agent = agent
        if "sink" in item:
            self._add_sink(peer, item["sink"])
        elif item.get("watch"):
            peer.watching, peer.mail = True, item.get("mail") is True
            peer.every = float(item["every"]) if isinstance(item.get("every"), (int, float)) else 0.0
            self._watchers.add(peer)
            self._notify(peer)
        elif isinstance(item.get("client"), bytes) and len(item["client"]) == 16:
            # The id is bound to the agent: nobody can fetch or burn another's replies by guessing an id.
            peer.client = hashlib.sha256(agent.encode() + b"\0" + item["client"]).digest()[:16]
            peer.origin = item["origin"] if isinstance(item.get("origin"), bytes) else b""
        else:
            self._drop(peer)

    def _add_sink(self, peer: Peer, said: Any) -> None:
        """A mount lets its kernel cache: from now on it hears of every change, until its connection ends."""
        sink = parse_sink(said, peer.descriptors)
        if sink is None:
            self._drop(peer)
            return
        peer.watching = True  # it has nothing more to ask
        self._kernel_sinks[peer] = sink
        self.send(peer, wire.pack([True]))

    def _drop(self, peer: Peer) -> None:
        """Forget a connection. What it had asked is still applied: it may come back for the answer."""
        self._watchers.discard(peer)
        if (sink := self._kernel_sinks.pop(peer, None)) is not None:
            sink.close()
        peer.forget_descriptors()  # the kernel ends a mount when its last descriptor is closed
        if not peer.gone:
            self._selector.unregister(peer.sock)
            peer.sock.close()


def requester(db: apsw.Connection, peer: Peer, request: Request) -> Principal:
    """Return who a request is for, by what its connection may speak for. Raise Invalid, Denied."""
    name, rights, route = request.agent, request.rights, request.route
    if route not in ROUTES:
        raise Invalid(f"no route is called {route!r}")
    if peer.agent != ANYBODY:
        if rights or name not in (None, peer.agent):
            raise Denied(f"this connection speaks for {peer.agent} only")
        return _plain(str(peer.agent), False, route)
    if not isinstance(name, str):
        raise Invalid("a request needs the agent it is for")
    if isinstance(rights, str):
        return replace(api_keys.principal(db, name, rights, time.time_ns()), route=route)
    return _plain(name, bool(rights), route)


@lru_cache(maxsize=1024)
def _plain(name: str, operator: bool, route: str) -> Principal:
    return Principal(name, operator=operator, route=route)
