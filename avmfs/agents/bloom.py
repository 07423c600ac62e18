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
_CELLS: Final = 1 << 18  # looked at together


def size(topics: int) -> int:
    """Bytes of a digest of so many topics: 128, doubled until each has its bits."""
    length = LEAST
    while 8 * length < BITS_A_TOPIC * topics:
        length *= 2
    return length


def fits(bits: bytes) -> bool:
    """Return whether it is a digest, by its length. One that was withdrawn is empty."""
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
    """Return whether the topic may be in it."""
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
        self._groups = [_Group.of(group, length) for length, group in sorted(by_size.items())]

    def ask(self, keys: Sequence[str]) -> list[Asked]:
        """Who may know about any of the topics, most of them first.

        Of many topics some seem to be in any full digest. A member is left out that has no more of them than chance
        gives, once that would be one or more: with up to ten topics nobody is missed, whatever the digest.
        """
        places = np.array([hashes(key) for key in keys], np.uint32).reshape(len(keys), 3)
        found = []
        for group in self._groups:
            counts = group.counts(places)
            chance = len(keys) * group.mistaken
            least = np.where(chance < 1, 0, chance + 3 * np.sqrt(chance))
            found += [Asked(group.members[at], int(counts[at])) for at in np.flatnonzero(counts > least)]
        return sorted(found, key=lambda asked: (-asked.topics, asked.member.host, asked.member.agent))


@dataclass(frozen=True, slots=True)
class _Group:
    """Digests of one size. ``columns``: by byte, so that a look at one byte of all of them reads what lies together."""

    members: list[Member]
    columns: NDArray[np.uint8]
    mistaken: NDArray[np.float64]

    @staticmethod
    def of(group: Sequence[tuple[Member, bytes]], length: int) -> _Group:
        rows = np.frombuffer(b"".join(bits for _, bits in group), np.uint8).reshape(len(group), length)
        wrong = np.array([mistaken(bits) for _, bits in group])
        return _Group([member for member, _ in group], rows.T.copy(), wrong)

    def counts(self, places: NDArray[np.uint32]) -> NDArray[np.int64]:
        """How many of the topics, a row of three hashes each, seem to be in each digest."""
        counts = np.zeros(len(self.members), np.int64)
        step = max(1, _CELLS // len(self.members))
        for at in range(0, len(places), step):
            some = places[at : at + step] & np.uint32(8 * len(self.columns) - 1)
            bits = self.columns[some >> 3] >> (some & 7).astype(np.uint8)[:, :, None]
            counts += (np.bitwise_and.reduce(bits, axis=1) & 1).sum(axis=0, dtype=np.int64)
        return counts
