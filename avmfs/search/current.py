"""What is true now before what it replaced: of hits that say different things of one matter, the newer first.

Owns when two hits are about one matter, and which of them a question wants. Called by the engine with hits that the
asker sees, and looks at nothing else. Knows neither the store nor the clock.

The best hit and another are of one matter when both are statements, rank about level, share most of their rare words,
and those of the question among them; that the newer one speaks of a change helps, that both were written in one
sitting does not, and a link that says that one replaces the other decides. Two short ones that have but a word in
common are of one matter where nothing else answers the question as well. The weights follow a logistic fit on pairs of
a fact and what replaced it, against the notes, pages, functions and remarks that stand beside an answer without
replacing it. They err towards leaving the order as it is. A question about the past gets the older one first, and one
that names days what was true then.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

from avmfs.search.tense import asks_for_past
from avmfs.text import segment

if TYPE_CHECKING:
    from avmfs.search.engine import Scored

RIVALS: Final = 32
"""Best hits by which rarity is judged."""
LOOKED_AT: Final = 8
"""Best hits among which those of the matter of the best are looked for. A fact and what replaced it answer the same
question about as well."""

SHARED: Final = 7.8
"""Weight of the share that common words have in the one of the two that says less, by rarity."""
OVERLAP: Final = 2.8
"""Weight of the share that they have in both together."""
ASKED: Final = 5.0
"""Weight of the share of the question that both have."""
MISSED: Final = -7.0
"""Weight of the share of the question that only the better hit has: the other may tell of something else."""
CHANGE: Final = 4.0
"""Weight of a word of change in the newer."""
FOLLOWS: Final = 4.0
"""Weight of a file's name that says that it follows up on the other file."""
LEVEL: Final = 12.0
"""Weight of the share of the better hit's score that the other lacks."""
APART: Final = 0.08
"""Two hits stand apart where the third has so much less than the second, as a share of the best score."""
ONE_WORD: Final = 3.5
"""All that speaks for two that stand apart and have but one word in common, which is not all of the question."""
STATEMENT: Final = 8
LONG: Final = -6.0
"""Terms of a statement, and weight of the logarithm of how many times longer a text is: pages, and functions of one
module, share most words and replace nothing."""
SITTING: Final = 3600 * 10**9
TOGETHER: Final = -6.0
"""Weight of having been written within so many ns: what one writes in one sitting stands beside each other."""
BIAS: Final = 1.0
ALIKE: Final = CHANGE + BIAS + SHARED + OVERLAP + ASKED
"""The most that the texts of two hits may speak for them."""
SURE: Final = 5.0
"""From which it is said that one replaces the other. The order is changed from 0."""

USUAL: Final = 100
"""Hits among which a word that one has is rare."""
_UNSEEN: Final = math.log(1 + USUAL)

_CHANGE: Final = re.compile(
    r"\b(?:no longer|no more|not any ?more|any ?more|now|instead|moved|switch\w+|migrat\w+|replac\w+|renamed|chang\w+"
    r"|raised|lowered|increased|reduced|doubled|ended|archived|closed|retired|deprecated|supersed\w+|as of|since"
    r"|from (?:today|this|next)|effective|corrected|correction|actually|ported|stopped"
    r"|nicht mehr|jetzt|seit|sondern|ya no|ahora|désormais|ne plus|больше не|теперь)\b"
    r"|不再|改为|改成|搬到|换成|变更|変更|لم يعد|الآن",
    re.IGNORECASE,
)
_FOLLOW_UP: Final = re.compile(
    rb"[-_. ](?:v\d+|rev\d*|final|new|updated?|revised|done|moved|closed|resolved|fixed|follow-?up|\d{4}[hq]\d)",
    re.IGNORECASE,
)
_QUESTION: Final = 2000  # characters of a question that are read

NO_LINKS: Final[Mapping[int, frozenset[int]]] = {}

Span = tuple[int, int]
"""First and last ns since the epoch, the last not included."""


