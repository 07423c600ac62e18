"""Slices of work on two mounts in turn: what bench_http asks of its client process, for what counting costs.

A slice is some dozens of the same operation. Two of them, one on each mount, stand next to each other in time, so what
else the machine does meets both; which is first changes each time.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping

from benchmarks.clients import Command
from benchmarks.processes import cpu_s

SLICE = 50


def commands() -> Mapping[str, Command]:
    return {"pairs": pairs}


def pairs(places: list[str], processes: list[list[int]], pairs_of: int) -> dict[str, list[float]]:
    """By operation, of wall time and of the processor time of each daemon's ``processes``: of each pair of slices, what
    the first place took divided by what the second did."""
    for place in places:
        with open(f"{place}/memory/shared/read", "wb") as file:
            file.write(b"x" * 1000)
    operations: dict[str, Callable[[str], object]] = {"read": _read, "write": _write}
    found: dict[str, list[float]] = {f"{name}, {of}": [] for name in operations for of in ("wall", "processor")}
    for number in range(pairs_of + 3):
        for name, operation in operations.items():
            both = [0, 1] if number % 2 else [1, 0]
            took = {each: _slice(operation, places[each], processes[each]) for each in both}
            if number >= 3:  # before, caches fill
                for of, (ours, theirs) in zip(("wall", "processor"), zip(took[0], took[1], strict=True), strict=True):
                    found[f"{name}, {of}"].append(ours / theirs)
    return found


def _slice(operation: Callable[[str], object], place: str, processes: list[int]) -> tuple[float, float]:
    """The median of an operation's nanoseconds; seconds of the processor in the daemon, of all together."""
    took, before = [], cpu_s(processes)
    for _ in range(SLICE):
        began = time.perf_counter_ns()
        operation(place)
        took.append(time.perf_counter_ns() - began)
    return statistics.median(took), cpu_s(processes) - before


def _read(place: str) -> None:
    """Through the mount's process, not out of the kernel's cache: a view is read anew each time."""
    with open(f"{place}/memory/shared/read:data", "rb", buffering=0) as file:
        file.read()


def _write(place: str) -> None:
    descriptor = os.open(f"{place}/memory/shared/written", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(descriptor, b"x" * 1000)
    os.close(descriptor)
