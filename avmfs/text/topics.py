"""What a text is about, in its own words: hashtags, names, the title.

Owns the choice. Called by the store's indexer. A topic is shown as written most often; its key is its index terms, so
that ``#Risk`` and ``risks`` are one. Takes any str, never raises; reads the beginning of a long one.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from avmfs.text import segment

MOST: Final = 8
"""Topics kept of one document."""

READ: Final = 20_000
TITLE_READ: Final = 80
NAME_MAX: Final = 40  # characters; what is longer is no name

# What comes before is looked at behind the first letter: `re` goes from one possible first letter to the next quickly,
# but not where a pattern begins with anything else.
_HASHTAG: Final = re.compile(r"#(?<![A-Za-z0-9_#&/]#)([^\W\d_][\w-]{1,39})")
# Capitals inside a sentence: after a letter or comma and a blank. At its start every word has one.
_NAME: Final = re.compile(r"([A-ZÀ-Þ](?:(?<=[^\W_] .)|(?<=[,;] .))[\w&'’-]*\w(?: [A-ZÀ-Þ][\w&'’-]*\w)*)")
_ACRONYM: Final = re.compile(r"[A-Z](?<!\w.)[A-Z0-9]{1,9}\b")
_TITLED: Final = re.compile(r"[《「『“]([^《》「」『』“”\n]{2,20})[》」』”]")
_TITLE: Final = re.compile(r"\A\s*#{1,6}\s+([^\n]{1,80})")
_HASHTAG_WEIGHT, _TITLE_WEIGHT = 3, 2


_CALENDAR: Final = re.compile(
    r"(?:mon|tues?|wednes|thurs?|fri|satur|sun)days?|january|february|march|april|may|june|july|august|september|"
    r"october|november|december",
    re.IGNORECASE,
)  # names, but of no matter


def topics(text: str, title: str = "") -> tuple[tuple[str, str], ...]:
    """At most MOST (key, as written), the most often mentioned first. ``title``: what it is called beside its text,
    which counts where the text has no heading of its own."""
    text = text[:READ]
    weight: Counter[str] = Counter()
    shown: dict[str, Counter[str]] = {}
    mentions: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    for name, times in _candidates(text, title):
        mentions[name] += 1
        weights[name] += times
    for name, times in weights.items():
        key = " ".join(segment.terms(name))
        if not key or len(name) > NAME_MAX or key.isdigit() or _CALENDAR.fullmatch(name):
            continue
        if segment.only_function_words(name):
            continue
        weight[key] += times
        shown.setdefault(key, Counter())[name] += mentions[name]
    best = sorted(weight, key=lambda key: (-weight[key], key))[:MOST]
    return tuple((key, min(shown[key], key=lambda name: (-shown[key][name], name))) for key in best)


def _candidates(text: str, title: str) -> list[tuple[str, int]]:
    found = [(tag, _HASHTAG_WEIGHT) for tag in _HASHTAG.findall(text)]
    heading = _TITLE.match(text)
    called = title[:TITLE_READ] if heading is None else heading[1]
    found += [(word, _TITLE_WEIGHT) for word in re.findall(r"[^\W\d_][\w&'’-]+", called)]
    found += [(name, 1) for pattern in (_NAME, _TITLED) for name in pattern.findall(text)]
    found += [(name, 1) for name in _ACRONYM.findall(text)]
    return found
