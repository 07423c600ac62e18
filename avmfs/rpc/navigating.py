"""Methods of the door for finding one's way without a keyword, and along links: tree, timeline, explore, graph, digest,
bundle, and retrieve, synthesize, fetch.

Owns the plain values; texts are the views' own where there is a view. Called through the registry.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

from avmfs import paths
from avmfs.agents import graph as links
from avmfs.agents import mail
from avmfs.agents.told import told
from avmfs.errors import AvmError, Invalid, NotDirectory, NotFound
from avmfs.memory import Memory
from avmfs.node import Kind
from avmfs.rpc import files, finding
from avmfs.rpc.methods import Limit, Page, method
from avmfs.signatures import Range
from avmfs.text.escapes import escaped
from avmfs.views import graph as drawing
from avmfs.views import overview as views
from avmfs.views import registry
from avmfs.views.bundle import LEAST, bundled
from avmfs.views.listing import in_tree
from avmfs.views.overview import Note, noted
from avmfs.views.synthesis import Sentences, synthesized

FETCHED = 50  # targets of one fetch
Size = Annotated[int, Range(1, 1024 * 1024)]  # of each, in bytes
Days = Annotated[float, Range(0, 100_000)]


@method
def tree(memory: Memory, path: str = "/memory", depth: int = 3, limit: Page = 1000) -> dict[str, Any]:
    """The shape of a directory. {"path", "text", "entries": [{"path", "kind", "depth"}], "more"}: in the order of the
    text, ``depth`` from 1; ``more``: there are more than ``limit``."""
    text = _view(memory, path, "tree", depth=depth)
    with memory.reading() as reader:
        node = memory.directory(reader, path)
        top = reader.path(node.id)
        found: list[dict[str, Any]] = []
        waiting = [(node, top, 0)]
        while waiting and len(found) <= limit:
            here, name, level = waiting.pop()
            if level:
                found.append({"path": paths.text(name), "kind": here.kind.name.lower(), "depth": level})
            if here.kind is Kind.DIRECTORY and level < depth:
                below = in_tree(reader, here.id)
                waiting += [(child, name.rstrip(b"/") + b"/" + child.name, level + 1) for child in reversed(below)]
    return {"path": paths.text(top), "text": text, "entries": found[:limit], "more": len(found) > limit}


@method
def timeline(
    memory: Memory, path: str = "/memory", days: float = 7.0, limit: int = 100, cold: bool = False
) -> dict[str, Any]:
    """Notes by time, newest first; ``cold``: those of ``days`` ago and before, oldest first. {"text", "notes":
    [{"path", "handle", "author", "at", "line"}], "more", "degraded"}."""
    text = _view(memory, path, "cold" if cold else "timeline", days=days, limit=limit)
    with memory.reading() as reader:
        node = memory.directory(reader, path)
        under = reader.path(node.id)
    found = noted(memory, under, days, limit, cold=cold)
    return {"text": text, "notes": [*map(_note, found.rows)], "more": found.left, "degraded": found.degraded}


@method
def explore(memory: Memory, path: str, depth: Annotated[int, Range(1, 5)] = 2) -> dict[str, Any]:
    """What a file is linked with, hop by hop. {"path", "text", "hops": [[{"path", "type", "direction", "via"}]]}."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        here = reader.path(reader.node(node.id).id)
        found = links.hops(reader, [here], depth, links.REACHED)
    lines = [f"## Starting from: {paths.printable(here)}"]
    for number, steps in enumerate(found, 1):
        lines.append(f"### Hop {number}")
        lines += [
            f"  {'->' if each.outgoing else '<-'} [{escaped(each.type)}] {paths.printable(each.path)}" for each in steps
        ]
    text = "\n".join(lines if found else [*lines, "(no links)"]) + "\n"
    return {"path": paths.text(here), "text": text, "hops": [_steps(steps) for steps in found]}


@method
def retrieve(
    memory: Memory, q: str, limit: Limit = 10, depth: Annotated[int, Range(0, 5)] = 1, under: str = "/"
) -> dict[str, Any]:
    """A search, and what the hits are linked with: search()'s {"text", "hits", "degraded"} and "linked": [{"path",
    "type", "direction", "via"}]."""
    found: dict[str, Any] = finding.search(memory, q, limit=limit, under=under)
    with memory.reading() as reader:
        steps = links.hops(reader, [paths.raw(hit["path"]) for hit in found["hits"]], depth, links.REACHED)
    linked = [step for hop in steps for step in hop]
    if linked:
        lines = (
            f"  {'->' if each.outgoing else '<-'} [{escaped(each.type)}] {paths.printable(each.path)}"
            for each in linked
        )
        found["text"] += "linked:\n" + "".join(f"{line}\n" for line in lines)
    return {**found, "linked": _steps(linked)}


