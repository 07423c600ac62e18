"""Passages as an answer shows them, remembered between questions: one memory per process, for all askers.

Owns a bounded memory of hits and the statement that fetches them. Called by the search index, inside the asker's
snapshot. What an asker may see is judged at every question, by the scope and the expiry that are kept beside each hit.

A hit is made of its document, of the node that carries it and of the directories above. The log tells of every change
to one of these in the same transaction (and ``passage_log`` of what was indexed anew), so both are read up to the
snapshot before anything is answered: what they name is forgotten, and everything is once a directory may have moved.
A snapshot that is older than what is remembered is answered from the database alone. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import apsw

from avmfs.errors import StoreFailed
from avmfs.lru import LRU
from avmfs.node import Hit
from avmfs.store.queries.nodes import Reader
from avmfs.store.rows import checksums, content, log_ops
from avmfs.store.schema.tables import NOBODYS, ROOT
from avmfs.text import sniff
from avmfs.text.passages import cut

KEPT: Final = 8192
"""Passages, a kilobyte each as a rule: half of it text."""
_PLACES: Final = 8192  # directories, and their paths
_MANY: Final = 1024  # rows of a log, above which everything is forgotten
_TEXTS_KEPT: Final = 8
_STILL: Final = log_ops.ops_where(lambda op: op.still)
_NO_PASSAGES: Final = frozenset[int]()
_NEWEST: Final = "select coalesce((select max(seq) from passage_log), 0), coalesce((select max(seq) from log), 0)"
_OLDEST: Final = "select coalesce((select min(seq) from passage_log), 0), coalesce((select min(seq) from log), 0)"
_NEWS: Final = f"""select document, null, '', 1 from (select document from passage_log where seq > ?1 limit {_MANY})
 union all select * from (select document, node, op, scope from log where seq > ?2 limit {_MANY})"""
_HITS: Final = (
    "select passage.id, passage.document, passage.part, passage.start, passage.stop, document.due, node.id,"
    " node.parent, node.name, node.mtime, node.size, node.extents, document.handle, document.created,"
    " document.importance, document.head, coalesce(version.author, document.creator), coalesce(version.route, ''),"
    " body.data, body.crc,"
    " (select group_concat(tag) from (select tag from tag where tag.document = document.id order by tag)),"
    " node.scope, node.expires"
    " from json_each(?1) as wanted cross join passage on passage.id = wanted.value"
    " join document on document.id = passage.document join node on node.id = document.node"
    " left join version on version.document = document.id and version.number = document.head"
    " left join body on body.id = node.body"
    " where node.scope in (select value from json_each(?2)) and node.parent is not null"
    " and (node.expires is null or node.expires > ?3)"
)


class _Kept(NamedTuple):
    hit: Hit
    scope: int
    expires: int | None


class HitCache:
    """See the module."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read = (-1, -1)  # newest of passage_log, newest of log
        self._hits: LRU[int, _Kept] = LRU(KEPT, gone=self._gone)  # by passage
        self._of: dict[int, set[int]] = {}  # passages of a document, and of a node: both ids are random
        self._places: dict[int, bytes] = {}  # paths of directories, without a slash at the end

    def of(self, db: apsw.Connection, reader: Reader, passages: Sequence[int]) -> dict[int, Hit]:
        """Those of ``passages`` that the asker may see and that are in the tree, by passage, as ``db``'s snapshot has
        them."""
        newest: Any = db.execute(_NEWEST).fetchone()
        found: dict[int, Hit] = {}
        with self._lock:
            current = self._catch_up(db, newest)
            for passage in passages if current else ():
                kept = self._hits.get(passage)
                if (
                    kept is not None
                    and kept.scope in reader.visible
                    and (kept.expires is None or kept.expires > reader.now)
                ):
                    found[passage] = kept.hit
            missing = [passage for passage in passages if passage not in found]
            places = self._places if current else {}  # whatever moves one of them binds another dict
        if missing:
            fresh = _fetched(db, reader, missing, places)
            found |= {passage: kept.hit for passage, kept in fresh.items()}
            with self._lock:
                if self._read == newest:
                    self._keep(fresh)
        return found

    def _keep(self, fresh: dict[int, _Kept]) -> None:
        for passage, kept in fresh.items():
            self._hits.put(passage, kept)
            for number in (kept.hit.document, kept.hit.node):
                self._of.setdefault(number, set()).add(passage)
        if len(self._places) > _PLACES:
            self._places = {}

    def _catch_up(self, db: apsw.Connection, newest: tuple[int, int]) -> bool:
        """Forget what has changed since. False: the snapshot is older than what is remembered."""
        if newest == self._read:
            return True
        if newest[0] < self._read[0] or newest[1] < self._read[1]:
            return False
        oldest: Any = db.execute(_OLDEST).fetchone()
        whole = all(read + 1 >= first for read, first in zip(self._read, oldest, strict=True))
        news = db.execute(_NEWS, self._read).fetchall() if whole else []
        if whole and len(news) < _MANY:
            self._forget(news)
        else:
            self._clear()
        self._read = newest
        return True

    def _forget(self, news: list[Any]) -> None:
        gone: set[int] = set()
        for document, node, op, scope in news:
            if scope == NOBODYS and op != log_ops.RULES:
                continue  # for the audit alone
            if document is None and op not in _STILL:
                self._clear()
                return
            gone |= self._of.get(document, _NO_PASSAGES) | self._of.get(node, _NO_PASSAGES)
        for passage in gone:
            self._hits.drop(passage)

    def _gone(self, kept: _Kept) -> None:
        for number in (kept.hit.document, kept.hit.node):
            there = self._of[number]
            there.discard(kept.hit.passage)
            if not there:
                del self._of[number]

    def _clear(self) -> None:
        self._hits.clear()
        self._of, self._places = {}, {}


