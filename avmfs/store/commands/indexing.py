"""The derived indexes: draining the queues that writes fill.

Lexical rows are made here, in the writer's idle time or before a search that needs them. Vectors
are computed elsewhere and put here. Both are always rebuildable from the bytes.
"""

from __future__ import annotations

from typing import Any

from avmfs.node import Kind, Node
from avmfs.store import content
from avmfs.store.commands import command, lineage
from avmfs.store.transaction import Tx
from avmfs.text import passages, segment, sniff, speech, topics

DRAIN_BYTES = 256 * 1024
"""A transaction indexes no more text than this (or one document): some 60 ms, for which every writer waits."""


@command
def drain_lexical(tx: Tx, limit: int = 64) -> dict[str, Any]:
    """Index up to ``limit`` queued documents, fewer when they are large. {"done", "left"}."""
    queued: list[Any] = tx.db.execute("select document from lexical_queue order by turn limit ?", (limit,)).fetchall()
    done = size = 0
    for (document,) in queued:
        if size >= DRAIN_BYTES:
            break
        size += _index(tx, document)
        tx.db.execute("delete from lexical_queue where document = ?", (document,))
        done += 1
    return {"done": done, "left": tx.db.execute("select count(*) from lexical_queue").get}


@command
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


@command
def skip_vectors(tx: Tx, documents: list[int], model: str) -> dict[str, Any]:
    """Take documents off the semantic queue that have nothing (left) to embed."""
    tx.require_operator()
    for document in documents:
        settle_semantic(tx, model, document)
    return {}


@command
def reindex(tx: Tx, model: str | None = None) -> dict[str, Any]:
    """Queue everything again: all words (model None), or what has no vector of ``model``. {"queued"}."""
    tx.require_operator()
    if model is None:
        tx.db.execute("insert or ignore into lexical_queue(document) select id from document")
        tx.db.execute("insert or ignore into semantic_queue select id from document")
    else:
        tx.db.execute(
            "insert or ignore into semantic_queue select distinct passage.document from passage"
            " left join vector on vector.id = passage.id and vector.model = ? where vector.id is null",
            (model,),
        )
    return {"queued": tx.db.changes()}


def settle_semantic(tx: Tx, model: str, document: int) -> None:
    """A document leaves the queue once its words are indexed and every passage has its vector."""
    tx.db.execute(
        "delete from semantic_queue where document = ?1"
        " and not exists (select 1 from lexical_queue where document = ?1)"
        " and not exists (select 1 from passage left join vector on vector.id = passage.id and vector.model = ?2"
        "                 where passage.document = ?1 and vector.id is null)",
        (document, model),
    )


def _index(tx: Tx, document: int) -> int:
    """Make a document's index rows anew. Returns how many characters were read."""
    row = tx.db.execute(
        "select node.id from document join node on node.id = document.node where document.id = ?", (document,)
    ).fetchone()
    if row is None:
        return 0
    lineage.drop_index(tx, document)
    tx.db.execute("delete from unindexed where document = ?", (document,))
    node = tx.node(row[0])
    text, reason = _words(tx, node)
    if text is None:
        tx.db.execute("insert into unindexed(document, reason) values(?, ?)", (document, reason))
        return 0
    tx.db.execute("insert into passage_log(document) values(?)", (document,))
    for key, name in topics.topics(text):
        tx.db.execute(
            "insert into topic(document, key, name, scope) values(?, ?, ?, ?)", (document, key, name, node.scope)
        )
    for part, (start, stop) in enumerate(passages.cut(text)):
        piece = text[start:stop]
        found, said = segment.terms(piece), speech.heading(piece)
        tx.db.execute(
            "insert into passage(document, part, scope, len, start, stop, voice, at, flags)"
            " values(?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (document, part, node.scope, len(found), start, stop,
             " ".join(said.speaker) or None, said.at, speech.flags(piece)),
        )  # fmt: skip
        passage = tx.db.last_insert_rowid()
        tx.db.execute(
            "insert into terms(rowid, t) values(?, ?)",
            (passage, " ".join(f"{node.scope}x{term}" for term in found)),
        )
        tx.db.execute(
            "insert into scope_stat(scope, passages, terms) values(?, 1, ?) on conflict(scope)"
            " do update set passages = passages + 1, terms = terms + excluded.terms",
            (node.scope, len(found)),
        )
    return len(text)


def _words(tx: Tx, node: Node) -> tuple[str | None, str]:
    """The text to index, or the reason why there is none."""
    parts = tx.parts(node.id)
    if tx.index.ignores(parts):
        return None, "its name is on the ignore list"
    if node.size > tx.index.max_bytes:
        return None, f"larger than {tx.index.max_bytes} bytes"
    if node.kind is not Kind.FILE:
        return None, "not a regular file"
    data = content.read(tx.db, node.id, node.size, lineage.extents(tx, node.id), 0, node.size)
    text = sniff.decode(data)
    return (text, "") if text is not None else (None, "not text")
