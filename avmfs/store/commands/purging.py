"""Forgetting that cannot be undone: what nodes and documents were, and all that was ever said of them, in every table.

Owns the command ``purge``. The past, snapshots, the indexes, the outbox, kept replies and the names in the log go with
the bytes, in one transaction. What SQLite leaves of deleted rows in the file goes when that is written anew
(``writer.rewriting``), which the setting 'unwiped' asks for; the same transaction sets it. Of a store on several hosts
'uncut' asks for as much in their shared log, which whoever keeps house does. Called by the door, for what it has shown
the asker before.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from avmfs import paths, wire
from avmfs.errors import Denied, Invalid, NotFound, Stale
from avmfs.node import Kind, Node
from avmfs.store.commands import aside, command, fanout, namespace, versions
from avmfs.store.rows import content, deliveries, events, hash_chain, log_position, version_visibility
from avmfs.store.rows.deltas import SAME, Encoding
from avmfs.store.rows.log_ops import ORPHANED
from avmfs.store.schema.tables import NOBODYS
from avmfs.store.tx.transaction import Tx

_MEANWHILE = "it has been changed or moved since; what came before it in the plan is purged: look at the plan again"
# Nodes carry several documents, one after the other: an editor's backup was the file that goes on under its name.
_OF = (
    "(document in (select value from json_each(?2)) or (node in (select value from json_each(?1))"
    " and ifnull(document, 0) not in (select id from document)"
    " and ifnull(document, 0) not in (select value from json_each(?3))))"
)
_OF_THE_LIVING = "(node in (select value from json_each(?1)) and document in (select id from document))"
_STOOD = (
    "select node, path from log where path in (select unhex(value) from json_each(?1))"
    " or substr(path, 1, length(?2)) = ?2 or substr(path, 1, length(?3)) = ?3"
)
_IN_THE_TREE = "select 1 from node where parent is not null and id = {}"
_CARRIED = (
    "select distinct node from log where document in (select value from json_each(?))"
    f" and not exists ({_IN_THE_TREE.format('log.node')})"
)
_UNLINKED = "select id from node where id in (select value from json_each(?))"
_LAST = "select node, document, max(seq) from log where node in (select value from json_each(?)) group by node"
# Documents that have ended and were carried by a node before it carried one of ?2, which got their bytes: files that
# were saved over others. Or by none but the nodes ?1: an editor's backups of what it saved.
_LINEAGE = """
with last(node, seq) as materialized
  (select node, max(seq) from log where document in (select value from json_each(?2)) group by node)
select document from log left join last on last.node = log.node
where document in (select document from log where node in (select value from json_each(?1) union select node from last))
  and document not in (select id from document union select value from json_each(?2) union
                       select value from json_each(?3))
