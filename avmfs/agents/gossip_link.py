"""Exchanging digests with other hosts: an authenticated connection, who may make one, and when.

Owns the handshake, the frames and their proofs, the listener and the rounds. Both sides show that they hold the key
that all hosts share: over fresh nonces of both, so that nothing recorded is of use again, and over every frame with its
number and direction, so that none can be changed, repeated, reordered or sent back. Nothing is hidden: digests hold
what everybody may learn. Used by the keeper, off unless configured.

Threads: one listens, one makes the rounds, a few answer; each connection has little time and little room.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import logging
import os
import random
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeGuard

from avmfs_config import Endpoint, GossipSettings

from avmfs import wire
from avmfs.agents import gossip
from avmfs.agents.gossip import Knowledge
from avmfs.errors import AvmError, Denied, Invalid, NotFound
from avmfs.listener import Listener, in_thread

log = logging.getLogger(__name__)

KEY_BYTES: Final = 32
HELLO_LIMIT: Final = 256
HELLO_S, EXCHANGE_S = 3.0, 10.0  # each wait for the other side
CONNECTIONS: Final = 8
_NUMBER: Final = struct.Struct(">Q")
_ASKER, _ANSWERER = b"asker", b"answerer"


def read_key(path: Path) -> bytes:
    """The shared secret. Raises NotFound, Denied when others can read the file, Invalid when it is too short."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(65_536).strip()
    except OSError as e:
        raise NotFound(f"the key cannot be read: {e.strerror}", os.fspath(path)) from None
    if stat.S_IMODE(mode) & 0o077:
        raise Denied("others can read the key: chmod 600", os.fspath(path))
    if len(data) < KEY_BYTES:
        raise Invalid(f"a key has at least {KEY_BYTES} bytes: head -c 32 /dev/urandom | base64", os.fspath(path))
    return data


class Channel:
    """A connection whose other end has shown the key, or will with its first frame."""

    def __init__(self, sock: socket.socket, session: bytes, mine: bytes, theirs: bytes) -> None:
        self._sock = sock
        self._session = session
        self._mine, self._theirs = mine, theirs
        self._sent = self._received = 0

    def send(self, value: Any) -> None:
        body = wire.pack(value)
        wire.send(self._sock, [body, self._proof(self._mine, self._sent, body)])
        self._sent += 1

    def receive(self, limit: int = gossip.MESSAGE_LIMIT) -> Any:
        """Raises Denied for a frame that is not the other side's next one."""
        frame = wire.receive(self._sock, limit)
        if (
            not isinstance(frame, list)
            or len(frame) != 2
            or not all(isinstance(part, bytes) for part in frame)
            or not hmac.compare_digest(frame[1], self._proof(self._theirs, self._received, frame[0]))
        ):
            raise Denied("gossip: a frame without proof of the key")
        self._received += 1
        return wire.unpack(frame[0])

    def _proof(self, sender: bytes, number: int, body: bytes) -> bytes:
        return _mac(self._session, b"frame", sender, _NUMBER.pack(number), body)


def connect(sock: socket.socket, key: bytes, nonce: bytes) -> Channel:
    """The asking side of the handshake; ``nonce`` is fresh, 16 bytes. Raises Denied for a peer without the key."""
    wire.send(sock, {"v": wire.PROTOCOL, "nonce": nonce})
    hello = wire.receive(sock, HELLO_LIMIT)
    theirs, proof = (hello.get(name) if isinstance(hello, dict) else None for name in ("nonce", "proof"))
    if not _is_nonce(theirs) or not isinstance(proof, bytes):
        raise Denied("gossip: the peer speaks another protocol")
    if not hmac.compare_digest(proof, _mac(key, b"hello", nonce, theirs)):
        raise Denied("gossip: the peer does not have the key")
    return Channel(sock, _mac(key, b"session", nonce, theirs), _ASKER, _ANSWERER)


def accept(sock: socket.socket, key: bytes, nonce: bytes) -> Channel:
    """The answering side; the asker has yet to show the key, with its first frame."""
    hello = wire.receive(sock, HELLO_LIMIT)
    theirs = hello.get("nonce") if isinstance(hello, dict) and hello.get("v") == wire.PROTOCOL else None
    if not _is_nonce(theirs):
        raise Denied("gossip: the peer speaks another protocol")
    wire.send(sock, {"nonce": nonce, "proof": _mac(key, b"hello", theirs, nonce)})
    return Channel(sock, _mac(key, b"session", theirs, nonce), _ANSWERER, _ASKER)


def ask_peer(sock: socket.socket, key: bytes, knowledge: Knowledge) -> int:
    """One exchange, as the one who asks; how many digests were new here."""
    sock.settimeout(EXCHANGE_S)
    channel = connect(sock, key, os.urandom(16))
    channel.send(gossip.summary(knowledge))
    learnt, lacking = gossip.settle(knowledge, channel.receive())
    channel.send(lacking)
    channel.receive()  # it has them
    return learnt


def answer_peer(sock: socket.socket, key: bytes, knowledge: Knowledge) -> int:
    """One exchange, as the one who is asked; how many digests were new here."""
    sock.settimeout(HELLO_S)
    channel = accept(sock, key, os.urandom(16))
    asked = channel.receive(gossip.SUMMARY_LIMIT)  # it has not shown the key yet
    sock.settimeout(EXCHANGE_S)
    channel.send(gossip.answer(knowledge, asked))
    learnt = gossip.take(knowledge, channel.receive())
    channel.send({"learnt": learnt})
    return learnt


