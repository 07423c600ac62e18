"""Methods of the door for whoever takes memory out or brings it in: all that is known of each node, page by page, many
nodes at once, notes of an index of code, and the log as the history of names. Called through the registry."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any

from avmfs import calls, paths, wire
from avmfs.access import Access
from avmfs.errors import AvmError, Denied, Invalid, IsDirectory, NameTooLong, NotDirectory, NotFound, Stale
from avmfs.memory import Memory
from avmfs.node import Kind, Node
from avmfs.rpc.documents import LARGEST
from avmfs.rpc.methods import method
from avmfs.store.commands.documents import check_tag
from avmfs.store.queries.nodes import Reader
from avmfs.store.schema.tables import ROOT

PAGE = 1000  # nodes of one answer
PUT = 500  # of one transaction: others wait meanwhile
INLINE, ANSWER = 256 * 1024, 4 * 1024 * 1024  # bytes of a file that come with it, and of an answer that ends a page
PIECE = 1024 * 1024
_OF_A_ROW = attrgetter("seq", "at", "op", "agent", "document", "version")


@method
def records(
    memory: Memory,
    path: str = "/memory",
    after: str | None = None,
    limit: int = PAGE,
    data: bool = False,
    digest: bool = False,
) -> dict[str, Any]:
    """All below a directory, or a file alone, in the order of their names, a directory before what is in it. {"root",
    "kind", "records", "next"}: give ``next`` back as ``after`` until it is None. A record is {"path", "kind", "size",
    "mode", "mtime"}, of a symlink "target", of a file "document", "seq", "author", "created", "tags", "links" [[path,
    type]], "importance", "expires", "shared", "user", "sources", "released" (let out) and what is asked for: "data" of
    one that is not too large for an answer, "digest" (SHA-256). Times in ns. Each page is a moment of its own."""
    if not 1 <= limit <= PAGE:
        raise Invalid(f"limit {limit}: expected 1 to {PAGE}")
    with memory.reading() as reader:
        top = memory.resolve(reader, path)
        root = paths.split(reader.path(top.id))
    passed = () if after is None else paths.split(paths.raw(after))[len(root) :]
    walk = below(memory, top, root, passed) if top.kind is Kind.DIRECTORY else iter([(root, top)])
    found: list[dict[str, Any]] = []
    room, last = ANSWER, None
    for where, node in walk:
        calls.go_on()
        try:
            with memory.reading() as reader:
                each = _record(reader, where, reader.node(node.id))
                if data and node.kind is Kind.FILE and node.size <= min(INLINE, room):
                    each["data"] = reader.read(node.id, 0, each["size"])
            if digest and node.kind is Kind.FILE:
                each["digest"] = _digest(memory, node.id)
        except (NotFound, Stale):
            continue  # it has gone since
        found.append(each)
        with contextlib.suppress(OverflowError):  # a number beyond 64 bits: the door says so of the whole answer
            room -= len(wire.pack(each))
        if len(found) == limit or room <= 0:
            last = each["path"]
            break
    kind = top.kind.name.lower()
    return {"root": paths.text(paths.join(root)), "kind": kind, "records": found, "next": last}


@method
def put(memory: Memory, items: list[Any], dry: bool = False) -> list[Any]:
    """Bring files, directories and symlinks in: each with what the store's command ``put`` takes, ``path`` as text. For
    each None, or why not: [errno, reason]. All in one transaction, or, where one is refused, each in its own. ``dry``:
    nothing is brought in, and of each only its place and tags are judged."""
    if len(items) > PUT:
        raise Invalid(f"{len(items)} items: at most {PUT} at a time")
    made: list[dict[str, Any]] = []
    answers: list[list[Any] | None] = [None] * len(items)
    numbers: list[int] = []
    if not memory.who.operator and not dry:  # who restores a store needs no space of its own in it
        memory.enroll()
    for number, item in enumerate(items):
        try:
            if not isinstance(item, dict) or not isinstance(item.get("path"), str):
                raise Invalid(f"item {number}: expected a mapping with a path")
            tags = item.get("tags") or []
            if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
                raise Invalid(f"item {number}: tags: expected a list of text")
            where = memory.real_parts(paths.raw(item["path"]))
            if dry:
                _require_place(memory, where)
            made.append({**item, "path": list(where), "tags": sorted(map(check_tag, tags))})
            numbers.append(number)
        except AvmError as e:
            answers[number] = [e.code, e.reason]
    if dry:
        return answers
    try:
        memory.submit("put_many", items=made)
    except AvmError:
        for number, each in zip(numbers, made, strict=True):
            try:
                memory.submit("put", **each)
            except AvmError as e:
                answers[number] = [e.code, e.reason]
    return answers


def _require_place(memory: Memory, where: tuple[bytes, ...]) -> None:
    """Raises why nothing could be put there: its name, what stands in the way, or whose it is."""
    shown = paths.text(paths.join(where))
    if len(where) < 2 or where[0] != paths.MEMORY:
        raise Invalid("not below /memory", shown)
    paths.check_path(where)
    for name in where:
        paths.check_name(name)
    with memory.reading() as reader:
        there = reader.node(ROOT)
        node: Node | None = there
        for name in where:
            if node is not None and node.kind is not Kind.DIRECTORY:
                raise NotDirectory(path=shown)
            there = node or there
            node = None if node is None else reader.child(node.id, name)
        may = memory.store.cached_writable(memory.who, (node or there).scope)
        if node is None and (may or memory.who.key is None):  # a key's areas are known of what is there alone
            may = reader.people.policy().scope(where).access(replace(memory.who, key=None)) is Access.WRITE
    if not may:
        raise Denied("not writable for you", shown)


@method
def names_log(memory: Memory, path: str = "/memory", after: int = 0, limit: int = PAGE) -> dict[str, Any]:
    """Rows of the log about what is below a directory, oldest first: {"rows": [[seq, at, op, agent, document, version,
    path, was]], "next"}: give that back as ``after`` until it is None."""
    if not 1 <= limit <= PAGE:
        raise Invalid(f"limit {limit}: expected 1 to {PAGE}")
    if not 0 <= after <= LARGEST:
        raise Invalid(f"after {after}: expected the next of an answer before")
    with memory.reading() as reader:
        rows = reader.changes(memory.resolve(reader, path).id, after_seq=after, limit=limit, newest_first=False)
    told = [[*_OF_A_ROW(row), paths.text(row.path), paths.text(row.other or b"")] for row in rows]
    return {"rows": told, "next": rows[-1].seq if len(rows) == limit else None}


def below(
    memory: Memory, directory: Node, where: tuple[bytes, ...], passed: tuple[bytes, ...]
) -> Iterator[tuple[tuple[bytes, ...], Node]]:
    """``passed`` are the names from here to the last that has been told."""
    name = passed[0] if passed else b""
    inside = memory.store.cached_child(memory.who, directory.id, name) if passed else None
    if inside is not None and inside.kind is Kind.DIRECTORY:
        yield from below(memory, inside, (*where, name), passed[1:])
    more = True
    while more:
        try:
            found, more = memory.store.cached_children(memory.who, directory.id, name, PAGE)
        except (NotFound, Stale):
            return
        for child in found:
            name = child.name
            if not where and paths.is_live((name,)):
                continue  # it is what other programs have
            yield (*where, name), child
            if child.kind is Kind.DIRECTORY:
                yield from below(memory, child, (*where, name), ())


def _record(reader: Reader, where: tuple[bytes, ...], node: Node) -> dict[str, Any]:
    path, kind = paths.text(paths.join(where)), node.kind.name.lower()
    plain = {"path": path, "kind": kind, "size": node.size, "mode": node.mode, "mtime": node.mtime}
    if node.kind is Kind.SYMLINK:
        return {**plain, "target": paths.text(reader.target(node.id))}
    if node.kind is not Kind.FILE:
        return plain
    document, origin = reader.document(node), reader.visible.origin(node.scope)
    newest = reader.versions(document.id)[:1]
    return {
        **plain,
        "document": document.id,
        "seq": newest[0].seq if newest else 0,
        "author": document.creator,
        "created": document.created,
        "tags": reader.tags(document.id),
        "links": [[paths.text(each.path), each.type] for each in reader.links(document.id) if each.outgoing],
        "importance": document.importance,
        "expires": node.expires,
        "shared": None if document.shared is None else list(document.shared),
        "user": document.user,
        "sources": [*origin.sources],
        "released": origin.released,
    }


def _digest(memory: Memory, node: int) -> bytes:
    """Read in pieces, each a moment of its own, as a mount reads."""
    made, offset = hashlib.sha256(), 0
    while True:
        calls.go_on()
        with memory.reading() as reader:
            piece = reader.read(node, offset, PIECE)
        made.update(piece)
        offset += len(piece)
        if len(piece) < PIECE:
            return made.digest()


AT_ONCE = 500  # of one transaction: others wait meanwhile
_OF_AN_ITEM = (Invalid, IsDirectory, NameTooLong, NotDirectory)


@method
def write_index(memory: Memory, project: str, items: list[Any], private: bool = False) -> list[Any]:
    """Bring notes of a project's index up to date: items with what the store's command takes, ``path`` and ``was`` as
    text below the project. For each None, or why the store refused it."""
    if len(items) > AT_ONCE:
        raise Invalid(f"{len(items)} items: at most {AT_ONCE} at a time")
    memory.enroll()
    made: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        if not isinstance(item, dict) or not isinstance(item.get("path"), str):
            raise Invalid(f"item {number}: expected a mapping with a path")
        said = {name: value for name, value in item.items() if name not in ("path", "was")}
        for name in ("path", "was"):
            if isinstance(item.get(name), str):
                said[name] = list(paths.split(paths.raw(item[name])))
        made.append(said)
    how = {"project": paths.raw(project), "private": private}
    try:
        memory.submit("write_index", items=made, **how)
        return [None] * len(items)
    except _OF_AN_ITEM:
        pass  # each by itself, then
    answers: list[str | None] = []
    for item in made:
        try:
            memory.submit("write_index", items=[item], **how)
            answers.append(None)
        except _OF_AN_ITEM as e:
            answers.append(e.reason)
    return answers
