"""The outbox: from rows of the log to deliveries, and what became of them.

The log is the durable outbox: the row that a change appends in its own transaction is what will be delivered, so
nothing can be lost between a change and its notice, and a write costs not one statement more, with subscriptions or
without (DESIGN 3.1). One cursor for all subscriptions follows it: ``outbox_fill``, asked for by the keeper soon after
commits, turns rows into deliveries and moves the cursor in one transaction. Rows written with each change would cost
every write the matching of every pattern, before its reply, and would be no safer. A fill that power loss takes back is
made again, with the same message ids.

Who may see what is judged twice for the subscriber: by the scope that the row was written with, which is what was
visible at the time (scopes are never changed, only replaced), and again whenever something is taken for delivery, by
the rules and the node as they are then. What may not be seen is left out without a trace: no id, number or count tells
that there was something.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from avmfs import paths
from avmfs.access import Access, Principal
from avmfs.store.commands import command, relaxed
from avmfs.store.commands.subscribing import HOOKS
from avmfs.store.events import MAIL, Event, latest_by_path, matches, message_id, of_row, pack, unpack
from avmfs.store.transaction import Tx

OPEN, SEALED, DEAD, ARRIVED = range(4)
AT_ONCE: Final = 0
BATCH_EVENTS: Final = 500  # a batch with so many leaves at once
DIGEST_PATHS: Final = 10_000
QUEUED: Final = 10_000  # deliveries that may wait for one subscription; more are dead letters at once
NOTICES: Final = 1000  # that an agent has not read; the oldest go
DEAD_KEPT_NS: Final = 30 * 86400 * 10**9
LONGEST_PAUSE_NS: Final = 12 * 3600 * 10**9  # of retries; a later one was set by a clock that has jumped
OF_ONE_AGENT: Final = 2  # subscriptions in one answer, so that nobody's receivers take all hands
LOOKED_AT: Final = 1000  # rows of the log at once,
MATCHED: Final = 20_000  # and so many of them times subscriptions: the writer has others to serve
AT_A_TIME: Final = 2000  # events in one answer, or a single delivery
JUDGED: Final = 20_000  # rows of the log, which has no index by node: writes would pay for it
GONE: Final = frozenset({"remove", "rmdir"})


@dataclass(frozen=True, slots=True)
class _Subscription:
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


_COLUMNS = "id, agent, place, mode, every, url, hook, since"


@relaxed
def outbox_fill(tx: Tx, limit: int = LOOKED_AT) -> dict[str, Any]:
    """Look through the log from where the last call stopped, at most so many rows. {"more"}."""
    tx.require_operator()
    return {"more": _fill(tx, limit)}


@relaxed
def collect_notices(tx: Tx) -> dict[str, Any]:
    """What the asker's own subscriptions have for it by now can be read when this returns, also when no daemon runs."""
    while _fill(tx, LOOKED_AT):
        pass
    rows: list[Any] = tx.db.execute(
        f"select {_COLUMNS} from subscription where agent = ? and url is null and hook is null", (tx.who.name,)
    ).fetchall()
    for row in rows:
        _take(tx, _Subscription(*row), NOTICES)
    return {}


@relaxed
def outbox_take(tx: Tx, busy: list[int], full: list[str], limit: int, each: int) -> dict[str, Any]:
    """What is due now, of at most ``limit`` subscriptions that are not ``busy`` nor of an agent with ``full`` hands: up
    to ``each`` deliveries of one, in their order; of one whose last try failed the first. {"subscriptions": [{"id",
    "agent", "pattern", "mode", "url", "secret", "hook", "trusted", "failures", "deliveries": [{"turn", "message",
    "attempts", "events"}]}], "moved"}: whether anything was done. Notices without a webhook arrive by this."""
    tx.require_operator()
    found: list[dict[str, Any]] = []
    of_agent: Counter[str] = Counter()
    moved = False
    rows: list[Any] = tx.db.execute(
        f"select {_COLUMNS}, pattern, secret, trusted, failures from subscription where"
        " (retry_at is null or retry_at <= :now or retry_at > :now + :longest)"
        " and id not in (select value from json_each(:busy)) and agent not in (select value from json_each(:full))"
        " and exists (select 1 from outbox where"
        "  subscription = subscription.id and (state = :sealed or (state = :open and"
        "  (due <= :now or due > :now + every))))"
        " order by tried_at, id",
        {"now": tx.now, "longest": LONGEST_PAUSE_NS, "busy": json.dumps(busy), "full": json.dumps(full),
         "sealed": SEALED, "open": OPEN},
    ).fetchall()  # fmt: skip
    for row in rows:
        subscription = _Subscription(*row[:8])
        pattern, secret, trusted, failures = row[8:]
        if len(found) == limit or of_agent[subscription.agent] == OF_ONE_AGENT:
            continue
        moved = True
        tx.db.execute("update subscription set tried_at = ? where id = ?", (tx.now, subscription.id))
        if deliveries := _take(tx, subscription, 1 if failures else each):
            of_agent[subscription.agent] += 1
            found.append({
                "id": subscription.id, "agent": subscription.agent, "pattern": pattern, "mode": subscription.mode,
                "url": subscription.url, "secret": secret, "hook": subscription.hook, "trusted": bool(trusted),
                "failures": failures, "deliveries": deliveries,
            })  # fmt: skip
    return {"subscriptions": found, "moved": moved}


