"""Moving nodes: rename with its flags, documents that continue, scopes that follow."""

from __future__ import annotations

from typing import Any, NamedTuple

from avmfs import paths
from avmfs.errors import Denied, Exists, Invalid, IsDirectory, NotDirectory, NotEmpty, NotFound, Stale
from avmfs.node import Kind, Node
from avmfs.store.commands import namespace, scoping, versions
from avmfs.store.rows.log_ops import BESIDE, CARRIED, ORPHANED
from avmfs.store.rows.nodes import NODE_JOINED, node_of
from avmfs.store.tx.transaction import Tx
from avmfs.text import segment
from avmfs.trust import Origin

NOREPLACE = 1  # renameat2(2)
EXCHANGE = 2

_ENTRIES = (
    f"select {NODE_JOINED}, document.shared"
    " from node left join document on document.id = node.document where node.parent = ?"
)
_ALL_BELOW = "recursive below(id) as (select ?1 union all select node.id from node join below on parent = below.id)"
_FILES_BELOW = (
    f"with {_ALL_BELOW} select parent, name, document from node"
    " where id in (select id from below) and document is not null"
)
# How many directories stand one in the other below one, and how long the longest way of their names is: of those that
# the asker sees (?2), or a refusal would tell of others.
_BELOW = """with recursive below(id, deep, long) as (
  select ?1, 0, 0 union all
  select node.id, deep + 1, long + 1 + length(node.name) from below cross join node
    on node.parent = below.id and node.kind = 2 and node.scope in (select value from json_each(?2))
) select max(deep), max(long) from below"""


def rename(
    tx: Tx, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int = 0, instead_of: bytes | None = None
) -> dict[str, Any]:
    """Move a node; atomically replace what stands there. A replaced file's document continues. ``instead_of``: the
    SHA-256 of the file that is to be replaced, Stale where another stands there or none; b"": nothing, as NOREPLACE."""
    if flags & ~(NOREPLACE | EXCHANGE) or flags == NOREPLACE | EXCHANGE:
        raise Invalid(f"rename flags {flags}")
    here, source = namespace.entry(tx, parent, name)
    there = here if new_parent == parent else tx.directory(new_parent)
    namespace.refuse_fixed(tx, source)
    target = namespace.occupant(tx, there, new_name)
    if target is not None and target.id == source.id:
        return {"node": source.id}
    if source.kind is Kind.DIRECTORY and source.id in _ancestry(tx, there.id):
        raise Invalid("a directory cannot be moved into itself", paths.text(name))
    check_path(tx, source, there, new_name)
    if flags & EXCHANGE:
        return _exchange(tx, here, source, there, new_name, target)
    replaced: Node | None = None  # whose document goes on in the source, which is another node then
    check_replaced(tx, target, new_name, b"" if flags & NOREPLACE else instead_of)
    if target is not None:
        if _last_backup(here, source, there, target):
            namespace.remove(tx, there, target)
        else:
            source = _replace(tx, there, source, target)
            if source.kind is target.kind is Kind.FILE:
                replaced = target
    else:
        paths.check_name(new_name)
    if target is None and source.kind is Kind.FILE:
        # sed -i.bak: the old file went to a backup, the new one comes by rename.
        backup = versions.renamed_away(tx, there.id, new_name)
        if backup is not None and not versions.is_scratch(tx, source):
            versions.stay(tx, tx.document_of(backup))
        elif backup is not None and backup.id != source.id:
            replaced = backup
            source = _continue(tx, source, replaced, paths.join((*tx.parts(there.id), new_name)))
            versions.set_apart(tx, replaced, tx.document_of(source))
    move(tx, source, here, there, new_name, replaced)
    return {"node": source.id, "replaced": target.id if target is not None else None}


