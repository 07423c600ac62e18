"""A digest for the inbox of each agent, every day at the hour that the configuration says, in a thread of its own.

Owns when one is due. Which was delivered last is in the store, so that none is delivered twice, and one that covers all
the time since makes up for those that nobody was there to deliver.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from avmfs.access import Principal
from avmfs.agents import mail
from avmfs.calls import Background
from avmfs.errors import AvmError
from avmfs.localtime import DAY_NS
from avmfs.memory import Memory
from avmfs.services import Services
from avmfs.store.identity import OPERATOR
from avmfs.views.overview import Digest, digested

log = logging.getLogger(__name__)

_AGAIN_NS: Final = 600 * 10**9  # after a failure
_NAMED: Final = 20  # of each list


class DailyDigest:
    """``step`` may be called at any time."""

    def __init__(self, around: Services, at: int | None, cold_days: float) -> None:
        self._around, self._at, self._cold = around, at, cold_days
        self._done = 0  # what was due last when all agents had theirs
        self.work = Background("daily digest")

    def step(self) -> None:
        now = self._around.clock()
        if self._at is None or not self.work.due(now):
            return
        due = self.due(now, self._at)
        if due != self._done:
            self.work.pause(now, _AGAIN_NS)
            self.work.start(self.run, due)

    def due(self, now: int, at: int) -> int:
        """The newest time of day ``at`` (minutes) that is not to come, in ns."""
        here = datetime.fromtimestamp(now / 1e9, UTC).astimezone(self._around.zone)
        today = here.replace(hour=at // 60, minute=at % 60, second=0, microsecond=0)
        newest = today if today <= here else (today - timedelta(days=1))
        return int(newest.timestamp()) * 10**9

    def run(self, due: int) -> None:
        with self._around.store.reading(OPERATOR) as reader:
            agents = reader.agents(enrolled=True)
        failed = False
        for agent in agents:
            try:
                self._deliver(agent, due)
            except AvmError as e:
                failed = True
                log.warning("digest of %s: %s", agent, e)
        if not failed:
            self._done = due
            self.work.pause(0, 0)

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


def brief(found: Digest, zone: tzinfo, told: int, since: int) -> str:
    """For the inbox: how many of each, and by which handle each is had: what is purged, or no longer the agent's to
    see, is in no message. Empty where nothing is new, urgent or disputed."""
    if not (found.new.rows or found.urgent.rows or found.disputes.rows):
        return ""

    def named(name: str, handles: list[str], left: int) -> str:
        return f"{name}: {' '.join(handles)}{f' ({left} more)' if left else ''}\n" if handles else ""

    days = -(-(told - since) // DAY_NS)
    unread = "" if found.unread is None else f", {found.urgent.in_all} urgent of {found.unread} unread messages"
    return (
        f"Digest since {mail.show_time(since, zone)}: {found.new.in_all} new, {found.disputes.in_all} disputed,"
        f" {found.cold.in_all} cold{unread}. In full: cat '/:digest?days={days}'\n"
        + named("New", [f"@{note.handle}" for note in found.new.rows], found.new.left)
        + named("Disputed", ["@" + " @".join(one.handles) for one in found.disputes.rows], found.disputes.left)
    )
