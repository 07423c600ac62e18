"""The bytes of an old version, whoever asks: of a document that is there, or of what the past has kept of one.

Called by the readers, which decide who may see it, and by what carries versions over into the past. Knows the tables
``version`` and ``past_version``.
"""

from __future__ import annotations

from typing import Any, Final

import apsw

from avmfs import calls
from avmfs.errors import TooBig
from avmfs.store.rows import checksums, content
from avmfs.store.rows.deltas import SAME, Encoding

WHOLE_MAX: Final = 256 * 1024 * 1024
_ALONE = (Encoding.HEAD, Encoding.MAP)
_LATER = (
    "select encoding, body, size, version.crc, node from version join document on id = document"
    " where document = ? and number >= ? order by number",
    "select encoding, body, size, crc, 0 from past_version where document = ? and number >= ? order by number",
)


def read(db: apsw.Connection, document: int, number: int) -> bytes | None:
    """Walks from the asked version towards the newest until a body stands alone, then back. None: it is not kept."""
    rows = _later(db, document, number)
    return None if rows is None else _decoded(db, document, rows)


def whole(db: apsw.Connection, document: int, number: int) -> bytes | None:
    """``read`` for somebody who wants to have all of it at once. Raises TooBig past WHOLE_MAX."""
    began = _began(db, document, number)
    if began is not None and began[0] > WHOLE_MAX:
        raise TooBig(f"v{number} has {began[0]} bytes; versions of up to {WHOLE_MAX >> 20} MiB are read")
    return read(db, document, number)


def read_at(db: apsw.Connection, document: int, number: int, offset: int, length: int) -> bytes | None:
    """A piece of a version; of a large file no other block is looked at."""
    began = _began(db, document, number)
    if began is None:
        return None
    size, (encoding, body, _, _, node) = began
    length = max(0, min(length, size - offset))
    if encoding in _ALONE:
        return _piece(db, document, node, encoding, body, offset, length)
    if encoding == Encoding.SAME:
        document, number = SAME.unpack(body)
        return read_at(db, document, number, offset, length)
    data = read(db, document, number)
    return None if data is None else data[offset : offset + length]


def in_blocks(db: apsw.Connection, document: int, number: int) -> bytes | None:
    """The map of blocks that a version of a large file is, or is the beginning of; None: it is kept otherwise. For who
    may write: what was appended is put into its blocks."""
    began = _began(db, document, number)
    if began is None:
        return None
    size, (encoding, body, _, _, _) = began
    if encoding == Encoding.MAP:
        return content.beginning_of(body, size)
    if encoding == Encoding.HEAD:
        newest, _, extents = _newest_node(db, document)
        return content.beginning_of(content.map_of(db, newest), size) if extents else None
    return None


def _began(db: apsw.Connection, document: int, number: int) -> tuple[int, Any] | None:
    """Of a version its size, and the row that is stated otherwise than as the beginning of the next: its own, or one of
    a version that it is the beginning of. None: it is not kept."""
    size: int | None = None
    for row in _later(db, document, number) or ():
        size = row[2] if size is None else size
        if row[0] != Encoding.PREFIX:
            _, body, _, crc, node = row
            if body is not None:
                checksums.checked(db, node, body, crc)
            return size, row
    return None


def _later(db: apsw.Connection, document: int, number: int) -> Any:
    """A version and those after it, as they are stated; None: it is not kept."""
    for table, later in zip(("version", "past_version"), _LATER, strict=True):
        if db.execute(f"select 1 from {table} where document = ? and number = ?", (document, number)).get:
            return db.execute(later, (document, number))
    return None


def _decoded(db: apsw.Connection, document: int, rows: Any) -> bytes | None:
    chain: list[tuple[int, bytes | None, int]] = []
    data: bytes | None = None
    node = 0
    for encoding, body, size, crc, node in rows:
        if body is not None:
            checksums.checked(db, node, body, crc)
        if encoding in _ALONE:
            # What was only added to since may have become much larger, and mostly holes.
            wanted = chain[-1][2] if chain and chain[-1][0] == Encoding.PREFIX else size
            data = _piece(db, document, node, encoding, body, 0, wanted)
        elif encoding == Encoding.SAME:
            data = read(db, *SAME.unpack(body))
            if data is None:
                return None  # the other document's versions have been trimmed
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


def _piece(
    db: apsw.Connection, document: int, node: int, encoding: int, body: bytes, offset: int, length: int
) -> bytes:
    """A piece of the newest version, or of one that is a map."""
    if encoding == Encoding.MAP:
        return content.read_map(db, node, body, offset, length)
    newest, size, extents = _newest_node(db, document)
    return content.read(db, newest, size, extents, offset, length)


def _newest_node(db: apsw.Connection, document: int) -> tuple[int, int, bool]:
    """The node that has the newest version, its size, and whether its bytes are in extents."""
    row: Any = db.execute(
        "select node.id, size, extents from document join node on node.id = document.node where document.id = ?",
        (document,),
    ).fetchone()
    return row[0], row[1], bool(row[2])
