"""Which files whose text is not their author's own words hold what, so that a copy of one of them is known.

Owns ``node.came``: the CRC-32 of the first block of a file that says where its text came from, null of all others. With
the size it finds the few files that may be the same; whether they are, their bytes say. Called by the commands inside
their transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import apsw

from avmfs.errors import StoreFailed
from avmfs.store.rows import checksums, content
from avmfs.store.schema.tables import BLOCK

SHORTEST: Final = 16
"""Bytes: what is shorter may be the same by chance."""
COMPARED: Final = 256
"""Blocks at least, for one write: files that agree in size and beginning may be any number, and others wait."""
_UNKNOWN: Final = "unknown_copies"  # a setting: no file of an older store has its ``came`` yet
_CAME_FROM: Final = (
    "select id, size, extents from node where kind = 1 and scope in (select id from scope where spec like '%;#%')"
)
_OF_SIZE: Final = "select 1 from node where size = ? and came is not null limit 1"
_SAME: Final = (
    "select id, scope, extents from node"
    " where size = ? and came = ? and parent is not null and (expires is null or expires > ?)"
)


def came(db: apsw.Connection, node: int, size: int, inline: bytes | None = None, *, extents: bool = True) -> int | None:
    """Of the ``inline`` bytes, or of what a node holds. None for what is too short, and for what cannot be read, and so
    cannot be copied."""
    if size < SHORTEST:
        return None
    try:
        return checksums.crc(content.read(db, node, size, extents, 0, BLOCK) if inline is None else inline[:BLOCK])
    except StoreFailed:  # said in the log, and to whoever reads it
        return None


def find(db: apsw.Connection, node: int, size: int, inline: bytes | None, now: int) -> Iterator[tuple[int, bool, int]]:
    """Files that may hold what a node holds, or the ``inline`` bytes: of each its id, whether in extents, its scope."""
    if size < SHORTEST or (inline is None and not db.execute(_OF_SIZE, (size,)).get):
        return
    rows: list[Any] = db.execute(_SAME, (size, came(db, node, size, inline), now)).fetchall()
    yield from ((other, bool(extents), scope) for other, scope, extents in rows if other != node)


def same(
    db: apsw.Connection, node: int, inline: bytes | None, other: int, extents: bool, size: int, most: Iterator[int]
) -> bool:
    """Return whether another file has the bytes of a node in extents, or the ``inline`` ones. From the end, since they
    begin alike; each block takes one of ``most``, and without any left nothing is a copy."""
    for at in reversed(range(0, size, BLOCK)):
        if next(most, None) is None:
            return False
        mine = content.read(db, node, size, True, at, BLOCK) if inline is None else inline[at : at + BLOCK]
        if content.read(db, other, size, extents, at, BLOCK) != mine:
            return False
    return True


def learn(db: apsw.Connection) -> None:
    """Of a store that an older avmfs made, once."""
    if db.execute("select 1 from setting where key = ?", (_UNKNOWN,)).get:
        rows: list[Any] = db.execute(_CAME_FROM).fetchall()
        for node, size, extents in rows:
            db.execute("update node set came = ? where id = ?", (came(db, node, size, extents=extents), node))
        db.execute("delete from setting where key = ?", (_UNKNOWN,))
