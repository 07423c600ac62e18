"""Questions about subscriptions and what waits for them.

One instance answers on the connection, and for the asker, of the reader that made it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Final

from avmfs import calls, paths
from avmfs.store.queries.matching import unmatched
from avmfs.store.queries.part import Part
from avmfs.store.queries.standing import Standing
from avmfs.store.rows.deliveries import ARRIVED, DEAD, GONE, HOOKS, LONGEST_PAUSE_NS, OPEN, SEALED, Unmatched
from avmfs.store.rows.events import MAIL, Event, unpack

_WAITS: Final = f"outbox.subscription = subscription.id and state in ({OPEN}, {SEALED})"
_SUBSCRIPTIONS: Final = f"""
select number, agent, pattern, mode, every, url, created, sent,
  (select count(*) from outbox where {_WAITS}),
  (select count(*) from outbox where outbox.subscription = subscription.id and state = {DEAD}),
  (select count(*) from outbox where outbox.subscription = subscription.id and state = {ARRIVED}),
  case when failures > 0 then retry_at end,
  (select error from outbox where {_WAITS} and error is not null order by turn limit 1)
from subscription where hook is null
"""
_OWN: Final = """from outbox join subscription on subscription.id = outbox.subscription
  where (agent = ? and hook is null or agent = ? and ?) and state = ?"""


@dataclass(frozen=True, slots=True)
class Subscription:
    """``number`` counts the agent's own. ``every`` in ns. ``sent``: deliveries made; ``waiting``, ``dead``, ``unread``:
    those that are to be made, could not be made, or lie ready to be read (of everybody's: with those that cannot be
    shown any more). ``error``: why the last try failed, while it is being repeated."""

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


class OutboxReader(Part):
    """Everything is the asker's own, except where it says that it is for an operator."""

    def subscriptions(self, *, everybody: bool = False) -> list[Subscription]:
        """In order of number. ``everybody``: of all agents, for an operator. Raises Denied."""
        self._who.require_itself()
        if everybody:
            self._who.require_operator()
            return [Subscription(*row) for row in self._db.execute(_SUBSCRIPTIONS + " order by agent, number")]
        rows = self._db.execute(_SUBSCRIPTIONS + " and agent = ? order by number", (self._who.name,))
        own = [Subscription(*row) for row in rows]
        arrived = self._db.execute(f"select number, events {_OWN}", (*self._whose, ARRIVED))
        unread = Counter(number for number, packed in arrived if self._seen(packed))
        return [replace(each, unread=unread[each.number]) for each in own]

    def subscribed(self) -> bool:
        """Return whether the asker has a subscription without a webhook."""
        self._who.require_itself()
        return bool(
            self._db.execute(
                "select 1 from subscription where agent = ? and url is null and hook is null", (self._who.name,)
            ).get
        )

    def dead(self, limit: int = 1000) -> list[Letter]:
        """The asker's dead letters, oldest first; an operator's are those of the hooks too."""
        columns = "message, number, pattern, coalesce(url, ''), outbox.at, attempts, coalesce(error, ''), hook"
        letters = (
            Letter(
                message, number, pattern, url or f"hook {json.loads(hook)['command'][0]}", at, attempts, error, events
            )
            for message, number, pattern, url, at, attempts, error, hook, packed in self._rows(columns, DEAD, limit)
            # A hook's are the operator's, who sees all, also of what has gone since.
            if (events := self._seen(packed) if hook is None else tuple(unpack(packed)))
        )
        return list(islice(letters, limit))

    def notices(self, limit: int = 1000) -> list[Notice]:
        """What waits to be read, oldest first: for :pending and :feed. Judged again now: what the asker may not see any
        more, or what is gone, is left out."""
        columns = "message, number, pattern, mode, outbox.at"
        notices = (
            Notice(message, number, pattern, mode, at, events)
            for message, number, pattern, mode, at, packed in self._rows(columns, ARRIVED, limit)
            if (events := self._seen(packed))
        )
        return list(islice(notices, limit))

    def arrived(self) -> list[str]:
        """The ids of all notices, with those that are not shown: to forget these and none that come meanwhile."""
        return [message for message, _ in self._rows("message", ARRIVED, 1000)]

    def unmatched(self) -> Unmatched | None:
        """The next rows of the log that are to be matched with what agents follow, for the operator; None when there
        are none."""
        self._who.require_operator()
        return unmatched(self._db)

    def behind(self) -> bool:
        """Return whether there are subscriptions, and changes that nobody has looked at for them."""
        return bool(
            self._db.execute(
                "select exists (select 1 from subscription)"
                " and (select max(seq) from log) > (select seq from outbox_cursor)"
            ).get
        )

    def next_due(self, busy: Sequence[int] = ()) -> int | None:
        """When something is to be taken next (ns, 0 at once) but for the subscriptions that are ``busy``; None when
        nothing waits."""
        due: int | None = self._db.execute(
            "select min(max("
            " case when retry_at is null or retry_at > :now + :longest then 0 else retry_at end,"
            " (select min(case when state = :sealed or due > :now + every then 0 else due end) from outbox"
            f"  where {_WAITS}))) from subscription where id not in (select value from json_each(:busy))",
            {"now": self._now, "longest": LONGEST_PAUSE_NS, "sealed": SEALED, "busy": json.dumps([*busy])},
        ).get
        return due

    def figures(self) -> Figures:
        """Raises Denied unless the asker is an operator."""
        self._who.require_operator()
        states = dict(self._db.execute("select state, count(*) from outbox group by state"))
        row: Any = self._db.execute(
            "select count(*) filter (where agent = ?1), count(*) filter (where agent <> ?1), coalesce(sum(sent), 0)"
            " from subscription",
            (HOOKS,),
        ).fetchone()
        hooks, others, sent = row
        oldest = self._db.execute(
            "select min(case when due = 0 then at else due end) from outbox where state in (?, ?) and due <= ?",
            (OPEN, SEALED, self._now),
        ).get
        retrying = self._db.execute("select count(*) from outbox where state = ? and attempts > 0", (SEALED,)).get
        waiting = states.get(OPEN, 0) + states.get(SEALED, 0)
        return Figures(others, hooks, waiting, retrying, states.get(DEAD, 0), states.get(ARRIVED, 0), sent, oldest)

    @cached_property
    def _standing(self) -> Standing:
        return Standing(self._db, self._who, self._visible)

    @property
    def _whose(self) -> tuple[str, str, bool]:
        return self._who.name, HOOKS, self._who.operator

    def _rows(self, columns: str, state: int, limit: int) -> Iterator[Any]:
        """In order of turn, ``limit`` of them and as many more as are asked for: of what comes first, much may be for
        nobody now."""
        self._who.require_itself()
        turn: Any = 0
        while rows := self._db.execute(
            f"select {columns}, events, turn {_OWN} and turn > ? order by turn limit ?",
            (*self._whose, state, turn, limit),
        ).fetchall():
            calls.go_on()
            yield from (row[:-1] for row in rows)
            turn, limit = rows[-1][-1], 2 * limit

    def _seen(self, packed: str) -> tuple[Event, ...]:
        return tuple(event for event in unpack(packed) if self._shows(event))

    def _shows(self, event: Event) -> bool:
        """As :changes would: by the scope and the place of the change, and by the node that is there now."""
        if event.path.startswith(MAIL):
            return event.path == MAIL + self._who.name
        told = self._visible.told
        if event.scope not in told or not self._standing.saw(event.scope, paths.raw(event.path)):
            return False
        row = self._db.execute("select scope, expires from node where id = ?", (event.node,)).fetchone()
        if row is None or event.event in GONE:
            return event.event in GONE
        return row[0] in told and (row[1] is None or row[1] > self._now)