group by document having max(log.seq < last.seq) or min(log.node in (select value from json_each(?1)))
"""
_LINKS_LEFT = (
    "update past_said set value = (select json_group_array(json(value)) from json_each(past_said.value) where"
    " json_extract(value, '$[0]') not in (select value from json_each(?1))"
    " and json_extract(value, '$[1]') not in (select value from json_each(?1))) where what = 'links'"
    " and exists (select 1 from json_each(?1) where instr(past_said.value, json_each.value))"
)
# Settled, which the index on classes finds by its own condition; and not yet.
_REFUSED = (
    "select agent, path, seq, other, salt from log"
    f" where scope = {NOBODYS} and op <> 'tell' and op = 'refused' and path <> x'' and length(salt) = {hash_chain.SALT}"
)
_REFUSED_NOW = "select distinct agent, path from refusal where path <> x''"


@command(frees_space=True)
def purge(
    tx: Tx,
    nodes: list[int],
    documents: list[int],
    places: list[bytes] | None = None,
    ctimes: list[int] | None = None,
) -> dict[str, Any]:
    """Forget files and symlinks, directories that are empty by then, and ``documents`` that have ended. Who may change
    them, and where they are or were, may do it, and sees every version that is kept of them, else nothing is done.
    ``places`` and ``ctimes``: where each of ``nodes`` stood and when it was changed last (0: a directory), as whoever
    asks has agreed to; raises Stale where it is otherwise. The audit keeps a row that says how many. {"purged",
    "documents": all that have gone}."""
    if {len(each) for each in (places, ctimes) if each is not None} - {len(nodes)}:
        raise Invalid("purge: expected a place and a time of each node")
    states, tx.states = tx.states, None  # nothing of this is to become the past
    try:
        _require_ended(tx, documents)
        found, gone, stood, directories = set(documents), set(), set(), set()
        for at, number in enumerate(nodes):
            if ctimes is not None and not ctimes[at] and not tx.db.execute(_IN_THE_TREE.format("?"), (number,)).get:
                continue  # it went with the last that was in it, as in the trash
            if namespace.is_empty(tx, number):
                gone.add(number)
                place, ctime = None if places is None else places[at], 0 if ctimes is None else ctimes[at]
                node, parts = _as_agreed(tx, number, place, ctime)
                stood.add(paths.join(parts))
                if node.kind is Kind.DIRECTORY:
                    directories.add(parts)
                found |= _remove(tx, node, parts)
    finally:
        tx.states = states
    gone |= _stood(tx, directories)
    others = _lineage(tx, gone, found)
    unlinked: list[Any] = tx.db.execute(_UNLINKED, _json(gone)).fetchall()
    if unlinked:
        last: list[Any] = tx.db.execute(_LAST, _json({node for (node,) in unlinked})).fetchall()
        for node, document, _ in last:
            if document in found:
                _release(tx, node)
    if states is not None:
        states.disown(gone, found)
    of = _json(gone, found, others)
    _forget_past(tx, of, found)
    names = _forget_names(tx, of, stood, directories)
    _forget_deliveries(tx, gone)
    _blank_replies(tx, names)
    for due in ("unwiped", "uncut") if log_position.position(tx.db) is not None else ("unwiped",):
        tx.do("insert or replace into setting(key, value) values(?, ?)", (due, str(tx.now)))
    tx.note("purge", about=hash_chain.packed({"documents": len(found), "nodes": len(nodes)}))
    return {"purged": len(nodes) + len(documents), "documents": sorted(found)}


@command(durable=False, repeatable=True, frees_space=True, rewrites=True)
def wipe(tx: Tx, cut: str | None = None) -> dict[str, Any]:
    """After whoever writes has written the file anew, where that was due. {"wiped"}: nothing of what was purged is in
    it, nor in the log that other hosts share. Else it has been done a moment ago for others, or a reader is in the way,
    or a host: ask again. ``cut``: who keeps house says so of the log, of what 'uncut' said when it began."""
    if cut is not None:
        tx.require_operator()
        tx.do("delete from setting where key = 'uncut' and value = ?", (cut,))
    return {"wiped": not tx.db.execute("select 1 from setting where key in ('unwiped', 'uncut')").get}


def _as_agreed(tx: Tx, number: int, place: bytes | None, ctime: int) -> tuple[Node, tuple[bytes, ...]]:
    """A node that the asker may change, and its names from the root. Raises Stale where it is no longer at ``place``,
    as when a new file was saved over it, or has another ``ctime`` (0: any)."""
    try:
        node = tx.writable(number)
        parts = tx.parts_of(node)
    except (NotFound, Stale):
        if place is None:
            raise
        raise Stale(_MEANWHILE, paths.text(place)) from None
    if place is not None and (paths.join(parts) != place or ctime not in (0, node.ctime)):
        raise Stale(_MEANWHILE, paths.text(place))
    # What was written before others could see the file is not for them to destroy.
    if node.document is not None and not version_visibility.may_purge_past(tx.db, node.document, tx.visible):
        raise Denied("earlier versions of it are not for you", paths.text(paths.join(parts)))
    return node, parts


def _remove(tx: Tx, node: Node, parts: tuple[bytes, ...]) -> set[int]:
    """A node that is there, with what its document is found by. Returns its document."""
    namespace.refuse_fixed(tx, node)
    if node.parent is None:
        raise NotFound()
    above = tx.node(node.parent) if paths.aside(parts) == "trash" else tx.directory(node.parent)
    if node.kind is Kind.DIRECTORY:
        namespace.remove_directory(tx, above, node)
        return set()
    tx.log("remove", node, b"")
    if node.document is not None:
        versions.drop_document(tx, node.document)
        versions.drop_index(tx, [node.document])
        tx.do("delete from ended where document = ?", (node.document,))
    _release(tx, node.id)
    tx.do("delete from removed where node = ?", (node.id,))
    tx.touch(above.id)
    aside.prune(tx, above)
    return set() if node.document is None else {node.document}


def _release(tx: Tx, node: int) -> None:
    """Whoever has it open finds it gone."""
    tx.events.append((ORPHANED, node, None, b""))
    content.release(tx.db, node)
    tx.do("delete from node where id = ?", (node,))
    tx.do("delete from hold where node = ?", (node,))


def _stood(tx: Tx, directories: set[tuple[bytes, ...]]) -> set[int]:
    """Those that had one of these names before and are no more, in one walk of the log, for which others wait."""
    if not directories:
        return set()
    names, origins = {each[-1] for each in directories}, {paths.origin(each) for each in directories}
    here = json.dumps([paths.join(each).hex() for each in directories])
    aside = (b"/%s/" % top for top in (paths.TRASH, paths.ARCHIVE))
    nodes = set()
    for node, path in tx.db.execute(_STOOD, (here, *aside)):
        if (was := paths.split(bytes(path)))[-1] in names and (was in directories or paths.origin(was) in origins):
            nodes.add(node)
    return {each for each in nodes if not tx.db.execute(_IN_THE_TREE.format("?"), (each,)).get}


def _require_ended(tx: Tx, documents: list[int]) -> None:
    """Raise NotFound where nothing is kept of one that the asker may see, Denied where it may not write."""
    known = _scopes(tx, documents)
    for document in documents:
        scopes = known[document]
        if len(scopes) < 2 or tx.db.execute("select 1 from document where id = ?", (document,)).get:
            raise NotFound()
        for scope in scopes:
            if scope not in tx.visible:
                raise NotFound()
            if not tx.visible.writable(scope):
                raise Denied("not writable for you")
        if not version_visibility.may_purge_past(tx.db, document, tx.visible):
            raise Denied("earlier versions of it are not for you")
        _drop_index(tx, document)


def _scopes(tx: Tx, documents: Collection[int]) -> dict[int, list[int]]:
    """Of documents that have ended: the one each was in, and that of the place where it was last, as far as is
    known."""
    known: dict[int, list[int]] = {each: [] for each in documents}
    if not known:
        return known
    asked = (json.dumps(sorted(known)),)
    said: list[Any] = tx.db.execute(
        "select document, value, max(until) from past_said where document in (select value from json_each(?))"
        " and what = 'document' group by document",
        asked,
    ).fetchall()
    for document, value, _ in said:
        known[document].append(int(json.loads(value)[6]))
    last: list[Any] = tx.db.execute(
        "select document, path, max(seq) from log where document in (select value from json_each(?))"
        " and path <> x'' group by document",
        asked,
    ).fetchall()
    for document, path, _ in last:
        known[document].append(tx.scope_at(paths.split(bytes(path))))
    return known


def _drop_index(tx: Tx, document: int) -> None:
    versions.drop_index(tx, [document])
    tx.do("delete from ended where document = ?", (document,))


def _lineage(tx: Tx, gone: set[int], found: set[int]) -> set[int]:
    """Add the documents of before whose bytes these were or became, and the nodes that carried them and are no more.
    Returns those of others, whom that is left to."""
    others: set[int] = set()
    more = _became(tx, found) - found
    while True:
        for document in more:
            _drop_index(tx, document)
        found |= more
        carried: list[Any] = tx.db.execute(_CARRIED, (json.dumps(sorted(found)),)).fetchall()
        gone.update(node for (node,) in carried)
        rows: list[Any] = tx.db.execute(_LINEAGE, _json(gone, found, others)).fetchall()
        known = _scopes(tx, [each for (each,) in rows])
        more = {each for each, scopes in known.items() if scopes and all(map(tx.visible.writable, scopes))}
        more = {each for each in more if version_visibility.may_purge_past(tx.db, each, tx.visible)}
        others |= {each for (each,) in rows}
        more |= _became(tx, found) - found  # they have no bytes but those
        others -= more
        if not more:
            return others


def _json(*several: set[int]) -> tuple[str, ...]:
    return tuple(json.dumps(sorted(each)) for each in several)


def _became(tx: Tx, documents: set[int]) -> set[int]:
    """Documents of before whose last version is one of these documents': files that were saved over them."""
    rows: list[Any] = tx.db.execute(
        "select document, body from past_version where encoding = ?", (int(Encoding.SAME),)
    ).fetchall()
    return {document for document, body in rows if SAME.unpack(body)[0] in documents}


