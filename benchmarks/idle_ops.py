"""Waiting for mounts to answer: what bench_idle asks of a client process, for it may hang in one."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.clients import Command
from benchmarks.figures import BenchmarkError
from benchmarks.harness import mounts


def commands() -> Mapping[str, Command]:
    return {"until_mounted": until_mounted}


def until_mounted(mountpoints: list[str], limit_s: float) -> int:
    """The moment (monotonic, ns) when stat() of every mount's root had been answered."""
    wanted = {Path(place) for place in mountpoints}
    give_up = time.monotonic() + limit_s
    while wanted:
        for place in wanted & {mount.mountpoint for mount in mounts()}:
            os.stat(place / "memory")
            wanted.discard(place)
        if time.monotonic() > give_up:
            raise BenchmarkError(f"not mounted: {', '.join(map(str, sorted(wanted)))}")
        time.sleep(0.005)
    return time.monotonic_ns()
