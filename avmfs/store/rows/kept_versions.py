"""The bytes of an old version, whoever asks: of a document that is there, or of what the past has kept of one.

Called by the readers, which decide who may see it, and by what carries versions over into the past. Knows the tables
``version`` and ``past_version``.
"""

from __future__ import annotations

from typing import Any

import apsw

from avmfs import calls
from avmfs.store.rows import checksums, content
from avmfs.store.rows.deltas import SAME, Encoding

_LATER = (
    "select encoding, body, size, version.crc, node from version join document on id = document"
    " where document = ? and number >= ? order by number",
    "select encoding, body, size, crc, 0 from past_version where document = ? and number >= ? order by number",
)


def read(db: apsw.Connection, document: int, number: int) -> bytes | None:
    """Walks from the asked version towards the newest until a body stands alone, then back. None: it is not kept."""
    for table, later in zip(("version", "past_version"), _LATER, strict=True):
        if db.execute(f"select 1 from {table} where document = ? and number = ?", (document, number)).get:
            return _decoded(db, document, db.execute(later, (document, number)))
    return None


def _decoded(db: apsw.Connection, document: int, rows: Any) -> bytes:
    chain: list[tuple[int, bytes | None, int]] = []
    data: bytes | None = None
    node = 0
    for encoding, body, size, crc, node in rows:
        if body is not None:
            checksums.checked(db, node, body, crc)
        if encoding == Encoding.HEAD:
            data = _newest(db, document)
        elif encoding == Encoding.SAME:
            data = read(db, *SAME.unpack(body))
        elif encoding == Encoding.MAP:
            data = content.read_map(db, node, body, size)
        elif encoding == Encoding.ZLIB:
            data = checksums.decoded(db, node, encoding, body, size, b"")
        else:
            # The beginning of a beginning is one: a log file's thousand versions are a single step.
            if not (encoding == Encoding.PREFIX and chain and chain[-1][0] == Encoding.PREFIX):
                chain.append((encoding, body, size))
            continue
        break
    if data is None:
        raise checksums.damaged(db, node, "a version that others are stated against is not there")
    for encoding, body, size in reversed(chain):
        calls.go_on()
        data = checksums.decoded(db, node, encoding, body, size, data)
    return data


def _newest(db: apsw.Connection, document: int) -> bytes:
    row: Any = db.execute(
        "select node.id, size, extents from document join node on node.id = document.node where document.id = ?",
        (document,),
    ).fetchone()
    return content.read(db, row[0], row[1], bool(row[2]), 0, row[1])
