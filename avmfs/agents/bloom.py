"""Bloom digests: which topics an agent may know about, in a few bytes that name none of them.

Owns their size, their hashes, and asking many of them at once. Called by housekeeping, which makes them, and by
whoever asks who knows. Pure; a digest means the same in every process and on every host.

B. H. Bloom, Space/time trade-offs in hash coding with allowable errors, CACM 13 (1970). With 3 hashes and m/n bits a
topic, (1 - exp(-3 n/m))^3 of what is not in it seems to be: 9.2 % at 5 bits. What is in it is always found.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

LEAST: Final = 128  # bytes
MOST: Final = 1 << 20  # of a digest that is accepted from elsewhere
BITS_A_TOPIC: Final = 5
_HASHES: Final = struct.Struct("<III")


def size(topics: int) -> int:
    """Bytes of a digest of so many topics: 128, doubled until each has its bits."""
    length = LEAST
    while 8 * length < BITS_A_TOPIC * topics:
        length *= 2
    return length


def fits(bits: bytes) -> bool:
    """Is it a digest, by its length? One that was withdrawn is empty."""
    return not bits or (LEAST <= len(bits) <= MOST and len(bits) & (len(bits) - 1) == 0)


def digest(topics: Collection[str]) -> bytes:
    """Of these topics' keys. The same for the same topics in any order."""
    made = bytearray(size(len(topics)))
    for key in topics:
        for place in hashes(key):
            place &= 8 * len(made) - 1
            made[place >> 3] |= 1 << (place & 7)
    return bytes(made)


def hashes(key: str) -> tuple[int, int, int]:
    """Three numbers of 32 bits; their low bits are places in a digest."""
    raw = hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=12, person=b"avm digest").digest()
    found: tuple[int, int, int] = _HASHES.unpack(raw)
    return found


def holds(bits: bytes, key: str) -> bool:
    """May the topic be in it?"""
    places = [place & (8 * len(bits) - 1) for place in hashes(key)] if bits else []
    return bool(places) and all(bits[place >> 3] >> (place & 7) & 1 for place in places)


def mistaken(bits: bytes) -> float:
    """The share of absent topics that seem to be in it, by how full it is."""
    return (int.from_bytes(bits, "little").bit_count() / (8 * len(bits))) ** 3 if bits else 0.0


@dataclass(frozen=True, slots=True)
class Member:
    """Whose digest it is."""

    host: str
    agent: str


@dataclass(frozen=True, slots=True)
class Asked:
    """``topics``: how many of those that were asked for seem to be in the member's digest."""

    member: Member
    topics: int


class Directory:
    """Many digests, laid side by side so that one look at three columns asks all of a size. Immutable: threads may
    share it."""

    def __init__(self, digests: Sequence[tuple[Member, bytes]]) -> None:
        by_size: dict[int, list[tuple[Member, bytes]]] = {}
        for member, bits in digests:
            if bits:
                by_size.setdefault(len(bits), []).append((member, bits))
        self._groups: list[tuple[list[Member], NDArray[np.uint8]]] = [
            # By column: a look at one byte of all of them reads what lies together.
            (
                [member for member, _ in group],
                np.frombuffer(b"".join(bits for _, bits in group), np.uint8).reshape(len(group), length).T.copy(),
            )
            for length, group in sorted(by_size.items())
        ]

    def ask(self, keys: Sequence[str]) -> list[Asked]:
        """Who may know about any of the topics, most of them first."""
        places = [hashes(key) for key in keys]
        found = []
        for members, columns in self._groups:
            mask = 8 * len(columns) - 1
            counts = np.zeros(len(members), np.int64)
            for three in places:
                held = np.full(len(members), 1, np.uint8)
                for place in three:
                    held &= columns[(place & mask) >> 3] >> np.uint8(place & 7)
                counts += held
            found += [Asked(members[at], int(counts[at])) for at in np.flatnonzero(counts)]
        return sorted(found, key=lambda asked: (-asked.topics, asked.member.host, asked.member.agent))
