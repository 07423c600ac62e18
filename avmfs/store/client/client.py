"""Getting a command applied: through the writer process, or directly under the lock.

Owns the client side of the writer's protocol. Which of the two a process
uses is decided once, by whoever opens the store; both raise the same errors.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import apsw

from avmfs import wire
from avmfs.access import Policy, Principal
from avmfs.errors import AvmError, Busy, NoSpace, NotSupported, ReadOnly, StoreFailed, TooBig, from_wire
from avmfs.handover import HandoverState
from avmfs.store import commands
from avmfs.store.client.inflight import InFlight
from avmfs.store.client.watch import SharedWatch, Watch
from avmfs.store.files import loss_check
from avmfs.store.files.displaced import OpenStoreFiles, described, index_of_log, log_of
from avmfs.store.files.store_lock import COMMAND_S, StoreLock
from avmfs.store.files.sync_note import SyncNote
from avmfs.store.files.wal_index import WalIndex
from avmfs.store.identity import OPERATOR
from avmfs.store.rows import log_position
from avmfs.store.schema import database
from avmfs.store.schema.fork_gate import GATE
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer import rewriting
from avmfs.store.writer.applier import Applier
from avmfs.store.writer.connections import REQUEST_LIMIT
from avmfs.store.writer.disk_reserve import DiskReserve
from avmfs.store.writer.wal_sync import WalFile

log = logging.getLogger(__name__)

_SLACK_S = 0.5  # of a limit, not worth setting it anew
CHECKPOINT_PAGES = 1000  # so many in the log are moved into the database, where there is no daemon
_AT_ONCE = 64 * 1024  # bytes of a request that the writer's socket surely takes without waiting


class Attendant(Protocol):
    """Somebody whose threads submit, and have others waiting for them."""

    def answer_from(self, descriptor: int) -> None:
        """This thread is about to wait for what can be read there, which will not take long. Returns when something
        can be read, or when this thread may wait."""
        return

    def aside(self) -> None:
        """This thread is about to wait, for who knows how long."""
        return


class Submitter:
    """What a store's commands go through: this one none. The rest is what only a process of a daemon has."""

    def submit(self, who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        raise ReadOnly("this store is only looked at")

    def close(self) -> None:
        return

    def watch(
        self, notify: Callable[[int], None], every_s: float = 0.0, mail: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Call ``notify(seq)`` from another thread when the watch begins and soon after commits; several commits may
        be one call, all those within ``every_s`` are. ``mail``: only after commits that send messages, to whomever."""
        raise NotSupported("changes can be watched while a daemon runs")

    def feed_cache(
        self,
        descriptors: Sequence[int],
        names: bytes,
        node: bytes,
        at: int,
        switch: Callable[[bool], None],
        over: threading.Event,
        registered: int | None = None,
        keep: Callable[[int], None] = lambda descriptor: None,
    ) -> None:
        """Keep a kernel cache told of changes, until ``over`` (blocks). ``switch(True)`` once it will hear of every
        commit, ``switch(False)`` as soon as that has ended: nothing may be cached until the next True. ``keep`` is
        given each connection that does so, for a process that takes over and gives it back as ``registered``. Returns
        at once where no daemon runs: nothing may be cached then."""

    def keep(self, kept: HandoverState, origin: bytes | None) -> bytes:
        """Note what `once` spans in memory that outlives this process, and go on where its predecessor was killed.
        Returns the origin that the writer knows this process by; ``origin`` is the predecessor's."""
        raise NotSupported("only a process of a daemon has a successor")

    def once(self, kind: int, key: int) -> contextlib.AbstractContextManager[None]:
        """Of what this thread submits inside, each is applied once and answered with its first answer, even when the
        process is killed and its successor runs the same work, named by ``kind`` and ``key``, again. Without `keep`
        nothing is promised."""
        return contextlib.nullcontext()

    def left(self, kind: int, key: int) -> bool:
        """Return whether the predecessor was killed while it did this work."""
        return False

    def repeats(self) -> bool:
        """Return whether what this thread submits next in its `once` may have been applied for a predecessor: it is to
        be submitted, whatever has become of the reason for it, since the answer is the first one."""
        return False

    def settle(self, kind: int, still: set[int]) -> None:
        """Of the predecessor's work of this kind only ``still`` will be run again."""

    def attended(self, by: Attendant) -> None:
        """From now on tell of waiting, in the thread that submits, before it waits."""


class _NoHurry(Attendant):
    """Nobody waits for the threads that submit."""


class Waiting:
    """Whom the lanes of a client tell that they are about to wait."""

    __slots__ = ("by",)

    def __init__(self) -> None:
        self.by: Attendant = _NoHurry()


class Lane:
    """One connection to the writer, one request at a time. Reconnects and resends; the writer applies once."""

    def __init__(
        self,
        address: Path,
        agent: str,
        proof: bytes,
        patience_s: float,
        origin: bytes,
        client: bytes,
        waiting: Waiting | None = None,
    ) -> None:
        self._waiting = Waiting() if waiting is None else waiting
        self._address = address
        self._greeting = {"v": wire.PROTOCOL, "client": client, "agent": agent, "proof": proof, "origin": origin}
        self._patience = patience_s
        self._number = 0
        self._sock: socket.socket | None = None
        self._waits = 0.0  # seconds that the kernel lets us wait on it

    def call(self, request: list[Any], number: int | None = None) -> Any:
        """The command's result. Raises what it raised, Busy when the writer stays away for ``patience_s``. ``number``
        is this request's among the client's: that of a request which a process before may have sent."""
        self._number = self._number + 1 if number is None else number
        message = wire.frame([self._number, *request])
        if len(message) > REQUEST_LIMIT:  # the writer would hang up, and again at each try
            raise TooBig(f"{len(message)} bytes at once; {REQUEST_LIMIT} are allowed")
        deadline = time.monotonic() + self._patience
        pause = 0.005
        attendant = self._waiting.by
        if len(message) > _AT_ONCE:
            attendant.aside()
        while True:
            try:
                sock = self._sock
                if sock is None or self._waits < self._patience - _SLACK_S:
                    sock = self._connected(deadline)
                sock.sendall(message)
                attendant.answer_from(sock.fileno())
                number, error, result = wire.receive_answer(sock)
                if number != self._number:
                    raise wire.FrameError("an answer to another request")
                break
            except (OSError, EOFError, wire.FrameError) as e:
                self.close()
                attendant.aside()
                if time.monotonic() + pause > deadline:
                    raise Busy(f"the store's writer does not answer ({e or type(e).__name__})") from e
                time.sleep(pause)
                pause = min(pause * 2, 0.25)
        if error is not None:
            raise from_wire(*error, recorded=True)
        return result

    def _connected(self, deadline: float) -> socket.socket:
        left = max(0.1, deadline - time.monotonic())
        if self._sock is None:
            self._waiting.by.aside()
            self._sock = socket.socket(socket.AF_UNIX)
            wire.limit_waiting(self._sock, left)
            self._waits = left
            wire.connect(self._sock, self._address)
            wire.send(self._sock, self._greeting)
        elif self._waits < left - _SLACK_S:  # it was made when there was less time
            wire.limit_waiting(self._sock, left)
            self._waits = left
        return self._sock

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None


def _connection(taken: int | None) -> socket.socket:
    return socket.socket(socket.AF_UNIX) if taken is None else socket.socket(fileno=taken)


class WriterClient(Submitter):
    """Submits through the writer's socket; threads each take a lane. ``agent`` "*" may name one per request."""

    def __init__(self, address: Path, agent: str, proof: bytes, patience_s: float = 30.0) -> None:
        self._address, self._agent, self._proof, self._patience = address, agent, proof, patience_s
        self._inflight: deque[Lane] = deque()
        self._mail = SharedWatch(
            lambda tell: Watch(address, {**self._hello, "watch": True, "every": 0.0, "mail": True}, tell)
        )
        self._inflight_state: InFlight | None = None
        self._waiting = Waiting()
        self._origin = secrets.token_bytes(8)  # tells the writer which changes a mount made itself
        self._hello = {"v": wire.PROTOCOL, "agent": agent, "proof": proof}

    def attended(self, by: Attendant) -> None:
        self._waiting.by = by

    def keep(self, kept: HandoverState, origin: bytes | None) -> bytes:
        self._origin = self._origin if origin is None else origin
        self._inflight_state = InFlight(kept.lanes, self._lane)
        return self._origin

    def once(self, kind: int, key: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._inflight_state is None else self._inflight_state.once(kind, key)

    def left(self, kind: int, key: int) -> bool:
        return self._inflight_state is not None and self._inflight_state.left(kind, key)

    def repeats(self) -> bool:
        return self._inflight_state is not None and self._inflight_state.repeats()

    def settle(self, kind: int, still: set[int]) -> None:
        if self._inflight_state is not None:
            self._inflight_state.settle(kind, still)

    def submit(self, who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        request = [who.name, who.rights, command, arguments, who.route]
        if self._inflight_state is not None and self._inflight_state.counts(command):
            return self._inflight_state.call(request)
        try:
            lane = self._inflight.pop()
        except IndexError:
            lane = self._lane(secrets.token_bytes(16))
        try:
            return lane.call(request)
        finally:
            self._inflight.append(lane)

    def _lane(self, client: bytes) -> Lane:
        return Lane(self._address, self._agent, self._proof, self._patience, self._origin, client, self._waiting)

    @contextlib.contextmanager
    def watch(self, notify: Callable[[int], None], every_s: float = 0.0, mail: bool = False) -> Iterator[None]:
        if mail and not every_s:  # all who wait for these share one connection
            with self._mail.joined(notify):
                yield
            return
        watching = Watch(self._address, {**self._hello, "watch": True, "every": every_s, "mail": mail}, notify)
        watching.start()
        try:
            yield
        finally:
            watching.stop()

    def feed_cache(
        self,
        descriptors: Sequence[int],
        names: bytes,
        node: bytes,
        at: int,
        switch: Callable[[bool], None],
        over: threading.Event,
        registered: int | None = None,
        keep: Callable[[int], None] = lambda descriptor: None,
    ) -> None:
        sink = {"origin": self._origin, "names": names, "node": node, "at": at}
        greeting = wire.frame({**self._hello, "sink": sink})
        while not over.is_set():
            taken, registered = registered, None
            with contextlib.suppress(OSError, EOFError, wire.FrameError), _connection(taken) as sock:
                if taken is None:
                    wire.connect(sock, self._address)
                    socket.send_fds(sock, [greeting], list(descriptors))
                    wire.receive(sock)
                    keep(sock.fileno())
                switch(True)
                try:
                    sock.recv(1)  # nothing comes but the end
                finally:
                    switch(False)
            over.wait(0.02)

    def close(self) -> None:
        while self._inflight:
            self._inflight.pop().close()
        if self._inflight_state is not None:
            self._inflight_state.close()


class DirectWriter(Submitter):
    """Applies commands in this process, one at a time, under the lock that a daemon's start takes too."""

    def __init__(
        self,
        path: Path,
        policy: Policy,
        index: IndexRules,
        clock: Callable[[], int] = time.time_ns,
        wait_s: float = 10.0,
        at_least: int = 0,
    ) -> None:
        self._path = path
        self._lock = StoreLock(path)
        self._wait = wait_s
        self._mutex = threading.Lock()
        self._note = SyncNote(path)
        self._closed = False
        self._checkpoint_at = CHECKPOINT_PAGES  # in the log
        with self._locked():
            database.prepare(path, at_least)
            self._applier = Applier(path, policy, index, orphans=False, clock=clock, shared=True)
            self._reserve = reserve = DiskReserve(path, self._applier.db)
            self._applier.admit, self._applier.weigh = reserve.admit, reserve.weigh
            self._applier.short = lambda: reserve.near
            self._applier.db.set_wal_hook(self._committed)
            self._in_place = OpenStoreFiles(path, log_of(path), index_of_log(path))
            self._recover()
            self._settled = False
            self._writes_alone()

    def submit(self, who: Principal, command: str, arguments: dict[str, Any]) -> Any:
        with self._mutex:
            try:
                with self._locked():
                    if found := self._in_place.displaced():  # by a repair, say: what we have open is nobody's store
                        raise StoreFailed(f"{described(found)}; open it anew", os.fspath(self._path))
                    with database.translated(self._path):  # a newer avmfs may have had it in between
                        database.check_version(self._applier.db, self._path)
                    self._recover()
                    if not self._writes_alone():
                        raise ReadOnly(
                            "this store is shared with other hosts: its daemon alone can write to it (avm-daemon start)"
                        )
                    if commands.traits(command).rewrites and rewriting.due(self._applier.db):
                        rewriting.rewrite(self._path)
                    reply = self._applier.alone(who, command, arguments)
                    self._note.write(self._applier.seq)  # each commit is synced
                    return reply
            finally:
                self._applier.events.clear()  # no mount is there to hear of them,
                self._applier.rows.clear()  # and nobody follows the log in memory

    def _writes_alone(self) -> bool:
        """Whether no other host shares the store: what is committed here alone would be nowhere else. Under the lock,
        each time: hosts join and leave while it is open. Where it is so, our rules are put in force first."""
        if log_position.position(self._applier.db) is not None:
            self._settled = False
        elif not self._settled:
            self._applier.alone(OPERATOR, "settle", {})
            self._settled = True
            if rewriting.due(self._applier.db):  # a purge was killed before it was through
                with contextlib.suppress(Busy, NoSpace):
                    rewriting.rewrite(self._path)
        return self._settled

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """The store's lock, given back as clean if the block ends so, and began so or ``_recover`` has made it so:
        SQLite syncs each commit. All in the gate: a child that is forked meanwhile would hold it for its life."""
        with GATE:
            descriptor, clean = self._lock.acquire(self._wait, COMMAND_S, GATE.sleep), False
            self._trusted = not self._lock.unclean
            try:
                yield
                clean = True
            except AvmError as e:
                clean = not isinstance(e, StoreFailed)
                raise
            finally:  # everywhere: a fork waits at the gate, but not for ever
                self._lock.release(descriptor, clean=clean and self._trusted, everywhere=True)

    def _recover(self) -> None:
        """If the last one to write may have left what is not on the disk. Raises StoreFailed."""
        if self._trusted:
            return
        loss_check.finished(self._path)
        try:
            with contextlib.closing(WalFile(self._path)) as file:
                file.rewrite(self._applier.db)
        except OSError as e:
            raise StoreFailed(f"nothing can be written: {e}", os.fspath(self._path)) from None
        self._trusted = True

    def _committed(self, db: apsw.Connection, name: str, pages: int) -> int:
        """SQLite calls this after each commit with the pages now in the log."""
        if pages < self._checkpoint_at - CHECKPOINT_PAGES:
            self._checkpoint_at = CHECKPOINT_PAGES
        self._reserve.committed(pages)
        if pages >= self._checkpoint_at or self._reserve.low:
            self._checkpoint_at = pages + CHECKPOINT_PAGES
            self._checkpoint(db)
        return apsw.SQLITE_OK

    def _checkpoint(self, db: apsw.Connection, mode: int = apsw.SQLITE_CHECKPOINT_PASSIVE) -> bool:
        """Move the log into the database. Under the store's lock. Return False when the disk has failed."""
        try:
            pages, moved = db.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            pages, moved = 1, 0
        except apsw.Error as e:
            log.error("checkpoint failed: %s", e)
            WalIndex(self._path).forget_moved()
            return False
        if moved < pages:  # because of a reader, and SQLite has not synced the database
            WalIndex(self._path).forget_moved(())
        return True

    def close(self) -> None:
        """Whoever is the last to have the store open, and has the lock, leaves all of it in the database's file."""
        with self._mutex, GATE:
            if self._closed:
                return
            self._closed = True
            self._note.close()
            done = False
            if not self._in_place.displaced():
                with contextlib.suppress(Busy):  # the daemon has it now, or another command
                    descriptor = self._lock.acquire(0.0)
                    # Not left to SQLite's close, which tells nobody that a sync has failed.
                    done = not self._lock.unclean and self._checkpoint(
                        self._applier.db, apsw.SQLITE_CHECKPOINT_TRUNCATE
                    )
                    self._lock.release(descriptor, clean=done, everywhere=True)
            self._applier.close(clean=done)
