"""Mail between agents, and the agents themselves.

A message is one row, whoever gets it; each receiver has a delivery row with its own mark. Its number is the same for
its sender and all receivers, so that they can speak of it, and drawn at random, so that it tells nothing of other mail.
Numbers, threads and limits are settled here, in the transaction that sends; ``queries.mail.refusal`` says beforehand
what it would refuse.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any, Final

from avmfs import paths
from avmfs.errors import Invalid, NotFound, OverQuota
from avmfs.localtime import DAY_NS
from avmfs.node import Kind
from avmfs.store.commands import command
from avmfs.store.rows.mail_limits import MINUTE, UNREAD, UNREAD_FROM, all_full, full, re_unknown, too_fast, too_long
from avmfs.store.schema.tables import PRIVATE
from avmfs.store.tx.transaction import Tx, new_id

NUMBERS_FROM: Final = 100_000  # the smallest with six digits
PRIORITIES: Final = ("urgent", "normal", "low")
_NO_RATE: Final = 10**9
DIGESTS_UNREAD: Final = 14
_UNHELD: Final = "id = ?1 and not exists (select 1 from delivery where message = ?1)"


@command(repeatable=True, frees_space=True)
def enroll(tx: Tx) -> dict[str, Any]:
    """Make the asker known, with its private space. Does nothing the second time."""
    name = tx.agent(tx.who.name)
    known = tx.db.execute("select 1 from agent where name = ?", (name,)).get
    if not known:
        tx.db.execute("insert into agent(name, enrolled) values(?, ?)", (name, tx.now))
    if tx.child(PRIVATE, paths.raw(name)) is None:
        parts = (paths.MEMORY, paths.PRIVATE, paths.raw(name))
        node = new_id()
        tx.db.execute(
            "insert into node(id, parent, name, kind, mode, mtime, ctime, scope) values(?, ?, ?, ?, ?, ?, ?, ?)",
            (node, PRIVATE, parts[-1], int(Kind.DIRECTORY), 0o755, tx.now, tx.now, tx.scope_at(parts)),
        )
        tx.log("mkdir", tx.node(node), paths.join(parts))
    return {"new": not known}


@dataclass(frozen=True, slots=True)
class _Answered:
    """The message that another one answers."""

    id: int
    sender: str
    root: int  # message.id of its thread's first


@command
def tell(
    tx: Tx,
    recipient: str,
    body: str,
    priority: str,
    expires: int | None,
    body_limit: int,
    unread_limit: int,
    re: int | None = None,
    rate_limit: int = _NO_RATE,
) -> dict[str, Any]:
    """Send to an agent or to "@all" (everyone known now, or configured, but the sender). {"id", "recipients"}; the id
    is the message's number, as ``re``, of the message that this one answers, is.

    Raises NotFound for an unknown agent, Invalid for a ``re`` that the asker does not have, OverQuota when too much of
    this sender is unread there already or it has sent ``rate_limit`` messages within a minute. A broadcast passes the
    second: one full mailbox must not silence it for everybody. Where ``unread_limit`` broadcasts of this sender are
    unread, the oldest of them gives way.
    """
    tx.who.require("tell")
    tx.policy.require(tx.who, "write")
    if priority not in PRIORITIES:
        raise Invalid(f"priority {priority!r}: expected one of {', '.join(PRIORITIES)}")
    if len(body.encode("utf-8", "surrogateescape")) > body_limit:
        raise OverQuota(too_long(body_limit))
    everyone, sender = recipient == paths.EVERYONE, tx.who.name
    if everyone:
        been = (name for (name,) in tx.db.execute("select name from agent"))
        receivers = sorted(tx.policy.named.union(been) - {sender})
    elif tx.is_agent(recipient):
        receivers = [recipient]
    else:
        raise NotFound(f"no agent is called {recipient!r}")
    answered = None if re is None else _answered(tx, re)
    _count_sent(tx, rate_limit)
    number = _draw(tx, [sender, *receivers])
    if receivers:
        _deliver(tx, number, recipient, receivers, body, priority, expires, unread_limit, answered, everyone)
    return {"id": number, "recipients": receivers}


@command
def deliver_digest(tx: Tx, agent: str, due: int, told: int, body: str | None = None) -> dict[str, Any]:
    """Put the digest that was ``due``, of all until ``told`` (ns), into an agent's mail, once; where ``body`` is empty
    there is nothing to put. {"since"}: until when the one before told; None where this one has been delivered, and of
    an agent that has had none yet, or one of days to come: it gets the next. Without ``body`` nothing is changed but
    for that. Unread ones give way to newer ones, but for ``DIGESTS_UNREAD``."""
    tx.require_operator()
    key = f"digest of {agent}"
    last, since = map(int, (tx.db.execute("select value from setting where key = ?", (key,)).get or "0 0").split())
    known = 0 < last <= tx.now + DAY_NS  # a clock may go back a little
    if known and (last >= due or body is None):
        return {"since": None if last >= due else since}
    tx.db.execute("insert or replace into setting(key, value) values(?, ?)", (key, f"{due} {told}"))
    if known and body:
        number = _draw(tx, [tx.who.name, agent])
        _deliver(tx, number, agent, [agent], body, "low", None, DIGESTS_UNREAD, None, gives_way=True)
    return {"since": since if known else None}


def _deliver(
    tx: Tx,
    number: int,
    recipient: str,
    receivers: list[str],
    body: str,
    priority: str,
    expires: int | None,
    unread_limit: int,
    answered: _Answered | None,
    gives_way: bool,
) -> None:
    sender = tx.who.name
    re, thread = (None, None) if answered is None else _known(tx, sender, answered)
    tx.db.execute(
        "insert into message(id, sender, number, recipient, priority, body, at, expires, root, re, thread)"
        " select coalesce(max(seq), 0) + 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? from log",  # never given twice
        (sender, number, recipient, priority, body, tx.now, expires, answered and answered.root, re, thread),
    )
    message = tx.db.last_insert_rowid()
    for receiver in receivers:
        _make_room(tx, receiver, gives_way, unread_limit)
        theirs = (None, None) if answered is None else _known(tx, receiver, answered)
        tx.db.execute(
            "insert into delivery(agent, number, message, sender, priority, everyone, expires, re, thread)"
            " values(?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (receiver, number, message, sender, priority, gives_way, expires, *theirs),
        )
        scope = tx.scope_at((paths.MEMORY, paths.PRIVATE, paths.raw(receiver)))
        # version: its number, for whoever delivers it elsewhere.
        path = paths.join((paths.TELL, paths.raw(receiver)))
        tx.log("tell", tx.node(PRIVATE), path, version=number, scope=scope)


def _answered(tx: Tx, number: int) -> _Answered:
    """The message of that number in the asker's mail, sent to it or by it. Raises Invalid."""
    tx.who.require("inbox")
    row: Any = tx.db.execute(
        "select message.id, message.sender, coalesce(root, message.id) from delivery"
        " join message on message.id = delivery.message where agent = ?1 and delivery.number = ?2"
        " union all select id, sender, coalesce(root, id) from message where sender = ?1 and number = ?2 limit 1",
        (tx.who.name, number),
    ).fetchone()
    if row is None:
        raise Invalid(re_unknown(number))
    return _Answered(*row)


