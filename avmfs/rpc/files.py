"""Methods of the door about files and directories: read, write, list, move, remove.

They go through the same tree as a mount, so that a view is read and written here as there. Called through the registry.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import replace
from functools import lru_cache
from typing import Any

from avmfs import paths
from avmfs.errors import Invalid, IsDirectory, NotDirectory, NotFound, NotSupported, ReadOnly, TooBig
from avmfs.memory import Memory
from avmfs.node import Kind
from avmfs.rpc.identity import NOBODY
from avmfs.rpc.mail import WAIT_S
from avmfs.rpc.methods import method
from avmfs.search.then import REFUSED
from avmfs.store.queries.nodes import Reader
from avmfs.store.rows.system_dirs import refuse_fixed
from avmfs.store.schema.tables import ROOT
from avmfs.vfs import address
from avmfs.vfs.address import Alias, Real, Then
from avmfs.vfs.attributes import mode_of
from avmfs.vfs.tree import Tree
from avmfs.vfs.virtual_handles import ViewHandle
from avmfs.views import Rendered
from avmfs.views.shape import parts as split

PIECE = 8 * 1024 * 1024
VIEW_MOST = 32 * 1024 * 1024  # of a view, which comes in one answer
TOLD = 1000  # paths that a dry run names


@method
def read(
    memory: Memory, path: str, offset: int = 0, limit: int = PIECE, banner: bool = True, whole: bool = True
) -> dict[str, Any]:
    """A file or view from ``offset``. {"data", "more", "untrusted", "etag"}: a real file comes in pieces of ``limit``
    bytes (at most 8 MiB), a view whole; without ``whole`` a view does so, too, and only its last piece marks it as
    read, and only where all are of one rendering: one of up to 8 MiB is kept for this connection. Without ``banner`` no
    view has urgent mail on top: the caller shows that apart. ``untrusted``: where a file came from, if that is to be
    marked; views do so by themselves. ``etag``: pieces of a file that have the same one are of the same bytes; null of
    a view."""
    if offset < 0:
        raise Invalid(f"offset {offset}: expected 0 or more")
    if not 1 <= limit <= PIECE:
        raise Invalid(f"limit {limit}: expected 1 to {PIECE}")
    if not banner:
        quiet = replace(memory, quiet=True)
        try:
            return read(quiet, path, offset, limit, whole=whole)  # type: ignore[no-any-return]
        finally:
            memory.error = quiet.error
    tree = _tree(memory)
    found = _located(tree, path, where := _canonical(memory, path))
    if isinstance(found, address.ViewOf):
        with contextlib.suppress(ValueError):  # no number: the view says so
            if (wait := float(found.name.parameters().get("wait", 0))) > WAIT_S:
                raise Invalid(f"wait={wait:g} is too long here ({WAIT_S:g} s): avm inbox --wait, or a mount", path)
    asked = (where, memory.quiet)
    if offset and not whole and (begun := memory.pieces.begun(asked)) is not None:
        return _piece(memory, asked, *begun, offset, limit)
    handle = tree.open(found, os.O_RDONLY)
    try:
        if handle.direct and whole:
            data = bytearray()
            while piece := handle.read(offset + len(data), PIECE):
                data += piece
                require_sendable(data, path)
            return {"data": bytes(data), "more": False, "untrusted": "", "etag": None}
        if isinstance(handle, ViewHandle) and handle.rendered is not None:
            rendered = handle.rendered if offset == 0 else replace(handle.rendered, at_end=None)
            return _piece(memory, asked, rendered, 0, offset, limit)
        if isinstance(found, Real | Then) and not handle.direct:
            return _part(memory, found, offset, limit)
        part = handle.read(offset, limit)
        more = bool(handle.read(offset + len(part), 1))
        return {"data": part, "more": more, "untrusted": "", "etag": None}
    finally:
        handle.release()


def require_sendable(data: bytes | bytearray, path: str) -> None:
    """Of a view, before it is marked as read: what no answer can carry is read by nobody. Raises TooBig."""
    if len(data) > VIEW_MOST:
        raise TooBig(f"more than {VIEW_MOST} bytes of a view: read the file, or through a mount", path)


def _piece(
    memory: Memory, asked: tuple[bytes, bool], rendered: Rendered, told: int, offset: int, limit: int
) -> dict[str, Any]:
    """One of a view, of which so many bytes from its beginning were ``told``; the last one of all marks it as read."""
    part, more = rendered.data[offset : offset + limit], offset + limit < len(rendered.data)
    told = max(told, offset + len(part)) if offset <= told else told
    if rendered.at_end is not None and told < len(rendered.data):
        memory.pieces.keep(asked, rendered, told)
    else:
        memory.pieces.end(asked)
        if rendered.at_end is not None:
            rendered.at_end()
    return {"data": part, "more": more, "untrusted": "", "etag": None}


def _part(memory: Memory, found: Real | Then, offset: int, limit: int) -> dict[str, Any]:
    """A piece of a file, and what is told of it, as they are at one moment."""
    then, number = (memory.at(found.moment), found.node) if isinstance(found, Then) else (memory, found.node.id)
    with then.reading() as reader:
        node = reader.node(number)
        data = reader.read(number, offset, limit)
        return {
            "data": data,
            "more": offset + len(data) < node.size,
            "untrusted": reader.visible.untrusted(reader.trusted_as(node)),
            "etag": f"{node.id:x}.{node.ctime:x}.{node.size:x}",  # whatever changes its bytes sets its ctime
        }


@method
def write(
    memory: Memory,
    path: str,
    data: bytes,
    mode: str = "replace",
    instead_of: bytes | None = None,
    if_version: int | None = None,
) -> dict[str, Any]:
    """Write a file (``mode``: replace, create, append) or a view. {"path", "version"}. With ``instead_of``, the SHA-256
    of what was read, it is written only over just that; else Stale. With ``if_version`` only while that is the newest
    version's number; 0: while there is no file."""
    where = _canonical(memory, path)
    with memory.reading() as reader:
        try:
            real = isinstance(address.locate(memory, reader, where), address.Real)
        except NotFound as e:
            top = paths.split(where)[:1]
            if top == (address.ASK,):  # whose answer would be of this connection alone
                raise NotSupported("at a mount alone: recall takes a question of any length", path) from None
            # There is no view of what is not there, and no mailbox of nobody.
            if top == (paths.TELL,) or paths.parse_view(where.rpartition(b"/")[2]) is not None:
                raise NotFound(e.reason, path) from None
            real = True
    if real and paths.split_moment(where)[0] is not None:
        raise ReadOnly(REFUSED, path)
    parts, live = paths.split(where), memory.around.live
    if real and live is not None and live.takes(memory.who, parts):
        if mode != "replace" or instead_of is not None or if_version is not None:
            raise Invalid("a source takes what is written as a whole, whatever it has", path)
        live.write(memory.who, parts, data)
        return {"path": paths.text(where), "version": None}
    if real:
        memory.enroll()
        asked = {"instead_of": instead_of, "if_version": if_version}
        only = {name: value for name, value in asked.items() if value is not None}
        written = memory.submit("write_path", path=list(paths.split(where)), data=data, mode=mode, **only)
        return {"path": paths.text(where), "version": written["version"]}
    if instead_of is not None or if_version is not None:
        raise Invalid("instead_of and if_version are for files", path)
    tree = _tree(memory)
    handle = tree.open(tree.locate(where), os.O_WRONLY)
    try:
        handle.write(0, data)
        handle.flush()
    finally:
        handle.release()
    return {"path": paths.text(where), "version": None}


