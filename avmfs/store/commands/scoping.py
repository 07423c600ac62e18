"""Moving one node to another visibility class, and how a text came in, which spreads to all that is made of it.

The invariant: a document has every source of each document that it leads to by a link of the types in DERIVES. Called
by the commands inside their transaction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from avmfs import paths
from avmfs.access import Scope
from avmfs.errors import Denied, Invalid
from avmfs.node import DERIVES, Kind, Node
from avmfs.store.commands import command, versions
from avmfs.store.rows import content, copies, version_visibility
from avmfs.store.rows.content import Edit
from avmfs.store.rows.nodes import NODE_JOINED, members, node_of
from avmfs.store.schema.tables import BLOCK
from avmfs.store.tx.transaction import Tx
from avmfs.trust import Origin, origin_of

_MADE_OF = (
    f"select {NODE_JOINED} from link join document on document.id = link.source join node on node.id = document.node"
    f" where link.target = ? and link.type in ({', '.join('?' * len(DERIVES))}) and node.parent is not null"
)


def set_scope(tx: Tx, node: Node, scope: int, *, continues: bool = False) -> None:
    """Move a node to another visibility class: its index rows are hidden at once and made again, and its earlier
    versions stay with those who could see them; not those of a document that it ``continues``, which was there."""
    tx.db.execute("update node set scope = ? where id = ?", (scope, node.id))
    came = bool(tx.origin(scope).sources)
    if node.kind is Kind.FILE and came != bool(tx.origin(node.scope).sources):
        key = copies.came(tx.db, node.id, node.size, extents=versions.extents(tx, node.id)) if came else None
        tx.do("update node set came = ? where id = ?", (key, node.id))
    if node.document is not None:
        if not continues:
            _veil(tx, node.document, node.scope, scope)
        versions.drop_index(tx, [node.document])
        versions.enqueue(tx, node.document)


def of_either(tx: Tx, one: int, other: int) -> int | None:
    """The class of what those are told who see something of one class or the other: the same agents, and API keys for
    either's place. None where the classes differ in more than those."""
    if one == other:
        return one
    was, now = (tx.known.scopes.of(tx.db, each) for each in (one, other))
    if not _for_the_same_agents(was, now):
        return None
    return tx.known.scopes.intern(tx.db, replace(now, inside=now.inside | was.inside, leads=now.leads | was.leads))


def _for_the_same_agents(one: Scope, other: Scope) -> bool:
    return replace(one, inside=other.inside, leads=other.leads) == other


def _veil(tx: Tx, document: int, before: int, after: int) -> None:
    was, now = (tx.known.scopes.of(tx.db, each) for each in (before, after))
    if not _for_the_same_agents(was, now):
        version_visibility.draw(tx.db, document, before)
        return
    more = (now.inside | now.leads) - (was.inside | was.leads)  # the same agents see it, and keys with these areas
    if tops := [top for number, top in tx.known.areas if number in more]:
        version_visibility.draw(tx.db, document, before, version_visibility.written_since(tx.db, document, tops))


def shared_at(said: str | None, parts: tuple[bytes, ...]) -> tuple[str, ...] | None:
    """The ``:shared`` set that a node has at ``parts``, of what is stored of its document: none in a private space."""
    return members(said) if paths.agent_space(parts) is None else None


def taint(tx: Tx, node: Node, origin: Origin) -> None:
    """What the node's document says came so, too, and with it what all those say that are made of it."""
    waiting = [(node.id, origin)]
    while waiting:
        number, came = waiting.pop()
        found = tx.node(number)
        joined = tx.origin(found.scope).joined(came)
        if joined != tx.origin(found.scope):
            _set_origin(tx, found, joined)
            waiting += [(each.id, joined) for each in _made_of(tx, found)]


def came_in(tx: Tx, node: Node) -> None:
    """A node that has just been made says where its text came from, as one that is marked later: for the audit, and to
    what is made of a document that has come back to it."""
    if tx.origin(node.scope).sources:
        tx.log("trust", node, paths.join(tx.parts_of(node)))
        taint_made_of(tx, node)


def taint_copy(tx: Tx, node: Node, edits: list[Edit], after: content.Applied) -> Node:
    """The edits have made of a node's file, or have added to it, all that another one holds which the asker may read:
    it came as that did, as far as a bounded look finds it. Returns the node as it now is."""
    wholes = [(after.size, after.inline)]
    if node.size and len(edits) == 1 and edits[0][0] == "w" and edits[0][1] == node.size:
        wholes.append((len(edits[0][2]), bytes(edits[0][2])))
    before = origin = tx.origin(node.scope)
    most = iter(range(max(copies.COMPARED, after.size // BLOCK + 1)))
    for size, inline in wholes:
        if size > tx.index.max_bytes or not tx.who.may("read"):
            continue  # it is never quoted, or a mark would tell that a guess is right
        for other, extents, scope in copies.find(tx.db, node.id, size, inline, tx.now):
            joined = origin.joined(tx.origin(scope)) if scope in tx.visible else origin
            if joined != origin and copies.same(tx.db, node.id, inline, other, extents, size, most):
                origin = joined
    if origin == before:
        return node
    taint(tx, node, origin)
    return tx.node(node.id)


def taint_made_of(tx: Tx, node: Node) -> None:
    """The node's document has been joined by another, with its links."""
    if (origin := tx.origin(node.scope)).sources:
        for each in _made_of(tx, node):
            taint(tx, each, origin)


def _made_of(tx: Tx, node: Node) -> list[Node]:
    rows: list[Any] = tx.db.execute(_MADE_OF, (node.document, *DERIVES)).fetchall()
    return [node_of(row) for row in rows]


def _set_origin(tx: Tx, node: Node, origin: Origin) -> None:
    parts = tx.parts_of(node)
    names = tx.db.execute("select shared from document where id = ?", (tx.document_of(node),)).get
    # Whoever saw it sees it: earlier versions need no veil.
    set_scope(tx, node, scope := tx.scope_at(parts, shared_at(names, parts), origin), continues=True)
    held = tx.visible.held
    op = "let_out" if node.scope in held and scope not in held else "trust"  # of the first subscribers are told
    tx.log(op, tx.node(node.id), paths.join(parts))


@command
def set_sources(tx: Tx, node: int, sources: list[str]) -> dict[str, Any]:
    """How a file's text came in, beside its author's own words. Only an operator takes a source away."""
    found, origin = tx.writable(node), origin_of(sources)
    tx.document_of(found)
    before = tx.origin(found.scope)
    if tx.who.operator and before.sources != origin.sources:
        fewer = bool(sources) and {*sources} <= {*before.sources}
        _set_origin(tx, found, origin._replace(released=fewer and before.released))
        taint_made_of(tx, tx.node(node))
    elif gone := sorted(set(before.sources).difference(sources)):
        raise Denied(f"it came from {gone[0]!r}, which only an operator may take back")
    else:  # what is known is no news, and would be held again where it has been let out
        taint(tx, found, origin_of({*sources}.difference(before.sources)))
    return {}


@command
def let_out(tx: Tx, node: int) -> dict[str, Any]:
    """Whoever may change it lets a file out of quarantine: it is found again, and marked, and subscribers are told.
    What has been made of it is judged by itself."""
    if tx.writable(node).scope not in tx.visible.held:
        raise Invalid("not in quarantine")
    release(tx, node)
    return {}


def release(tx: Tx, node: int) -> None:
    """What the asker may write is let out, also where no rule holds it yet."""
    found = tx.node(node)
    origin = tx.origin(found.scope)
    if origin.sources and not origin.released:
        _set_origin(tx, found, origin._replace(released=True))
