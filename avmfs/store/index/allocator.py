"""Memory that large arrays leave behind.

Owns one call to the C library. Called where a table has been read whole, in any process.
"""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Have the allocator return what it no longer uses. glibc keeps what a rebuild has freed: as much again as the
    columns, in each of a machine's sixteen mounts, and 45 MiB beside 300,000 vectors. Elsewhere there is nothing to
    call."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
