"""A row of numbers as a row of bars, one character each. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """The largest is the highest bar; nothing is a low one."""
    top = max(values, default=0) or 1
    return "".join(_BARS[min(len(_BARS) - 1, int(each * (len(_BARS) - 1) / top + 0.999))] for each in values)


def per_slot(stamps: Iterable[str], now: datetime, slot_s: float, slots: int) -> list[int]:
    """How many of these ISO 8601 times are in each of the last ``slots`` spans of ``slot_s`` seconds, oldest first."""
    found = [0] * slots
    for stamp in stamps:
        age = int((now - datetime.fromisoformat(stamp)).total_seconds() // slot_s)
        if age < slots:
            found[slots - 1 - max(age, 0)] += 1
    return found
