"""Making salvaged rows a whole store again: what is missing is made, placed or dropped, and each loss is noted.

Owns the order of that. A file whose directory is gone goes to lost+found in its owner's private space: nowhere is
anything shown to more agents than before. What a file's bytes, versions and entries speak of each other is made to
agree; what is only derived is due anew. Visibility classes are folded again by the next ``settle``. Called by
``repair``, on a database that nobody else has.
"""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import apsw

from avmfs import paths
from avmfs.node import Kind
from avmfs.store.commands.upkeep import FIXED
from avmfs.store.repair import examine
from avmfs.store.rows import checksums, content, incarnation
from avmfs.store.rows.deltas import Encoding
from avmfs.store.schema import database
from avmfs.store.schema.tables import BLOCK, NOBODYS, PRIVATE
from avmfs.store.tx import random_ids
from avmfs.store.tx.transaction import new_id

NOBODY: Final = "lost-and-found"  # in whose private space is what has no owner any more
FOLDER: Final = b"lost+found"
GAPS: Final = 1_000_000  # rows of the log that are filled in; a forged anchor may name any number

_FILES: Final = f"kind = {int(Kind.FILE)} and parent is not null"
# Rows about what is not there any more.
_TIDY: Final = (
    "delete from hold",
    "delete from extent where node not in (select id from node where extents)",
    "delete from tail where node not in (select id from node where extents)",
    "delete from veil where document not in (select id from document union select document from past_version)",
    "delete from tag where document not in (select id from document)",
    "delete from link where source not in (select id from document) or target not in (select id from document)",
    "delete from mark where subject not in (select id from document union select id from node where kind = 2)",
    "delete from mark where exists (select 1 from document where id = subject and creator = agent)",
    "delete from claim where document not in (select id from document)",
    "delete from consolidated where document not in (select id from document)",
    "delete from delivery where message not in (select id from message)",
    "delete from outbox where subscription not in (select id from subscription)",
    "delete from usage",
    "delete from setting where key in ('policy', 'charged', 'vector_model')",
    "insert or ignore into setting(key, value) values('fence', lower(hex(randomblob(32))))",
    incarnation.BEGUN,
    "insert into outbox_cursor(seq) select newest from (select max(seq) as newest from log)"
    " where not exists (select 1 from outbox_cursor)",
    "update outbox_cursor set seq = min(seq, (select max(seq) from log))",
    "update document set read = min(read, head)",
    "update document set due = turn from (select id as one, row_number() over (order by id) as turn from document)"
    " where one = id",
    "update version set seq = (select max(seq) from log) where seq not in (select seq from log)",
    "insert or ignore into mailbox(agent, number) select agent, max(number) from (select sender as agent, number from"
    " message union all select agent, number from delivery) group by agent",
    "insert or ignore into agent(name, enrolled) select cast(name as text), mtime * 1 from node where parent = 4",
)


# Where a large file has bytes: from and till.
_PIECES: Final = (
    f"select node, n * {BLOCK} as start, n * {BLOCK} + coalesce(length(data), {BLOCK}) as till"
    " from extent left join block on block.id = extent.block"
    " union all select node, at, at + length(data) from tail"
)
_SCOPED: Final = ("node", "log", "veil", "past", "passage", "vector", "topic", "sole", "scope_stat")
_LOST_SCOPES: Final = (
    f"select max(scope) from ({' union all '.join(f'select scope from {table}' for table in _SCOPED)}"
    " union all select json_extract(value, '$[6]') from past_said where what = 'document')"
    f" where scope <> {NOBODYS} and scope not in (select id from scope)"
)


