"""From a damaged database into a new one: every row of every table that can still be read.

Owns which tables are salvaged and which are made anew, and how rows find their table again. Works on an image without a
log, by pages and not by SQL: SQLite gives up a whole tree for one page of it. Rows whose tree is lost are known by the
shape of their values; what a later step cannot place is in the copy that the repair keeps. Called by ``repair``.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import apsw
from avmfs_config.agent_id import AGENT_ID

from avmfs.store.repair.btree import INDEX_LEAF, TABLE_LEAF, Pages
from avmfs.store.schema import database
from avmfs.store.schema import tables as schema

# What is made from the rest.
DERIVED: Final = frozenset(
    {
        "passage",
        "passage_log",
        "scope_stat",
        "topic",
        "revealed",
        "vector",
        "vector_log",
        "semantic_queue",
        "unindexed",
        "ended",
        "usage",
        "sole",
        "shared",
        "chain",
    }
)
_Rows = list[tuple[int, list[Any]]]
EARLIEST: Final = 1_500_000_000 * 10**9  # ns: 2017, before there was a store
_ADDED: Final = r"alter table {} add column"
_TYPES: Final = {"int": (int,), "integer": (int,), "text": (str,), "blob": (bytes, str), "real": (int, float)}


@dataclass(frozen=True, slots=True)
class Table:
    """``stored`` are the columns in the order of a record, with (types, may be null, default), the first ``oldest`` of
    them those of the oldest version; ``alias`` is the one that is the rowid, ``by_key`` a table without rowid."""

    name: str
    stored: dict[str, tuple[tuple[type, ...], bool, Any]]
    alias: str | None
    by_key: bool
    oldest: int

    def row(self, rowid: int, values: list[Any]) -> list[Any] | None:
        """The row's values in the order of ``stored``; None when it cannot be one of this table."""
        if len(values) > len(self.stored):
            return None
        whole = []
        for place, (name, (types, null, default)) in enumerate(self.stored.items()):
            value = values[place] if place < len(values) else default
            if name == self.alias and value is None:
                value = rowid
            if not (null if value is None else isinstance(value, types)):
                return None
            whole.append(value)
        return whole


