"""What others do while bench_beside measures: names that come, change and go; readers of a slow view. Runs in client
processes."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping

from benchmarks.clients import Command
from benchmarks.figures import wait_until


def commands() -> Mapping[str, Command]:
    return {"churn": churn, "view": view, "nothing": nothing}


def nothing(start_ns: int, limit_s: float) -> int:
    return 0


def churn(folder: str, per_second: float, start_ns: int, limit_s: float) -> int:
    """Create, rename and delete a file in turn, one of these each 1/`per_second` s, beside what else is in the folder.
    How many it became; what cannot be done in time is left out, not caught up with."""
    os.makedirs(folder, exist_ok=True)
    mine = f"churn{start_ns}-"
    wait_until(start_ns)
    end = time.monotonic() + limit_s
    due = time.monotonic()
    done = 0
    for number in itertools.count():
        due = max(due + 1 / per_second, time.monotonic())
        if due > end:
            break
        time.sleep(max(0.0, due - time.monotonic()))
        name = f"{folder}/{mine}{number // 3}"
        match number % 3:
            case 0:
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
            case 1:
                os.rename(name, f"{name}.moved")
            case _:
                os.unlink(f"{name}.moved")
        done += 1
    for left in os.listdir(folder):
        if left.startswith(mine):
            os.unlink(f"{folder}/{left}")
    return done


def view(path: str, start_ns: int, limit_s: float) -> int:
    """Read a view to its end, again and again. How often."""
    wait_until(start_ns)
    end = time.monotonic() + limit_s
    done = 0
    while time.monotonic() < end:
        handle = os.open(path, os.O_RDONLY)
        try:
            while os.read(handle, 1 << 16):
                pass
        finally:
            os.close(handle)
        done += 1
    return done
