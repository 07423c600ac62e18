"""Subscriptions: made, ended, and those that the configuration's hooks are.

Whether a webhook's address may be reached is not asked here: who delivers decides that, each time, on the address that
it connects to.
"""

from __future__ import annotations

import base64
import json
import secrets
from typing import Any

from avmfs.errors import Invalid, NotFound, OverQuota
from avmfs.store.commands import command
from avmfs.store.commands.fanout import close
from avmfs.store.rows import events
from avmfs.store.rows.deliveries import HOOKS
from avmfs.store.tx.transaction import Tx, new_id

MODES = ("realtime", "throttled", "batched", "digest")
PER_AGENT = 100
URL_MAX = 2048
SECRET_BYTES = 24  # as Standard Webhooks advises: 24 to 64
SECRET_PREFIX = "whsec_"
EVERY_NS = {"realtime": 0, "throttled": 60 * 10**9, "batched": 60 * 10**9, "digest": 86400 * 10**9}  # by default
LONGEST_NS = 31 * 86400 * 10**9


@command
def subscribe(tx: Tx, pattern: str, mode: str, every: int | None, url: str | None) -> dict[str, Any]:
    """Tell the asker of changes from now on: {"number", "secret", "new", "every"}. ``every`` is in ns; ``url`` None:
    into what it reads. The secret of a new webhook is told here and never again; asking anew for the same pattern and
    url changes mode and time; what another mode has gathered leaves at once.

    Raises Invalid, OverQuota past the subscriptions that one agent may have.
    """
    tx.who.require_itself()
    if mode not in MODES:
        raise Invalid(f"mode {mode!r}: expected one of {', '.join(MODES)}")
    if url is not None and not 0 < len(url) <= URL_MAX:
        raise Invalid(f"a webhook's address may have {URL_MAX} characters")
    span = EVERY_NS[mode] if every is None else every
    if (mode != "realtime" and span == 0) or not 0 <= span <= LONGEST_NS:
        raise Invalid(f"a {mode} subscription needs a time between 0 and 31 days")
    agent = tx.agent(tx.who.name)
    place = events.place_of(pattern, agent)
    known = tx.db.execute(
        "select id, number, mode from subscription where agent = ? and pattern = ? and url is ?", (agent, pattern, url)
    ).fetchone()
    if known is not None:
        if known[2] != mode:
            close(tx, known[0])
        tx.db.execute(
            "update subscription set mode = ?, every = ?, trusted = max(trusted, ?) where id = ?",
            (mode, span, int(tx.who.operator), known[0]),
        )
        return {"number": known[1], "secret": None, "new": False, "every": span}
    if tx.db.execute("select count(*) from subscription where agent = ?", (agent,)).get >= PER_AGENT:
        raise OverQuota(f"{agent} has {PER_AGENT} subscriptions, the most that one agent may have")
    secret = None if url is None else secrets.token_bytes(SECRET_BYTES)
    number = _add(tx, agent, pattern, place, mode, span, url, secret, None)
    shown = None if secret is None else SECRET_PREFIX + base64.b64encode(secret).decode()
    return {"number": number, "secret": shown, "new": True, "every": span}


@command
def unsubscribe(tx: Tx, pattern: str, url: str | None = None) -> dict[str, Any]:
    """End the asker's subscriptions to this pattern, or only the one with this webhook; what waits for them goes, dead
    letters too. {"ended"}. Raises NotFound when there is none."""
    tx.who.require_itself()
    rows: list[Any] = tx.db.execute(
        "select id from subscription where agent = ?1 and pattern = ?2 and (?3 is null or url = ?3)",
        (tx.agent(tx.who.name), pattern, url),
    ).fetchall()
    if not rows:
        raise NotFound(f"no subscription to {pattern!r}")
    for (subscription,) in rows:
        _end(tx, subscription)
    return {"ended": len(rows)}


@command
def set_hooks(tx: Tx, hooks: list[dict[str, Any]]) -> dict[str, Any]:
    """The hooks of the configuration in force, each {"pattern", "event", "command", "timeout_s"}: new ones hear of what
    changes from now on, and what waits for others goes with them; one with another time limit is the one that it was.
    {"added", "ended"}."""
    tx.require_operator()
    wanted = {(hook["pattern"], _plain(hook, "event", "command")): hook for hook in hooks}
    rows: list[Any] = tx.db.execute("select pattern, hook, id from subscription where agent = ?", (HOOKS,)).fetchall()
    kept: dict[tuple[str, str], int] = {}
    ended = 0
    for pattern, text, subscription in rows:
        which = pattern, _plain(json.loads(text), "event", "command")
        if which in wanted and which not in kept:
            kept[which] = subscription
        else:
            _end(tx, subscription)
            ended += 1
    for which, hook in sorted(wanted.items()):
        said = _plain(hook, "event", "command", "timeout_s")
        if which in kept:
            tx.db.execute("update subscription set hook = ? where id = ?", (said, kept[which]))
        else:
            _add(tx, HOOKS, which[0], which[0], "realtime", 0, None, None, said)
    return {"added": len(wanted) - len(kept), "ended": ended}


def _plain(hook: dict[str, Any], *keys: str) -> str:
    return json.dumps({key: hook[key] for key in keys}, sort_keys=True)


def _add(
    tx: Tx,
    agent: str,
    pattern: str,
    place: str,
    mode: str,
    every: int,
    url: str | None,
    secret: bytes | None,
    hook: str | None,
) -> int:
    newest = tx.db.execute("select max(seq) from log").get or 0
    if not tx.db.execute("select 1 from subscription limit 1").get:  # nobody has looked at the log since the last ended
        tx.db.execute("update outbox_cursor set seq = ?", (newest,))
    number = 1 + (tx.db.execute("select max(number) from subscription where agent = ?", (agent,)).get or 0)
    tx.db.execute(
        "insert into subscription(id, agent, number, pattern, place, mode, every, url, secret, hook, trusted, since,"
        " created) values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (new_id(), agent, number, pattern, place, mode, every, url, secret, hook, int(tx.who.operator), newest, tx.now),
    )
    return int(number)


def _end(tx: Tx, subscription: int) -> None:
    for table in ("outbox", "outbox_throttle"):
        tx.db.execute(f"delete from {table} where subscription = ?", (subscription,))
    tx.db.execute("delete from subscription where id = ?", (subscription,))
