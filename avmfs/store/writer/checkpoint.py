"""Keeping the write-ahead log short beside the writer, and its file ahead of it.

Owns one thread with a connection of its own, and one connection more for the writer's thread. Called by the writer,
whose commits tell it how long the log is.

The thread moves pages into the database while commits go on. That alone never ends: SQLite uses the log anew only when
all of it has been moved and no reader is in it, and with commits coming one after the other there is always a page
more. A checkpoint that waits for such a moment (RESTART) needs the lock that the writer takes again and again, polls
for it, and under load comes too late each time: the log grew to twice its limit. So that one is the writer's own, made
between two transactions, when nobody else can want the lock: what the thread has left to be moved (little), one sync
of the database, and readers that were in the log already. From ``HARD_PAGES`` on the writer waits for the thread and
for those readers too, so that no load outruns the disk. Who reads on for longer than that only slows the log's growth.

A commit that makes the file longer has the filesystem change its own metadata, and the sync of the commit waits for
that: on ext4 it takes twice as long as one of bytes that were there. So zeros are laid behind the log before it gets
there, unless there is little room on the disk. They are appended (O_APPEND: the kernel takes the end of file under the
inode's lock), so whatever the writer does at that moment, none can land on a frame; and to SQLite they are what an
earlier, longer log would have left: frames whose salt is not this log's.

A failed sync of the database may be of pages that any checkpoint since the log began has moved, and the next sync would
return 0 without them: after an error all are moved again (``WalIndex.forget_moved``), so the log, which has them,
cannot begin anew before a sync has succeeded for all of them.
"""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from avmfs.store.files.wal_frames import HEADER
from avmfs.store.files.wal_header import PAGE
from avmfs.store.files.wal_index import WalIndex
from avmfs.store.schema import database
from avmfs.store.writer.disk_reserve import DiskReserve

log = logging.getLogger(__name__)

# A commit rewrites mostly the same pages (the ends of the log and of the tables): the longer the WAL, the fewer pages
# does a checkpoint move for each, and the more seldom do its syncs stand in the way of the commits' own.
CHECKPOINT_PAGES = 4000  # so many more in the log are moved by the thread
RESTART_PAGES = 12_000  # here the log is to begin anew,
HARD_PAGES = 14_000  # and here at any price: with the commits of one transaction more it stays below 64 MB
LEFT_PAGES: Final = 500  # that many the writer moves itself
RETRY_PAGES: Final = 250  # where a reader was in the way, the thread tries again after so many
SOFT_S: Final = 0.02  # so long the writer waits for readers below HARD_PAGES,
HARD_S: Final = 0.25  # and there; with the square of the log's length from there on,
MOST_S: Final = 10.0  # but not longer, since clients do not wait forever
CUT_S: Final = 0.1  # on a full disk
POLL_MS: Final = 20
FRAME: Final = 24 + PAGE  # bytes of a page in the log: fileformat2.html, "4.1. WAL File Format"
ROOM: Final = 2 * 1024 * 1024  # laid behind the log at once,
AHEAD_PAGES: Final = 256  # when it comes so close to the end of its file


class _Outcome(enum.Enum):
    DONE = enum.auto()
    HELD = enum.auto()  # by a reader
    FAILED = enum.auto()  # the disk is in the way, and the log says so


