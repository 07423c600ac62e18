"""Times into figures: the timed loop, percentiles, medians of rounds, and how a run prints them.

Every benchmark script and its client processes use it; it starts nothing and knows no filesystem.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")


class BenchmarkError(Exception):
    """Something a run needs is missing or broke; the message is for the person who started it."""


# ---- time and statistics ----


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


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of an ascending sequence; the 99th of less than 100 values is the last."""
    if not ordered:
        raise ValueError("percentile of nothing")
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


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
    ratio: float | None
    """Median over rounds of operations a second divided by the baseline's in the same round."""
    ratio_least: float | None
    ratio_most: float | None


def over_rounds(rounds: Mapping[int, Round], baseline: Mapping[int, Round]) -> Figure:
    """The figure of a variant from its rounds by number, beside the baseline's rounds of the same numbers."""
    ratios = [one.per_second / baseline[number].per_second for number, one in rounds.items() if number in baseline]
    every = list(rounds.values())
    return Figure(
        n=sum(one.n for one in every),
        median_us=statistics.median(one.median_us for one in every),
        p99_us=statistics.median(one.p99_us for one in every),
        max_us=max(one.max_us for one in every),
        per_second=statistics.median(one.per_second for one in every),
        fairness=statistics.median(one.fairness for one in every),
        ratio=statistics.median(ratios) if ratios else None,
        ratio_least=min(ratios, default=None),
        ratio_most=max(ratios, default=None),
    )


def rotated(names: Sequence[str], by: int) -> list[str]:
    """The names from position `by` on, then the rest: every variant goes first in turn."""
    shift = by % len(names)
    return [*names[shift:], *names[:shift]]


# ---- what was measured on ----


def machine() -> dict[str, str]:
    """The machine and the versions that a figure depends on, as text by name."""
    return {
        "cpu": _cpu_model(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "libfuse": _first_line(["pkg-config", "--modversion", "fuse3"]) or "not installed",
        "sqlite": _sqlite_version(),
    }


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return _first_line(["sysctl", "-n", "machdep.cpu.brand_string"]) or platform.processor() or "unknown"


def _sqlite_version() -> str:
    try:
        apsw = importlib.import_module("apsw")
    except ImportError:
        return "apsw not installed"
    return f"{apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})"


def _first_line(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.partition("\n")[0].strip()


# ---- printing ----


def print_header(title: str, facts: Mapping[str, str]) -> None:
    """A title, and a line for each fact."""
    width = max(map(len, facts))
    print(title)
    for name, fact in facts.items():
        print(f"  {name:<{width}}  {fact}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Text columns: the first flush left, the others flush right; an empty row is a blank line."""
    lines = [list(row) for row in rows]
    widths = [max(len(line[i]) for line in [list(columns), *lines] if line) for i in range(len(columns))]
    for line in [list(columns), ["-" * width for width in widths], *lines]:
        cells = [f"{cell:>{width}}" for cell, width in zip(line, widths, strict=bool(line))][1:]
        print("  ".join([f"{line[0]:<{widths[0]}}", *cells]).rstrip() if line else "")


def rounded(value: float | None, digits: int = 3) -> str:
    """A figure with `digits` significant digits but every whole one: 0.0123, 4.56, 12,345; '-' for none."""
    if value is None:
        return "-"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def spread_of(figure: Figure) -> str:
    """The least and the most of the rounds' ratios; empty for a single round."""
    if figure.ratio_least == figure.ratio_most:
        return ""
    return f"{rounded(figure.ratio_least)}..{rounded(figure.ratio_most)}"


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


# ---- options ----


def names_among(known: Sequence[str]) -> Callable[[str], list[str]]:
    """An argparse type: some of `known`, comma-separated, kept in the order of `known`."""

    def parse(text: str) -> list[str]:
        given = text.split(",")
        for name in given:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return [name for name in known if name in given]

    return parse


def positive_numbers(text: str) -> list[int]:
    """An argparse type: '1,4' as [1, 4]."""
    numbers = [int(number) for number in text.split(",")]
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError("every number must be at least 1")
    return numbers
