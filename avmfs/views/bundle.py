"""What one agent hands over to another, or to itself of tomorrow. Owns :bundle (docs/FORMATS.md).

A recall that names path and version of each note, then what happened to these notes and what they are linked with, all
in one budget of tokens. Headings carry the answer's nonce, which no memory can know.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

from avmfs import paths
from avmfs.agents import mail
from avmfs.memory import Memory
from avmfs.node import notice
from avmfs.search.pack import NOTHING
from avmfs.signatures import Range
from avmfs.store.queries.nodes import Reader
from avmfs.text.escapes import escaped
from avmfs.views.registry import Context, view
from avmfs.views.shape import parts

LEAST: Final = 100  # tokens
VERSIONS: Final = 5  # of each note, in the timeline
ASIDE: Final = 4  # of so many tokens one is kept for what is not the notes themselves


@dataclass(frozen=True, slots=True)
class Bundle:
    """``text`` has exactly ``tokens`` tokens and is empty where nothing is relevant. ``paths``: of the notes in it."""

    text: str
    tokens: int
    paths: list[bytes]
    degraded: str | None
    seq: int


@view("bundle", "directory", summary="a handoff on `q`: notes, what happened to them, their links")
def bundle(ctx: Context, *, q: str, max_tokens: Annotated[int, Range(LEAST, 200_000)] = 4000) -> str:
    with ctx.memory.reading() as reader:
        under = parts(reader.path(ctx.node.id))
    found = bundled(ctx.memory, q, under, max_tokens)
    above = notice(found.degraded)
    return found.text or above + NOTHING


def bundled(memory: Memory, q: str, under: tuple[bytes, ...], max_tokens: int) -> Bundle:
    """At most ``max_tokens``, of which the notes get all but a quarter; where not all fits, links get half of that."""
    counter = memory.around.engine.counter
    found = memory.recall(q, max_tokens=max_tokens, under=under, cite="path", reserve=max_tokens // ASIDE)
    if not found.hits:
        return Bundle("", 0, [], found.degraded, found.seq)
    handles = {scored.hit.handle: scored.hit.path for scored in found.hits}
    with memory.reading() as reader:
        times, links = _about(memory, reader, handles)
    nonce, room = memory.store.nonce(memory.who, found.seq, q), max_tokens // ASIDE

    def text(links_told: int, times_told: int) -> str:
        said = found.text
        for name, rows, told in (("Timeline", times, times_told), ("Links", links, links_told)):
            more = [f"({len(rows) - told} more)"] if told < len(rows) else []
            said += "".join(f"{row}\n" for row in (f"## {name} {nonce}", *rows[:told], *more)) if told else ""
        return said

    def fits(links_told: int, times_told: int, spare: int = 0) -> bool:
        return counter.count(text(links_told, times_told)) <= max_tokens - spare

    linked = _most(len(links), lambda told: fits(told, 0, room // 2 if times else 0))
    timed = _most(len(times), lambda told: fits(linked, told))
    whole = text(linked, timed)
    return Bundle(whole, counter.count(whole), list(handles.values()), found.degraded, found.seq)


def _most(count: int, fits: Callable[[int], bool]) -> int:
    """How many of the first ``count`` fit."""
    return bisect.bisect_left(range(1, count + 1), True, key=lambda told: not fits(told))


def _about(memory: Memory, reader: Reader, handles: dict[str, bytes]) -> tuple[list[str], list[str]]:
    """Lines on the newest versions of these notes, newest first, and on their links, each link once."""
    times: list[tuple[int, str]] = []
    links: list[str] = []
    for handle in handles:
        node = reader.by_handle(handle)
        if node is None or node.document is None:  # it went meanwhile
            continue
        for each in reader.versions(node.document)[:VERSIONS]:
            said = f"{mail.show_time(each.at, memory.zone)}  @{handle}  v{each.number}  {each.author}"
            times.append((each.seq, said))
        for link in reader.links(node.document, told=True):
            # A note put aside says nothing of others any more, as in the recall; what is said of it stands.
            if link.outgoing or not (link.path in handles.values() or paths.aside(parts(link.path))):
                arrow = "->" if link.outgoing else "<-"
                links.append(f"@{handle} {arrow} {paths.printable(link.path)} ({escaped(link.type)})")
    return [said for _, said in sorted(times, reverse=True)], links
