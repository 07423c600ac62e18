"""The outbox: from rows of the log to deliveries, and what became of them.

The log is the durable outbox: the row that a change appends in its own transaction is what will be delivered, so
nothing can be lost between a change and its notice, and a write costs not one statement more, with subscriptions or
without (ARCHITECTURE, decision 1). One cursor for all subscriptions follows it: soon after commits the keeper reads the
rows behind it and matches them with the patterns (``matching``), where an agent's pattern keeps nobody's write waiting,
and has ``outbox_fill`` turn what it found into deliveries and move the cursor in one transaction. Rows written with
each change would cost every write the matching of every pattern, before its reply, and would be no safer. A fill that
power loss takes back is made again, with the same message ids.

Who may see what is judged twice for the subscriber: by the scope that the row was written with, which is what was
visible at the time (scopes are never changed, only replaced), and again whenever something is taken for delivery, by
the rules and the node as they are then. What may not be seen is left out without a trace: no id, number or count tells
that there was something.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from avmfs import paths
from avmfs.access import Access, Principal
from avmfs.store.commands import command
from avmfs.store.commands.fanout import LETTERS, assemble, fill, keep_newest
from avmfs.store.rows.deliveries import (
    ARRIVED,
    COLUMNS,
    DEAD,
    GONE,
    HOOKS,
    LONGEST_PAUSE_NS,
    OPEN,
    SEALED,
    Subscription,
)
from avmfs.store.rows.events import MAIL, Event
from avmfs.store.tx.transaction import Tx

NOTICES: Final = 1000  # that an agent has not read; the oldest go
DEAD_KEPT_NS: Final = 30 * 86400 * 10**9
OF_ONE_AGENT: Final = 2  # subscriptions in one answer, so that nobody's receivers take all hands
AT_A_TIME: Final = 2000  # events that are judged by one command, or a single delivery: others wait for the writer
JUDGED: Final = 20_000  # rows of the log, which has no index by node: writes would pay for it


@command(durable=False)
def outbox_fill(tx: Tx, after: int, upto: int, events: str, found: list[Any]) -> dict[str, Any]:
    """Queue what ``queries.matching.matched`` has found in the log's rows from ``after`` up to ``upto``: ``events`` as
    they lie in the outbox, ``found`` a [subscription, [index of an event]] each. {"done"}: False when somebody else has
    looked at these rows; {"upto"}."""
    tx.require_operator()
    return {"done": fill(tx, after, upto, events, found), "upto": upto}


@command(durable=False)
def collect_notices(tx: Tx) -> dict[str, Any]:
    """What has been queued of the asker's own subscriptions by now (``fanout.catch_up`` queues what has not) can be
    read once this says that there is no {"more"}, also when no daemon runs."""
    tx.who.require_itself()
    rows: list[Any] = tx.db.execute(
        f"select {COLUMNS} from subscription where agent = ? and url is null and hook is null", (tx.who.name,)
    ).fetchall()
    left = AT_A_TIME
    for row in rows:
        left -= _take(tx, Subscription(*row), AT_A_TIME, left)[1]
        if left <= 0:
            break
    return {"more": left <= 0}


@command(durable=False)
def outbox_take(tx: Tx, busy: list[int], full: list[str], limit: int, each: int) -> dict[str, Any]:
    """What is due now, of at most ``limit`` subscriptions that are not ``busy`` nor of an agent with ``full`` hands: up
    to ``each`` deliveries of one, in their order; of one whose last try failed the first. {"subscriptions": [{"id",
    "agent", "pattern", "mode", "url", "secret", "hook", "trusted", "failures", "deliveries": [{"turn", "message",
    "attempts", "events"}]}], "moved"}: whether anything was done, and there may be more. Notices without a webhook
    arrive by this."""
    tx.require_operator()
    found: list[dict[str, Any]] = []
    of_agent: Counter[str] = Counter()
    moved = False
    rows: list[Any] = tx.db.execute(
        f"select {COLUMNS}, pattern, secret, trusted, failures from subscription where"
        " (retry_at is null or retry_at <= :now or retry_at > :now + :longest)"
        " and id not in (select value from json_each(:busy)) and agent not in (select value from json_each(:full))"
        " and exists (select 1 from outbox where"
        "  subscription = subscription.id and (state = :sealed or (state = :open and"
        "  (due <= :now or due > :now + every))))"
        " order by tried_at, id",
        {
            "now": tx.now,
            "longest": LONGEST_PAUSE_NS,
            "sealed": SEALED,
            "open": OPEN,
            "busy": json.dumps(busy),
            "full": json.dumps(full),
        },
    ).fetchall()
    left = AT_A_TIME
    for row in rows:
        if left <= 0:
            break
        subscription = Subscription(*row[:8])
        pattern, secret, trusted, failures = row[8:]
        if len(found) == limit or of_agent[subscription.agent] == OF_ONE_AGENT:
            continue
        moved = True
        tx.db.execute("update subscription set tried_at = ? where id = ?", (tx.now, subscription.id))
        arrives = subscription.url is None and subscription.hook is None
        deliveries, judged = _take(tx, subscription, AT_A_TIME if arrives else 1 if failures else each, left)
        left -= judged + 1
        if deliveries:
            of_agent[subscription.agent] += 1
            found.append(
                {
                    "id": subscription.id,
                    "agent": subscription.agent,
                    "pattern": pattern,
                    "mode": subscription.mode,
                    "url": subscription.url,
                    "secret": secret,
                    "hook": subscription.hook,
                    "trusted": bool(trusted),
                    "failures": failures,
                    "deliveries": deliveries,
                }
            )
    return {"subscriptions": found, "moved": moved}


@command(durable=False)
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
        if dead:
            keep_newest(tx, subscription, DEAD, LETTERS)
        tx.db.execute(
            "update subscription set failures = failures + 1, retry_at = ? where id = ?", (retry_at, subscription)
        )
    return {}


@command
def redeliver(tx: Tx, messages: list[str] | None = None) -> dict[str, Any]:
    """The asker's dead letters, for an operator those of the hooks too, or these of them, are tried anew, under the
    same ids. {"count"}."""
    tx.who.require_itself()
    whose = (tx.who.name, HOOKS if tx.who.operator else tx.who.name)
    tx.db.execute(
        "update outbox set state = ?1, due = 0, attempts = 0, error = null where state = ?2 and subscription in"
        " (select id from subscription where agent in (?3, ?4))"
        " and (?5 is null or message in (select value from json_each(?5)))",
        (SEALED, DEAD, *whose, None if messages is None else json.dumps(messages)),
    )
    count = tx.db.changes()
    if count:
        tx.db.execute("update subscription set failures = 0, retry_at = null where agent in (?, ?)", whose)
    return {"count": count}


@command(frees_space=True)
def forget_notices(tx: Tx, messages: list[str]) -> dict[str, Any]:
    """The asker has read these notices. {"count"}."""
    tx.who.require_itself()
    tx.db.execute(
        "delete from outbox where state = ? and message in (select value from json_each(?))"
        " and subscription in (select id from subscription where agent = ?)",
        (ARRIVED, json.dumps(messages), tx.who.name),
    )
    return {"count": tx.db.changes()}


@command(durable=False, frees_space=True)
def outbox_tidy(tx: Tx) -> dict[str, Any]:
    """Drop what nobody needs any more: old dead letters, and times that have passed."""
    tx.require_operator()
    tx.db.execute("delete from outbox where state = ? and at < ?", (DEAD, tx.now - DEAD_KEPT_NS))
    tx.db.execute(
        "delete from outbox_throttle where at + (select every from subscription where id = subscription) < ?", (tx.now,)
    )
    return {}


# Taking --------------------------------------------------------------------------------------------------------


def _take(tx: Tx, one: Subscription, each: int, most: int) -> tuple[list[dict[str, Any]], int]:
    """Of what is due the first ``each`` deliveries, of ``most`` events together, and how many these were: ``most``
    where the next would have been too many."""
    assemble(tx, one.id)
    rows: list[Any] = tx.db.execute(
        "select turn, message, attempts, path, events, state from outbox where subscription = :id and"
        " (state = :sealed or (state = :open and (due <= :now or due > :now + :every)))"
        " order by state desc, turn limit :each",  # what has been tried first: nothing overtakes it
        {"id": one.id, "sealed": SEALED, "open": OPEN, "now": tx.now, "every": one.every, "each": each},
    ).fetchall()
    taken: list[dict[str, Any]] = []
    size = 0
    deliveries: list[tuple[Any, ...]] = []
    for *columns, packed, state in rows:
        found = json.loads(packed)
        if size + len(found) > most and deliveries:
            size = most
            break
        size += len(found)
        deliveries.append((*columns, found, state))
    since = _Since(tx, {row[4] for *_, found, _ in deliveries for row in found})
    for turn, message, attempts, path, found, state in deliveries:
        seen = [row for row in found if visible(tx, one.who, Event(*row), since)]
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
            taken.append({"turn": turn, "message": message, "attempts": attempts, "events": seen})
    if one.url is None and one.hook is None:
        _keep_notices(tx, one.id)
    return taken, size


def _keep_notices(tx: Tx, subscription: int) -> None:
    """The newest of those that can be shown: of what has gone for good none is but that it went. Looked at only where
    there are too many, and what is hidden stays, since rules may change again."""
    arrived = "subscription = ? and state = ?"
    of = (subscription, ARRIVED)
    if tx.db.execute(f"select count(*) from outbox where {arrived}", of).get > NOTICES:
        tx.db.execute(
            f"delete from outbox where {arrived} and not exists (select 1 from json_each(events) where"
            f" value ->> 2 in (select value from json_each(?)) or value ->> 3 glob '{MAIL}*'"
            " or exists (select 1 from node where id = json_each.value ->> 4))",
            (*of, json.dumps([*GONE])),
        )
        keep_newest(tx, *of, NOTICES)


class _Since:
    """In which classes nodes have been since a change: what the newest rows of the log say, read once for all of them,
    and only if one is asked for."""

    def __init__(self, tx: Tx, nodes: Iterable[int]) -> None:
        self._tx, self._nodes = tx, nodes
        self._newest = 0
        self._last: dict[int, list[tuple[int, int]]] | None = None  # node: (seq, scope)

    def scopes(self, node: int, seq: int) -> list[int] | None:
        """None: it is too long ago to be looked up."""
        if self._last is None:
            self._last = {}
            self._newest = self._tx.db.execute("select max(seq) from log").get or 0
            for each, scope, last in self._tx.db.execute(
                "select node, scope, max(seq) from log where seq > ? and node in (select value from json_each(?))"
                " group by node, scope",
                (self._newest - JUDGED, json.dumps([*self._nodes])),
            ):
                self._last.setdefault(each, []).append((last, scope))
        if self._newest - seq > JUDGED:
            return None
        return [scope for last, scope in self._last.get(node, ()) if last > seq]


def visible(tx: Tx, who: Principal, event: Event, since: _Since) -> bool:
    """Return whether the subscriber may be told of it now. It could see the row when it was written; since then rules
    may have changed, and the node may have moved, been limited, expired or gone."""
    if not _sees(tx, who, [event.scope]):
        return False
    if event.path.startswith(MAIL):
        return event.path == MAIL + who.name  # what lies in a mailbox was put there for its owner
    if who.operator:
        return True
    parts = tuple(part for part in paths.raw(event.path).split(b"/") if part)
    if tx.policy.scope(parts).access(who) < Access.READ:
        return False
    if event.event in GONE:
        return True  # whoever saw it there can see that it is not
    row = tx.db.execute("select scope, expires, parent from node where id = ?", (event.node,)).fetchone()
    if row is not None and row[2] is not None:
        return _sees(tx, who, [row[0]]) and (row[1] is None or row[1] > tx.now)
    # It is gone: by what the log says of it since. What is too long ago to be looked up is not told.
    later = since.scopes(event.node, event.seq)
    return later is not None and _sees(tx, who, later)


def _sees(tx: Tx, who: Principal, scopes: Iterable[int]) -> bool:
    """Classes in the log stay as they were: one of another agent alone may be from when the subscriber had search_all
    (``queries.standing``). What is in quarantine is told to hooks alone."""
    seen = tx.known.scopes.visible_as_loaded(who)
    if who.operator:
        return seen.ids.issuperset(scopes)
    all_of_it = "search_all" in tx.policy.person(who.name).capabilities
    return all(scope in seen.told and (all_of_it or scope not in seen.anothers) for scope in scopes)