def check_replaced(tx: Tx, target: Node | None, name: bytes, instead_of: bytes | None) -> None:
    """Check that what stands where a node is to go, if anything, may be replaced; ``instead_of`` as in ``rename``."""
    if instead_of:
        tx.who.require("read")  # whether a guess is right
    where = paths.text(name)
    if target is not None and (instead_of == b"" or target.scope not in tx.visible):
        raise Exists(path=where)
    if instead_of and (target is None or versions.digest(tx, target) != instead_of):
        raise Stale("it has changed since it was read", where)
    if target is not None:
        tx.visible.require(target.scope, where)


def check_path(tx: Tx, node: Node, there: Node, name: bytes) -> None:
    """Check that it may stand there, with all that is below it. What is too deep already, in a store of before, may go
    where it is no deeper. Of what is below only the directories are looked at, and only where one could come to stand
    too deep."""
    before, parts = tx.parts_of(node), (*tx.parts(there.id), name)
    deeper, longer = len(parts) > len(before), paths.length(parts) > paths.length(before)
    if deeper or longer:
        row: Any = (0, 0)
        if node.kind is Kind.DIRECTORY:
            row = tx.db.execute(_BELOW, (node.id, tx.visible.json)).fetchone()
        if deeper:
            paths.check_depth(len(parts) + row[0])
        if longer:
            paths.check_length(paths.length(parts) + row[1])


def _last_backup(here: Node, source: Node, there: Node, target: Node) -> bool:
    """Does an editor replace the backup of its last save (emacs, vim with 'backup', sed -i.bak)? Then the old backup
    ends, and the source keeps its document, which is to come back under the name it now leaves."""
    return (
        here.id == there.id
        and source.kind is Kind.FILE
        and target.kind is Kind.FILE
        and versions.is_backup(source.name, target.name)
    )


def _replace(tx: Tx, there: Node, source: Node, target: Node) -> Node:
    """Make room: the kinds must fit, a directory must be empty, a file's document passes to the source. Returns the
    source as it then is."""
    where = paths.text(target.name)
    namespace.refuse_fixed(tx, target)
    if target.kind is Kind.DIRECTORY:
        if source.kind is not Kind.DIRECTORY:
            raise IsDirectory(path=where)
        namespace.clear_expired(tx, target.id)
        if not namespace.is_empty(tx, target.id):
            raise NotEmpty(path=where)
        tx.db.execute("delete from node where id = ?", (target.id,))
        tx.events.append((ORPHANED, target.id, None, b""))
        tx.known.forget_directories()
        tx.db.execute("delete from mark where subject = ?", (target.id,))
        return source
    if source.kind is Kind.DIRECTORY:
        raise NotDirectory(path=where)
    if source.kind is Kind.FILE and target.kind is Kind.FILE:
        source = _continue(tx, source, target, paths.join(tx.parts_of(target)))
        namespace.orphan(tx, target)
    else:
        namespace.remove(tx, there, target)
    return source


def _continue(tx: Tx, source: Node, target: Node, path: bytes) -> Node:
    """The target's document, which is or was at ``path``, goes on in the source. Returns the source with it."""
    source, last = versions.continue_document(tx, target, source)
    document, number = tx.document_of(source), last.number + 1
    seq = tx.log("write", source, path, version=number, scope=target.scope)
    versions.add_version(tx, document, number, source.size, seq, None)
    if last.creator != tx.who.name:
        advance_own_mark(tx, document, last.number, number, seq)
    if source.expires is not None:  # the kernel may keep its name for longer
        tx.events.append((BESIDE, source.id, source.parent, source.name))
    return source


