"""Documents and their versions: the part of a change that outlives the bytes.

Owns the rows of document and version: making one, carrying it over a replaced file, adding or
amending a version, dropping it. Called by the other commands inside their transaction.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from avmfs.errors import Stale, TooBig
from avmfs.node import Node
from avmfs.store.rows import checksums, content, deltas, kept_versions, version_visibility
from avmfs.store.rows.content import Edit
from avmfs.store.rows.deltas import Encoding
from avmfs.store.rows.nodes import NODE_JOINED, members, node_of
from avmfs.store.tx import random_ids
from avmfs.store.tx.transaction import Tx, new_id
from avmfs.text import segment
from avmfs.trust import Origin

_PIECE = 4 * 1024 * 1024
AMEND_WITHIN_NS = 1_000_000_000  # a version is sealed after a second of idleness
AWAY_WITHIN_NS = 10_000_000_000
SCRATCH_NS = 3600 * 1_000_000_000  # as long a program may take to write what it puts in a file's place
TAGS_MAX, LINKS_MAX = 256, 1000  # of a document; links of an agent that lead from it
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
_SHORTEST, _TRIES = 4, 4  # letters of a handle, and how often as many are tried
# What vim, emacs, sed and others name the old file while they save: f~, f.bak, f.orig, also with a dot before, and #f#;
# then Emacs with numbered backups, Helix, and JetBrains' older safe write. Nothing wider: mv(1) of a file whose name is
# then used anew is a move, and a moved document keeps what it has.
_HIDDEN = re.compile(rb"~|\.(?:bak|orig|old|swp|tmp)")
_BACKUP = re.compile(_HIDDEN.pattern + rb"|\.~[1-9][0-9]*~|[0-9A-Za-z]{6}\.bck|___jb_old___")
_VIMS = re.compile(rb"(?s)\A(?P<all_but_last>.*)[a-z]~\Z")  # where f~ is taken: its last letter changed, z to a
# What is said about a document, and in which rows. Then, all in one question: has it old versions that are maps of
# blocks, is it in an index, is it veiled, and in which of these tables has it any row?
_SAYS = (
    ("version", "document = ?1"),
    ("tag", "document = ?1"),
    ("semantic_queue", "document = ?1"),
    ("unindexed", "document = ?1"),
    ("link", "source = ?1"),
    ("link", "target = ?1"),
    ("mark", "subject = ?1"),
    ("claim", "document = ?1"),
    ("consolidated", "document = ?1"),
)
_SAID = (
    "select exists(select 1 from version where document = ?1 and encoding = ?2),"
    " exists(select 1 from passage where document = ?1) or exists(select 1 from topic where document = ?1)"
    " or exists(select 1 from vector where document = ?1), exists(select 1 from veil where document = ?1), "
    + ", ".join(f"exists(select 1 from {table} where {of})" for table, of in _SAYS)
)

_JOINS = (
    "select exists(select 1 from tag where document = ?1) or exists(select 1 from link where source = ?1)"
    " or exists(select 1 from link where target = ?1)"
)
# Made since ?4 and written since ?2, both by ?3, and nothing is said of it yet.
_SCRATCH = (
    "select coalesce((select at from version where document = ?1 and number = head), created) between ?2 and ?3"
    " and created between ?4 and ?3 and importance is null and shared is null and user is null"
    f" and not ({_JOINS}) and not exists(select 1 from claim where document = ?1) from document where id = ?1"
)
# As many as a document may have, links each agent: ?1 goes on, ?2 ends, ?3 is that number.
_TAGS_JOIN = (
    "update or ignore tag set document = ?1 where document = ?2 and tag in (select tag from tag where document = ?2"
    " order by tag limit max(0, ?3 - (select count(*) from tag where document = ?1)))"
)
_LINKS_JOIN = (
    "update or ignore link set source = ?1 where source = ?2 and target <> ?1 and (target, type) in"
    " (select target, type from (select *, row_number() over (partition by agent order by target, type) as place"
    " from link where source = ?2) as gone"
    " where place + (select count(*) from link where source = ?1 and agent = gone.agent) <= ?3)"
)
# Its turn comes after that of all which wait; who waits already keeps his.
_NEWER = "update document set head = ?1, read = iif(creator = ?3 and read = head, ?1, read) where id = ?2"
_DUE = "due = coalesce(due, (select coalesce(max(due), 0) + 1 from document where due is not null))"
_NEWER_DUE = _NEWER.replace(" where", f", {_DUE} where")


def extents(tx: Tx, node: int) -> bool:
    return bool(tx.db.execute("select extents from node where id = ?", (node,)).get)


def whole(tx: Tx, node: Node) -> bytes:
    return content.read(tx.db, node.id, node.size, extents(tx, node.id), 0, node.size)


def digest(tx: Tx, node: Node) -> bytes:
    """The SHA-256 of a file's bytes, by who says that it has read them all. Raises TooBig past the size
    of what is read at once: nobody else writes meanwhile."""
    if node.size > kept_versions.WHOLE_MAX:
        raise TooBig(f"files of up to {kept_versions.WHOLE_MAX >> 20} MiB are compared with what was read")
    found, large = hashlib.sha256(), extents(tx, node.id)
    for offset in range(0, node.size, _PIECE):
        found.update(content.read(tx.db, node.id, node.size, large, offset, _PIECE))
    return found.digest()


def new_document(tx: Tx, node: int, read: int | None = None) -> int:
    """A document for a new file, with a short handle of its own. The caller names it in the node's row. ``read``: up to
    which version the asker has read it."""
    document, tries = new_id(), 0
    while True:
        tx.db.execute(
            "insert or ignore into document(id, node, handle, creator, created, read) values(?, ?, ?, ?, ?, ?)",
            (document, node, _handle(_SHORTEST + tries // _TRIES), tx.who.name, tx.now, read),
        )
        if tx.db.changes():
            return document
        tries += 1  # the handle is taken


def share(tx: Tx, document: int, creator: str, agents: list[str] | None) -> tuple[str, ...] | None:
    """Limit a document to some agents, its owner always among them; None: all. Returns who it is limited to."""
    owner = () if tx.who.operator and creator == tx.who.name else (creator,)  # an operator sees all of it anyway
    members = tuple(sorted({*map(tx.agent, agents), *owner})) if agents is not None else None
    tx.db.execute(
        "update document set shared = ? where id = ?", (",".join(members) if members is not None else None, document)
    )
    return members


def _handle(length: int) -> str:
    drawn = random_ids.number(5 * length)
    return "".join([_ALPHABET[drawn >> 5 * place & 31] for place in range(length)])


def head(tx: Tx, document: int) -> int:
    return int(tx.db.execute("select head from document where id = ?", (document,)).get)


class Newest(NamedTuple):
    """The newest version of a document, and the bytes that carry it. ``number`` 0: never written. ``open``: stated by
    the node's bytes, not yet by a body of its own. ``inline``: those bytes, None when they are in extents. ``read``:
    the version that the document's ``creator`` has marked as read. ``body``: the row of small contents. ``seq``: its
    change."""

    number: int
    open: bool
    at: int
    handle: int | None
    inline: bytes | None
    creator: str | None
    read: int | None
    body: int | None
    seq: int


_TO_WRITE = (
    f"select {NODE_JOINED}, extents, head, encoding, at,"
    " version.handle, data, body.crc, creator, read, node.body, seq from node"
    " left join document on document.id = node.document"
    " left join version on version.document = node.document and number = head"
    " left join body on body.id = node.body where node.id = ?"
)


def to_write(tx: Tx, node: int) -> tuple[Node, Newest]:
    """A node, whoever may see it, and all that writing to it needs to know. Raises Stale when it is gone or has
    expired. Of one without a document ``inline`` alone is told."""
    row: Any = tx.db.execute(_TO_WRITE, (node,)).fetchone()
    if row is None:
        raise Stale()
    found = node_of(row[:14])
    if found.expires is not None and found.expires <= tx.now:
        raise Stale()
    extents, number, encoding, at, handle, data, crc, creator, read, body, seq = row[14:]
    inline = None
    if not extents:
        inline = b"" if body is None else checksums.checked(tx.db, node, data, crc)[: found.size]
    return found, Newest(number or 0, encoding == Encoding.HEAD, at or 0, handle, inline, creator, read, body, seq or 0)


def add_version(tx: Tx, document: int, number: int, size: int, seq: int, handle: int | None) -> None:
    """The node's bytes are now the newest version, and its words are due. The old one must have been kept before. The
    creator's own counts as read by it, if it had read all before; for others there is ``advance_own_mark``. The oldest
    goes when there are as many as are kept."""
    tx.do(
        "insert into version(document, number, at, author, size, seq, encoding, handle, route)"
        " values(?, ?, ?, ?, ?, ?, 0, ?, ?)",
        (document, number, tx.now, tx.who.name, size, seq, handle, tx.who.route),
    )
    tx.do(_NEWER_DUE if tx.known.queue(document) else _NEWER, (number, document, tx.who.name))
    over = number - tx.index.versions_kept(size)
    if over > 0:
        if tx.states is not None:
            tx.states.keep_for_snapshots(document, over)
        drop(tx, document, over)


def drop(tx: Tx, document: int, up_to: int) -> None:
    """Forget the oldest versions. No newer one is stated against them."""
    _release_maps(tx, document, up_to)
    tx.db.execute("delete from version where document = ? and number <= ?", (document, up_to))


def _release_maps(tx: Tx, document: int, up_to: int) -> None:
    rows: list[Any] = tx.db.execute(
        "select body from version where document = ? and number <= ? and encoding = ?",
        (document, up_to, int(Encoding.MAP)),
    ).fetchall()
    for (packed,) in rows:
        content.release_map(tx.db, packed)


def keep_for(tx: Tx, node: Node, document: int, last: Newest, edits: list[Edit]) -> bool:
    """Before the edits: keep the newest version. Is its body still to be stated against the new bytes (``settle``)?"""
    if not last.open:
        return False
    if content.only_appends(node.size, edits):
        _set(tx, document, last.number, Encoding.PREFIX, None)
    elif last.inline is None:
        _set(tx, document, last.number, Encoding.MAP, content.take_map(tx.db, node.id))
    else:
        return True
    return False


def settle(tx: Tx, document: int, number: int, older: bytes, newer: bytes | None) -> None:
    """State version ``number``'s body against the bytes that replaced it (None: they are large)."""
    if newer is None:
        encoding, body = deltas.keyframe(older)
    elif number % deltas.KEYFRAME_EVERY == 0:
        encoding, body = deltas.PREFIX if newer.startswith(older) else deltas.keyframe(older)
    else:
        encoding, body = deltas.encode(older, newer)
    _set(tx, document, number, encoding, body)


