"""What the search engine asks of this store: postings, statistics, vectors, hits.

Owns the implementation of avmfs.search.index.SearchIndex. Bound to one asker: every number it gives is
computed from what that asker may see, so that nothing in a score tells of anything else (DESIGN 3.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import apsw
import numpy as np
from numpy.typing import NDArray

from avmfs.access import Principal
from avmfs.errors import NotFound
from avmfs.node import Hit
from avmfs.store import content
from avmfs.store.reader import SqliteReader
from avmfs.store.scanning import Scanner
from avmfs.store.schema import ROOT
from avmfs.text import sniff

_TEXTS_KEPT = 8
Opener = Callable[[], AbstractContextManager[tuple[apsw.Connection, SqliteReader]]]


class SqliteSearchIndex:
    """See avmfs.search.index.SearchIndex. Each call is its own short read transaction."""

    def __init__(self, opener: Opener, who: Principal, scanner: Scanner) -> None:
        self._open = opener
        self._who = who
        self._scanner = scanner

    def postings(self, term: str) -> NDArray[np.int64]:
        with self._open() as (db, reader):
            found = [
                row[0]
                for scope in sorted(reader.visible.ids)
                for row in db.execute("select doc from posting where term = ?", (f"{scope}x{term}",))
            ]
        return np.array(found, np.int64)

    def lengths(self, passages: NDArray[np.int64]) -> NDArray[np.float32]:
        with self._open() as (db, _):
            known = dict(
                db.execute(
                    "select id, len from passage where id in (select value from json_each(?))",
                    ("[" + ",".join(map(str, passages.tolist())) + "]",),
                )
            )
        return np.array([known.get(passage, 1) for passage in passages.tolist()], np.float32)

    def corpus(self) -> tuple[int, int]:
        with self._open() as (db, reader):
            row: Any = db.execute(
                "select coalesce(sum(passages), 0), coalesce(sum(terms), 0) from scope_stat"
                " where scope in (select value from json_each(?))",
                (reader.visible.json,),
            ).fetchone()
        return int(row[0]), int(row[1])

    def nearest(
        self, model: str, vector: NDArray[np.float32], k: int, also: NDArray[np.int64], within: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        found = self._scanner.nearest(self._who, model, vector, k, also, within)
        return found.passages, found.cosines

    def hits(self, passages: Sequence[int], under: tuple[bytes, ...]) -> list[Hit]:
        with self._open() as (db, reader):
            top = _descend(reader, under)
            if top is None:
                return []
            texts: dict[int, str | None] = {}
            found = (_hit(db, reader, passage, texts) for passage in passages)
            prefix = b"" if top == ROOT else reader.path(top)
            return [hit for hit in found if hit is not None and hit.path.startswith(prefix + b"/")]

    def below(self, under: tuple[bytes, ...]) -> frozenset[int] | None:
        if not under:
            return None
        with self._open() as (db, reader):
            top = _descend(reader, under)
            if top is None:
                return frozenset()
            rows = db.execute(
                "with recursive below(id, document) as ("
                " select id, document from node where id = ?1 union all"
                " select node.id, node.document from node join below on node.parent = below.id"
                " where scope in (select value from json_each(?2)))"
                " select passage.id from below cross join passage on passage.document = below.document",
                (top, reader.visible.json),
            )
            return frozenset(row[0] for row in rows)

    def seq(self) -> int:
        with self._open() as (_, reader):
            newest = reader.changes(ROOT, limit=1)  # the store's own newest would tell how busy others are
            return newest[0].seq if newest else 0


def _descend(reader: SqliteReader, under: tuple[bytes, ...]) -> int | None:
    node = ROOT
    for name in under:
        child = reader.child(node, name)
        if child is None:
            return None
        node = child.id
    return node


def _hit(db: apsw.Connection, reader: SqliteReader, passage: int, texts: dict[int, str | None]) -> Hit | None:
    """``texts`` keeps what was decoded of the last few files: a large one has many passages."""
    row = db.execute(
        "select passage.document, passage.start, passage.stop, node.id, node.extents from passage"
        " join document on document.id = passage.document join node on node.id = document.node where passage.id = ?",
        (passage,),
    ).fetchone()
    if row is None:
        return None
    document, start, stop, number, extents = row
    try:
        node = reader.node(number)
        path = reader.path(number)
    except NotFound:
        return None
    if number not in texts:
        while len(texts) >= _TEXTS_KEPT:
            del texts[next(iter(texts))]
        texts[number] = sniff.decode(content.read(db, node.id, node.size, bool(extents), 0, node.size))
    if (text := texts[number]) is None:
        return None
    about = reader.document(node)
    return Hit(
        passage, document, node.id, path, about.handle, about.author, node.mtime, about.created, about.importance,
        about.head, tuple(reader.tags(document)), text[start:stop], start, stop, start == 0 and stop >= len(text),
    )  # fmt: skip
