"""The loop of a host that shares its store: the writer around ``ReplicatedApplier``, and who hears of others' records.

While the log is not there every change is refused (EROFS), or waits for it as long as configured, counted from when it
came; reading goes on. What a client asked as the first thing since this process began, another one may have appended
for it: that is EIO. The writer's thread alone touches the store; the other one reads the log and has that thread apply.
"""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from avmfs.errors import AvmError, ReadOnly, StoreFailed
from avmfs.store.schema import tables
from avmfs.store.sharedlog.protocol import Overtaken, SharedLog
from avmfs.store.writer.connections import Peer
from avmfs.store.writer.loop import DRAIN_STEP, Writer
from avmfs.store.writer.replicated import AGAIN_S, AT_ONCE, ATTEMPTS, ReplicatedApplier
from avmfs.store.writer.request import Request

log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 2.0
STOP_S: Final = 2.0
START_S: Final = 5.0  # so long the first changes wait in any case


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
        self._follower = LogFollower(self.call, applier, heard, tell)
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
        """Return whether the log is there, or was when it was last asked. Else whoever has waited as long as it may, in
        the batch or behind it, has heard, and the others wait again."""
        while (down := self._replicated.down) is not None:
            is_over = partial(self._is_over, math.inf if self._stopping else time.monotonic())
            over = [each for each in batch if is_over(each[1])] + self._scheduler.take(is_over)
            if over:
                for each in batch:
                    if not is_over(each[1]):
                        self._scheduler.add(*each)
                self._sync([said for each in over for said in self._without([each], self._refusal(*each, down))])
                return False
            self._peers.poll(AGAIN_S)
            if not self._log.idle:
                self._send_synced()
            self._run_calls()
        self._first.clear()
        return True

    def _is_over(self, now: float, request: Request) -> bool:
        """Making words waits for no log: somebody searches, and goes on without them. Nor does syncing what is here."""
        wait_s = 0.0 if request.command == "drain_lexical" or request.traits.only_syncs else self._wait_s
        return now >= max(request.came + wait_s, 0.0 if self._follower.settled else self._begun_at + START_S)

    def _refusal(self, peer: Peer, request: Request, down: AvmError) -> AvmError:
        if self._replicated._unapplied and self._first.setdefault(peer.client, request.number) == request.number:
            return StoreFailed(f"it is not known whether the shared log has this change: {down.reason}")
        return ReadOnly(f"nothing can be written: {down.reason}")


class LogFollower(threading.Thread):
    """Hears of records, and has the writer's thread apply them: ``call`` runs something there."""

    def __init__(
        self,
        call: Callable[[Callable[[], None]], None],
        applier: ReplicatedApplier,
        shared_log: SharedLog,
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        super().__init__(name="follow", daemon=True)
        self._call, self._applier, self._log = call, applier, shared_log
        self._tell = tell
        self._over = threading.Event()
        self._reported = -math.inf
        self._ahead_s = 0.0  # of the log's clock
        self.settled = False
        self._said = ""
        self._newest = 0

    def stop(self) -> None:
        self._over.set()
        self.join(STOP_S)

    def run(self) -> None:
        while not self._over.is_set():
            try:
                self._round()
            except AvmError as e:
                self._applier.down = e
                if str(e) != self._said:
                    log.warning("%s", e)
                    self._said = str(e)
                    self._report()
                self._over.wait(AGAIN_S)
        self._log.close()

    def _round(self) -> None:
        applier = self._applier
        had = applier.replica.at
        newest = self._newest = self._log.wait(max(had.number, applier.appended), HEARTBEAT_S)
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
        if applier.suspect:
            self._in_writer(applier.compare)
        if time.monotonic() - self._reported >= HEARTBEAT_S:
            self._reported = time.monotonic()
            began = time.time()
            at = self._log.report(applier.host, applier.number, tables.VERSION)
            self._ahead_s = max(0.0, began - at) + min(0.0, time.time() - at)  # what is certain, however long the way
            self._report()

    def _come_up(self) -> None:
        if not self.settled:
            self._applier.settle()
            self.settled = True
        self._applier.down = None
        if self._said:
            log.info("the shared log is there again")
            self._said = ""

    def _report(self) -> None:
        number = self._applier.number
        lag, error = max(0, self._newest - number), self._said or self._applier.differs
        said = {"host": self._applier.host, "record": number, "behind": lag, "error": error}
        self._tell({**said, "ahead_s": self._ahead_s})

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

        self._call(run)
        while not done.wait(AGAIN_S):
            if self._over.is_set():
                return
        if failed:
            raise failed[0]
