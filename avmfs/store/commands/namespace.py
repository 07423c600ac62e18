"""Names: making and removing files, directories and symlinks, and a node's own attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from avmfs import paths
from avmfs.errors import Exists, IsDirectory, NotDirectory, NotEmpty, NotFound
from avmfs.node import UNOWNED, Kind, Node
from avmfs.store.commands import command, versions
from avmfs.store.rows import content, system_dirs
from avmfs.store.rows.log_ops import ORPHANED, RIGHTS
from avmfs.store.schema.tables import ROOT
from avmfs.store.tx.transaction import Tx, new_id
from avmfs.trust import OWN, Origin

# The directories below one that hold what has expired, found from below.
_EXPIRED_BELOW = """with recursive above(first, id) as (
  select distinct parent, parent from node where expires <= ?2 and parent is not null
  union all select first, parent from above join node on node.id = above.id where above.id <> ?1 and parent is not null
) select first from above where id = ?1"""


@command(durable=False, native=True, begins_file=True)
def create(
    tx: Tx, parent: int, name: bytes, mode: int, exclusive: bool, uid: int | None = None, gid: int | None = None
) -> dict[str, Any]:
    """Make an empty file, or find the one that another mount made first. {"node", "new"}; of a new one also "row", its
    columns, which spare whoever made it a look.

    Raises Exists when ``exclusive`` finds a name: the store decides, whatever a mount has cached.
    """
    directory = tx.directory(parent)
    if (found := occupant(tx, directory, name)) is not None:
        if exclusive or found.scope not in tx.visible:
            raise Exists(path=paths.text(name))
        if found.kind is Kind.DIRECTORY:
            raise IsDirectory(path=paths.text(name))
        return {"node": found.id, "new": False}
    node = make(tx, directory, name, Kind.FILE, mode, uid, gid)
    return {"node": node.id, "new": True, "row": [*node[:3], int(node.kind), *node[4:]]}


@command(native=True)
def mkdir(
    tx: Tx, parent: int, name: bytes, mode: int, uid: int | None = None, gid: int | None = None
) -> dict[str, Any]:
    directory = tx.directory(parent)
    if occupant(tx, directory, name) is not None:
        raise Exists(path=paths.text(name))
    return {"node": make(tx, directory, name, Kind.DIRECTORY, mode, uid, gid).id}


@command(native=True)
def symlink(
    tx: Tx, parent: int, name: bytes, target: bytes, uid: int | None = None, gid: int | None = None
) -> dict[str, Any]:
    directory = tx.directory(parent)
    if occupant(tx, directory, name) is not None:
        raise Exists(path=paths.text(name))
    node = make(tx, directory, name, Kind.SYMLINK, 0o777, uid, gid)
    tx.do(
        "update node set size = ?, body = ? where id = ?", (len(target), content.set_body(tx.db, None, target), node.id)
    )
    return {"node": node.id}


@command(frees_space=True, native=True)
def rmdir(tx: Tx, parent: int, name: bytes) -> dict[str, Any]:
    """Remove an empty directory; a child that the asker cannot see counts."""
    directory, node = entry(tx, parent, name)
    if node.kind is not Kind.DIRECTORY:
        raise NotDirectory(path=paths.text(name))
    refuse_fixed(tx, node)
    remove_directory(tx, directory, node)
    return {"node": node.id}


def remove_directory(tx: Tx, directory: Node, node: Node) -> None:
    """Take an empty directory out of the one that it is in. Raises NotEmpty."""
    clear_expired(tx, node.id)
    if not is_empty(tx, node.id):
        raise NotEmpty(path=paths.text(node.name))
    tx.log("rmdir", node, paths.join(tx.parts(node.id)))
    tx.db.execute("delete from node where id = ?", (node.id,))
    tx.known.places.pop(node.id, None)  # nothing is below: where the others stand is as before
    tx.db.execute("delete from mark where subject = ?", (node.id,))
    tx.touch(directory.id)


@command(durable=False, native=True)
def set_attributes(
    tx: Tx,
    node: int,
    mode: int | None = None,
    uid: int | None = None,
    gid: int | None = None,
    atime: int | None = None,
    mtime: int | None = None,
    explicit: bool = True,
) -> dict[str, Any]:
    """chmod, chown, utimens: what is None stays, an UNOWNED id becomes None. ``explicit`` False keeps ctime (an
    implied change)."""
    found = tx.writable(node)
    if mtime is not None and atime is None:
        atime = found.atime  # which follows mtime until it is set
    changes = {"mode": mode, "uid": uid, "gid": gid, "atime": atime, "mtime": mtime}
    given: dict[str, int | None] = {column: value for column, value in changes.items() if value is not None}
    given |= {column: None for column in ("uid", "gid") if given.get(column) == UNOWNED}
    if not tx.who.operator:
        system_dirs.refuse_closing(found, mode, uid, gid, lambda: _path(tx, found))
    if given:
        assignments = ", ".join(f"{column} = :{column}" for column in given)
        tx.db.execute(
            f"update node set {assignments}, ctime = :ctime where id = :id",
            {**given, "ctime": tx.now if explicit else found.ctime, "id": node},
        )
        tx.log("attributes", found, _path(tx, found))
        rights = (given.get("mode", found.mode), given.get("uid", found.uid), given.get("gid", found.gid))
        if rights != (found.mode, found.uid, found.gid):
            tx.events.append((RIGHTS, found.id, found.parent, found.name))
    return {}


def occupant(tx: Tx, directory: Node, name: bytes) -> Node | None:
    """Who has the name now. One whose ttl has passed gives it up."""
    found = tx.child(directory.id, name)
    if found is not None and found.expires is not None and found.expires <= tx.now:
        remove(tx, directory, found)
        return None
    return found


def entry(tx: Tx, parent: int, name: bytes) -> tuple[Node, Node]:
    """A directory and its entry, both of which the asker may change."""
    directory = tx.directory(parent)
    node = occupant(tx, directory, name)
    if node is None or node.scope not in tx.visible:
        raise NotFound(path=paths.text(name))
    tx.visible.require(node.scope, paths.text(name))
    return directory, node


def make(
    tx: Tx,
    directory: Node,
    name: bytes,
    kind: Kind,
    mode: int,
    uid: int | None = None,
    gid: int | None = None,
    by_system: bool = False,
    shared: list[str] | None = None,
    anew: bool = False,
    origin: Origin = OWN,
) -> Node:
    """A new node under a free name, in the scope of its place, with its document if it is a file. ``by_system``:
    whoever may write there. ``shared``: whom it is limited to, where a file can be, as a new document. ``anew``: it is
    no editor's save of what it has renamed away. ``origin``: how its text comes in; a held file's name is a stranger's,
    and told to nobody from the first row of the log on."""
    paths.check_name(name)
    parts = (*tx.parts(directory.id), name)
    paths.check_path(parts)
    scope = (tx.scope_at if by_system else tx.place)(parts, None, origin)
    made = new_id()
    document: int | None = None
    expires: int | None = None
    saves = kind is Kind.FILE and shared is None and not anew
    back = versions.reclaim(tx, directory.id, name, made) if saves else None
    if back is not None:
        document, names, expires, came = back
        scope = (tx.scope_at if by_system else tx.place)(parts, names, came.joined(origin))
    elif kind is Kind.FILE:
        document = versions.new_document(tx, made, read=0)
        if shared is not None and paths.agent_space(parts) is None:
            scope = tx.place(parts, versions.share(tx, document, tx.who.name, shared), origin)
        if (space := tx.owner_at(parts)) != tx.who.name:
            tx.do("update document set charged = ? where id = ?", (space, document))
    mode, now, owner = mode & 0o7777, tx.now, tx.owner_at(parts)
    node = Node(made, directory.id, name, kind, mode, uid, gid, 0, now, now, now, scope, document, expires)
    tx.do(
        "insert into node(id, parent, name, kind, mode, uid, gid, mtime, ctime, scope, document, expires, owner)"
        " values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (made, directory.id, name, int(kind), mode, uid, gid, now, now, scope, document, expires, owner),
    )
    tx.log("create" if kind is not Kind.DIRECTORY else "mkdir", node, paths.join(parts))
    tx.touch(directory.id)
    return node


def remove(tx: Tx, directory: Node, node: Node) -> None:
    """Take a file or symlink out of its directory; its document ends with it."""
    tx.log("remove", node, _path(tx, node))
    stays = tx.orphans and node.kind is Kind.FILE
    if stays:  # the trigger sees it while its document is there
        orphan(tx, node)
    elif tx.states is not None:
        tx.states.see(node.id)
    if node.document is not None:
        versions.drop_document(tx, node.document)
    if not stays:
        orphan(tx, node)
    tx.touch(directory.id)


def orphan(tx: Tx, node: Node) -> None:
    """Detach a node from the tree; its bytes go now, or once no mount holds it open."""
    tx.events.append((ORPHANED, node.id, None, b""))
    if tx.orphans and node.kind is Kind.FILE:
        tx.do(
            "update node set parent = null, document = null, expires = null, owner = null, ctime = ? where id = ?",
            (tx.now, node.id),
        )
    else:
        content.release(tx.db, node.id)
        tx.db.execute("delete from node where id = ?", (node.id,))


def clear_expired(tx: Tx, directory: int) -> None:
    """Remove the children whose ttl has passed, so that they do not keep a directory alive."""
    holder = tx.node(directory)
    rows: list[Any] = tx.db.execute(
        "select id from node where parent = ? and expires <= ?", (directory, tx.now)
    ).fetchall()
    for (child,) in rows:
        remove(tx, holder, tx.node(child))


def clear_expired_below(tx: Tx, node: Node) -> None:
    """The same for all that is below a directory: a directory may hold any number, few wait for the keeper."""
    if node.kind is Kind.DIRECTORY:
        rows: list[Any] = tx.db.execute(_EXPIRED_BELOW, (node.id, tx.now)).fetchall()
        for (directory,) in rows:
            clear_expired(tx, directory)


def refuse_fixed(tx: Tx, node: Node) -> None:
    system_dirs.refuse_fixed(node, lambda: _path(tx, node))


def _path(tx: Tx, node: Node) -> bytes:
    if node.parent is None and node.id != ROOT:
        return b""
    return paths.join(tx.parts_of(node))


def descend(tx: Tx, directory: Node, path: Sequence[bytes]) -> Node | None:
    """What stands at a path below a directory, whoever may see it."""
    for name in path:
        if (found := tx.child(directory.id, name)) is None:
            return None
        directory = found
    return directory


def is_empty(tx: Tx, node: int) -> bool:
    """Return whether nothing is below it: so of a file."""
    return not tx.db.execute("select 1 from node where parent = ? limit 1", (node,)).get


def prune(tx: Tx, directory: Node, stays: Callable[[Node], bool]) -> None:
    """Remove a directory that has become empty, and those above it, up to one that ``stays``."""
    while directory.parent is not None and not stays(directory) and is_empty(tx, directory.id):
        above = tx.node(directory.parent)
        remove_directory(tx, above, directory)
        directory = above
