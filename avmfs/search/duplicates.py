"""Whether two notes say the same: exactly, or near enough that one of them is enough.

Owns the measure. Called by what stores a new memory, by consolidation and by packing, with texts that the asker sees.
Pure.

Near is: most content words in common, and nothing else said of anything: the same numbers, the same mood, and no name
in each that the other has not. Two notes of which one tells another day or another person of the same matter are no
duplicates, however alike they read.

What is put away without anybody's looking must be surer: then each sentence of the one has to stand in the other, in
the same order, but for case, punctuation, articles and labels such as "Note:" (``redundant``).
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from avmfs.text import passages, segment

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

KNOWN: Final = 8192
"""Texts whose gist is remembered: the same memories are handed out again and again, and comparing what they say was
half the cost of an answer. A passage has a thousand characters at most, as a rule two hundred: 4 MB."""
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_DENIALS: Final = frozenset(("not", "no", "nor", "never", "t", "cannot", "without"))
_DIGITS: Final = re.compile(r"\d+")


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


@lru_cache(KNOWN)
def glance(text: str) -> str:
    """The beginning of the longest word, and the figures."""
    words = _LETTERS.findall(text.casefold())
    most = max(map(len, words), default=0)
    longest = max([word for word in words if len(word) == most], default="")
    return f"{longest[:5]} {_DIGITS.findall(text)}"


@lru_cache(KNOWN)
def gist(text: str) -> bytes:
    """Equal for texts that say the same: the same words but for function words, in whatever order and inflection, the
    same figures, as many denials. A text without such words is itself. A digest: the words themselves would take ten
    times the room of the text."""
    words = segment.content_terms(text)
    denials = sum(word in _DENIALS for word in _LETTERS.findall(text.casefold()))
    said = f"{sorted(words)} {_DIGITS.findall(text)} {denials}" if words else f"= {' '.join(text.split())}"
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).digest()


_ROOTS: Final = 64  # notes with a sentence in common that one is compared with
_MARKS: Final = ".,;:!…\"'“”‘’«»()[]*_`"
_UNSAID: Final = frozenset(("", "a", "an", "the", "also", "please", "-", "–", "—", "+", ">", "#", "##", "###"))
_LABEL: Final = re.compile(r"\A\W*(?:note|reminder|remember|fyi|nb|memo)\s*[:,–—-]\s*", re.IGNORECASE)
_SPELT: Final = re.compile(r"[^\W_]+")
_WRAPPED: Final = re.compile(r"(?<=[^\s.!?…:])[ \t]*\n[ \t]*(?=[a-zà-öø-ÿ])")
_OF_THEN: Final = re.compile(
    r"\b(?:today|tonight|yesterday|tomorrow|now|currently|recently|just|ago|this (?:morning|afternoon|evening|week"
    r"|weekend|month|quarter|year)|last|next|heute|gestern|morgen|jetzt|hoy|ayer|mañana|ahora|aujourd['’]hui|hier"
    r"|demain|сегодня|вчера|завтра|сейчас)\b|今天|昨天|明天|现在|刚才|今日|昨日|اليوم|أمس|غدا|الآن",
    re.IGNORECASE,
)


class Note(NamedTuple):
    """A note to be compared, and on which day it was made: "today" of another day is another day."""

    text: str
    day: int


class Redundant(NamedTuple):
    """By their places: all that ``gone`` says is said by ``kept``."""

    gone: int
    kept: int
    likeness: float


def redundant(notes: Sequence[Note], least: float = NEAR) -> list[Redundant]:
    """Of notes of one matter, place and audience, in the order in which they are to stay, those that another one makes
    needless: it says every sentence of theirs, in their order, is at least so alike, and says of nothing else another
    number, name or denial. No note that stays is itself named as gone."""
    said = [sayings(note.text) for note in notes]
    stays: dict[str, list[int]] = {}
    found: list[Redundant] = []
    # The longest stays; of equals, since the order is stable, the first.
    for at in sorted(range(len(notes)), key=lambda at: (-len(said[at]), -_length(notes[at].text))):
        rivals = min((stays.get(each, []) for each in said[at]), key=len, default=[])[:_ROOTS]
        alike = ((_restated(notes[kept], said[kept], notes[at], said[at]), kept) for kept in rivals)
        best = max(((much, -kept) for much, kept in alike if much >= least), default=None)
        if best is not None:
            found.append(Redundant(at, -best[1], best[0]))
            continue
        for each in set(said[at]):
            stays.setdefault(each, []).append(at)
    return found


def sayings(text: str) -> tuple[str, ...]:
    """The sentences of a text, each as its words alone; of a text without words, all of it."""
    found = []
    for piece in passages.sentences(_WRAPPED.sub(" ", unicodedata.normalize("NFKC", text))):
        words = [word.strip(_MARKS) for word in _LABEL.sub("", piece).casefold().split()]
        if kept := [word for word in words if word not in _UNSAID]:
            found.append(" ".join(kept))
    return tuple(found) or (" ".join(text.split()),)


def _length(text: str) -> int:
    """Words, but for labels."""
    return len(_SPELT.findall(_LABEL.sub("", text)))


def _restated(kept: Note, says: tuple[str, ...], gone: Note, said: tuple[str, ...]) -> float:
    """How alike they are; 0 where not all that ``gone`` says is said by ``kept``."""
    rest = iter(says)
    if not all(each in rest for each in said):
        return 0.0
    if kept.day != gone.day and _OF_THEN.search(gone.text):
        return 0.0
    more = _names(_LABEL.sub("", kept.text)) - frozenset(segment.terms(gone.text))
    if not all(map(segment.only_function_words, more)):
        return 0.0
    return likeness(kept.text, gone.text)
