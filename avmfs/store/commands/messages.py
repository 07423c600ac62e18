"""Mail between agents, and the agents themselves."""

from __future__ import annotations

import json
from typing import Any

from avmfs import paths
from avmfs.errors import Invalid, NotFound, OverQuota
from avmfs.node import Kind
from avmfs.store.commands import command
from avmfs.store.schema import PRIVATE
from avmfs.store.transaction import Tx, new_id

PRIORITIES = ("urgent", "normal", "low")


@command
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


@command
def tell(
    tx: Tx, recipient: str, body: str, priority: str, expires: int | None, body_limit: int, unread_limit: int
) -> dict[str, Any]:
    """Send to an agent or to "@all" (everyone known now but the sender). {"id", "recipients"}; the id
    counts what the asker has sent.

    Raises NotFound for an unknown agent, OverQuota when its unread mail is full. A broadcast passes that
    limit: one full mailbox must not silence it for everybody.
    """
    tx.who.require("tell")
    tx.policy.require(tx.who, "write")
    if priority not in PRIORITIES:
        raise Invalid(f"priority {priority!r}: expected one of {', '.join(PRIORITIES)}")
    if len(body.encode("utf-8", "surrogateescape")) > body_limit:
        raise OverQuota(f"a message may have {body_limit} bytes")
    if recipient == paths.EVERYONE:
        receivers = [row[0] for row in tx.db.execute("select name from agent where name <> ?", (tx.who.name,))]
    elif tx.db.execute("select 1 from agent where name = ?", (recipient,)).get:
        receivers = [recipient]
    else:
        raise NotFound(f"no agent is called {recipient!r}")
    number = 1 + (tx.db.execute("select max(number) from message where sender = ?", (tx.who.name,)).get or 0)
    tx.db.execute(
        "insert into message(sender, number, recipient, priority, body, at, expires) values(?, ?, ?, ?, ?, ?, ?)",
        (tx.who.name, number, recipient, priority, body, tx.now, expires),
    )
    message = tx.db.last_insert_rowid()
    for receiver in receivers:
        waiting = tx.db.execute(
            "select count(*) from delivery indexed by unread join message on message.id = delivery.message"
            " where agent = ? and read_at is null and (expires is null or expires > ?)",
            (receiver, tx.now),
        ).get
        most = tx.policy.unread(receiver, unread_limit)
        if waiting >= most and recipient != paths.EVERYONE:
            raise OverQuota(f"{receiver} has {waiting} unread messages, the most that are kept")
        tx.db.execute(
            "insert into delivery(agent, number, message)"
            " values(?1, 1 + coalesce((select max(number) from delivery where agent = ?1), 0), ?2)",
            (receiver, message),
        )
        scope = tx.scope_at((paths.MEMORY, paths.PRIVATE, paths.raw(receiver)))
        tx.log("tell", tx.node(PRIVATE), paths.join((paths.TELL, paths.raw(receiver))), scope=scope)
    return {"id": number, "recipients": receivers}


@command
def mark_read(tx: Tx, messages: list[int] | None = None) -> dict[str, Any]:
    """The asker has read these messages (by their number in its mail), or all. {"count"} of those that were unread."""
    tx.who.require("inbox")
    chosen = "" if messages is None else " and number in (select value from json_each(:messages))"
    tx.db.execute(
        f"update delivery indexed by unread set read_at = :now where agent = :agent and read_at is null{chosen}",
        {"now": tx.now, "agent": tx.who.name, "messages": json.dumps(messages)},
    )
    return {"count": tx.db.changes()}