def amendable(tx: Tx, document: int, last: Newest, handle: int | None, node: Node, *, appends: bool) -> bool:
    """Return whether the newest version is still open to this handle. Not once another agent has marked it as read, nor
    where the past needs the bytes as they are."""
    if handle is None or last.handle != handle or not last.open or tx.now - last.at > AMEND_WITHIN_NS:
        return False
    if last.read == last.number and last.creator != tx.who.name:
        return False
    if tx.states is not None and not tx.states.may_amend(node.id, last.number, last.seq, tx.now, appends=appends):
        return False
    return not tx.db.execute(
        "select 1 from mark where subject = ? and version = ? and agent <> ?", (document, last.number, tx.who.name)
    ).get


def amend_for(
    tx: Tx, document: int, last: Newest, inline: bytes | None, edits: list[Edit]
) -> tuple[bool, bytes | None]:
    """Can the version before the newest still be read after the edits are laid over the newest, whose bytes are
    ``inline`` (None: in extents)? Returns (yes, its bytes when its body must be restated)."""
    row = tx.db.execute(
        "select encoding, body, size, crc from version where document = ? and number = ?", (document, last.number - 1)
    ).fetchone()
    if row is None or deltas.self_contained(row[0]):
        return True, None
    if row[0] == Encoding.PREFIX and content.only_appends(row[2], edits):
        return True, None
    if inline is None:
        return False, None
    node = tx.db.execute("select node from document where id = ?", (document,)).get
    if row[1] is not None:
        checksums.checked(tx.db, node, row[1], row[3])
    return True, checksums.decoded(tx.db, node, row[0], row[1], row[2], inline)


