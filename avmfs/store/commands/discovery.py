"""What agents let others learn of them, and the digests of it: their own store's and other hosts'.

A digest holds only what everybody may learn. What an agent no longer lets be learnt leaves with the change of its
mode, in the same transaction; housekeeping then makes the digest anew.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from avmfs import paths
from avmfs.access import PRIVACY, UNSAID
from avmfs.errors import Denied, Invalid, NotFound
from avmfs.store.commands import command
from avmfs.store.schema.tables import PRIVATE
from avmfs.store.tx.transaction import Tx

HOSTS_KNOWN = 1024
DIGESTS_PER_HOST = 100_000
_US = 1000  # ns


@command
def set_privacy(tx: Tx, mode: str, agent: str | None = None) -> dict[str, Any]:
    """How much others may learn of what this agent alone may read: its own mode, for an operator anybody's.
    {"agent", "mode"}. Raises Denied, Invalid, NotFound for an agent that is not known."""
    tx.who.require_itself()
    whose = tx.who.name if agent is None else tx.agent(agent)
    if mode not in PRIVACY:
        raise Invalid(f"privacy {mode!r}: expected one of {', '.join(PRIVACY)}")
    if whose != tx.who.name and not tx.who.operator:
        raise Denied(f"what others learn of {whose} is for {whose} or an operator to say")
    if not tx.is_agent(whose):
        raise NotFound(f"no agent is called {whose!r}")
    before = tx.db.execute("select mode from privacy where agent = ?", (whose,)).get or UNSAID
    if before == mode:
        return {"agent": whose, "mode": mode}
    tx.db.execute("delete from privacy where agent = ?", (whose,))
    tx.db.execute("delete from revealed where agent = ?", (whose,))
    if mode != UNSAID:
        tx.db.execute("insert into privacy(agent, mode) values(?, ?)", (whose, mode))
        tx.db.execute(
            "insert into revealed(key, document, agent, name)"
            " select topic.key, topic.document, ?1, topic.name from topic"
            " where topic.scope in (select scope from sole where agent = ?1)",
            (whose,),
        )
    for published in ("" if "existence" in (before, mode) else whose, whose):
        _publish(tx, own_host(tx), [(published, b"")], only_known=True)
    _count(tx, "privacy_state")
    place = (paths.MEMORY, paths.PRIVATE, paths.raw(whose))
    tx.log("privacy", tx.node(PRIVATE), paths.join(place), scope=tx.scope_at(place))
    return {"agent": whose, "mode": mode}


@command(durable=False)
def publish_digests(tx: Tx, digests: list[list[Any]], privacy: int) -> dict[str, Any]:
    """The digests of this store are now these, [agent, bits] each; what is not among them is withdrawn. Only what
    differs gets another version. Nothing is done where modes are others than ``privacy``, the number when these were
    made: one may be stricter, and holds. {"changed"}."""
    tx.require_operator()
    if _number(tx, "privacy_state") != privacy:
        return {"changed": 0}
    host = own_host(tx)
    given = {agent for agent, _ in digests}
    left: list[Any] = tx.db.execute("select agent from digest where host = ?", (host,)).fetchall()
    withdrawn = [(agent, b"") for (agent,) in left if agent not in given]
    return {"changed": _publish(tx, host, [*((agent, bits) for agent, bits in digests), *withdrawn])}


@command(durable=False)
def name_host(tx: Tx, name: str | None) -> dict[str, Any]:
    """What other hosts call this one (None: as before), and that it lives. {"host"}."""
    tx.require_operator()
    host = own_host(tx)
    tx.db.execute("update digest_host set name = coalesce(?, name), alive = ? where host = ?", (name, tx.now, host))
    return {"host": host}


@command(durable=False)
def merge_digests(
    tx: Tx, host: str, name: str, alive: int, after: int, version: int, digests: list[list[Any]]
) -> dict[str, Any]:
    """Take over another host's digests, [agent, version, bits] in order of version: all from ``after`` up to
    ``version``. What is known already is left, and all of it where something before it is missing. {"merged"}. Raises
    Invalid for what is about this host itself."""
    tx.require_operator()
    known = tx.db.execute("select version, own from digest_host where host = ?", (host,)).fetchone()
    if known is not None and known[1]:
        raise Invalid("another host speaks for this one")
    if known is None and tx.db.execute("select count(*) from digest_host").get >= HOSTS_KNOWN:
        raise Invalid(f"{HOSTS_KNOWN} hosts are known already")
    reached, merged = (0 if known is None else known[0]), 0
    if reached < after:  # forgotten since it was asked for
        return {"merged": 0}
    for agent, number, bits in digests:
        if number <= reached:
            continue
        tx.db.execute(
            "insert or replace into digest(host, agent, version, bits) values(?, ?, ?, ?)", (host, agent, number, bits)
        )
        merged += 1
    if tx.db.execute("select count(*) from digest where host = ?", (host,)).get > DIGESTS_PER_HOST:
        raise Invalid(f"more than {DIGESTS_PER_HOST} digests of one host")
    tx.db.execute(
        "insert into digest_host(host, name, version, alive) values(?1, ?2, ?3, ?4) on conflict(host) do update set"
        " name = iif(alive <= ?4, ?2, name), version = max(version, ?3), alive = max(alive, ?4)",
        (host, name, version, alive),
    )
    _count(tx, "digest_state")
    return {"merged": merged}


@command(durable=False, frees_space=True)
def forget_hosts(tx: Tx, before: int) -> dict[str, Any]:
    """Drop what is known of other hosts that have not been alive since ``before`` (ns). {"forgotten"}."""
    tx.require_operator()
    gone = [row[0] for row in tx.db.execute("select host from digest_host where alive < ? and own = 0", (before,))]
    for host in gone:
        tx.db.execute("delete from digest where host = ?", (host,))
        tx.db.execute("delete from digest_host where host = ?", (host,))
    if gone:
        _count(tx, "digest_state")
    return {"forgotten": len(gone)}


def own_host(tx: Tx) -> str:
    """The random name of this store among hosts, made when it is first asked for."""
    found: str | None = tx.db.execute("select host from digest_host where own = 1").get
    if found is None:
        found = secrets.token_hex(8)
        tx.db.execute(
            "insert into digest_host(host, name, version, alive, own) values(?, ?, 0, ?, 1)", (found, found[:8], tx.now)
        )
    return found


def _publish(tx: Tx, host: str, digests: Sequence[tuple[str, bytes]], only_known: bool = False) -> int:
    """Give those that differ from what is there the next versions; how many did."""
    version = tx.db.execute("select version from digest_host where host = ?", (host,)).get
    changed = 0
    for agent, bits in digests:
        before = tx.db.execute("select bits from digest where host = ? and agent = ?", (host, agent)).get
        if before == bits or (only_known and before is None):
            continue
        version, changed = max(version + 1, tx.now // _US), changed + 1
        tx.db.execute(
            "insert or replace into digest(host, agent, version, bits) values(?, ?, ?, ?)", (host, agent, version, bits)
        )
    if changed:
        tx.db.execute("update digest_host set version = ? where host = ?", (version, host))
        _count(tx, "digest_state")
    return changed


def _count(tx: Tx, state: str) -> None:
    """Another number, for those who remember what they derived."""
    tx.db.execute("insert or replace into setting(key, value) values(?, ?)", (state, str(_number(tx, state) + 1)))


def _number(tx: Tx, state: str) -> int:
    return int(tx.db.execute("select value from setting where key = ?", (state,)).get or 0)
