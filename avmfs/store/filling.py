"""From rows of the log to deliveries: what each subscription is told, joined as its mode says.

Owns the states of a delivery and the matching of many changes with many patterns. Called by the outbox's commands, in
their transaction (commands/outbox.py has the reasons for all this).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from avmfs import paths
from avmfs.access import Principal
from avmfs.store.events import (
    MAIL,
    Event,
    latest_by_path,
    matches,
    message_id,
    of_row,
    pack,
    prefix_of,
    unpack,
)
from avmfs.store.transaction import Tx

HOOKS: Final = ""  # the agent that a hook's row names: no agent id is empty
OPEN, SEALED, DEAD, ARRIVED, PIECE = range(5)
AT_ONCE: Final = 0
BATCH_EVENTS: Final = 500  # a batch with so many leaves at once
DIGEST_PATHS: Final = 10_000
PIECE_EVENTS: Final = 256  # of a digest that gathers: a larger piece is not read and written anew for what comes next,
PIECES_EVENTS: Final = 2500  # and so many in pieces are joined with the digest itself
QUEUED: Final = 10_000  # deliveries that may wait for one subscription; more are dead letters at once
LETTERS: Final = 1000  # dead ones of a subscription; the oldest go
LOOKED_AT: Final = 1000  # rows of the log at once,
MATCHED: Final = 20_000  # and so many of them times subscriptions: the writer has others to serve
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

    def wants(self, event: Event) -> bool:
        if self.hook is not None:
            return json.loads(self.hook)["event"] in ("any", event.event) and not event.path.startswith(MAIL)
        # A notice is for the agent itself, which knows what it did; a webhook is for some other program.
        return self.url is not None or event.author != self.agent or event.path.startswith(MAIL)


def fill(tx: Tx, limit: int) -> bool:
    """Look through at most so many rows from where the cursor stands, and move it; whether there may be more."""
    subscriptions = [Subscription(*row) for row in tx.db.execute(f"select {COLUMNS} from subscription order by id")]
    if not subscriptions:
        return False
    limit = max(1, min(limit, MATCHED // len(subscriptions)))
    rows: list[Any] = tx.db.execute(
        "select seq, at, op, agent, node, version, scope, path, other from log"
        " where seq > (select seq from outbox_cursor) order by seq limit ?",
        (limit,),
    ).fetchall()
    if not rows:
        return False
    found: dict[int, list[Event]] = {}
    for one, event in _seen(tx, subscriptions, rows):
        if one.wants(event):
            found.setdefault(one.id, []).append(event)
    for one in subscriptions:
        if one.id in found:
            _queue(tx, one, found[one.id])
    tx.db.execute("update outbox_cursor set seq = ?", (rows[-1][0],))
    return len(rows) == limit


def _seen(tx: Tx, subscriptions: Sequence[Subscription], rows: Sequence[Any]) -> Iterator[tuple[Subscription, Event]]:
    """What happened at the place of a subscription and may be seen by it: of each row at most one event."""
    scopes = {one.id: tx.known.scopes.visible_as_loaded(one.who) for one in subscriptions}
    by_prefix = [(prefix_of(one.place), one) for one in subscriptions]
    for row in rows:
        told: set[int] = set()
        for event in of_row(*row):
            path = event.path  # most patterns are about other places: this line is what a hundred of them cost
            for one in [one for prefix, one in by_prefix if path.startswith(prefix)]:
                visible = event.seq > one.since and event.scope in scopes[one.id]
                if visible and one.id not in told and matches(one.place, path):
                    told.add(one.id)
                    yield one, event


def _queue(tx: Tx, one: Subscription, found: list[Event]) -> None:
    room = _Room(tx, one)
    if one.mode == "realtime":
        _add(tx, one, room, [([event], None, AT_ONCE) for event in found])
    elif one.mode == "throttled":
        for event in latest_by_path(found):
            _join(tx, one, room, [replace(event, count=1)], paths.raw(event.path), 1)
    elif one.mode == "batched":
        _join(tx, one, room, found, None, BATCH_EVENTS)
    else:
        _gather(tx, one, room, latest_by_path(found))


class _Room:
    """How many more deliveries of a subscription may wait; counted once, however many are added."""

    def __init__(self, tx: Tx, one: Subscription) -> None:
        waiting = tx.db.execute(
            "select count(*) from outbox where subscription = ? and state in (?, ?)", (one.id, OPEN, SEALED)
        ).get
        self.left = QUEUED - int(waiting)

    def take(self) -> bool:
        """Is there room for one more?"""
        self.left -= 1
        return self.left >= 0


def _join(tx: Tx, one: Subscription, room: _Room, found: list[Event], path: bytes | None, most: int) -> None:
    """Add to the delivery that is still open, or begin one: of a path for a throttled subscription, which keeps the
    last state only."""
    row: Any = tx.db.execute(
        "select turn, events from outbox indexed by outbox_open"
        f" where subscription = ? and path is ? and state = {OPEN} order by turn desc limit 1",
        (one.id, path),
    ).fetchone()
    if row is not None:
        whole = found if path is not None else [*unpack(row[1]), *found]
        joined, found = whole[:most], whole[most:]
        full = len(joined) == most and path is None
        tx.db.execute(
            f"update outbox set events = ?, size = ?{', due = 0, state = 1' if full else ''} where turn = ?",
            (pack(joined), len(joined), row[0]),
        )
    pieces = [found[start : start + most] for start in range(0, len(found), most)]
    if path is not None:
        last = tx.db.execute(
            "select at from outbox_throttle where subscription = ? and path = ?", (one.id, path)
        ).get  # when nothing has been sent of it, it need not wait
        due = AT_ONCE if last is None or last > tx.now else last + one.every
        _add(tx, one, room, [(piece, path, due) for piece in pieces])
    else:
        _add(tx, one, room, [(piece, None, AT_ONCE if len(piece) == most else tx.now + one.every) for piece in pieces])


def _gather(tx: Tx, one: Subscription, room: _Room, found: list[Event]) -> None:
    """What comes joins the last piece of the digest that is open, or begins another one: all of a long digest, read and
    written for each change, would keep the writer from everybody else's."""
    rows: list[Any] = tx.db.execute(
        "select turn, size, state from outbox where subscription = ? and path is null and state in (?, ?)"
        " order by turn desc",
        (one.id, OPEN, PIECE),
    ).fetchall()
    if not rows:
        _add(tx, one, room, [(found, None, tx.now + one.every)])
        return
    turn, size, _ = rows[0]
    if size < PIECE_EVENTS:
        events = tx.db.execute("select events from outbox where turn = ?", (turn,)).get
        joined = latest_by_path([*unpack(events), *found])
        tx.db.execute("update outbox set events = ?, size = ? where turn = ?", (pack(joined), len(joined), turn))
    else:
        tx.db.execute(
            "insert into outbox(subscription, message, state, due, events, size, at) values(?, ?, ?, 0, ?, ?, ?)",
            (one.id, message_id(one.id, found[0].seq), PIECE, pack(found), len(found), tx.now),
        )
    if sum(size for _, size, state in rows if state == PIECE) >= PIECES_EVENTS:
        assemble(tx, one.id)


