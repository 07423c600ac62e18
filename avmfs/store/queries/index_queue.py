"""What waits for the derived indexes: documents for their words, passages for their vectors.

Owns these queries. Called by the store, for whoever makes vectors and for ``status``.
"""

from __future__ import annotations

from typing import Any, Final

import apsw

from avmfs.errors import StoreFailed
from avmfs.store.rows import content
from avmfs.text import sniff

# Passages that wait for a vector of one model.
_PENDING: Final = (
    "select passage.id, passage.document, passage.start, passage.stop, node.id, node.size, node.extents {}"
    " join document on document.id = passage.document join node on node.id = document.node"
    " left join vector on vector.id = passage.id and vector.model = ? where vector.id is null"
    " and document.due is null"
)
# cross: from the queue outwards; the planner would walk all passages of the store instead
_QUEUED: Final = "from semantic_queue cross join passage on passage.document = semantic_queue.document"
_RECENT: Final = "from passage cross join semantic_queue on semantic_queue.document = passage.document"
# Whose words are due will want vectors, too.
_AWAITING_VECTORS: Final = """select (select count(*) from semantic_queue)
 + (select count(*) from document where due is not null and id not in (select document from semantic_queue))"""


def passages(db: apsw.Connection, model: str, limit: int) -> list[tuple[int, int, str]]:
    """Return passages without a vector of this model: (id, document, text), the newest first; of what is damaged
    without text."""
    # First of what was written last: behind a backlog of an hour, a new note is found within a second.
    rows: list[Any] = db.execute(
        f"{_PENDING.format(_RECENT)} and passage.id > (select max(id) from passage) - 256"
        " order by passage.id desc limit ?",
        (model, limit),
    ).fetchall()
    if len(rows) < limit:
        known = {row[0] for row in rows}
        more = db.execute(f"{_PENDING.format(_QUEUED)} limit ?", (model, limit))
        rows += [row for row in more if row[0] not in known][: limit - len(rows)]
    rows.sort(key=lambda row: -row[0])
    found, read, text = [], None, ""
    for passage, document, start, stop, node, size, extents in rows:
        if document != read:  # they come document by document: decode each once
            read, text = document, _text(db, node, size, bool(extents))
        found.append((passage, document, text[start:stop]))
    return found


def _text(db: apsw.Connection, node: int, size: int, extents: bool) -> str:
    try:
        return sniff.decode(content.read(db, node, size, extents, 0, size)) or ""
    except StoreFailed:  # the log says so; the others are whole, and no answer shows this one
        return ""


def idle_documents(db: apsw.Connection, model: str, limit: int) -> list[int]:
    """Return documents that wait for vectors and have no passage without one."""
    rows = db.execute(
        "select document from semantic_queue"
        " where not exists (select 1 from document where id = semantic_queue.document and due is not null)"
        " and not exists (select 1 from passage left join vector on vector.id = passage.id and model = ?"
        "   where passage.document = semantic_queue.document and vector.id is null) limit ?",
        (model, limit),
    )
    return [row[0] for row in rows]


def vectors_wait(db: apsw.Connection) -> bool:
    """Return whether a document waits for vectors: what ``lengths`` counts, in constant time."""
    query = "select exists (select 1 from semantic_queue) or exists (select 1 from document where due is not null)"
    return bool(db.execute(query).get)


def without_vectors(db: apsw.Connection, scopes: str, now: int, newest: int, most: int) -> int:
    """Return how many documents of these scopes (a JSON array), at most ``most``, wait for the vector of a passage up
    to ``newest``, and have not been written anew."""
    found = db.execute(
        "select count(*) from (select 1 from semantic_queue"
        " cross join document on document.id = semantic_queue.document cross join node on node.id = document.node"
        " where node.scope in (select value from json_each(?1)) and (node.expires is null or node.expires > ?2)"
        " and node.parent is not null and document.due is null"
        " and exists (select 1 from passage left join vector on vector.id = passage.id and vector.model ="
        "   (select json_extract(value, '$.model') from setting where key = 'vector_model')"
        "   where passage.document = document.id and passage.id <= ?3 and vector.id is null) limit ?4)",
        (scopes, now, newest, most),
    ).get
    return int(found)


def words_wait(db: apsw.Connection) -> int:
    """Return how many documents wait for words."""
    return int(db.execute("select (select count(*) from lexical_queue) + (select count(*) from ended)").get)


def lengths(db: apsw.Connection) -> tuple[int, int]:
    """Return how many documents wait for words, and how many for vectors."""
    return words_wait(db), int(db.execute(_AWAITING_VECTORS).get)
