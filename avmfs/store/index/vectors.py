"""Vectors in memory, partitioned by scope, and the search for those nearest to a query.

Owns the arrays of one model: rows of 16 bits per number, and one bit per number for a first look when there are many.
Called by ``scan``, which keeps a table in step with the store. Knows no SQL and no agents: the caller names the scopes.

What comes out is a function of the visible rows alone (ARCHITECTURE, decision 3): partitions that are not asked for are
not touched, candidates of the quantised search are counted over visible rows, ties are closed, and a row's cosine
does not depend on where in its partition it stands (blocks are padded, so that BLAS takes one path for all rows).

Threads: none of its own; the caller holds a lock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

EXACT: Final = 5_000
"""Up to so many visible rows all are compared: 4 MB are read. Above, one bit per number is compared first: more rows
take a question's time again where other work fills the processor's cache."""

RERANK: Final = 1_000
"""Rows that the first look lets through at least, or three for each that is wanted: of the 200 nearest 98.7 % are then
among them, of the 50 nearest all (5,571 notes, remarks and functions)."""

DIGITS: Final = 6
"""Cosines are rounded to so many: another BLAS may add up in another order."""

SCALE: Final = 29_000
"""Of the integers that stand for numbers up to 1.1: a cosine of usual vectors of 384 numbers is off by some 0.00001, by
0.00005 at most, and 300,000 of them take 220 MiB and not 440. Integers of 16 bits become floats 20 times as fast as
floats of 16 bits do."""

NONE_YET: Final = "nothing has been embedded with {} yet"

_BLOCK: Final = 4096  # rows in one array: a partition grows without copying what it has
_FIRST: Final = 64
_PAD: Final = 64
_HALF: Final = 32  # bits
_LOWER: Final = 2**_HALF - 1

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Nearest:
    """Passage ids (n,) ascending and their cosines (n,), -1 to 1, rounded."""

    passages: Ids
    cosines: NDArray[np.float64]


class _Partition:
    """Rows of one scope, in no order. A row that leaves is replaced by the last."""

    def __init__(self, dimension: int, words: int) -> None:
        self.size = 0
        self.ids = np.zeros(_FIRST, np.int64)
        self.bits = np.zeros((words, _FIRST), np.uint64)
        self._dimension = dimension
        self._blocks = [np.zeros((_FIRST, dimension), np.int16)]

    @property
    def nbytes(self) -> int:
        return self.ids.nbytes + self.bits.nbytes + sum(block.nbytes for block in self._blocks)

    def append(self, ids: Ids, rows: NDArray[np.int16], bits: NDArray[np.uint64]) -> None:
        start, stop = self.size, self.size + len(ids)
        if stop > len(self.ids):
            room = max(stop, 2 * len(self.ids) if len(self.ids) < _BLOCK else len(self.ids) + len(self.ids) // 4)
            self.ids = np.concatenate([self.ids, np.zeros(room - len(self.ids), np.int64)])
            self.bits = np.concatenate(
                [self.bits, np.zeros((len(self.bits), room - self.bits.shape[1]), np.uint64)], axis=1
            )
        self.ids[start:stop] = ids
        self.bits[:, start:stop] = bits
        while start < stop:
            number, at = divmod(start, _BLOCK)
            count = min(stop - start, _BLOCK - at)
            self._reserve(number, at + count)
            self._blocks[number][at : at + count] = rows[:count]
            rows, start = rows[count:], start + count
        self.size = stop

    def _reserve(self, number: int, rows: int) -> None:
        if number == len(self._blocks):
            self._blocks.append(np.zeros((_BLOCK, self._dimension), np.int16))
        block = self._blocks[number]
        if rows > len(block):
            size = min(_BLOCK, max(2 * len(block), -(-rows // _PAD) * _PAD))
            self._blocks[number] = np.zeros((size, self._dimension), np.int16)
            self._blocks[number][: len(block)] = block

    def remove(self, at: int) -> int | None:
        """Take out the row at ``at``; the id of the row that stands there now, if any."""
        last = self.size - 1
        number, place = divmod(last, _BLOCK)
        moved = None
        if at != last:
            moved = int(self.ids[last])
            self.ids[at], self.bits[:, at] = self.ids[last], self.bits[:, last]
            self._blocks[at // _BLOCK][at % _BLOCK] = self._blocks[number][place]
        self._blocks[number][place] = 0
        if place == 0 and number:
            del self._blocks[number]
        self.size = last
        return moved

    def cosines(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """With ``query`` divided by SCALE."""
        found = np.empty(self.size, np.float32)
        for number, block in enumerate(self._blocks):
            start = number * _BLOCK
            count = min(self.size - start, _BLOCK)
            found[start : start + count] = (block[: -(-count // _PAD) * _PAD].astype(np.float32) @ query)[:count]
        return found

    def rows(self, places: Ids) -> NDArray[np.float32]:
        """Those rows times SCALE, padded with zeros to a whole number of _PAD."""
        taken = np.empty((-(-len(places) // _PAD) * _PAD, self._dimension), np.float32)
        taken[len(places) :] = 0
        blocks = places // _BLOCK
        order = np.argsort(blocks, kind="stable") if (blocks[1:] < blocks[:-1]).any() else None
        ordered, inside = (blocks, places % _BLOCK) if order is None else (blocks[order], places[order] % _BLOCK)
        edges = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(places)]
        for start, stop in itertools.pairwise(edges) if len(places) else ():
            to = slice(start, stop) if order is None else order[start:stop]
            taken[to] = self._blocks[ordered[start]][inside[start:stop]]
        return taken

    def distances(self, query: NDArray[np.uint64]) -> NDArray[np.uint16]:
        """In how many signs each row differs from the query."""
        found = np.zeros(self.size, np.uint16)
        for row, word in zip(self.bits, query, strict=True):
            found += np.bitwise_count(row[: self.size] ^ word)
        return found


class VectorTable:
    """All vectors of one model, each ``dimension`` long."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._words = -(-dimension // 64)
        self._partitions: dict[int, _Partition] = {}
        self._places: dict[int, int] = {}  # passage: its scope and, in the lower half, its place in the partition

    def __len__(self) -> int:
        return len(self._places)

    @property
    def partitions(self) -> int:
        return len(self._partitions)

    @property
    def nbytes(self) -> int:
        return sum(partition.nbytes for partition in self._partitions.values())

    def put(self, rows: Iterable[tuple[int, int, bytes]]) -> list[int]:
        """Add or replace (passage, scope, little-endian float32 bytes). Returns the passages whose bytes are no
        vector of this table's: they are not in it afterwards."""
        damaged: list[int] = []
        by_scope: dict[int, tuple[list[int], list[bytes]]] = {}
        for passage, scope, data in rows:
            self.remove(passage)
            if len(data) != 4 * self.dimension:
                damaged.append(passage)
                continue
            ids, datas = by_scope.setdefault(scope, ([], []))
            ids.append(passage)
            datas.append(data)
        for scope, (ids, datas) in by_scope.items():
            matrix = np.frombuffer(b"".join(datas), "<f4").reshape(len(ids), self.dimension)
            # Rows have length 1 or 0. A flipped exponent would drown all others.
            lengths = np.einsum("ij,ij->i", matrix, matrix)
            whole = np.isfinite(lengths) & (lengths < 1.1)
            damaged += [passage for passage, fine in zip(ids, whole.tolist(), strict=True) if not fine]
            kept = np.array(ids, np.int64)[whole]
            self._append(scope, kept, matrix[whole])
        return damaged

    def _append(self, scope: int, ids: Ids, matrix: NDArray[np.float32]) -> None:
        if not len(ids):
            return
        partition = self._partitions.get(scope)
        if partition is None:
            partition = self._partitions[scope] = _Partition(self.dimension, self._words)
        for at, passage in enumerate(ids.tolist(), partition.size):
            self._places[passage] = scope << _HALF | at
        partition.append(ids, np.rint(matrix * SCALE).astype(np.int16), self._signs(matrix))

    def remove(self, passage: int) -> None:
        found = self._places.pop(passage, None)
        if found is None:
            return
        scope, at = found >> _HALF, found & _LOWER
        partition = self._partitions[scope]
        moved = partition.remove(at)
        if moved is not None:
            self._places[moved] = found
        if not partition.size:
            del self._partitions[scope]

    def nearest(self, scopes: frozenset[int], query: NDArray[np.float32], k: int, also: Ids) -> Nearest:
        """The ``k`` visible passages nearest to ``query`` (with all that tie with the last), and whichever of
        ``also`` are visible."""
        query = np.ascontiguousarray(query, np.float32) / np.float32(SCALE)
        visible = [(scope, part) for scope, part in sorted(self._partitions.items()) if scope in scopes]
        if not visible:
            return Nearest(np.zeros(0, np.int64), np.zeros(0))
        parts = [part for _, part in visible]
        if sum(part.size for part in parts) <= max(EXACT, 4 * k):
            ids = np.concatenate([part.ids[: part.size] for part in parts])
            cosines = _rounded(np.concatenate([part.cosines(query) for part in parts]))
            chosen = _top(cosines, k)
            if len(also):
                chosen |= np.isin(ids, also)
            return _sorted(ids[chosen], cosines[chosen])
        ids, cosines = self._quantised(parts, query, max(RERANK, 3 * k))
        chosen = _top(cosines, k)
        best = Nearest(ids[chosen], cosines[chosen])
        more = self._of(scopes, query, np.setdiff1d(also, best.passages))
        return _sorted(np.concatenate([best.passages, more.passages]), np.concatenate([best.cosines, more.cosines]))

    def _quantised(
        self, parts: list[_Partition], query: NDArray[np.float32], wanted: int
    ) -> tuple[Ids, NDArray[np.float64]]:
        """Cosines of the rows whose signs are nearest: at least ``wanted``, the last distance as a whole."""
        signs = self._signs(query[None, :])[:, 0]
        distances = [part.distances(signs) for part in parts]
        counts = sum(np.bincount(one, minlength=self.dimension + 1) for one in distances)
        bar = int(np.searchsorted(np.cumsum(counts), wanted))
        ids, cosines = [], []
        for part, distance in zip(parts, distances, strict=True):
            places = np.flatnonzero(distance <= bar)
            ids.append(part.ids[places])
            cosines.append((part.rows(places) @ query)[: len(places)])
        return np.concatenate(ids), _rounded(np.concatenate(cosines))

    def _of(self, scopes: frozenset[int], query: NDArray[np.float32], passages: Ids) -> Nearest:
        """Cosines of those of ``passages`` that are visible."""
        asked = np.unique(passages)
        places = np.fromiter(map(self._places.get, asked.tolist(), itertools.repeat(0)), np.int64, len(asked))
        within = places >> _HALF
        ids: list[Ids] = [np.zeros(0, np.int64)]
        cosines: list[NDArray[np.float32]] = [np.zeros(0, np.float32)]
        for scope in scopes.intersection(np.unique(within).tolist()):
            mine = within == scope
            ids.append(asked[mine])
            cosines.append((self._partitions[scope].rows(places[mine] & _LOWER) @ query)[: len(ids[-1])])
        return _sorted(np.concatenate(ids), _rounded(np.concatenate(cosines)))

    def _signs(self, matrix: NDArray[np.float32]) -> NDArray[np.uint64]:
        """One bit per number, (words, rows)."""
        packed = np.zeros((len(matrix), 8 * self._words), np.uint8)
        packed[:, : -(-self.dimension // 8)] = np.packbits(matrix > 0, axis=1)
        return np.ascontiguousarray(packed.view(np.uint64).T)


def _rounded(cosines: NDArray[np.float32]) -> NDArray[np.float64]:
    rounded = np.round(cosines.astype(np.float64), DIGITS)
    return np.asarray(np.clip(rounded, -1.0, 1.0), np.float64)  # 16 bits may make a row a little longer


def _top(scores: NDArray[np.float64], k: int) -> NDArray[np.bool_]:
    """Which scores reach the k-th best: which members of a tie a partition returns would tell of other rows."""
    if k <= 0:
        return np.zeros(len(scores), np.bool_)
    if k >= len(scores):
        return np.ones(len(scores), np.bool_)
    return np.asarray(scores >= np.partition(scores, -k)[-k])


def _sorted(ids: Ids, cosines: NDArray[np.float64]) -> Nearest:
    order = np.argsort(ids)
    return Nearest(ids[order], cosines[order])
