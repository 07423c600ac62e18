"""What is true now before what it replaced: of hits that say different things of one matter, the newer first.

Owns when two hits are about one matter, and which of them a question wants. Called by the engine with hits that the
asker sees, and looks at nothing else. Knows neither the store nor the clock.

Two notes are of one matter when they share most of their rare words, and those of the question among them; that the
newer one speaks of a change helps. The weights are a logistic fit on pairs of a fact and what replaced it, against the
notes that stand beside an answer without replacing it, rounded (benchmarks/README.md). They err towards leaving the
order as it is. A question about the past gets the older one first, and one that names days what was true then.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from avmfs.text import segment

if TYPE_CHECKING:
    from avmfs.search.engine import Scored

RIVALS: Final = 32
"""Best hits by which rarity is judged."""
LOOKED_AT: Final = 16
"""Best hits among which pairs are looked for. A fact and what replaced it answer the same question about as well."""

SHARED: Final = 7.8
"""Weight of the share that common words have in the one of the two that says less, by rarity."""
OVERLAP: Final = 2.8
"""Weight of the share that they have in both together."""
ASKED: Final = 3.0
"""Weight of the share of the question that both have."""
MISSED: Final = -4.3
"""Weight of the share of the question that only the better hit has: the other may tell of something else."""
CHANGE: Final = 2.8
"""Weight of a word of change in the newer."""
BIAS: Final = -4.5
SURE: Final = 2.5
"""From which it is said that one replaces the other. The order is changed from 0."""

AHEAD: Final = 1.05
"""The score of what is put first, times the other's: ahead of it under every importance but the extremes."""

USUAL: Final = 100
"""Hits among which a word that one has is rare."""

_CHANGE: Final = re.compile(
    r"\b(?:no longer|no more|not any ?more|any ?more|now|instead|moved|switch\w+|migrat\w+|replac\w+|renamed|chang\w+"
    r"|raised|lowered|increased|reduced|doubled|ended|archived|closed|retired|deprecated|supersed\w+|as of|since"
    r"|from (?:today|this|next)|effective|corrected|correction|actually|ported|stopped"
    r"|nicht mehr|jetzt|seit|sondern|ya no|ahora|désormais|ne plus|больше не|теперь)\b"
    r"|不再|改为|改成|搬到|换成|变更|変更|لم يعد|الآن",
    re.IGNORECASE,
)
_PAST: Final = re.compile(
    r"\b(?:before|previous(?:ly)?|former(?:ly)?|earlier|(?<!how )old|older|original(?:ly)?|used to|at first|back then"
    r"|first (?:plan\w*|thought|think|idea)|initial(?:ly)?|prior|in the past"
    r"|(?:was|were|did|had|wrote|went)\b.{0,80}\b(?:in|during) (?:the |last )?(?:spring|summer|autumn|fall|winter)"
    r"|(?:wurden?|waren?|hatten?|kam)\b.{0,80}\bim (?:Jan|Feb|März|Apr|Mai|Ju|Aug|Sep|Okt|Nov|Dez|Früh|Som|Her|Wint)\w*"
    r"|vorher|früher|damals|bisher|zuvor|antes|anterior\w*|avant|auparavant|ancien\w*|раньше|прежде|прежн\w+)\b"
    r"|以前|之前|原来|原先|过去|قبل|سابق",
    re.IGNORECASE,
)
_QUESTION: Final = 2000  # characters of a question that are read

Span = tuple[int, int]
"""First and last ns since the epoch, the last not included."""