def move(
    tx: Tx,
    source: Node,
    here: Node,
    there: Node,
    new_name: bytes,
    replaced: Node | None = None,
    *,
    by_system: bool = False,
) -> None:
    """Give a node another name, which is free, where the asker may write. ``replaced``: the node whose document it has
    taken over. ``by_system``: whoever may write there."""
    namespace.clear_expired_below(tx, source)  # what nobody is shown any more refuses nothing
    before = tx.parts_of(source)
    parts = (*tx.parts(there.id), new_name)
    said, left = _said_and_left(tx, source)
    origin = _origin(tx, source, replaced)
    scope = (tx.scope_at if by_system else tx.place)(parts, scoping.shared_at(said, parts), origin)
    tx.do("update node set parent = ?, name = ?, ctime = ? where id = ?", (there.id, new_name, tx.now, source.id))
    if source.kind is Kind.DIRECTORY:
        tx.known.forget_directories()
    if source.document is not None and replaced is None:
        if here.id == there.id and versions.is_backup(source.name, new_name):
            versions.leave(tx, source.document, here.id, source.name)
        elif left:
            versions.stay(tx, source.document)
    _charge_whom_it_enters(tx, source, before, parts)
    _requeue(tx, source, before, parts)
    moved = source._replace(parent=there.id, name=new_name, ctime=tx.now)
    below: list[_Rescoped] = []
    if source.kind is not Kind.DIRECTORY:
        _rescope_one(tx, moved, parts, said, replaced, by_system=by_system)
        if replaced is not None:
            scoping.taint_made_of(tx, tx.node(source.id))
    else:
        below = rescope(tx, moved, parts) if scope != source.scope else _refold(tx, moved, before, parts)
    _log_moved(tx, source, moved, scope, before, parts, below)
    tx.events.append(("rename", source.id, source.parent, source.name))
    tx.touch(here.id)
    if there.id != here.id:
        tx.touch(there.id)


def _exchange(tx: Tx, here: Node, source: Node, there: Node, new_name: bytes, target: Node | None) -> dict[str, Any]:
    if target is None or target.scope not in tx.visible:
        raise NotFound(path=paths.text(new_name))
    tx.visible.require(target.scope, paths.text(new_name))
    namespace.refuse_fixed(tx, target)
    if target.kind is Kind.DIRECTORY and target.id in _ancestry(tx, here.id):
        raise Invalid("a directory cannot be moved into itself", paths.text(new_name))
    check_path(tx, target, here, source.name)
    for each in (source, target):
        namespace.clear_expired_below(tx, each)
    were = tx.parts(source.id), tx.parts(target.id)
    # The unique index forbids two nodes under one name even for a moment: step aside first.
    tx.db.execute("update node set parent = null where id = ?", (target.id,))
    files = _place_exchanged(tx, source, were[0], there, new_name)
    others = _place_exchanged(tx, target, were[1], here, source.name)
    # First what goes: both may have had files of the same names.
    _log_removed(tx, files, were[0])
    _log_removed(tx, others, were[1])
    _log_created(tx, files, were[1])
    _log_created(tx, others, were[0])
    tx.touch(here.id)
    tx.touch(there.id)
    return {"node": source.id, "replaced": target.id}


def _place_exchanged(tx: Tx, node: Node, before: tuple[bytes, ...], directory: Node, name: bytes) -> list[_Rescoped]:
    """Returns as ``rescope`` does."""
    parts = (*tx.parts(directory.id), name)
    tx.place(parts, scoping.shared_at(_said(tx, node), parts), tx.origin(node.scope))
    _charge_whom_it_enters(tx, node, before, parts)
    tx.db.execute("update node set parent = ?, name = ?, ctime = ? where id = ?", (directory.id, name, tx.now, node.id))
    tx.known.forget_directories()
    _requeue(tx, node, before, parts)
    moved = tx.node(node.id)
    below = _refold(tx, moved, before, parts)
    tx.log("rename", tx.node(node.id), paths.join(parts), other=None)
    tx.events.append(("rename", node.id, node.parent, node.name))
    return below


