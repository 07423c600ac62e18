"""What was noted when. Owns :timeline and :cold (docs/FORMATS.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np

from avmfs import paths
from avmfs.agents import mail
from avmfs.memory import Memory
from avmfs.signatures import Range
from avmfs.text.segment import one_line
from avmfs.trust import marked
from avmfs.views.registry import Context, view
from avmfs.views.shape import lines, parts

LINE: Final = 80
_DAY: Final = 86_400 * 10**9


@dataclass(frozen=True, slots=True)
class Note:
    """A file as the timeline tells it: ``at`` in ns, ``line`` its first words."""

    path: bytes
    handle: str
    author: str
    at: int
    line: str


@view("timeline", "directory", summary="notes of the last `days`, by day, newest first", prose=True)
def timeline(
    ctx: Context, *, days: Annotated[float, Range(0, 100_000)] = 7, limit: Annotated[int, Range(1, 10_000)] = 100
) -> str:
    memory = ctx.memory
    with memory.reading() as reader:
        under = reader.path(ctx.node.id)
    found, total = noted(memory, under, days, limit)
    blocks: dict[str, list[str]] = {}
    for note in found:
        at = memory.local(note.at)
        line = f"{at:%H:%M}  @{note.handle}  {note.author}  {paths.printable(note.path)}  {note.line}".rstrip()
        blocks.setdefault(f"## {at:%Y-%m-%d}", []).append(line)
    if not blocks:
        return f"(nothing in the last {days:g} days)\n"
    rest = [f"({total - limit} more: limit={total})"] if total > limit else []
    return "\n\n".join([*("\n".join([day, *rows]) for day, rows in blocks.items()), *rest]) + "\n"


@view("cold", "directory", summary="notes of `days` ago and before, by their date, oldest first")
def cold(
    ctx: Context, *, days: Annotated[float, Range(0, 100_000)] = 90, limit: Annotated[int, Range(1, 10_000)] = 100
) -> str:
    with ctx.memory.reading() as reader:
        under = reader.path(ctx.node.id)
    found, total = noted(ctx.memory, under, days, limit, cold=True)
    rest = [f"({total - limit} more: limit={total})"] if total > limit else []
    return lines([*(dated(ctx.memory, note) for note in found), *rest], f"nothing of {days:g} days ago or before")


def dated(memory: Memory, note: Note) -> str:
    when = mail.show_time(note.at, memory.zone)
    return f"{when}  @{note.handle}  {note.author}  {paths.printable(note.path)}  {note.line}".rstrip()


def noted(memory: Memory, directory: bytes, days: float, limit: int, *, cold: bool = False) -> tuple[list[Note], int]:
    """The ``limit`` newest notes of the last ``days`` below a directory, and how many there are in all; ``cold``: the
    oldest of those of before."""
    memory.make_searchable()
    index = memory.around.store.search_index(memory.who)
    under, table, now = parts(directory), index.table(), memory.now()
    _, first = np.unique(table.documents, return_index=True)  # the first passage of each file has the least id
    since, times = now - int(days * _DAY), table.times
    first = first[times[first] <= since] if cold else first[(times[first] > since) & (times[first] <= now)]
    if (inside := index.below(under)) is not None:
        first = first[np.isin(table.passages[first], np.fromiter(inside, np.int64, len(inside)))]
    ordered = first[np.lexsort((table.passages[first], times[first] if cold else -times[first]))]
    told = {int(table.passages[at]): int(times[at]) for at in ordered[:limit]}
    notes = [
        Note(hit.path, hit.handle, hit.author, told[hit.passage], marked(one_line(hit.text, LINE), hit.untrusted))
        for hit in index.hits(list(told), under)
    ]
    return notes, len(ordered)
