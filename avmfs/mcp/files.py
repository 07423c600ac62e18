"""Tools for files: remember, list, read, write, tags, history, link."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from avmfs.errors import Invalid, NotFound
from avmfs.localtime import nanoseconds
from avmfs.mcp.content import Content, listed, minute
from avmfs.mcp.content import read as read_content
from avmfs.mcp.registry import Answer, Call, Result, tool
from avmfs.node import signed
from avmfs.text.escapes import escaped
from avmfs.trust import heading

Path = Annotated[
    str, Field(description="Such as /memory/shared/note.md, /private/note.md, or a handle (@k7f2).", min_length=1)
]
Tag = Annotated[str, Field(min_length=1, max_length=64)]


class Same(Result):
    path: str
    handle: str
    likeness: float = Field(description="1: the same text.")


class Other(Result):
    path: str
    handle: str


class Stored(Result):
    path: str
    done: Literal["stored", "updated"]
    contradicts: list[Other] = Field(description="That seem to say something else: link what no longer holds.")
    duplicate: Same | None = Field(description="An older note that says the same.")


@tool("Remember")
def avm_remember(
    call: Call,
    content: Annotated[str, Field(description="What to remember: facts, decisions, reasons.", min_length=1)],
    title: Annotated[str | None, Field(description="Also names the file.")] = None,
    path: Annotated[str | None, Field(description="The file's path, instead of a name from title or text.")] = None,
    tags: Annotated[list[Tag] | None, Field(description="Without #.")] = None,
    importance: Annotated[float | None, Field(description="0 to 1.", ge=0, le=1)] = None,
    namespace: Annotated[
        str | None, Field(description='"private" (default: only you see it), "shared", or a directory.')
    ] = None,
    created: Annotated[str | None, Field(description="ISO 8601: when it happened, if not now.")] = None,
    on_duplicate: Annotated[
        Literal["keep", "update", "refuse"],
        Field(description="Where a note says the same: keep both, write into the older one, or fail."),
    ] = "keep",
    ttl: Annotated[str | None, Field(description="How long it lives, such as 2h or 30d.")] = None,
    supersedes: Annotated[
        str | None, Field(description="A file, by path or handle, that holds no more.", min_length=1)
    ] = None,
    source: Annotated[
        Literal["own", "tool", "web", "imported"], Field(description="Whose words: web for what a page says.")
    ] = "own",
) -> Answer[Stored]:
    """Store a new memory; answers with its path. Never replaces one: a taken name gets a number."""
    made = call.door(
        "remember",
        content=content,
        title=title,
        path=path,
        tags=tags,
        importance=importance,
        namespace=namespace,
        created=None if created is None else nanoseconds(created, "created"),
        on_duplicate=on_duplicate,
        ttl=ttl,
        supersedes=supersedes,
        source=source,
    )
    stored = Stored.of(made)
    same = f"{stored.duplicate.handle} says the same\n" if stored.duplicate else ""
    same += "".join(
        f"{each.handle} seems to say something else: if it no longer holds, avm_write to {escaped(stored.path)}:links"
        f" the line '{each.handle} supersedes'\n"
        for each in stored.contradicts
    )
    verb = "updated" if stored.done == "updated" else "remembered as"
    return Answer(f"{verb} {escaped(stored.path)}\n{same}", stored)


class Entry(Result):
    path: str
    kind: Literal["file", "directory", "symlink"]
    handle: str | None
    size: int = Field(description="Bytes.")
    modified: str = Field(description="ISO 8601, UTC.")
    line: str = Field(description="The first line of a text.")


class Listing(Result):
    entries: list[Entry]
    total: int


@tool("List", reads=True)
def avm_list(
    call: Call,
    path: Annotated[str, Field(description="A directory.", min_length=1)] = "/memory",
    query: Annotated[str | None, Field(description="Files at any depth below whose name or beginning has it.")] = None,
    tag: Annotated[str | None, Field(description="Files at any depth below with this tag.")] = None,
    limit: Annotated[int, Field(description="At most so many.", ge=1, le=1000)] = 100,
    offset: Annotated[int, Field(description="Leave out so many first.", ge=0, le=1_000_000_000)] = 0,
) -> Answer[Listing]:
    """What a directory holds, or the files below it that match."""
    found = listed(call, path, limit=limit, offset=offset, q=query, tag=tag)
    value = Listing.of(found)
    lines = [
        f"{each.handle or '-':<6} {escaped(each.path)}{'/' if each.kind == 'directory' else ''}  {each.line}".rstrip()
        + "\n"
        for each in value.entries
    ]
    left = value.total - offset - len(lines)
    if left > 0:
        lines.append(f"({left} more: offset={offset + len(lines)})\n")
    return Answer("".join(lines) or "(empty)\n", value)


@tool("Read", reads=True)
def avm_read(
    call: Call,
    path: Path,
    offset: Annotated[int, Field(description="Begin at this byte.", ge=0)] = 0,
    limit: Annotated[int, Field(description="At most so many bytes.", ge=1, le=4_000_000)] = 100_000,
) -> Answer[Content]:
    """The content of a file, or of a view of it: note.md:meta, note.md:history, /:help.

    Views that mark something as read (:delta, :inbox?mark=read) do so with their last piece.
    """
    found = read_content(call, path, offset, limit)
    more = f"\n(more: offset={found.next_offset})\n" if found.more else ""
    text = (
        heading(found.untrusted) + found.content + more
        if found.encoding == "utf-8"
        else "(binary; see the structured content)"
    )
    return Answer(text, found)


class Written(Result):
    path: str
    version: int | None = Field(description="The file's new version; null for a view.")


@tool("Write", destroys=True, repeatable=False)
def avm_write(
    call: Call,
    path: Path,
    content: Annotated[str, Field(description="The text.")],
    mode: Annotated[
        Literal["replace", "create", "append"],
        Field(description="replace keeps the old content as a version; create refuses to replace."),
    ] = "replace",
    if_version: Annotated[int | None, Field(description="Only over this version; 0: a new file.", ge=0)] = None,
) -> Answer[Written]:
    """Write a file, making directories as needed. Its old content stays in its history.

    Writing to a view changes what it shows: note.md:ttl takes 2h, note.md:shared takes alice,bob.
    """
    only = {} if if_version is None else {"if_version": if_version}
    done = call.door("write", path=path, data=content.encode(), mode=mode, **only)
    version = "" if done["version"] is None else f" v{done['version']}"
    return Answer(f"wrote {escaped(done['path'])}{version}\n", Written.of(done))


class Tags(Result):
    path: str | None
    tags: list[str]
    counts: dict[str, int] | None = Field(description="Of the most frequent tags, where no path was given.")


@tool("Tags", repeatable=True, destroys=True)
def avm_tags(
    call: Call,
    path: Annotated[str | None, Field(description="A file; without one, which tags there are.", min_length=1)] = None,
    add: Annotated[list[Tag] | None, Field(description="Tags to add.")] = None,
    remove: Annotated[list[Tag] | None, Field(description="Tags to take away.")] = None,
    replace: Annotated[list[Tag] | None, Field(description="All tags that it has afterwards; [] for none.")] = None,
) -> Answer[Tags]:
    """Show or change the tags of a file; without a path, show the tags in use."""
    if path is None:
        if add or remove or replace is not None:
            raise Invalid("tags of which file? give a path")
        counts = _json(call, "/:stats")["tags"]
        lines = "".join(f"{count:>5}  {escaped(name)}\n" for name, count in counts.items())
        return Answer(lines or "(no tags)\n", Tags(path=None, tags=list(counts), counts=counts))
    if replace is not None and (add or remove):
        raise Invalid("either replace, or add and remove")
    known = call.door("tag", path=path, add=replace or add, remove=remove, clear=replace is not None)
    said = escaped(",".join(known["tags"])) or "(no tags)"
    return Answer(f"{said}\n", Tags(path=known["path"], tags=known["tags"], counts=None))


class Version(Result):
    version: int
    at: str = Field(description="ISO 8601, UTC.")
    type: Literal["create", "write"]
    author: str
    route: str | None = Field(description="By which door it came.")
    size: int = Field(description="Bytes.")


class History(Result):
    path: str
    versions: list[Version]
    total: int
    diff: str | None


@tool("History", reads=True)
def avm_history(
    call: Call,
    path: Path,
    older: Annotated[int | None, Field(description="Show the difference from this version.", ge=0)] = None,
    newer: Annotated[int | None, Field(description="Show the difference up to this version.", ge=0)] = None,
    limit: Annotated[int, Field(description="At most so many versions.", ge=1, le=1000)] = 20,
) -> Answer[History]:
    """The versions of a file, newest first, and the difference between two where one is named."""
    found = call.door("history", path=path, older=older, newer=newer, limit=limit)
    value = History.of(found)
    lines = [
        f"v{each.version}  {minute(each.at)}  {each.type}  {signed(each.author, each.route or '')}"
        f"  {each.size} byte{'s' * (each.size != 1)}\n"
        for each in value.versions
    ]
    if value.total > len(value.versions):
        lines.append(f"({value.total - len(value.versions)} older ones)\n")
    return Answer("".join(lines) + (value.diff or ""), value)


class Edge(Result):
    direction: Literal["out", "in"]
    path: str
    type: str


class Between(Result):
    source: str
    target: str
    type: str


class Links(Result):
    path: str
    links: list[Edge]
    below: list[Between] = Field(default=[], description="Of files below a directory.")
    more: int = Field(default=0, description="Files below a directory that were not looked at.")


@tool("Link", destroys=True, repeatable=True)
def avm_link(
    call: Call,
    path: Path,
    target: Annotated[str | None, Field(description="The file to link to, by path or handle.", min_length=1)] = None,
    type: Annotated[
        str | None,
        Field(description="A word: related (default), confirms, contradicts, supersedes.", pattern=r"^\w[\w.-]{0,63}$"),
    ] = None,
    remove: Annotated[bool, Field(description="Take the link away; without type of every type.")] = False,
) -> Answer[Links]:
    """Link a file to another, or take a link away; without a target, show its links in both directions, or all below a
    directory."""
    if target is not None:
        call.door("link", path=path, target=target, type=type, remove=remove)
    elif remove:
        raise Invalid("take away which link? give a target")
    try:
        found = call.door("links", path=path)
    except NotFound:  # no file
        return _below(call, path)
    links = [Edge(**each) for each in found["links"]]
    lines = [
        f"{'->' if each.direction == 'out' else '<-'} {escaped(each.path)} ({escaped(each.type)})\n" for each in links
    ]
    return Answer("".join(lines) or "(no links)\n", Links(path=found["path"], links=links))


def _below(call: Call, path: str) -> Answer[Links]:
    found = call.door("graph", path=path)
    below = [Between(**each) for each in found["edges"]]
    return Answer(found["text"], Links(path=found["path"], links=[], below=below, more=found["more"]))


class Claimed(Result):
    path: str | None = Field(description="null: there is nothing to claim.")
    until: str | None = Field(description="ISO 8601, UTC; null where it is not yours.")


@tool("Claim", repeatable=False)
def avm_claim(
    call: Call,
    path: Path,
    action: Annotated[
        Literal["claim", "next", "release"],
        Field(description="next: path is a directory; its oldest unclaimed file becomes yours."),
    ] = "claim",
    lease: Annotated[str, Field(description="Until it is free again by itself, such as 10m.", min_length=2)] = "10m",
) -> Answer[Claimed]:
    """Say that you work on a file, so that no other agent does: exactly one has it. Claiming again renews the lease."""
    if action == "release":
        done = call.door("release", path=path)
        says = "released" if done["released"] else "nobody had claimed"
        return Answer(f"{says} {escaped(done['path'])}\n", Claimed(path=done["path"], until=None))
    made = Claimed(**call.door("claim_next" if action == "next" else "claim", path=path, lease=lease))
    return Answer(f"{escaped(made.path)}\n" if made.path else "(nothing to claim)\n", made)


def _json(call: Call, path: str) -> Any:
    return json.loads(read_content(call, path, 0, 4_000_000).content)
