"""From changes to deliveries: what each subscription is told, joined as its mode says.

Owns the states of a delivery. Called by the outbox's commands, in their transaction (commands/outbox.py has the reasons
for all this); which change is for whom has been found out before (``matching``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from avmfs import paths
from avmfs.errors import Invalid
from avmfs.store.rows.deliveries import COLUMNS, DEAD, OPEN, PIECE, SEALED, Subscription
from avmfs.store.rows.events import Event, latest_by_path, message_id, pack, unpack
from avmfs.store.tx.transaction import Tx

AT_ONCE: Final = 0
BATCH_EVENTS: Final = 500  # a batch with so many leaves at once
DIGEST_PATHS: Final = 10_000
PIECE_EVENTS: Final = 256  # of a digest that gathers: a larger piece is not read and written anew for what comes next,
PIECES_EVENTS: Final = 2500  # and so many in pieces are joined with the digest itself
QUEUED: Final = 10_000  # deliveries that may wait for one subscription,
OF_AN_AGENT: Final = 20_000  # and for all of one agent's; more are dead letters at once
LETTERS: Final = 1000  # dead ones of a subscription; the oldest go
_PURGED: Final = "select seq from log where seq > ? and seq <= ? and path = x''"


def fill(tx: Tx, after: int, upto: int, events: str, found: list[Any]) -> bool:
    """Queue what was found in the rows from ``after`` to ``upto``, and move the cursor there. False: it was not at
    ``after`` any more, and nothing is done."""
    if tx.db.execute("select seq from outbox_cursor").get != after:
        return False
    if not after < upto <= (tx.db.execute("select max(seq) from log").get or 0):
        raise Invalid(f"outbox_fill: from {after} up to {upto}: there are no such rows of the log")
    told = unpack(events)
    purged = {seq for (seq,) in tx.db.execute(_PURGED, (after, upto))}  # since they were matched, in no transaction
    rows = tx.db.execute(f"select {COLUMNS} from subscription")
    there = {one.id: one for one in (Subscription(*row) for row in rows)}
    left: dict[str, int] = {}  # by agent: how many more may wait
    for subscription, which in found:
        left_over = [told[index] for index in which if told[index].seq not in purged]
        if left_over and (one := there.get(subscription)) is not None:  # else it has ended meanwhile
            room = _Room(tx, one, left)
            _queue(tx, one, room, left_over)
            room.close()
    tx.db.execute("update outbox_cursor set seq = ?", (upto,))
    return True


def _queue(tx: Tx, one: Subscription, room: _Room, found: list[Event]) -> None:
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
    """How many more deliveries of a subscription may wait; counted once, however many are added. ``left``: of those of
    each agent together, which ``close`` brings up to date."""

    def __init__(self, tx: Tx, one: Subscription, left: dict[str, int]) -> None:
        waiting = f"select count(*) from outbox where state in ({OPEN}, {SEALED}) and subscription"
        if one.agent not in left:
            own = tx.db.execute(f"{waiting} in (select id from subscription where agent = ?)", (one.agent,)).get
            left[one.agent] = OF_AN_AGENT - int(own)
        self._agent, self._left = one.agent, left
        self._own = QUEUED - int(tx.db.execute(f"{waiting} = ?", (one.id,)).get)
        self._taken = 0

    def take(self) -> bool:
        """Return whether there is room for one more."""
        if min(self._own, self._left[self._agent]) <= self._taken:
            return False
        self._taken += 1
        return True

    def close(self) -> None:
        self._left[self._agent] -= self._taken


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
            f"update outbox set events = ?, size = ?{', due = 0' if full else ''} where turn = ?",
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
            (one.id, message_id(one.id, found[0]), PIECE, pack(found), len(found), tx.now),
        )
    if sum(size for _, size, state in rows if state == PIECE) >= PIECES_EVENTS:
        assemble(tx, one.id)


def assemble(tx: Tx, subscription: int) -> None:
    """Join the pieces of an open digest with it; one with as many paths as it may have is closed. Where it is there no
    more, they are one by themselves."""
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
    kept = rows[0][0]
    whole = latest_by_path(event for _, events in rows for event in unpack(events))
    full = len(whole) >= DIGEST_PATHS or kept == first
    tx.db.execute(
        f"update outbox set events = ?, size = ?{f', due = 0, state = {SEALED}' if full else ''} where turn = ?",
        (pack(whole), len(whole), kept),
    )
    tx.db.execute("delete from outbox where subscription = ? and state = ?", (subscription, PIECE))


def close(tx: Tx, subscription: int) -> None:
    """What is open leaves as it is: nothing that comes may join it, since it is to be told in another way."""
    assemble(tx, subscription)
    tx.db.execute(
        "update outbox set due = 0, state = ? where subscription = ? and state = ?", (SEALED, subscription, OPEN)
    )


def _add(tx: Tx, one: Subscription, room: _Room, deliveries: Sequence[tuple[list[Event], bytes | None, int]]) -> None:
    crowded = False
    for events, path, due in deliveries:
        late = not room.take()
        crowded = crowded or late
        state, error = (DEAD, "too many deliveries wait already") if late else (OPEN, None)
        message = message_id(one.id, events[0])
        tx.db.execute(
            "insert into outbox(subscription, message, state, due, path, events, size, at, error)"
            " values(?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (one.id, message, state, due, path, pack(events), len(events), tx.now, error),
        )
    if crowded:
        keep_newest(tx, one.id, DEAD, LETTERS)


def keep_newest(tx: Tx, subscription: int, state: int, count: int) -> None:
    """Of a subscription's deliveries in this state only so many."""
    tx.db.execute(
        "delete from outbox where turn in (select turn from outbox where subscription = ? and state = ?"
        " order by turn desc limit -1 offset ?)",
        (subscription, state, count),
    )