class Gossip:
    """Listens and makes rounds until `close`. ``alive`` is called before each round, ``report`` after changes of what
    `status` says. Raises AvmError or OSError when it cannot start."""

    def __init__(
        self,
        settings: GossipSettings,
        knowledge: Knowledge,
        alive: Callable[[], None],
        report: Callable[[dict[str, Any]], None] = lambda status: None,
        chance: random.Random | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        assert settings.key_file is not None, "the loader requires it"
        self._settings = settings
        self._key = read_key(settings.key_file)
        self._knowledge = knowledge
        self._alive = alive
        self._report = report
        self._chance = chance or random.Random()
        self._clock = clock
        self._allowed = allowed_networks(settings)
        self._over = threading.Event()
        self._room = threading.BoundedSemaphore(CONNECTIONS)
        self._peers: dict[str, dict[str, Any]] = {
            str(peer): {"state": "not asked yet", "at": None} for peer in settings.peers
        }
        self._answered = self._refused = 0
        self._listener = None if settings.listen is None else _listen(settings.listen)
        self._threads = [threading.Thread(target=self._rounds, name="gossip rounds", daemon=True)]
        if self._listener is not None:
            self._threads.append(threading.Thread(target=self._serve, name="gossip", daemon=True))
        for thread in self._threads:
            thread.start()

    @property
    def port(self) -> int | None:
        """Where it listens."""
        return None if self._listener is None else int(self._listener.getsockname()[1])

    def status(self) -> dict[str, Any]:
        return {
            "state": "on",
            "listen": None if self._settings.listen is None else str(self._settings.listen),
            "peers": {name: dict(state) for name, state in self._peers.items()},
            "answered": self._answered,
            "refused": self._refused,
        }

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(HELLO_S)
        if self._listener is not None:
            self._listener.close()

    def ask(self, peer: Endpoint) -> int:
        """One exchange with a peer; how many digests were new here. Raises OSError, AvmError among them."""
        try:
            with socket.create_connection((peer.host, peer.port), timeout=HELLO_S) as sock:
                return ask_peer(sock, self._key, self._knowledge)
        except (EOFError, wire.FrameError) as e:
            raise Denied(f"gossip: {e}") from None

    def _rounds(self) -> None:
        while not self._over.is_set():
            try:
                self._alive()
            except AvmError as e:
                log.warning("gossip: %s", e)
            if self._settings.peers:
                self._ask_one(self._chance.choice(self._settings.peers))
            self._report(self.status())
            # Hosts that started together should not ask together for ever.
            self._over.wait(self._settings.interval_s * self._chance.uniform(0.8, 1.2))

    def _ask_one(self, peer: Endpoint) -> None:
        before = self._peers[str(peer)]["state"]
        try:
            self.ask(peer)
            state = "ok"
        except OSError as e:  # AvmError is one
            state = str(e)[:200]
            if state != before:
                log.warning("gossip: %s: %s", peer, e)
        self._peers[str(peer)] = {"state": state, "at": self._clock()}

    def _serve(self) -> None:
        assert self._listener is not None
        for client in Listener(self._listener, "gossip").clients(self._over):
            if client is not None:
                with contextlib.suppress(OSError):  # it has gone again
                    self._admit(client, str(client.getpeername()[0]))

    def _admit(self, client: socket.socket, address: str) -> None:
        if not is_allowed(address, self._allowed) or not self._room.acquire(blocking=False):
            self._refused += 1
            client.close()
            return
        if not in_thread("gossip answer", self._answer, client, address):
            self._refused += 1
            self._room.release()
            client.close()

    def _answer(self, client: socket.socket, address: str) -> None:
        try:
            with client:
                answer_peer(client, self._key, self._knowledge)
            self._answered += 1
        except (EOFError, OSError, wire.FrameError) as e:
            self._refused += 1
            log.warning("gossip: %s: %s", address, e)
        finally:
            self._room.release()


def allowed_networks(settings: GossipSettings) -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """Who may connect: this machine, the peers that are named by address, and who is allowed by name."""
    named = ["127.0.0.0/8", "::1/128", *settings.allow]
    for peer in settings.peers:
        with contextlib.suppress(ValueError):  # a name: its addresses are to be in `allow`
            named.append(str(ipaddress.ip_network(peer.host)))
    return [ipaddress.ip_network(each) for each in named]


def is_allowed(address: str, networks: Sequence[ipaddress.IPv4Network | ipaddress.IPv6Network]) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    return any(found in network for network in networks if network.version == found.version)


def _listen(where: Endpoint) -> socket.socket:
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    return socket.create_server((where.host, where.port), family=family, backlog=CONNECTIONS)


def _is_nonce(value: Any) -> TypeGuard[bytes]:
    return isinstance(value, bytes) and len(value) == 16


def _mac(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 over the parts, each with its length: no two lists of parts look alike."""
    made = hmac.new(key, b"avm gossip 1", hashlib.sha256)
    for part in parts:
        made.update(_NUMBER.pack(len(part)) + part)
    return made.digest()
