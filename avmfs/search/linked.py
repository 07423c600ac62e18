"""What agents have said about the truth of notes, by links: one supersedes another, two contradict each other.

Owns what that does to hits: which comes first, and what is said beside them. Called by the engine with the links that
the asker sees; without such links nothing changes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from avmfs.node import DISPUTES, Dispute
from avmfs.search import current
from avmfs.search.tense import asks_for_past

if TYPE_CHECKING:
    from avmfs.search.engine import Scored

SUPERSEDES, CONTRADICTS = DISPUTES
_SAID: Final = {SUPERSEDES: "superseded by", CONTRADICTS: "disputed by"}
_NAMED: Final = 3  # handles beside one hit
_Graph = dict[int, set[int]]  # by place of a hit, those of others


def replaced(links: Sequence[Dispute]) -> Mapping[int, frozenset[int]]:
    """By document, those that it supersedes."""
    found: dict[int, frozenset[int]] = {}
    for link in links:
        if link.type == SUPERSEDES:
            found[link.source] = found.get(link.source, frozenset()) | {link.target}
    return found


def heeded(links: Sequence[Dispute], hits: Sequence[Scored], q: str, spans: Sequence[current.Span]) -> list[Dispute]:
    """Those that the order of ``hits`` goes by: nothing supersedes another where ``q`` asks for the past, or for days
    (``spans``) that had ended when it was written, and not yet when the other was."""
    if not links:
        return []
    stop = max((last for _, last in spans), default=0)
    late = {each.hit.document for each in hits if 0 < stop <= each.hit.updated}
    texts: dict[int, str] = {}
    for each in hits:
        texts[each.hit.document] = f"{texts.get(each.hit.document, '')}\n{each.hit.text}"

    def holds(source: int, target: int) -> bool:
        sides = [texts[each] for each in (source, target) if each in texts]
        return not asks_for_past(q, sides) and (source not in late or target in late)

    return [
        link for link in links if link.type != SUPERSEDES or link.source not in texts or holds(link.source, link.target)
    ]


def placed(hits: Sequence[Scored], links: Sequence[Dispute], heeded: Sequence[Dispute]) -> list[Scored]:
    """``hits`` with what supersedes another before it, by the links that are ``heeded``; the sides of a dispute behind
    each other; and each with what is to be said of it."""
    if not links:
        return list(hits)
    found = [current.moved(one, place) for one, place in zip(in_order(hits, heeded), hits, strict=True)]
    over: dict[int, set[int]] = {}  # what stays before each
    for link in heeded:
        if link.type == SUPERSEDES:
            over.setdefault(link.target, set()).add(link.source)
    for link in links:
        if link.type == CONTRADICTS:
            _join(found, link.source, link.target, over)
    said: dict[int, list[str]] = {}
    newer: dict[int, list[str]] = {}
    for kind, word in _SAID.items():
        handles: dict[int, list[str]] = {}
        for link in links:
            if link.type == kind:
                handles.setdefault(link.target, []).append(link.handle)
        for document, named in handles.items():
            said.setdefault(document, []).append(" ".join([word, *(f"@{handle}" for handle in named[:_NAMED])]))
        newer = handles if kind == SUPERSEDES else newer
    for at, each in enumerate(found):
        if standing := tuple(said.get(each.hit.document, ())):
            # Of two that are said to supersede each other neither replaces the other.
            replaces = tuple(one for one in each.replaces if one not in newer.get(each.hit.document, ()))
            found[at] = replace(each, standing=standing, replaces=replaces)
    return found


def in_order(hits: Sequence[Scored], links: Sequence[Dispute]) -> list[Scored]:
    """``hits``, of which those that supersede each other, by one link or several, change places: each behind the best
    passage of all that supersede it, else as they were. A circle says nothing of what holds."""
    found = list(hits)
    places: dict[int, list[int]] = {}
    for at, each in enumerate(hits):
        places.setdefault(each.hit.document, []).append(at)
    older, newer = _Graph(), _Graph()
    for link in links:
        if link.type == SUPERSEDES and link.source != link.target and places.keys() >= {link.source, link.target}:
            first = places[link.source][0]
            older.setdefault(first, set()).update(places[link.target])
            for at in places[link.target]:
                newer.setdefault(at, set()).add(first)
    left = older.keys() | newer.keys()
    while left:
        together = _reached(next(iter(left)), older, newer)
        left -= together
        for at, one in zip(sorted(together), _sorted(together, older, newer), strict=True):
            found[at] = hits[one]
    return found


def _reached(start: int, older: _Graph, newer: _Graph) -> set[int]:
    """What hangs together with it."""
    found, ahead = {start}, [start]
    while ahead:
        one = ahead.pop()
        more = (older.get(one, set()) | newer.get(one, set())) - found
        found |= more
        ahead += more
    return found


def _sorted(places: set[int], older: _Graph, newer: _Graph) -> list[int]:
    """Of those that nothing else supersedes always the first."""
    waiting = {at: len(newer.get(at, ())) for at in places}
    ready = [at for at, count in waiting.items() if not count]
    heapq.heapify(ready)
    found: list[int] = []
    while waiting:
        first = heapq.heappop(ready) if ready else min(waiting)  # a circle, or what is behind one
        del waiting[first]
        found.append(first)
        for at in older.get(first, set()) & waiting.keys():
            waiting[at] -= 1
            if not waiting[at]:
                heapq.heappush(ready, at)
    return found


def _join(found: list[Scored], one: int, other: int, over: Mapping[int, set[int]]) -> None:
    """The lower of the two right behind the higher, or behind the last that is ``over`` it. It keeps its relevance:
    that another denies it does not make it answer the question."""
    places = sorted(at for at in (_at(found, one), _at(found, other)) if at is not None)
    if len(places) < 2:
        return
    lower = found[places[1]]
    newer = over.get(lower.hit.document, ())
    behind = next((at for at in range(places[1] - 1, places[0], -1) if found[at].hit.document in newer), places[0])
    if places[1] > behind + 1:
        del found[places[1]]
        found.insert(behind + 1, replace(current.moved(lower, found[behind]), relevance=lower.relevance))


def _at(found: Sequence[Scored], document: int) -> int | None:
    """Where its best passage is."""
    return next((at for at, each in enumerate(found) if each.hit.document == document), None)
