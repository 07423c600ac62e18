"""Keeping the store in order: first rows, changed rules, passed ttls, bytes nobody holds."""

from __future__ import annotations

from typing import Any

from avmfs import paths
from avmfs.node import Kind
from avmfs.store.commands import command, indexing, mirroring, namespace, past, renaming
from avmfs.store.rows import api_keys, checksums, content, copies, hash_chain
from avmfs.store.rows.stored_policy import publish
from avmfs.store.schema import tables
from avmfs.store.tx import quota
from avmfs.store.tx.transaction import Tx

VECTOR_LOG_KEPT = 100_000
FREED = 1000  # blocks and files in one transaction: SQLite reads nearly all of a block that goes, and others wait
FREED_SHORT = 32  # each takes some two pages of the log, for which there is little room then

_ORPHAN = "select 1 from node where id = ? and parent is null and id <> ?"

FIXED = (
    (tables.ROOT, None, b"", ()),
    (tables.MEMORY, tables.ROOT, paths.MEMORY, (paths.MEMORY,)),
    (tables.SHARED, tables.MEMORY, paths.SHARED, (paths.MEMORY, paths.SHARED)),
    (tables.PRIVATE, tables.MEMORY, paths.PRIVATE, (paths.MEMORY, paths.PRIVATE)),
    (tables.TRASH, tables.ROOT, paths.TRASH, (paths.TRASH,)),
    (tables.ARCHIVE, tables.ROOT, paths.ARCHIVE, (paths.ARCHIVE,)),
    (tables.INDEX, tables.ROOT, paths.INDEX, (paths.INDEX,)),
    (tables.INDEX_PRIVATE, tables.INDEX, paths.PRIVATE, (paths.INDEX, paths.PRIVATE)),
)


@command(frees_space=True)
def settle(tx: Tx) -> dict[str, Any]:
    """Before anybody serves: make the directories that every tree has, and where the rules have changed since, fold all
    scopes anew and queue what is to be indexed now, or no longer. {"rescoped"}."""
    tx.require_operator()
    for node, parent, name, parts in FIXED:
        tx.db.execute(
            "insert or ignore into node(id, parent, name, kind, mode, mtime, ctime, scope) values(?,?,?,?,?,?,?,?)",
            (node, parent, name, int(Kind.DIRECTORY), 0o755, tx.now, tx.now, tx.scope_at(parts)),
        )
    publish(tx.db, tx.policy)
    copies.learn(tx.db)
    past.begin(tx)
    quota.recount(tx)
    indexing.follow_rules(tx)
    digest = tx.db.execute("select value from setting where key = 'policy'").get
    if digest == tx.policy.digest:
        return {"rescoped": False}
    # Areas of keys that were revoked come apart again. Those of keys that have expired by now may be needed yet: where
    # the clock is ahead, as before the first NTP, it is set right.
    api_keys.forget_areas(tx.db, api_keys.idle_areas(tx.db, 0))
    tx.known.read_areas(tx.db)
    tx.known.moved = True
    tx.db.execute("update node set scope = ? where id = ?", (tx.scope_at(()), tables.ROOT))
    tops: list[Any] = tx.db.execute("select id, name from node where parent = ?", (tables.ROOT,)).fetchall()
    for top, name in tops:
        renaming.rescope(tx, tx.node(top), (bytes(name),))
    mirroring.follow_patterns(tx, [pattern for pattern, *_ in tx.policy.live])
    tx.db.execute("insert or replace into setting(key, value) values('policy', ?)", (tx.policy.digest,))
    tx.events.append(("rules", tables.ROOT, None, b""))
    tx.note("policy", about=hash_chain.packed({"digest": tx.policy.digest}))
    return {"rescoped": True}


@command(repeatable=True, only_syncs=True)
def sync(tx: Tx) -> dict[str, Any]:
    """Nothing but a reply that waits for the disk, and with it for everything committed so far."""
    return {}


@command(durable=False, frees_space=True)
def reap_expired(tx: Tx, limit: int = 256) -> dict[str, Any]:
    """Remove nodes whose ttl has passed; every route stopped showing them then. {"reaped"}."""
    tx.require_operator()
    rows: list[Any] = tx.db.execute(
        "select id from node where expires <= ? and parent is not null limit ?", (tx.now, limit)
    ).fetchall()
    for (node,) in rows:
        found = tx.node(node)
        if found.parent is not None:
            namespace.remove(tx, tx.node(found.parent), found)
    return {"reaped": len(rows)}


@command(durable=False, frees_space=True)
def reap_orphans(tx: Tx, nodes: list[int]) -> dict[str, Any]:
    """Free the bytes of unlinked files that, the caller knows, no mount holds open. {"reaped", "more"}: ask again for
    the same ones; of a large file the first blocks may be gone by then."""
    tx.require_operator()
    reaped, left = 0, FREED if tx.spacious else FREED_SHORT
    for node in nodes:
        if left > 0 and tx.db.execute(_ORPHAN, (node, tables.ROOT)).get:
            freed = content.release_extents(tx.db, node, left)
            if freed < left:
                content.release(tx.db, node)
                tx.db.execute("delete from node where id = ?", (node,))
                tx.db.execute("delete from hold where node = ?", (node,))
                reaped += 1
            left -= freed + 1
    return {"reaped": reaped, "more": left <= 0}


@command(frees_space=True)
def reap_all_orphans(tx: Tx) -> dict[str, Any]:
    """At the start of a daemon no mount is up yet: nothing can hold an unlinked file open. Of many, or large ones, the
    keeper frees the rest. {"reaped", "more"}."""
    tx.require_operator()
    rows = tx.db.execute("select id from node where parent is null and id <> ?", (tables.ROOT,)).fetchall()
    reaped: dict[str, Any] = reap_orphans(tx, [node for (node,) in rows])
    return reaped


@command(durable=False, repeatable=True, frees_space=True)
def hold(tx: Tx, holder: bytes, nodes: list[int]) -> dict[str, Any]:
    """A mount still has these unlinked files open: renew its leases on them. One that is gone already is left out."""
    for node in nodes:
        tx.db.execute(
            "insert or replace into hold(node, holder, at) select id, ?, ? from node where id = ? and parent is null",
            (holder, tx.now, node),
        )
    return {}


@command(durable=False, frees_space=True)
def forget_clients(tx: Tx, before: int) -> dict[str, Any]:
    """Drop the kept replies of clients that have been silent since ``before`` (ns)."""
    tx.require_operator()
    tx.db.execute("delete from applied where at < ?", (before,))
    for kept in ("vector_log", "passage_log"):
        newest = tx.db.execute(f"select max(seq) from {kept}").get or 0
        tx.db.execute(f"delete from {kept} where seq <= ?", (newest - VECTOR_LOG_KEPT,))
    return {}


@command(durable=False)
def sum_contents(tx: Tx, most: int = 4 * 1024 * 1024) -> dict[str, Any]:
    """Give contents that an older avmfs wrote their checksums, about ``most`` bytes of them at once. {"more"}."""
    tx.require_operator()
    return {"more": checksums.fill(tx.db, most)}
