"""Whether two notes say the same: exactly, or near enough that one of them is enough.

Owns the measure. Called by what stores a new memory, by consolidation and by packing, with texts that the asker sees.
Pure.

Near is: most content words in common, and nothing else said of anything: the same numbers and signs, the same mood, no
name in each that the other has not, no word of change in but one of them, and no word that another one has in the place
of it (``_differs``). Two notes of which one tells another day or another person of the same matter are no duplicates,
however alike they read.

What is put away without anybody's looking must be surer (``redundant``): each sentence of the one stands in the other,
in the same order, but for case, punctuation, articles and labels such as "Note:"; or as many sentences, worded anew,
have more words in common, and all names.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import Match, SequenceMatcher
from functools import lru_cache
from operator import ne
from typing import Final, Literal, NamedTuple

from avmfs import calls
from avmfs.search.current import tells_of_change
from avmfs.text import passages, segment

NEAR: Final = 0.6
"""The share of common words, among the words of both, from which notes are near duplicates. Measured on labelled pairs
of agents' notes: of those that differ in a value none passes."""
_WORDS: Final = 3  # fewer tell nothing
_NUMBER: Final = re.compile(
    r"\d+|\b(?:two|three|four|five|six|seven|eight|nine|ten|first|second|third|fourth|fifth|last|next|half|double"
    r"|hourly|daily|weekly|monthly|yearly)\b"
)
_GOES_ALIKE: Final = 0.5  # of the words of the shorter, in the same order
WORK: Final = 4_000_000  # words looked at in one alignment, in a second at most; two notes of 500 take 60,000
_IN_PLACE: Final = 2  # words that stand for others
_CHANGED: Final = 2  # words that have changed places, or half of all
_PLACES: Final = frozenset(
    "before after until since from above below over under more less up down in out on off always sometimes".split()  # noqa: SIM905
)
_SPELT: Final = re.compile(r"[^\W_]+")
_INNER: Final = re.compile(r"(?<=[\w,;)] )[A-Z][^\W_]*")  # a name: no first word of a sentence
_CAPITAL: Final = re.compile(r"\b[^\W\d_]\w*")
_DENIAL: Final = re.compile(
    r"\b(?:not|no|never|none|nobody|without|cannot|\w+n['’]t|nicht|kein\w*|nie|ohne|jamais|sans|nunca|sin|не|нет|без"
    r"|only|nur|seulement|sólo|solo|только)\b"  # which denies all others
    r"|[不没未只]|لا|بدون|فقط",
    re.IGNORECASE,
)

