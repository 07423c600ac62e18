"""Whole reads, whole writes and directory syncs, where one system call may do a part.

Owns these loops. Called wherever a file of the store is read or written beside SQLite. Knows no format.
"""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Final

PAGE: Final = 4096


def read_all(descriptor: int, size: int, offset: int, lost: list[int] | None = None) -> bytes:
    """Return ``size`` bytes from ``offset``, fewer at the end of the file. Raise OSError; with ``lost``, zeros stand
    for each page that the disk does not give, and its number, from 1 on, is added there."""
    try:
        return _read(descriptor, size, offset)
    except OSError as e:
        if lost is None or e.errno != errno.EIO:
            raise
    end = offset + size
    if end <= offset - offset % PAGE + PAGE:
        lost.append(offset // PAGE + 1)
        return bytes(size)
    bounds = [offset, *range(offset - offset % PAGE + PAGE, end, PAGE), end]
    return b"".join(read_all(descriptor, stop - at, at, lost) for at, stop in itertools.pairwise(bounds))


def _read(descriptor: int, size: int, offset: int) -> bytes:
    """One pread(2) gives at most 2 GiB."""
    pieces = []
    while size > 0 and (piece := os.pread(descriptor, size, offset)):
        pieces.append(piece)
        offset, size = offset + len(piece), size - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset``. Raise OSError: a disk that fills up takes a part first."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def sync_directory(folder: Path) -> None:
    """Return when the names in a directory are on its disk. Raise OSError. Filesystems that sync no directories keep
    their names by themselves."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as e:
        if e.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)
