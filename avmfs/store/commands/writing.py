"""Bytes: committing a handle's edits, appending at the store's end of file, writing by path."""

from __future__ import annotations

from typing import Any

from avmfs import paths
from avmfs.errors import Denied, Exists, Invalid, IsDirectory, NotDirectory, NotFound, Stale, TooBig
from avmfs.node import Kind, Node
from avmfs.signatures import is_stored_integer
from avmfs.store.commands import command, documents, namespace, renaming, scoping, signature, versions
from avmfs.store.rows import content, copies
from avmfs.store.rows.content import Edit
from avmfs.store.schema.tables import ROOT
from avmfs.store.tx.transaction import Tx
from avmfs.trust import origin_of

_MOVED_MAX = 64 * 1024 * 1024  # bytes that were appended while others wrote, of one file and at once


@command(native=True, fills_file=True)
def commit(
    tx: Tx,
    node: int,
    handle: int | None,
    edits: list[list[Any]],
    mtime: int | None = None,
    made: int | None = None,
) -> dict[str, Any]:
    """Lay a handle's edits over the bytes as they are now. {"size", "version", "seq"}.

    ``made`` is when the newest of them was made: what others have appended after that, and were told that it is there,
    comes behind them, as it would have if they had been committed at once. Adds "behind", how many bytes that are.

    ``mtime`` is when the newest of them was made, which is what the mount has already told (None, or where another
    handle has committed since: now).

    ``handle`` is the id of the writing handle: its commits within a second of each other are one
    version. An orphan's bytes change without a version: nobody will read it again by name. Without edits it is the
    file's times alone that change.
    """
    found, newest = versions.to_write(tx, node)
    tx.visible.require(found.scope)
    laid = [_edit(item) for item in edits]
    appends = [] if made is None else tx.known.appended_since(found, made)
    if not appends:
        return write(tx, found, newest, handle, laid, mtime)
    size = appends[0][1]
    behind, reaches = found.size - size, _reaches(laid, size)
    if reaches:
        laid = [("t", size), *laid, ("w", content.size_after(size, laid), _appended(tx, found, behind))]
    done = write(tx, found, newest, handle, laid, mtime)
    if reaches or done["size"] == found.size:
        # More edits may follow that were made as early: these may be a part, and another mount's come after them.
        tx.known.still_appended(tx.node(node), appends, behind)
    return {**done, "behind": behind}


def _reaches(edits: list[Edit], size: int) -> bool:
    """Return whether they cut a file of so many bytes, or write what comes behind them."""
    laid = [edit for edit in edits if edit[0] != "g"]
    return any(edit[0] == "t" for edit in laid) or content.size_after(size, laid) != size


def _appended(tx: Tx, node: Node, length: int) -> bytes:
    """The last bytes of a file. Raises TooBig for more than is moved at once."""
    if length > _MOVED_MAX:
        raise TooBig(f"more than {_MOVED_MAX >> 20} MiB have been appended meanwhile")
    return content.read(tx.db, node.id, node.size, versions.extents(tx, node.id), node.size - length, length)


@command(durable=False, native=True, appends=True)
def append(tx: Tx, node: int, handle: int | None, data: bytes) -> dict[str, Any]:
    """O_APPEND: the bytes go to the end of file as it is now, whatever the writer believed. Adds "offset"."""
    found, newest = versions.to_write(tx, node)
    tx.visible.require(found.scope)
    return {**_append(tx, found, newest, handle, data), "offset": found.size}


def _append(tx: Tx, node: Node, last: versions.Newest, handle: int | None, data: bytes) -> dict[str, Any]:
    done = write(tx, node, last, handle, [("w", node.size, data)])
    tx.known.appended(node, _changes(tx, node, tx.now), tx.now)
    return done


