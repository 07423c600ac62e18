"""What there is, without a keyword. Owns :topics, :timeline, :cold and :digest (docs/FORMATS.md).

:topics has directories and tags first, by how many files they have; a topic is shown by how much it tells: how many
files have it, times how few of all they are. One hop away are the files of one topic (``name=``), the newest first.
:digest is what an agent should know of memory today: urgent mail that is unread, notes of the last days, disputes that
nobody has settled, and notes of long ago, by the date of a note. Nothing is kept, and reading it marks nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, TypeVar

import numpy as np

from avmfs import paths
from avmfs.agents import mail
from avmfs.localtime import DAY_NS
from avmfs.memory import Memory
from avmfs.node import Hit, Message, notice
from avmfs.search.index import SearchIndex
from avmfs.search.signals import moments
from avmfs.signatures import Range
from avmfs.store.schema.tables import MEMORY, ROOT
from avmfs.text import segment
from avmfs.text.escapes import escaped, visible
from avmfs.text.segment import one_line
from avmfs.trust import marked
from avmfs.views.documents import Disputed, disputed
from avmfs.views.registry import Context, view
from avmfs.views.shape import lines, parts


@view("topics", "directory", summary="what the files below it are about; `name`: the files of one topic", prose=True)
def topics(ctx: Context, *, name: str | None = None, limit: Annotated[int, Range(1, 1000)] = 30) -> str:
    if name is not None:
        return file_lines(*files_about(ctx, name, limit))
    found, degraded = found_topics(ctx, limit)
    return overview(ctx, found, limit, degraded)


def files_about(ctx: Context, name: str, limit: int) -> tuple[list[Hit], str | None]:
    """The first passages of the files of one topic, the newest first, and why the latest changes are not among them."""
    index, under, degraded = _searchable(ctx)
    return index.about(" ".join(segment.terms(name)), under, limit), degraded


def file_lines(hits: list[Hit], degraded: str | None) -> str:
    rows = (f"@{hit.handle}  {paths.printable(hit.path)}  {first_line(hit)}".rstrip() for hit in hits)
    return notice(degraded) + lines(rows, "no files")


def found_topics(ctx: Context, limit: int) -> tuple[list[tuple[str, int]], str | None]:
    """(topic, number of files), the most telling first, and why the latest changes have no part in it."""
    index, under, degraded = _searchable(ctx)
    found, files = index.topics(under)
    scored = sorted(found, key=lambda topic: (-topic[2] * math.log1p(files / topic[2]), topic[0]))
    return [(shown, count) for _, shown, count in scored[:limit]], degraded


def overview(ctx: Context, topics: list[tuple[str, int]], limit: int, degraded: str | None) -> str:
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
    return notice(degraded) + lines(["## Memory Topics", *told] if told else [], "no topics")


def _searchable(ctx: Context) -> tuple[SearchIndex, tuple[bytes, ...], str | None]:
    memory = ctx.memory
    degraded = memory.make_searchable()
    with memory.reading() as reader:
        return memory.store.search_index(memory.who), parts(reader.path(ctx.node.id)), degraded


def first_line(hit: Hit) -> str:
    line = next((line.strip() for line in hit.text.splitlines() if line.strip(" #\t-*>")), "")
    return marked(visible(line.lstrip("# ")[:80]), hit.untrusted)


LINE: Final = 80
MOST: Final = 10_000  # notes of one answer


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
    ctx: Context, *, days: Annotated[float, Range(0, 100_000)] = 7, limit: Annotated[int, Range(1, MOST)] = 100
) -> str:
    memory = ctx.memory
    with memory.reading() as reader:
        under = reader.path(ctx.node.id)
    found = noted(memory, under, days, limit)
    blocks: dict[str, list[str]] = {}
    for note in found.rows:
        at = memory.local(note.at)
        line = f"{at:%H:%M}  @{note.handle}  {note.author}  {paths.printable(note.path)}  {note.line}".rstrip()
        blocks.setdefault(f"## {at:%Y-%m-%d}", []).append(line)
    told = [*("\n".join([day, *rows]) for day, rows in blocks.items()), *_left(found.in_all, limit)]
    return notice(found.degraded) + ("\n\n".join(told) or f"(nothing in the last {days:g} days)") + "\n"


@view("cold", "directory", summary="notes of `days` ago and before, by their date, oldest first")
def cold(
    ctx: Context, *, days: Annotated[float, Range(0, 100_000)] = 90, limit: Annotated[int, Range(1, MOST)] = 100
) -> str:
    with ctx.memory.reading() as reader:
        under = reader.path(ctx.node.id)
    found = noted(ctx.memory, under, days, limit, cold=True)
    rows = [*(dated(ctx.memory, note) for note in found.rows), *_left(found.in_all, limit)]
    return notice(found.degraded) + lines(rows, f"nothing of {days:g} days ago or before")


def _left(total: int, limit: int) -> list[str]:
    """How many more there are, and with which limit these come, or as many as one answer has."""
    more = f": limit={min(total, MOST)}" if limit < MOST else ""
    return [f"({total - limit} more{more})"] if total > limit else []


def dated(memory: Memory, note: Note) -> str:
    when = mail.show_time(note.at, memory.zone)
    return f"{when}  @{note.handle}  {note.author}  {paths.printable(note.path)}  {note.line}".rstrip()


def noted(memory: Memory, directory: bytes, days: float, limit: int, *, cold: bool = False) -> Told[Note]:
    """The ``limit`` newest notes of the last ``days`` below a directory; ``cold``: the oldest of those of before."""
    degraded = memory.make_searchable()
    index = memory.store.search_index(memory.who, paths.searched(under := parts(directory)))
    table, now = index.table(), memory.now()
    _, first = np.unique(table.documents, return_index=True)  # the first passage of each file has the least id
    since, times = now - int(days * DAY_NS), moments(table, first, memory.zone)
    wanted = times <= since if cold else (times > since) & (times <= now)
    if (inside := index.below(under)) is not None:
        wanted &= np.isin(table.passages[first], np.fromiter(inside, np.int64, len(inside)))
    passages, times = table.passages[first[wanted]], times[wanted]
    ordered = np.lexsort((passages, times if cold else -times))
    told = {int(passages[at]): int(times[at]) for at in ordered[:limit]}
    notes = [
        Note(hit.path, hit.handle, hit.author, told[hit.passage], marked(one_line(hit.text, LINE), hit.untrusted))
        for hit in index.hits(list(told), under)
    ]
    return Told(notes, len(ordered), degraded)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Told(Generic[T]):
    """As many as were asked for, of ``in_all``. ``degraded``: why the latest changes are not among them."""

    rows: list[T]
    in_all: int
    degraded: str | None = None

    @property
    def left(self) -> int:
        return max(0, self.in_all - len(self.rows))


@dataclass(frozen=True, slots=True)
class Digest:
    """``unread``: messages of any priority but low; None for an API key that does not open the inbox."""

    path: bytes
    unread: int | None
    urgent: Told[Message]
    new: Told[Note]
    disputes: Told[Disputed]
    cold: Told[Note]

    @property
    def degraded(self) -> str | None:
        return self.new.degraded or self.cold.degraded


@view("digest", "directory", summary="what is new, urgent, disputed and cold below it")
def digest(
    ctx: Context,
    *,
    days: Annotated[float, Range(0, 100_000)] = 1,
    cold: Annotated[float, Range(0, 100_000)] = 90,
    limit: Annotated[int, Range(1, 1000)] = 10,
) -> str:
    return shown(digested(ctx.memory, ctx.node.id, days, cold, limit), ctx.memory, days, cold)


def digested(memory: Memory, directory: int, days: float, cold: float, limit: int) -> Digest:
    with memory.reading() as reader:
        path = reader.path(directory)
        disputes = Told(*disputed(reader, limit, directory))
        counts = reader.mail.counts().unread if memory.who.may("inbox") else None
    urgent = [] if counts is None else memory.inbox(unread_only=True, priority="urgent")
    new = noted(memory, path, days, limit)
    old = noted(memory, path, max(days, cold), limit, cold=True)
    unread = None if counts is None else counts["urgent"] + counts["normal"]
    return Digest(path, unread, Told(urgent[:limit], len(urgent)), new, disputes, old)


def shown(found: Digest, memory: Memory, days: float, cold: float) -> str:
    def more(told: Told[Any], where: str = "") -> list[str]:
        return [f"({told.left} more{where})"] if told.left else []

    def notes(told: Told[Note]) -> list[str]:
        return [dated(memory, note) for note in told.rows] + more(told)

    urgent = mail.urgent(found.urgent.rows, memory.zone).rstrip("\n").split("\n") if found.urgent.rows else []
    if found.urgent.left:
        urgent += ["", *more(found.urgent, ": /:urgent")]
    disputes = [*map(str, found.disputes.rows), *more(found.disputes, ": /:disputes")]
    unread = "" if found.unread is None else f"; {found.unread} unread: /:inbox"
    parts = {
        f"Urgent ({found.urgent.in_all}{unread})": urgent,
        f"New in {days:g} day{'s' * (days != 1)} ({found.new.in_all})": notes(found.new),
        f"Disputed ({found.disputes.in_all})": disputes,
        f"Cold for {max(days, cold):g} days ({found.cold.in_all})": notes(found.cold),
    }
    title = notice(found.degraded) + f"# Digest of {paths.printable(found.path)} for {memory.who.name or 'nobody'}\n"
    return title + "".join(f"\n## {name}\n{lines(rows, 'nothing')}" for name, rows in parts.items())
