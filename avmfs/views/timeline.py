"""What was noted when. Owns :timeline (docs/FORMATS.md)."""

from __future__ import annotations

from typing import Annotated, Final

import numpy as np

from avmfs import paths
from avmfs.text.segment import one_line
from avmfs.views.registry import Context, Range, view
from avmfs.views.shape import parts

LINE: Final = 80
_DAY: Final = 86_400 * 10**9


@view("timeline", "directory", summary="notes of the last `days`, by day, newest first", prose=True)
def timeline(
    ctx: Context, *, days: Annotated[float, Range(0, 100_000)] = 7, limit: Annotated[int, Range(1, 10_000)] = 100
) -> str:
    memory = ctx.memory
    memory.make_searchable()
    index = memory.around.store.search_index(memory.who)
    with memory.reading() as reader:
        under = parts(reader.path(ctx.node.id))
    table, now = index.table(), memory.now()
    _, first = np.unique(table.documents, return_index=True)  # the first passage of each file has the least id
    first = first[(table.times[first] > now - int(days * _DAY)) & (table.times[first] <= now)]
    if (inside := index.below(under)) is not None:
        first = first[np.isin(table.passages[first], np.fromiter(inside, np.int64, len(inside)))]
    newest = first[np.lexsort((table.passages[first], -table.times[first]))]
    told = {int(table.passages[at]): int(table.times[at]) for at in newest[:limit]}
    blocks: dict[str, list[str]] = {}
    for hit in index.hits(list(told), under):
        at = memory.local(told[hit.passage])
        line = (
            f"{at:%H:%M}  @{hit.handle}  {hit.author}  {paths.printable(hit.path)}  {one_line(hit.text, LINE)}".rstrip()
        )
        blocks.setdefault(f"## {at:%Y-%m-%d}", []).append(line)
    if not blocks:
        return f"(nothing in the last {days:g} days)\n"
    rest = [f"({len(newest) - limit} more: limit={len(newest)})"] if len(newest) > limit else []
    return "\n\n".join([*("\n".join([day, *rows]) for day, rows in blocks.items()), *rest]) + "\n"
