"""What the disk has left for the store, and what must stay free of it.

Owns how that is kept. A full disk is got out of by removing files, and a removal is a commit: it needs room in the
write-ahead log, and the checkpoint after it room in the database. So while no more than the reserve is left, only what
makes the store smaller is done, and everything else is refused as on a full disk; and before that, checkpoints begin
to give the log's own room back (``checkpoint``). Called by the writer's thread, or by whoever writes directly.

What is removed leaves free pages in the database's file, which does not shrink: they count as room for what is written.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from avmfs import wire
from avmfs.errors import NoSpace
from avmfs.store import commands
from avmfs.store.files.room import reserve
from avmfs.store.files.wal_header import PAGE
from avmfs.store.writer.connections import REQUEST_LIMIT

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # a command or a program that keeps no log has the error

_PER_REQUEST = 64 * 1024  # what the smallest change may take in the log: the pages of all its tables and indexes
_AGAIN_S = 0.5  # others fill the disk and free it, too
_AGAIN_PAGES = 64


class DiskReserve:
    """Of one store. ``near``: nothing is to take room that could do without. ``low``: the log is to be kept as short as
    can be. Requests share what is left until the disk is asked again."""

    def __init__(self, path: Path, db: apsw.Connection) -> None:
        self._path, self._db = path, db
        self.reserve = reserve(os.statvfs(path))
        self.low = self.near = False
        self._pages = self._looked_pages = 0
        self._looked_at = 0.0
        self._left = 0
        self._full = False
        self.when_refused: Callable[[], None] = lambda: None
        self.look()

    def committed(self, pages: int) -> None:
        """So many pages are in the log now."""
        self._pages = pages
        if self.low or abs(pages - self._looked_pages) >= _AGAIN_PAGES:
            self.look()

    def look(self) -> None:
        """Ask the disk. What is in the log will be wanted in the database."""
        try:
            disk = os.statvfs(self._path)
        except FileNotFoundError:  # the database was taken away: ``displaced`` says so
            return
        self._left = disk.f_bavail * disk.f_frsize - self._pages * PAGE
        self._looked_pages, self._looked_at = self._pages, time.monotonic()
        self.low = self._left < 2 * self.reserve
        self.near = self._left < 2 * self.reserve + 2 * REQUEST_LIMIT

    def admit(self, command: str, arguments: dict[str, Any]) -> None:
        """Before each command of a transaction. Raises NoSpace."""
        self._look_again()
        if self.near and not (traits := commands.traits(command)).frees_space:
            self._require(traits, len(wire.pack(arguments)) + _PER_REQUEST)
        elif self._full and not self.low:
            self._say(full=False)

    def weigh(self, command: str) -> None:
        """After each command, before its transaction is committed. How much the words of a text take shows only once
        they are in their index. Raises NoSpace."""
        if not self.near or not commands.traits(command).uses_reserve:
            return
        with self._db:  # FTS5 keeps new words in memory until a savepoint or the commit
            pass
        self._db.cache_flush()  # into the log: the disk has given what that takes, or SQLite raises
        pages = int(self._db.execute("pragma page_count").get)
        disk, grows = os.statvfs(self._path), pages * PAGE - os.stat(self._path).st_size
        if disk.f_bavail * disk.f_frsize - max(0, grows) < self.reserve // 2:
            self._refuse()

    def only_in_parts(self, size: int) -> bool:
        """Return whether there is room for so many bytes in the database, of which the log would not take all at
        once."""
        self._look_again()
        if not self.near:
            return False
        size += _PER_REQUEST
        free = self._free()
        return free > size + size // 4 and self._left - size < self.reserve // 4

    def _look_again(self) -> None:
        if time.monotonic() - self._looked_at > _AGAIN_S:
            self.look()

    def _free(self) -> int:
        """Bytes of free pages in the database."""
        return int(self._db.execute("pragma freelist_count").get) * PAGE

    def _require(self, traits: commands.Traits, size: int) -> None:
        free = self._free()
        if traits.uses_reserve:  # no less than ``weigh`` will ask for
            fits = self._left - size >= self.reserve // 2
        elif free > 2 * size:  # in the end, nothing but the log grows
            fits = self._left - size >= self.reserve // 4
        else:
            fits = self._left - 2 * size >= self.reserve
        if not fits:
            self._refuse()
        self._left -= size
        if max(free, self._left) > 2 * self.reserve:
            self._say(full=False)

    def _refuse(self) -> None:
        self._say(full=max(self._free(), self._left) <= 2 * self.reserve)
        self.when_refused()
        raise NoSpace("the disk that holds the store is full", os.fspath(self._path))

    def _say(self, *, full: bool) -> None:
        """In the log, once."""
        if full and not self._full:
            log.error("the disk that holds %s is full: until there is room, files can only be removed", self._path)
        elif self._full and not full:
            log.warning("the disk that holds %s has room again", self._path)
        self._full = full