def _known(tx: Tx, agent: str, answered: _Answered) -> tuple[int | None, int | None]:
    """The number of the answered message, and that by which ``agent`` knows its thread: the oldest that it has of it
    says so. None for what it does not have."""
    own = (
        "select number from delivery where message = ?1 and agent = ?2"
        " union all select number from message where id = ?1 and sender = ?2 limit 1"
    )
    first = (
        "select coalesce(thread, number) from (select message as id, thread, number from delivery"
        " where message = ?1 and agent = ?2"
        " union all select id, thread, number from message where id = ?1 and sender = ?2"
        " union all select message.id, delivery.thread, delivery.number from message"
        " join delivery on delivery.message = message.id where root = ?1 and agent = ?2"
        " union all select id, thread, number from message where root = ?1 and sender = ?2) order by id limit 1"
    )
    return (tx.db.execute(own, (answered.id, agent)).get, tx.db.execute(first, (answered.root, agent)).get)


def _count_sent(tx: Tx, rate_limit: int) -> None:
    """Count one more message of the asker. Raises OverQuota when that is too many in this minute."""
    since, told = tx.db.execute(
        "insert into mailbox(agent, number, since, told) values(?1, 0, ?2, 1) on conflict(agent) do update set"
        " told = case when ?2 >= since and ?2 < since + ?3 then told + 1 else 1 end,"
        " since = case when ?2 >= since and ?2 < since + ?3 then since else ?2 end"
        " returning since, told",
        (tx.who.name, tx.now, MINUTE),
    ).fetchone()  # type: ignore[misc]
    if told > rate_limit:
        raise OverQuota(too_fast(rate_limit, since + MINUTE - tx.now))