def ordered(
    hits: Sequence[Scored],
    q: str,
    spans: Sequence[Span],
    weight: float,
    linked: Mapping[int, frozenset[int]] = NO_LINKS,
) -> list[Scored]:
    """``hits``, best first, with what says different things of the best one's matter in the order that ``q`` wants.

    ``spans`` are the times that ``q`` names. ``weight`` 0 changes nothing; more of it asks for less proof (1 is the
    measured one). ``linked`` has, by document, those that it is said to replace: that decides, whatever the texts say.
    Those of the matter change places among themselves, and take over score (as a part "current") and relevance of the
    place; the newest of those that are surely of it says whom it ``replaces``.
    """
    found = list(hits)
    if not weight or len(hits) < 2:
        return found
    rarity = Rarity(hits[:RIVALS], q[:_QUESTION])
    best = found[0]
    told = {each.hit.document: each.hit.updated for each in found[:LOOKED_AT]}
    apart = len(found) < 3 or found[1].score - found[2].score >= APART * best.score
    proofs = {0: math.inf}
    for at, other in enumerate(found[1:LOOKED_AT], 1):
        if best.hit.document == other.hit.document:
            continue
        older, newer = sorted((best, other), key=lambda each: told[each.hit.document])
        for this, that in ((older.hit.document, newer.hit.document), (newer.hit.document, older.hit.document)):
            if that in linked.get(this, ()):
                proofs[at] = math.inf
                told[that] = min(told[that], told[this] - 1)
        # One that has not what the question quotes does not come before one that has.
        if told[best.hit.document] == told[other.hit.document] or _quoted(best) > _quoted(other):
            continue
        if best.hit.text.split() != other.hit.text.split():  # a copy replaces nothing
            proofs.setdefault(at, _proof(rarity, best, other, newer, apart and at == 1, math.log(weight)))
    matter = [at for at, proof in proofs.items() if proof >= 0]

    def when(at: int) -> int:
        return told[found[at].hit.document]

    sure = sorted((at for at in matter if proofs[at] >= SURE), key=when)
    behind = [at for at in sure if found[at].hit.document != found[sure[-1]].hit.document]
    for at in behind:
        found[at] = replace(found[at], replaced=True)
    if behind:
        handles = dict.fromkeys(found[at].hit.handle for at in reversed(behind))
        found[sure[-1]] = replace(found[sure[-1]], replaces=tuple(handles))
    wish = _wish(q, spans, [found[at].hit.text for at in matter])
    order = [found[at] for at in sorted(matter, key=lambda at: wish(when(at)))]
    for at, one in zip(matter, order, strict=True):
        found[at] = replace(moved(one, hits[at]), matter=len(matter) > 1)
    return found


def _quoted(one: Scored) -> float:
    return one.parts.get("phrase", 0.0)


def _wish(q: str, spans: Sequence[Span], notes: Sequence[str]) -> Callable[[int], tuple[bool, int]]:
    """By what the times of ``notes``, which are of one matter, are sorted for ``q``: newest first; oldest first if it
    asks for the past; if it names days, from the newest that was true then."""
    if asks_for_past(q, notes):
        return lambda time: (False, time)
    stop = max((last for _, last in spans), default=0)
    return lambda time: (0 < stop <= time, -time)


def _proof(rarity: Rarity, better: Scored, other: Scored, newer: Scored, apart: bool, proof: float) -> float:
    """How sure it is, above 0, that the two are of one matter, of which ``newer`` says what is true now, beginning at
    ``proof``. ``apart``: no third hit answers as well."""
    proof += TOGETHER if abs(better.hit.updated - other.hit.updated) < SITTING else 0.0
    follows = _follows_up(better.hit.path, other.hit.path)
    proof += FOLLOWS if follows else 0.0
    proof += LEVEL * (other.score / better.score - 1) if better.score > 0 else 0.0
    terms = max(len(_terms(each.hit.text)) for each in (better, other))
    proof += LONG * max(math.log(max(terms, 1) / STATEMENT), 0.0)
    if proof + ALIKE < 0:  # as most pairs are; to count the words of all hits is dear
        return -math.inf
    if apart and rarity.one_word(better.hit.text, other.hit.text):
        return proof + ONE_WORD
    proof += CHANGE if tells_of_change(newer.hit.text) else 0.0
    return proof + rarity.likeness(better.hit.text, other.hit.text, 1 if follows else 2)