@method
def entries(memory: Memory, path: str = "/") -> list[dict[str, Any]]:
    """The entries of a directory, or the file itself: [{"name", "path", "kind", "size", "mtime", "mode"}] by name."""
    tree = _tree(memory)
    where = _canonical(memory, path)
    found = _located(tree, path, where)
    if isinstance(found, Real) and found.node.kind is Kind.DIRECTORY and found.node.id != ROOT:
        # In one question: a tree of this door has no open files, whose edits the store would not know.
        with memory.reading() as reader:
            writable = reader.visible.shown_writable
            return [
                _entry(where, node.name, mode_of(node, writable(node.scope)), node.size, node.mtime)
                for node in reader.children(found.node.id)
            ]
    if isinstance(found, Then) and found.kind is Kind.DIRECTORY and found.node != ROOT:
        with memory.at(found.moment).reading() as reader:
            below = reader.children(found.node)
            return [_entry(where, node.name, mode_of(node, False), node.size, node.mtime) for node in below]
    attributes = tree.attributes(found)
    if stat.S_ISDIR(attributes.mode):  # of the tree itself, not of the store
        named = [(name, tree.lookup(found, name)[1]) for name, _, _ in tree.names(found)]
    else:
        where, _, name = where.rpartition(b"/")
        named = [(name, attributes)]
    return [_entry(where, name, each.mode, each.size, each.mtime) for name, each in named]


@method
def remove(
    memory: Memory,
    path: str,
    recursive: bool = False,
    dry_run: bool = False,
    permanently: bool = False,
    instead_of: bytes | None = None,
) -> dict[str, Any]:
    """{"removed"}: how many nodes went, or would with ``dry_run``, which also has their "paths" (the first 1000). Notes
    go to the trash, unless ``permanently``. ``instead_of`` is the SHA-256 of the file that is to go: Stale where it has
    other bytes by now; or nothing (b""), for a directory in which nothing is: NotEmpty where something is by now."""
    if not dry_run:
        removed = memory.delete(path, recursive=recursive, permanently=permanently, instead_of=instead_of)
        return {"removed": removed}
    with memory.reading() as reader:
        node = memory.resolve(reader, path, follow=False)
        refuse_fixed(node, lambda: reader.path(node.id))
        if node.kind is Kind.DIRECTORY and not recursive:
            raise IsDirectory(path=path)
        found, waiting = [node], [node]
        while waiting:
            below = reader.children(directory.id) if (directory := waiting.pop()).kind is Kind.DIRECTORY else []
            found += below
            waiting += below
        shown = sorted(reader.path(each.id) for each in found[:TOLD])
    return {"removed": len(found), "paths": [paths.text(each) for each in shown]}


