"""The machine's own time zone as a tzinfo, summer time included.

``datetime.now().astimezone().tzinfo`` is a fixed offset, wrong for the other half of the year; this one asks
the C library for each instant. For showing times; and how people write one.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from avmfs.errors import Invalid

DAY_NS: Final = 86_400 * 10**9
HOUR_NS: Final = 3600 * 10**9


class LocalZone(tzinfo):
    def fromutc(self, when: datetime) -> datetime:
        """Called by astimezone: exact for every instant."""
        stamp = when.replace(tzinfo=UTC).timestamp()
        return when + timedelta(seconds=time.localtime(stamp).tm_gmtoff)

    def utcoffset(self, when: datetime | None) -> timedelta:
        if when is None:
            return timedelta(0)
        return timedelta(seconds=time.localtime(time.mktime(when.timetuple())).tm_gmtoff)

    def dst(self, when: datetime | None) -> timedelta | None:
        return None

    def tzname(self, when: datetime | None) -> str | None:
        return None if when is None else time.localtime(time.mktime(when.timetuple())).tm_zone


def nanoseconds(when: str | datetime, what: str = "time") -> int:
    """An ISO 8601 time, local where it names no zone, in ns since the epoch. Raises Invalid for ``what`` it is."""
    try:
        when = datetime.fromisoformat(when) if isinstance(when, str) else when
        at = round(when.timestamp() * 1_000_000) * 1000
    except (ValueError, OverflowError):
        raise Invalid(f"{what} {str(when)[:80]!r}: expected ISO 8601, such as 2026-03-07T10:30") from None
    if not -(1 << 63) <= at < 1 << 63:
        raise Invalid(f"{what} {str(when)!r}: expected a time from 1677 to 2262")
    return at


def minute(stamp: str) -> str:
    """``2026-03-07 10:30`` here, for an ISO 8601 time with an offset."""
    return f"{datetime.fromisoformat(stamp).astimezone(LocalZone()):%Y-%m-%d %H:%M}"
