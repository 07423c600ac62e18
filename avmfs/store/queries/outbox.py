"""Questions about subscriptions and what waits for them. See protocol_outbox.OutboxReader.

One instance answers on the connection, and for the asker, of the reader that made it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import apsw

from avmfs.access import Principal
from avmfs.errors import Denied
from avmfs.store.protocol.outbox import Figures, Letter, Notice, Subscription
from avmfs.store.queries.matching import unmatched
from avmfs.store.rows.deliveries import ARRIVED, DEAD, GONE, HOOKS, LONGEST_PAUSE_NS, OPEN, SEALED, Unmatched
from avmfs.store.rows.events import MAIL, Event, unpack
from avmfs.store.rows.scopes import Visible

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


class SqliteOutbox:
    """See protocol_outbox.OutboxReader."""

    def __init__(self, db: apsw.Connection, who: Principal, visible: Visible, now: int) -> None:
        self._db, self._who, self._visible, self._now = db, who, visible, now

    def subscriptions(self, *, everybody: bool = False) -> list[Subscription]:
        self._who.require_itself()
        if everybody:
            self._require_operator()
            rows = self._db.execute(_SUBSCRIPTIONS + " order by agent, number")
        else:
            rows = self._db.execute(_SUBSCRIPTIONS + " and agent = ? order by number", (self._who.name,))
        return [Subscription(*row) for row in rows]

    def dead(self, limit: int = 1000) -> list[Letter]:
        columns = "message, number, pattern, coalesce(url, ''), outbox.at, attempts, coalesce(error, ''), hook"
        rows = self._rows(columns, DEAD, limit)
        return [
            Letter(message, number, pattern, url or _of_hook(hook), at, attempts, error, events)
            for message, number, pattern, url, at, attempts, error, hook, packed in rows
            # A hook's are the operator's, who sees all, also of what has gone since.
            if (events := self._seen(packed) if hook is None else tuple(unpack(packed)))
        ]

    def notices(self, limit: int = 1000) -> list[Notice]:
        rows = self._rows("message, number, pattern, mode, outbox.at", ARRIVED, limit)
        return [
            Notice(message, number, pattern, mode, at, events)
            for message, number, pattern, mode, at, packed in rows
            if (events := self._seen(packed))
        ]

    def unmatched(self) -> Unmatched | None:
        self._require_operator()
        return unmatched(self._db)

    def behind(self) -> bool:
        return bool(
            self._db.execute(
                "select exists (select 1 from subscription)"
                " and (select max(seq) from log) > (select seq from outbox_cursor)"
            ).get
        )

    def next_due(self, busy: Sequence[int] = ()) -> int | None:
        due: int | None = self._db.execute(
            "select min(max("
            " case when retry_at is null or retry_at > :now + :longest then 0 else retry_at end,"
            " (select min(case when state = :sealed or due > :now + every then 0 else due end) from outbox"
            f"  where {_WAITS}))) from subscription where id not in (select value from json_each(:busy))",
            {"now": self._now, "longest": LONGEST_PAUSE_NS, "sealed": SEALED, "busy": json.dumps([*busy])},
        ).get
        return due

    def figures(self) -> Figures:
        self._require_operator()
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

    def _rows(self, columns: str, state: int, limit: int) -> list[Any]:
        self._who.require_itself()
        return self._db.execute(
            f"select {columns}, events from outbox join subscription on subscription.id = outbox.subscription"
            " where (agent = ? and hook is null or agent = ? and ?) and state = ? order by turn limit ?",
            (self._who.name, HOOKS, self._who.operator, state, limit),
        ).fetchall()

    def _seen(self, packed: str) -> tuple[Event, ...]:
        return tuple(event for event in unpack(packed) if self._shows(event))

    def _shows(self, event: Event) -> bool:
        """As :changes would: by the scope of the change, and by the node that is there now."""
        if event.path.startswith(MAIL):
            return event.path == MAIL + self._who.name
        if event.scope not in self._visible:
            return False
        row = self._db.execute("select scope, expires from node where id = ?", (event.node,)).fetchone()
        if row is None or event.event in GONE:
            return event.event in GONE
        return row[0] in self._visible and (row[1] is None or row[1] > self._now)

    def _require_operator(self) -> None:
        if not self._who.operator:
            raise Denied("only an operator may ask this")


def _of_hook(hook: str) -> str:
    """Where a hook's letter was to go."""
    return f"hook {json.loads(hook)['command'][0]}"
