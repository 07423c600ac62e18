"""What the search engine asks of this store: postings, statistics, vectors, hits.

Owns the implementation of avmfs.search.index.SearchIndex. Bound to one asker: every number it gives is
computed from what that asker may see, so that nothing in a score tells of anything else (ARCHITECTURE, decision 3).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import apsw
import numpy as np
from numpy.typing import NDArray

from avmfs import paths
from avmfs.access import Principal
from avmfs.node import DISPUTES, Dispute, Hit
from avmfs.store.index.client import IndexClient
from avmfs.store.index.columns import Columns
from avmfs.store.index.passage_columns import PassageColumns
from avmfs.store.index.postings import Postings, phrase
from avmfs.store.index.scan import LocalScanner
from avmfs.store.queries.nodes import Reader
from avmfs.store.schema.tables import ROOT
from avmfs.text import forms

# What the asker may see of the files below a directory (?1), by its scopes (?2) at a time (?3).
_FILES = """with recursive files(id, document) as (
  select id, document from node where id = ?1 union all
  select node.id, node.document from node join files on node.parent = files.id
  where scope in (select value from json_each(?2)) and (expires is null or expires > ?3)) """
# A contradiction is of both sides alike, and ends where one of them supersedes the other.
_DISPUTED = """select other, handle, one, says from (
  select source as other, target as one, link.type as says from json_each(?1) join link on target = value
    where link.type in (?2, ?3)
  union select target, source, link.type from json_each(?1) join link on source = value where link.type = ?3)
  cross join document on document.id = other cross join node on node.id = document.node
  where scope in (select value from json_each(?4)) and (expires is null or expires > ?5) and parent is not null
  and exists (select 1 from document as to_one join node as at_one on at_one.id = to_one.node where to_one.id = one
    and at_one.scope in (select value from json_each(?4)) and (at_one.expires is null or at_one.expires > ?5))
  and not (says = ?3 and exists (select 1 from link as s where s.type = ?2 and (s.source, s.target) in
    ((other, one), (one, other))))
  order by one, says, handle"""
Opener = Callable[[], AbstractContextManager[tuple[apsw.Connection, Reader]]]
Scanner = LocalScanner | IndexClient


class SqliteSearchIndex:
    """See avmfs.search.index.SearchIndex. Each call is its own short read transaction."""

    def __init__(
        self, opener: Opener, who: Principal, scanner: Scanner, catalogue: PassageColumns, aside: str = ""
    ) -> None:
        self._open = opener
        self._aside = aside
        self._who = who
        self._scanner = scanner
        self._catalogue = catalogue

    def table(self) -> Columns:
        with self._open() as (db, reader):
            ids, scopes = reader.visible.searched(self._aside)
            return self._catalogue.visible(db, scopes, ids, reader.now)

    def postings(self, terms: Sequence[str]) -> list[Postings]:
        with self._open() as (db, reader):
            scopes = self._scopes(db, reader)
            known = self._catalogue.postings
            return [known.of(db, [f"{scope}x{form}" for form in forms.of(term) for scope in scopes]) for term in terms]

    def phrase(self, terms: Sequence[str]) -> NDArray[np.int64]:
        with self._open() as (db, reader):
            found: list[int] = []
            for scope in self._scopes(db, reader):
                wanted = phrase([f"{scope}x{term}" for term in (*terms[:-1], forms.of(terms[-1])[0])])
                found += [row[0] for row in db.execute("select rowid from terms where terms match ?", (wanted,))]
            return np.array(sorted(found), np.int64)

    def nearest(
        self, model: str, vector: NDArray[np.float32], k: int, also: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        found = self._scanner.nearest(self._who, model, vector, k, also, self._aside)
        return found.passages, found.cosines

    def hits(self, passages: Sequence[int], under: tuple[bytes, ...]) -> list[Hit]:
        with self._open() as (db, reader):
            tops = searched_below(reader, under, self._aside)
            below = tuple(b"/" if top == ROOT else reader.path(top) + b"/" for top in tops)
            found = self._catalogue.hits.of(db, reader, passages)
            return [hit for hit in map(found.get, passages) if hit is not None and hit.path.startswith(below)]

    def below(self, under: tuple[bytes, ...]) -> frozenset[int] | None:
        if not under:
            return None
        with self._open() as (db, reader):
            rows = db.execute(
                "with recursive below(id, document) as ("
                " select id, document from node where id in (select value from json_each(?1)) union all"
                " select node.id, node.document from node join below on node.parent = below.id"
                " where scope in (select value from json_each(?2)))"
                " select passage.id from below cross join passage on passage.document = below.document",
                (json.dumps(searched_below(reader, under, self._aside)), reader.visible.json),
            )
            return frozenset(row[0] for row in rows)

    def topics(self, under: tuple[bytes, ...]) -> tuple[list[tuple[str, str, int]], int]:
        with self._open() as (db, reader):
            top = _descend(reader, under)
            bound = (top, reader.within(ROOT if top is None else top), reader.now)
            found: list[Any] = db.execute(
                _FILES
                + "select key, min(name), count(*) from files cross join topic on topic.document = files.document"
                " group by key",
                bound,
            ).fetchall()
            files = db.execute(
                _FILES + "select count(*) from files where document in (select document from topic)", bound
            ).get
            return found, int(files)

    def about(self, key: str, under: tuple[bytes, ...], limit: int) -> list[Hit]:
        with self._open() as (db, reader):
            rows = db.execute(
                _FILES + "select passage.id from files cross join topic on topic.document = files.document and key = ?4"
                " join passage on passage.document = files.document and part = 0 join node on node.id = files.id"
                " order by node.mtime desc, passage.id limit ?5",
                (top := _descend(reader, under), reader.within(ROOT if top is None else top), reader.now, key, limit),
            )
            passages = [row[0] for row in rows]
        return self.hits(passages, ())

    def disputed(self, documents: Sequence[int]) -> list[Dispute]:
        if not documents:
            return []
        with self._open() as (db, reader):
            scopes = reader.visible.searched(self._aside)[1]  # what was put aside says nothing any more
            rows = db.execute(_DISPUTED, (json.dumps(documents), *DISPUTES, scopes, reader.now))
            return [Dispute(*row) for row in rows]

    def _scopes(self, db: apsw.Connection, reader: Reader) -> list[int]:
        """Those with words in them that are looked through."""
        rows = db.execute(
            "select scope from scope_stat where passages > 0 and scope in (select value from json_each(?))",
            (reader.visible.searched(self._aside)[1],),
        )
        return [row[0] for row in rows]

    def seq(self) -> int:
        with self._open() as (_, reader):
            newest = reader.changes(ROOT, limit=1)  # the store's own newest would tell how busy others are
            return newest[0].seq if newest else 0


def _descend(reader: Reader, under: tuple[bytes, ...]) -> int | None:
    node = ROOT
    for name in under:
        child = reader.child(node, name)
        if child is None:
            return None
        node = child.id
    return node


def searched_below(reader: Reader, under: tuple[bytes, ...], aside: str) -> list[int]:
    """The directory ``under``, if it is there, and where the archive is looked through (``Visible.searched``) too, what
    mirrors it there."""
    wanted = [under]
    if aside == "archive" and under[:1] in ((), (paths.MEMORY,)):
        first = paths.mirror(under, paths.ARCHIVE)
        space = paths.space(first)
        top = _descend(reader, space)
        names = [] if top is None else [each.name for each in reader.children(top)]
        further = [(*space, name, *first[len(space) :]) for name in names]
        wanted += [each for each in (first, *further) if paths.origin(each) == (under or (paths.MEMORY,))]
    return [top for each in wanted if (top := _descend(reader, each)) is not None]