@relaxed
def outbox_report(
    tx: Tx, subscription: int, sent: list[int], failed: int | None, error: str, dead: bool, retry_at: int | None
) -> dict[str, Any]:
    """What became of deliveries that were taken: ``sent`` (by turn) have been made, ``failed`` has not, and is tried
    again at ``retry_at`` (ns) unless it is ``dead``."""
    tx.require_operator()
    for turn in sent:
        tx.db.execute("delete from outbox where turn = ? and subscription = ?", (turn, subscription))
    if sent:
        tx.db.execute(
            "update subscription set sent = sent + ?, failures = 0, retry_at = null where id = ?",
            (len(sent), subscription),
        )
    if failed is not None:
        tx.db.execute(
            "update outbox set attempts = attempts + 1, error = ?, state = ? where turn = ? and subscription = ?",
            (error, DEAD if dead else SEALED, failed, subscription),
        )
        tx.db.execute(
            "update subscription set failures = failures + 1, retry_at = ? where id = ?", (retry_at, subscription)
        )
    return {}


@command
def redeliver(tx: Tx, messages: list[str] | None = None) -> dict[str, Any]:
    """The asker's dead letters, or these of them, are tried anew, under the same ids. {"count"}."""
    tx.db.execute(
        "update outbox set state = ?1, due = 0, attempts = 0, error = null where state = ?2 and subscription in"
        " (select id from subscription where agent = ?3)"
        " and (?4 is null or message in (select value from json_each(?4)))",
        (SEALED, DEAD, tx.who.name, None if messages is None else json.dumps(messages)),
    )
    count = tx.db.changes()
    if count:
        tx.db.execute("update subscription set failures = 0, retry_at = null where agent = ?", (tx.who.name,))
    return {"count": count}


@command
def forget_notices(tx: Tx, messages: list[str]) -> dict[str, Any]:
    """The asker has read these notices. {"count"}."""
    tx.db.execute(
        "delete from outbox where state = ? and message in (select value from json_each(?)) and subscription in"
        " (select id from subscription where agent = ?)",
        (ARRIVED, json.dumps(messages), tx.who.name),
    )
    return {"count": tx.db.changes()}


@relaxed
def outbox_tidy(tx: Tx) -> dict[str, Any]:
    """Drop what nobody needs any more: old dead letters, the oldest of too many notices, times that have passed."""
    tx.require_operator()
    tx.db.execute("delete from outbox where state = ? and at < ?", (DEAD, tx.now - DEAD_KEPT_NS))
    for state, kept in ((ARRIVED, NOTICES), (DEAD, QUEUED)):
        crowded: list[Any] = tx.db.execute(
            "select subscription, count(*) from outbox where state = ? group by 1 having count(*) > ?", (state, kept)
        ).fetchall()
        for subscription, count in crowded:
            tx.db.execute(
                "delete from outbox where turn in (select turn from outbox where subscription = ? and state = ?"
                " order by turn limit ?)",
                (subscription, state, count - kept),
            )
    tx.db.execute(
        "delete from outbox_throttle where at + (select every from subscription where id = subscription) < ?",
        (tx.now,),
    )
    return {}


# Filling -------------------------------------------------------------------------------------------------------


def _fill(tx: Tx, limit: int) -> bool:
    subscriptions = [_Subscription(*row) for row in tx.db.execute(f"select {_COLUMNS} from subscription order by id")]
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
    scopes = {one.id: tx.known.scopes.visible_as_loaded(one.who) for one in subscriptions}
    found: dict[int, list[Event]] = {}
    for row in rows:
        candidates = of_row(*row)
        for one in subscriptions if candidates else ():
            if candidates[0].seq <= one.since or candidates[0].scope not in scopes[one.id]:
                continue
            event = next((each for each in candidates if matches(one.place, each.path)), None)
            if event is not None and one.wants(event):
                found.setdefault(one.id, []).append(event)
    for one in subscriptions:
        if one.id in found:
            _queue(tx, one, found[one.id])
    tx.db.execute("update outbox_cursor set seq = ?", (rows[-1][0],))
    return len(rows) == limit