def _forget_past(tx: Tx, of: tuple[str, ...], documents: set[int]) -> None:
    within = "document in (select value from json_each(?))"
    maps: list[Any] = tx.db.execute(
        f"select body from past_version where encoding = {int(Encoding.MAP)} and {within}", of[1:2]
    ).fetchall()
    for (packed,) in maps:
        content.release_map(tx.db, packed)
    tx.do(f"delete from past_version where {within}", of[1:2])
    version_visibility.forget(tx.db, documents)
    tx.do(f"delete from past_said where {within}", of[1:2])
    tx.do(_LINKS_LEFT, of[1:2])
    tx.do(f"delete from past where {_OF}", of)


def _forget_names(tx: Tx, of: tuple[str, ...], stood: set[bytes], directories: set[tuple[bytes, ...]]) -> set[bytes]:
    """Take the paths out of the log, which keeps their commitments, and out of what follows it: ``stood``, and all that
    its rows name; and what refusals name in these places and below the ``directories``. Returns these paths, and the
    names at their ends."""
    named = f"select seq, path, other, salt from log where {{}} and path <> x'' and length(salt) = {hash_chain.SALT}"
    rows: list[Any] = tx.db.execute(named.format(_OF), of).fetchall()
    said = stood | {bytes(each) for _, path, other, _ in rows for each in (path, other) if each}
    rows += [
        row for row in tx.db.execute(named.format(_OF_THE_LIVING), of[:1]) if not said.isdisjoint({row[1], row[2]})
    ]
    places = {paths.split(path) for path in said}
    settled: list[Any] = tx.db.execute(_REFUSED).fetchall()
    rows += [(seq, path, *more) for agent, path, seq, *more in settled if _is_of(agent, path, places, directories)]
    unsettled: list[Any] = tx.db.execute(_REFUSED_NOW).fetchall()
    for agent, path in unsettled:
        if _is_of(agent, path, places, directories):
            tx.do("update or replace refusal set path = x'' where agent = ? and path = ?", (agent, path))
    for seq, path, other, salt in rows:
        tx.do(
            "update log set path = x'', other = null, salt = ? where seq = ?",
            (hash_chain.committed(bytes(salt), bytes(path), other if other is None else bytes(other)), seq),
        )
    for path in said:
        tx.do("delete from outbox_throttle where path = ?", (path,))
    return said | {path.rpartition(b"/")[2] for path in said}