ORDERS: Final = 3  # of the same words that a text is compared with
KNOWN: Final = 8192
"""Texts whose gist is remembered: the same memories are handed out again and again, and comparing what they say was
half the cost of an answer. A passage has a thousand characters at most, as a rule two hundred: 4 MB."""
Step = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]
_LETTERS: Final = re.compile(r"[^\W\d_]+")
# "out" tells of "in", and "off" of "on".
_TELLING: Final = _PLACES - {"in", "on"} | frozenset(("nor", "all", "some", "most", "many", "few"))
# Figures, and signs that make them, or what stands on either side, another thing. One expression, and a set of what it
# may begin with: it looks at each text that is handed out.
_FIGURES: Final = re.compile(
    r"""[\d<>≤≥!≠←→⇐⇒±+−–$€£¥-](?:
    (?<=\d)\d* | (?<=[≤≥≠←→⇐⇒±−$€£¥]) | (?<=!)=
    | (?<=[<>])(?<!^>)=?                     # no quotation
    | (?<=[–-])(?<![\w.%)].)(?=\d)           # no hyphen, no range, no bullet
    | (?<=\+)(?:(?=\d)|(?<=\S\ \+)(?=\ \d))  # no bullet
    )""",
    re.MULTILINE | re.VERBOSE,
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
    if len(_DENIAL.findall(one)) != len(_DENIAL.findall(other)) or _signs(one) != _signs(other):
        return 0.0
    if mine & _names(one) - theirs and theirs & _names(other) - mine:
        return 0.0
    if tells_of_change(one) != tells_of_change(other) or _differs(one, other):
        return 0.0
    return min(len(mine & theirs) / len(mine | theirs), 0.99)


def _differs(one: str, other: str) -> bool:
    """Whether two texts that go alike have other words in one place: "the terminal is B" and "the terminal is D", or
    have changed them: "Bach in June, Brahms in May" and the other way round, or deny another thing."""
    was, now = sorted((_spelt(one), _spelt(other)))
    mine, theirs = ([word.casefold() for word in each] for each in (was, now))
    found = steps(mine, theirs)
    if not found:
        return True  # perhaps, which is as good
    replaced = [(was[at:end], now[there:until]) for how, at, end, there, until in found if how == "replace"]
    if sorted(mine) == sorted(theirs):
        # What stands between two that changed places stays where it is; where a clause is moved, all moves.
        alone = [mine[at] for how, at, end, *_ in found if how != "equal" and end - at == 1]
        if 0 < sum(map(ne, mine, theirs)) <= max(_CHANGED, len(mine) / 2) or any(map(_DENIAL.fullmatch, alone)):
            return True
    if not aligned(found, mine, theirs):
        return False
    if replaced and sorted(mine) == sorted(theirs):
        return True
    for gone, come in (([*filter(says, gone)], [*filter(says, come)]) for gone, come in replaced):
        if max(len(gone), len(come)) <= _IN_PLACE and {*gone} - {*now} and {*come} - {*was}:
            return True
    return False


class _Endless(Exception): ...


class _Matcher(SequenceMatcher[str]):
    def __init__(self, one: Sequence[str], other: Sequence[str]) -> None:
        super().__init__(None, one, other, autojunk=False)
        often = Counter(other)
        self._each, self._left = [often[word] for word in one], WORK

    def find_longest_match(self, alo: int = 0, ahi: int | None = None, blo: int = 0, bhi: int | None = None) -> Match:
        calls.go_on()
        self._left -= sum(self._each[alo:ahi])
        if self._left < 0:
            raise _Endless
        return super().find_longest_match(alo, ahi, blo, bhi)


def steps(one: Sequence[str], other: Sequence[str]) -> list[Step]:
    """How the ``words`` of a text become those of another. Empty where that takes too long: the work grows with the
    cube of how often words come again."""
    try:
        return _Matcher(one, other).get_opcodes()
    except _Endless:
        return []


def aligned(steps: Sequence[Step], one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether of ``words`` of two texts so many are the same in the same order that others stand in their places."""
    return sum(end - at for how, at, end, *_ in steps if how == "equal") >= _GOES_ALIKE * min(len(one), len(other))


def _denials(text: str) -> list[str]:
    return [word.casefold() for word in _DENIAL.findall(text)]


def words(text: str) -> list[str]:
    return [word.casefold() for word in _spelt(text)]


def _spelt(text: str) -> list[str]:
    """Its ``words``, with the capital by which one that else says nothing is a name: "in May", "gate A", "phase I"."""
    names = {found.start() for found in _INNER.finditer(text)}
    spelt = []
    for found in _SPELT.finditer(text):
        word = " ".join(segment.content_terms(found[0])) or found[0].casefold()
        spelt.append(word if says(word) or found.start() not in names else word.capitalize())
    return spelt


def says(word: str) -> bool:
    return word[0].isupper() or word in _PLACES or not segment.only_function_words(word)


def _names(text: str) -> frozenset[str]:
    words = (word for word in _CAPITAL.findall(text) if word[0].isupper())
    return frozenset(term for word in words for term in segment.content_terms(word))


@lru_cache(KNOWN)
def glance(text: str) -> str:
    """The beginning of the longest word, and the figures."""
    words = _LETTERS.findall(text.casefold())
    most = max(map(len, words), default=0)
    longest = max([word for word in words if len(word) == most], default="")
    return f"{longest[:5]} {_FIGURES.findall(text)}"


@lru_cache(KNOWN)
def gist(text: str) -> bytes:
    """Equal for texts that say the same: the same words but for function words, in whatever order and inflection, the
    same figures and signs, as many denials, the same words of place, time and number; but for what is exchanged
    (``opposed``). A text without such words is itself. A digest: the words themselves would take ten times the room of
    the text."""
    words = segment.content_terms(text)
    said = f"{sorted(words)} {_FIGURES.findall(text)} {_turns(text)}" if words else f"= {' '.join(text.split())}"
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def repeated(text: str, others: Iterable[tuple[int, str]]) -> int | None:
    """The number of that one of ``others`` that says the same. Of those in the same words ORDERS are looked at: to
    align two of 200 takes a millisecond."""
    alike = (each for each in others if gist(each[1]) == gist(text))
    return next((at for at, other in itertools.islice(alike, ORDERS) if not opposed(text, other)), None)


def opposed(one: str, other: str) -> bool:
    """Whether of two texts that use the same words one denies, turns round or exchanges what the other says."""
    if one == other:  # as most are
        return False
    return (_turns(one), _signs(one)) != (_turns(other), _signs(other)) or _differs(one, other)


def _turns(text: str) -> tuple[int, list[str]]:
    return len(_DENIAL.findall(text)), sorted(_TELLING.intersection(_LETTERS.findall(text.casefold())))


def _signs(text: str) -> list[str]:
    return [each for each in _FIGURES.findall(text) if not each.isdecimal()]


_RARE: Final = 4  # words of a note by which one is looked for that says it in others
_ROOTS: Final = 64  # notes with a sentence in common that one is compared with
_MARKS: Final = ".,;:!…\"'“”‘’«»()[]*_`"
_UNSAID: Final = frozenset(("", "a", "an", "the", "also", "please", "-", "–", "—", "+", ">", "#", "##", "###"))
REWORDED: Final = 0.7  # the share of common words of sentences that are put away for others
_SENTENCES: Final = 3
_LABEL: Final = re.compile(r"\A\W*(?:note|reminder|remember|fyi|nb|memo)\s*[:,–—-]\s*", re.IGNORECASE)
_WRAPPED: Final = re.compile(r"(?<=[^\s.!?…:])[ \t]*\n[ \t]*(?=[a-zà-öø-ÿ])")
_OF_THEN: Final = re.compile(
    r"\b(?:today|tonight|yesterday|tomorrow|now|currently|recently|ago|this (?:morning|afternoon|evening|week"
    r"|weekend|month|quarter|year)"
    r"|just (?:\w+ed|(?:been|bought|came|did|found|gave|gone|got|had|heard|left|lost|made|met|ran"
    r"|read|said|sat|saw|seen|sent|set|spoke|told|took|went|won|wrote|back|in|off|out)\b)"
    r"|last|next|heute|gestern|morgen|jetzt|hoy|ayer|mañana|ahora|aujourd['’]hui|hier"
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
    needless: it says every sentence of theirs, in their order, or in other words, is at least so alike, and says of
    nothing else another number, name or denial. No note that stays is itself named as gone."""
    said = [sayings(note.text) for note in notes]
    terms = [frozenset(segment.content_terms(note.text)) for note in notes]
    spread = Counter(term for each in terms for term in each)
    rare = [sorted(each, key=lambda term: (spread[term], term))[:_RARE] for each in terms]
    stays: dict[str, list[int]] = {}
    about: dict[str, list[int]] = {}
    found: list[Redundant] = []
    # The longest stays; of equals, since the order is stable, the first.
    for at in sorted(range(len(notes)), key=lambda at: (-len(said[at]), -_length(notes[at].text))):
        calls.next_step()
        rivals = min((stays.get(each, []) for each in said[at]), key=len, default=[])[:_ROOTS]
        alike = [(_restated(notes[kept], said[kept], notes[at], said[at]), kept) for kept in rivals]
        anew = Counter(kept for term in rare[at] for kept in about.get(term, ())[:_ROOTS])
        alike += [
            (_reworded(notes[kept], said[kept], notes[at], said[at]), kept)
            for kept, common in sorted(anew.items())
            if common > 1 and len(terms[at] & terms[kept]) >= REWORDED * len(terms[at] | terms[kept])
        ]
        best = max(((much, -kept) for much, kept in alike if much >= least), default=None)
        if best is not None:
            found.append(Redundant(at, -best[1], best[0]))
            continue
        for each in set(said[at]):
            stays.setdefault(each, []).append(at)
        for term in rare[at]:
            about.setdefault(term, []).append(at)
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


def _reworded(kept: Note, says: tuple[str, ...], gone: Note, said: tuple[str, ...]) -> float:
    """How alike they are; 0 where they may be about other things, or are too long to be compared word by word."""
    if len(says) != len(said) or len(said) > _SENTENCES or (kept.day != gone.day and _OF_THEN.search(gone.text)):
        return 0.0
    if kept.text.count("?") != gone.text.count("?") or sorted(words(kept.text)) == sorted(words(gone.text)):
        return 0.0  # the same words in another order may tell another thing of each
    mine, theirs = (frozenset(segment.content_terms(text)) for text in (kept.text, gone.text))
    if mine != theirs and (mine < theirs or theirs < mine):
        return 0.0  # a word more makes it another thing, as often as not
    if sorted(_denials(kept.text)) != sorted(_denials(gone.text)):
        return 0.0
    for one, other in ((kept.text, gone.text), (gone.text, kept.text)):
        if frozenset(segment.content_terms(" ".join(_INNER.findall(one)))) - frozenset(segment.content_terms(other)):
            return 0.0
    much = likeness(kept.text, gone.text)
    return much if much >= REWORDED else 0.0
