"""What SQLite's WAL index says of the log, and how to have it forget what may not be true of the disk.

Owns descriptors that are never closed: closing any descriptor of the database or its -shm file would drop the POSIX
locks that SQLite holds on it for this process. The format is walformat.html, "2.1. The WAL-Index File Format".

After a write that failed the kernel takes the page for written, and ext4 also takes new blocks for written that were
laid out for it: the page can be read as long as it is in memory, and writing it again changes nothing of what is there
after power loss. Only once the kernel has dropped the page does it look anew where the page belongs.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from avmfs.store.files.wal_header import HEADER, PAGE

FOLIO: Final = 2 << 20  # bytes that the kernel may keep as one, aligned: none of them is dropped without the others
_COMMITTED: Final = struct.Struct("=16xI4xII8s8x")  # mxFrame, aFrameCksum[2], aSalt
_BACKFILL: Final = slice(2 * HEADER, 2 * HEADER + 4)  # nBackfill


class WalIndex:
    """Of one database. Only valid while this process has a connection open."""

    def __init__(self, database: Path) -> None:
        index = f"{os.fspath(database)}-shm"
        self._mapped = _mapped(index, *_identity(index))
        self._database = _opened(os.fspath(database), *_identity(database))

    def committed(self) -> tuple[int, tuple[int, int], bytes]:
        """How many frames of the log are committed, the last one's checksum, and the salt of each. To be asked in a
        transaction that may write."""
        frames, first, second, salt = _COMMITTED.unpack(self._mapped[:HEADER])
        return frames, (first, second), salt

    def sync_database(self) -> None:
        os.fdatasync(self._database)

    def forget_moved(self, pages: Iterable[int] | None = None) -> None:
        """Have the next checkpoint move every page of the log again: those moved before may not be on the disk. No
        checkpoint may be at work. ``pages``: those that are in the log, if it is known.

        A reader that takes the log for moved finds the same in the database, and all others read such pages in the log.
        """
        self._mapped[_BACKFILL] = bytes(4)
        with contextlib.suppress(OSError):  # what is still to be written would stay
            self.sync_database()
        if pages is None:
            drop_pages(self._database)
        else:
            for part in sorted({(page - 1) * PAGE // FOLIO for page in pages}):
                drop_pages(self._database, part * FOLIO, FOLIO)


def drop_pages(descriptor: int, start: int = 0, length: int = 0) -> None:
    """Have the kernel drop this part of a file (0, 0: all of it) from memory, but for what is still to be written."""
    if hasattr(os, "posix_fadvise"):  # not on macOS
        os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)


def _identity(path: str | Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


@functools.cache
def _mapped(path: str, device: int, inode: int) -> mmap.mmap:
    return mmap.mmap(os.open(path, os.O_RDWR | os.O_CLOEXEC), _BACKFILL.stop)


@functools.cache
def _opened(path: str, device: int, inode: int) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