@dataclass(slots=True)
class Losses:
    """What was lost, as lines; ``kept`` are contents that are not what was written, and stay as they are; so many
    changes at the end are ``missing``."""

    missing: int = 0

    gone: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def mend(db: apsw.Connection, known: int, broken: Collection[str] = ()) -> Losses:
    """All of it, in one transaction. ``known`` is the newest row of the log that there was; of the tables ``broken``
    rows may be lost."""
    lost = Losses()
    with database.transaction(db):
        owned = _owned(db)
        stray = [block for (block,) in db.execute("select id from block") if block not in owned]
        for column in ("document", "body"):
            db.execute(f"create index mend_{column} on node({column}) where {column} is not null")
        _log(db, known, lost)
        for number in examine.unreadable_classes(db):
            db.execute("delete from scope where id = ?", (number,))
            lost.gone.append(f"visibility class {number}: nobody sees what the log and the past have of it")
        _entries(db, lost)
        _documents(db, lost)
        _extents(db, stray, lost, gaps=bool(stray) or not {"extent", "tail"}.isdisjoint(broken))
        _bytes(db, lost)
        _versions(db, lost)
        for statement in _TIDY:
            db.execute(statement)
        if "setting" in broken:
            # Whether an earlier avmfs kept nothing for snapshots cannot be told: what there is of them is to be read.
            db.execute("insert or ignore into setting(key, value) values('unkept', '0')")
            if not db.execute("select 1 from setting where key = 'past_from'").get:
                lost.gone.append("since when the past is kept: of before this repair snapshots alone can be seen")
        _blocks(db)
        for column in ("document", "body"):
            db.execute(f"drop index mend_{column}")
    return lost


