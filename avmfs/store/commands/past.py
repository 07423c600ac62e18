"""How much of the past is kept: from when on, which instants by name, and what is forgotten."""

from __future__ import annotations

import bisect
import itertools
from typing import Any

from avmfs import paths
from avmfs.errors import Exists, Invalid, NotFound, OverQuota
from avmfs.store.commands import command
from avmfs.store.rows import content, deltas, kept_versions
from avmfs.store.rows.deltas import Encoding
from avmfs.store.rows.subtree import Subtree
from avmfs.store.schema.tables import ROOT
from avmfs.store.tx.states import restate
from avmfs.store.tx.transaction import Tx

SNAPSHOTS = 256  # of one agent
_DAY_NS = 86_400 * 10**9
_NO_SNAPSHOT = (
    "not exists (select 1 from snapshot where snapshot.root = 1 and snapshot.seq >= since and snapshot.seq < until)"
)
_CARRIED = "select 1 from past where document = ? and since <= ? and until > ? limit 1"


def begin(tx: Tx) -> None:
    """Note from when on the past is known, where it is kept from now on, or no longer."""
    begins = tx.db.execute("select value from setting where key = 'past_from'").get
    if tx.index.past_days and begins is None:
        _keep_from(tx, tx.db.execute("select max(seq) from log").get or 0, tx.now)
    elif begins is not None and not tx.index.past_days:
        tx.db.execute("delete from setting where key = 'past_from'")


def _keep_from(tx: Tx, seq: int, at: int) -> None:
    tx.db.execute("insert or replace into setting(key, value) values('past_from', ?)", (f"{seq} {at}",))


@command
def snapshot(tx: Tx, name: str, root: int = ROOT) -> dict[str, Any]:
    """Give this instant a name; whatever else is forgotten, it stays, of the node ``root`` and what is below it.
    {"name", "at"}. An operator's is everybody's."""
    tx.who.require_itself()
    tx.parts_of(tx.seen(root))  # it is in the tree
    if not paths.SNAPSHOT.fullmatch(name):
        raise Invalid(f"snapshot {name[:80]!r}: a name has up to 64 of a-z, A-Z, 0-9, ., - and _")
    if tx.states is None:
        raise Invalid("no past is kept: limits.past_days is 0")
    agent = "" if tx.who.operator else tx.who.name
    if tx.db.execute("select 1 from snapshot where agent = ? and name = ?", (agent, name)).get:
        raise Exists(f"there is a snapshot {name!r}")
    if tx.db.execute("select count(*) from snapshot where agent = ?", (agent,)).get >= SNAPSHOTS:
        raise OverQuota(f"an agent may have {SNAPSHOTS} snapshots")
    seq = tx.db.execute("select max(seq) from log").get or 0
    tx.db.execute("insert into snapshot values(?, ?, ?, ?, ?)", (agent, name, seq, tx.now, root))
    return {"name": name, "at": tx.now}


@command(frees_space=True)
def remove_snapshot(tx: Tx, name: str) -> dict[str, Any]:
    """What it alone has kept goes with the next ``trim_past``."""
    tx.who.require_itself()
    agent = "" if tx.who.operator else tx.who.name
    tx.db.execute("delete from snapshot where agent = ? and name = ?", (agent, name))
    if not tx.db.changes():
        raise NotFound(f"there is no snapshot {name!r} of yours")
    return {}


@command(durable=False, frees_space=True)
def trim_past(tx: Tx, limit: int = 1000) -> dict[str, Any]:
    """Forget what is older than ``past_days``, or more than ``past_bytes``; all of it while the disk is short. What a
    snapshot has stays. {"more"}: there is more to forget."""
    tx.require_operator()
    begins = tx.db.execute("select value from setting where key = 'past_from'").get
    if begins is None:
        first = (tx.db.execute("select max(seq) from log").get or 0) + 1
    else:
        first = int(str(begins).split()[0])
        wanted = _horizon(tx)
        if wanted > first:
            first = wanted
            _keep_from(tx, first, tx.db.execute("select at from log where seq = ?", (first,)).get or tx.now)
    gone = 0
    partial: list[Any] = tx.db.execute("select distinct seq, root from snapshot where root <> 1 order by 1").fetchall()
    parts = [Subtree(tx.db, *each) for each in partial]
    seqs = [each.seq for each in parts]
    for table, of in (("past", "node, parent"), ("past_version", "document, number")):
        rows = tx.db.execute(
            f"select id, since, until, {of} from {table} where until <= ? and {_NO_SNAPSHOT}", (first,)
        )
        goes = (
            row
            for row, since, until, *what in rows
            if not any(
                _has(tx, part, table, *what)
                for part in parts[bisect.bisect_left(seqs, since) : bisect.bisect_left(seqs, until)]
            )
        )
        for row in list(itertools.islice(goes, limit - gone)):
            if table == "past_version":
                _release(tx, row)
            tx.do(f"delete from {table} where id = ?", (row,))
            gone += 1
    oldest = tx.db.execute("select min(seq) from snapshot").get
    tx.db.execute("delete from past_said where until <= ?", (first if oldest is None else min(first, oldest),))
    return {"more": gone >= limit}


def _has(tx: Tx, part: Subtree, table: str, which: int, where: int) -> bool:
    """Return whether a snapshot of a part has the state of a node in a directory, or the version of a document: that of
    a node whose state is still kept."""
    if table == "past":
        return part.has(which, where)
    return bool(tx.db.execute(_CARRIED, (which, part.seq, part.seq)).get)


def _horizon(tx: Tx) -> int:
    """The change before which nothing but snapshots is to be kept."""
    if tx.states is not None and tx.states.short():
        return int(tx.db.execute("select max(seq) from log").get or 0)
    before = tx.now - tx.index.past_days * _DAY_NS
    oldest: Any = tx.db.execute("select until, (select at from log where seq = until) from past limit 1").fetchone()
    found = 0
    if oldest is not None and (oldest[1] is None or oldest[1] <= before):
        found = tx.db.execute("select max(seq) from log where at <= ? and seq >= ?", (before, oldest[0])).get or 0
    left = tx.index.past_bytes
    rows = tx.db.execute("select until, iif(encoding = 4, size, length(body)) from past_version order by id desc")
    for until, size in rows:
        left -= size or 0
        if left < 0:
            return int(max(found, until))
    return int(found)


def _release(tx: Tx, row: int) -> None:
    """A version goes. The one before it stays if a snapshot has it, and is to stand alone then."""
    version: Any = tx.db.execute("select document, number, encoding, body from past_version where id = ?", (row,))
    document, number, encoding, body = version.fetchone()
    before: Any = tx.db.execute(
        "select encoding from past_version where document = ? and number = ?", (document, number - 1)
    ).get
    if before is not None and not deltas.self_contained(before):
        data = kept_versions.read(tx.db, document, number - 1)
        assert data is not None
        restate(tx.db, document, number - 1, *deltas.keyframe(data))
    if encoding == Encoding.MAP:
        content.release_map(tx.db, body)
