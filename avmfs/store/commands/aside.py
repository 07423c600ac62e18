"""Removing files and putting them out of the way: /trash, /archive, and the way back.

Owns the table removed and the mirrors of /memory below the two directories. What stands there keeps its document and
is under the rights of where it came from (``access.Policy.scope``); no search or list of the rest has it. Called by the
doors and by mounts.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final

from avmfs import paths
from avmfs.errors import Exists, Invalid, IsDirectory, NotFound, Stale
from avmfs.node import Kind, Node
from avmfs.store.commands import command, indexing, namespace, renaming, versions
from avmfs.store.rows.log_ops import BESIDE
from avmfs.store.schema.tables import ARCHIVE, ROOT, TRASH
from avmfs.store.tx.transaction import Tx, new_id

YOUNG_NS: Final = 60 * 10**9  # what was made since is no note that anybody could miss
NAMED_MAX: Final = 200  # bytes of a name that gets a number
_MOST_MIRRORS: Final = 32  # doublings
_TRASHED: Final = "(select id from scope where spec like '%;~trash%')"  # what is not there any more is not emptied
_TOPS: Final = {paths.TRASH: TRASH, paths.ARCHIVE: ARCHIVE}
_TOOLS: Final = (b".git", b".hg", b".svn")  # a tool makes and removes what is below a directory that has one of these
# Whether such a directory ?1 is, or one that it is in; of the whole memory (?2) nobody asks.
_MANAGED: Final = (
    "with recursive up(id) as (select ?1 union all select parent from up cross join node using (id))"
    " select 1 from up cross join node on node.parent = up.id where up.id <> ?2 and name in (?, ?, ?) limit 1"
)
_SUFFIX: Final = re.compile(rb"(?s)\A(.+)(\.[^.]{1,15})\Z")


@command(frees_space=True, native=True)
def unlink(tx: Tx, parent: int, name: bytes, trash: bool = False, instead_of: bytes | None = None) -> dict[str, Any]:
    """Remove a file or symlink. Its document ends; its bytes stay while a mount has it open. With ``trash`` a note
    goes there instead (``_worth_keeping``). ``instead_of``: the SHA-256 of what is to be removed; Stale where it has
    other bytes by now. {"node", "kept"}."""
    if instead_of:
        tx.who.require("read")  # whether a guess is right
    directory, node = namespace.entry(tx, parent, name)
    if node.kind is Kind.DIRECTORY:
        raise IsDirectory(path=paths.text(name))
    if instead_of is not None and versions.digest(tx, node) != instead_of:
        raise Stale("it has changed since it was read", paths.text(name))
    if trash and _worth_keeping(tx, node, parts := tx.parts_of(node)):
        _discard(tx, directory, node, parts)
        return {"node": node.id, "kept": True}
    namespace.remove(tx, directory, node)
    return {"node": node.id, "kept": False}


@command(native=True)
def rename(
    tx: Tx,
    parent: int,
    name: bytes,
    new_parent: int,
    new_name: bytes,
    flags: int = 0,
    instead_of: bytes | None = None,
    trash: bool = False,
) -> dict[str, Any]:
    """See ``renaming.rename``. With ``trash`` a note goes there whose place a symlink takes, as it cannot go on."""
    if trash and not flags and namespace.entry(tx, parent, name)[1].kind is Kind.SYMLINK:
        there = tx.directory(new_parent)
        target = namespace.occupant(tx, there, new_name)
        if target is not None and _worth_keeping(tx, target, parts := tx.parts_of(target)):
            renaming.check_replaced(tx, target, new_name, instead_of)
            _discard(tx, there, target, parts)
            instead_of = None  # which held
    return renaming.rename(tx, parent, name, new_parent, new_name, flags, instead_of)


def _worth_keeping(tx: Tx, node: Node, parts: tuple[bytes, ...]) -> bool:
    """Return whether a file that is removed goes to the trash: a text that is searched, older than a minute, that no
    version control manages; and there is room on the disk, and in the trash a place of that name."""
    if not tx.spacious or node.kind is not Kind.FILE or node.document is None or paths.aside(parts) == "trash":
        return False
    if paths.origin(parts) == (paths.MEMORY, paths.PRIVATE):  # an older avmfs let it take the place of the directory
        return False
    found: Any = tx.db.execute(
        "select created, head, due, exists(select 1 from unindexed where document = ?1) from document where id = ?1",
        (node.document,),
    ).fetchone()
    created, head, due, unindexed = found
    if not head or 0 <= tx.now - created < YOUNG_NS or tx.index.leaves_out(parts, node.size) is not None:
        return False
    # While it waits to be indexed anew, what it was does not count.
    if unindexed and (due is None or not indexing.readable(tx, node.document)):
        return False
    return not tx.db.execute(_MANAGED, (node.parent, ROOT, *_TOOLS)).get


def _discard(tx: Tx, directory: Node, node: Node, parts: tuple[bytes, ...]) -> None:
    """Move a file from its directory into the trash, where nobody is charged for it."""
    there = _mirror(tx, paths.origin(parts), paths.TRASH, node.kind)
    owner = tx.db.execute("select owner from node where id = ?", (node.id,)).get
    renaming.move(tx, node, directory, there, node.name, by_system=True)
    tx.events.append((BESIDE, node.id, there.id, node.name))
    tx.do("update node set owner = null where id = ?", (node.id,))
    tx.do("delete from claim where document = ?", (node.document,))
    tx.do(
        "insert or replace into removed(node, at, agent, path, owner) values(?, ?, ?, ?, ?)",
        (node.id, tx.now, tx.who.name, paths.join(parts), owner),
    )


@command
def archive(tx: Tx, parent: int, name: bytes) -> dict[str, Any]:
    """Move a file, or a directory with all below it, to the same place below /archive. {"path"}: where it is now."""
    directory, node = namespace.entry(tx, parent, name)
    namespace.refuse_fixed(tx, node)
    parts = tx.parts_of(node)
    if paths.aside(parts):
        raise Invalid(f"it is in the {paths.aside(parts)} already", paths.text(paths.join(parts)))
    there = _mirror(tx, parts, paths.ARCHIVE, node.kind)
    return {"path": _transfer(tx, node, directory, there, name)}


@command
def put_back(tx: Tx, node: int, to: list[bytes] | None = None) -> dict[str, Any]:
    """Move what is in the trash or the archive back to where it was, or to the path ``to`` below /memory, under a free
    name where that is taken. Missing directories are made. {"path"}: where it is now."""
    found = tx.writable(node)
    parts = tx.parts_of(found)
    if not paths.aside(parts) or found.id in _TOPS.values():
        raise Invalid("neither in the trash nor in the archive", paths.text(paths.join(parts)))
    namespace.refuse_fixed(tx, found)
    row: Any = None
    if paths.aside(parts) == "trash":
        row = tx.db.execute("select path, owner from removed where node = ?", (found.id,)).fetchone()
    was = paths.origin(parts) if row is None else paths.split(bytes(row[0]))
    target = tuple(to) if to is not None else was
    if len(target) < 2 or (to is not None and target[0] != paths.MEMORY):  # nothing comes into itself
        raise Invalid("expected a path below /memory", paths.text(paths.join(target)))
    if to is not None:
        paths.check_name(target[-1])
    assert found.parent is not None
    here, top = tx.node(found.parent), target[0]
    there = _mirror(tx, paths.origin(target), top, found.kind) if top in _TOPS else _made(tx, target[:-1])
    path = _transfer(tx, found, here, there, target[-1])
    if row is not None:
        owner = paths.agent_space(target) or row[1] or tx.who.name
        tx.do("update node set owner = ? where id = ?", (owner, found.id))
    prune(tx, here)
    return {"path": path}


@command(frees_space=True)
def empty_trash(tx: Tx, before: int, limit: int = 256, under: list[bytes] | None = None) -> dict[str, Any]:
    """Remove files for good that have been in the trash since before ``before`` (ns), those that the asker may remove,
    ``limit`` at most; ``under``: those that were below this path. {"removed", "more"}."""
    place = b"" if not under else paths.join(tuple(under))
    rows: list[Any] = tx.db.execute(
        "select node.id from removed cross join node on node.id = removed.node"
        " where removed.at < :before and node.parent is not null"
        " and node.scope in (select value from json_each(:scopes))"  # others' trash may be any number
        " and (removed.path = :place or substr(removed.path, 1, length(:below)) = :below)"
        " order by removed.at, node.id limit :some",
        {
            "before": before,
            "scopes": tx.visible.emptied_json,
            "place": place,
            "below": place + b"/",
            "some": limit + 1,
        },
    ).fetchall()
    for (number,) in rows[:limit]:
        found = tx.node(number)
        assert found.parent is not None
        directory = tx.node(found.parent)
        namespace.remove(tx, directory, found)
        tx.do("delete from removed where node = ?", (number,))
        prune(tx, directory)
    return {"removed": min(len(rows), limit), "more": len(rows) > limit}


@command(durable=False, frees_space=True)
def trim_trash(tx: Tx, before: int, most: int, limit: int = 256) -> dict[str, Any]:
    """Remove what is too long in the trash, since before ``before`` (ns), or is too much: of each agent's removals the
    oldest that are more than ``most`` bytes together. {"removed"}."""
    tx.require_operator()
    tx.do(f"delete from removed where node not in (select id from node where scope in {_TRASHED})")
    rows: list[Any] = tx.db.execute(
        "select node, parent from (select removed.node, parent, removed.at, sum(size) over"
        " (partition by agent order by removed.at desc, removed.node) as kept"
        " from removed join node on node.id = removed.node where parent is not null)"
        " where at < ? or kept > ? order by at limit ?",
        (before, most, limit),
    ).fetchall()
    for number, parent in rows:
        directory = tx.node(parent)
        namespace.remove(tx, directory, tx.node(number))
        tx.do("delete from removed where node = ?", (number,))
        prune(tx, directory)
    return {"removed": len(rows)}


def _transfer(tx: Tx, node: Node, here: Node, there: Node, name: bytes) -> bytes:
    """Move a node to another directory; into a directory of that name, what is in it. Where something else has the name
    it goes into another mirror, or outside of these gets another name. Returns where it is now."""
    taken = namespace.occupant(tx, there, name)
    if taken is None or taken.kind is not Kind.DIRECTORY or node.kind is not Kind.DIRECTORY:
        parts = (*tx.parts(there.id), name)
        if taken is not None and parts[0] in _TOPS:
            return _transfer(tx, node, here, _mirror(tx, paths.origin(parts), parts[0], node.kind), name)
        name = _free(tx, there.id, name)
        renaming.check_path(tx, node, there, name)
        renaming.move(tx, node, here, there, name)
        return paths.join((*tx.parts(there.id), name))
    namespace.clear_expired(tx, node.id)
    rows: list[Any] = tx.db.execute("select id, name from node where parent = ? order by name", (node.id,)).fetchall()
    for number, below in rows:
        child = tx.node(number)
        tx.visible.require(child.scope)
        _transfer(tx, child, tx.node(node.id), tx.node(taken.id), bytes(below))
    namespace.remove_directory(tx, here, tx.node(node.id))
    return paths.join(tx.parts(taken.id))


def _mirror(tx: Tx, place: tuple[bytes, ...], top: bytes, kind: Kind) -> Node:
    """The directory in the trash or the archive, ``top``, for what is called ``place``, made where it is missing,
    whoever may write above it: in a mirror where the name is free, or where one directory can join another."""

    def suits(number: int) -> bool:
        parts = paths.mirror(place, top, number)
        return paths.origin(parts) == place and _is_room(tx, parts, kind)

    most = next((1 << power for power in range(_MOST_MIRRORS) if suits(1 << power)), None)
    if most is None:  # an older avmfs let a file take the name of the way to all of them
        raise Exists(
            "a file is there, where a directory is needed", paths.text(paths.join(paths.mirror(place, top)[:2]))
        )
    numbers = range(most // 2 + 1, most)  # a name may have been removed thousands of times
    number = most // 2 + 1 + bisect_left(numbers, True, key=suits)
    parts = paths.mirror(place, top, number)
    node = _TOPS[top]
    for depth, name in enumerate(parts[1:-1], 2):
        if (found := tx.child(node, name)) is None:
            made, where = new_id(), parts[:depth]
            owner = None if top == paths.TRASH else tx.owner_at(where)
            tx.do(
                "insert into node(id, parent, name, kind, mode, mtime, ctime, scope, owner)"
                " values(?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (made, node, name, int(Kind.DIRECTORY), 0o755, tx.now, tx.now, tx.scope_at(where), owner),
            )
            found = tx.node(made)
            tx.log("mkdir", found, paths.join(where))
            tx.events.append((BESIDE, made, node, name))
            tx.touch(node)
        node = found.id
    return tx.node(node)


def _is_room(tx: Tx, parts: tuple[bytes, ...], kind: Kind) -> bool:
    """Return whether nothing is at a place and no file above it, or a directory where one comes."""
    node = tx.node(_TOPS[parts[0]])
    for name in parts[1:]:
        if (found := tx.child(node.id, name)) is None:
            return node.kind is Kind.DIRECTORY
        node = found
    return node.kind is kind is Kind.DIRECTORY


def mirrors(tx: Tx, place: tuple[bytes, ...]) -> Iterator[tuple[bytes, ...]]:
    """Where what is called ``place`` stands in the trash and the archive, if it does; and where it would, since what is
    above has the scope of a way to it."""
    for top, node in _TOPS.items():
        yield paths.mirror(place, top)
        for at in {1, len(paths.space(place))}:
            space = namespace.descend(tx, tx.node(node), place[1:at])
            rows: list[Any] = tx.db.execute("select name from node where parent = ?", (space and space.id,)).fetchall()
            for (name,) in rows:
                if paths.origin(further := (top, *place[1:at], bytes(name), *place[at:])) == place:
                    yield further


def _made(tx: Tx, parts: tuple[bytes, ...]) -> Node:
    """The directory at ``parts``, made as the asker where it is missing."""
    found = tx.node(ROOT)
    for name in parts:
        below = namespace.occupant(tx, found, name)
        if below is None:
            below = namespace.make(tx, tx.directory(found.id), name, Kind.DIRECTORY, 0o755)
        elif below.scope not in tx.visible:
            raise NotFound(path=paths.text(paths.join(parts)))
        elif below.kind is not Kind.DIRECTORY:
            raise Exists("a file is there, where a directory is needed", paths.text(paths.join(tx.parts_of(below))))
        found = below
    return tx.directory(found.id)


def prune(tx: Tx, directory: Node) -> None:
    """Remove a mirrored directory that has become empty, and those above it."""
    tops = _TOPS.values()
    namespace.prune(tx, directory, lambda each: each.id in tops or not paths.aside(tx.parts(each.id)))


def _free(tx: Tx, parent: int, name: bytes) -> bytes:
    """``name``, or ``stem (2).suffix`` and so on where it is taken."""
    found = _SUFFIX.match(name)
    stem, suffix = (found[1], found[2]) if found is not None else (name, b"")
    number, free = 1, name
    while tx.child(parent, free) is not None:
        number += 1
        free = b"%b (%d)%b" % (stem[: NAMED_MAX - len(suffix)], number, suffix)
    return free
