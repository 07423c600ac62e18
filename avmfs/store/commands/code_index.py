"""The notes of an index of code, below /index, which nothing else writes.

Owns whose index a project's is. Everybody may read there at most (``access.Policy.scope``), so every other command
refuses; this one writes for the agent that made the project's folder.
"""

from __future__ import annotations

import re
from typing import Any, Final

from avmfs import paths
from avmfs.errors import Denied, Invalid, IsDirectory, NotDirectory
from avmfs.node import Kind, Node
from avmfs.store.commands import command, documents, namespace, renaming, signature, versions, writing
from avmfs.store.schema.tables import INDEX, INDEX_PRIVATE
from avmfs.store.tx.transaction import Tx

_PROJECT: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@command
def write_index(tx: Tx, project: bytes, items: list[dict[str, Any]], private: bool = False) -> dict[str, Any]:
    """Bring notes of a project up to date, all or none: each item with the arguments of ``_put``. ``private``: of the
    asker's own index. {"written"}. Raises Denied where the project is another agent's."""
    tx.who.require_itself()
    if tx.who.nameless:
        raise Denied("an index belongs to an agent")
    tx.policy.require(tx.who, "write")
    if not _PROJECT.fullmatch(project) or project == paths.PRIVATE:
        raise Invalid(f"project {paths.text(project)!r}: expected letters, digits, . _ - (64 at most), and not private")
    top = (paths.INDEX, paths.PRIVATE, paths.raw(tx.who.name)) if private else (paths.INDEX,)
    if tx.scope_at((*top, project)) not in tx.visible:
        raise Denied("no index can be kept where you may not see it", paths.text(paths.join((*top, project))))
    for item in items:
        signature(_put).check({**item, "where": [], "folder": 0})
    base = _own(tx, top[-1]) if private else tx.node(INDEX)
    folder = _folder(tx, base, project)
    owner = tx.db.execute("select owner from node where id = ?", (folder.id,)).get
    if owner != tx.who.name and not tx.who.operator:
        raise Denied("this project's index is another agent's", paths.text(paths.join((*top, project))))
    for item in items:
        _put(tx, folder.id, [*top, project], **item)
    _prune(tx, folder, base)
    return {"written": len(items)}


def _put(
    tx: Tx,
    folder: int,
    where: list[bytes],
    path: list[bytes],
    data: bytes | None = None,
    user: dict[str, Any] | None = None,
    was: list[bytes] | None = None,
) -> None:
    """Write a note of these bytes at ``path`` below a project; None: remove it. ``was``: the note of what has moved,
    which moves as the same document. ``user``: its metadata."""
    if not path:
        raise IsDirectory(path=paths.text(paths.join(tuple(where))))
    paths.check_path((*where, *path))
    here = tx.node(folder)
    if data is None:
        if (found := _found(tx, here, path)) is not None:
            _remove(tx, here, *found)
        return
    directory = here
    for name in path[:-1]:
        directory = _folder(tx, directory, name)
    note = namespace.occupant(tx, directory, path[-1])
    if note is None:
        paths.check_name(path[-1])
    if note is None and was is not None and (old := _found(tx, here, was)) is not None:
        renaming.move(tx, old[1], old[0], directory, path[-1], by_system=True)
        _prune(tx, old[0], here)
        note = tx.node(old[1].id)
    if note is None:
        note = namespace.make(tx, directory, path[-1], Kind.FILE, 0o644, by_system=True)
    if note.kind is not Kind.FILE:
        raise IsDirectory(path=paths.text(paths.join((*where, *path))))
    writing.write(tx, *versions.to_write(tx, note.id), None, [("t", 0), ("w", 0, data)])
    if user is not None:
        tx.do("update document set user = ? where id = ?", (documents.pack_user(user), tx.document_of(note)))


def _own(tx: Tx, agent: bytes) -> Node:
    """The folder for an agent's private indexes. It stays, and nothing shows when it was made."""
    above = tx.node(INDEX_PRIVATE)
    if (found := tx.child(above.id, agent)) is None:
        found = namespace.make(tx, above, agent, Kind.DIRECTORY, 0o755, by_system=True)
        tx.do("update node set mtime = ?, ctime = ? where id = ?", (above.mtime, above.ctime, above.id))
    return found


def _folder(tx: Tx, directory: Node, name: bytes) -> Node:
    """The directory of that name, made where it is missing."""
    found = namespace.occupant(tx, directory, name)
    if found is None:
        return namespace.make(tx, directory, name, Kind.DIRECTORY, 0o755, by_system=True)
    if found.kind is not Kind.DIRECTORY:
        raise NotDirectory(path=paths.text(name))
    return found


def _found(tx: Tx, directory: Node, path: list[bytes]) -> tuple[Node, Node] | None:
    """The directory that a note is in, and the note."""
    note = namespace.descend(tx, directory, path)
    if note is None or note.kind is not Kind.FILE or note.parent is None:
        return None
    return tx.node(note.parent), note


def _remove(tx: Tx, top: Node, directory: Node, note: Node) -> None:
    namespace.remove(tx, directory, note)
    _prune(tx, directory, top)


def _prune(tx: Tx, directory: Node, top: Node) -> None:
    """Remove a directory that has become empty, and those above it below ``top``."""
    namespace.prune(tx, directory, lambda each: each.id == top.id)
