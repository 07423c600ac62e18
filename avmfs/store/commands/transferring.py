"""What comes from elsewhere, whole: a file, directory or symlink with all that is said of it, in one step.

The log says who brought it and when, as of everything: whoever imports becomes neither another author nor another time.
"""

from __future__ import annotations

from typing import Any

from avmfs import paths
from avmfs.access import Principal
from avmfs.errors import Invalid
from avmfs.store.commands import aside, command, documents, messages, namespace, scoping, signature, writing
from avmfs.store.schema.tables import PRIVATE, ROOT
from avmfs.store.tx.transaction import Tx
from avmfs.trust import origin_of


@command
def put(
    tx: Tx,
    path: list[bytes],
    data: bytes | None = None,
    target: bytes | None = None,
    mode: int | None = None,
    created: int | None = None,
    mtime: int | None = None,
    tags: list[str] | None = None,
    importance: float | None = None,
    expires: int | None = None,
    shared: list[str] | None = None,
    user: dict[str, Any] | None = None,
    instead_of: bytes | None = None,
    sources: list[str] | None = None,
    released: bool = False,
    laid: bytes | None = None,
) -> dict[str, Any]:
    """A file of these bytes, or the one of the name ``laid`` beside it, a symlink to ``target``, or what is there or a
    directory (none given), with what is said of it; what is None stays. A file that is there already is Exists unless
    ``instead_of`` is the SHA-256 of its bytes (see ``write_path``, for ``sources`` and ``released`` too). Times in ns.
    {"node"}."""
    if len(path) < 2 or path[0] != paths.MEMORY:
        raise Invalid("not below /memory", paths.text(paths.join(tuple(path))))
    _enroll(tx, path)
    if data is not None:
        how = {"mode": "create"} if instead_of is None else {"mode": "replace", "instead_of": instead_of}
        node = writing.write_path(tx, path, data, **how, sources=sources, shared=shared)["node"]
    elif target is not None:
        node = _symlink(tx, path, target)
    else:
        node = _standing(tx, path) if laid is None else _moved(tx, path, laid, instead_of or b"")
    found = tx.writable(node)
    own = mtime if found.document is None else None
    if (mode is not None and mode != found.mode) or own is not None:
        namespace.set_attributes(tx, node, mode=mode, mtime=own)
    if found.document is None:
        if released:
            raise Invalid("only files are held in quarantine", paths.text(paths.join(tuple(path))))
        return {"node": node}
    if mtime is not None:
        tx.db.execute("update node set mtime = ? where id = ?", (mtime, node))
    if sources and data is None:
        scoping.taint(tx, found, origin_of(sources))
    if released:
        scoping.release(tx, node)
    if created is not None:
        tx.db.execute("update document set created = ? where id = ?", (created, found.document))
    if data is None and (mtime, created) != (None, None):  # no write has told of it
        tx.db.execute("update node set ctime = ? where id = ?", (tx.now, node))
        tx.log("attributes", found, paths.join(tuple(path)))
    if tags:
        documents.set_tags(tx, node, tags, [], replace=True)
    if user or importance is not None:
        documents.merge_meta(tx, node, importance, user or {})
    if expires is not None:
        documents.set_ttl(tx, node, expires)
    if shared is not None:
        documents.set_shared(tx, node, shared)
    return {"node": node}


@command
def put_many(tx: Tx, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several in one transaction, each with the arguments of ``put``. All or none."""
    for item in items:
        signature(put).check(item)
    return [put(tx, **item) for item in items]


def _enroll(tx: Tx, path: list[bytes]) -> None:
    """An operator may bring what is private to an agent that this store does not know yet."""
    owner = paths.agent_space(tuple(path))
    if tx.who.operator and owner is not None and tx.child(PRIVATE, path[2]) is None:
        asker, tx.who = tx.who, Principal(owner)
        try:
            messages.enroll(tx)
        finally:
            tx.who = asker


def _moved(tx: Tx, path: list[bytes], laid: bytes, instead_of: bytes) -> int:
    there = _standing(tx, path[:-1])
    return int(aside.rename(tx, there, laid, there, path[-1], instead_of=instead_of, trash=True)["node"])


def _symlink(tx: Tx, path: list[bytes], target: bytes) -> int:
    parent = _standing(tx, path[:-1])
    return int(namespace.symlink(tx, parent, path[-1], target)["node"])


def _standing(tx: Tx, path: list[bytes]) -> int:
    """What is there; where nothing is, directories are made."""
    node = tx.node(ROOT)
    for depth, name in enumerate(path, 1):
        found = namespace.occupant(tx, node, name)
        last = depth == len(path)
        if found is not None and last and found.scope in tx.visible:
            return found.id
        node = writing.descend(tx, node, name, True)
    return node.id
