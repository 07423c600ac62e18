"""The bytes of a node: inline bodies, blocks, holes, appended tails.

Owns the tables body, extent, block, shared and tail. Called by the write commands inside a transaction and by
readers on their own connection. Knows nothing of versions but that a block may have several owners.

An edit is a tuple: ("w", offset, data) writes, ("t", size) truncates or extends with a hole, ("g", size) extends with a
hole what is shorter, ("z", offset, end) makes zeros of what there is. The last two leave alone what others have added
since they were asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import apsw

from avmfs import calls
from avmfs.errors import TooBig
from avmfs.store.rows import checksums
from avmfs.store.schema.tables import BLOCK, INLINE_LIMIT

Edit = tuple[Literal["w"], int, bytes | bytearray] | tuple[Literal["t", "g"], int] | tuple[Literal["z"], int, int]
SIZE_LIMIT = 1 << 46
TAIL_FROM = 2048  # a file smaller than this is rewritten whole by an append: it costs no more
TAIL_PIECE = 16 * 1024  # a piece from this size on goes into its block at once
TAIL_PIECES = 64  # so many, or so many bytes, are folded into their block
TAIL_BYTES = 32 * 1024
_PAIR = struct.Struct(">QQ")


def size_after(size: int, edits: Iterable[Edit]) -> int:
    """The size that a file of ``size`` bytes has after the edits. Raises TooBig past SIZE_LIMIT."""
    for edit in edits:
        if edit[0] == "t":
            size = edit[1]
        elif edit[0] != "z":
            size = max(size, edit[1] + (len(edit[2]) if edit[0] == "w" else 0))
        check_size(size)
    return size


def check_size(size: int) -> None:
    """Raises TooBig past SIZE_LIMIT."""
    if size > SIZE_LIMIT:
        raise TooBig(f"a file may have {SIZE_LIMIT} bytes")


def only_appends(size: int, edits: Iterable[Edit]) -> bool:
    """Return whether the first ``size`` bytes stay as they are."""
    return all(edit[0] == "g" or edit[1] >= size for edit in edits)


def overlay(base: bytes, offset: int, length: int, size: int, edits: Sequence[Edit]) -> bytes:
    """``length`` bytes at ``offset`` of a file of ``size`` bytes, of which ``base`` was read there, after the
    edits. What lies past the end is not returned."""
    length = max(0, min(length, size_after(size, edits) - offset))
    piece = bytearray(base[:length].ljust(length, b"\0"))
    for edit in edits:
        if edit[0] == "t":
            kept = max(0, edit[1] - offset)
            piece[kept:] = bytes(max(0, length - kept))
        elif edit[0] == "z":
            start, stop = (min(max(0, at - offset), length) for at in edit[1:])
            _paste(piece, start, bytes(max(0, stop - start)))
        elif edit[0] == "w":
            _paste(piece, edit[1] - offset, edit[2])
    return bytes(piece)


def read(db: apsw.Connection, node: int, size: int, extents: bool, offset: int, length: int) -> bytes:
    """At most ``length`` bytes from ``offset``; empty at or past the end."""
    length = min(length, size - offset)
    if length <= 0:
        return b""
    if not extents:
        row: Any = db.execute(
            "select data, crc from node left join body on body.id = node.body where node.id = ?", (node,)
        ).fetchone()
        return b"" if row is None else checksums.checked(db, node, *row)[offset : offset + length]
    first, last = offset // BLOCK, (offset + length - 1) // BLOCK
    piece = bytearray(length)
    rows = db.execute(
        "select n, data, crc from extent left join block on block.id = extent.block"
        " where node = ? and n between ? and ?",
        (node, first, last),
    )
    for n, data, crc in rows:
        _paste(piece, n * BLOCK - offset, checksums.checked(db, node, data, crc))
    rows = db.execute("select at, data, crc from tail where node = ? and at < ?", (node, offset + length))
    for at, data, crc in rows:
        _paste(piece, at - offset, checksums.checked(db, node, data, crc))
    return bytes(piece)


def seek(db: apsw.Connection, node: int, size: int, extents: bool, offset: int, *, hole: bool) -> int | None:
    """Where the first data, or the first hole, from ``offset`` on begins; None when there is no data any more. The
    end of file counts as a hole. A hole is a block that is not there."""
    if not extents:
        return size if hole else offset
    appended = db.execute("select min(at) from tail where node = ?", (node,)).get  # from there on all is data
    first = offset // BLOCK
    if not hole:
        n: Any = db.execute("select n from extent where node = ? and n >= ? order by n limit 1", (node, first)).get
        found = [] if n is None else [n * BLOCK]
        found += [] if appended is None else [appended]
        return max(offset, min(found)) if found else None
    if appended is not None and offset >= appended:
        return size
    if db.execute("select 1 from extent where node = ? and n = ?", (node, first)).get is None:
        return offset
    n = db.execute(
        "select n + 1 from extent as here where node = ?1 and n >= ?2"
        " and not exists (select 1 from extent where node = ?1 and n = here.n + 1) order by n limit 1",
        (node, first),
    ).get
    return size if appended is not None and n * BLOCK >= appended else int(min(size, n * BLOCK))


def read_map(db: apsw.Connection, node: int, packed: bytes, offset: int, length: int) -> bytes:
    """``length`` bytes from ``offset`` of an old version of a node's, kept as a map of blocks."""
    piece = bytearray(length)
    for n, block in unpack_map(packed):
        if offset < (n + 1) * BLOCK and n * BLOCK < offset + length:
            calls.go_on()
            _paste(piece, n * BLOCK - offset, _block(db, node, block))
    return bytes(piece)


