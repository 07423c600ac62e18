"""One moment of a store as a database file of its own.

Owns how that is taken: of a store that somebody has open through SQLite, which never keeps a writer waiting; of one at
rest from its files, under the lock. No descriptor of ours is opened on a database that this process has open: to close
it would drop SQLite's locks.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import apsw

from avmfs.errors import NotFound
from avmfs.store.files import loss_check, room, wal_frames
from avmfs.store.files.store_lock import COMMAND_S, StoreLock
from avmfs.store.repair import examine
from avmfs.store.rows import incarnation
from avmfs.store.schema import database

LOCK_S = 10.0


def take(path: Path, to: Path) -> None:
    """Write the image to the file ``to``. Raises NotFound, NoSpace, Busy, StoreFailed, OSError."""
    lock = StoreLock(path)
    if not path.exists():
        raise NotFound("there is no store", os.fspath(path))
    to.unlink(missing_ok=True)
    size = sum(each.stat().st_size for each in (path, wal_frames.beside(path)) if each.exists())
    room.require(to.parent, size, "a copy of the store")
    os.close(os.open(to, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC, 0o600))
    if lock.holder() is not None:
        return _live(path, to)
    held = lock.acquire(LOCK_S, COMMAND_S)
    try:
        left = wal_frames.look(wal_frames.beside(path))
        with examine.frozen(path, left) as at:
            loss_check.copy(at, to)
    finally:
        lock.release(held, clean=not lock.unclean)


def begin_anew(path: Path) -> None:
    """An image becomes a store, which has forgotten what was acknowledged since: it tells so (``incarnation``)."""
    beside = wal_frames.beside(path), path.with_name(path.name + "-shm")
    for left in beside:  # of a process that was killed
        left.unlink(missing_ok=True)
    with contextlib.closing(database.connect(path, writable=True)) as db:
        db.execute(incarnation.BEGUN)
        db.wal_checkpoint()
    for left in beside:
        left.unlink(missing_ok=True)


def _live(path: Path, to: Path) -> None:
    with (
        database.translated(path),
        contextlib.closing(database.connect(path, writable=False)) as store,
        contextlib.closing(apsw.Connection(os.fspath(to))) as made,
    ):
        made.execute("pragma journal_mode = off; pragma synchronous = off").fetchall()
        with made.backup("main", store, "main") as copying:
            copying.step(-1)  # in one read: what is written meanwhile is behind it in the log
