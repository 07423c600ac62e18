"""The database of a store, for tests that look or write into it behind the process that has it open."""

from __future__ import annotations

import os
from pathlib import Path

import apsw

WAIT_MS = 60_000  # the writer has transactions of its own at any time: expiry, housekeeping, vectors


def connect(path: str | Path, *, read_only: bool = False) -> apsw.Connection:
    """A connection that waits for other connections' locks. The caller closes it."""
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    db = apsw.Connection(os.fspath(path), flags=flags)
    db.set_busy_timeout(WAIT_MS)
    return db
