"""How much of the past is kept: from when on, which instants by name, and what is forgotten."""

from __future__ import annotations

from typing import Any, Final

from avmfs import paths
from avmfs.errors import Exists, Invalid, NotFound, OverQuota
from avmfs.localtime import DAY_NS
from avmfs.store.commands import command
from avmfs.store.rows import content, deltas, version_visibility
from avmfs.store.rows.deltas import Encoding
from avmfs.store.rows.parts import Parts
from avmfs.store.schema.tables import ROOT
from avmfs.store.tx.states import stand_alone
from avmfs.store.tx.transaction import Tx

SNAPSHOTS = 256  # of one agent
LOOKED: Final = 3000  # rows that a step of trimming looks at, at most
ASKED: Final = 4000  # queries about places in a step
_TABLES: Final = (
    "select id, node, parent, since, until from past where id > ? order by id limit ?",
    "select id, document, since, until from past_version where id > ? order by id limit ?",
    "select distinct document, 0 from past_said where document > ? order by 1 limit ?",
)
_STATES, _VERSIONS, _SAID = range(3)
_CARRIED: Final = "select since, until from past where document = ? and until > ? and since < ?"
_YOUNG: Final = "select seq from log where seq > ? and at > ? order by seq limit 1"


def begin(tx: Tx) -> None:
    """Note from when on the past is known, where it is kept from now on, or no longer."""
    newest = tx.db.execute("select max(seq) from log").get or 0
    begins = tx.db.execute("select value from setting where key = 'past_from'").get
    if begins is None:
        if tx.db.execute("select 1 from snapshot limit 1").get:  # of which an earlier avmfs kept nothing meanwhile
            _note_unkept(tx, newest)
        if tx.index.past_days:
            _keep_from(tx, newest, tx.now)
    elif not tx.index.past_days:
        tx.db.execute("delete from setting where key = 'past_from'")
        _note_unkept(tx, 0)


def _keep_from(tx: Tx, seq: int, at: int) -> None:
    tx.db.execute("insert or replace into setting(key, value) values('past_from', ?)", (f"{seq} {at}",))


def _note_unkept(tx: Tx, seq: int) -> None:
    """Snapshots of before this change may have lost what they had. Said once: from now on what they have is kept."""
    tx.db.execute("insert or ignore into setting(key, value) values('unkept', ?)", (str(seq),))


@command
def snapshot(tx: Tx, name: str, root: int = ROOT) -> dict[str, Any]:
    """Give this instant a name; whatever else is forgotten, it stays, of the node ``root`` and what is below it.
    {"name", "at"}. An operator's is everybody's."""
    tx.who.require_itself()
    tx.parts_of(tx.seen(root))  # it is in the tree
    if not paths.SNAPSHOT.fullmatch(name):
        raise Invalid(f"snapshot {name[:80]!r}: a name has up to 64 of a-z, A-Z, 0-9, ., - and _")
    agent = "" if tx.who.operator else tx.who.name
    if tx.db.execute("select 1 from snapshot where agent = ? and name = ?", (agent, name)).get:
        raise Exists(f"there is a snapshot {name!r}")
    if tx.db.execute("select count(*) from snapshot where agent = ?", (agent,)).get >= SNAPSHOTS:
        raise OverQuota(f"an agent may have {SNAPSHOTS} snapshots")
    seq = tx.db.execute("select max(seq) from log").get or 0
    tx.db.execute("insert into snapshot values(?, ?, ?, ?, ?)", (agent, name, seq, tx.now, root))
    if not tx.index.past_days:
        tx.snapped = True
        _note_unkept(tx, 0)
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
def trim_past(tx: Tx, limit: int = 500) -> dict[str, Any]:
    """A step of forgetting what is older than ``past_days``, or more than ``past_bytes``; all of it while the disk is
    short. What a snapshot has stays. {"more"}: there is more to look at. Others wait for a step: it forgets ``limit``
    rows at most, and where the next one goes on is kept with them."""
    tx.require_operator()
    short = tx.states is not None and tx.states.short()
    told = tx.db.execute("select value from setting where key = 'past_trim'").get
    first, hurried, table, after = map(int, str(told).split()) if told else (0, 0, 0, 0)
    if not told or short > hurried:
        first, hurried, table, after = _begun(tx), int(short), 0, 0
    parts = _parts(tx)
    asked, most = parts.asked + ASKED, limit
    looked = LOOKED
    while table < len(_TABLES) and limit > 0 and looked > 0 and parts.asked < asked:
        rows: list[Any] = tx.db.execute(_TABLES[table], (after, min(looked, 4 * most))).fetchall()
        if not rows:
            table, after = table + 1, 0
        for row, *what in rows:
            if limit <= 0 or parts.asked >= asked:
                break
            after, looked = row, looked - 1
            if table == _SAID:
                oldest = min(first, parts.named[0][0]) if parts.named else first
                tx.db.execute("delete from past_said where document = ? and until <= ?", (row, oldest))
                limit -= tx.db.changes()
            elif what[-1] > first:
                if table == _STATES:  # they are in the order in which they ended
                    table, after = table + 1, 0
                    break
            elif table == _STATES and not parts.has(*what):
                tx.do("delete from past where id = ?", (row,))
                limit -= 1
            elif table == _VERSIONS and not _carried(tx, parts, *what):
                limit -= _release(tx, row)
                tx.do("delete from past_version where id = ?", (row,))
                version_visibility.forget(tx.db, what[:1])
    if more := table < len(_TABLES):
        told = f"{first} {hurried} {table} {after}"
        tx.db.execute("insert or replace into setting(key, value) values('past_trim', ?)", (told,))
    else:
        tx.db.execute("delete from setting where key = 'past_trim'")
        if tx.states is not None:
            tx.states.parts = None
    return {"more": more}


