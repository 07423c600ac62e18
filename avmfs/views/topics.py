"""What there is, without a keyword: topics. Owns :topics (docs/FORMATS.md).

Directories and tags come first, by how many files they have; a topic is shown by how much it tells: how many files have
it, times how few of all they are. One hop away are the files of one topic (``name=``), the newest first.
"""

from __future__ import annotations

import math
from typing import Annotated

from avmfs import paths
from avmfs.node import Hit
from avmfs.search.index import SearchIndex
from avmfs.signatures import Range
from avmfs.store.schema.tables import MEMORY, ROOT
from avmfs.text import segment
from avmfs.text.escapes import escaped, visible
from avmfs.trust import marked
from avmfs.views.registry import Context, view
from avmfs.views.shape import lines, parts


@view("topics", "directory", summary="what the files below it are about; `name`: the files of one topic", prose=True)
def topics(ctx: Context, *, name: str | None = None, limit: Annotated[int, Range(1, 1000)] = 30) -> str:
    return (
        file_lines(files_about(ctx, name, limit))
        if name is not None
        else overview(ctx, found_topics(ctx, limit), limit)
    )


def files_about(ctx: Context, name: str, limit: int) -> list[Hit]:
    """The first passages of the files of one topic, the newest first."""
    index, under = _searchable(ctx)
    return index.about(" ".join(segment.terms(name)), under, limit)


def file_lines(hits: list[Hit]) -> str:
    rows = (f"@{hit.handle}  {paths.printable(hit.path)}  {first_line(hit)}".rstrip() for hit in hits)
    return lines(rows, "no files")


def found_topics(ctx: Context, limit: int) -> list[tuple[str, int]]:
    """(topic, number of files), the most telling first."""
    index, under = _searchable(ctx)
    found, files = index.topics(under)
    scored = sorted(found, key=lambda topic: (-topic[2] * math.log1p(files / topic[2]), topic[0]))
    return [(shown, count) for _, shown, count in scored[:limit]]


def overview(ctx: Context, topics: list[tuple[str, int]], limit: int) -> str:
    """What there is, by directory, by tag and by these topics."""
    with ctx.memory.reading() as reader:
        top = MEMORY if ctx.node.id == ROOT else ctx.node.id
        categories = [(paths.text(name), count) for name, count in reader.file_counts(top, limit)]
        tags = reader.tag_counts(ctx.node.id)[:limit]
    sections = {"By Category": categories, "By Tag": tags, "By Topic": topics}
    told = [
        line
        for title, found in sections.items()
        if found
        for line in (f"### {title}:", *(f"{count:>4}  {escaped(shown)}" for shown, count in found))
    ]
    return lines(["## Memory Topics", *told] if told else [], "no topics")


def _searchable(ctx: Context) -> tuple[SearchIndex, tuple[bytes, ...]]:
    memory = ctx.memory
    memory.make_searchable()
    with memory.reading() as reader:
        return memory.store.search_index(memory.who), parts(reader.path(ctx.node.id))


def first_line(hit: Hit) -> str:
    line = next((line.strip() for line in hit.text.splitlines() if line.strip(" #\t-*>")), "")
    return marked(visible(line.lstrip("# ")[:80]), hit.untrusted)