@dataclass(frozen=True, slots=True)
class Applied:
    """What a node's bytes are after an edit. ``inline`` are all of them, unless they are in extents. ``body``: the row
    that has them, which the node's is to name."""

    size: int
    inline: bytes | None
    body: int | None = None

    @property
    def extents(self) -> bool:
        return self.inline is None


def apply(db: apsw.Connection, node: int, before: Applied, edits: Sequence[Edit]) -> Applied:
    """Apply the edits to the stored bytes as they were ``before``."""
    size, inline, body = before.size, before.inline, before.body
    if inline is not None and (whole := _whole(size, edits)) is not None:
        return Applied(len(whole), whole, set_body(db, body, whole))
    final = peak = size
    for edit in edits:
        final = size_after(final, (edit,))
        peak = max(peak, final)
    if inline is not None:
        if peak <= INLINE_LIMIT:
            data = overlay(inline, 0, final, size, edits)
            return Applied(final, data, set_body(db, body, data))
        set_body(db, body, b"")
        _write_blocks(db, node, 0, inline)
    else:
        _fold(db, node)
    for edit in edits:
        if edit[0] == "w":
            _write_blocks(db, node, edit[1], edit[2])
        elif edit[0] == "z" and edit[2] < size:
            _zero(db, node, edit[1], edit[2])
        elif edit[0] == "t" or (edit[0] == "z" and edit[1] < size):
            _truncate(db, node, edit[1])
        size = size_after(size, (edit,))
    if final <= INLINE_LIMIT:
        data = read(db, node, final, True, 0, final)
        release_extents(db, node)
        return Applied(final, data, set_body(db, None, data))
    return Applied(final, None)


def _whole(size: int, edits: Sequence[Edit]) -> bytes | None:
    """The bytes of a small file of which nothing stays but what is written at once, as most are."""
    if edits and edits[0] == ("t", 0):
        size, edits = 0, edits[1:]
    if size or len(edits) != 1 or edits[0][0] != "w":
        return None
    _, at, data = edits[0]
    return bytes(data) if at == 0 and len(data) <= INLINE_LIMIT else None