def _follows_up(one: bytes, other: bytes) -> bool:
    """Whether one file's name is that of the other, beside it, with a word behind it that says what became of it:
    INC-238 and INC-238-closed, outline and outline-v2. Others (api and api-client) are as often of two matters."""
    shorter, longer = sorted((one.removesuffix(b".md"), other.removesuffix(b".md")), key=len)
    return longer.startswith(shorter) and _FOLLOW_UP.fullmatch(longer, len(shorter)) is not None


def moved(one: Scored, place: Scored) -> Scored:
    """``one`` with the score and relevance of ``place``."""
    if one.hit.passage == place.hit.passage:
        return one
    parts = {**one.parts, "current": one.parts.get("current", 0.0) + place.score - one.score}
    return replace(one, score=place.score, relevance=place.relevance, parts=parts)


class Rarity:
    """How much words of these hits tell, by how few of them have each."""

    def __init__(self, hits: Sequence[Scored], q: str) -> None:
        self._hits, self._terms = hits, _terms(q)
        self._sums: dict[str, float] = {}

    @cached_property
    def _weights(self) -> dict[str, float]:
        holders = Counter(term for scored in self._hits for term in _terms(scored.hit.text))
        return {term: math.log(1 + USUAL / count) for term, count in holders.items()}

    @cached_property
    def _asked(self) -> frozenset[str]:
        return self._terms & self._weights.keys()

    @cached_property
    def _question(self) -> float:
        return self._sum(self._asked) + len(self._terms - self._asked) * _UNSEEN or 1.0

    def likeness(self, better: str, other: str, least: int) -> float:
        """Of two texts, of which ``better`` ranks higher: above 0 where they are likely to be of one matter. With fewer
        than ``least`` words in common they are not: a single one is a topic."""
        mine, theirs = _terms(better), _terms(other)
        common = mine & theirs
        if len(common) < least:
            return -math.inf
        shared, one, two = self._sum(common), self._whole(better), self._whole(other)
        asked, missed = (self._sum(some & self._asked) / self._question for some in (common, mine - theirs))
        overlap = shared / (one + two - shared)
        return BIAS + SHARED * shared / min(one, two) + OVERLAP * overlap + ASKED * asked + MISSED * missed

    def one_word(self, better: str, other: str) -> bool:
        """Whether the texts have one word in common, and the question has it and others, of which ``better`` alone has
        no more than twice as much."""
        mine, theirs = _terms(better), _terms(other)
        common = mine & theirs
        missed = self._sum((mine - theirs) & self._asked)
        return len(common) == 1 and common < self._terms and missed <= 2 * self._sum(common)

    def _whole(self, text: str) -> float:
        if text not in self._sums:
            self._sums[text] = self._sum(_terms(text))
        return self._sums[text]

    def contained(self, one: str, other: str) -> float:
        """The share that common words have in the one of the two that says less; words that no hit has are rare."""
        mine, theirs = _terms(one), _terms(other)
        return self._sum(mine & theirs) / (min(self._sum(mine), self._sum(theirs)) or 1.0)

    def _sum(self, terms: frozenset[str]) -> float:
        return sum(self._weights.get(term, _UNSEEN) for term in terms)


@lru_cache(4096)
def tells_of_change(text: str) -> bool:
    return _CHANGE.search(text) is not None


@lru_cache(4096)
def _terms(text: str) -> frozenset[str]:
    return frozenset(segment.content_terms(text))
