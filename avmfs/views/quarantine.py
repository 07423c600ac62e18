"""What came from untrusted sources and waits until somebody lets it out. Owns :quarantine (docs/FORMATS.md), and what
the door's methods do. Of the texts themselves it says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from avmfs import paths
from avmfs.agents import mail
from avmfs.errors import Invalid
from avmfs.memory import Memory
from avmfs.node import signed
from avmfs.signatures import Range
from avmfs.views.registry import Context, by_lines, view, writes
from avmfs.views.shape import lines


@dataclass(frozen=True, slots=True)
class Held:
    """A file in quarantine: ``by`` wrote it, at ``updated`` (ns), through ``route``; ``sources``: where it is from."""

    path: bytes
    handle: str
    sources: tuple[str, ...]
    by: str
    route: str
    updated: int


def quarantined(memory: Memory, limit: int) -> tuple[list[Held], int]:
    """Those that were changed last, and how many there are."""
    found = []
    with memory.reading() as reader:
        nodes, in_all = reader.quarantine.held(limit)
        for node in nodes:
            document = reader.document(node)
            said = document.author, document.route, document.updated
            sources = reader.visible.origin(node.scope).sources
            found.append(Held(reader.path(node.id), document.handle, sources, *said))
    return found, in_all


def let_out(memory: Memory, path: str) -> str:
    """Let a file out, by path or handle. Returns its path. Raises Invalid where it is not in quarantine."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        where = paths.text(reader.path(node.id))
    memory.submit("let_out", node=node.id)
    return where


@view("quarantine", "root", summary="what came from untrusted sources and is found by nobody until it is let out")
def quarantine(ctx: Context, *, limit: Annotated[int, Range(1, 1000)] = 100) -> str:
    found, in_all = quarantined(ctx.memory, limit)
    rows = [
        f"@{each.handle}  {mail.show_time(each.updated, ctx.memory.zone)}  {signed(each.by, each.route)}"
        f"  from {','.join(each.sources)}  {paths.printable(each.path)}"
        for each in found
    ]
    return lines([*rows, *([f"({in_all - len(found)} more)"] if in_all > len(found) else [])], "nothing in quarantine")


@writes(
    "quarantine", "`@k7f2` or a path, one a line: lets it out", check=by_lines(lambda text: _asked(text)), once=True
)
def write_quarantine(ctx: Context, text: str) -> None:
    with ctx.memory.reading() as reader:
        nodes = dict.fromkeys(ctx.memory.resolve(reader, each) for each in _asked(text))
        for node in nodes:
            reader.visible.require(node.scope)
            if node.scope not in reader.visible.held:
                raise Invalid(":quarantine: not in quarantine", paths.text(reader.path(node.id)))
    for node in nodes:
        ctx.memory.submit("let_out", node=node.id)


def _asked(text: str) -> list[str]:
    asked = [line.strip() for line in text.split("\n") if line.strip()]
    if odd := next((each for each in asked if each[0] not in "@/"), None):
        raise Invalid(f":quarantine: {odd[:80]!r}: expected @handle or a path, one a line")
    return ["/" + each if each[0] == "@" else each for each in asked]
