"""Room on the disk that holds a store: what stays free of it, and asking before much is written there.

Called by the writer, and by what makes copies of a whole store. A disk that such a copy fills to the last byte takes no
change meanwhile, whoever makes it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from avmfs.errors import NoSpace

_LEAST: Final = 1 << 20  # of the reserve
_MOST: Final = 16 << 20
_PART: Final = 64  # of the disk


def reserve(disk: os.statvfs_result) -> int:
    """Bytes of the disk that stay free."""
    return min(_MOST, max(_LEAST, disk.f_blocks * disk.f_frsize // _PART))


def require(path: Path, size: int, purpose: str) -> None:
    """Raises NoSpace where not so much can be written to the disk of ``path``."""
    disk = os.statvfs(path)
    needed = size + reserve(disk)
    if needed > disk.f_bavail * disk.f_frsize:
        raise NoSpace(f"{needed >> 20} MB have to be free for {purpose}", os.fspath(path))
