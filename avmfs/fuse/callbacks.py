"""What libfuse's callbacks carry: ids, times and attributes in its structures.

Owns their translation for the portable front end, which calls it. Knows neither libfuse nor the tree.
"""

from __future__ import annotations

import ctypes
from typing import Any

from avmfs.errors import TooSmall
from avmfs.vfs.attributes import Attributes

UTIME_NOW = (1 << 30) - 1
UTIME_OMIT = (1 << 30) - 2
_UNSET_ID = 0xFFFFFFFF
_NS = 1_000_000_000


def as_id(value: int) -> int | None:
    return None if value & 0xFFFFFFFF == _UNSET_ID else value


def as_time(spec: Any, now: int) -> int | None:
    if spec.tv_nsec == UTIME_OMIT:
        return None
    return now if spec.tv_nsec == UTIME_NOW else spec.tv_sec * _NS + spec.tv_nsec


def fill(buffer: Any, found: Attributes) -> None:
    ctypes.memset(buffer, 0, ctypes.sizeof(buffer.contents))
    stat = buffer.contents
    stat.st_ino, stat.st_mode, stat.st_nlink = found.ino, found.mode, found.nlink
    stat.st_uid, stat.st_gid, stat.st_size = found.uid, found.gid, found.size
    stat.st_blksize, stat.st_blocks = 65536, found.blocks
    for name, value in (("st_atimespec", found.atime), ("st_mtimespec", found.mtime), ("st_ctimespec", found.ctime)):
        spec = getattr(stat, name)
        spec.tv_sec, spec.tv_nsec = divmod(value, _NS)


def put(answer: bytes, buffer: Any, size: int) -> int:
    """How long it is; the answer itself goes to the buffer, unless the caller only asks how long it is."""
    if size:
        if len(answer) > size:
            raise TooSmall()
        ctypes.memmove(buffer, answer, len(answer))
    return len(answer)
