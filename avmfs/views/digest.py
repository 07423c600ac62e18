"""What an agent should know of memory today. Owns :digest (docs/FORMATS.md).

Four lists of what the agent sees below a directory: urgent mail that is unread, notes of the last days, disputes that
nobody has settled, and notes of long ago, by the date of a note. Nothing is kept, and reading it marks nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from typing import Annotated, Any, Final, Generic, TypeVar

from avmfs import paths
from avmfs.agents import mail
from avmfs.memory import Memory
from avmfs.node import Message
from avmfs.signatures import Range
from avmfs.views.documents import Disputed, disputed
from avmfs.views.registry import Context, view
from avmfs.views.shape import lines
from avmfs.views.timeline import Note, dated, noted

T = TypeVar("T")
DAY_NS: Final = 86_400 * 10**9


@dataclass(frozen=True, slots=True)
class Told(Generic[T]):
    """As many as were asked for, of ``in_all``."""

    rows: list[T]
    in_all: int

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
    new = Told(*noted(memory, path, days, limit))
    old = Told(*noted(memory, path, max(days, cold), limit, cold=True))
    unread = None if counts is None else counts["urgent"] + counts["normal"]
    return Digest(path, unread, Told(urgent[:limit], len(urgent)), new, disputes, old)


def brief(found: Digest, zone: tzinfo, told: int, since: int) -> str:
    """For the inbox: how many of each, and by which handle each is had: what is purged, or no longer the agent's to
    see, is in no message. Empty where nothing is new, urgent or disputed."""
    if not (found.new.rows or found.urgent.rows or found.disputes.rows):
        return ""

    def named(name: str, handles: list[str], left: int) -> str:
        return f"{name}: {' '.join(handles)}{f' ({left} more)' if left else ''}\n" if handles else ""

    days = -(-(told - since) // DAY_NS)
    unread = "" if found.unread is None else f", {found.urgent.in_all} urgent of {found.unread} unread messages"
    return (
        f"Digest since {mail.show_time(since, zone)}: {found.new.in_all} new, {found.disputes.in_all} disputed,"
        f" {found.cold.in_all} cold{unread}. In full: cat '/:digest?days={days}'\n"
        + named("New", [f"@{note.handle}" for note in found.new.rows], found.new.left)
        + named("Disputed", ["@" + " @".join(one.handles) for one in found.disputes.rows], found.disputes.left)
    )


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
    title = f"# Digest of {paths.printable(found.path)} for {memory.who.name or 'nobody'}\n"
    return title + "".join(f"\n## {name}\n{lines(rows, 'nothing')}" for name, rows in parts.items())