def continue_document(tx: Tx, target: Node, source: Node) -> tuple[Node, Newest]:
    """``source`` replaces ``target`` under its name: the target's document goes on with the source's bytes.
    The source's own document ends; its tags and links join. Returns the source as it now is, and what was the newest
    version of the document. The caller takes the document from the target's row."""
    kept, gone = target.document, source.document
    assert kept is not None and gone is not None, "regular files"
    _, last = to_write(tx, target.id)
    if last.open:
        if last.inline is None:
            _set(tx, kept, last.number, Encoding.MAP, content.take_map(tx.db, target.id))
        else:
            settle(tx, kept, last.number, last.inline, to_write(tx, source.id)[1].inline)
    if tx.db.execute(_JOINS, (gone,)).get:
        if tx.states is not None:
            tx.states.says(kept, "tags", "links")
            tx.states.says(gone, "tags", "links")
        tx.db.execute(_TAGS_JOIN, (kept, gone, TAGS_MAX))
        tx.db.execute(_LINKS_JOIN, (kept, gone, LINKS_MAX))
        tx.db.execute("update or ignore link set target = ? where target = ? and source <> ?", (kept, gone, kept))
    if tx.states is not None:
        tx.states.see(target.id)
        tx.states.see(source.id)
    drop_document(tx, gone, logged=False, becomes=(kept, last.number + 1))
    tx.do("update document set node = ? where id = ?", (source.id, kept))
    tx.do("update node set document = ?, expires = ? where id = ?", (kept, target.expires, source.id))
    return source._replace(document=kept, expires=target.expires), last


