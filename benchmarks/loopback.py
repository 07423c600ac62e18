"""A directory shown through mfusepy with the timeouts that FUSE has by default: how bench_coherence shows that it can
find a violation. Two of these on one directory keep names and attributes for a second, whatever the other does.

    python -m benchmarks.loopback DIRECTORY MOUNTPOINT
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import scratch_directory, served_mount


@contextlib.contextmanager
def mounted_loopbacks(count: int) -> Iterator[list[Path]]:
    """So many mounts of one empty directory."""
    with scratch_directory(Path(tempfile.gettempdir())) as folder, contextlib.ExitStack() as ending:
        shown = folder / "shown"
        shown.mkdir()
        places = [folder / f"mnt{i}" for i in range(count)]
        for place in places:
            place.mkdir()
            command = [sys.executable, "-m", "benchmarks.loopback", str(shown), str(place)]
            ending.enter_context(served_mount(command, place, folder / "log"))
        yield places


def serve(shown: str, mountpoint: str) -> None:
    import mfusepy  # late: it loads libfuse, which the scripts themselves do not need

    class Loopback(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            found = os.lstat(shown + path)
            return {
                "st_mode": found.st_mode,
                "st_nlink": found.st_nlink,
                "st_size": found.st_size,
                "st_uid": found.st_uid,
                "st_gid": found.st_gid,
                "st_atime": found.st_atime_ns,
                "st_mtime": found.st_mtime_ns,
                "st_ctime": found.st_ctime_ns,
            }

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *os.listdir(shown + path)]

        def mkdir(self, path: str, mode: int) -> int:
            os.mkdir(shown + path, mode)
            return 0

        def rmdir(self, path: str) -> int:
            os.rmdir(shown + path)
            return 0

        def create(self, path: str, mode: int, fi: object = None) -> int:
            return os.open(shown + path, os.O_RDWR | os.O_CREAT, mode)

        def open(self, path: str, flags: int) -> int:
            return os.open(shown + path, flags)

        def release(self, path: str, fh: int) -> int:
            os.close(fh)
            return 0

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            return os.pwrite(fh, data, offset)

        def truncate(self, path: str, length: int, fh: int | None = None) -> int:
            os.truncate(shown + path, length)
            return 0

        def unlink(self, path: str) -> int:
            os.unlink(shown + path)
            return 0

        def rename(self, old: str, new: str) -> int:
            os.rename(shown + old, shown + new)
            return 0

    mfusepy.FUSE(Loopback(), mountpoint, foreground=True, entry_timeout=1, attr_timeout=1, negative_timeout=1)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