class Checkpointer(threading.Thread):
    """Moves the WAL into the database beside the writer, each 16 MB, and has the writer begin it anew at 48 MB, up to
    which room is made for it."""

    def __init__(self, path: Path, headroom: DiskReserve) -> None:
        super().__init__(name="checkpoint", daemon=True)
        self._log = f"{os.fspath(path)}-wal"
        self._reserve = headroom
        self._at_work = threading.Lock()  # SQLite has one checkpoint at a time, and lets nobody wait for it
        self._beside = database.connect(path, writable=True)  # the thread's
        self._between = database.connect(path, writable=True, busy_ms=POLL_MS)  # the writer's
        self._index = WalIndex(path)
        self._pages = 0  # in the log,
        self._moved = 0  # of which so many are in the database,
        self._tried = 0  # as the thread found when they were so many
        self._again = 0  # the writer has tried in vain: not before there are so many
        self._room = 0  # so many pages fit into the log's file as it is
        self._refused = False  # something was, for which there may be room where the log's file is
        self._said = ""
        self._paused = False
        self._due = threading.Event()
        headroom.when_refused = self._note_refusal
        self._over = threading.Event()

    def hook(self, db: apsw.Connection, name: str, pages: int) -> int:
        """SQLite calls this after each commit with the pages now in the WAL."""
        if pages < max(self._pages, self._moved, self._tried):
            self._begun_anew()
        self._pages = pages
        self._reserve.committed(pages)
        if not self._reserve.low and (self._wants_room() or self._wants_move()):
            self._due.set()
        return apsw.SQLITE_OK

    def between_transactions(self) -> None:
        """Called by the writer's thread after each. Keeps the log within its bounds; see the module."""
        pages = self._pages
        if self._refused or (self._reserve.low and self._size() >= self._reserve.reserve // 8):
            self._cut()
        elif pages >= max(RESTART_PAGES, self._again):
            if pages >= HARD_PAGES:
                self._restart(min(MOST_S, HARD_S * (pages / HARD_PAGES) ** 2), wait=True)
            elif pages - self._moved <= LEFT_PAGES:
                self._restart(SOFT_S, wait=False)

    def run(self) -> None:
        while self._due.wait() and not self._over.is_set():
            self._due.clear()
            if self._reserve.low:
                continue  # the writer cuts the log itself
            if self._wants_room():
                self._make_room()
            if self._wants_move():
                self._move()

    def _wants_room(self) -> bool:
        return self._room - AHEAD_PAGES < self._pages < RESTART_PAGES and not self._reserve.near

    def _wants_move(self) -> bool:
        """Return whether there is much to be moved, or the log is to begin anew, for which little may be left."""
        left = self._pages - self._moved
        much = left >= CHECKPOINT_PAGES or (self._pages >= RESTART_PAGES and left > LEFT_PAGES)
        return much and self._pages >= self._tried + RETRY_PAGES

    def pause(self) -> None:
        """Returns when no checkpoint is at work, and keeps it so until ``resume``. For the writer's thread."""
        if not self._paused:
            self._at_work.acquire()
            self._paused = True

    def resume(self) -> None:
        """The log's file ends with it, and all of it is to be moved again: see ``LogFile.rewrite``."""
        self._moved = self._tried = self._room = 0
        self._paused = False
        self._at_work.release()

    def hear(self, db: apsw.Connection) -> None:
        """Let the writer's connection be told by a checkpoint of errors of the disk that are over, and not by a commit
        that begins the log anew. While paused."""
        for _ in range(3):  # of the log, of the database
            if self._checkpoint(db, apsw.SQLITE_CHECKPOINT_PASSIVE)[0] is not _Outcome.FAILED:
                break

    def _move(self) -> None:
        with self._at_work:
            if self._over.is_set():
                return
            pages = self._pages
            outcome, moved = self._checkpoint(self._beside, apsw.SQLITE_CHECKPOINT_PASSIVE)
        if outcome is _Outcome.DONE:
            # SQLite syncs the database only after a checkpoint that has come to the end of the log, which is the
            # writer's: it would find everything still to be written.
            try:
                self._index.sync_database()
            except OSError as e:
                with self._at_work:
                    self._move_again(e)
            else:
                self._moved = moved
                if pages - moved <= LEFT_PAGES:  # no reader is in the way any more
                    self._again = 0
        self._tried = pages

    def _move_again(self, error: Exception) -> None:
        """What was moved may not be on the disk. No checkpoint is at work."""
        if str(error) != self._said:
            log.error("checkpoint failed: %s", error)
        self._said = str(error)
        self._index.forget_moved()
        self._moved = 0

    def _restart(self, patience_s: float, *, wait: bool) -> None:
        """Have the next transaction begin the log anew."""
        if not self._at_work.acquire(blocking=wait):
            return  # the thread is moving pages
        try:
            done = self._between_readers(apsw.SQLITE_CHECKPOINT_RESTART, patience_s)
        finally:
            self._at_work.release()
        if done:
            self._begun_anew()
        else:
            self._again = self._pages + self._pages // 16

    def _cut(self) -> None:
        """The disk is nearly full: what comes next needs the room of the log's file."""
        with self._at_work:
            self._drop_tail()
            done = self._between_readers(apsw.SQLITE_CHECKPOINT_TRUNCATE, CUT_S)
        if done:  # else after the next transaction
            self._begun_anew()
            self._room, self._refused = 0, False
            self._reserve.committed(0)

    def _drop_tail(self) -> None:
        """What a transaction that found the disk full has left behind the log's end: beside that there may be no room
        to move what is committed."""
        with contextlib.suppress(apsw.BusyError, OSError):  # somebody else writes; the checkpoint tells of the disk
            self._between.execute("begin immediate")
            try:
                os.truncate(self._log, min(self._size(), HEADER + self._index.committed()[0] * FRAME))
            finally:
                self._between.execute("rollback")

    def emptied_by(self, rewrite: Callable[[], None]) -> None:
        """Let ``rewrite`` empty the log, by a connection of its own. For the writer's thread."""
        with self._at_work:
            self._moved = self._tried = self._again = self._room = 0  # should it fail
            rewrite()
        self._begun_anew()
        self._room = 0
        self._reserve.committed(0)

    def _between_readers(self, mode: int, patience_s: float) -> bool:
        """In the writer's thread. Not one wait as long as that: SQLite would go on waiting for a reader that has begun
        again meanwhile, and stands in nobody's way any more."""
        deadline = time.monotonic() + patience_s
        outcome, _ = self._checkpoint(self._between, mode)
        while outcome is _Outcome.HELD and time.monotonic() < deadline:
            outcome, _ = self._checkpoint(self._between, mode)
        return outcome is _Outcome.DONE

    def _begun_anew(self) -> None:
        self._pages = self._moved = self._tried = self._again = 0

    def _checkpoint(self, db: apsw.Connection, mode: int) -> tuple[_Outcome, int]:
        """And how many pages of the log are in the database now."""
        try:
            _, moved = db.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            return _Outcome.HELD, 0
        except apsw.Error as e:
            self._move_again(e)
            return _Outcome.FAILED, 0
        self._said = ""
        return _Outcome.DONE, moved

    def _note_refusal(self) -> None:
        self._refused = True

    def _size(self) -> int:
        return os.stat(self._log).st_size

    def _make_room(self) -> None:
        try:
            descriptor = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                if (os.fstat(descriptor).st_size // FRAME) - AHEAD_PAGES < self._pages:
                    os.write(descriptor, bytes(ROOM))
                    os.fsync(descriptor)  # here, so that no commit has to: the file has grown
                self._room = os.fstat(descriptor).st_size // FRAME
            finally:
                os.close(descriptor)
        except OSError as e:  # the commits that need the room will say so too
            log.warning("no room can be made ahead of the store's log: %s", e)
            self._room = RESTART_PAGES + AHEAD_PAGES

    def stop(self, *, clean: bool = False) -> None:
        """End the thread. ``clean``: the log can be trusted, and is moved into the database where no reader is in the
        way, so that the database's file is the whole store: others keep connections, so no close of ours does that."""
        self._over.set()
        if self._paused:
            self.resume()
        self._due.set()
        self.join(5)
        if clean and not self.is_alive():
            self._between_readers(apsw.SQLITE_CHECKPOINT_TRUNCATE, CUT_S)
        self._between.close()
        if not self.is_alive():
            self._beside.close()