@method
def synthesize(memory: Memory, q: str, path: str = "/", sentences: Sentences = 12) -> dict[str, Any]:
    """What several memories say on a question, cited. {"q", "path", "text", "degraded"}; ``text`` is empty when nothing
    is."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
    text, degraded = synthesized(memory, node.id, q, sentences)
    return {"q": q, "path": path, "text": text, "degraded": degraded}


@method
def graph(memory: Memory, path: str = "/memory", limit: Page = 1000, format: str = "text") -> dict[str, Any]:
    """The files below a directory and the links that lead from them. {"path", "nodes": [path], "edges": [{"source",
    "target", "type"}], "more", "text"}: ``nodes`` are those with a link, their targets included; ``more`` files were
    left unread for ``limit``; ``format`` is of the text: "text", "mermaid", "dot", "graphml", "json"."""
    if format not in drawing.FORMS:
        raise Invalid(f"format {format!r}: expected {', '.join(drawing.FORMS)}")
    with memory.reading() as reader:
        node = memory.directory(reader, path)
    found = drawing.collected(memory, node.id, limit)
    return {**drawing.value(found), "text": drawing.FORMS[format](found)}


@method
def digest(
    memory: Memory, path: str = "/memory", days: Days = 1.0, cold: Days = 90.0, limit: Limit = 10
) -> dict[str, Any]:
    """What an agent should know today. {"text", "unread", "urgent": [message], "new": [note], "disputes": [{"handles",
    "paths", "agent"}], "cold": [note], "more": {"urgent", "new", "disputes", "cold"}, "degraded"}: notes as timeline()
    has them, ``more`` of each were left out."""
    with memory.reading() as reader:
        node = memory.directory(reader, path)
    found = views.digested(memory, node.id, days, cold, limit)
    disputes = [
        {"handles": [f"@{each}" for each in one.handles], "paths": [*map(paths.text, one.paths)], "agent": one.agent}
        for one in found.disputes.rows
    ]
    return {
        "text": views.shown(found, memory, days, cold),
        "unread": found.unread,
        "urgent": [mail.plain(message) for message in found.urgent.rows],
        "new": [*map(_note, found.new.rows)],
        "disputes": disputes,
        "cold": [*map(_note, found.cold.rows)],
        "more": {
            "urgent": found.urgent.left,
            "new": found.new.left,
            "disputes": found.disputes.left,
            "cold": found.cold.left,
        },
        "degraded": found.degraded,
    }


@method
def bundle(
    memory: Memory, q: str, max_tokens: Annotated[int, Range(LEAST, 200_000)] = 4000, under: str = "/"
) -> dict[str, Any]:
    """What somebody else needs to go on with it. {"text", "tokens", "paths", "degraded", "seq"}; ``text`` is empty when
    nothing is relevant."""
    found = bundled(memory, q, finding.under_of(memory, under), max_tokens)
    told = {"text": found.text, "tokens": found.tokens, "degraded": found.degraded, "seq": found.seq}
    return {**told, "paths": [*map(paths.text, found.paths)]}


@method
def delta(memory: Memory, path: str = "/memory", peek: bool = False) -> dict[str, Any]:
    """What is new in a file or below a directory since this agent's mark, which then moves unless it is a ``peek``.
    {"path", "changed", "text"}."""
    rendered, where = _rendered(memory, path, "delta", {"peek": "1" if peek else "0"})
    files.require_sendable(rendered.data, path)
    if rendered.at_end is not None:
        rendered.at_end()
    text = rendered.data.decode("utf-8", "surrogateescape")
    return {"path": where, "changed": text != "(no changes)\n", "text": text}


@method
def fetch(memory: Memory, targets: list[str], max_bytes: Size = 50_000) -> dict[str, Any]:
    """Several files or views at once, by path or handle. {"items": [{"target", "path", "data", "more", "untrusted"}],
    "missing": [{"target", "reason"}]}; ``more``: cut at ``max_bytes``; ``untrusted`` as ``read`` has it."""
    if len(targets) > FETCHED:
        raise Invalid(f"{len(targets)} targets: at most {FETCHED} at a time")
    items: list[dict[str, Any]] = []
    missing: list[dict[str, str]] = []
    for target in targets:
        try:
            found = files.read(memory, target, limit=max_bytes, banner=False, whole=False)
            where = _path_of(memory, target)
        except AvmError as e:
            missing.append({"target": target, "reason": e.reason})
        else:
            del found["etag"]  # nobody reads on
            items.append({"target": target, "path": where, **found})
    return {"items": items, "missing": missing}


def _path_of(memory: Memory, target: str) -> str:
    """Where a handle leads; a view keeps the name that it was asked for by."""
    with memory.reading() as reader:
        try:
            return paths.text(reader.path(memory.resolve(reader, target).id))
        except (NotFound, NotDirectory):
            return target


def _view(memory: Memory, path: str, name: str, **query: Any) -> str:
    """The text of a view."""
    rendered, _ = _rendered(memory, path, name, {key: str(value) for key, value in query.items()})
    return rendered.data.decode("utf-8", "surrogateescape")


def _rendered(memory: Memory, path: str, name: str, query: dict[str, str]) -> tuple[registry.Rendered, str]:
    """A view of a node, without the banner of urgent mail (doors show that apart), and the node's path."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        where = reader.path(node.id)
    found = registry.find(name, node)
    if found is None:
        raise Invalid(f"there is no :{name} of it: it is a {node.kind.name.lower()}", path)
    return found.render(registry.Context(replace(memory, quiet=True), node, where), query), paths.text(where)


def _note(note: Note) -> dict[str, Any]:
    return told(note, "path handle author at line")


def _steps(steps: Iterable[links.Step]) -> list[dict[str, Any]]:
    return [told(each, "path type via", direction="out" if each.outgoing else "in") for each in steps]
