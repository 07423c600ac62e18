"""Who speaks in a text and when, as chat logs and minutes write it before the first words.

Owns the one pattern: ``Name: …``, ``**Name**: …``, ``[2023-05-08 13:56] Name: …``, ``张三：…``. Called by the store's
indexer. Knows no agents and no notes. Takes any str, never raises; looks at the first line's beginning only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from avmfs.text import dates, segment

ASKS: Final = 1
TELLS_TIME: Final = 2
LOCAL: Final = 4
"""Flags of a text: it ends with a question mark; a time is named in it; it begins with a time that names no zone."""

_READ: Final = 200
_STAMP: Final = re.compile(
    r"\s*(?:[-*>#]+\s*)?[\[(<]?"
    r"(?P<at>(?:19|20)\d\d-\d\d-\d\d(?:(?P<exact>T\d\d:\d\d(?::\d\d)?| \d\d:\d\d:\d\d)| \d\d:\d\d)?)"
    r"(?:\.\d+)?(?P<zone>Z|(?(exact)[+-](?:0\d|1[0-4]):?[0-5]\d(?![\d:])))?[\])>]?[\s:,·|-]*"
)
"""``exact``: an offset may follow. In ``2026-03-07 10:30-11:30`` it is from when to when."""
_SPEAKER: Final = re.compile(
    r"\s*(?:[-*>#]+\s+)?(?:\[[^\]\n]{0,40}\]\s*)?[*_]{0,2}"
    r"(?P<name>[^\W\d_][\w.'’-]*(?: [^\W\d_][\w.'’-]*){0,2})[*_]{0,2}\s?(?::(?=\s|[*_]|$)|：)[*_]{0,2}"
)


@dataclass(frozen=True, slots=True)
class Heading:
    """``speaker``: index terms of the name, () for none. ``at``: ns since the epoch, as if the stamp were UTC where it
    names no zone, or None. ``flag``: LOCAL, or 0."""

    speaker: tuple[str, ...]
    at: int | None
    flag: int = 0


def heading(text: str) -> Heading:
    """What stands before the words of ``text``."""
    start, at, flag = 0, None, 0
    beginning = text[:_READ]
    if (stamp := _STAMP.match(beginning)) is not None:
        try:
            zone = stamp["zone"] or ""
            said = datetime.fromisoformat(stamp["at"] + zone.removeprefix("Z"))
            at = int((said if said.tzinfo else said.replace(tzinfo=UTC)).timestamp()) * 10**9
            start, flag = stamp.end(), 0 if zone else LOCAL
        except ValueError:  # 2023-02-30
            at = None
    speaker = _SPEAKER.match(beginning, start)
    return Heading(() if speaker is None else tuple(dict.fromkeys(segment.terms(speaker["name"]))), at, flag)


def flags(text: str) -> int:
    """ASKS and TELLS_TIME, as they hold for it."""
    asks = text.rstrip(" \t\r\n\"'”’)*_").endswith(("?", "？"))
    return (ASKS if asks else 0) | (TELLS_TIME if dates.tells_time(text) else 0)
