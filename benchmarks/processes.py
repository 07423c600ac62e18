"""What other processes cost: CPU time, memory. Linux; reads /proc and the kernel's per-process clocks.

On a busy machine the time that an operation takes says little; the CPU time that its servers spent on it says more.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SCHEDULED = 2  # CPUCLOCK_SCHED: all threads of a process, dead ones too, in nanoseconds (posix-timers.h)


def descendants(pid: int) -> list[int]:
    """A process and all below it, as far as they are alive."""
    found, wanted = [], [pid]
    while wanted:
        one = wanted.pop()
        children: list[int] = []
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{one}/task"):
                children += map(int, Path(f"/proc/{one}/task/{task}/children").read_text().split())
            found.append(one)
        wanted += children
    return found


def name(pid: int) -> str:
    """What ps -o comm shows; empty for one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def cpu_s(pids: Iterable[int]) -> float:
    """Seconds of CPU that the processes have used together. Those that are gone count nothing."""
    total = 0.0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += time.clock_gettime((~pid << 3) | _SCHEDULED)
    return total


@dataclass(frozen=True)
class Memory:
    """MiB. Proportional: a page that n processes share counts 1/n in each."""

    resident: float
    proportional: float
    private: float


def memory(pid: int) -> Memory:
    """Raises OSError for one that is gone."""
    kib = {"Rss": 0, "Pss": 0, "Private_Clean": 0, "Private_Dirty": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        key, _, rest = line.partition(":")
        if key in kib:
            kib[key] = int(rest.split()[0])
    return Memory(kib["Rss"] / 1024, kib["Pss"] / 1024, (kib["Private_Clean"] + kib["Private_Dirty"]) / 1024)
