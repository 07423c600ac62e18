"""What speaks for a passage beside its words and its vector: who says it, when, and what kind of text it is.

Owns these signals, each a column (m,) of 0 to 1 over positions ``at`` (m,) in the table. Called by the
engine. Knows neither weights nor the clock: ``now``
and the time zone are arguments.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from avmfs.localtime import DAY_NS, HOUR_NS
from avmfs.search import lexical
from avmfs.store.index import allocator
from avmfs.store.index.columns import Columns
from avmfs.text import date_phrases, dates, segment, speech

AFTERMATH: Final = timedelta(days=7)
"""What happened is often told within a week: the days after those that were named count half."""

LONG: Final = 6.0
LONGEST: Final = 4.1
"""The length signal is ln(terms) / LONG, and grows no more from some sixty terms: a page is no better than a note."""

OFTEN: Final = 20
"""Passages that somebody heads who talks in a store. A few are as likely headed by their matter ("Redis: ..."), and
that is not left out of a question."""

TURNS: Final = 0.4
"""Share of a session's passages at which another voice that comes back takes its turn, from which it is all talk."""
ASKING: Final = 0.05
"""Share of what a voice says that are questions, from which it is a person's."""

ANYTHING: Final = frozenset(
    segment.terms("write wrote written note happen record entry log news done new update change")
)
"""Of a question that names days, what asks for all that there is of them."""