def leave(tx: Tx, document: int, parent: int, name: bytes) -> None:
    """An editor renames the file from this name to a backup beside it."""
    tx.known.left(parent, name)
    tx.do(
        "update document set away_parent = ?, away_name = ?, away_at = ? where id = ?", (parent, name, tx.now, document)
    )


def stay(tx: Tx, document: int) -> None:
    """Its file is no editor's backup of what it was before."""
    tx.do("update document set away_parent = null, away_name = null where id = ?", (document,))


def renamed_away(tx: Tx, parent: int, name: bytes) -> Node | None:
    """The file that an editor has just renamed away from this name to a backup. Never one that the asker may not
    write: he cannot be the one who saves it, and its history is not for him."""
    if not tx.known.may_have_left(parent, name, tx.now, AWAY_WITHIN_NS):
        return None
    rows: list[Any] = tx.db.execute(
        "select node.id, node.name from document join node on node.id = document.node"
        " where away_parent = ?1 and away_name = ?2 and away_at > ?3 and parent = ?1"
        " and (expires is null or expires > ?4) order by away_at desc",
        (parent, name, tx.now - AWAY_WITHIN_NS, tx.now),
    ).fetchall()
    for backup, now_named in rows:
        held = tx.node(backup)
        if is_backup(name, bytes(now_named)) and tx.visible.writable(held.scope):
            return held
    return None


def is_scratch(tx: Tx, node: Node) -> bool:
    """Return whether a file is what a program has just written beside another one, to put it in that one's place. Any
    other has a document of its own to keep."""
    asked = (tx.document_of(node), tx.now - AWAY_WITHIN_NS, tx.now, tx.now - SCRATCH_NS)
    return node.expires is None and bool(tx.db.execute(_SCRATCH, asked).get)


def reclaim(
    tx: Tx, parent: int, name: bytes, node: int
) -> tuple[int, tuple[str, ...] | None, int | None, Origin] | None:
    """An empty file appears under a name that an editor has just renamed away to a backup: the document comes back
    to the name, the backup goes on as a document of its own. Returns (document, who shares it, when it expires, how
    it came in), for the row that the caller makes; None when there was none."""
    held = renamed_away(tx, parent, name)
    if held is None:
        return None
    document = tx.document_of(held)
    number = head(tx, document)
    if number and _encoding(tx, document, number) == Encoding.HEAD:
        if extents(tx, held.id):
            _set(tx, document, number, Encoding.MAP, content.take_map(tx.db, held.id))
        else:
            settle(tx, document, number, whole(tx, held), None)
    tx.db.execute("update document set node = ? where id = ?", (node, document))
    set_apart(tx, held, document)
    names = tx.db.execute("select shared from document where id = ?", (document,)).get
    return document, members(names), held.expires, tx.origin(held.scope)


def set_apart(tx: Tx, backup: Node, document: int) -> None:
    """The document has gone back to its name; the backup becomes one of its own, for the same agents."""
    stay(tx, document)
    own = new_document(tx, backup.id)
    tx.db.execute("update node set document = ?, expires = null where id = ?", (own, backup.id))
    tx.db.execute(
        "update document set (creator, shared, charged) ="
        " (select creator, shared, charged from document where id = ?) where id = ?",
        (document, own),
    )
    seq = tx.log("write", tx.node(backup.id), b"", scope=backup.scope)
    add_version(tx, own, 1, backup.size, seq, None)


