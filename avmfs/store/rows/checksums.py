"""Checksums of contents: a CRC-32 beside every piece of a file's bytes, so that a disk's wrong bytes are an error.

Owns what they are held against. SQLite itself checks the structure of its pages, and in the log whole frames, but in
the database not what a row says. Rows of stores that an earlier version wrote have none (null) until the keeper has
come to them, or they are written again. Called by whoever reads or writes contents, and by the examination.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

import apsw

from avmfs import paths
from avmfs.errors import StoreFailed
from avmfs.store.rows import deltas
from avmfs.store.schema import database
from avmfs.store.schema.tables import ROOT

crc = zlib.crc32

TABLES: Final = ("body", "block", "tail", "version")
_COLUMN: Final = {"version": "body", "past_version": "body"}
_MIGRATED: Final = "unsummed"  # a setting: tables of which the keeper has not come to the end
_DEEPEST: Final = 4096  # of a tree that may be a circle


def checked(db: apsw.Connection, node: int, data: bytes | None, expected: int | None) -> bytes:
    """The bytes, as they were written. Raises StoreFailed, naming the file, for others or none."""
    if data is not None and (expected is None or crc(data) == expected):
        return data
    raise damaged(db, node, "its bytes are not there" if data is None else "its bytes are not those that were written")


def damaged(db: apsw.Connection, node: int, what: str) -> StoreFailed:
    """The error, which the log has once."""
    try:
        path = paths.text(_place(db, node))  # as it is: an error escapes it
    except apsw.Error as e:
        path = f"node {node} ({e})"
    return database.damaged(f"damaged: {what}", path)


def decoded(db: apsw.Connection, node: int, encoding: int, body: bytes | None, size: int, newer: bytes) -> bytes:
    """``deltas.decode``, for bytes that may have no checksum. Raises StoreFailed."""
    try:
        return deltas.decode(encoding, body, size, newer)
    except (zlib.error, struct.error, ValueError) as e:
        raise damaged(db, node, f"a version of it cannot be read: {e}") from e


def path_of(db: apsw.Connection, node: int) -> str:
    """For a person, as far up as it can be followed."""
    return paths.printable(_place(db, node))


def _place(db: apsw.Connection, node: int) -> bytes:
    names: list[bytes] = []
    at: int | None = node
    while at is not None and at != ROOT and len(names) < _DEEPEST:
        row: Any = db.execute("select parent, name from node where id = ?", (at,)).fetchone()
        if row is None:
            break
        at = row[0]
        names.append(bytes(row[1]))
    return paths.join(tuple(reversed(names)))


def wrong(db: apsw.Connection) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Every piece whose bytes are others: its table, and its key there. In slices, so that no reader stays for long."""
    for table in (*TABLES, "past_version"):
        data = _COLUMN.get(table, "data")
        key = {"tail": "node, at", "version": "document, number"}.get(table, "id")
        parts = key.split(", ")
        after: tuple[Any, ...] = (-(1 << 63),) * len(parts)
        while True:
            rows: list[Any] = db.execute(
                f"select {data}, crc, {key} from {table} where ({key}) > ({', '.join('?' * len(parts))})"
                f" order by {key} limit 256",
                after,
            ).fetchall()
            yield from ((table, row[2:]) for row in rows if row[1] is not None and crc(row[0] or b"") != row[1])
            if not rows:
                break
            after = rows[-1][2:]


def fill(db: apsw.Connection, most: int) -> bool:
    """Give contents of an older store their checksums, about ``most`` bytes at once; whether there may be more."""
    found = db.execute("select value from setting where key = ?", (_MIGRATED,)).get
    if found is None:
        return False
    table, _, after = str(found).partition(" ")
    rows: list[Any] = db.execute(
        f"select id, data, crc from {table} where id > ? order by id limit 1024", (int(after or 0),)
    ).fetchall()
    for id_, data, known in rows:
        if known is None:
            db.execute(f"update {table} set crc = ? where id = ?", (crc(data), id_))
        after, most = id_, most - len(data)
        if most <= 0:
            break
    if not rows and table == TABLES[1]:
        db.execute("delete from setting where key = ?", (_MIGRATED,))
        return False
    value = f"{table} {after}" if rows else TABLES[1]
    db.execute("update setting set value = ? where key = ?", (value, _MIGRATED))
    return True
