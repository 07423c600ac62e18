"""Between the kernel's structures and the tree's values: attributes, times, lock ranges. Pure functions."""

from __future__ import annotations

from avmfs.fuse import protocol as p
from avmfs.vfs.attributes import Attributes

NS = 1_000_000_000
WHOLE = (1 << 63) - 1  # the kernel's OFFSET_MAX: a lock to the end of file


def attr(found: Attributes) -> bytes:
    (atime, atime_ns), (mtime, mtime_ns), (ctime, ctime_ns) = (
        divmod(found.atime, NS), divmod(found.mtime, NS), divmod(found.ctime, NS)
    )  # fmt: skip
    mask = (1 << 64) - 1  # times before 1970 travel as two's complement
    return p.ATTR.pack(
        found.ino, found.size, found.blocks, atime & mask, mtime & mask, ctime & mask, atime_ns, mtime_ns, ctime_ns,
        found.mode, found.nlink, found.uid, found.gid, 0, 65536, 0,
    )  # fmt: skip


def chosen(valid: int, given: int, at_once: int, now: int, seconds: int, nanoseconds: int) -> int | None:
    if valid & at_once:
        return now
    if not valid & given:
        return None
    if seconds >= 1 << 63:
        seconds -= 1 << 64
    return seconds * NS + nanoseconds


def length(start: int, end: int) -> int:
    return 0 if end >= WHOLE else end - start + 1
