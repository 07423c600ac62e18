"""The write-ahead log as a file: which of its frames are whole, and what SQLite would throw away.

Owns the format (fileformat2.html, "4.1. WAL File Format"). Never opens the database. SQLite follows a log up to the
first frame whose checksum is wrong, takes what stands behind it for the leftovers of a crash, and begins the log anew
over it. A frame's checksum goes on from that of the frame before, so a single bad one ends everything; but each frame
behind it can still be held against the checksum that its predecessor states.

The checksum is linear modulo 2**32 in the words of the page: each frame's own share is a product with fixed weights,
for all frames at once, and what the frame before contributes is a 2x2 matrix.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from avmfs.store.files.io import read_all

if TYPE_CHECKING:
    import numpy as np

HEADER: Final = 32
FRAME_HEADER: Final = 24
_MAGIC: Final = {0x377F0682: "<u4", 0x377F0683: ">u4"}  # by the order of bytes in which words are summed up
_AT_ONCE: Final = 1024  # frames
DEFAULT_PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class WalFrames:
    """A log that is not empty. ``whole``: the header is; else the salt is the one that most frames carry. ``pages``,
    ``sizes`` (of the database in pages after a commit, else 0), ``ours`` (frames of this log, not of one before) and
    ``good`` (the checksum follows from the frame before) have an entry for each frame in the file."""

    path: Path
    whole: bool
    salt: bytes
    page_size: int
    pages: np.ndarray[Any, Any]
    sizes: np.ndarray[Any, Any]
    ours: np.ndarray[Any, Any]
    good: np.ndarray[Any, Any]

    @property
    def frames(self) -> int:
        return len(self.pages)

    @property
    def chained(self) -> int:
        """So many frames SQLite reads: those before the first that is not good."""
        if not self.whole:
            return 0
        return self.frames if self.good.all() else int(self.good.argmin())

    @property
    def before(self) -> int:
        """Commits that SQLite keeps."""
        return int((self.sizes[: self.chained] > 0).sum())

    @property
    def behind(self) -> int:
        """Commits that are whole, but stand behind a frame that is not."""
        return int(((self.sizes > 0) & self.good)[self.chained :].sum())

    def laid_over(self, image: Path, *, salvage: bool) -> list[int]:
        """Lay the pages of all commits over a copy of the database: those that SQLite reads, or, to ``salvage``, those
        behind a damaged frame too. Returns the pages whose newest image is a damaged frame's: not what was written, but
        nearer to it than what the database has. Raises OSError."""
        import numpy as np

        last = np.flatnonzero((self.sizes > 0) & self.good & (salvage | (np.arange(self.frames) < self.chained)))
        if not len(last):
            return []
        stop = int(last[-1]) + 1
        newest = {int(self.pages[at]): at for at in range(stop) if self.ours[at]}
        size = int(self.sizes[stop - 1])
        with open(self.path, "rb", buffering=0) as log, open(image, "r+b") as file:
            for page, at in newest.items():
                if page <= size:
                    lost: list[int] | None = [] if salvage else None
                    start = HEADER + at * (FRAME_HEADER + self.page_size) + FRAME_HEADER
                    data = read_all(log.fileno(), self.page_size, start, lost)
                    if not lost:  # else what the database has is nearer
                        file.seek((page - 1) * self.page_size)
                        file.write(data)
            file.truncate(size * self.page_size)
        return sorted(page for page, at in newest.items() if page <= size and not self.good[at])


def beside(database: Path) -> Path:
    return database.with_name(database.name + "-wal")


def look(path: Path, lost: list[int] | None = None) -> WalFrames | None:
    """The log in this file, read in pieces: it may be as large as the store. None where it is missing or has no frame.
    Raises OSError. ``lost``: see ``read_all``."""
    import numpy as np

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb", buffering=0):
        size = os.fstat(descriptor).st_size
        if size <= HEADER + FRAME_HEADER:
            return None
        raw = np.frombuffer(read_all(descriptor, HEADER, 0, lost).ljust(HEADER, b"\0"), np.uint8)
        header = raw.view(">u4")
        order = _MAGIC.get(int(header[0]))
        page_size = int(header[2])
        sound = order is not None and 512 <= page_size <= 65536 and page_size & (page_size - 1) == 0
        summed = _carried(np.zeros(2, "u4"), 3) + _shares(raw[None, :24], order or "<u4")[0]
        whole = sound and bool((summed == header[6:8]).all())
        if not sound:
            order, page_size = "<u4", DEFAULT_PAGE
        assert order is not None
        length = FRAME_HEADER + page_size
        count = (size - HEADER) // length
        fields, shares = np.empty((count, 6), ">u4"), np.empty((count, 2), "u4")
        for start in range(0, count, _AT_ONCE):
            stop = min(start + _AT_ONCE, count)
            wanted = (stop - start) * length
            read = read_all(descriptor, wanted, HEADER + start * length, lost).ljust(wanted, b"\0")
            part = np.frombuffer(read, np.uint8).reshape(-1, length)
            fields[start:stop] = np.ascontiguousarray(part[:, :FRAME_HEADER]).view(">u4")
            shares[start:stop] = _shares(np.concatenate([part[:, :8], part[:, FRAME_HEADER:]], axis=1), order)
    carried = np.ascontiguousarray(fields[:, 2:4]).view("V8")[:, 0]
    if whole or not count:
        salt = raw[16:24].tobytes()
    else:
        salts, often = np.unique(carried, return_counts=True)
        salt = salts[often.argmax()].tobytes()
    fields = fields.astype("u4")
    ours = (carried == np.void(salt)) & (fields[:, 0] > 0)
    stated = fields[:, 4:6]
    previous = np.concatenate([header[None, 6:8].astype("u4"), stated[:-1]]) if count else stated
    good = ours & ((_carried(previous, (8 + page_size) // 8) + shares) == stated).all(axis=1)
    return WalFrames(path, whole, salt, page_size, fields[:, 0], fields[:, 1], ours, good)


@cache
def _weights(pairs: int) -> tuple[Any, Any]:
    """What each word of so many pairs adds to the two sums, and what the sums before do."""
    import numpy as np

    # s0 += x0 + s1; s1 += x1 + s0: a step is [[1, 1], [1, 2]] on the sums, and [[1, 0], [1, 1]] on the words
    mask, (a, b, c, d) = 0xFFFFFFFF, (1, 0, 0, 1)
    weights = np.empty((2 * pairs, 2), "u4")
    for pair in reversed(range(pairs)):
        weights[2 * pair] = (a + b) & mask, (c + d) & mask
        weights[2 * pair + 1] = b, d
        a, b, c, d = (a + b) & mask, (a + 2 * b) & mask, (c + d) & mask, (c + 2 * d) & mask
    return weights, np.array([[a, c], [b, d]], "u4")


def _shares(rows: Any, order: str) -> Any:
    import numpy as np

    words = np.ascontiguousarray(rows).view(order).astype("u4")
    return words @ _weights(words.shape[1] // 2)[0]


def _carried(sums: Any, pairs: int) -> Any:
    return sums @ _weights(pairs)[1]
