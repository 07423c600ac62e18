"""What can be asked of the outbox: subscriptions, notices, dead letters, figures.

Owns the values and the Protocol that ``Reader.outbox`` answers. Everything is the asker's own, except where it says
that it is for an operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from avmfs.store.rows.deliveries import Unmatched
from avmfs.store.rows.events import Event


@dataclass(frozen=True, slots=True)
class Subscription:
    """``number`` counts the agent's own. ``every`` in ns. ``sent``: deliveries made; ``waiting``, ``dead``, ``unread``:
    those that are to be made, could not be made, or lie ready to be read. ``error``: why the last try failed, while it
    is being repeated."""

    number: int
    agent: str
    pattern: str
    mode: str
    every: int
    url: str | None
    created: int
    sent: int
    waiting: int
    dead: int
    unread: int
    retry_at: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead one: what could not be delivered, to whom, and why."""

    message: str
    number: int
    pattern: str
    url: str
    at: int
    attempts: int
    error: str
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """What a subscription without a webhook has for its agent, until that has read it (``forget_notices``)."""

    message: str
    number: int
    pattern: str
    mode: str
    at: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """Of the whole store, for an operator. ``oldest``: since when the delivery that has waited longest has been due
    (ns), None when nothing is due."""

    subscriptions: int
    hooks: int
    waiting: int
    retrying: int
    dead: int
    unread: int
    sent: int
    oldest: int | None


class OutboxReader(Protocol):
    def subscriptions(self, *, everybody: bool = False) -> list[Subscription]:
        """In order of number. ``everybody``: of all agents, for an operator. Raises Denied."""
        ...

    def dead(self, limit: int = 1000) -> list[Letter]:
        """The asker's dead letters, oldest first; an operator's are those of the hooks too."""
        ...

    def notices(self, limit: int = 1000) -> list[Notice]:
        """What waits to be read, oldest first: for :pending and :feed. Judged again now: what the asker may not see any
        more, or what is gone, is left out."""
        ...

    def unmatched(self) -> Unmatched | None:
        """The next rows of the log that are to be matched with what agents follow, for the operator; None when there
        are none."""
        ...

    def behind(self) -> bool:
        """Return whether there are subscriptions, and changes that nobody has looked at for them."""
        ...

    def next_due(self, busy: Sequence[int] = ()) -> int | None:
        """When something is to be taken next (ns, 0 at once) but for the subscriptions that are ``busy``; None when
        nothing waits."""
        ...

    def figures(self) -> Figures:
        """Raises Denied unless the asker is an operator."""
        ...
