"""The table of vectors: exact and quantised search, and that neither tells of rows that are not asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from avmfs.store.index import vectors
from avmfs.store.index.vectors import Nearest, VectorTable

DIMENSION = 70  # neither a whole number of bytes nor of words
NOBODY = np.zeros(0, np.int64)
OURS, THEIRS, MORE = 3, 4, 9


def directions(count: int, seed: int = 0, dimension: int = DIMENSION) -> NDArray[np.float32]:
    """Like what a model gives: around some topics, of length 1."""
    random = np.random.default_rng(seed)
    topics = random.standard_normal((12, dimension))
    rows = topics[random.integers(0, 12, count)] + 0.8 * random.standard_normal((count, dimension))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def filled(rows: NDArray[np.float32], scope: int = OURS, first: int = 1) -> VectorTable:
    table = VectorTable(rows.shape[1])
    add(table, rows, scope, first)
    return table


def add(table: VectorTable, rows: NDArray[np.float32], scope: int, first: int) -> None:
    assert table.put((first + at, scope, row.tobytes()) for at, row in enumerate(rows)) == []


OFF = 5e-5
"""That a cosine of numbers of 16 bits may be off."""


def brute(rows: NDArray[np.float32], query: NDArray[np.float32], k: int) -> list[int]:
    """By definition: numpy in double precision."""
    cosines = rows.astype(np.float64) @ query.astype(np.float64)
    return sorted(np.argsort(-cosines, kind="stable")[:k] + 1)


def is_nearest(found: Nearest, rows: NDArray[np.float32], query: NDArray[np.float32], k: int) -> bool:
    """By definition, but for who stands so near to the last that a cosine's error decides."""
    cosines = rows.astype(np.float64) @ query.astype(np.float64)
    bar = np.sort(cosines)[-k]
    there = set(found.passages.tolist())
    return (
        set((np.flatnonzero(cosines > bar + 2 * OFF) + 1).tolist())
        <= there
        <= set((np.flatnonzero(cosines > bar - 2 * OFF) + 1).tolist())
        and len(there) >= k
        and bool(np.abs(found.cosines - cosines[found.passages - 1]).max() < OFF)
    )


def same(one: Nearest, other: Nearest) -> bool:
    return one.passages.tobytes() == other.passages.tobytes() and one.cosines.tobytes() == other.cosines.tobytes()


def ask(table: VectorTable, query: NDArray[np.float32], k: int = 10, *scopes: int) -> Nearest:
    return table.nearest(frozenset(scopes or (OURS,)), query, k, NOBODY)


def test_the_nearest_are_those_of_the_definition() -> None:
    rows, queries = directions(5000), directions(20, seed=1)
    table = filled(rows)
    for query in queries:
        assert is_nearest(ask(table, query, 25), rows, query, 25)