def _requeue(tx: Tx, node: Node, before: tuple[bytes, ...], parts: tuple[bytes, ...]) -> None:
    """A file is found by its name as well, and by its name and its place it may be one that is not indexed."""
    ignores = tx.index.ignores
    if node.kind is Kind.DIRECTORY:
        if tx.index.ignores_by(before) or tx.index.ignores_by(parts):
            rows: list[Any] = tx.db.execute(_FILES_BELOW, (node.id,)).fetchall()
            for parent, name, document in rows:
                now = (*tx.parts(parent), bytes(name))
                if ignores(now) != ignores((*before, *now[len(parts) :])):
                    versions.enqueue(tx, document)
    elif node.document is not None:
        was, now_named = (segment.name_terms(paths.text(each[-1])) for each in (before, parts))
        if was != now_named or ignores(before) != ignores(parts):
            versions.enqueue(tx, node.document)


def _charge_whom_it_enters(tx: Tx, node: Node, before: tuple[bytes, ...], parts: tuple[bytes, ...]) -> None:
    """What comes into a private space, with all below it, is charged to its agent; what leaves one stays so. What comes
    out of the trash is charged to who takes it out, and is no longer to be emptied with it."""
    freed = paths.aside(before) == "trash" != paths.aside(parts)
    if freed:
        tx.db.execute(f"with {_ALL_BELOW} delete from removed where node in (select id from below)", (node.id,))
    agent = tx.owner_at(parts) if freed else paths.agent_space(parts)
    if agent is not None and (freed or agent != paths.agent_space(before)):
        tx.db.execute(
            f"with {_ALL_BELOW} update node set owner = ?2 where id in (select id from below) and owner is not ?2",
            (node.id, agent),
        )
    if (space := paths.agent_space(parts)) is not None and space != paths.agent_space(before):
        tx.db.execute(
            f"with {_ALL_BELOW} update document set charged = nullif(?2, creator)"
            " where id in (select document from node where id in (select id from below))"
            " and coalesce(charged, creator) is not ?2",
            (node.id, space),
        )


def _refold(tx: Tx, node: Node, before: tuple[bytes, ...], parts: tuple[bytes, ...]) -> list[_Rescoped]:
    """After a move: what is below a directory is looked at only if its scope can be another now. A directory of 100,000
    files would otherwise keep every agent waiting for seconds. Returns as ``rescope`` does."""
    if node.kind is not Kind.DIRECTORY or not tx.policy.alike(before, parts, tx.known.areas):
        return rescope(tx, node, parts)
    _rescope_one(tx, node, parts, None)
    return []


class _Rescoped(NamedTuple):
    """A file or symlink as it was before its scope changed with the place of a directory above, and the scope that it
    has now. ``below``: the names that lead to it from that directory."""

    node: Node
    scope: int
    below: tuple[bytes, ...]


def _log_moved(
    tx: Tx,
    source: Node,
    moved: Node,
    scope: int,
    before: tuple[bytes, ...],
    parts: tuple[bytes, ...],
    below: list[_Rescoped],
) -> None:
    """One row where the same agents see both places: an API key that sees one reads it as the half (see Standing), and
    for its sake what is below has rows as well, or a directory's would tell everybody else where somebody has a key.
    Else two: whoever loses sight of it learns that a name went, and nothing of where it went."""
    path, was = paths.join(parts), paths.join(before)
    either = scoping.of_either(tx, source.scope, scope)
    eithers = [None if either is None else scoping.of_either(tx, each.node.scope, each.scope) for each in below]
    changed = [each for each, both in zip(below, eithers, strict=True) if both is None]
    if either is None:
        tx.log("remove", source, was)
    _log_removed(tx, changed, before)
    if either is None:
        tx.log("create", tx.node(source.id), path)
    else:
        tx.log("rename", moved, path, other=was, scope=either)
    for each, both in zip(below, eithers, strict=True):
        if both is not None:
            there = paths.join((*parts, *each.below))
            tx.log(CARRIED, each.node, there, other=paths.join((*before, *each.below)), scope=both)
    _log_created(tx, changed, parts)


def _log_removed(tx: Tx, files: list[_Rescoped], before: tuple[bytes, ...]) -> None:
    """Tell who loses sight of files that they have gone from below ``before``, and nothing of where they went."""
    for each in files:
        tx.log("remove", each.node, paths.join((*before, *each.below)))


