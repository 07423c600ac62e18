"""Up to which change the store was on the disk, noted beside the database after each sync.

Owns that file: a line ``SEQ CRC``, written in place. A store whose log ends before has lost what somebody was promised;
what the write-ahead log has behind a damaged frame beyond that may be the leftovers of a crash. The note itself is not
synced: after a loss of power it may say less than was promised, never more.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import zlib
from pathlib import Path

log = logging.getLogger(__name__)


def beside(database: Path) -> Path:
    return database.with_name(database.name + ".synced")


def read(database: Path) -> int:
    """The seq of the newest row of the log that is noted; 0 where nothing is, or nothing that can be relied on."""
    try:
        said = beside(database).read_bytes()
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.EIO):
            return 0
        raise
    seq, _, rest = said.partition(b" ")
    return int(seq) if seq.isdigit() and rest == _line(int(seq)).partition(b" ")[2] else 0


def _line(seq: int) -> bytes:
    number = b"%020d" % seq
    return b"%s %08x\n" % (number, zlib.crc32(number))


class SyncNote:
    """Keeps the file. ``seq`` is set by whoever commits to the newest row of the log that is committed, and read before
    a sync; ``write`` follows the sync."""

    def __init__(self, database: Path) -> None:
        self._path = beside(database)
        self._descriptor: int | None = None
        self._noted = 0
        self._warned = False
        self.seq = 0

    def write(self, seq: int) -> None:
        """All up to ``seq`` is on the disk. Where this cannot be written the note before stays, which is still true."""
        if seq <= self._noted:
            return
        try:
            if self._descriptor is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptor = os.open(self._path, flags, 0o600)
            os.pwrite(self._descriptor, _line(seq), 0)
        except OSError as e:
            if not self._warned:
                log.warning("%s: what is on the disk cannot be noted: %s", self._path, e.strerror)
            self._warned = True
        else:
            self._noted = seq

    def close(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None