def test_above_the_limit_one_bit_per_number_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = directions(12_000, dimension=384)
    queries = rows[:20] + 0.03 * np.random.default_rng(1).standard_normal((20, 384)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    table = filled(rows)
    hits = 0
    for query in queries:
        exact = brute(rows, query, 25)
        hits += len(set(ask(table, query, 25).passages.tolist()) & set(exact))
        monkeypatch.setattr(vectors, "EXACT", 10**9)
        assert is_nearest(ask(table, query, 25), rows, query, 25)
        monkeypatch.undo()
    assert hits >= 0.97 * 25 * len(queries)


@pytest.mark.parametrize("count", [3000, 12_000])
def test_what_others_keep_moves_no_bit(count: int) -> None:
    """Exact and quantised: the same rows with and without others' rows, some of which are nearer."""
    rows, query = directions(count), directions(1, seed=7)[0]
    alone, crowd = filled(rows), VectorTable(DIMENSION)
    theirs = np.concatenate([directions(4000, seed=5), np.repeat(query[None, :], 2000, axis=0)])
    half = count // 2
    add(crowd, theirs[:3000], THEIRS, 10_000_000)
    add(crowd, rows[:half], OURS, 1)
    add(crowd, theirs[3000:], THEIRS, 20_000_000)
    add(crowd, rows[half:], OURS, 1 + half)
    also = np.array([5, 20_000_100, 77], np.int64)
    for k in (1, 10, 900):
        assert same(
            alone.nearest(frozenset({OURS}), query, k, also),
            crowd.nearest(frozenset({OURS}), query, k, also),
        )
    assert 20_000_100 in crowd.nearest(frozenset({OURS, THEIRS}), query, 1, also).passages


def test_a_cosine_does_not_depend_on_where_its_row_stands() -> None:
    rows, query = directions(4500), directions(1, seed=3)[0]
    order = np.random.default_rng(2).permutation(len(rows))
    shuffled = VectorTable(DIMENSION)
    assert shuffled.put((int(at) + 1, OURS, rows[at].tobytes()) for at in order) == []
    for passage in range(1, 4500, 3):
        shuffled.remove(passage)
    assert shuffled.put((p, OURS, rows[p - 1].tobytes()) for p in range(1, 4500, 3)) == []
    assert same(ask(filled(rows), query, 4500), ask(shuffled, query, 4500))


def test_no_cosine_is_above_1() -> None:
    """A row of a table against itself, whose numbers of 16 bits may be longer than 1."""
    rows = directions(200, seed=3)
    table = filled(rows)
    found = [ask(table, row, 1).cosines.max() for row in rows]
    assert max(found) == 1.0 and min(found) > 1 - OFF


def test_all_that_tie_with_the_last_are_there() -> None:
    rows = np.repeat(directions(1), 500, axis=0)
    assert len(ask(filled(rows), rows[0], 10).passages) == 500


def test_passages_found_by_words_get_their_cosines_and_invisible_ones_none() -> None:
    rows, query = directions(200), directions(1, seed=9)[0]
    table = filled(rows)
    add(table, rows[:5], THEIRS, 1001)
    far = np.array([*sorted(set(range(1, 201)) - set(brute(rows, query, 3)))[:4], 1001, 99_999], np.int64)
    found = table.nearest(frozenset({OURS}), query, 3, far)
    assert found.passages.tolist() == sorted([*brute(rows, query, 3), *far[:4].tolist()])
    assert same(found, table.nearest(frozenset({OURS}), query, 3, np.repeat(far, 2)))


def test_what_is_no_vector_stays_out_and_is_named() -> None:
    rows = directions(4)
    infinite = rows[2].copy()
    infinite[3] = np.inf
    table = VectorTable(DIMENSION)
    damaged = table.put(
        [
            (1, OURS, rows[0].tobytes()),
            (2, OURS, b"short"),
            (3, OURS, infinite.tobytes()),
            (4, OURS, bytes(4 * DIMENSION)),
            (5, OURS, (rows[3] * 1e6).astype(np.float32).tobytes()),
        ]
    )
    assert sorted(damaged) == [2, 3, 5]
    assert ask(table, rows[0]).passages.tolist() == [1, 4], "a text that says nothing has the zero vector"


def test_an_empty_partition_is_forgotten() -> None:
    table = filled(directions(3))
    for passage in (2, 1, 3, 3):
        table.remove(passage)
    assert (len(table), table.partitions, table.nbytes) == (0, 0, 0)
    assert len(ask(table, directions(1)[0]).passages) == 0


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 12), st.sampled_from([OURS, THEIRS, MORE, 0])), max_size=60), st.data())
def test_any_order_of_changes_leaves_what_the_last_ones_said(
    changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Scope 0 is a removal. Against a dictionary."""
    rows, query = directions(13, dimension=8), directions(1, seed=1, dimension=8)[0]
    table, expected = VectorTable(8), {}
    for passage, scope in changes:
        if scope:
            assert table.put([(passage, scope, rows[passage].tobytes())]) == []
            expected[passage] = scope
        else:
            table.remove(passage)
            expected.pop(passage, None)
    visible = frozenset(data.draw(st.sets(st.sampled_from([OURS, THEIRS, MORE]))))
    found = table.nearest(visible, query, 100, NOBODY)
    assert found.passages.tolist() == sorted(passage for passage, scope in expected.items() if scope in visible)
    for passage, cosine in zip(found.passages.tolist(), found.cosines.tolist(), strict=True):
        assert abs(cosine - float(rows[passage] @ query)) < OFF