@command
def write_path(
    tx: Tx,
    path: list[bytes],
    data: bytes,
    mode: str = "replace",
    make_parents: bool = True,
    handle: int | None = None,
    instead_of: bytes | None = None,
    if_version: int | None = None,
    sources: list[str] | None = None,
    shared: list[str] | None = None,
    bits: int = 0o644,
    released: bool = False,
) -> dict[str, Any]:
    """Write a whole file by path, atomically. ``mode``: "replace", "create" (must be new) or "append".
    {"node", "new", "size", "version", "seq"}.

    ``instead_of`` is the SHA-256 of the bytes that are to be replaced: Stale where the file has others, or is not
    there any more. ``if_version`` is the newest version's number, 0 where there must be no file yet: Stale where it is
    another. It tells less: commits of one writing handle within a second have the same. ``sources``: how the data came
    in, where it is not the asker's own words (trust.SOURCES); ``released``: let out of quarantine (``Origin``). Of a
    file that is new: ``shared``, whom it is limited to, and ``bits``, its mode."""
    if mode not in ("replace", "create", "append"):
        raise Invalid(f"write mode {mode!r}")
    if instead_of:
        tx.who.require("read")  # whether a guess is right
    if not path:
        raise IsDirectory(path="/")
    directory = tx.node(ROOT)
    for name in path[:-1]:
        directory = descend(tx, directory, name, make_parents)
    where = paths.text(paths.join(tuple(path)))
    found = namespace.occupant(tx, directory, path[-1])
    if found is not None and (mode == "create" or found.scope not in tx.visible):
        raise Exists(path=where)
    if found is not None and found.kind is not Kind.FILE:
        raise IsDirectory(path=where) if found.kind is Kind.DIRECTORY else Invalid("a symlink", where)
    if instead_of is not None and (found is None or versions.digest(tx, found) != instead_of):
        raise Stale("it has changed since it was read", where)
    if if_version is not None and (head := _head(tx, found)) != if_version:
        raise Stale(f"it is at version {head}, not {if_version}", where)
    new, origin = found is None, origin_of(sources or ())
    _mode_allows(tx, directory if found is None else found, where)
    if found is None:
        above, anew = tx.directory(directory.id), mode == "create"
        found = namespace.make(tx, above, path[-1], Kind.FILE, bits, shared=shared, anew=anew, origin=origin)
        scoping.came_in(tx, found)
    tx.visible.require(found.scope, where)
    scoping.taint(tx, found, origin)
    as_it_is = versions.to_write(tx, found.id)
    if mode == "append":
        written = _append(tx, *as_it_is, handle, data)
    else:
        written = write(tx, *as_it_is, handle, [("t", 0), ("w", 0, data)])
    if released:
        scoping.release(tx, found.id)
    return {"node": found.id, "new": new, **written}


@command
def write_many(tx: Tx, items: list[list[Any]]) -> list[dict[str, Any]]:
    """Several new files in one transaction: [path, data] each; a taken name gets a number. All or none."""
    for item in items:
        if len(item) != 2 or type(item[0]) is not list or not all(type(part) in (list, bytes) for part in item):
            raise Invalid("write_many: each item is [path, data]")
        if not item[0] or not all(type(name) is bytes for name in item[0]):
            raise Invalid("write_many: a path is a list of names")
    return [_write_new(tx, path, data) for path, data in items]


@command
def remember(
    tx: Tx,
    path: list[bytes],
    data: bytes,
    title: str | None = None,
    tags: list[str] | None = None,
    importance: float | None = None,
    created: int | None = None,
    expires: int | None = None,
    supersedes: int | None = None,
    over: int | None = None,
    sources: list[str] | None = None,
) -> dict[str, Any]:
    """A new memory under a free name near ``path``, with what is known about it, in one step. ``created`` (ns) becomes
    its mtime; it vanishes at ``expires`` (ns); ``supersedes``: a file that holds no more. ``over``: the memory at
    ``path`` says the same, and this is its next version, if it is still at version ``over``; else Stale.
    ``sources`` as for ``write_path``. {"node", "path", "version", "seq"}."""
    if over is not None:
        return _again(tx, path, data, title, tags or [], importance, expires, supersedes, over, sources)
    documents.check_tags(len(tags or ()))
    user = None if title is None else documents.pack_user({"title": title})
    written = _write_new(tx, path, data, sources)
    node = tx.node(written["node"])
    document = tx.document_of(node)
    for name in tags or ():
        tx.db.execute("insert or ignore into tag(document, tag) values(?, ?)", (document, name))
    if importance is not None:
        tx.db.execute("update document set importance = ? where id = ?", (importance, document))
    if user is not None:
        tx.db.execute("update document set user = ? where id = ?", (user, document))
    if created is not None:
        tx.db.execute("update document set created = ? where id = ?", (created, document))
        tx.db.execute("update node set mtime = ? where id = ?", (created, node.id))
    if expires is not None:
        tx.db.execute("update node set expires = ? where id = ?", (expires, node.id))
    if supersedes is not None:
        documents.add_link(tx, node.id, supersedes, "supersedes")
    return written