def small_append(size: int, edits: Sequence[Edit]) -> bytes | None:
    """The piece, if this is a case for ``append``."""
    if size < TAIL_FROM or len(edits) != 1 or edits[0][0] != "w":
        return None
    _, at, data = edits[0]
    return bytes(data) if at == size and 0 < len(data) < TAIL_PIECE else None


def append(db: apsw.Connection, node: int, before: Applied, data: bytes) -> Applied:
    """Add a small piece at the end, at the cost of the piece: every so often all of them go into their block."""
    size = before.size
    size_after(size, [("w", size, data)])
    if before.inline is not None:
        set_body(db, before.body, b"")
        _write_blocks(db, node, 0, before.inline)
    db.execute("insert into tail(node, at, data, crc) values(?, ?, ?, ?)", (node, size, data, checksums.crc(data)))
    row: Any = db.execute("select count(*), min(at) from tail where node = ?", (node,)).fetchone()
    if row[0] >= TAIL_PIECES or size + len(data) - row[1] >= TAIL_BYTES:
        _fold(db, node)
    return Applied(size + len(data), None)


MAPPED: Final = f"length(body) / {_PAIR.size} * {BLOCK}"  # what the blocks of a map take up, in SQL


def take_map(db: apsw.Connection, node: int) -> bytes:
    """The node's blocks as a version map; each block gets one owner more."""
    return own_map(db, map_of(db, node))


def map_of(db: apsw.Connection, node: int) -> bytes:
    """The node's blocks as a map."""
    _fold(db, node)
    return b"".join(_PAIR.pack(n, block) for n, block in pack_rows(db, node))


def beginning_of(packed: bytes, size: int) -> bytes:
    """The map of the first ``size`` bytes."""
    return b"".join(_PAIR.pack(n, block) for n, block in unpack_map(packed) if n * BLOCK < size)


def own_map(db: apsw.Connection, packed: bytes) -> bytes:
    """Give each block of the map one owner more. Returns the map."""
    owned = "insert into shared values(?, 1) on conflict(block) do update set others = others + 1"
    db.executemany(owned, ((block,) for _, block in unpack_map(packed)))
    return packed


def release_map(db: apsw.Connection, packed: bytes) -> int:
    """Returns how many blocks have an owner less."""
    blocks = unpack_map(packed)
    for _, block in blocks:
        _disown(db, block)
    return len(blocks)


def release_extents(db: apsw.Connection, node: int, most: int = -1) -> int:
    """Drop the bytes of a large file; of its blocks the first ``most``. Returns how many those were."""
    rows = pack_rows(db, node, most)
    for _, block in rows:
        _disown(db, block)
    if rows:
        db.execute("delete from extent where node = ? and n <= ?", (node, rows[-1][0]))
    db.execute("delete from tail where node = ?", (node,))
    return len(rows)


def release(db: apsw.Connection, node: int) -> None:
    """Drop every byte of a node, whose row is next to go."""
    release_extents(db, node)
    db.execute("delete from body where id = (select body from node where id = ?)", (node,))


def pack_rows(db: apsw.Connection, node: int, most: int = -1) -> list[tuple[int, int]]:
    return list(db.execute("select n, block from extent where node = ? order by n limit ?", (node, most)))


def unpack_map(packed: bytes) -> list[tuple[int, int]]:
    return [(n, block) for n, block in _PAIR.iter_unpack(packed)]


def _paste(target: bytearray, at: int, data: bytes | bytearray) -> None:
    """Lay ``data`` over ``target`` at ``at``, which may be negative, without growing it."""
    start = max(at, 0)
    stop = max(start, min(at + len(data), len(target)))
    target[start:stop] = data[start - at : stop - at]


def set_body(db: apsw.Connection, body: int | None, data: bytes) -> int | None:
    """Put small contents where they were, or into a row of their own; which one it is now, for the node's row."""
    if not data:
        if body is not None:
            db.execute("delete from body where id = ?", (body,))
        return None
    db.execute("insert or replace into body(id, data, crc) values(?, ?, ?)", (body, data, checksums.crc(data)))
    return db.last_insert_rowid() if body is None else body