def assemble(tx: Tx, subscription: int) -> None:
    """Join the pieces of an open digest with it; one with as many paths as it may have is closed."""
    first = tx.db.execute(
        "select min(turn) from outbox where subscription = ? and state = ?", (subscription, PIECE)
    ).get
    if first is None:
        return
    rows: list[Any] = tx.db.execute(
        "select turn, events from outbox where subscription = ?1 and (state = ?2 or turn ="
        " (select max(turn) from outbox where subscription = ?1 and state = ?3 and path is null and turn < ?4))"
        " order by turn",
        (subscription, PIECE, OPEN, first),
    ).fetchall()
    whole = latest_by_path(event for _, events in rows for event in unpack(events))
    full = len(whole) >= DIGEST_PATHS
    tx.db.execute(
        f"update outbox set events = ?, size = ?{f', due = 0, state = {SEALED}' if full else ''} where turn = ?",
        (pack(whole), len(whole), rows[0][0]),
    )
    tx.db.execute("delete from outbox where subscription = ? and state = ?", (subscription, PIECE))


def _add(
    tx: Tx, one: Subscription, room: _Room, deliveries: Sequence[tuple[list[Event], bytes | None, int]]
) -> None:  # fmt: skip
    crowded = False
    for events, path, due in deliveries:
        late = not room.take()
        crowded = crowded or late
        tx.db.execute(
            "insert into outbox(subscription, message, state, due, path, events, size, at, error)"
            " values(?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (one.id, message_id(one.id, events[0].seq), DEAD if late else OPEN, due, path, pack(events), len(events),
             tx.now, f"{QUEUED} deliveries wait already" if late else None),
        )  # fmt: skip
    if crowded:
        keep_newest(tx, one.id, DEAD, LETTERS)


def keep_newest(tx: Tx, subscription: int, state: int, count: int) -> None:
    """Of a subscription's deliveries in this state only so many."""
    tx.db.execute(
        "delete from outbox where turn in (select turn from outbox where subscription = ? and state = ?"
        " order by turn desc limit -1 offset ?)",
        (subscription, state, count),
    )
