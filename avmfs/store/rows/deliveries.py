"""Subscriptions as rows, the states of a delivery, and rows of the log that wait to be matched.

Owns these values. Called by the outbox's commands and queries.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from avmfs.access import Principal, Scope
from avmfs.store.rows.events import MAIL, Event

HOOKS: Final = ""  # the agent that a hook's row names: no agent id is empty
OPEN, SEALED, DEAD, ARRIVED, PIECE = range(5)
LONGEST_PAUSE_NS: Final = 12 * 3600 * 10**9  # of retries; a later one was set by a clock that has jumped
GONE: Final = frozenset({"remove", "rmdir"})
COLUMNS: Final = "id, agent, place, mode, every, url, hook, since"


@dataclass(frozen=True, slots=True)
class Subscription:
    id: int
    agent: str
    place: str
    mode: str
    every: int
    url: str | None
    hook: str | None
    since: int

    @property
    def who(self) -> Principal:
        """Whose eyes it sees with: its agent's, however it was made. A hook's are the operator's."""
        return Principal("avmfs", operator=True) if self.agent == HOOKS else Principal(self.agent)

    @property
    def by_path(self) -> bool:
        """Whether it is told of each path the last state: also that what was there has another name now."""
        return self.mode in ("throttled", "digest")

    def wants(self, event: Event) -> bool:
        if self.hook is not None:
            return json.loads(self.hook)["event"] in ("any", event.event) and not event.path.startswith(MAIL)
        # A notice is for the agent itself, which knows what it did; a webhook is for some other program.
        return self.url is not None or event.author != self.agent or event.path.startswith(MAIL)


@dataclass(frozen=True, slots=True)
class Unmatched:
    """Rows of the log that nobody has looked at, after the cursor's ``after``; who wants to hear of them; and the
    classes that the rows are in. ``more``: there may be later rows."""

    after: int
    rows: list[Any]
    subscriptions: list[Subscription]
    scopes: dict[int, Scope]
    more: bool
