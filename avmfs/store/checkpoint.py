"""Keeping the write-ahead log short beside the writer, and its file ahead of it.

Owns one thread with a connection of its own. Called by the writer, whose commits tell it how long the log is; a
checkpoint inside the loop would hold everybody up for its fsync. Only on a disk that is nearly full it is made there,
and the log's file cut: what comes next needs that room.

A commit that makes the file longer has the filesystem change its own metadata, and the sync of the commit waits for
that: on ext4 it takes twice as long as one of bytes that were there. So zeros are laid behind the log before it gets
there, unless the disk is nearly full. They are appended (O_APPEND: the kernel takes the end of file under the inode's
lock), so whatever the writer does at that moment, none can land on a frame; and to SQLite they are what an earlier,
longer log would have left: frames whose salt is not this log's.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import Final

import apsw

from avmfs.store import database
from avmfs.store.headroom import PAGE, Headroom

log = logging.getLogger(__name__)

# A commit rewrites mostly the same pages (the ends of the log and of the tables): the longer the WAL, the fewer pages
# does a checkpoint move for each, and the more seldom do its syncs stand in the way of the commits' own.
CHECKPOINT_PAGES = 4000
RESTART_PAGES = 12_000
RESTART_AGAIN_S = 1.0  # a RESTART holds the writer up while it waits for readers: not at every commit
FRAME: Final = 24 + PAGE  # bytes of a page in the log: fileformat2.html, "4.1. WAL File Format"
ROOM: Final = 2 * 1024 * 1024  # laid behind the log at once,
AHEAD_PAGES: Final = 256  # when it comes so close to the end of its file


class Checkpointer(threading.Thread):
    """Moves the WAL into the database beside the writer: PASSIVE each 16 MB, RESTART when it has grown to 48 MB, up to
    which room is made for it."""

    def __init__(self, path: Path, headroom: Headroom) -> None:
        super().__init__(name="checkpoint", daemon=True)
        self._path = path
        self._headroom = headroom
        self._pages = 0
        self._room = 0  # so many pages fit into the log's file as it is
        self._due = threading.Event()
        headroom.when_refused = self._due.set  # a transaction that was too large has left the log's file long
        self._over = threading.Event()

    def hook(self, db: apsw.Connection, name: str, pages: int) -> int:
        """SQLite calls this after each commit with the pages now in the WAL."""
        self._pages = pages
        self._headroom.committed(pages)
        if self._headroom.low:
            if pages * PAGE >= self._headroom.reserve // 8:
                self._cut()
        elif pages >= CHECKPOINT_PAGES or self._room - AHEAD_PAGES < pages < RESTART_PAGES:
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
                if self._headroom.low:
                    mode = apsw.SQLITE_CHECKPOINT_TRUNCATE
                    self._room = 0
                else:
                    if self._room - AHEAD_PAGES < self._pages < RESTART_PAGES:
                        self._make_room()
                    if self._pages < CHECKPOINT_PAGES:
                        continue
                    mode = (
                        apsw.SQLITE_CHECKPOINT_RESTART
                        if self._pages >= RESTART_PAGES
                        else apsw.SQLITE_CHECKPOINT_PASSIVE
                    )
                try:
                    db.wal_checkpoint(mode=mode)
                except apsw.BusyError:
                    # A reader is on an old snapshot; the next commits bring us back here.
                    self._over.wait(RESTART_AGAIN_S)
                except apsw.Error as e:
                    log.error("checkpoint failed: %s", e)
        finally:
            db.close()

    def _make_room(self) -> None:
        descriptor = os.open(f"{os.fspath(self._path)}-wal", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            if (os.fstat(descriptor).st_size // FRAME) - AHEAD_PAGES < self._pages:
                os.write(descriptor, bytes(ROOM))
                os.fsync(descriptor)  # here, so that no commit has to: the file has grown
            self._room = os.fstat(descriptor).st_size // FRAME
        except OSError as e:  # the commits that need the room will say so too
            log.warning("no room can be made ahead of the store's log: %s", e)
            self._room = RESTART_PAGES + AHEAD_PAGES
        finally:
            os.close(descriptor)

    def stop(self) -> None:
        self._over.set()
        self._due.set()
        self.join(5)
