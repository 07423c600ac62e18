"""The derived indexes: draining the queues that writes fill.

Lexical rows are made here, in the writer's idle time or before a search that needs them. Vectors
are computed elsewhere and put here. Both are always rebuildable from the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from avmfs import paths
from avmfs.errors import StoreFailed
from avmfs.node import Kind, Node
from avmfs.store.commands import command, versions
from avmfs.store.rows import content, vector_model
from avmfs.store.rows.nodes import NODE_JOINED, node_of
from avmfs.store.schema.tables import ROOT
from avmfs.store.tx.transaction import Tx
from avmfs.text import passages, segment, sniff, speech, topics

DRAIN_BYTES = 256 * 1024
"""A transaction indexes no more text than this (or one document): some 60 ms, for which every writer waits."""

HURRY_BYTES = 16 * 1024
"""Of a step that nobody asked for: some 5 ms."""

_EMBEDDED = "passage.scope not in (select id from scope where spec like '%;~index%')"
"""An index of code is found by words: a project has more passages than all notes, and names are no sentences."""

NOT_TEXT = "not text"

WAITING = "select (select count(*) from document where due is not null) + (select count(*) from ended)"
_PASSAGES = "(select count(*) from passage where passage.document = {})"
_ENDED = f"select document, 0, {_PASSAGES.format('ended.document')} from ended limit ?"
_TO_INDEX = (
    f"select {NODE_JOINED}, extents, data, user from document join node on node.id = document.node"
    " left join body on body.id = node.body where document.id = ?"
)
_IN_TURN = (
    f"select document.id, coalesce(size, 0), {_PASSAGES.format('document.id')} from document"
    " left join node on node.id = document.node where due is not null order by due limit ?"
)
# Each file, with why it is not indexed, but for those whose turn comes anyway.
_IN_PLACE = (
    "with recursive directory(id) as"
    f" (select {ROOT} union all select node.id from directory cross join node on parent = directory.id where kind = 2)"
    " select parent, name, size, node.document, reason from directory cross join node on parent = directory.id"
    " join document on document.id = node.document left join unindexed on unindexed.document = node.document"
    " where due is null"
)


@command(durable=False, repeatable=True, uses_reserve=True)
def drain_lexical(tx: Tx, limit: int = 64, hurry: bool = False) -> dict[str, Any]:
    """Index up to ``limit`` queued documents, or remove the index rows of ended ones, fewer when they are large; with
    ``hurry`` no more than takes a few milliseconds. {"done", "left"}."""
    waiting, gone = _next(tx, limit, HURRY_BYTES if hurry else DRAIN_BYTES)
    # First all that goes, in the order of its rows: between rows that come, FTS5 would write a segment for
    # each (fts5_index.c, sqlite3Fts5IndexBeginWrite). What was done meanwhile for an ended one's vectors goes as well.
    told = versions.drop_index(tx, waiting + gone)
    for document in gone:
        tx.do("delete from semantic_queue where document = ?", (document,))
        tx.do("delete from ended where document = ?", (document,))
    counts: list[tuple[int, int, int]] = []
    for document in waiting:
        counts += _index(tx, document, document in told)
        tx.do("update document set due = null where id = ?", (document,))
        tx.known.queued.discard(document)
    versions.count_terms(tx, counts)
    return {"done": len(waiting) + len(gone), "left": tx.db.execute(WAITING).get}


def _next(tx: Tx, limit: int, most: int) -> tuple[list[int], list[int]]:
    """Documents to index, and ended ones, of ``most`` bytes together, or one. What was indexed costs as much to remove.
    First those whose words somebody may be waiting for."""
    waiting: list[int] = []
    gone: list[int] = []
    for found, question in ((waiting, _IN_TURN), (gone, _ENDED)):
        rows: list[Any] = tx.db.execute(question, (limit - len(waiting),)).fetchall()
        for document, size, parts in rows:
            most -= passages.SHORTEST * parts + (size if size <= tx.index.max_bytes else 0)
            if most < 0 and (waiting or gone):
                return waiting, gone
            found.append(document)
    return waiting, gone


@command(durable=False)
def put_vectors(tx: Tx, model: str, vectors: list[list[Any]]) -> dict[str, Any]:
    """Store [passage id, float32 bytes] pairs. A passage that was re-indexed meanwhile is left out. {"stored"}."""
    tx.require_operator()
    stored, documents = 0, set()
    for passage, data in vectors:
        row = tx.db.execute("select document, scope from passage where id = ?", (passage,)).fetchone()
        if row is None:
            continue
        tx.db.execute(
            "insert or replace into vector(id, document, scope, model, data) values(?, ?, ?, ?, ?)",
            (passage, row[0], row[1], model, data),
        )
        tx.db.execute("insert into vector_log(id) values(?)", (passage,))
        documents.add(row[0])
        stored += 1
    for document in documents:
        settle_semantic(tx, model, document)
    return {"stored": stored}


@command(durable=False)
def skip_vectors(tx: Tx, documents: list[int], model: str) -> dict[str, Any]:
    """Take documents off the semantic queue that have nothing (left) to embed."""
    tx.require_operator()
    for document in documents:
        settle_semantic(tx, model, document)
    return {}


@command(durable=False, frees_space=True)
def drop_vectors(tx: Tx, passages: list[int]) -> dict[str, Any]:
    """These vectors are damaged: have them made anew. {"dropped"}."""
    tx.require_operator()
    dropped = 0
    for passage in passages:
        dropped += _drop_vector(tx, passage)
    return {"dropped": dropped}


@command(durable=False)
def follow_model(tx: Tx, model: str, dimension: int, limit: int = 5000) -> dict[str, Any]:
    """From now on the store's vectors are to be of this model. What lacks its own, or has one that cannot be right,
    is queued, ``limit`` passages a call, going on where the last call stopped. {"queued", "left": passages}."""
    tx.require_operator()
    newest = tx.db.execute("select max(id) from passage").get or 0
    walk = vector_model.read(tx.db)
    if walk is None or (walk.model, walk.dimension) != (model, dimension):
        walk = vector_model.Walk(model, dimension, 0, newest)  # later ones queue themselves
        vector_model.write(tx.db, walk)
    if walk.settled:
        return {"queued": 0, "left": 0}
    reached = tx.db.execute(
        "select max(id) from (select id from passage where id > ? and id <= ? order by id limit ?)",
        (walk.walked, walk.until, limit),
    ).get
    queued = 0
    if reached is not None:
        span = (walk.walked, reached, model)
        damaged: list[Any] = tx.db.execute(
            "select id from vector where id > ?1 and id <= ?2 and model = ?3 and length(data) <> ?4",
            (*span, 4 * dimension),
        ).fetchall()
        for (passage,) in damaged:
            _drop_vector(tx, passage)
        tx.db.execute(
            "insert or ignore into semantic_queue select distinct passage.document from passage"
            " left join vector on vector.id = passage.id and vector.model = ?3"
            f" where passage.id > ?1 and passage.id <= ?2 and vector.id is null and {_EMBEDDED}",
            span,
        )
        queued = tx.db.changes()
    walk = vector_model.Walk(model, dimension, walk.until if reached is None else reached, walk.until)
    vector_model.write(tx.db, walk)
    return {"queued": queued, "left": walk.until - walk.walked}


def _drop_vector(tx: Tx, passage: int) -> int:
    document = tx.db.execute("select document from vector where id = ?", (passage,)).get
    if document is None:
        return 0
    tx.db.execute("delete from vector where id = ?", (passage,))
    tx.db.execute("insert into vector_log(id) values(?)", (passage,))
    tx.db.execute("insert or ignore into semantic_queue(document) values(?)", (document,))
    return 1


def follow_rules(tx: Tx) -> None:
    """Where other files are left out of the index than when this was last called, queue those which that is about."""
    rules = json.dumps([tx.index.ignore, tx.index.max_bytes])
    if tx.db.execute("select value from setting where key = 'index_rules'").get == rules:
        return
    rows: Iterable[Any] = tx.db.execute(_IN_PLACE)
    changed = [
        document
        for parent, name, size, document, reason in rows
        if tx.index.leaves_out((*tx.parts(parent), bytes(name)), size) != reason != NOT_TEXT
    ]
    for document in changed:
        versions.enqueue(tx, document)
    tx.db.execute("insert or replace into setting(key, value) values('index_rules', ?)", (rules,))


def readable(tx: Tx, document: int) -> bool:
    """Return whether there is text of it to index."""
    row: Any = tx.db.execute(_TO_INDEX, (document,)).fetchone()
    return _words(tx, node_of(row[:-3]), *row[-3:-1])[0] is not None


def settle_semantic(tx: Tx, model: str, document: int) -> None:
    """A document leaves the queue once its words are indexed and every passage has its vector."""
    tx.db.execute(
        "delete from semantic_queue where document = ?1"
        " and not exists (select 1 from document where id = ?1 and due is not null)"
        " and not exists (select 1 from passage left join vector on vector.id = passage.id and vector.model = ?2"
        "                 where passage.document = ?1 and vector.id is null)",
        (document, model),
    )


def _index(tx: Tx, document: int, told: bool) -> list[tuple[int, int, int]]:
    """Make the index rows of a document that has none, for which its vectors are then due. ``told``: ``passage_log``
    says in this transaction that it has changed. Returns what has yet to be counted (``versions.count_terms``)."""
    row: Any = tx.db.execute(_TO_INDEX, (document,)).fetchone()
    if row is None:
        return []
    tx.do("delete from unindexed where document = ?", (document,))
    node = node_of(row[:-3])
    text, reason = _words(tx, node, *row[-3:-1])
    if text is None:
        tx.do("insert into unindexed(document, reason) values(?, ?)", (document, reason))
        return []
    if not told:
        tx.do("insert into passage_log(document) values(?)", (document,))
    trusted = tx.known.scopes.of(tx.db, node.scope).trust == "allow"
    for key, name in topics.topics(text, _title(row[-1])) if trusted else ():  # a topic cannot be marked
        tx.do("insert into topic(document, key, name, scope) values(?, ?, ?, ?)", (document, key, name, node.scope))
    tags: list[Any] = tx.db.execute("select tag from tag where document = ?", (document,)).fetchall()
    versions.add_topics(tx, document, node.scope, [tag for (tag,) in tags])
    prefix = f" {node.scope}x"
    pieces = passages.cut(text)
    if pieces and paths.aside(tx.parts_of(node)) != "index":
        tx.do("insert or ignore into semantic_queue(document) values(?)", (document,))
    counts = []
    for part, (start, stop) in enumerate(pieces):
        piece = text[start:stop]
        found, said = segment.terms(piece), speech.heading(piece)
        speaker = " ".join(said.speaker) or None
        if part == 0:  # its name says once what it does not say itself
            here = frozenset(found)
            found += [term for term in segment.name_terms(paths.text(node.name)) if term not in here]
        tx.do(
            "insert into passage(document, part, scope, len, start, stop, voice, at, flags)"
            " values(?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (document, part, node.scope, len(found), start, stop, speaker, said.at, speech.flags(piece) | said.flag),
        )
        passage = tx.db.last_insert_rowid()
        tx.index_words(passage, prefix[1:] + prefix.join([*found, *segment.ends(piece)]) if found else "")
        counts.append((node.scope, 1, len(found)))
    return counts


def _title(user: str | None) -> str:
    """What was named as the title when the memory was remembered, or written to :meta."""
    if not user or '"title"' not in user:
        return ""
    title = json.loads(user).get("title")
    return title if isinstance(title, str) else ""


def _words(tx: Tx, node: Node, extents: int, inline: bytes | None) -> tuple[str | None, str]:
    """The text to index, or the reason why there is none. ``inline``: a small file's bytes."""
    parts = tx.parts_of(node)
    if paths.is_live(parts) and not tx.db.execute("select searched from live where path = ?", (paths.join(parts),)).get:
        return None, "live content: its provider does not say `search: true`"
    if (left_out := tx.index.leaves_out(parts, node.size)) is not None:
        return None, left_out
    if node.kind is not Kind.FILE:
        return None, "not a regular file"
    try:
        data = content.read(tx.db, node.id, node.size, True, 0, node.size) if extents else inline or b""
    except StoreFailed as e:
        return None, e.reason
    text = sniff.decode(data)
    return (text, "") if text is not None else (None, NOT_TEXT)
