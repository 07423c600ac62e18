"""What an agent should know of memory today. Owns :digest (docs/FORMATS.md).

Four lists of what the agent sees below a directory: urgent mail that is unread, notes of the last days, disputes that
nobody has settled, and notes of long ago, by the date of a note. Nothing is kept, and reading it marks nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from avmfs import paths
from avmfs.agents import mail
from avmfs.memory import Memory
from avmfs.node import Message
from avmfs.signatures import Range
from avmfs.views.documents import Disputed, disputed
from avmfs.views.registry import Context, view
from avmfs.views.shape import lines
from avmfs.views.timeline import Note, noted


@dataclass(frozen=True, slots=True)
class Digest:
    """Of each list as many as were asked for, of so many in all. ``unread``: messages of any priority but low.
    ``None`` for an API key that does not open the inbox."""

    path: bytes
    unread: int | None
    urgent: list[Message]
    urgent_in_all: int
    new: list[Note]
    new_in_all: int
    disputes: list[Disputed]
    disputes_in_all: int
    cold: list[Note]
    cold_in_all: int


@view("digest", "directory", summary="what is new, urgent, disputed and cold below it", slow=True)
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
        disputes, disputes_in_all = disputed(reader, limit, directory)
        counts = reader.mail.counts().unread if memory.who.may("inbox") else None
    urgent = [] if counts is None else memory.inbox(unread_only=True, priority="urgent")
    new, new_in_all = noted(memory, path, days, limit)
    old, old_in_all = noted(memory, path, max(days, cold), limit, cold=True)
    unread = None if counts is None else counts["urgent"] + counts["normal"]
    return Digest(
        path, unread, urgent[:limit], len(urgent), new, new_in_all, disputes, disputes_in_all, old, old_in_all
    )


def shown(found: Digest, memory: Memory, days: float, cold: float) -> str:
    def notes(told: list[Note], in_all: int) -> list[str]:
        rows = [
            f"{mail.show_time(note.at, memory.zone)}  @{note.handle}  {note.author}  {paths.printable(note.path)}"
            f"  {note.line}".rstrip()
            for note in told
        ]
        return rows + ([f"({in_all - len(told)} more)"] if in_all > len(told) else [])

    urgent = [] if not found.urgent else mail.urgent(found.urgent, memory.zone).rstrip("\n").split("\n")
    if (left := found.urgent_in_all - len(found.urgent)) > 0:
        urgent += ["", f"({left} more: /:urgent)"]
    disputes = [*map(str, found.disputes)]
    if (left := found.disputes_in_all - len(found.disputes)) > 0:
        disputes.append(f"({left} more: /:disputes)")
    unread = "" if found.unread is None else f"; {found.unread} unread: /:inbox"
    parts = {
        f"Urgent ({found.urgent_in_all}{unread})": urgent,
        f"New in {days:g} day{'s' * (days != 1)} ({found.new_in_all})": notes(found.new, found.new_in_all),
        f"Disputed ({found.disputes_in_all})": disputes,
        f"Cold for {max(days, cold):g} days ({found.cold_in_all})": notes(found.cold, found.cold_in_all),
    }
    title = f"# Digest of {paths.printable(found.path)} for {memory.who.name or 'nobody'}\n"
    return title + "".join(f"\n## {name}\n{lines(rows, 'nothing')}" for name, rows in parts.items())