def _again(
    tx: Tx,
    path: list[bytes],
    data: bytes,
    title: str | None,
    tags: list[str],
    importance: float | None,
    expires: int | None,
    supersedes: int | None,
    over: int,
    sources: list[str] | None,
) -> dict[str, Any]:
    written = write_path(tx, path, data, make_parents=False, if_version=over, sources=sources)
    node = tx.node(written["node"])
    if tags:
        documents.set_tags(tx, node.id, tags, [], replace=False)
    if importance is not None or title is not None:
        documents.merge_meta(tx, node.id, importance, {} if title is None else {"title": title})
    # Of the two lives the longer: whoever wrote either counts on it.
    until = None if node.expires is None or expires is None else max(node.expires, expires)
    if until != node.expires:
        documents.set_ttl(tx, node.id, until)
    if supersedes is not None:
        documents.add_link(tx, node.id, supersedes, "supersedes")
    return {"node": node.id, "path": paths.join(tuple(path)), **{key: written[key] for key in ("version", "seq")}}


@command
def remember_many(tx: Tx, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Several new memories in one transaction, each with the arguments of ``remember``. All or none."""
    for item in items:
        signature(remember).check(item)
    return [remember(tx, **item) for item in items]


def write(
    tx: Tx, node: Node, last: versions.Newest, handle: int | None, edits: list[Edit], mtime: int | None = None
) -> dict[str, Any]:
    """Apply edits to a file the asker may change; keep the version ``last`` that they supersede."""
    if node.kind is not Kind.FILE:
        raise IsDirectory()
    appends = content.only_appends(node.size, edits)
    if not appends:
        tx.known.written(node)
    inline, document = last.inline, node.document
    if document is None:
        after = _lay(tx, node, last, edits)
        _stamp(tx, node, last, after, handle, mtime)
        _charge(tx, node, after.size)
        tx.events.append(("write", node.id, None, b""))  # no log has it: it is no part of the tree
        return {"size": after.size, "version": None, "seq": None}
    if not edits:
        _stamp(tx, node, last, content.Applied(node.size, inline, last.body), handle, mtime)
        return {"size": node.size, "version": None, "seq": tx.log("attributes", node, paths.join(tx.parts_of(node)))}
    amend, before = False, None  # the bytes of the version that is to be stated against the new ones
    if versions.amendable(tx, document, last, handle, node, appends=appends):
        amend, before = versions.amend_for(tx, document, last, inline, edits)
    if not amend and versions.keep_for(tx, node, document, last, edits):
        before = inline
    after = _lay(tx, node, last, edits)
    _stamp(tx, node, last, after, handle, mtime)
    if tx.states is not None and amend:
        tx.states.goes_on(node.id, tx.now)
    if before is not None:
        versions.settle(tx, document, last.number - 1 if amend else last.number, before, after.inline)
    if not tx.mirrors and (after.inline is None or after.inline != inline):
        node = scoping.taint_copy(tx, node, edits, after)
    number = last.number if amend else last.number + 1
    if paths.aside(parts := tx.parts_of(node)) == "trash":
        _charge(tx, node, after.size)
    seq = tx.log("write", node, paths.join(parts), version=number)
    if amend:
        tx.do(
            "update version set at = ?, size = ?, seq = ? where document = ? and number = ?",
            (tx.now, after.size, seq, document, number),
        )
        versions.enqueue(tx, document)
    else:
        versions.add_version(tx, document, number, after.size, seq, handle)
    if last.creator != tx.who.name:
        renaming.advance_own_mark(tx, document, last.number, number, seq)
    return {"size": after.size, "version": number, "seq": seq}


def _charge(tx: Tx, node: Node, size: int) -> None:
    """Whoever lets a file grow that nobody is charged for, in the trash or without a name, is charged for it."""
    if size > node.size:
        tx.db.execute("update node set owner = ? where id = ? and owner is null", (tx.who.name, node.id))


def _head(tx: Tx, node: Node | None) -> int:
    """The newest version of a file; 0 for none."""
    if node is None:
        return 0
    return int(tx.db.execute("select head from document where id = ?", (tx.document_of(node),)).get)


def _mode_allows(tx: Tx, node: Node, where: str) -> None:
    """At a mount the kernel asks the mode. Who writes by path comes here, and would pass over a ``chmod a-w``."""
    if not node.mode & 0o222 and not tx.who.operator:
        raise Denied(
            f"the mode of {'its directory' if node.kind is Kind.DIRECTORY else 'the file'} allows no writing", where
        )


def _lay(tx: Tx, node: Node, last: versions.Newest, edits: list[Edit]) -> content.Applied:
    before = content.Applied(node.size, last.inline, last.body)
    piece = content.small_append(node.size, edits)
    if piece is not None:
        return content.append(tx.db, node.id, before, piece)
    return content.apply(tx.db, node.id, before, edits)


def _stamp(
    tx: Tx, node: Node, last: versions.Newest, after: content.Applied, handle: int | None, mtime: int | None
) -> None:
    """Times do not go back, or who has seen what another has committed since would take this for no change."""
    since = last.at if last.handle != handle else 0
    at = tx.now if mtime is None or mtime < since else min(mtime, tx.now)
    came = copies.came(tx.db, node.id, after.size, after.inline) if tx.origin(node.scope).sources else None
    tx.do(
        "update node set size = ?, extents = ?, body = ?, mtime = ?, ctime = ?, came = ? where id = ?",
        (after.size, int(after.extents), after.body, at, _changes(tx, node, at), came, node.id),
    )


def _changes(tx: Tx, node: Node, at: int) -> int:
    """The ctime of a file with bytes of then. It does not go back where the clock does: appends are known by it."""
    return at if at >= node.ctime else max(tx.now, node.ctime + 1)


def _edit(item: list[Any]) -> Edit:
    if len(item) in (2, 3) and is_stored_integer(item[1]) and item[1] >= 0:
        if item[0] in ("t", "g") and len(item) == 2:
            return (item[0], item[1])
        if item[0] == "z" and len(item) == 3 and is_stored_integer(item[2]) and item[2] >= item[1]:
            return ("z", item[1], item[2])
        if item[0] == "w" and len(item) == 3 and type(item[2]) is bytes:
            return ("w", item[1], item[2])
    raise Invalid("an edit is ['w', offset, bytes], ['t', size], ['g', size] or ['z', offset, end]")


def descend(tx: Tx, directory: Node, name: bytes, make_parents: bool) -> Node:
    """The directory of that name in another one, which is made where there is none and ``make_parents``."""
    found = namespace.occupant(tx, directory, name)
    if found is not None and found.scope in tx.visible and found.kind is Kind.DIRECTORY:
        return found
    where = paths.text(paths.join((*tx.parts(directory.id), name)))
    if found is None and make_parents:
        _mode_allows(tx, directory, where)
        return namespace.make(tx, tx.directory(directory.id), name, Kind.DIRECTORY, 0o755)
    if found is None or found.scope not in tx.visible:
        raise NotFound(path=where)
    raise NotDirectory(path=where)


def _write_new(tx: Tx, path: list[bytes], data: bytes, sources: list[str] | None = None) -> dict[str, Any]:
    """Like write_path, under a free name: note.md, else note-2.md, note-3.md, ..."""
    if not path:
        raise IsDirectory(path="/")
    directory = tx.node(ROOT)
    for name in path[:-1]:
        directory = descend(tx, directory, name, True)
    number = 1
    while tx.child(directory.id, _numbered(path[-1], number)) is not None:
        number *= 2
    taken = number // 2
    while number - taken > 1:  # thousands may have the name: halve, do not count
        middle = (taken + number) // 2
        if tx.child(directory.id, _numbered(path[-1], middle)) is not None:
            taken = middle
        else:
            number = middle
    name = _numbered(path[-1], number)
    written = write_path(tx, [*path[:-1], name], data, "create", sources=sources)
    return {**written, "path": paths.join((*path[:-1], name))}


def _numbered(name: bytes, number: int) -> bytes:
    """note.md, note-2.md, ...: a long stem is cut at a character's boundary so that the number fits."""
    stem, dot, suffix = name.rpartition(b".")
    if not stem:
        stem, dot, suffix = name, b"", b""
    tail = b"-%d" % number + dot + suffix if number > 1 else dot + suffix
    room = paths.NAME_MAX - len(tail)
    return stem[:room].decode("utf-8", "ignore").encode() + tail if len(stem) > room else stem + tail
