"""Writing the store's file anew, so that none of its pages has bytes of rows that were deleted.

Owns the order: the log is emptied, and what is in the way of that is in the way of all of it; the words' index is
merged, which alone takes the words of deleted passages out of it; the file is written anew, which leaves no free page
and nothing between rows; the log is emptied again; only then the setting 'unwiped' goes. Killed anywhere, it is due
still. Called by the one that writes, between two transactions; no checkpoint may be at work. Others wait meanwhile, and
the disk needs room for the file twice more (SQLite's own: lang_vacuum.html).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw

from avmfs.errors import Busy
from avmfs.store.files import room
from avmfs.store.files.wal_header import PAGE
from avmfs.store.files.wal_index import WalIndex
from avmfs.store.schema import database

PATIENCE_MS: Final = 500  # for readers of before: everybody who writes waits


def due(db: apsw.Connection) -> bool:
    return bool(db.execute("select 1 from setting where key = 'unwiped'").get)


def rewrite(path: Path) -> None:
    """Raises Busy while a reader is in the way, NoSpace, StoreFailed: it stays due then."""
    # Not the connection that writes: another kind of temporary tables would take its triggers away.
    with (
        database.translated(path),
        contextlib.closing(database.connect(path, writable=True, busy_ms=PATIENCE_MS)) as db,
    ):
        _empty_log(db, path)  # a reader of before would have each attempt add the whole store to it
        _require_room(db, path)
        database.run(db, "pragma temp_store = file")  # not all of the store in memory; the file has no name
        with _beside(db, path):
            database.run(db, "insert into terms(terms) values('optimize')")
            database.run(db, "vacuum")
        _empty_log(db, path)
        db.execute("delete from setting where key = 'unwiped'")


@contextlib.contextmanager
def _beside(db: apsw.Connection, path: Path) -> Iterator[None]:
    """SQLite's temporary files of this process lie on the disk that was asked for room."""
    folder = os.fspath(path.absolute().parent).replace("'", "''")
    database.run(db, f"pragma temp_store_directory = '{folder}'")
    try:
        yield
    finally:
        database.run(db, "pragma temp_store_directory = ''")


def _empty_log(db: apsw.Connection, path: Path) -> None:
    try:
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        WalIndex(path).forget_moved(())  # SQLite has not synced what it has moved
        raise Busy("somebody reads the store as it was before") from None
    except apsw.Error:
        WalIndex(path).forget_moved()
        raise


def _require_room(db: apsw.Connection, path: Path) -> None:
    pages = db.execute("select page_count - freelist_count from pragma_page_count, pragma_freelist_count").get
    room.require(path, 2 * pages * PAGE, "the store to be written anew without what was purged")
