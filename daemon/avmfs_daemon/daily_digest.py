"""A digest for the inbox of each agent, every day at the hour that the configuration says, in a thread of its own.

Owns when one is due. Which was delivered last is in the store, so that none is delivered twice, and one that covers all
the time since makes up for those that nobody was there to deliver.
"""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import Final

from avmfs.access import Principal
from avmfs.errors import AvmError
from avmfs.memory import Memory
from avmfs.services import Services
from avmfs.store.identity import OPERATOR
from avmfs.views.digest import DAY_NS, brief, digested

log = logging.getLogger(__name__)

_AGAIN_NS: Final = 600 * 10**9  # after a failure
_NAMED: Final = 20  # of each list


class DailyDigest:
    """``step`` may be called at any time."""

    def __init__(self, around: Services, at: int | None, cold_days: float) -> None:
        self._around, self._at, self._cold = around, at, cold_days
        self._done = 0  # what was due last when all agents had theirs
        self._look_at = 0
        self._thread: threading.Thread | None = None

    def step(self) -> None:
        now = self._around.clock()
        if self._at is None or now < self._look_at or (self._thread is not None and self._thread.is_alive()):
            return
        due = self.due(now, self._at)
        if due != self._done:
            self._look_at = now + _AGAIN_NS
            self._thread = threading.Thread(target=self.run, args=(due,), name="daily digest", daemon=True)
            self._thread.start()

    def due(self, now: int, at: int) -> int:
        """The newest time of day ``at`` (minutes) that is not to come, in ns."""
        here = datetime.fromtimestamp(now / 1e9, UTC).astimezone(self._around.zone)
        today = here.replace(hour=at // 60, minute=at % 60, second=0, microsecond=0)
        newest = today if today <= here else (today - timedelta(days=1))
        return int(newest.timestamp()) * 10**9

    def run(self, due: int) -> None:
        with self._around.store.reading(OPERATOR) as reader:
            agents = reader.agents()
        failed = False
        for agent in agents:
            try:
                self._deliver(agent, due)
            except AvmError as e:
                failed = True
                log.warning("digest of %s: %s", agent, e)
        if not failed:
            self._done, self._look_at = due, 0

    def _deliver(self, agent: str, due: int) -> None:
        memory = Memory(self._around, Principal(agent, route="daemon"))
        told = memory.now()
        given = {"agent": agent, "due": due, "told": told}
        since = self._around.store.submit(OPERATOR, "deliver_digest", **given)["since"]
        if since is None:
            return
        with memory.reading() as reader:
            node = memory.directory(reader, "/memory")
        found = digested(memory, node.id, (told - since) / DAY_NS, self._cold, _NAMED)
        body = brief(found, self._around.zone, told, since)
        self._around.store.submit(OPERATOR, "deliver_digest", **given, body=body)
