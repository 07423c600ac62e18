"""Making commits survive power loss beside the writer's loop.

Owns a descriptor of the write-ahead log, and a thread that syncs it. The writer's connection commits with
``synchronous=normal``: the frames of a commit are written, not yet synced (wal.c). What ``synchronous=full`` adds is
one fdatasync of the log after them, which is done here: one for all commits that wait, while the next ones are being
applied. Until then their authors are not answered. A second descriptor of the log is harmless: SQLite's locks are on
the -shm file and the database.

When a disk cannot write what is to be synced, Linux says so once to each descriptor that is open, and takes the pages
for written from then on: the next sync returns 0, that of another process too, with commits in the log that the disk
does not have, and whatever is appended to them is lost with them. So a failed sync is final until the log has been
written anew (``WalFile.rewrite``): all of it, from the page cache, where it must still be what was committed. And as
a process may die before it can tell anybody of a failure, who takes over a log from another one trusts no sync of it.
It is written where it was, and not moved into the database, which must not have what the log on the disk may not have.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

import apsw

from avmfs.errors import AvmError, StoreFailed
from avmfs.store.files import wal_frames
from avmfs.store.files.io import read_all, sync_directory, write_all
from avmfs.store.files.sync_note import SyncNote
from avmfs.store.files.wal_index import FOLIO, WalIndex, drop_pages
from avmfs.store.schema import database
from avmfs.store.writer.checkpoint import FRAME

log = logging.getLogger(__name__)

QUICK_S: Final = 0.0005  # a sync that takes no longer costs all who ask less than the way to another thread and back
RECENT: Final = 16  # syncs by which the disk is judged
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 10.0  # between attempts to write the log anew
_CHECKSUM: Final = struct.Struct(">16x2I")  # of a frame

Waiting = TypeVar("Waiting")


class WalFile:
    """The log of a database to which this process has a connection."""

    def __init__(self, database: Path) -> None:
        self._path = wal_frames.beside(database)
        self._fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        self._index = WalIndex(database)
        self._image = b""  # of the log that is being written anew

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def rewrite(self, db: apsw.Connection) -> None:
        """Bring all that is committed to the disk, whatever syncs before have said. No checkpoint may be at work.

        Raises OSError when the disk fails, StoreFailed when the log is not what was committed: the kernel gave up pages
        that it could not write, and read them again. After either nothing may be committed before another call.
        """
        with database.translated(self._path):
            db.execute("begin immediate")  # nobody commits meanwhile
        try:
            self._rewrite()
        finally:
            db.execute("rollback")

    def _rewrite(self) -> None:
        frames, checksum, salt = self._index.committed()
        end = wal_frames.HEADER + frames * FRAME if frames else 0
        # In memory until it is done: what the disk does not take, the kernel may forget.
        self._image = self._image or read_all(self._fd, end, 0)
        image = memoryview(self._image)
        with contextlib.suppress(OSError):  # told of already, or another one follows
            self.sync()
        for start in range(0, len(image), FOLIO):
            drop_pages(self._fd, start, FOLIO)
            write_all(self._fd, image[start : start + FOLIO], start)
        os.ftruncate(self._fd, end)
        if frames:
            found = wal_frames.look(self._path)  # as it will be written: pages to be written stay
            ours = found if found is not None and found.salt == salt else None
            if ours is None or ours.chained < frames or _checksum(image[end - FRAME : end]) != checksum:
                self._image = b""
                whole = 0 if ours is None else min(ours.chained, frames - 1)
                raise StoreFailed(f"{frames - whole} of {frames} pages in the log are damaged", os.fspath(self._path))
            self._index.forget_moved(sorted({int(page) for page in ours.pages[:frames]}))
        self.sync()
        sync_directory(self._path.parent)  # SQLite does not look whether the log's name is on the disk
        self._image = b""

    def close(self) -> None:
        os.close(self._fd)


class WalSync(Generic[Waiting]):
    """Syncs, in this thread (``now``) or beside it (``after``). ``wake`` is called in the other thread when something
    can be taken with ``done``. Begins as after a failed sync, and nothing can be had before ``recover``."""

    def __init__(self, database: Path, wake: Callable[[], None]) -> None:
        self._file = WalFile(database)
        self._wake = wake
        self.note = SyncNote(database)
        self._asked: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Waiting, bool]] = queue.SimpleQueue()
        self._under_way = 0
        self._took: deque[float] = deque(maxlen=RECENT)  # seconds
        self.failure: OSError | AvmError | None = OSError(errno.EIO, "not known to be on the disk")
        self._pause = 0.0  # before recovery is tried again
        self._retry_at = -math.inf
        self._thread = threading.Thread(target=self._run, name="sync", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether nobody is waiting for the other thread."""
        return self._under_way == 0

    @property
    def quick(self) -> bool:
        """Whether the disk is done before anything else could be. The shortest sync tells: others waited for a
        processor."""
        return min(self._took, default=math.inf) < QUICK_S

    def now(self) -> None:
        """Returns when every commit made so far is on the disk. Raises OSError when that cannot be had, from then on
        until ``recover`` succeeds."""
        if self.failure is not None:
            raise OSError(errno.EIO, str(self.failure))
        begun, seq = time.monotonic(), self.note.seq
        try:
            self._file.sync()
        except OSError as e:
            log.critical("the store's log cannot be written to the disk: %s", e)
            self.failure, self._pause, self._retry_at = e, 0.0, -math.inf
            raise
        self.note.write(seq)
        self._took.append(time.monotonic() - begun)

    @property
    def retry_s(self) -> float:
        """In so many seconds ``recover`` is worth another try."""
        return max(0.0, self._retry_at - time.monotonic())

    def recover(self, db: apsw.Connection) -> bool:
        """After a failed sync: bring all to the disk. Has it succeeded? ``failure`` says why not. Only while nobody
        waits for the other thread and no checkpoint is at work."""
        try:
            self._file.rewrite(db)
        except (OSError, AvmError) as e:
            if str(e) != str(self.failure) or self._pause == 0.0:
                log.error("the store's log cannot be written anew: %s", e)
            self.failure = e
            self._pause = min(max(FIRST_PAUSE_S, 2 * self._pause), LONGEST_PAUSE_S)
            self._retry_at = time.monotonic() + self._pause
            return False
        self.failure = None
        log.info("the store's log is on the disk")
        return True

    def after(self, waiting: Waiting) -> None:
        """Once every commit made so far is on the disk, ``waiting`` comes out of ``done``."""
        self._under_way += 1
        self._asked.put(waiting)

    def done(self) -> list[tuple[Waiting, bool]]:
        """Who has waited, oldest first, and whether it is on the disk."""
        found: list[tuple[Waiting, bool]] = []
        while not self._done.empty():
            found.append(self._done.get_nowait())
        self._under_way -= len(found)
        return found

    def close(self) -> None:
        """Finish what was asked; ``done`` has it."""
        self._asked.put(None)
        self._thread.join()
        self.note.close()
        self._file.close()

    def _run(self) -> None:
        over = False
        while not over:
            waiting = [self._asked.get()]
            while not self._asked.empty():  # one sync serves all who wait
                waiting.append(self._asked.get_nowait())
            over = None in waiting
            synced = True
            try:
                self.now()
            except OSError:
                synced = False
            for one in waiting:
                if one is not None:
                    self._done.put((one, synced))
            self._wake()


def _checksum(frame: memoryview) -> tuple[int, int] | None:
    """As a frame of the log states it."""
    return _CHECKSUM.unpack_from(frame) if len(frame) == FRAME else None