def _is_of(agent: str, path: bytes, places: set[tuple[bytes, ...]], directories: set[tuple[bytes, ...]]) -> bool:
    """Return whether a refusal names one of ``places``, or what is below ``directories``: as ``agent`` typed it, also
    as a view."""
    parts = paths.spelled_out(paths.split(bytes(path)), agent)
    if parts and (view := paths.parse_view(parts[-1])) is not None:
        parts = (*parts[:-1], view.base) if view.base else parts[:-1]
    return parts in places or any(parts[:length] in directories for length in range(len(parts)))


def _forget_deliveries(tx: Tx, nodes: set[int]) -> None:
    """Notices of them that have not been delivered, or not been read."""
    pieces: list[Any] = tx.db.execute(
        "select distinct subscription from outbox where state = ?", (deliveries.PIECE,)
    ).fetchall()
    for (subscription,) in pieces:  # of a digest that may go, and nobody would come to them
        fanout.assemble(tx, subscription)
    rows: list[Any] = tx.db.execute("select turn, events from outbox").fetchall()
    for turn, packed in rows:
        told = events.unpack(packed)
        left = [event for event in told if event.node not in nodes]
        if not left:
            tx.do("delete from outbox where turn = ?", (turn,))
        elif len(left) < len(told):
            tx.do("update outbox set events = ?, size = ? where turn = ?", (events.pack(left), len(left), turn))


def _blank_replies(tx: Tx, names: set[bytes]) -> None:
    """A reply is kept for a client that asks again; it may have named what it made."""
    texts = names | {paths.text(name) for name in names}

    def blank(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: blank(each) for key, each in value.items()}
        if isinstance(value, list):
            return [blank(each) for each in value]
        return type(value)() if isinstance(value, bytes | str) and value in texts else value

    rows: list[Any] = tx.db.execute("select client, reply from applied").fetchall()
    for client, reply in rows:
        if any(name in bytes(reply) for name in names):
            tx.do("update applied set reply = ? where client = ?", (wire.pack(blank(wire.unpack(reply))), client))
