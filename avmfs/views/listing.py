"""Views of what a directory holds. Owns :list, :tree, :changes and :stats (docs/FORMATS.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Final

from avmfs import calls, paths
from avmfs.agents import mail
from avmfs.agents.changes import Fold, Touched
from avmfs.errors import Invalid, NotFound
from avmfs.memory import Memory
from avmfs.node import Entry, Kind, Node
from avmfs.signatures import Range
from avmfs.store.commands.documents import check_tag
from avmfs.store.queries.claims import Claim
from avmfs.store.queries.nodes import Reader
from avmfs.store.schema.tables import ASIDE, ROOT
from avmfs.views.registry import Context, view
from avmfs.views.shape import json_text, lines

LINE: Final = 100  # characters of a first line that are shown
TOP_TAGS: Final = 20
CLAIMS: Final = 10_000  # those that are over last
TREE_ENTRIES: Final = 50  # of one directory that are shown; the others are counted
_NO_HANDLE: Final = "-".ljust(5)
_ROWS_PER_PATH: Final = 4  # of the log: what one path usually has of them
_HEADING: Final = re.compile(r"#+\s+")


@view(
    "list",
    "directory",
    summary="handle, name, first line of what it holds; `q`, `tag`: of files below",
    prose=True,
    past=True,
)
def listing(
    ctx: Context,
    *,
    limit: Annotated[int, Range(1, 10_000)] = 100,
    offset: Annotated[int, Range(0, 10**9)] = 0,
    q: str | None = None,
    tag: str | None = None,
) -> str:
    tag = None if tag is None else check_tag(tag)
    with ctx.memory.reading() as reader:
        node = reader.node(ctx.node.id)
        below = b"" if node.id == ROOT else reader.path(node.id)
        found, total = reader.listing(node.id, limit=limit, offset=offset, query=q, tag=tag)
        claims = {each.node: each for each in reader.claims.held(CLAIMS)} if ctx.memory.then is None else {}
        rows = [_entry(reader, entry, first, below, claims.get(entry.node.id)) for entry, first in found]
    left = total - offset - len(found)
    if left > 0:
        rows.append(f"({left} more: offset={offset + len(found)})")
    elif total and not found:
        return f"(no more: there are {total})\n"
    return lines(rows, "empty" if q is None and tag is None else "no matches")


def _entry(reader: Reader, entry: Entry, first: str, below: bytes, claim: Claim | None) -> str:
    name = paths.printable(entry.path[len(below) + 1 :])
    if entry.node.kind is Kind.DIRECTORY:
        name += "/"
    elif entry.node.kind is Kind.SYMLINK:
        name += f" -> {paths.printable(reader.target(entry.node.id))}"
    handle = _NO_HANDLE if entry.handle is None else f"@{entry.handle}"
    line = _HEADING.sub("", first, count=1) if _HEADING.match(first) else first
    held = "" if claim is None else f"  (claimed by {claim.agent})"
    return f"{handle}  {name}  {line[: LINE - 1] + '…' if len(line) > LINE else line}".rstrip() + held


@view("tree", "directory", summary="directories and files below it, `depth` deep", past=True)
def tree(ctx: Context, *, depth: Annotated[int, Range(1, 16)] = 3) -> str:
    with ctx.memory.reading() as reader:
        lines = [paths.printable(reader.path(ctx.node.id)), *_below(reader, ctx.node, depth, "")]
    return "\n".join(lines) + "\n" if len(lines) > 1 else "(empty)\n"


def in_tree(reader: Reader, directory: int) -> list[Node]:
    """What a tree shows of a directory, in its order; of the root not what is aside."""
    children = [node for node in reader.children(directory) if directory != ROOT or node.id not in ASIDE]
    return sorted(children, key=lambda node: (node.kind is not Kind.DIRECTORY, node.name))


def _below(reader: Reader, directory: Node, depth: int, indent: str) -> Iterator[str]:
    calls.go_on()
    children = in_tree(reader, directory.id)
    for node in children[:TREE_ENTRIES]:
        name = paths.printable(node.name)
        if node.kind is Kind.SYMLINK:
            yield f"{indent}  {name} -> {paths.printable(reader.target(node.id))}"
        elif node.kind is Kind.FILE:
            yield f"{indent}  {name}"
        elif depth > 1:
            yield f"{indent}  {name}/"
            yield from _below(reader, node, depth - 1, indent + "  ")
        else:
            inside = len(reader.children(node.id))
            yield f"{indent}  {name}/" + (f"  ({inside})" if inside else "")
    if len(children) > TREE_ENTRIES:
        yield f"{indent}  ({len(children) - TREE_ENTRIES} more)"


@view("changes", "directory", summary="files changed below it, newest first")
def changes(
    ctx: Context,
    *,
    minutes: Annotated[float | None, Range(0, 10**8)] = None,
    since: str | None = None,
    limit: Annotated[int, Range(1, 10_000)] = 100,
) -> str:
    after, earliest = parse_since(ctx.memory, since)
    if minutes is not None:
        earliest = max(earliest, ctx.memory.now() - int(minutes * 60e9))
    with ctx.memory.reading() as reader:
        node = reader.node(ctx.node.id)
        found, more = changed(reader, node.id, after, max(0, earliest), limit)
        rows = [_change(ctx, reader, touched) for touched in found]
    if more:
        rows.append(f"(older ones left out: limit={limit})")
    return lines(rows, "no changes")


def changed(reader: Reader, under: int, after: int, since: int, limit: int) -> tuple[list[Touched], bool]:
    """The ``limit`` paths that changed last, newest first, and whether there are more."""
    below, wanted = b"" if under == ROOT else reader.path(under), limit * _ROWS_PER_PATH
    while True:
        rows = reader.changes(under, after_seq=after, since=since, limit=wanted)
        fold = Fold(below)
        for row in calls.going_on(reversed(rows)):
            fold.take(row)
        found = sorted(fold.touched(), key=lambda each: (-each.last.seq, each.path))
        whole = len(rows) < wanted
        if whole or len(found) >= limit:
            return found[:limit], not whole or len(found) > limit
        wanted *= 4


def _change(ctx: Context, reader: Reader, touched: Touched) -> str:
    handle, gone = _NO_HANDLE, " (removed)"
    if touched.status != "D":
        try:
            node = reader.node(touched.last.node)
            gone = ""
            if node.document is not None:
                handle = f"@{reader.document(node).handle}"
        except NotFound:  # its ttl has passed
            pass
    time = mail.show_time(touched.last.at, ctx.memory.zone)
    return f"{handle}  {time}  {touched.last.agent}  {paths.printable(touched.path)}{gone}"


def parse_since(memory: Memory, since: str | None) -> tuple[int, int]:
    """(seq after which, time from which in ns) that a ``since`` means: a seq, or an ISO 8601 time, local unless it
    has an offset."""
    if since is None:
        return 0, 0
    if since.isascii() and since.isdigit() and len(since) <= 18:
        return int(since), 0
    try:
        at = datetime.fromisoformat(since)
        at = at.replace(tzinfo=memory.zone) if at.tzinfo is None else at
        return 0, min(int(at.timestamp()) * 10**9 + at.microsecond * 1000, 2**63 - 1)  # from 2262 on nothing is held
    except (ValueError, OverflowError):
        raise Invalid(f"since={since[:80]!r}: expected e.g. 2026-03-07T10:30 or a seq") from None


@view("stats", "directory", summary="counts of what this agent may see below it, as JSON", past=True)
def stats(ctx: Context) -> str:
    if ctx.memory.then is None:
        counts = ctx.memory.store.cached_counts(ctx.memory.who, ctx.node.id)
    else:
        with ctx.memory.reading() as reader:
            counts = reader.counts(ctx.node.id)
    return json_text(
        {
            "bytes": counts.bytes,
            "directories": counts.directories,
            "files": counts.files,
            "links": counts.links,
            "symlinks": counts.symlinks,
            "tags": dict(counts.tags[:TOP_TAGS]),
            "versions": counts.versions,
            "waiting": {"vectors": counts.waiting_semantic, "words": counts.waiting_lexical},
        }
    )
