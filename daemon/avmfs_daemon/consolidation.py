"""Consolidation as the configuration wants it: for each agent as that agent, in a thread of its own.

Owns when it runs; that it has run is in the store, so that a restart neither forgets it nor runs it again. What is done
is the door's own method, which each agent could call, and undo.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

from avmfs.access import Principal
from avmfs.calls import Background
from avmfs.errors import AvmError
from avmfs.memory import Memory
from avmfs.rpc.consolidating import consolidate
from avmfs.services import Services
from avmfs.store.identity import OPERATOR

log = logging.getLogger(__name__)

_AGAIN_S: Final = 600.0  # after a failure


class Consolidation:
    """``step`` may be called at any time. ``report`` hears of the last run: {"notes", "agents", "error"}."""

    def __init__(
        self, around: Services, report: Callable[[dict[str, Any]], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._around, self._store, self._wanted = around, around.store, around.consolidate
        self._report, self._clock = report, clock
        self.work = Background("consolidation")

    def step(self) -> None:
        every, now = self._wanted.every, self._clock()
        if every is None or not self.work.due(now):
            return
        self.work.pause(now, _AGAIN_S)  # should it fail
        wait = self._store.submit(OPERATOR, "begin_consolidation", every=int(every * 1e9))["wait"] / 1e9
        self.work.pause(now, wait or every)
        if not wait:
            self.work.start(self.run)

    def run(self) -> None:
        """Once for every agent that has been here, of whose notes together no more than the limit go."""
        with self._store.reading(OPERATOR) as reader:
            agents = reader.agents(enrolled=True)
        done: dict[str, Any] = {"notes": 0, "agents": 0, "error": ""}
        for agent in agents:
            left = self._wanted.limit - done["notes"]
            if left <= 0:
                break
            try:
                notes = self._consolidated(Memory(self._around, Principal(agent, route="daemon")), left)
            except AvmError as e:
                done["error"] = f"{agent}: {e}"
                log.warning("consolidation of %s", done["error"])
                continue
            done["notes"] += notes
            done["agents"] += notes > 0
        self._report(done)

    def _consolidated(self, memory: Memory, limit: int) -> int:
        given = {"limit": limit, "cold": self._wanted.cold_days, "summaries": self._wanted.summaries}
        plan = consolidate(memory, **given)
        return int(consolidate(memory, **given, agreed=plan["agreed"])["fewer"]) if plan["steps"] else 0
