"""What is due from the outbox leaves: webhooks and hooks, and notices for those who read them here.

Owns the threads that wait for receivers. Runs beside the keeper's other work in its process: one thread asks the store
what there is, a thread for each subscription that has something due delivers it in order, at most HANDS of them. So
neither a slow receiver nor a slow model makes others wait. Nothing is remembered here that a kill would lose: what was
taken and not reported is taken again, under the same message ids. But not beside a predecessor, nor beside a hook that
a killed one has left: a lock is held until the last of them has ended.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from avmfs_config import Hook, WebhookSettings

from avmfs.agents import destinations, hooks, http_delivery, webhooks
from avmfs.errors import AvmError, Denied, Invalid
from avmfs.store.identity import OPERATOR
from avmfs.store.rows.events import Event
from avmfs.store.schema import database
from avmfs.store.store import Store

log = logging.getLogger(__name__)

HANDS: Final = 16
OF_ONE_AGENT: Final = 4  # subscriptions of one agent that are being delivered to
EACH: Final = 16  # deliveries taken of one subscription at once
REPORT_S: Final = 2.0  # what has been delivered is reported this often: a kill repeats what was not
IDLE_S: Final = 3.0
SETTLE_S: Final = 0.02  # a shell saves a file in two commits, of which one look tells once (``matching``)
FILL_S: Final = 0.08  # between two looks at what was committed,
FILL_SHARE: Final = 9  # and so many times as long as the last one took: the writer, who queues, has others to serve
FILL_MOST_S: Final = 10.0
RETRY_S: Final = 1.0  # when the writer cannot be reached
TELL_S: Final = 1.0  # between reports of figures
TIDY_S: Final = 600.0
TURN_S: Final = 0.1  # between two looks whether the lock is free


class Deliverer:
    """`start`, then `wake` after commits, `stop` and `finish`; all from any thread. `report` hears of figures for
    `status`. `lock` is a file."""

    def __init__(
        self,
        store: Store,
        settings: WebhookSettings,
        hooks_: Sequence[Hook],
        *,
        home: str,
        lock: Path,
        report: Callable[[dict[str, Any]], None] = lambda figures: None,
        clock: Callable[[], int] = time.time_ns,
        chance: random.Random | None = None,
    ) -> None:
        self._store, self._settings, self._hooks, self._home = store, settings, hooks_, home
        self._report, self._clock = report, clock
        self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._chance = chance or random.Random()
        self._woken, self._stopping = threading.Event(), threading.Event()
        self._mutex = threading.Lock()
        self._busy: dict[int, str] = {}  # subscriptions that are being delivered to, and whose they are
        self._told: dict[str, Any] = {}
        self._told_at = self._tidied_at = self._fill_at = float("-inf")
        self._hooks_set = False
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        """Begin nothing more."""
        with self._mutex:
            self._stopping.set()
        self._woken.set()

    def under_way_s(self) -> float:
        """How many seconds what is under way may take."""
        longest = max([self._settings.timeout_s, *(hook.timeout_s for hook in self._hooks)])
        with self._mutex:
            return longest if self._busy else 0.0

    def finish(self, within_s: float | None) -> None:
        """After `stop`: wait until what was under way has ended, and the store has heard of it. What takes longer than
        that will be delivered again."""
        if self._thread.ident is not None:
            self._thread.join(within_s)

    def _run(self) -> None:
        try:
            while not _locked(self._lock):
                if self._stopping.wait(TURN_S):
                    return
            self._serve()
            while self._busy:
                self._woken.wait(IDLE_S)
                self._woken.clear()
        finally:
            os.close(self._lock)

    def _serve(self) -> None:
        said = ""
        while not self._stopping.is_set():
            try:
                pause = self.turn()
                said = ""
            except AvmError as e:
                if str(e) != said and not database.logged(e):  # the same at every look
                    log.error("outbox: %s", e)
                said, pause = str(e), RETRY_S
            except Exception:
                log.exception("outbox: a defect")
                pause = IDLE_S
            self._woken.wait(pause)
            self._woken.clear()

    def turn(self) -> float:
        """Look once at what there is to do, and give it to free hands; how many seconds may pass before the next look,
        unless somebody wakes us."""
        if not self._hooks_set:
            self._store.submit(OPERATOR, "set_hooks", hooks=[_as_values(hook) for hook in self._hooks])
            self._hooks_set = True
        pause = IDLE_S
        while not self._stopping.is_set():
            with self._mutex:
                busy = dict(self._busy)
            with self._store.reading(OPERATOR) as reader:
                behind, due = reader.outbox.behind(), reader.outbox.next_due(list(busy))
            # While commits keep coming in, many are looked at together: the writer has them to serve.
            if behind and (wait := self._fill_at - time.monotonic()) <= 0:
                self._fill()
                continue
            if behind:
                pause = min(pause, wait)
            if due is None or len(busy) >= HANDS:
                break
            if due > (now := self._clock()):
                pause = min(pause, (due - now) / 1e9)
                break
            if not self._hand_out(busy):
                break
        return min(pause, self._chores())

    def _fill(self) -> None:
        self._stopping.wait(SETTLE_S)
        began = time.monotonic()
        self._store.match_subscriptions(self._stopping.is_set)
        ended = time.monotonic()
        self._fill_at = ended + max(FILL_S, min(FILL_MOST_S, FILL_SHARE * (ended - began)))

    def _hand_out(self, busy: dict[int, str]) -> bool:
        """Whether anything could be taken."""
        counts = Counter(busy.values())
        full = [agent for agent, count in counts.items() if count >= OF_ONE_AGENT]
        answer = self._store.submit(
            OPERATOR, "outbox_take", busy=list(busy), full=full, limit=HANDS - len(busy), each=EACH
        )
        for subscription in answer["subscriptions"]:
            with self._mutex:
                if self._stopping.is_set():
                    return False
                self._busy[subscription["id"]] = subscription["agent"]
            try:
                threading.Thread(target=self._work, args=(subscription,), name="delivery", daemon=True).start()
            except BaseException:  # no more threads: it waits, as it did
                with self._mutex:
                    del self._busy[subscription["id"]]
                raise
        return bool(answer["moved"])

    # One subscription, in a thread of its own ------------------------------------------------------------------

    def _work(self, taken: dict[str, Any]) -> None:
        try:
            self._deliver_all(taken)
        except AvmError as e:
            log.error("outbox: what became of a delivery cannot be told, so it will be made again: %s", e)
        except Exception:
            log.exception("outbox: a defect")
        finally:
            with self._mutex:
                del self._busy[taken["id"]]
            self.wake()

    def _deliver_all(self, taken: dict[str, Any]) -> None:
        sent: list[int] = []
        began = time.monotonic()
        for delivery in taken["deliveries"]:
            try:
                self._deliver(taken, delivery)
            except (http_delivery.PostFailed, hooks.HookFailed, AvmError) as e:
                self._failed(taken, delivery, sent, e)
                return
            except Exception:  # a defect must not have this delivery tried without a pause, for ever
                log.exception("outbox: a delivery failed")
                self._failed(taken, delivery, sent, http_delivery.PostFailed("internal error"))
                return
            sent.append(delivery["turn"])
            if self._stopping.is_set() or time.monotonic() - began > REPORT_S:
                break
        self._tell(taken, sent)

    def _deliver(self, taken: dict[str, Any], delivery: dict[str, Any]) -> None:
        events, message = [Event(*row) for row in delivery["events"]], delivery["message"]
        if taken["hook"] is not None:
            hook = json.loads(taken["hook"])
            said = webhooks.one_event(message, taken["pattern"], events[-1].author, events[-1])
            body = json.dumps(said, ensure_ascii=False, sort_keys=True).encode() + b"\n"
            hooks.run(hook["command"], body, hooks.environment(said, self._home), hook["timeout_s"], self._lock)
            return
        destination = destinations.parse(taken["url"])
        body = webhooks.payload(message, taken["mode"], taken["pattern"], taken["agent"], events)
        headers = webhooks.signed(taken["secret"], message, self._clock() // 1_000_000_000, body)
        allowed = destinations.Allowed(self._settings.allow, taken["trusted"])
        http_delivery.post(http_delivery.Request(destination, headers, body), allowed, self._settings.timeout_s)

    def _failed(self, taken: dict[str, Any], delivery: dict[str, Any], sent: list[int], error: Exception) -> None:
        final = isinstance(error, (Denied, Invalid, hooks.HookFailed)) or getattr(error, "final", False)
        dead = final or delivery["attempts"] + 1 >= self._settings.attempts
        if isinstance(error, hooks.HookFailed):
            log.warning("hook for %s: %s", taken["pattern"], error)
        # The pause is the receiver's, not the message's: behind a dead letter the next one is tried no sooner.
        failures = 1 if sent else taken["failures"] + 1
        pause = max(webhooks.pause_s(failures, self._settings.backoff_s, self._chance), getattr(error, "wait_s", 0.0))
        retry_at = None if final else self._clock() + int(pause * 1e9)
        self._tell(taken, sent, delivery["turn"], str(error)[:500], dead, retry_at)

    def _tell(
        self,
        taken: dict[str, Any],
        sent: list[int],
        failed: int | None = None,
        error: str = "",
        dead: bool = False,
        retry_at: int | None = None,
    ) -> None:
        became = {"failed": failed, "error": error, "dead": dead, "retry_at": retry_at}
        self._store.submit(OPERATOR, "outbox_report", subscription=taken["id"], sent=sent, **became)

    # Now and then ----------------------------------------------------------------------------------------------

    def _chores(self) -> float:
        """Seconds until there is something of this to do."""
        now = time.monotonic()
        if now - self._tidied_at >= TIDY_S:
            self._tidied_at = now
            with self._store.reading(OPERATOR) as reader:
                wanted = reader.outbox.figures()
            if wanted.subscriptions or wanted.hooks:
                self._store.submit(OPERATOR, "outbox_tidy")
        if now - self._told_at < TELL_S:
            return TELL_S
        self._told_at = now
        with self._store.reading(OPERATOR) as reader:
            figures = asdict(reader.outbox.figures())
        with self._mutex:
            figures["delivering"] = len(self._busy)
        oldest = figures.pop("oldest")
        figures["oldest_s"] = None if oldest is None else round(max(0, self._clock() - oldest) / 1e9, 1)
        if figures != self._told:
            self._told = figures
            self._report(figures)
        return IDLE_S


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _as_values(hook: Hook) -> dict[str, Any]:
    return {"pattern": hook.pattern, "event": hook.event, "command": list(hook.command), "timeout_s": hook.timeout_s}
