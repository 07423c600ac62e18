"""Whether the names of the store's files still lead to the files that are open.

Who removes ``avm.db-wal``, ``avm.db-shm`` or the lock beside a store in use (by hand, by a cleaner's rule) leaves its
processes with files that nobody else can find: others would begin a log and a lock of their own, see nothing of what is
committed from then on, and what is in a file without a name is lost with its last process. So the writer asks before
each commit, while it has SQLite's write lock, and the supervisor from time to time (``premises``).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from avmfs.store.files.store_lock import StoreLock

# A directory's time of change counts ticks of the kernel's clock, at most 10 ms: two changes in one look the same.
SETTLED_NS: Final = 100_000_000


class Displaced(BaseException):
    """Nothing may be committed any more; ``str()`` says which file was removed or replaced. The end of the process,
    like SystemExit: who goes on after the failure of one command does not after this."""


class OpenStoreFiles:
    """Remembers the files that these names, all in one directory, lead to now; a name without a file is not watched."""

    def __init__(self, *paths: Path) -> None:
        self._files = {path: found for path in paths if (found := _identity(path)) is not None}
        self._directory = paths[0].parent
        self._verified = -1  # the directory's time of change when all was in place

    def displaced(self) -> list[Path]:
        """The names that lead to nothing or to another file by now."""
        return [path for path, known in self._files.items() if _identity(path) != known]

    def check(self) -> bool:
        """Raises Displaced, else False: as SQLite wants it of a commit hook. One stat(2), unless names in the directory
        have changed."""
        try:
            changed = os.stat(self._directory).st_mtime_ns
        except FileNotFoundError:
            changed = -2
        if changed != self._verified:
            if found := self.displaced():
                raise Displaced(described(found))
            if time.time_ns() - changed > SETTLED_NS:
                self._verified = changed
        return False


def of_store(database: Path) -> OpenStoreFiles:
    """Everything beside a store in use by which others find it, and the database."""
    return OpenStoreFiles(database, log_of(database), index_of_log(database), StoreLock(database).path)


def described(paths: list[Path]) -> str:
    return f"{', '.join(map(os.fspath, paths))}: removed or replaced while the store was in use"


def leads_to(path: Path, descriptor: int) -> bool:
    """Return whether the file of that name is the one that is open."""
    found = os.fstat(descriptor)
    return _identity(path) == (found.st_dev, found.st_ino)


def log_of(database: Path) -> Path:
    return database.with_name(database.name + "-wal")


def index_of_log(database: Path) -> Path:
    return database.with_name(database.name + "-shm")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
