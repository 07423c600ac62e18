"""Whether two notes say the same: exactly, or near enough that one of them is enough.

Owns the measure. Called by what stores a new memory, with texts that the asker sees. Pure.

Near is: most content words in common, and nothing else said of anything: the same numbers, the same mood, and no name
in each that the other has not. Two notes of which one tells another day or another person of the same matter are no
duplicates, however alike they read.
"""

from __future__ import annotations

import re
from typing import Final

from avmfs.text import segment

NEAR: Final = 0.6
"""The share of common words, among the words of both, from which notes are near duplicates. Measured on labelled pairs
of agents' notes: of those that differ in a value none passes."""
_WORDS: Final = 3  # fewer tell nothing
_NUMBER: Final = re.compile(
    r"\d+|\b(?:two|three|four|five|six|seven|eight|nine|ten|first|second|third|fourth|fifth|last|next|half|double"
    r"|hourly|daily|weekly|monthly|yearly)\b"
)
_CAPITAL: Final = re.compile(r"\b[^\W\d_]\w*")
_DENIAL: Final = re.compile(
    r"\b(?:not|no|never|none|nobody|without|cannot|\w+n['’]t|nicht|kein\w*|nie|ohne|jamais|sans|nunca|sin|не|нет|без)\b"
    r"|[不没未]|لا|بدون",
    re.IGNORECASE,
)


def likeness(one: str, other: str) -> float:
    """1 for the same text but for blanks and line ends, 0 for what tells of other things, else the share of common
    words, below 1."""
    if one.split() == other.split():
        return 1.0
    mine, theirs = (frozenset(segment.content_terms(text)) for text in (one, other))
    if min(len(mine), len(theirs)) < _WORDS:
        return 0.0
    if sorted(_NUMBER.findall(one.lower())) != sorted(_NUMBER.findall(other.lower())):
        return 0.0
    if len(_DENIAL.findall(one)) != len(_DENIAL.findall(other)):
        return 0.0
    if mine & _names(one) - theirs and theirs & _names(other) - mine:
        return 0.0
    return min(len(mine & theirs) / len(mine | theirs), 0.99)


def _names(text: str) -> frozenset[str]:
    words = (word for word in _CAPITAL.findall(text) if word[0].isupper())
    return frozenset(term for word in words for term in segment.content_terms(word))