def _draw(tx: Tx, agents: list[str]) -> int:
    """A number that names nothing in the mail of any of these agents: of six digits, of one more each time that it is
    taken."""
    taken = (
        "select 1 from json_each(?1) as agent where exists (select 1 from delivery where agent = value and number = ?2)"
        " or exists (select 1 from message where sender = value and number = ?2) limit 1"
    )
    names, least = json.dumps(agents), NUMBERS_FROM
    while tx.db.execute(taken, (names, number := least + secrets.randbelow(9 * least))).get:
        least *= 10
    return number


def _make_room(tx: Tx, receiver: str, gives_way: bool, unread_limit: int) -> None:
    """Raises OverQuota when a mailbox has as much unread of the asker as it may, or of everybody as its quota allows;
    for a broadcast the oldest gives way."""
    quota = tx.policy.person(receiver).quota.unread
    if quota is not None and not gives_way and tx.db.execute(UNREAD, (receiver, tx.now)).get >= quota:
        raise OverQuota(all_full(receiver))
    waiting = tx.db.execute(UNREAD_FROM, (receiver, tx.who.name, gives_way, tx.now)).get
    if waiting < unread_limit:
        return
    if not gives_way:
        raise OverQuota(full(receiver, unread_limit))
    oldest = tx.db.execute(
        "select min(message) from delivery indexed by unread"
        " where agent = ? and sender = ? and everyone and read_at is null and (expires is null or expires > ?)",
        (receiver, tx.who.name, tx.now),
    ).get
    _drop(tx, "agent = ? and message = ?", (receiver, oldest))


@command(frees_space=True)
def mark_read(tx: Tx, messages: list[int] | None = None) -> dict[str, Any]:
    """The asker has read these messages (by number), or all. {"count"} of those that were unread."""
    tx.who.require("inbox")
    chosen = "" if messages is None else " and number in (select value from json_each(:messages))"
    tx.db.execute(
        f"update delivery indexed by unread set read_at = :now where agent = :agent and read_at is null{chosen}",
        {"now": tx.now, "agent": tx.who.name, "messages": json.dumps(messages)},
    )
    return {"count": tx.db.changes()}


@command(frees_space=True)
def delete_mail(tx: Tx, messages: list[int] | None = None) -> dict[str, Any]:
    """Remove messages from the asker's own mail: these, by number, or all that it has read. {"count"}."""
    tx.who.require("inbox")
    if messages is None:
        return {"count": _drop(tx, "agent = ? and read_at is not null", (tx.who.name,))}
    chosen = "agent = ? and number in (select value from json_each(?))"
    return {"count": _drop(tx, chosen, (tx.who.name, json.dumps(messages)))}


@command(durable=False, frees_space=True)
def trim_mail(tx: Tx, before: int, keep: int, limit: int = 1000) -> dict[str, Any]:
    """Remove what has expired, what was read before ``before`` (ns), and of each agent's read mail all but the newest
    ``keep``: at most ``limit`` of each kind. {"count"}."""
    tx.require_operator()
    count = _drop(tx, "expires <= ?", (tx.now,), limit)
    for (agent,) in tx.db.execute("select name from agent").fetchall():
        newest = tx.db.execute(
            "select message from delivery where agent = ? and read_at is not null order by message desc"
            " limit 1 offset ?",
            (agent, keep),
        ).get
        over = "agent = ? and (message <= ? and read_at is not null or read_at < ?)"
        count += _drop(tx, over, (agent, newest, before), limit)
    return {"count": count}


def _drop(tx: Tx, chosen: str, values: tuple[Any, ...], limit: int = -1) -> int:
    """Remove deliveries, and messages that nobody has any more; of one that others answer the words alone, so that its
    sender can still name it. How many deliveries."""
    rows: list[Any] = tx.db.execute(
        f"select agent, number, message from delivery where {chosen} limit ?", (*values, limit)
    ).fetchall()
    for agent, number, _ in rows:
        tx.db.execute("delete from delivery where agent = ? and number = ?", (agent, number))
    for message in {message for _, _, message in rows}:
        root = tx.db.execute("select root from message where id = ?", (message,)).get
        tx.db.execute(f"update message set body = '' where {_UNHELD}", (message,))
        for each in (message, root):
            tx.db.execute(
                f"delete from message where {_UNHELD}"
                " and not exists (select 1 from message as answer where answer.root = ?1)",
                (each,),
            )
    return len(rows)
