"""What a daemon's log says that a test did not expect: warnings, errors and tracebacks, of any of its processes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_BUSY = "not known which files are open: the daemon does not answer"
"""That a process is later than a time limit, which on a busy machine is nothing wrong: it asks again."""
_RECORD = re.compile(r": (WARNING|ERROR|CRITICAL) ")


def unexpected(log: str, expected: Iterable[str] = ()) -> list[str]:
    """Return the lines of a log that tell of a problem and have none of the expected parts in them."""
    parts = (_BUSY, *expected)
    return [line for line, _ in _problems(log) if not any(part in line for part in parts)]


def tracebacks(log: str) -> list[str]:
    """Return of each traceback in a log the line that names the exception."""
    return [line for line, raised in _problems(log) if raised]


def _problems(log: str) -> Iterator[tuple[str, bool]]:
    """Records from WARNING up, and of each traceback the line that names the exception, with whether it is one."""
    within = False
    for line in log.splitlines():
        if line.startswith("Traceback "):
            within = True
        elif within and line and not line.startswith(" "):
            yield line, True
            within = False
        elif _RECORD.search(line):
            yield line, False
    if within:
        yield "a traceback without an end", True
