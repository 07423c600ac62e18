"""strace(1) beside a process of a test."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator

import pytest

LIMIT_S = 300.0


@contextlib.contextmanager
def strace(pid: int, *options: str) -> Iterator[None]:
    """While the block lasts, of all its threads. Skips the test where strace may not look at it."""
    with subprocess.Popen(["strace", "-f", *options, "-p", str(pid)], stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        try:
            if "attached" not in (said := tracer.stderr.readline()):
                pytest.skip(f"strace may not do this here: {said}")
            yield
        finally:
            tracer.terminate()
            tracer.communicate(timeout=LIMIT_S)