def salvage(image: Path, to: Path) -> tuple[Counter[str], set[str], list[str]]:
    """Make the database ``to`` from what the image has: rows by table, the tables of which some may be lost, and what
    could not be read, as lines."""
    pages = Pages(image)
    younger = "\n".join(schema.MIGRATIONS)
    descriptor = os.open(to, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.close(descriptor)
    saved: Counter[str] = Counter()
    with contextlib.closing(apsw.Connection(os.fspath(to))) as db:
        database.run(db, f"pragma application_id = {schema.APPLICATION_ID}; pragma synchronous = off")
        with database.transaction(db):
            database.run(db, schema.TABLES)
            database.run(db, f"pragma user_version = {schema.VERSION}; delete from setting; delete from outbox_cursor")
        known = {name: _table(db, name, len(re.findall(_ADDED.format(name), younger))) for name in _names(db)}
        tables = {name: table for name, table in known.items() if name not in DERIVED}
        roots = _roots(pages)
        broken = set(tables) - set(roots)
        for name, table in tables.items():
            before = len(pages.bad)
            saved[name] += _insert(db, table, pages.walk(roots[name])) if name in roots else 0
            if len(pages.bad) > before:
                broken.add(name)
        notes = [f"{len(pages.bad)} pages could not be read"] if pages.bad else []
        if broken:
            for name in roots.keys() - tables.keys():  # of what is made anew: no row is looked for there
                for _ in pages.walk(roots[name]):
                    pass
            lost = broken | (known.keys() - tables.keys() - roots.keys())  # a page may be of what is made anew
            strays, unknown = _strays(pages, [known[name] for name in sorted(lost)])
            for name in strays.keys() & tables.keys():
                saved[name] += _insert(db, tables[name], strays[name])
            for table, rows in _of_one_shape(db, unknown):
                saved[table.name] += _insert(db, table, rows)
            if left := sum(len(rows) for fitting, rows in unknown if not any(table.by_key for table in fitting)):
                notes.append(f"{left} rows belong to no table that is known")
        # Rows that are older than checksums are given theirs by housekeeping.
        db.execute("insert or ignore into setting(key, value) values('unsummed', 'body')")
        db.execute("pragma synchronous = full")
    return saved, broken, notes


def _names(db: apsw.Connection) -> list[str]:
    names = db.execute("select name from sqlite_schema where type = 'table' and sql not like 'create virtual%'")
    return [name for (name,) in names if not name.startswith(("terms", "posting", "sqlite_"))]


def _table(db: apsw.Connection, name: str, added: int) -> Table:
    columns = {
        row[0]: row
        for row in db.execute('select name, type, "notnull", dflt_value, pk from pragma_table_info(?)', (name,))
    }
    by_key = bool(db.execute("select wr from pragma_table_list(?)", (name,)).get)
    order = list(columns)
    if by_key:
        key = db.execute("select name from pragma_index_list(?) where origin = 'pk'", (name,)).get
        order = [row[0] for row in db.execute("select name from pragma_index_xinfo(?) order by seqno", (key,))]
    alias = next((n for n, row in columns.items() if row[4] and row[1].lower() == "integer" and not by_key), None)
    stored = {
        n: (
            _TYPES.get(columns[n][1].lower(), (int, float, str, bytes)),
            not columns[n][2] and n != alias,
            None if columns[n][3] is None else db.execute(f"select {columns[n][3]}").get,
        )
        for n in order
    }
    return Table(name, stored, alias, by_key, len(stored) - added)


def _roots(pages: Pages) -> dict[str, int]:
    """Root pages by the name of a table or index: from the schema's own tree, or from wherever its rows stand."""
    found = _schema_rows(pages.walk(1))
    if pages.bad or not found:
        for number in range(1, pages.count + 1):
            if number not in pages.seen and pages.kind(number) == TABLE_LEAF:
                rows = list(_schema_rows(pages.rows(number)).items())
                found.update(row for row in rows if row[0] not in found)
    return {name: root for name, root in found.items() if 1 < root <= pages.count}


def _schema_rows(rows: Iterable[tuple[int, list[Any]]]) -> dict[str, int]:
    return {
        values[1]: values[3]
        for _, values in rows
        if len(values) == 5
        and values[0] in ("table", "index")
        and isinstance(values[1], str)
        and type(values[3]) is int
    }


def _strays(pages: Pages, tables: list[Table]) -> tuple[dict[str, _Rows], list[tuple[list[Table], _Rows]]]:
    """Rows of pages that no tree reaches, by the table of which all of a page's could be; and pages of tables that
    could be of several, or of none."""
    free = pages.free()
    found: dict[str, _Rows] = {}
    unknown: list[tuple[list[Table], _Rows]] = []
    for number in range(2, pages.count + 1):
        if number in pages.seen or number in free or (kind := pages.kind(number)) not in (TABLE_LEAF, INDEX_LEAF):
            continue
        bad = len(pages.bad)
        rows = list(pages.rows(number))
        if len(pages.bad) > bad and not rows:
            continue
        fitting = [
            table
            for table in tables
            if table.by_key == (kind == INDEX_LEAF) and rows and all(_could_be(table, *row) for row in rows)
        ]
        if len(fitting) == 1:
            found.setdefault(fitting[0].name, []).extend(rows)
        elif kind == TABLE_LEAF or fitting:
            unknown.append((fitting, rows))
    return found, unknown


def _of_one_shape(db: apsw.Connection, waiting: list[tuple[list[Table], _Rows]]) -> Iterator[tuple[Table, _Rows]]:
    """Pages that could be of several tables, each with that by which most of its rows are named: rows that have their
    place by then say so, and each that is placed may say more. Those that are given leave ``waiting``."""
    while waiting:
        named = _named(db)
        placed = []
        for at, (fitting, rows) in enumerate(waiting):
            for table in fitting:
                if table.name in named and sum(named[table.name](*row) for row in rows) * 2 > len(rows):
                    placed.append(at)
                    yield table, rows
                    break
        if not placed:
            return
        waiting[:] = [page for at, page in enumerate(waiting) if at not in placed]


def _named(db: apsw.Connection) -> dict[str, Callable[[int, list[Any]], bool]]:
    """Whether a row of a table is one that other rows name."""
    rows: list[Any] = db.execute("select body, size from node where body is not null").fetchall()
    bodies = dict(rows)
    blocks, large, documents, areas = (
        {each for (each,) in db.execute(f"select {column}")}
        for column in (
            "block from extent",
            "id from node where extents",
            "id from document",
            "value from api_key, json_each(iif(json_valid(areas), areas, '[]'))",
        )
    )
    return {
        "area": lambda rowid, values: rowid in areas and values[1][:1] == b"/",
        "body": lambda rowid, values: bodies.get(rowid) == len(values[1]),
        "block": lambda rowid, values: rowid in blocks,
        "extent": lambda rowid, values: values[0] in large,
        "veil": lambda rowid, values: values[0] in documents,
    }


def _could_be(table: Table, rowid: int, values: list[Any]) -> bool:
    # A migration rewrites no row: each has the columns that its table had when it was last written.
    if len(values) < table.oldest or table.row(rowid, values) is None:
        return False
    if table.name == "agent" and not (AGENT_ID.fullmatch(values[0]) and EARLIEST < values[1] <= time.time_ns()):
        return False  # of an index: a handle or a tag, and the id of what has it
    for value, (name, (types, _, _)) in zip(values, table.stored.items(), strict=False):
        # A rowid stands outside its record; and SQLite takes a text for bytes, but we write none there.
        if (name == table.alias and value is not None) or (value and isinstance(value, str) and bytes in types):
            return False
    return True


def _insert(db: apsw.Connection, table: Table, rows: Iterable[tuple[int, list[Any]]]) -> int:
    columns = ", ".join(f'"{name}"' for name in table.stored)
    sql = f"insert or ignore into {table.name}({columns}) values({', '.join('?' * len(table.stored))})"
    count = 0
    with database.transaction(db):
        for each in rows:
            if (row := table.row(*each)) is not None:
                db.execute(sql, row)
                count += db.changes()
    return count
