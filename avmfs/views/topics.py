"""What there is, without a keyword: topics. Owns :topics (docs/FORMATS.md).

A topic is shown by how much it tells: how many files have it, times how few of all they are. One hop away are the
files of one topic (``name=``), the newest first.
"""

from __future__ import annotations

import math
from typing import Annotated

from avmfs import paths
from avmfs.text import segment
from avmfs.views.registry import Context, Range, view
from avmfs.views.shape import lines, parts


@view("topics", "directory", summary="what the files below it are about; `name`: the files of one topic", prose=True)
def topics(ctx: Context, *, name: str | None = None, limit: Annotated[int, Range(1, 1000)] = 30) -> str:
    memory = ctx.memory
    memory.make_searchable()
    index = memory.around.store.search_index(memory.who)
    with memory.reading() as reader:
        under = parts(reader.path(ctx.node.id))
    if name is not None:
        hits = index.about(" ".join(segment.terms(name)), under, limit)
        rows = (f"@{hit.handle}  {paths.printable(hit.path)}  {_first(hit.text)}".rstrip() for hit in hits)
        return lines(rows, "no files")
    found, files = index.topics(under)
    scored = sorted(found, key=lambda topic: (-_telling(topic[2], files), topic[0]))
    return lines((f"{count:>4}  {shown}" for _, shown, count in scored[:limit]), "no topics")


def _telling(count: int, files: int) -> float:
    return count * math.log1p(files / count)


def _first(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip(" #\t-*>")), "")
    return line.lstrip("# ")[:80]
