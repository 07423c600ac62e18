"""What agents have said about the truth of notes, by links: one supersedes another, two contradict each other.

Owns what that does to hits: which comes first, and what is said beside them. Called by the engine with the links that
the asker sees; without such links nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from avmfs.node import DISPUTES, Dispute
from avmfs.search import current

if TYPE_CHECKING:
    from avmfs.search.engine import Scored

SUPERSEDES, CONTRADICTS = DISPUTES
_SAID: Final = {SUPERSEDES: "superseded by", CONTRADICTS: "disputed by"}
_NAMED: Final = 3  # handles beside one hit


def replaced(links: Sequence[Dispute]) -> Mapping[int, frozenset[int]]:
    """By document, those that it supersedes."""
    found: dict[int, frozenset[int]] = {}
    for link in links:
        if link.type == SUPERSEDES:
            found[link.source] = found.get(link.source, frozenset()) | {link.target}
    return found


def placed(hits: Sequence[Scored], links: Sequence[Dispute], q: str) -> list[Scored]:
    """``hits`` with what supersedes another before it, unless ``q`` asks for the past; the sides of a dispute behind
    each other; and each with what is to be said of it."""
    found = list(hits)
    if not links:
        return found
    if not current.asks_for_past(q):
        for link in links:
            if link.type == SUPERSEDES:
                _exchange(found, link.source, link.target)
    for link in links:
        if link.type == CONTRADICTS:
            _join(found, link.source, link.target)
    said: dict[int, list[str]] = {}
    for kind, word in _SAID.items():
        for document in {link.target for link in links if link.type == kind}:
            handles = [f"@{link.handle}" for link in links if link.type == kind and link.target == document]
            said.setdefault(document, []).append(f"{word} {' '.join(handles[:_NAMED])}")
    return [
        replace(each, standing=tuple(said[each.hit.document])) if each.hit.document in said else each for each in found
    ]


def _at(found: Sequence[Scored], document: int) -> int | None:
    """Where its best passage is."""
    return next((at for at, each in enumerate(found) if each.hit.document == document), None)


def _exchange(found: list[Scored], newer: int, older: int) -> None:
    first, second = _at(found, older), _at(found, newer)
    if first is not None and second is not None and first < second:
        one, other = found[first], found[second]
        found[first], found[second] = current.moved(other, one), current.moved(one, other)


def _join(found: list[Scored], one: int, other: int) -> None:
    """The lower of the two right behind the higher."""
    places = sorted(at for at in (_at(found, one), _at(found, other)) if at is not None)
    if len(places) == 2 and places[1] > places[0] + 1:
        lower = found.pop(places[1])
        found.insert(places[0] + 1, current.moved(lower, found[places[0]]))
