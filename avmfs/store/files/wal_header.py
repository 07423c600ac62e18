"""The header of SQLite's WAL index: 48 bytes that differ after every commit of any process (wal.c, WalIndexHdr).

What they are good for is told in ``cache.follow``. The file they are mapped from is never closed: closing any
descriptor of it would drop the POSIX locks that SQLite holds on it for this process.
"""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

HEADER: Final = 48


class CommitHeader:
    """The WAL index header of one database. Only valid while this process has a connection open."""

    def __init__(self, database: Path) -> None:
        # Never closed: see the module.
        descriptor = os.open(f"{os.fspath(database)}-shm", os.O_RDONLY | os.O_CLOEXEC)
        mapped = mmap.mmap(descriptor, 2 * HEADER, prot=mmap.PROT_READ)
        whole: Callable[[slice], bytes] = mapped.__getitem__
        # Called several times for each request: a function in C takes a third of the time.
        self.read = functools.partial(whole, slice(0, HEADER))


PAGE = 4096
