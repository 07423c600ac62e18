"""How text came into the store, where it is not its author's own words, and what follows of it.

A value that goes with the visibility class of a file (``access.Scope``), and so wherever that goes. Called by access
and by whoever says, or tells, where something came from. Knows neither rules' patterns nor the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple, get_args

from avmfs.errors import Invalid

Trust = Literal["allow", "mark", "quarantine"]
LEVELS: Final[tuple[Trust, ...]] = get_args(Trust)
QUARANTINED: Final = "(in quarantine)"
SOURCES: Final = ("imported", "live", "tool", "web")


class Origin(NamedTuple):
    """``sources`` in order, those among them that it has from what it was made of; none of its author's own words.
    ``released``: somebody let it out of quarantine, as coming from these."""

    sources: tuple[str, ...] = ()
    released: bool = False

    def joined(self, other: Origin) -> Origin:
        """Of what is made of both. It is released if all of it is."""
        if not other.sources or self == other:
            return self
        came = tuple(sorted({*self.sources, *other.sources}))
        return Origin(came, other.released and (self.released or not self.sources))

    @property
    def plain(self) -> str:
        return ",".join(self.sources)


OWN: Final = Origin()


class Trusted(NamedTuple):
    """What becomes of what came from ``source`` where its path matches."""

    source: str
    pattern: str
    action: Trust


USUAL: Final = (Trusted("web", "/*", "mark"),)  # where no other rule matches; the rest is allowed


def level(rules: Iterable[Trusted], origin: Origin, matches: Callable[[str], bool]) -> Trust:
    """The strictest that the rules say of its sources, of each the first of which the pattern ``matches``."""
    found: set[Trust] = {
        next((each.action for each in (*rules, *USUAL) if each.source == source and matches(each.pattern)), "allow")
        for source in origin.sources
    }
    strictest: Trust = max(found, key=LEVELS.index, default="allow")
    return "mark" if strictest == "quarantine" and origin.released else strictest


def marked(line: str, came: str) -> str:
    """A line that quotes what ``came`` so (``Visible.untrusted``); nothing is said of what is to be trusted."""
    return f"(untrusted: {came}) {line}" if came and line else line


def heading(came: str) -> str:
    """The line above the words of a file that ``came`` so; nothing above those that are to be trusted."""
    return f"# untrusted: {came}\n" if came else ""


def named_by(content: str, source: str) -> str:
    """What a file without a title is named by: a stranger's words would be read in every listing, unmarked."""
    return (
        content if source == "own" else f"{source} {hashlib.sha256(content.encode('utf-8', 'replace')).hexdigest()[:8]}"
    )


def origin_of(sources: Iterable[str]) -> Origin:
    """Raises Invalid."""
    given = {*sources}
    if odd := sorted(given.difference(SOURCES)):
        raise Invalid(f"source {odd[0][:80]!r}: expected {', '.join(SOURCES)}")
    return Origin(tuple(sorted(given)))


def sources_of(source: str) -> list[str]:
    """Of one word, "own" among them. Raises Invalid."""
    if source not in ("own", *SOURCES):
        raise Invalid(f"source {source[:80]!r}: expected own, {', '.join(SOURCES)}")
    return [] if source == "own" else [source]