def ordered(hits: Sequence[Scored], q: str, spans: Sequence[Span], weight: float) -> list[Scored]:
    """``hits``, best first, with what ``q`` wants of two that say different things of one matter put before the other.

    ``spans`` are the times that ``q`` names. ``weight`` 0 changes nothing; more of it asks for less proof (1 is the
    measured one). What moves has its new score as a part "current", and the relevance of what it stands before.
    """
    if not weight or len(hits) < 2:
        return list(hits)
    found = list(hits)
    rarity = _Rarity(hits[:RIVALS], q[:_QUESTION])
    past = bool(_PAST.search(q[:_QUESTION]))
    for at in range(min(len(found), LOOKED_AT) - 1):
        better = found[at]
        rivals = [other for other in found[at + 1 : LOOKED_AT] if _wanted(other, better, past, spans)]
        # The one that is wanted most comes last, and so to stand first.
        for other in sorted(rivals, key=lambda each: each.hit.updated, reverse=past):
            older, newer = (other, better) if other.hit.updated < better.hit.updated else (better, other)
            proof = rarity.likeness(better.hit.text, other.hit.text) + math.log(weight)
            if proof + CHANGE < 0:
                continue
            proof += CHANGE if _tells_of_change(newer.hit.text) else 0.0
            if proof < 0:
                continue
            found.remove(other)
            found.insert(at, _ahead(other, found[at]))
            if proof >= SURE:
                found = _said(found, older.hit.passage, newer.hit.passage)
    return found


def _wanted(other: Scored, better: Scored, past: bool, spans: Sequence[Span]) -> bool:
    """Whether ``other``, which ranks lower, is what the question wants of the two, if they are of one matter."""
    mine, theirs = other.hit.updated, better.hit.updated
    if other.hit.document == better.hit.document or mine == theirs:
        return False
    if better.parts.get("phrase", 0.0) > other.parts.get("phrase", 0.0):
        return False  # the question names its words exactly, and only the better hit has them
    if past:
        return mine < theirs
    stop = max((last for _, last in spans), default=0)
    if mine < stop <= theirs or theirs < stop <= mine:
        return mine < stop  # what was said before the end of that time was true then
    return mine > theirs


def _ahead(one: Scored, other: Scored) -> Scored:
    """``one`` with a score above that of ``other``."""
    score = other.score * AHEAD if other.score > 0 else other.score + AHEAD - 1
    parts = {**one.parts, "current": one.parts.get("current", 0.0) + score - one.score}
    return replace(one, score=score, relevance=max(one.relevance, other.relevance), parts=parts)


def _said(hits: list[Scored], older: int, newer: int) -> list[Scored]:
    """With that named: passage ``newer`` replaces ``older``."""
    handle = next(each.hit.handle for each in hits if each.hit.passage == older)
    return [
        replace(each, replaces=tuple(dict.fromkeys((*each.replaces, handle))))
        if each.hit.passage == newer
        else replace(each, replaced=True)
        if each.hit.passage == older
        else each
        for each in hits
    ]


class _Rarity:
    """How much words of these hits tell, by how few of them have each."""

    def __init__(self, hits: Sequence[Scored], q: str) -> None:
        holders = Counter(term for scored in hits for term in _terms(scored.hit.text))
        self._weights = {term: math.log(1 + USUAL / count) for term, count in holders.items()}
        self._asked = _terms(q) & holders.keys()
        self._question = self._sum(self._asked) + len(_terms(q) - self._asked) * math.log(1 + USUAL) or 1.0
        self._sums: dict[str, float] = {}

    def likeness(self, better: str, other: str) -> float:
        """Of two texts, of which ``better`` ranks higher: above 0 where they are likely to be of one matter."""
        mine, theirs = _terms(better), _terms(other)
        common = mine & theirs
        if len(common) < 2:  # a single word is a topic, not a matter
            return -math.inf
        shared, one, two = self._sum(common), self._whole(better), self._whole(other)
        asked, missed = (self._sum(some & self._asked) / self._question for some in (common, mine - theirs))
        overlap = shared / (one + two - shared)
        return BIAS + SHARED * shared / min(one, two) + OVERLAP * overlap + ASKED * asked + MISSED * missed

    def _whole(self, text: str) -> float:
        if text not in self._sums:
            self._sums[text] = self._sum(_terms(text))
        return self._sums[text]

    def _sum(self, terms: frozenset[str]) -> float:
        return sum(map(self._weights.__getitem__, terms))


@lru_cache(4096)
def _tells_of_change(text: str) -> bool:
    return _CHANGE.search(text) is not None


@lru_cache(4096)
def _terms(text: str) -> frozenset[str]:
    return frozenset(segment.content_terms(text))
