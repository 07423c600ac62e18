"""Who knows about it. Owns :who and :agents (docs/FORMATS.md, docs/DISCOVERY.md), and what the door's methods of the
same names give.

The librarian looks up the topics that a question names: in the files that the asker can see, and in what the owners of
others let be learnt. Only where the asker can see nothing of the kind is the question searched for, and the authors of
what is found are named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

from avmfs import paths
from avmfs.access import PRIVACY, Privacy
from avmfs.agents import librarian, mail
from avmfs.agents.librarian import Knows
from avmfs.errors import Invalid, NotFound
from avmfs.memory import Memory
from avmfs.node import NO_ROOM, notice
from avmfs.search.engine import Answer
from avmfs.signatures import Range
from avmfs.store.queries.discovery import Evidence
from avmfs.store.queries.nodes import Reader
from avmfs.text import segment
from avmfs.views.registry import Context, view, writes
from avmfs.views.shape import lines, size

Via = Literal["librarian", "gossip"]
SEARCHED = 20  # hits of a search whose authors are named
ASKED = 5  # of those who know, in the answer to a question
WORKS_SHOWN, CLAIMS_MOST = 10, 10_000  # of one agent in :agents; that are looked at
_NOBODY = "nobody is known to know"
_HAS_ASKED = "\nasked {} (#{})\n"


@dataclass(frozen=True, slots=True)
class Known:
    """``degraded``: why a search that was needed had to do without vectors."""

    lines: tuple[Knows, ...]
    degraded: str | None = None

    @property
    def plain(self) -> list[dict[str, Any]]:
        return [*map(librarian.plain, self.lines)]

    @property
    def text(self) -> str:
        head = notice(self.degraded)
        return head + lines(map(librarian.shown, self.lines), _NOBODY)


@dataclass(frozen=True, slots=True)
class Answered:
    """What a question was answered with, ``text`` in all. ``recalled`` is empty when nothing was relevant; ``sent`` is
    the number of the message to ``recipient``."""

    text: str
    recalled: str
    tokens: int
    degraded: str | None
    known: Known
    recipient: str | None
    sent: int | None


def who_knows(memory: Memory, q: str, *, limit: int = 10, via: Via = "librarian") -> Known:
    """Who knows about ``q``, at most ``limit`` lines. By "gossip": by digests alone, which may be mistaken and late.
    Raises Denied for an API key that may not search: topics are words of files."""
    memory.who.require("search")
    keys = librarian.topic_keys(q)
    if not q.strip():
        raise Invalid("q: what is it about?")
    degraded = memory.make_searchable() if via == "librarian" else None
    with memory.reading() as reader:
        directory, hosts = memory.around.digests.current(reader)
        asked = directory.ask(keys) if via == "gossip" or len(hosts) > 1 else []  # our own, the librarian knows better
        perhaps = librarian.by_digest(asked, hosts, local=via == "gossip")
        if via == "gossip":
            return Known(tuple(perhaps[:limit]))
        found = librarian.by_files(reader.discovery.evidence(keys))
        told = librarian.by_word(reader.discovery.revealed(keys))
    if not found:
        answer = memory.search(segment.as_question(q), limit=SEARCHED)
        found, degraded = _authors(memory, answer), answer.degraded
    with memory.reading() as reader:
        placed = tuple(_placed(reader, line) for line in [*found, *told, *perhaps][:limit])
    return Known(placed, degraded)


def ask(
    memory: Memory, question: str, *, max_tokens: int | None = None, to: str | None = None, forward: bool = False
) -> Answered:
    """What memory holds on the question and who knows about it, together in ``max_tokens`` tokens; and, when ``to``
    names an agent, or ``forward``, the question as a message to that agent or to whoever knows best. Raises NotFound
    when there is nobody to forward it to."""
    budget = memory.around.search.max_tokens if max_tokens is None else max_tokens
    known = who_knows(memory, question, limit=ASKED)
    recipient = to
    if to is None and forward:
        others = [line for line in known.lines if line.host is None and line.agent not in (None, memory.who.name)]
        with memory.reading() as reader:
            enrolled = set(reader.agents())
        recipient = next((line.agent for line in others if line.agent in enrolled), None)
        if recipient is None:
            raise NotFound("nobody else is known to know about it: name whom to ask")
    count = memory.around.engine.counter.count
    told = "" if recipient is None else _HAS_ASKED.format(recipient, 10**9)
    section, known = _within(known, budget // 2, count)
    found = memory.recall(question, max_tokens=budget, reserve=min(count(section + told), budget - 1))
    sent = None if recipient is None else memory.tell(recipient, question)
    text = found.text + section + ("" if sent is None else _HAS_ASKED.format(recipient, sent))
    recalled = (found.text, found.tokens) if found.hits else ("", 0)
    return Answered(text.removeprefix("\n") or NO_ROOM, *recalled, found.degraded, known, recipient, sent)


def _within(known: Known, most: int, count: Callable[[str], int]) -> tuple[str, Known]:
    """As many lines, under their heading, as have ``most`` tokens: none where not one fits."""
    some = bool(known.lines)
    while known.lines and count(_section(known)) > most:
        known = replace(known, lines=known.lines[:-1])
    section = _section(known)
    return (section if some == bool(known.lines) and count(section) <= most else ""), known


def set_privacy(memory: Memory, mode: str, agent: str | None = None) -> None:
    """Raises Invalid, Denied, NotFound."""
    if mode not in PRIVACY:  # before the agent is enrolled for nothing
        raise Invalid(f"privacy {mode[:80]!r}: expected one of {', '.join(PRIVACY)}")
    if agent is None:
        memory.enroll()
    memory.submit("set_privacy", mode=mode, agent=agent)


@view("who", "root", summary="who knows about `q`; without it, how much others may learn of this agent")
def who(
    ctx: Context, *, q: str | None = None, limit: Annotated[int, Range(1, 1000)] = 10, via: Via = "librarian"
) -> str:
    if q is not None:
        return who_knows(ctx.memory, q, limit=limit, via=via).text
    with ctx.memory.reading() as reader:
        return f"privacy: {reader.discovery.privacy(ctx.memory.who.name)}\n"


@writes(
    "who",
    "`full`, `owner`, `existence` or `none`: how much others may learn of what only this agent can read",
    once=True,
)
def write_who(ctx: Context, text: str) -> None:
    set_privacy(ctx.memory, cast(Privacy, text.strip()))


@view("agents", "root", summary="all agents: who is here, since when, works on what; the size of its digest")
def agents(ctx: Context) -> str:
    with ctx.memory.reading() as reader:
        own = {host.host for host in reader.discovery.hosts() if host.own}
        digests = {row.agent: row.bits for row in reader.discovery.digests() if row.host in own and row.bits}
        names, works = reader.agents(), working(reader)
    here = present(ctx.memory)
    zone = ctx.memory.zone
    found = []
    for name in names:
        routes = ", ".join(f"{route} since {mail.show_time(at, zone)}" for route, at in here.get(name, {}).items())
        found.append(
            name
            + ("  (you)" if name == ctx.memory.who.name else "")
            + (f"  digest {size(len(digests[name]))}" if name in digests else "")
            + (f"  here: {routes}" if routes else "")
        )
        claimed = works.get(name, [])
        found += [
            f"  works on {paths.printable(path)} until {mail.show_time(until, zone)}"
            for path, until in claimed[:WORKS_SHOWN]
        ]
        found += [f"  ({len(claimed) - WORKS_SHOWN} more)"] if len(claimed) > WORKS_SHOWN else []
    return lines(found, "no agents")


def present(memory: Memory) -> dict[str, dict[str, int]]:
    """By which routes each agent is here, in order, and since when (ns). Empty without a daemon."""
    presence = memory.around.presence
    return {} if presence is None else {agent: dict(sorted(at.items())) for agent, at in presence.all().items()}


def working(reader: Reader) -> dict[str, list[tuple[bytes, int]]]:
    """Of each agent what it has claimed of all that the asker sees, and until when (ns)."""
    found: dict[str, list[tuple[bytes, int]]] = {}
    for each in reader.claims.held(CLAIMS_MOST):
        found.setdefault(each.agent, []).append((reader.path(each.node), each.until))
    return found


def _section(known: Known) -> str:
    return f"\n## Who knows\n\n{known.text}"


def _authors(memory: Memory, answer: Answer) -> list[Knows]:
    """The authors of what a search has found that is relevant enough to be recalled."""
    least = memory.around.search.min_relevance
    hits: Sequence[Evidence] = [
        Evidence(each.hit.author, "", "", each.hit.document, each.hit.node, each.hit.updated, each.hit.handle)
        for each in answer.hits
        if each.relevance >= least
    ]
    return [replace(line, topics=()) for line in librarian.by_files(hits)]


def _placed(reader: Reader, line: Knows) -> Knows:
    """With the path of its newest file, unless that went meanwhile."""
    if line.node is None:
        return line
    try:
        return replace(line, path=reader.path(line.node))
    except NotFound:
        return replace(line, handle=None)