def is_backup(name: bytes, other: bytes) -> bool:
    """Return whether ``other`` is what an editor names the old ``name`` while it saves."""
    if other.startswith(name) and _BACKUP.fullmatch(other, len(name)):
        return True
    if other.startswith(b"." + name) and _HIDDEN.fullmatch(other, 1 + len(name)):
        return True
    vims = _VIMS.match(other)
    return other == b"#%b#" % name or (vims is not None and vims["all_but_last"] == name[:-1])


def drop_document(tx: Tx, document: int, *, logged: bool = True, becomes: tuple[int, int] | None = None) -> None:
    """Remove a document with its versions and everything said about it. Its index rows are more pages than all else
    together: they go with the next step of making words (``drain_lexical``), and nobody finds them meanwhile, since the
    document is gone. ``logged``: a row of the log says so to those who keep columns in memory. ``becomes``: which
    version of another document its bytes will be."""
    row: Any = tx.db.execute(_SAID, (document, int(Encoding.MAP))).fetchone()
    maps, indexed, veiled, *said = row
    kept, has = False, {table for (table, _), found in zip(_SAYS, said, strict=True) if found}
    if tx.states is not None:
        at, told = tx.rows[-1][0] if tx.rows else 0, {"tagged": "tag" in has, "linked": "link" in has}
        kept = tx.states.retire(document, tx.index.past_bytes, becomes, at, **told)
    if maps and not kept:
        _release_maps(tx, document, head(tx, document))
    if indexed:
        tx.do("insert into ended(document) values(?)", (document,))
        tx.known.waiting += 1
    if indexed and not logged:
        tx.do("insert into passage_log(document) values(?)", (document,))
    for (table, of), found in zip(_SAYS, said, strict=True):
        if found:  # most have a row in few of them, and a statement costs as much as this whole question
            tx.do(f"delete from {table} where {of}", (document,))
    tx.known.queued.discard(document)
    tx.do("delete from document where id = ?", (document,))
    if veiled:
        version_visibility.forget(tx.db, [document])


def drop_index(tx: Tx, documents: Sequence[int]) -> set[int]:
    """Remove documents' passages and vectors from the indexes. Returns those that had any, of which ``passage_log``
    tells now."""
    passages: list[Any] = []
    for document in documents:
        rows: list[Any] = tx.db.execute(
            "select id, scope, len, document from passage where document = ?", (document,)
        ).fetchall()
        passages += rows
        tx.do("delete from topic where document = ?", (document,))
        if rows:
            tx.do("insert into passage_log(document) values(?)", (document,))
            tx.do("insert into vector_log(id) select id from vector where document = ? order by id", (document,))
            tx.do("delete from vector where document = ?", (document,))
            tx.do("delete from passage where document = ?", (document,))
    for passage, *_ in sorted(passages):
        tx.index_words(passage, None)
    count_terms(tx, [(scope, -1, -length) for _, scope, length, _ in passages])
    return {document for *_, document in passages}


def count_terms(tx: Tx, changes: Iterable[tuple[int, int, int]]) -> None:
    """Of scopes: so many passages more, and terms in them."""
    totals: dict[int, tuple[int, int]] = {}
    for scope, passages, terms in changes:
        before = totals.get(scope, (0, 0))
        totals[scope] = before[0] + passages, before[1] + terms
    for scope, (passages, terms) in totals.items():
        tx.do(
            "insert into scope_stat(scope, passages, terms) values(?, ?, ?) on conflict(scope)"
            " do update set passages = passages + excluded.passages, terms = terms + excluded.terms",
            (scope, passages, terms),
        )


def add_topics(tx: Tx, document: int, scope: int, tags: list[str]) -> None:
    """What a document is tagged with, it is about."""
    for tag in tags:
        if key := " ".join(segment.terms(tag)):
            tx.db.execute(
                "insert or ignore into topic(document, key, name, scope) values(?, ?, ?, ?)",
                (document, key, tag, scope),
            )


def enqueue(tx: Tx, document: int) -> None:
    """The document's words changed: its index rows are to be made again."""
    if tx.known.queue(document):
        tx.do(f"update document set {_DUE} where id = ?", (document,))


def _encoding(tx: Tx, document: int, number: int) -> int:
    found = tx.db.execute("select encoding from version where document = ? and number = ?", (document, number)).get
    return int(found)


def _set(tx: Tx, document: int, number: int, encoding: Encoding, body: bytes | None) -> None:
    tx.do(
        "update version set encoding = ?, body = ?, crc = ?, handle = null where document = ? and number = ?",
        (int(encoding), body, None if body is None else checksums.crc(body), document, number),
    )
