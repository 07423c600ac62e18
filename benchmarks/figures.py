"""Times into figures: the timed loop, percentiles, medians of rounds, ratios.

Every benchmark script and its client processes use it; it starts nothing, prints nothing and knows no filesystem.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


class BenchmarkError(Exception):
    """Something a run needs is missing or broke; the message is for the person who started it."""


# ---- time ----


@dataclass(frozen=True)
class Timing:
    """One timed loop in one process: nanoseconds of each operation, and its ends on the monotonic clock."""

    samples_ns: list[int]
    started_ns: int
    ended_ns: int


def wait_until(moment_ns: int) -> None:
    """Sleep to a moment of the monotonic clock, which all processes share: the clients' starting signal."""
    while (left := moment_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)


def timed_loop(operation: Callable[[Item], object], items: Iterable[Item], limit_s: float) -> Timing:
    """Call `operation` on each item and time each call, until the items or `limit_s` seconds run out.

    A limit reached gives fewer samples, not an error. The cyclic collector is off meanwhile: its pauses are
    ours, not those of what is measured.
    """
    clock = time.monotonic_ns
    samples: list[int] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        started = ended = clock()
        give_up = started + int(limit_s * 1e9)
        for item in items:
            before = clock()
            if before >= give_up:
                break
            operation(item)
            ended = clock()
            samples.append(ended - before)
        return Timing(samples, started, ended)
    finally:
        if collecting:
            gc.enable()


# ---- statistics ----


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of an ascending sequence; the 99th of less than 100 values is the last."""
    if not ordered:
        raise ValueError("percentile of nothing")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def interval(values: Sequence[float], share: float = 0.5) -> tuple[float, float]:
    """Between which two of the values their percentile lies with 95 % (normal approximation of the ranks, rounded
    outwards); of fewer than six values around the median, the least and the greatest."""
    ordered, n = sorted(values), len(values)
    stray = 1.96 * math.sqrt(n * share * (1 - share))
    return ordered[max(0, math.floor(n * share - stray) - 1)], ordered[min(n - 1, math.ceil(n * share + stray))]


@dataclass(frozen=True)
class Round:
    """What the clients of one round did together: microseconds, and operations a second over its span."""

    n: int
    median_us: float
    p99_us: float
    max_us: float
    per_second: float
    fairness: float
    """The least any client got done divided by the most; 1.0 for one client."""
    curve_us: Sequence[float] = ()
    """The 0th, 5th, ... 100th percentile, for a picture."""


def summarize(timings: Sequence[Timing]) -> Round:
    """One round from its clients' loops; the span runs from the first start to the last end."""
    counts = [len(timing.samples_ns) for timing in timings]
    samples = sorted(sample / 1e3 for timing in timings for sample in timing.samples_ns)
    if not samples:
        raise BenchmarkError("no operation finished within the time limit")
    span = max(t.ended_ns for t in timings) - min(t.started_ns for t in timings)
    return Round(
        n=len(samples),
        median_us=percentile(samples, 0.5),
        p99_us=percentile(samples, 0.99),
        max_us=samples[-1],
        per_second=len(samples) * 1e9 / span,
        fairness=min(counts) / max(counts),
        curve_us=[percentile(samples, share / 100) for share in range(0, 101, 5)],
    )


@dataclass(frozen=True)
class Figure:
    """The median over rounds of each statistic; but `n` is of all rounds, `max_us` the worst of them."""

    n: int
    median_us: float
    p99_us: float
    max_us: float
    per_second: float
    fairness: float
    medians_us: Sequence[float]
    """Of each round."""

    @property
    def rounds(self) -> str | None:
        """The least and the greatest median of a round, as shares of the median of all; None for one round."""
        if len(self.medians_us) < 2:
            return None
        return f"{min(self.medians_us) / self.median_us:.2f}..{max(self.medians_us) / self.median_us:.2f}"


def over_rounds(rounds: Iterable[Round]) -> Figure:
    """The figure of one variant from its rounds, of which there is at least one."""
    every = list(rounds)
    return Figure(
        n=sum(one.n for one in every),
        median_us=statistics.median(one.median_us for one in every),
        p99_us=statistics.median(one.p99_us for one in every),
        max_us=max(one.max_us for one in every),
        per_second=statistics.median(one.per_second for one in every),
        fairness=statistics.median(one.fairness for one in every),
        medians_us=[one.median_us for one in every],
    )


@dataclass(frozen=True)
class Ratio:
    """Operations a second divided by the baseline's in the same round: the median of rounds, their ends, and each."""

    median: float
    least: float
    most: float
    each: Sequence[float]


def ratio(rounds: Mapping[int, Round], baseline: Mapping[int, Round]) -> Ratio | None:
    """Of two variants' rounds by number; None where no round has both."""
    ratios = [one.per_second / baseline[number].per_second for number, one in rounds.items() if number in baseline]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), ratios) if ratios else None


def rotated(names: Sequence[str], by: int) -> list[str]:
    """The names from position `by` on, then the rest: every variant goes first in turn."""
    shift = by % len(names)
    return [*names[shift:], *names[:shift]]
