"""How old versions are kept: reverse deltas with keyframes.

Owns the encodings of ``version.body``. Pure functions over bytes; called by the store's content
commands (encode) and readers (decode). A version's body is stated against the next newer one, so
that the newest, which nearly every reader wants, needs no decoding.

A delta keeps the changed middle between the longest common prefix and suffix, deflated with the
newer text's own middle as dictionary, the idea of VCDIFF (RFC 3284) with zlib's 32 KiB window.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum

KEYFRAME_EVERY = 16
CLEARLY = 16  # a delta this many times shorter than the text is taken without deflating the text to compare
_HEADER = struct.Struct(">QQ")  # bytes of common prefix, bytes of common suffix
_WINDOW = 32 * 1024
_LOOKAHEAD = 262  # of a window, deflate.h: MIN_LOOKAHEAD


class Encoding(IntEnum):
    HEAD = 0
    ZLIB = 1
    DELTA = 2
    PREFIX = 3
    MAP = 4
    SAME = 5  # in `past_version` alone: which version of another document it is


SELF_CONTAINED = (Encoding.ZLIB, Encoding.MAP, Encoding.SAME)
SAME = struct.Struct(">QQ")
PREFIX: tuple[Encoding, bytes | None] = (Encoding.PREFIX, None)


def keyframe(older: bytes) -> tuple[Encoding, bytes | None]:
    """A body that stands alone."""
    packer = zlib.compressobj(6, zlib.DEFLATED, *_sized(len(older)))
    return Encoding.ZLIB, packer.compress(older) + packer.flush()


def encode(older: bytes, newer: bytes) -> tuple[Encoding, bytes | None]:
    """A small body that gives ``older`` back once ``newer`` is known."""
    if newer.startswith(older):
        return PREFIX
    head = _common(older, newer)
    tail = _common(older[head:][::-1], newer[head:][::-1])
    middle = older[head : len(older) - tail]
    delta = _HEADER.pack(head, tail) + _deflate(middle, newer[head : len(newer) - tail])
    if len(delta) <= len(older) // CLEARLY:
        return Encoding.DELTA, delta
    alone = keyframe(older)
    return (Encoding.DELTA, delta) if len(delta) < len(alone[1] or b"") else alone


def decode(encoding: int, body: bytes | None, size: int, newer: bytes) -> bytes:
    """Inverse of encode, for every encoding but MAP, whose blocks only the store can read."""
    if encoding == Encoding.PREFIX:
        return newer[:size]
    if body is None:
        raise ValueError(f"encoding {encoding} needs a body")
    if encoding == Encoding.ZLIB:
        return zlib.decompress(body)
    if encoding == Encoding.DELTA:
        head, tail = _HEADER.unpack_from(body)
        stop = len(newer) - tail
        middle = _inflate(body[_HEADER.size :], newer[head:stop])
        return newer[:head] + middle + newer[stop:]
    raise ValueError(f"encoding {encoding} cannot be decoded here")


def self_contained(encoding: int) -> bool:
    """Return whether this body needs no newer version to be read."""
    return encoding in SELF_CONTAINED


def _common(a: bytes, b: bytes) -> int:
    """Length of the longest common prefix, by bisection over slices (memcmp speed)."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _deflate(data: bytes, dictionary: bytes) -> bytes:
    bits, memory = _sized(len(data) + len(dictionary))
    packer = zlib.compressobj(6, zlib.DEFLATED, -bits, memory, zdict=dictionary[-_WINDOW:])
    return packer.compress(data) + packer.flush()


def _sized(length: int) -> tuple[int, int]:
    """Window bits and memory level for so many bytes: a note is compressed in 5 us instead of 70, most of which go into
    clearing 256 KB for what is not there. Whoever unpacks may have a larger window."""
    bits = min(max((length + _LOOKAHEAD).bit_length(), 9), 15)
    return bits, 6 if bits < 14 else 8


def _inflate(data: bytes, dictionary: bytes) -> bytes:
    unpacker = zlib.decompressobj(-15, zdict=dictionary[-_WINDOW:])
    return unpacker.decompress(data) + unpacker.flush()