def _log_created(tx: Tx, files: list[_Rescoped], parts: tuple[bytes, ...]) -> None:
    """Tell who sees them now, each by its path: their directory's own row names none of them."""
    for each in files:
        tx.log("create", each.node, paths.join((*parts, *each.below)), scope=each.scope)


def rescope(tx: Tx, node: Node, parts: tuple[bytes, ...]) -> list[_Rescoped]:
    """Fold the scope of a node and of all below it anew for the place where it now stands. Returns the files and
    symlinks below it that have another one now, in order of path.

    Raises NotEmpty when something below that the asker may not change would change hands: like a
    removal of that directory, it would touch what the asker cannot see. Raises Denied when something
    would come to a place where the asker could not have made it.
    """
    waiting = [(node, parts, _said(tx, node))]  # no recursion: trees are deeper than Python's stack
    found: list[_Rescoped] = []
    while waiting:
        above, where, said = waiting.pop()
        scope = _rescope_one(tx, above, where, said)
        if scope != above.scope and above.kind is not Kind.DIRECTORY and above.id != node.id:
            found.append(_Rescoped(above, scope, where[len(parts) :]))
        if above.kind is Kind.DIRECTORY:
            # All that is needed of an entry at once: nobody else's change is committed until the last one is done.
            rows: list[Any] = tx.db.execute(_ENTRIES, (above.id,)).fetchall()
            waiting += [((below := node_of(row[:-1])), (*where, below.name), row[-1]) for row in rows]
    return sorted(found, key=lambda each: each.below)


def _rescope_one(
    tx: Tx,
    node: Node,
    parts: tuple[bytes, ...],
    said: str | None,
    replaced: Node | None = None,
    *,
    by_system: bool = False,
) -> int:
    """``replaced``, ``by_system``: see ``move``. Returns the scope that the node has now."""
    shared = scoping.shared_at(said, parts)
    if said is not None and shared is None:
        tx.db.execute("update document set shared = null where id = ?", (node.document,))
    scope = tx.scope_at(parts, shared, _origin(tx, node, replaced))
    if scope != node.scope:
        if not (by_system or tx.who.operator):  # nobody writes what is live, and rules change
            if not tx.visible.writable(node.scope):
                raise NotEmpty("something below is not yours to move")  # its name is not for the asker
            if not tx.visible.writable(scope):
                raise Denied("something below would come to where you may not write")
        scoping.set_scope(tx, node, scope, continues=replaced is not None)
    return scope


def advance_own_mark(tx: Tx, document: int, before: int, number: int, seq: int) -> None:
    """An agent's own write counts as read by it, if it had read all before; but for the document's
    creator, whose mark is in the document's row."""
    tx.do(
        "update mark set version = ?, seq = ? where agent = ? and subject = ? and version = ?",
        (number, seq, tx.who.name, document, before),
    )


def _origin(tx: Tx, node: Node, replaced: Node | None) -> Origin:
    """How what a node holds came in; of one that goes on with another's document, how that did too."""
    own = tx.origin(node.scope)
    return own if replaced is None else own.joined(tx.origin(replaced.scope))


def _said(tx: Tx, node: Node) -> str | None:
    """With whom the node's document is shared, as it is stored."""
    return _said_and_left(tx, node)[0]


def _said_and_left(tx: Tx, node: Node) -> tuple[str | None, bool]:
    """Return with whom the node's document is shared, and whether it has been renamed away to a backup."""
    if node.document is None:
        return None, False
    row: Any = tx.db.execute(
        "select shared, away_parent is not null from document where id = ?", (node.document,)
    ).fetchone()
    return row[0], bool(row[1])


def _ancestry(tx: Tx, node: int) -> set[int]:
    found: set[int] = set()
    row: int | None = node
    while row is not None:
        found.add(row)
        row = tx.db.execute("select parent from node where id = ?", (row,)).get
    return found
