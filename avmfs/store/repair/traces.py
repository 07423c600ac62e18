"""Where a text still is, in any file of a store: for the proof that something has been forgotten.

Owns the search. Every file below the data directory is read as it is, deflated pieces unpacked; and the database is
asked row by row, for what lies across its pages: all columns of all tables, contents and old versions whole, and terms
of the words' index, in which a text is as single stems. Changes nothing; beside a daemon or without one. Called by the
command of the store's owner; who may run it can read the files anyway.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import apsw

from avmfs.errors import NotFound
from avmfs.store.repair.examine import FrozenStore
from avmfs.store.rows import content, kept_versions
from avmfs.store.rows.deltas import Encoding
from avmfs.store.schema.tables import BLOCK
from avmfs.text import segment

_PIECE: Final = 1 << 20
_DEFLATED: Final = tuple(bytes((window << 4 | 8,)) for window in range(1, 8))  # how a zlib stream begins: RFC 1950, 2.2
_UNPACKED: Final = 1 << 26


@dataclass(frozen=True, slots=True)
class Trace:
    """``where``: an offset, or a table and column, a term or version."""

    file: str
    where: str


def of(database: Path, text: str) -> Iterator[Trace]:
    """Every place where these characters are, as UTF-8, or as JSON writes them. Raises NotFound where no store is:
    that they are nowhere in it would prove nothing."""
    if not database.exists():
        raise NotFound("there is no store", os.fspath(database))
    forms = _forms(text)
    for path in sorted(each for each in database.parent.rglob("*") if each.is_file() and not each.is_symlink()):
        name = str(path.relative_to(database.parent))
        yield from (Trace(name, where) for where in _in_bytes(path.read_bytes(), forms))
    with contextlib.closing(FrozenStore(database, False)) as store, store.connection() as (db, _):
        yield from (Trace(database.name, where) for where in _in_rows(db, text, forms))


def in_bytes(data: bytes, text: str) -> Iterator[str]:
    """Every place in them where these characters are."""
    return _in_bytes(data, _forms(text))


def _forms(text: str) -> set[bytes]:
    return {text.encode(), json.dumps(text)[1:-1].encode()}


def _in_bytes(data: bytes, forms: set[bytes]) -> Iterator[str]:
    for start in range(0, len(data), _PIECE):
        for form in forms:
            if (found := data.find(form, max(start + 1 - len(form), 0), start + _PIECE)) >= 0:
                yield f"byte {found}"
    for begin in _DEFLATED:
        found = data.find(begin)
        while found >= 0:
            if int.from_bytes(data[found : found + 2], "big") % 31 == 0 and _unpacks(data, found, forms):
                yield f"deflated, byte {found}"
            found = data.find(begin, found + 1)


def _unpacks(data: bytes, at: int, forms: set[bytes]) -> bool:
    unpacker, whole = zlib.decompressobj(), b""
    with contextlib.suppress(zlib.error):
        while at < len(data) and not unpacker.eof and len(whole) < _UNPACKED:
            whole += unpacker.decompress(data[at : at + 4096])  # what comes before damage counts
            at += 4096
    return any(form in whole for form in forms)


def _in_rows(db: apsw.Connection, text: str, forms: set[bytes]) -> Iterator[str]:
    tables: list[Any] = db.execute("select name from sqlite_schema where type = 'table' and rootpage > 0").fetchall()
    for (table,) in tables:
        columns: list[Any] = db.execute(f'pragma table_info("{table}")').fetchall()
        for _, column, *_ in columns:
            for form in forms:
                if db.execute(f'select 1 from "{table}" where instr(cast("{column}" as blob), ?) limit 1', (form,)).get:
                    yield f"table {table}, {column}"
    reach = max(map(len, forms)) - 1  # of a block, into the one before it
    large: list[Any] = db.execute("select id, size from node where extents").fetchall()
    for node, size in large:
        starts = [n * BLOCK for n, _ in content.pack_rows(db, node)]
        starts += [at for (at,) in db.execute("select at from tail where node = ?", (node,))]
        pieces: Iterator[bytes] = (
            content.read(db, node, size, True, max(0, at - reach), BLOCK + reach) for at in starts
        )
        if any(form in piece for piece in pieces for form in forms):
            yield f"contents of node {node}"
    for table in ("version", "past_version"):
        versions: list[Any] = db.execute(
            f"select document, number, iif(encoding = {int(Encoding.MAP)}, body, null) from {table}"
            " where body is not null"
        ).fetchall()
        for document, number, packed in versions:
            if packed is None:
                pieces = iter([kept_versions.read(db, document, number) or b""])
            else:
                starts = [n * BLOCK for n, _ in content.unpack_map(packed)]
                pieces = (content.read_map(db, 0, packed, max(0, at - reach), BLOCK + reach) for at in starts)
            if any(form in piece for piece in pieces for form in forms):
                yield f"{table} {number} of document {document}"
    terms, passages = set(segment.terms(text)), None
    for term in terms:
        rows = db.execute(
            "select posting.doc from scope join posting on posting.term = scope.id || 'x' || ?", (term,)
        ).fetchall()
        having = {passage for (passage,) in rows}
        passages = having if passages is None else passages & having
    if passages:
        yield f"words of {len(passages)} passages"
