"""Memory that large arrays leave behind.

Owns two calls to the C library. Called where a table has been read whole, in any process, and where one begins that
answers questions.
"""

from __future__ import annotations

import ctypes
from typing import Final

M_ARENA_MAX: Final = -8  # <malloc.h>


def trim() -> None:
    """Have the allocator return what it no longer uses. glibc keeps what a rebuild has freed: as much again as the
    columns, in each of a machine's sixteen mounts, and 45 MiB beside 300,000 vectors. Elsewhere there is nothing to
    call."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def one_heap() -> None:
    """Have all threads share one: each would keep what its last question has left, some five MB of a hundred
    thousand passages, and the interpreter lets one of them at a time ask for memory."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
