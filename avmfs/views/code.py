"""Views of the notes of an index of code. Owns :callers and :callees (docs/FORMATS.md).

Both go by names alone, in the note's project as this agent sees it; a file that is no such note defines nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from avmfs import paths
from avmfs.codeindex import finding, modules
from avmfs.codeindex.modules import Place
from avmfs.errors import NotFound
from avmfs.node import Node
from avmfs.store.queries.nodes import Reader
from avmfs.text import segment
from avmfs.views.registry import Context, view
from avmfs.views.shape import lines, parts, whole


@view("callers", "file", summary="below /index: each symbol of this file, or `name`, and what calls it")
def callers(ctx: Context, *, name: str | None = None) -> str:
    own, calling = _own(ctx, name), list[Place]()
    if own:
        asked = {finding.last(each.symbol.name): None for each in own}
        calling = sorted(_found(ctx, " ".join(asked), own[0]), key=lambda each: (each.source, each.symbol.line))
    rows = []
    for each in own:
        found = finding.calling(calling, each.symbol.name)
        if found or name is not None:
            rows += [*finding.lines([each]), *(f"    {line}" for line in finding.lines(found))]
    return lines(rows, "none")


@view("callees", "file", summary="below /index: each symbol of this file, or `name`, and what it calls")
def callees(ctx: Context, *, name: str | None = None) -> str:
    own = [each for each in _own(ctx, name) if each.symbol.calls or name is not None]
    rows = [[line, *(f"    {call}" for call in each.symbol.calls)] for each in own for line in finding.lines([each])]
    return lines((line for row in rows for line in row), "none")


def _own(ctx: Context, name: str | None) -> list[Place]:
    with ctx.memory.reading() as reader:
        node = reader.node(ctx.node.id)
        found = list(_places(reader, reader.path(node.id), node))
    return [each for each in found if name is None or finding.named(each.symbol.name, name)]


def _found(ctx: Context, asked: str, of: Place) -> Iterator[Place]:
    """Symbols of the notes of this project that have one of these words."""
    under = parts(paths.raw(of.path))[: -1 - of.source.count("/")]
    answer = ctx.memory.search(segment.as_question(asked), limit=finding.CALLING, under=under, mode="lexical")
    with ctx.memory.reading() as reader:
        for scored in answer.hits:
            with contextlib.suppress(NotFound):  # it has gone since
                yield from _places(reader, scored.hit.path, reader.node(scored.hit.node))


def _places(reader: Reader, path: bytes, node: Node) -> Iterator[Place]:
    if parts(path)[:1] != (paths.INDEX,) or node.document is None:
        return
    said = reader.document(node).user.get(modules.META)
    if isinstance(said, dict):
        yield from modules.places(paths.text(path), said, whole(reader, node).decode("utf-8", "replace"))