def _queue(tx: Tx, one: _Subscription, found: list[Event]) -> None:
    if one.mode == "realtime":
        _add(tx, one, [([event], None, AT_ONCE) for event in found])
    elif one.mode == "throttled":
        for event in latest_by_path(found):
            _join(tx, one, [replace(event, count=1)], paths.raw(event.path), 1)
    elif one.mode == "batched":
        _join(tx, one, found, None, BATCH_EVENTS)
    else:
        _join(tx, one, latest_by_path(found), None, DIGEST_PATHS)


def _join(tx: Tx, one: _Subscription, found: list[Event], path: bytes | None, most: int) -> None:
    """Add to the delivery that is still open, or begin one: of a path for a throttled subscription, which keeps the
    last state only."""
    row: Any = tx.db.execute(
        "select turn, events from outbox where subscription = ? and state = ? and path is ? order by turn desc limit 1",
        (one.id, OPEN, path),
    ).fetchone()
    if row is not None:
        kept = [] if path is not None else unpack(row[1])
        if one.mode == "digest":
            whole = latest_by_path([*kept, *found])
        else:
            whole = [*kept, *found]
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
        _add(tx, one, [(piece, path, due) for piece in pieces])
    else:
        _add(tx, one, [(piece, None, AT_ONCE if len(piece) == most else tx.now + one.every) for piece in pieces])


def _add(tx: Tx, one: _Subscription, deliveries: Sequence[tuple[list[Event], bytes | None, int]]) -> None:
    if not deliveries:
        return
    waiting = tx.db.execute(
        "select count(*) from outbox where subscription = ? and state in (?, ?)", (one.id, OPEN, SEALED)
    ).get
    room = QUEUED - waiting
    for index, (events, path, due) in enumerate(deliveries):
        late = index >= room
        tx.db.execute(
            "insert into outbox(subscription, message, state, due, path, events, size, at, error)"
            " values(?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (one.id, message_id(one.id, events[0].seq), DEAD if late else OPEN, due, path, pack(events), len(events),
             tx.now, f"{QUEUED} deliveries wait already" if late else None),
        )  # fmt: skip


# Taking --------------------------------------------------------------------------------------------------------


def _take(tx: Tx, one: _Subscription, each: int) -> list[dict[str, Any]]:
    rows: list[Any] = tx.db.execute(
        "select turn, message, attempts, path, events, state from outbox where subscription = :id and"
        " (state = :sealed or (state = :open and (due <= :now or due > :now + :every)))"
        " order by state desc, due, turn limit :each",
        {"id": one.id, "sealed": SEALED, "open": OPEN, "now": tx.now, "every": one.every, "each": each},
    ).fetchall()
    taken: list[dict[str, Any]] = []
    size = 0
    for turn, message, attempts, path, packed, state in rows:
        found = unpack(packed)
        size += len(found)
        if size > AT_A_TIME and taken:
            break
        seen = [event for event in found if visible(tx, one.who, event)]
        if not seen:
            tx.db.execute("delete from outbox where turn = ?", (turn,))
            continue
        arrives = one.url is None and one.hook is None
        if state == OPEN or arrives:
            tx.db.execute(
                "update outbox set state = ?, at = ? where turn = ?", (ARRIVED if arrives else SEALED, tx.now, turn)
            )
            if path is not None:
                tx.db.execute(
                    "insert or replace into outbox_throttle(subscription, path, at) values(?, ?, ?)",
                    (one.id, path, tx.now),
                )
        if not arrives:
            taken.append({"turn": turn, "message": message, "attempts": attempts, "events": json.loads(pack(seen))})
    return taken


def visible(tx: Tx, who: Principal, event: Event) -> bool:
    """May the subscriber be told of it now? It could see the row when it was written; since then rules may have
    changed, and the node may have moved, been limited, expired or gone."""
    if event.scope not in tx.known.scopes.visible_as_loaded(who):
        return False
    if event.path.startswith(MAIL):
        return event.path == MAIL + who.name  # what lies in a mailbox was put there for its owner
    parts = tuple(part for part in paths.raw(event.path).split(b"/") if part)
    if tx.policy.scope(parts).access(who) < Access.READ:
        return False
    if event.event in GONE:
        return True  # whoever saw it there can see that it is not
    row = tx.db.execute("select scope, expires, parent from node where id = ?", (event.node,)).fetchone()
    if row is not None and row[2] is not None:
        return _sees(tx, who, [row[0]]) and (row[1] is None or row[1] > tx.now)
    # It is gone: by what the log says of it since. What is too long ago to be looked up is not told.
    if (tx.db.execute("select max(seq) from log").get or 0) - event.seq > JUDGED:
        return False
    later = tx.db.execute("select distinct scope from log where seq > ? and node = ?", (event.seq, event.node))
    return _sees(tx, who, [scope for (scope,) in later])


def _sees(tx: Tx, who: Principal, scopes: Iterable[int]) -> bool:
    seen = tx.known.scopes.visible_as_loaded(who)
    return all(scope in seen for scope in scopes)
