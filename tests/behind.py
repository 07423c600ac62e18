"""The database of a store, for tests that look or write into it behind the process that has it open."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw

WAIT_MS = 60_000  # the writer has transactions of its own at any time: expiry, housekeeping, vectors


def connect(path: str | Path, *, read_only: bool = False) -> apsw.Connection:
    """A connection that waits for other connections' locks. The caller closes it."""
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    db = apsw.Connection(os.fspath(path), flags=flags)
    db.set_busy_timeout(WAIT_MS)
    return db


_READS: Final = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
db.execute("select count(*) from log").get
print("read", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def read_by_another(path: Path) -> Iterator[None]:
    """Another process has the store open meanwhile, and with it SQLite's index of the log."""
    command = [sys.executable, "-c", _READS, os.fspath(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == b"read\n"
        yield