MANY: Final = 2048  # passages of a table of which figures and columns leave much memory behind
_QUESTION: Final = 2000  # characters of a question in which names are looked for
_NAME: Final = re.compile(r"(?P<name>[^\W\d_]\w*)(?P<of>['’]s\b)?")
_FULL_NAME: Final = re.compile(r"\b(?:you[ -])+(?=your?\b)")

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a question says beside its topic. ``days``: what it names; ``when``: a time is asked for; ``terms``: all its
    words, names among them; ``dated``: those that name the days, all where those alone are asked for."""

    days: tuple[dates.Days, ...]
    when: bool
    terms: frozenset[str]
    dated: frozenset[str] = frozenset()

    @property
    def days_alone(self) -> bool:
        """Whether it asks for nothing but what is of those days."""
        return bool(self.days) and self.terms <= self.dated | ANYTHING


def asked(q: str, now: int, tz: tzinfo) -> Asked:
    """``now`` in ns since the epoch."""
    today = datetime.fromtimestamp(now / 1e9, tz).date()
    return _asked(q, today) if len(q) <= _QUESTION else _asked.__wrapped__(q, today)


@lru_cache(256)
def _asked(q: str, today: date) -> Asked:
    days = dates.named(q, today)
    when, terms = dates.asks_when(q), names(q)
    if not days:
        return Asked(days, when, terms)
    words, rest, elsewhere = dates.worded(q)
    dated = names(words)
    # A pair across the end of such words (上周|写了) goes with them, where nothing else is asked for.
    alone = elsewhere and terms - names(rest) | dated | ANYTHING | date_phrases.ANYTHING >= terms
    return Asked(days, when, terms, terms if alone else dated)


def names(q: str) -> frozenset[str]:
    """The index terms of a question, any of which may be a name."""
    return frozenset(segment.query_terms(q[:_QUESTION]))


def addressed(table: Columns, q: str, question: Asked) -> str:
    """``q`` as one would ask it in the talk itself: "you" for those named in it, with a capital, who head OFTEN of the
    passages that the asker sees. A speaker's name stands before every word of theirs, so to a model all of it is a bit
    like any question that names them."""
    named = {term for term in question.terms if term in table.voices_of}
    if not named or len(q) > _QUESTION:
        return q
    talking = {term for term in named if _told(table, table.voices_of[term]) >= OFTEN}
    if not talking or talking.issuperset(question.terms):  # a name alone is all that there is to look for
        return q

    def you(found: re.Match[str]) -> str:
        name = found["name"]
        if not name[0].isupper() or not talking.issuperset(segment.terms(name)):
            return found[0]
        return "your" if found["of"] else "you"

    return _FULL_NAME.sub("", _NAME.sub(you, q))


def columns(table: Columns, at: Places, cosines: Floats, question: Asked, tz: tzinfo) -> dict[str, Floats]:
    """Each signal by the name of its weight."""
    return {
        "dialogue": dialogue(table)[at],
        "speaker": speaker(table, at, question),
        "date": date_named(table, at, question, tz),
        "when": when(table, at, question),
        "question": asks(table, at),
        "length": length(table, at),
        "event": event(table, at, cosines),
    }


def dialogue(table: Columns) -> Floats:
    """How much the session of each passage of the table (n,) is talk, 0 to 1: people take turns, come back, and ask,
    there or elsewhere. Notes that are headed by their matter ("Redis: …", "fix: …") do one or the other, not all."""
    if "dialogue" not in table.columns:
        table.columns["dialogue"] = _dialogue(table)
        if len(table.passages) > MANY:
            allocator.trim()  # it is the last that a question makes of a new table
    return table.columns["dialogue"]


def _dialogue(table: Columns) -> Floats:
    headed, voices = table.voices > 0, np.maximum(table.voices, 0)
    follows = np.flatnonzero(headed & (table.previous >= 0))
    before = table.voices[table.previous[follows]]
    turn = np.zeros(len(headed))
    turn[follows] = (before > 0) & (before != table.voices[follows])
    asks = np.bincount(voices, (table.flags & speech.ASKS) != 0) / np.maximum(np.bincount(voices), 1)
    person = headed * np.clip(asks[voices] / ASKING, 0, 1)
    # A pair as one number, sorted: np.unique of pairs is most of what a question after a write would cost.
    most = int(voices.max(initial=0)) + 1
    pairs = np.sort(table.sessions[headed].astype(np.int64) * most + voices[headed])
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    count = int(table.sessions.max(initial=-1)) + 1
    sizes = np.maximum(np.bincount(table.sessions, minlength=count), 1)
    turns, people = (np.bincount(table.sessions, each, count) for each in (turn, person))
    back = turns - np.maximum(np.bincount(pairs // most, minlength=count), 1) + 1  # not who speaks once
    return np.asarray((np.clip(back / sizes / TURNS, 0, 1) * people / sizes)[table.sessions])


def speaker(table: Columns, at: Places, question: Asked) -> Floats:
    """1 where the author is named in the question; less where the one who speaks is, as the session is less of a talk:
    elsewhere what stands before a colon is the matter."""
    named = frozenset[int]().union(*(table.voices_of.get(term, ()) for term in question.terms))
    if not named:
        return np.zeros(len(at))
    voices = table.voices[at]
    said = np.isin(np.abs(voices), np.fromiter(named, np.int32, len(named)))
    return np.asarray(said * np.where(voices > 0, dialogue(table)[at], 1.0))


def date_named(table: Columns, at: Places, question: Asked, tz: tzinfo) -> Floats:
    """1 within the days that the question names, a half in the week after."""
    found, times, local = np.zeros(len(at)), table.times[at], (table.flags[at] & speech.LOCAL) != 0
    for days in question.days:
        start, stop, after = (_begun(times, local, day, tz) for day in (days.start, days.stop, _later(days.stop)))
        found[stop & ~after & (found < 0.5)] = 0.5
        found[start & ~stop] = 1.0
    return found


def covered(
    table: Columns,
    words: lexical.Lexical,
    terms: Sequence[str],
    question: Asked,
    dated: Floats,
    postings: lexical.Asking,
) -> Floats:
    """The coverage of ``words``, where words that name days stand in what is of those days (``dated``), beside another
    of ``terms``: who writes in June does not say that it is June. What asks for ANYTHING of those days, all of it."""
    if not question.dated or not terms:
        return words.coverage
    rest = [term for term in terms if term not in question.dated and term not in ANYTHING]
    if not rest:
        return np.maximum(words.coverage, dated)
    share = len(rest) / sum(term not in ANYTHING for term in terms)
    said = lexical.search(table, rest, postings).over(words.positions).coverage
    told = np.maximum(words.coverage, dated + share * (said - dated))
    return np.where((said > 0) & (dated > 0), told, words.coverage)


def spans(question: Asked, now: int, tz: tzinfo) -> tuple[tuple[int, int], ...]:
    """The days that the question names, as far as they have begun, in ns since the epoch; the last not included."""
    found = ((_midnight(days.start, tz), _midnight(days.stop, tz)) for days in question.days)
    return tuple(span for span in found if span[0] <= now)


def of_those_days(table: Columns, question: Asked, tz: tzinfo, most: int) -> Places:
    """Positions, ascending, of what was said in the days that the question names; none, where these are more than
    ``most``: then the date does not tell much."""
    inside, local = np.zeros(len(table.passages), np.bool_), (table.flags & speech.LOCAL) != 0
    for days in question.days:
        start, stop = (_begun(table.times, local, day, tz) for day in (days.start, days.stop))
        inside |= start & ~stop
    found = np.flatnonzero(inside)
    return found if len(found) <= most else found[:0]


def unseen(table: Columns, found: Places, question: Asked, tz: tzinfo, most: int) -> tuple[Places, Floats]:
    """``found`` by words, where there are no vectors, and that no cosine is known: what is of the days needs no word
    of a question that asks for all of them."""
    at = np.union1d(found, of_those_days(table, question, tz, most)) if question.days_alone else found
    return at, np.full(len(at), np.nan)


def _begun(times: NDArray[np.int64], local: NDArray[np.bool_], day: date, tz: tzinfo) -> NDArray[np.bool_]:
    """At which of these times (n,) the day had begun: by the clock of ``tz``, to which those belong that are kept as if
    they were UTC (``local``)."""
    return np.asarray(times >= np.where(local, _midnight(day, UTC), _midnight(day, tz)))


def moments(table: Columns, at: Places, tz: tzinfo) -> NDArray[np.int64]:
    """When it was said, in ns since the epoch: what names no zone by the clock of ``tz``."""
    times, local = table.times[at].copy(), (table.flags[at] & speech.LOCAL) != 0
    hours, which = np.unique(times[local] // HOUR_NS, return_inverse=True)
    offsets = [(datetime(1970, 1, 1, tzinfo=tz) + timedelta(hours=hour)).utcoffset() for hour in hours.tolist()]
    times[local] -= np.array([(each or timedelta()).total_seconds() * 10**9 for each in offsets], np.int64)[which]
    return times


def decay(table: Columns, at: Places, now: int, half_life_days: float, tz: tzinfo) -> Floats:
    """1 for what was said at ``now`` (ns) or later, half as much after each ``half_life_days``."""
    return np.asarray(np.exp2(-np.maximum(now - moments(table, at, tz), 0) / (half_life_days * DAY_NS)))


def when(table: Columns, at: Places, question: Asked) -> Floats:
    """1 where a time is named, if one is asked for."""
    return _flagged(table, at, speech.TELLS_TIME) if question.when else np.zeros(len(at))


def event(table: Columns, at: Places, cosines: Floats) -> Floats:
    """The cosine (m,), not below 0, where a remark names a time: of those that are about as near, it tells of something
    that happened, where others agree or thank. A page names a time by the way."""
    near = np.clip(np.nan_to_num(cosines), 0.0, 1.0)
    return near * _flagged(table, at, speech.TELLS_TIME) * lexical.shortness(table.lengths[at])


def asks(table: Columns, at: Places) -> Floats:
    """1 where the passage is itself a question: answers stand elsewhere."""
    return _flagged(table, at, speech.ASKS)


def length(table: Columns, at: Places) -> Floats:
    """The logarithm of the length: a long note says more."""
    return np.asarray(np.minimum(np.log(np.maximum(table.lengths[at].astype(np.float64), 1.0)), LONGEST) / LONG)


def _told(table: Columns, voices: Collection[int]) -> int:
    """How many passages one of ``voices`` heads."""
    return int(np.count_nonzero(np.isin(table.voices, tuple(voices))))


def _flagged(table: Columns, at: Places, flag: int) -> Floats:
    flagged: Floats = ((table.flags[at] & flag) != 0).astype(np.float64)
    return flagged


def _later(day: date) -> date:
    return date.fromordinal(min(day.toordinal() + AFTERMATH.days, date.max.toordinal()))


def _midnight(day: date, tz: tzinfo) -> int:
    """ns since the epoch; far from it, the nearest that fits."""
    naive = datetime(min(max(day.year, 1700), 2250), day.month, min(day.day, 28) if day.year in (1, 9999) else day.day)
    try:
        return int(naive.replace(tzinfo=tz).timestamp()) * 10**9
    except (ValueError, OverflowError):
        return 0
