"""Views that are being read in pieces, by who holds no handle: each piece comes with a request of its own.

Owns what is kept of one between its pieces, so that they are of one rendering: in another, what stands before the next
piece may be what nobody was told of, and the end would mark it as read. Called by ``rpc.files``.
"""

from __future__ import annotations

import threading
from typing import Any

from avmfs.lru import LRU

KEPT = 8 * 1024 * 1024  # bytes for each connection, of which a door has hundreds
EACH = 64 * 1024  # what one costs beside its bytes, the ids of its messages among that: at most 128 are kept


class Pieces:
    """Renderings (``avmfs.views.Rendered``) by what was asked for. Threads may share it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._begun: LRU[tuple[bytes, bool], tuple[Any, int]] = LRU(KEPT, lambda begun: len(begun[0].data) + EACH)

    def begun(self, asked: tuple[bytes, bool]) -> tuple[Any, int] | None:
        """The rendering whose first piece was told last, and how many bytes from its beginning were told; None where it
        was read to its end, or is not kept."""
        with self._mutex:
            return self._begun.get(asked)

    def keep(self, asked: tuple[bytes, bool], rendered: Any, told: int) -> None:
        with self._mutex:
            self._begun.put(asked, (rendered, told))

    def end(self, asked: tuple[bytes, bool]) -> None:
        with self._mutex:
            self._begun.drop(asked)