@method
def move(
    memory: Memory, source: str, target: str, dry_run: bool = False, instead_of: bytes | None = None
) -> dict[str, Any]:
    """{"moved": [[old, new]]}; with ``dry_run`` nothing is, and these would be. With ``instead_of`` one path becomes
    just the other, in the place of the file of that SHA-256 alone, else Stale, or (b"") of nothing, else Exists."""
    if instead_of is not None and not dry_run:
        memory.rename(paths.raw(source), paths.raw(target), instead_of)
        return {"moved": [[source, target]]}
    moved = memory.moves(source, target) if dry_run else memory.move(source, target)
    return {"moved": [[paths.text(old), paths.text(new)] for old, new in moved]}


@method
def locate(memory: Memory, path: str, follow: bool = True) -> dict[str, Any]:
    """Where a path leads by symlinks, by that of its last name where ``follow``. {"path", "exists", "store": which
    store that is of, another one once it is restored or repaired}; what does not exist of it stays as it is at its end,
    a symlink to nowhere among that."""
    parts = memory.real_parts(paths.raw(path))
    store = memory.store.nonce(NOBODY, 0, f"store{memory.store.life()}")
    with memory.reading() as reader:
        for length in range(len(parts), 0, -1):
            with contextlib.suppress(NotFound, NotDirectory):
                node = memory.resolve(reader, paths.join(parts[:length]), follow=follow or length < len(parts))
                where = paths.join((*split(reader.path(node.id)), *parts[length:]))
                return {"path": paths.text(where), "exists": length == len(parts), "store": store}
    return {"path": paths.text(paths.join(parts)), "exists": not parts, "store": store}


@method
def make_directory(memory: Memory, path: str) -> dict[str, Any]:
    memory.make_directories(memory.real_parts(paths.raw(path)))
    return {}


def _tree(memory: Memory) -> Tree:
    return Tree(memory, uid=os.getuid(), gid=os.getgid())


def _located(tree: Tree, path: str, where: bytes) -> address.Address:
    """What is there. An error names the path as it was asked for: the tree knows but its last name."""
    try:
        return tree.locate(where)
    except (NotFound, NotDirectory) as e:
        raise type(e)(e.reason, path) from None


def _canonical(memory: Memory, path: str, *, follow: bool = True) -> bytes:
    """The path with aliases spelled out and directories' symlinks followed; the last name may be a view."""
    text, rest = paths.split_moment(paths.raw(path))
    if text is not None:
        return b"/@" + paths.raw(text) + _canonical(memory.at(memory.moment(text)), paths.text(rest), follow=follow)
    parts = memory.real_parts(paths.raw(path))
    if not parts or parts[0] in (paths.TELL, address.ASK):
        return paths.join(parts)
    with memory.reading() as reader:
        directory = b"/" if len(parts) == 1 else reached(memory, reader, parts[:-1])
        where = directory.rstrip(b"/") + b"/" + parts[-1]
        try:
            found = address.locate(memory, reader, where)
        except NotFound:
            return where
        symlink = isinstance(found, address.Real) and found.node.kind is Kind.SYMLINK
        if follow and (symlink or isinstance(found, Alias)):
            return reader.path(memory.resolve(reader, where).id)
        return where


def reached(memory: Memory, reader: Reader, parts: tuple[bytes, ...]) -> bytes:
    """Where it is by symlinks, what does not exist of it as it is. Raises NotFound for a symlink that leads nowhere."""
    for length in range(len(parts), -1, -1):
        with contextlib.suppress(NotFound):
            found, rest = memory.resolve(reader, paths.join(parts[:length])), parts[length:]
            break
    else:  # an API key does not open the root
        raise NotFound
    if rest and reader.child(found.id, rest[0]) is not None:
        raise NotFound
    return paths.join((*split(reader.path(found.id)), *rest))


def _entry(where: bytes, name: bytes, mode: int, size: int, mtime: int) -> dict[str, Any]:
    kind, shown = _shown(mode)
    path = paths.text(where.rstrip(b"/") + b"/" + name)
    return {"name": paths.text(name), "path": path, "kind": kind, "size": size, "mtime": mtime, "mode": shown}


@lru_cache(maxsize=256)
def _shown(mode: int) -> tuple[str, str]:
    """The kind of a node and its mode as ls(1) writes it: the entries of a directory have few of them."""
    kind = "directory" if stat.S_ISDIR(mode) else "symlink" if stat.S_ISLNK(mode) else "file"
    return kind, stat.filemode(mode)
