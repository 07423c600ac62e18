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

SLICE = 40


def commands() -> Mapping[str, Command]:
    return {"pairs": pairs}


def pairs(places: list[str], pairs_of: int) -> dict[str, list[float]]:
    """By operation: of each pair, the first place's median time divided by the second's."""
    for place in places:
        with open(f"{place}/memory/shared/read", "wb") as file:
            file.write(b"x" * 1000)
    operations: dict[str, Callable[[str], object]] = {"read": _read, "write": _write}
    found: dict[str, list[float]] = {name: [] for name in operations}
    for number in range(pairs_of + 3):
        for name, operation in operations.items():
            order = places if number % 2 else places[::-1]
            took = {place: _slice(operation, place) for place in order}
            if number >= 3:  # before, caches fill
                found[name].append(took[places[0]] / took[places[1]])
    return found


def _slice(operation: Callable[[str], object], place: str) -> float:
    took = []
    for _ in range(SLICE):
        began = time.perf_counter_ns()
        operation(place)
        took.append(time.perf_counter_ns() - began)
    return statistics.median(took)


def _read(place: str) -> None:
    """Through the mount's process, not out of the kernel's cache: a view is read anew each time."""
    with open(f"{place}/memory/shared/read:data", "rb", buffering=0) as file:
        file.read()


def _write(place: str) -> None:
    descriptor = os.open(f"{place}/memory/shared/written", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(descriptor, b"x" * 1000)
    os.close(descriptor)