def _fold(db: apsw.Connection, node: int) -> None:
    """Put what was appended into its blocks."""
    rows: list[Any] = db.execute("select at, data, crc from tail where node = ? order by at", (node,)).fetchall()
    if rows:
        whole = b"".join(checksums.checked(db, node, data, crc) for _, data, crc in rows)
        _write_blocks(db, node, rows[0][0], whole)  # first: its block may be damaged, and the pieces stay
        db.execute("delete from tail where node = ?", (node,))


def _write_blocks(db: apsw.Connection, node: int, offset: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        n, at = divmod(offset, BLOCK)
        piece = bytes(view[: BLOCK - at])
        _put(db, node, n, at, piece)
        offset += len(piece)
        view = view[len(piece) :]


def _put(db: apsw.Connection, node: int, n: int, at: int, piece: bytes) -> None:
    held = db.execute("select block from extent where node = ? and n = ?", (node, n)).get
    if len(piece) < BLOCK:
        old = bytearray((b"" if held is None else _block(db, node, held)).ljust(at, b"\0"))
        old[at : at + len(piece)] = piece
        piece = bytes(old)
    if held is not None and not db.execute("select 1 from shared where block = ?", (held,)).get:
        db.execute("update block set data = ?, crc = ? where id = ?", (piece, checksums.crc(piece), held))
        return
    if held is not None:
        _disown(db, held)
    db.execute("insert into block(data, crc) values(?, ?)", (piece, checksums.crc(piece)))
    db.execute("insert or replace into extent(node, n, block) values(?, ?, ?)", (node, n, db.last_insert_rowid()))


def _block(db: apsw.Connection, node: int, block: int) -> bytes:
    row: Any = db.execute("select data, crc from block where id = ?", (block,)).fetchone()
    return checksums.checked(db, node, *(row or (None, None)))


def _truncate(db: apsw.Connection, node: int, size: int) -> None:
    n, keep = divmod(size, BLOCK)
    gone: list[Any] = db.execute(
        "select block from extent where node = ? and n >= ?", (node, n if not keep else n + 1)
    ).fetchall()
    for (block,) in gone:
        _disown(db, block)
    db.execute("delete from extent where node = ? and n >= ?", (node, n if not keep else n + 1))
    if keep:
        held = db.execute("select block from extent where node = ? and n = ?", (node, n)).get
        data = b"" if held is None else _block(db, node, held)
        if len(data) > keep:
            _disown(db, held)
            db.execute("insert into block(data, crc) values(?, ?)", (data[:keep], checksums.crc(data[:keep])))
            db.execute("update extent set block = ? where node = ? and n = ?", (db.last_insert_rowid(), node, n))


def _zero(db: apsw.Connection, node: int, start: int, end: int) -> None:
    """Zeros before the end of file: where a whole block is to have them, there is none."""
    held: list[Any] = db.execute(
        "select n, block from extent where node = ? and n between ? and ?",
        (node, start // BLOCK, (end - 1) // BLOCK),
    ).fetchall()
    for n, block in held:
        at, stop = max(0, start - n * BLOCK), min(BLOCK, end - n * BLOCK)
        if stop - at < BLOCK:
            _put(db, node, n, at, bytes(stop - at))
        else:
            _disown(db, block)
            db.execute("delete from extent where node = ? and n = ?", (node, n))


def _disown(db: apsw.Connection, block: int) -> None:
    others = db.execute("select others from shared where block = ?", (block,)).get
    if others is None:
        db.execute("delete from block where id = ?", (block,))
    elif others == 1:
        db.execute("delete from shared where block = ?", (block,))
    else:
        db.execute("update shared set others = others - 1 where block = ?", (block,))
