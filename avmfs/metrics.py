"""What a process counts of its work, in memory that another process reads: operations, times, sizes.

Owns the file of a process (``begin``), its series, and the sum over all processes (``read``). Called by whoever does
the work, and by who shows it. Values only go up. A process that replaces another goes on in its file, so sums do not
fall. Any thread. A process that never began counts in memory of its own.

A file: NAMES bytes of lines, each a JSON list [kind, name, labels, bounds, where]; then doubles. A line is whole once
its line feed is there.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

FOLDER: Final = "metrics"  # below the runtime directory
NAMES, VALUES = 24 * 1024, 5 * 1024
SIZE: Final = NAMES + 8 * VALUES
SECONDS: Final = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)

Kind = Literal["counter", "histogram"]
Key = tuple[Kind, str, tuple[tuple[str, str], ...], tuple[float, ...]]


class Counter:
    __slots__ = ("_at", "_lock", "_values")

    def __init__(self, values: memoryview[float], at: int, lock: threading.Lock) -> None:
        self._values, self._at, self._lock = values, at, lock

    def add(self, amount: float = 1.0) -> None:
        with self._lock:
            self._values[self._at] += amount


class Histogram:
    """Buckets (the last is of what is beyond all bounds), then the sum."""

    __slots__ = ("_at", "_bounds", "_lock", "_sum", "_values")

    def __init__(self, values: memoryview[float], at: int, lock: threading.Lock, bounds: tuple[float, ...]) -> None:
        self._values, self._at, self._lock, self._bounds = values, at, lock, bounds
        self._sum = at + len(bounds) + 1

    def observe(self, value: float) -> None:
        at = self._at + bisect_left(self._bounds, value)
        with self._lock:
            self._values[at] += 1.0
            self._values[self._sum] += value


class Meter:
    """The series of one process, in ``memory`` of SIZE bytes, with those that are in it already."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._values = memoryview(memory)[NAMES:SIZE].cast("d")
        self._mutex, self._counting = threading.Lock(), threading.Lock()
        self._series: dict[Key, int] = dict(_listed(memory[:NAMES]))
        self._end = memory.rfind(b"\n", 0, NAMES) + 1  # a process that was killed may have left half a line
        self._free = max((at + _width(key) for key, at in self._series.items()), default=0)

    def counter(self, name: str, **labels: str) -> Counter:
        return Counter(self._values, self._place(("counter", name, tuple(sorted(labels.items())), ())), self._counting)

    def histogram(self, name: str, bounds: Sequence[float] = SECONDS, **labels: str) -> Histogram:
        edges = tuple(bounds)
        at = self._place(("histogram", name, tuple(sorted(labels.items())), edges))
        return Histogram(self._values, at, self._counting, edges)

    def _place(self, key: Key) -> int:
        with self._mutex:
            if (found := self._series.get(key)) is not None:
                return found
            line = json.dumps([*key, self._free]).encode()
            if self._end + len(line) + 1 >= NAMES or self._free + _width(key) > VALUES:
                raise ValueError("too many series of metrics")
            self._memory[self._end : self._end + len(line)] = line
            self._memory[self._end + len(line)] = 0x0A
            self._series[key] = at = self._free
            self._end, self._free = self._end + len(line) + 1, self._free + _width(key)
            return at


def begin(folder: Path, process: str) -> None:
    """Count in a file of this folder from now on, before anything is counted. Raises OSError."""
    global METER
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / f"{process.replace(' ', '_')}.{os.getpid()}"
    for left in folder.glob(f"{process.replace(' ', '_')}.[0-9]*"):
        if left.stem == process.replace(" ", "_") and not _alive(int(left.suffix[1:])):
            with contextlib.suppress(FileNotFoundError):  # another successor was faster
                left.rename(path)
                break
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, SIZE)  # a page that a full disk has no room for would end the process
        METER = Meter(mmap.mmap(descriptor, SIZE))
    finally:
        os.close(descriptor)


def counter(name: str, **labels: str) -> Counter:
    return METER.counter(name, **labels)


def histogram(name: str, bounds: Sequence[float] = SECONDS, **labels: str) -> Histogram:
    return METER.histogram(name, bounds, **labels)


def read(folder: Path) -> dict[Key, list[float]]:
    """Each series, summed over all processes that counted there: [value], or buckets and sum."""
    found: dict[Key, list[float]] = {}
    for path in sorted(folder.glob("*")):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            continue
        if len(data) != SIZE:
            continue  # of a process that is just beginning
        values = memoryview(data)[NAMES:].cast("d")
        for key, at in _listed(data[:NAMES]):
            own = values[at : at + _width(key)].tolist()
            found[key] = [a + b for a, b in zip(found.get(key, [0.0] * len(own)), own, strict=True)]
    return found


def _listed(names: bytes) -> Iterator[tuple[Key, int]]:
    for line in names.split(b"\n")[:-1]:
        kind, name, labels, bounds, at = json.loads(line)
        yield (kind, name, tuple((each[0], each[1]) for each in labels), tuple(bounds)), at


def _width(key: Key) -> int:
    return 1 if key[0] == "counter" else len(key[3]) + 2


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


METER = Meter(mmap.mmap(-1, SIZE))
