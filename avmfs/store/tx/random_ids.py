"""Unpredictable bytes, taken from the kernel many at a time: a write needs up to four times eight of them.

Owns what was taken and not used yet. A forked process begins without it, or both would use the same.
"""

from __future__ import annotations

import os
import struct

_WIDTH = 8
_TAKEN = 256
_left: list[bytes] = []


def eight() -> bytes:
    """Eight bytes that were never given before. Threads may ask at once."""
    try:
        return _left.pop()
    except IndexError:
        taken = os.urandom(_WIDTH * _TAKEN)
        given, *others = struct.unpack(f"{_WIDTH}s" * _TAKEN, taken)
        _left.extend(others)
        return bytes(given)


def number(bits: int) -> int:
    """A number below ``1 << bits``, at most 64 of them."""
    return int.from_bytes(eight(), "big") >> (8 * _WIDTH - bits)


os.register_at_fork(after_in_child=_left.clear)