def _begun(tx: Tx) -> int:
    """From which change on the past is to be kept, which is noted."""
    begins = tx.db.execute("select value from setting where key = 'past_from'").get
    if begins is None:
        return int(tx.db.execute("select max(seq) from log").get or 0) + 1
    wanted = _horizon(tx, first := int(str(begins).split()[0]))
    if wanted > first:
        _keep_from(tx, wanted, tx.db.execute("select at from log where seq = ?", (wanted,)).get or tx.now)
    return max(first, wanted)


def _parts(tx: Tx) -> Parts:
    """What snapshots have; what steps before found of it holds for as long as there are the same."""
    named: list[Any] = tx.db.execute("select distinct seq, root from snapshot order by 1").fetchall()
    if tx.states is None:
        return Parts(tx.db, named)
    if tx.states.parts is None or tx.states.parts.named != named:
        tx.states.parts = Parts(tx.db, named)
    return tx.states.parts


def _carried(tx: Tx, parts: Parts, document: int, since: int, until: int) -> bool:
    """Whether a snapshot has a version of a document: the whole tree's, or one at whose instant a state of the node is
    kept, as states that no snapshot has are gone by now."""
    states = tx.db.execute(_CARRIED, (document, since, until))
    return parts.whole(since, until) or any(
        parts.between(max(since, began), min(until, ended)) for began, ended in states
    )


def _horizon(tx: Tx, first: int) -> int:
    """The change before which nothing but snapshots is to be kept; it was ``first`` so far. The last one before the
    first that is young enough: one that was made with the clock set back ends nothing."""
    newest = int(tx.db.execute("select max(seq) from log").get or 0)
    if tx.states is not None and tx.states.short():
        return newest
    before = tx.now - tx.index.past_days * DAY_NS
    young = tx.db.execute(_YOUNG, (first, before)).get
    found = newest if young is None else young - 1
    size = f"iif(encoding = 4, {content.MAPPED}, length(body))"
    over = (tx.db.execute(f"select sum({size}) from past_version").get or 0) - tx.index.past_bytes
    rows = tx.db.execute(f"select until, {size} from past_version order by id")
    while over > 0:
        until, less = next(rows)
        over -= less or 0
        if over <= 0:
            return int(max(found, until))
    return int(found)


def _release(tx: Tx, row: int) -> int:
    """A version goes. The one before it stays if a snapshot has it, and is to stand alone then: that is
    work as of many rows, which are returned; so are blocks."""
    version: Any = tx.db.execute("select document, number, encoding, body from past_version where id = ?", (row,))
    document, number, encoding, body = version.fetchone()
    before: Any = tx.db.execute(
        "select encoding from past_version where document = ? and number = ?", (document, number - 1)
    ).get
    alone = before is not None and not deltas.self_contained(before)
    if alone:
        stand_alone(tx.db, document, number - 1)
    blocks = content.release_map(tx.db, body) if encoding == Encoding.MAP else 0
    return (20 if alone else 1) + blocks // 2
