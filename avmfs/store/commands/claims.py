"""Claims: who works on which file, so that agents share work. Owns the table claim.

A claim is advice to other agents, not a lock: it hinders nobody's writing. It belongs to the document, so it follows
renames, and it ends by its lease, by ``release``, or with the file. Exactly one agent has it: commands run one by one.
What is claimed by who may not change it any more, anybody who may claims or releases.
"""

from __future__ import annotations

from typing import Any, Final

from avmfs import paths
from avmfs.access import Access
from avmfs.errors import Busy, Denied, Invalid, NotFound
from avmfs.node import Kind, Node
from avmfs.store.commands import command
from avmfs.store.rows.claims import LEASE_MAX_NS, OVER
from avmfs.store.tx.transaction import Tx

CANDIDATES: Final = 256  # that one command looks at


@command
def claim(tx: Tx, nodes: list[int], lease: int, parent: int | None = None) -> dict[str, Any]:
    """Claim a file for ``lease`` ns from now, or renew the asker's own claim of it. Raises Busy, naming who has it.

    With ``parent`` the first of ``nodes`` that is still in that directory, not in quarantine, that the asker may change
    and that nobody has claimed, this agent included. {"node", "until", "path"}; node None where there is none, and of
    no nodes."""
    if not 0 < lease <= LEASE_MAX_NS:
        raise Invalid("a lease is more than 0s and at most 30d")
    if len(nodes) > CANDIDATES or (parent is None and len(nodes) != 1):
        raise Invalid(f"claim: 1 file, or up to {CANDIDATES} of a directory, not {len(nodes)}")
    tx.do(f"delete from claim where {OVER}", {"now": tx.now})
    for number in nodes:
        try:
            found = tx.writable(number)
        except (Denied, NotFound):
            if parent is None:
                raise
            continue
        if parent is not None and (
            found.parent != parent or found.kind is not Kind.FILE or found.scope in tx.visible.held
        ):
            continue
        document = tx.document_of(found)
        holder = tx.db.execute("select agent from claim where document = ?", (document,)).get
        mine = parent is None and (holder == tx.who.name or _lapsed(tx, found, holder))
        if holder is None or mine:
            return {**_take(tx, found, document, lease), "path": paths.join(tx.parts_of(found))}
        if parent is None:
            raise Busy(f"{holder} has claimed it")
    return {"node": None, "until": None, "path": None}


def _take(tx: Tx, node: Node, document: int, lease: int) -> dict[str, Any]:
    until = tx.now + lease
    tx.do(
        "insert into claim(document, agent, since, until) values(?1, ?2, ?3, ?4) on conflict(document) do update"
        " set agent = ?2, since = iif(agent = ?2, since, ?3), until = ?4",
        (document, tx.who.name, tx.now, until),
    )
    tx.log("claim", node, paths.join(tx.parts_of(node)))
    return {"node": node.id, "until": until}


def _lapsed(tx: Tx, node: Node, holder: str | None) -> bool:
    return holder is not None and tx.known.scopes.of(tx.db, node.scope).of(holder) < Access.WRITE


@command(frees_space=True)
def release(tx: Tx, node: int) -> dict[str, Any]:
    """Give up the asker's claim of a file; an operator anybody's. Of what nobody has claimed nothing is done. As for a
    claim, an API key is one for writing."""
    tx.who.require("write")
    found = tx.seen(node)
    document = tx.document_of(found)
    bound = {"document": document, "now": tx.now}
    holder = tx.db.execute(f"select agent from claim where document = :document and not {OVER}", bound).get
    if holder is not None:
        lapsed = tx.visible.writable(found.scope) and _lapsed(tx, found, holder)
        if holder != tx.who.name and not tx.who.operator and not lapsed:
            raise Denied(f"{holder} has claimed it")
        tx.do("delete from claim where document = ?", (document,))
        tx.log("release", found, paths.join(tx.parts_of(found)))
    return {"released": holder is not None}
