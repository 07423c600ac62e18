"""Unpredictable bytes and numbers, straight from the kernel: whatever forks or is copied draws its own."""

from __future__ import annotations

import os


def eight() -> bytes:
    """Return eight random bytes."""
    return os.urandom(8)


def number(bits: int) -> int:
    """Return a random number below ``1 << bits``, at most 64 of them."""
    return int.from_bytes(eight(), "big") >> (64 - bits)
