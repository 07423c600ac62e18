"""The kernel's FUSE protocol: opcodes, structures, flags.

Owns the layouts of linux/fuse.h (uapi, protocol 7.x) that this front end uses, as struct.Struct; each is
little- or big-endian as the machine is, with explicit padding. Names follow the header. No behaviour.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag

MAJOR = 7
MINOR = 45  # the newest whose structures are described here; the kernel adapts to the lesser of the two


class Op(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42
    FALLOCATE = 43
    RENAME2 = 45
    LSEEK = 46


class Init(IntFlag):
    """What the two sides can do; bits from 32 travel in flags2."""

    ASYNC_READ = 1 << 0
    POSIX_LOCKS = 1 << 1
    ATOMIC_O_TRUNC = 1 << 3
    BIG_WRITES = 1 << 5
    FLOCK_LOCKS = 1 << 10
    AUTO_INVAL_DATA = 1 << 12
    PARALLEL_DIROPS = 1 << 18
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    HANDLE_KILLPRIV_V2 = 1 << 28
    INIT_EXT = 1 << 30
    DIRECT_IO_ALLOW_MMAP = 1 << 36
    HAS_RESEND = 1 << 39  # protocol >= 7.40 (Linux 6.9)


class SetAttr(IntFlag):
    MODE = 1 << 0
    UID = 1 << 1
    GID = 1 << 2
    SIZE = 1 << 3
    ATIME = 1 << 4
    MTIME = 1 << 5
    FH = 1 << 6
    ATIME_NOW = 1 << 7
    MTIME_NOW = 1 << 8
    KILL_SUIDGID = 1 << 11


FOPEN_DIRECT_IO = 1
FOPEN_KEEP_CACHE = 2
FOPEN_CACHE_DIR = 8
OPEN_KILL_SUIDGID = 1
WRITE_CACHE = 1  # pages of the cache, written by nobody in particular, at their own place
WRITE_KILL_SUIDGID = 1 << 2
LK_FLOCK = 1
RELEASE_FLOCK_UNLOCK = 2

IN_HEADER = struct.Struct("=IIQQIIIHH")  # len opcode unique nodeid uid gid pid total_extlen padding
IN_BRIEF = struct.Struct("=4xIQQI")  # of IN_HEADER: opcode unique nodeid uid
IN_PID = struct.Struct("=32xI")  # of IN_HEADER: the thread that asks
OUT_HEADER = struct.Struct("=IiQ")  # len error unique
INIT_IN = struct.Struct("=IIII")  # major minor max_readahead flags
INIT_OUT = struct.Struct("=IIIIHHIIHHIIH22x")  # ... max_background congestion max_write time_gran max_pages ... flags2
ATTR = struct.Struct(
    "=QQQQQQIIIIIIIIII"
)  # ino size blocks a/m/ctime a/m/ctimensec mode nlink uid gid rdev blksize flags
ENTRY_OUT = struct.Struct("=QQQQII")  # nodeid generation entry_valid attr_valid entry_valid_nsec attr_valid_nsec
GETATTR_IN = struct.Struct("=IIQ")  # getattr_flags dummy fh
GETATTR_FH = 1  # of getattr_flags: there is an fh
ATTR_OUT = struct.Struct("=QII")  # attr_valid attr_valid_nsec dummy
SETATTR_VALID = struct.Struct("=40xI")  # of a whole request
SETATTR_IN = struct.Struct("=IIQQQQQQIIIIIIII")  # valid . fh size lock_owner times[3] nsecs[3] mode . uid gid .
MKNOD_IN = struct.Struct("=IIII")  # mode rdev umask padding
MKDIR_IN = struct.Struct("=II")  # mode umask
RENAME_IN = struct.Struct("=Q")  # newdir
RENAME2_IN = struct.Struct("=QII")  # newdir flags padding
OPEN_IN = struct.Struct("=II")  # flags open_flags
OPEN_OUT = struct.Struct("=QIi")  # fh open_flags backing_id
CREATE_IN = struct.Struct("=IIII")  # flags mode umask open_flags
READ_IN = struct.Struct("=QQIIQII")  # fh offset size read_flags/write_flags lock_owner flags padding
WRITE_IN = READ_IN
WRITE_OUT = struct.Struct("=II")  # size padding
RELEASE_IN = struct.Struct("=QIIQ")  # fh flags release_flags lock_owner
FLUSH_IN = struct.Struct("=QIIQ")  # fh unused padding lock_owner
FSYNC_IN = struct.Struct("=QII")  # fh fsync_flags padding
STATFS_OUT = struct.Struct("=QQQQQIIII24x")  # blocks bfree bavail files ffree bsize namelen frsize padding
LK_IN = struct.Struct("=QQQQIIII")  # fh owner start end type pid lk_flags padding
LK_OUT = struct.Struct("=QQII")  # start end type pid
INTERRUPT_IN = struct.Struct("=Q")  # unique
FORGET_IN = struct.Struct("=Q")  # nlookup
BATCH_FORGET_IN = struct.Struct("=II")  # count dummy
FORGET_ONE = struct.Struct("=QQ")  # nodeid nlookup
FALLOCATE_IN = struct.Struct("=QQQII")  # fh offset length mode padding
DIRENT = struct.Struct("=QQII")  # ino off namelen type; then the name, padded to 8 bytes
LSEEK_IN = struct.Struct("=QQII")  # fh offset whence padding
LSEEK_OUT = struct.Struct("=Q")  # offset
GETXATTR_IN = struct.Struct("=II")  # size padding; then the name
GETXATTR_OUT = struct.Struct("=II")  # size padding
SETXATTR_IN = struct.Struct("=II")  # size flags; then the name, then the value

# Whole replies, header included, of what is asked most.
ENTRY_REPLY = struct.Struct("=IiQ128s")
ATTR_REPLY = struct.Struct("=IiQQII88s")
OPEN_REPLY = struct.Struct("=IiQQIi")
WRITE_REPLY = struct.Struct("=IiQII")

NOTIFY_INVAL_INODE = 2
NOTIFY_RESEND = 7  # every request that was read and not answered is sent again, before all others
NOTIFY_INC_EPOCH = 8  # protocol >= 7.44: every cached name is looked up again; takes no lock, waits for nobody
EPOCH_MINOR = 44

RESENT = 1 << 63  # set in the unique of a request that is sent again; its reply carries it too

RESEND = OUT_HEADER.pack(OUT_HEADER.size, NOTIFY_RESEND, 0)
INC_EPOCH = OUT_HEADER.pack(OUT_HEADER.size, NOTIFY_INC_EPOCH, 0)
# A negative offset: attributes only. Pages are dropped at open, or when a read finds other attributes.
INVAL_ATTRIBUTES = struct.pack("=IiQQqq", OUT_HEADER.size + 24, NOTIFY_INVAL_INODE, 0, 0, -1, 0)
INVAL_NODE_AT = OUT_HEADER.size


def plain_unique(unique: int) -> int:
    """What names a request, however often it is sent."""
    return unique & ~RESENT


def inval_attributes(node: int) -> bytes:
    """INVAL_ATTRIBUTES of one node."""
    return INVAL_ATTRIBUTES[:INVAL_NODE_AT] + struct.pack("=Q", node) + INVAL_ATTRIBUTES[INVAL_NODE_AT + 8 :]


def inval_pages(node: int) -> bytes:
    """All that the kernel has of one node, its bytes too. Waits in the kernel for requests that have them locked."""
    return struct.pack("=IiQQqq", OUT_HEADER.size + 24, NOTIFY_INVAL_INODE, 0, node, 0, 0)


def time_of(valid: int, given: int, at_once: int, now: int, seconds: int, nanoseconds: int) -> int | None:
    """A time of SETATTR in ns, None when it is to stay. Before 1970 ``seconds`` is a two's complement. One that no
    node can have, before 1677 or after 2262, becomes the nearest that it can: so do other filesystems."""
    if valid & at_once:
        return now
    if not valid & given:
        return None
    exact = (seconds - (1 << 64) if seconds >= 1 << 63 else seconds) * 1_000_000_000 + nanoseconds
    return max(-(1 << 63), min((1 << 63) - 1, exact))


def dirent(ino: int, offset: int, kind: int, name: bytes) -> bytes:
    """One entry of a READDIR reply. ``kind`` is st_mode's type bits."""
    return DIRENT.pack(ino, offset, len(name), kind >> 12) + name + bytes(-len(name) % 8)
