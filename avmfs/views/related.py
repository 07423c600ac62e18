"""What else belongs to a file. Owns :related (docs/FORMATS.md).

First what it is linked with, link by link up to ``depth``; then what is alike, by the same search as a question. A
linked file is not named again for being alike.
"""

from __future__ import annotations

from typing import Annotated, Final

from avmfs import paths
from avmfs.agents.graph import document_at
from avmfs.node import notice
from avmfs.signatures import Range
from avmfs.store.queries.nodes import Reader
from avmfs.text.escapes import escaped
from avmfs.views.registry import Context, view
from avmfs.views.shape import lines, whole

ASKED: Final = 2000
"""Characters of the file that stand for it as a question."""


@view("related", "file", summary="files linked with it, `depth` links deep, then files like it")
def related(ctx: Context, *, depth: Annotated[int, Range(1, 5)] = 1, limit: Annotated[int, Range(0, 100)] = 10) -> str:
    memory = ctx.memory
    with memory.reading() as reader:
        node = reader.node(ctx.node.id)
        here = reader.path(node.id)
        linked = linked_with(reader, node.document, here, depth)
        text = whole(reader, node)[: 4 * ASKED].decode("utf-8", "replace")[:ASKED]
    rows = [f"{paths.printable(path)}  ({escaped(kind)})" for path, kind in linked.items()]
    answer = memory.search(text, limit=limit + len(linked) + 1) if limit and text.strip() else None
    least = memory.around.search.min_relevance
    alike = [
        f"[{scored.relevance:.2f}] {paths.printable(scored.hit.path)}"
        for scored in (answer.hits if answer is not None else ())
        if scored.hit.path != here and scored.hit.path not in linked and scored.relevance >= least
    ]
    above = notice(answer.degraded if answer is not None else None)
    return above + lines([*rows, *alike[:limit]], "nothing related")


def linked_with(reader: Reader, document: int | None, here: bytes, depth: int) -> dict[bytes, str]:
    """Paths within ``depth`` links, nearest first, with the way there: ``-> type``, ``<- type``, ``2 links``."""
    found: dict[bytes, str] = {}
    seen, edge = {here}, [document]
    for far in range(1, depth + 1):
        further: list[int | None] = []
        for one in edge:
            for link in reader.links(one) if one is not None else ():
                if link.path not in seen:
                    seen.add(link.path)
                    found[link.path] = f"{'->' if link.outgoing else '<-'} {link.type}" if far == 1 else f"{far} links"
                    further.append(document_at(reader, link.path))
        edge = further
    return found
