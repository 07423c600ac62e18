"""Putting back a log whose name was removed while the store was in use.

What was committed is in a file that only those who have it open can read. Called by the supervisor, which has it open
too, when no writer is left. See ``displaced``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path
from typing import Final

import apsw

from avmfs.store.files.displaced import index_of_log, log_of
from avmfs.store.files.io import sync_directory
from avmfs.store.files.wal_index import WalIndex
from avmfs.store.schema import database

log = logging.getLogger(__name__)

_PIECE: Final = 1 << 20


def restore_log(path: Path, descriptor: int, *, foreign: bool) -> int:
    """Let the log of the store at ``path`` be what this descriptor has, and return a descriptor of it: written anew,
    without an index. What lies under its name is put aside if it is ``foreign``. Raises OSError, and leaves no copy."""
    name = log_of(path)
    new = name.with_name(f"{name.name}.rescued")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb", buffering=0) as file:
        try:
            at = 0
            while piece := os.pread(descriptor, _PIECE, at):
                at += file.write(piece)
            os.fsync(file.fileno())
            if foreign and name.exists() and name.stat().st_size:
                aside = name.with_name(f"{name.name}.{time.time_ns()}")
                name.replace(aside)
                log.critical("%s: not the store's; put aside as %s", name, aside)
            new.replace(name)
            index_of_log(path).unlink(missing_ok=True)
        except OSError as e:
            new.unlink(missing_ok=True)  # on a full disk it would take what is left
            e.filename = e.filename or os.fspath(new)
            raise
        return os.dup(file.fileno())


def begin_anew(path: Path) -> None:
    """Move the log, as it was restored, into the database. No process has another log of the store open. Raises
    OSError, AvmError; can be repeated then."""
    sync_directory(path.parent)  # a database half moved needs the log
    with contextlib.closing(database.connect(path, writable=True)) as db, database.translated(path):
        try:
            db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.BusyError:
            raise
        except apsw.Error:  # the next sync would return 0: see ``checkpoint``
            WalIndex(path).forget_moved()
            raise