def _all(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    return db.execute(sql, values).fetchall()


def _note(db: apsw.Connection, seq: int | None, op: str, about: dict[str, Any]) -> None:
    db.execute(
        "insert into log(seq, at, op, agent, node, scope, path, salt, route, about)"
        f" values(?, ?, ?, 'avmfs', 0, {NOBODYS}, x'', ?, 'daemon', ?)",
        (seq, time.time_ns(), op, random_ids.eight(), json.dumps(about, sort_keys=True)),
    )


def _log(db: apsw.Connection, known: int, lost: Losses) -> None:
    """Every number that was ever given has a row: a lost one says so, to the audit alone."""
    first = (db.execute("select max(seq) from checkpoint").get or 0) + 1
    newest = db.execute("select max(seq) from log").get or 0
    lost.missing = max(0, known - newest)
    last = max(newest, known if known - newest <= GAPS else 0)
    there = {seq for (seq,) in db.execute("select seq from log")}
    gaps = [seq for seq in range(first, last + 1) if seq not in there]
    for seq in gaps:
        _note(db, seq, "lost", {})
    if gaps:
        lost.gone.append(f"{len(gaps)} rows of the log, between {gaps[0]} and {gaps[-1]}: what was done is not known")
    _note(db, None, "repair", {"lost_rows": len(gaps), "known": known})


def _entries(db: apsw.Connection, lost: Losses) -> None:
    """Every name stands below a directory. What was unlinked and still open somewhere has no name, and goes."""
    unlinked = "select {} from node where parent is null and id <> 1"
    db.execute(f"delete from body where id in ({unlinked.format('body')})")
    for table in ("extent", "tail"):
        db.execute(f"delete from {table} where node in ({unlinked.format('id')})")
    db.execute(f"delete from node where id in ({unlinked.format('id')})")
    scope = _hidden(db) or db.execute("select id from scope order by id limit 1").get
    db.execute("update node set scope = ? where scope not in (select id from scope)", (scope,))
    now = time.time_ns()
    for fixed in FIXED:
        db.execute(
            "insert or ignore into node(id, parent, name, kind, mode, mtime, ctime, scope)"
            " values(?, ?, ?, 2, 493, ?, ?, ?)",
            (*fixed[:3], now, now, scope),
        )
    stray = _all(
        db,
        "select node.id, name, coalesce(owner, creator, '') from node left join document on document.id = node.document"
        " where parent is not null and parent not in (select id from node where kind = 2)",
    )
    for node, name, owner in stray:
        _place(db, node, bytes(name), owner or NOBODY)
        lost.gone.append(f"the directory of {paths.printable(bytes(name))}: it is at {checksums.path_of(db, node)}")


def _hidden(db: apsw.Connection) -> int | None:
    """Where classes are lost that rows name: one that nobody sees, numbered above all of them. Their numbers are given
    to no other class, so what names one (the log, the past) is hidden as long as it is kept."""
    last = db.execute(_LOST_SCOPES).get
    if last is None and db.execute("select 1 from scope").get:
        return None
    number = 1 + max(last or 0, db.execute("select max(id) from scope").get or 0)
    # A spelling that no class is interned under; of an earlier repair's, too, the number is given to no other.
    db.execute("insert or replace into scope(id, spec) values(?, '*=none;!')", (number,))
    return number


def _directory(db: apsw.Connection, parent: int, name: bytes, owner: str | None) -> int:
    found: Any = db.execute("select id from node where parent = ? and name = ?", (parent, name)).fetchone()
    if found is not None:
        return int(found[0])
    node, now = new_id(), time.time_ns()
    db.execute(
        "insert into node(id, parent, name, kind, mode, mtime, ctime, scope, owner)"
        " select ?, id, ?, 2, 493, ?, ?, scope, ? from node where id = ?",
        (node, name, now, now, owner, parent),
    )
    return node


def _place(db: apsw.Connection, node: int, name: bytes, owner: str) -> None:
    folder = _directory(db, _directory(db, PRIVATE, paths.raw(owner), None), FOLDER, owner)
    taken = db.execute("select 1 from node where parent = ? and name = ? and id <> ?", (folder, name, node)).get
    name = b"%d-%s" % (node, name[:200]) if taken else name
    db.execute(
        "update node set parent = ?, name = ?, owner = coalesce(owner, ?) where id = ?", (folder, name, owner, node)
    )


def _documents(db: apsw.Connection, lost: Losses) -> None:
    """Every file has a document, and every document its file."""
    db.execute(
        "update document set node = (select id from node where document = document.id)"
        " where exists (select 1 from node where node.document = document.id)"
    )
    for document, node in _all(
        db,
        "select id, node from document where id not in (select document from node"
        " where document is not null and parent is not null)",
    ):
        at = db.execute("select path from log where node = ? and path <> x'' order by seq desc limit 1", (node,)).get
        name = paths.printable(bytes(at)) if at else f"a file of which not even the name is left ({document})"
        lost.gone.append(f"{name}: its entry; its bytes, if they are left, are in {NOBODY}'s {FOLDER.decode()}")
        db.execute("delete from document where id = ?", (document,))
    bare = _all(
        db,
        f"select id, coalesce(owner, ?), mtime from node where {_FILES}"
        " and (document is null or document not in (select id from document))",
        (NOBODY,),
    )
    for node, owner, at in bare:
        _document(db, node, owner, at)
        lost.gone.append(
            f"{checksums.path_of(db, node)}: what was said about it; {owner} alone may read it until it is shared"
        )
    heads = _all(
        db,
        "select document.id, head, creator, size, mtime from document join node on node.id = document.node"
        " where head > 0 and not exists (select 1 from version where document = document.id"
        " and number = head)",
    )
    for document, head, creator, size, at in heads:
        _version(db, document, head, creator, size, at)
    db.execute("delete from version where document not in (select id from document)")
    db.execute("delete from version where number > (select head from document where id = document)")


def _document(db: apsw.Connection, node: int, owner: str, at: int) -> None:
    document = new_id()
    number, handle = 1, f"{random_ids.number(40):b}".translate(str.maketrans("01", "ab"))
    db.execute(
        "insert into document(id, node, handle, creator, created, head, shared) values(?, ?, ?, ?, ?, ?, ?)",
        (document, node, handle, owner, at, number, owner),
    )
    db.execute("update node set document = ?, owner = coalesce(owner, ?) where id = ?", (document, owner, node))
    _version(db, document, number, owner, int(db.execute("select size from node where id = ?", (node,)).get), at)


def _version(db: apsw.Connection, document: int, number: int, author: str, size: int, at: int) -> None:
    db.execute(
        "insert or replace into version(document, number, at, author, size, seq, encoding)"
        " values(?, ?, ?, ?, ?, (select max(seq) from log), 0)",
        (document, number, at, author, size),
    )


def _extents(db: apsw.Connection, stray: list[int], lost: Losses, *, gaps: bool) -> None:
    """Large files: bytes that no file names get one, blocks that are not there are holes."""
    nameless = f"select node, max(till) from ({_PIECES}) where node not in (select id from node) group by node"
    for node, size in _all(db, nameless):
        _found(db, b"node-%d" % node, size, node=node)
        lost.gone.append(f"the name of {size} bytes: they are in {NOBODY}'s {FOLDER.decode()}, node-{node}")
    if stray:
        says = f"they are in {NOBODY}'s {FOLDER.decode()}, as block-N"
        lost.gone.append(f"of which files {len(stray)} blocks of up to {BLOCK} bytes are: {says}")
    for block in stray:
        db.execute("insert into body(data, crc) select data, crc from block where id = ?", (block,))
        body = db.last_insert_rowid()
        size = int(db.execute("select length(data) from body where id = ?", (body,)).get)
        _found(db, b"block-%d" % block, size, body=body)
        db.execute("delete from block where id = ?", (block,))
    if gaps:
        _gaps(db, lost)
    for node, n in _all(db, "select node, n from extent where block not in (select id from block)"):
        lost.gone.append(f"{checksums.path_of(db, node)}: bytes {n * BLOCK} to {(n + 1) * BLOCK}, now zeros")
        db.execute("delete from extent where node = ? and n = ?", (node, n))


def _gaps(db: apsw.Connection, lost: Losses) -> None:
    """Where rows that say which blocks a file has are lost, nobody can tell those from its own holes."""
    found: dict[int, list[str]] = {}
    reached: Counter[int] = Counter()
    ends = "select id, size, size from node where extents"
    for node, start, till in db.execute(f"{_PIECES} union all {ends} order by 1, 2"):
        if start > reached[node]:
            found.setdefault(node, []).append(f"{reached[node]} to {start}")
        reached[node] = max(reached[node], till)
    for node, ranges in found.items():
        more = f" and {len(ranges) - examine.SHOWN} more" if len(ranges) > examine.SHOWN else ""
        shown = f"bytes {', '.join(ranges[: examine.SHOWN])}{more}, now zeros: a hole, or lost"
        lost.gone.append(f"{checksums.path_of(db, node)}: {shown}")


def _bytes(db: apsw.Connection, lost: Losses) -> None:
    """Every file has the bytes that it says it has. Those that were not written stay, and are said."""
    for table, key in checksums.wrong(db):
        if table == "version":
            continue
        if table == "past_version":  # older ones are stated against it
            lost.gone += [f"{name}, and those before it" for name in examine.owners(db, table, key)]
            db.execute(
                "delete from past_version where (document, number) in (select older.document, older.number"
                " from past_version as older join past_version as bad on older.document = bad.document"
                " and older.number <= bad.number where bad.id = ?)",
                key,
            )
            continue
        lost.kept += [
            f"{name}: some of its bytes are not those that were written" for name in examine.owners(db, table, key)
        ]
        where = "node = ? and at = ?" if table == "tail" else "id = ?"
        data = db.execute(f"select data from {table} where {where}", key).get
        db.execute(f"update {table} set crc = ? where {where}", (checksums.crc(data), *key))
    gone = _all(
        db,
        "select id, document, kind from node where kind <> 2 and not extents and size > 0"
        " and (body is null or body not in (select id from body))",
    )
    for node, document, kind in gone:
        where = checksums.path_of(db, node)
        if kind == Kind.SYMLINK:
            db.execute("delete from node where id = ?", (node,))
            lost.gone.append(f"{where}: a symlink")
        else:
            back = _go_back(db, node, document)
            lost.gone.append(
                f"{where}: its newest bytes; " + (f"v{back} is there again" if back else "nothing is left")
            )
    db.execute(
        "update node set size = (select length(data) from body where body.id = node.body)"
        " where kind = 1 and not extents and body is not null"
    )
    db.execute(
        "update version set size = (select size from node where node.document = version.document) where encoding = 0"
    )
    for body, data in _all(
        db, "select id, data from body where id not in (select body from node where body is not null)"
    ):
        _found(db, b"body-%d" % body, len(data), body=body)
        lost.gone.append(f"the name of {len(data)} bytes: they are in {NOBODY}'s {FOLDER.decode()}, body-{body}")


def _go_back(db: apsw.Connection, node: int, document: int) -> int | None:
    """The newest version that stands alone becomes the file; its number."""
    rows = _all(
        db,
        "select number, size, encoding, body, crc from version where document = ? and encoding in (1, 4)"
        " order by number desc",
        (document,),
    )
    for number, size, encoding, body, crc in rows:
        if body is None or (crc is not None and checksums.crc(body) != crc):
            continue
        kept = None
        try:
            if encoding == Encoding.MAP:
                blocks = content.unpack_map(body)
                if not all(db.execute("select 1 from block where id = ?", (block,)).get for _, block in blocks):
                    continue
                db.executemany("insert or replace into extent values(?, ?, ?)", ((node, *each) for each in blocks))
            else:
                kept, size = content.set_body(db, None, data := zlib.decompress(body)), len(data)
        except (zlib.error, struct.error):
            continue
        db.execute(
            "update node set body = ?, extents = ?, size = ? where id = ?",
            (kept, int(encoding == Encoding.MAP), size, node),
        )
        db.execute("update document set head = ? where id = ?", (number, document))
        db.execute("delete from version where document = ? and number > ?", (document, number))
        db.execute(
            "update version set encoding = 0, body = null, crc = null where document = ? and number = ?",
            (document, number),
        )
        return int(number)
    db.execute("update node set body = null, size = 0 where id = ?", (node,))
    db.execute("delete from version where document = ? and encoding <> 0", (document,))
    return None


def _found(db: apsw.Connection, name: bytes, size: int, *, body: int | None = None, node: int | None = None) -> None:
    """A file of bytes without one: of a body, or of a node that has extents."""
    extents, node, now = node is not None, node or new_id(), time.time_ns()
    db.execute(
        "insert into node(id, parent, name, kind, mode, size, mtime, ctime, scope, owner, body, extents)"
        " select ?, null, ?, 1, 420, ?, ?, ?, scope, ?, ?, ? from node where id = ?",
        (node, name, size, now, now, NOBODY, body, extents, PRIVATE),
    )
    _place(db, node, name, NOBODY)
    _document(db, node, NOBODY, now)


def _versions(db: apsw.Connection, lost: Losses) -> None:
    """Kept versions follow each other up to the newest: each is stated against the next one."""
    broken: dict[int, int] = {}  # document: up to which number they cannot be read
    for table, key in checksums.wrong(db):
        if table == "version":
            broken[key[0]] = max(broken.get(key[0], 0), key[1])
    numbers: dict[int, list[int]] = {}
    blocks = {block for (block,) in db.execute("select id from block")}
    heads = dict(_all(db, "select id, head from document"))
    for document, number, encoding, body in _all(
        db, "select document, number, encoding, iif(encoding = 4, body, null) from version order by document, number"
    ):
        numbers.setdefault(document, []).append(number)
        holes = body is not None and any(block not in blocks for _, block in content.unpack_map(body))
        if holes or (encoding == Encoding.HEAD and number < heads.get(document, 0)):
            broken[document] = max(broken.get(document, 0), number)
    for document, there in numbers.items():
        gap = max(
            (number - 1 for before, number in zip([0, *there], there, strict=False) if number > before + 1), default=0
        )
        if gap >= there[0]:
            broken[document] = max(broken.get(document, 0), gap)
    for document, number in broken.items():
        node = db.execute("select node from document where id = ?", (document,)).get
        if node is not None:
            lost.gone.append(f"{checksums.path_of(db, node)}: its versions up to v{number}")
        db.execute("delete from version where document = ? and number <= ?", (document, number))


def _owned(db: apsw.Connection) -> Counter[int]:
    """How many owners each block has that has any."""
    owned = Counter(block for (block,) in db.execute("select block from extent"))
    whole = "select body from {} where encoding = 4 and length(body) % 16 = 0"
    for (packed,) in db.execute(f"{whole.format('version')} union all {whole.format('past_version')}"):
        owned.update(block for _, block in content.unpack_map(packed))
    return owned


def _blocks(db: apsw.Connection) -> None:
    """How many owners each block has, from those who own it; one that lost its last one here goes."""
    owned = _owned(db)
    db.execute("delete from shared")
    for block, count in owned.items():
        if count > 1:
            db.execute("insert into shared(block, others) values(?, ?)", (block, count - 1))
    for (block,) in _all(db, "select id from block"):
        if block not in owned:
            db.execute("delete from block where id = ?", (block,))
