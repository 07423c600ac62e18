"""Keeping the write-ahead log short beside the writer.

Owns one thread with a connection of its own. Called by the writer, whose commits tell it how long the log is; a
checkpoint inside the loop would hold everybody up for its fsync. Only on a disk that is nearly full it is made there,
and the log's file cut: what comes next needs that room.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path

import apsw

from avmfs.store import database
from avmfs.store.headroom import PAGE, Headroom

log = logging.getLogger(__name__)

# A commit rewrites mostly the same pages (the ends of the log and of the tables): the longer the WAL, the fewer pages
# does a checkpoint move for each, and the more seldom do its syncs stand in the way of the commits' own.
CHECKPOINT_PAGES = 4000
RESTART_PAGES = 12_000
RESTART_AGAIN_S = 1.0  # a RESTART holds the writer up while it waits for readers: not at every commit


class Checkpointer(threading.Thread):
    """Moves the WAL into the database beside the writer: PASSIVE each 16 MB, RESTART when it has grown to 48 MB."""

    def __init__(self, path: Path, headroom: Headroom) -> None:
        super().__init__(name="checkpoint", daemon=True)
        self._path = path
        self._headroom = headroom
        self._pages = 0
        self._due = threading.Event()
        headroom.when_refused = self._due.set  # a transaction that was too large has left the log's file long
        self._over = threading.Event()

    def hook(self, db: apsw.Connection, name: str, pages: int) -> int:
        """SQLite calls this after each commit with the pages now in the WAL."""
        self._pages = pages
        self._headroom.committed(pages)
        if self._headroom.low and pages * PAGE >= self._headroom.reserve // 8:
            self._cut()
        elif pages >= CHECKPOINT_PAGES:
            self._due.set()
        return apsw.SQLITE_OK

    def _cut(self) -> None:
        with contextlib.closing(database.connect(self._path, writable=True, busy_ms=100)) as db:
            try:
                db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except apsw.BusyError:
                return  # a reader is on an old snapshot; the next commit brings us back here
            except apsw.Error as e:
                log.error("checkpoint failed: %s", e)
                return
        self._headroom.committed(0)

    def run(self) -> None:
        db = database.connect(self._path, writable=True, busy_ms=100)
        try:
            while self._due.wait() and not self._over.is_set():
                self._due.clear()
                mode = apsw.SQLITE_CHECKPOINT_PASSIVE
                if self._headroom.low:
                    mode = apsw.SQLITE_CHECKPOINT_TRUNCATE
                elif self._pages >= RESTART_PAGES:
                    mode = apsw.SQLITE_CHECKPOINT_RESTART
                try:
                    db.wal_checkpoint(mode=mode)
                except apsw.BusyError:
                    # A reader is on an old snapshot; the next commits bring us back here.
                    self._over.wait(RESTART_AGAIN_S)
                except apsw.Error as e:
                    log.error("checkpoint failed: %s", e)
        finally:
            db.close()

    def stop(self) -> None:
        self._over.set()
        self._due.set()
        self.join(5)