def _fetched(
    db: apsw.Connection, reader: Reader, passages: Iterable[int], places: dict[int, bytes]
) -> dict[int, _Kept]:
    """By passage id, in one statement and one for each large file and each directory on the way to one that is not
    among ``places``, which learns of it."""
    rows: list[Any] = db.execute(
        _HITS, ("[" + ",".join(map(str, passages)) + "]", reader.visible.json, reader.now)
    ).fetchall()
    texts: LRU[int, tuple[str, list[tuple[int, int]]]] = LRU(_TEXTS_KEPT)
    places[ROOT] = b""
    found = {}
    for row in rows:
        passage, document, part, start, stop, due, node, parent, name, mtime, size, extents = row[:12]
        handle, created, importance, head, author, route, body, crc, tags, scope, expires = row[12:]
        if (place := _place(db, parent, places)) is None:
            continue
        if (known := texts.get(node)) is None:
            try:
                if extents or not size:
                    data = content.read(db, node, size, True, 0, size)
                else:
                    data = checksums.checked(db, node, body, crc)
            except StoreFailed:  # the log says so; the other hits are whole
                continue
            if (text := sniff.decode(data)) is None:
                continue
            known = text, [] if due is None else cut(text)
            texts.put(node, known)
        text, spans = known
        if due is not None:  # the text is newer than its rows of the index, which say where passages of before were
            if part >= len(spans):
                continue
            start, stop = spans[part]
        path, labels = place + b"/" + bytes(name), tuple(tags.split(",")) if tags else ()
        told = (path, handle, author, mtime, created, importance, head, labels)
        whole = start == 0 and stop >= len(text)
        untrusted = reader.visible.untrusted(scope)
        hit = Hit(passage, document, node, *told, text[start:stop], start, stop, whole, route, untrusted)
        found[passage] = _Kept(hit, scope, expires)
    return found


def _place(db: apsw.Connection, directory: int, places: dict[int, bytes]) -> bytes | None:
    """The path of a directory, without a slash at its end; None when it is no longer in the tree. ``places`` are those
    already known, by id."""
    way: list[tuple[int, bytes]] = []
    at = directory
    while at not in places:
        row: Any = db.execute("select parent, name from node where id = ?", (at,)).fetchone()
        if row is None or row[0] is None:
            return None
        way.append((at, bytes(row[1])))
        at = row[0]
    for known, name in reversed(way):
        places[known] = places[at] + b"/" + name
        at = known
    return places[directory]
