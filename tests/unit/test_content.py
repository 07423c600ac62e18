"""Edits laid over bytes, in memory and in the tables, against a bytearray."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from avmfs.errors import StoreFailed, TooBig
from avmfs.store.rows import content
from avmfs.store.rows.content import TAIL_PIECE, Edit
from avmfs.store.rows.content import _whole as whole
from avmfs.store.schema import database, tables
from avmfs.store.schema.tables import BLOCK, INLINE_LIMIT

SMALL = st.one_of(
    st.tuples(st.sampled_from("tg"), st.integers(0, 60)),
    st.tuples(st.just("z"), st.integers(0, 60), st.integers(60, 70)),
    st.tuples(st.just("z"), st.integers(0, 30), st.integers(30, 50)),
    st.tuples(st.just("w"), st.integers(0, 60), st.binary(min_size=1, max_size=20)),
)
NEAR = st.one_of(*[st.integers(border - 3, border + 3) for border in (3, INLINE_LIMIT, BLOCK * 2, BLOCK * 3)])
LARGE = st.one_of(
    st.tuples(st.sampled_from("tg"), NEAR),
    st.tuples(NEAR, NEAR).map(lambda ends: ("z", min(ends), max(ends))),
    st.tuples(
        st.just("w"),
        NEAR,
        st.one_of(st.binary(min_size=1, max_size=9), st.integers(1, 2 * BLOCK).map(lambda n: b"x" * n)),
    ),
)


LONG: tuple[list[Edit], bool] = ([("w", 0, b"y" * (INLINE_LIMIT + 1))], False)
APPENDED: tuple[list[Edit], bool] = ([], True)


def applied(data: bytes, edits: list[Edit]) -> bytes:
    model = bytearray(data)
    for edit in edits:
        if edit[0] == "t":
            del model[edit[1] :]
            model.extend(bytes(edit[1] - len(model)))
        elif edit[0] == "g":
            model.extend(bytes(max(0, edit[1] - len(model))))
        elif edit[0] == "z":
            end = min(edit[2], len(model))
            model[edit[1] : end] = bytes(max(0, end - edit[1]))
        else:
            model.extend(bytes(max(0, edit[1] - len(model))))
            model[edit[1] : edit[1] + len(edit[2])] = edit[2]
    return bytes(model)


@given(st.binary(max_size=50), st.lists(SMALL, max_size=6), st.integers(0, 70), st.integers(0, 70))
@settings(max_examples=500)
def test_overlay_is_what_a_file_would_read(data: bytes, edits: list[Edit], offset: int, length: int) -> None:
    after = applied(data, edits)
    base = data[offset : offset + length]
    assert content.overlay(base, offset, length, len(data), edits) == after[offset : offset + length]
    assert content.size_after(len(data), edits) == len(after)
    if content.only_appends(len(data), edits):
        assert after[: len(data)] == data


def test_sizes_have_a_limit(db: apsw.Connection) -> None:
    assert content.size_after(0, [("t", content.SIZE_LIMIT)]) == content.SIZE_LIMIT
    large: list[list[Edit]] = [[("t", content.SIZE_LIMIT + 1)], [("w", content.SIZE_LIMIT, b"x")]]
    for edits in large:
        with pytest.raises(TooBig):
            content.size_after(0, edits)
    with pytest.raises(TooBig):
        content.size_after(0, [("t", content.SIZE_LIMIT + 1), ("t", 0)])
    with pytest.raises(TooBig):
        content.append(db, 99, content.Applied(content.SIZE_LIMIT, None), b"x")


def test_only_what_changes_no_byte_and_cuts_none_off_appends() -> None:
    cases: list[tuple[list[Edit], bool]] = [
        ([("w", 5, b"x"), ("t", 5), ("w", 9, b"x")], True),
        ([], True),
        ([("w", 4, b"x")], False),
        ([("w", 5, b"x"), ("t", 4)], False),
        ([("t", 0), ("w", 5, b"x")], False),
        ([("g", 3), ("g", 9), ("z", 5, 9)], True),
        ([("z", 4, 5)], False),
    ]
    for edits, appends in cases:
        assert content.only_appends(5, edits) is appends, edits


@pytest.fixture(scope="module")
def db() -> Iterator[apsw.Connection]:
    """Nodes 98, 99 and 100 without bytes but for 98 and 100, which have blocks, a map of them, and appended pieces."""
    made = apsw.Connection(":memory:")
    database.run(made, tables.TABLES)
    for node in (98, 99, 100):
        made.execute(
            "insert into node(id, name, kind, mode, mtime, ctime, scope) values(?1, ?1, 1, 0, 0, 0, 1)", (node,)
        )
    for node in (98, 100):
        edits: list[Edit] = [("w", n * BLOCK, bytes([node]) * BLOCK) for n in (0, 2)]
        after = content.apply(made, node, content.Applied(0, b""), edits)
        content.take_map(made, node)
        after = content.append(made, node, after, b"appended")
        content.append(made, node, after, b"more")
    made.execute("insert into body(id, data) values(1000, 'of another')")
    yield made
    made.close()


def stored(db: apsw.Connection) -> dict[str, list[Any]]:
    """By table all that is there."""
    return {
        each: db.execute(f"select * from {each}").fetchall() for each in ("body", "extent", "block", "shared", "tail")
    }


def filled(db: apsw.Connection, blocks: Iterable[int], size: int, pieces: Sequence[bytes]) -> content.Applied:
    """Node 99 with a byte in each of the ``blocks``, of that size, and what is appended."""
    edits: list[Edit] = [("w", n * BLOCK, b"x") for n in blocks]
    after = content.apply(db, 99, content.Applied(0, b""), [("t", size), *edits, ("t", size)])
    for piece in pieces:
        assert content.small_append(after.size, [("w", after.size, piece)])
        after = content.append(db, 99, after, piece)
    return after


@given(st.lists(st.tuples(st.lists(LARGE, min_size=1, max_size=3), st.booleans()), min_size=1, max_size=6))
@example([([("w", 0, bytes(INLINE_LIMIT + 1))], False), ([("t", INLINE_LIMIT)], False)])
@example([([("w", 0, b"x" * 3000)], False), ([("t", 3)], True)])
@example([LONG, ([("t", 0), ("w", 0, b"x")], False)])
@example([LONG, APPENDED, ([("w", INLINE_LIMIT, b"xx")], False)])
@example([LONG, APPENDED, ([("t", INLINE_LIMIT + 2)], False), ([("t", INLINE_LIMIT + 9)], False)])
@example([LONG, APPENDED, ([("t", 9)], False), LONG])
@settings(max_examples=120)
def test_stored_bytes_follow_the_model_and_maps_stay_as_they_were(
    db: apsw.Connection, steps: list[tuple[list[Edit], bool]]
) -> None:
    others = stored(db)
    db.execute("begin")
    try:
        model, after = b"", content.Applied(0, b"")
        maps: list[tuple[bytes, bytes]] = []
        for edits, keep in steps:
            if keep:  # like a log file: a small piece at the end
                edits = [("w", after.size, b"piece"), *(edits if len(edits) > 1 else [])]
            if keep and after.extents:
                maps.append((content.take_map(db, 99), model))
            piece = content.small_append(after.size, edits)
            if piece is not None:
                after = content.append(db, 99, after, piece)
            else:
                after = content.apply(db, 99, after, edits)
                assert after.extents == (after.size > INLINE_LIMIT)
            db.execute("update node set body = ? where id = 99", (after.body,))
            model, size, extents = applied(model, edits), after.size, after.extents
            assert after.inline in (model, None)
            assert extents or not db.execute("select 1 from extent where node = 99").get
            for table in ("body", "block", "tail"):
                assert not db.execute(f"select 1 from {table} where crc is null and data <> 'of another'").get, table
            assert size == len(model) and (extents or size <= INLINE_LIMIT)
            assert content.read(db, 99, size, extents, 0, size) == model
            for offset in (0, 5, INLINE_LIMIT - 2, BLOCK * 2 - 1):
                assert content.read(db, 99, size, extents, offset, 7) == model[offset : offset + 7]
        for packed, whole in maps:
            assert content.read_map(db, 99, packed, 0, len(whole)) == whole
        content.release(db, 99)
        for packed, whole in maps:
            assert content.read_map(db, 99, packed, 0, len(whole)) == whole, "a map owns its blocks"
            content.release_map(db, packed)
        assert stored(db) == others
    finally:
        db.execute("rollback")


@pytest.mark.parametrize("pieces", [[], [b"appended", b"more"], [bytes(TAIL_PIECE - 1)] * 2])
@pytest.mark.parametrize("size", [BLOCK + 1, 2 * BLOCK, 3 * BLOCK - 5])
def test_data_and_holes_are_where_blocks_are_and_are_not(db: apsw.Connection, size: int, pieces: list[bytes]) -> None:
    last = (size - 1) // BLOCK
    for there in itertools.product((False, True), repeat=last + 1):
        blocks = {n for n, has in enumerate(there) if has}
        db.execute("begin")
        try:
            end = filled(db, blocks, size, pieces).size
            borders = {n * BLOCK for n in range(last + 2)} | {size, end}
            for offset in sorted(border + by for border in borders for by in (-1, 0, 1) if 0 <= border + by < end):
                hole = data = offset
                while hole < size and hole // BLOCK in blocks:
                    hole = (hole // BLOCK + 1) * BLOCK
                while data < size and data // BLOCK not in blocks:
                    data = min((data // BLOCK + 1) * BLOCK, size)
                assert content.seek(db, 99, end, True, offset, hole=True) == (hole if hole < size else end)
                assert content.seek(db, 99, end, True, offset, hole=False) == (data if data < end else None)
        finally:
            db.execute("rollback")
    assert [content.seek(db, 99, 9, False, 4, hole=hole) for hole in (False, True)] == [4, 9], "of a body"


def test_what_was_appended_stays_where_its_block_is_damaged(db: apsw.Connection) -> None:
    db.execute("begin")
    try:
        filled(db, range(3), 3 * BLOCK - 9, [b"piece", b"more"])
        db.execute("update block set crc = crc + 1 where id = (select block from extent where node = 99 and n = 2)")
        with pytest.raises(StoreFailed):
            content.take_map(db, 99)
        assert db.execute("select count(*) from tail where node = 99").get == 2
    finally:
        db.execute("rollback")


def test_damage_is_an_error_to_who_reads_what_is_damaged_and_to_no_other(db: apsw.Connection) -> None:
    """A read looks at the pieces that have what is asked for, and at no byte behind."""
    size = 3 * BLOCK
    spans = [(0, BLOCK), (BLOCK, 2 * BLOCK), (2 * BLOCK, size), (size, size + 5), (size + 5, size + 9)]
    db.execute("begin")
    try:
        end = filled(db, range(3), size, [b"piece", b"more"]).size
        for begin, stop in spans:
            if begin < size:
                damage = (
                    "update block set crc = crc + ? where id = (select block from extent where node = 99 and n = ?)"
                )
            else:
                damage = "update tail set crc = crc + ? where node = 99 and at = ?"
            where = begin // BLOCK if begin < size else begin
            db.execute(damage, (1, where))
            for offset, upto in itertools.combinations(sorted({0, 1, *itertools.chain(*spans)}), 2):
                if offset < stop and upto > begin:
                    with pytest.raises(StoreFailed):
                        content.read(db, 99, end, True, offset, upto - offset)
                elif upto <= begin or begin < size:
                    assert len(content.read(db, 99, end, True, offset, upto - offset)) == upto - offset
            db.execute(damage, (-1, where))
    finally:
        db.execute("rollback")


def test_a_block_that_is_made_zeros_is_a_hole(db: apsw.Connection) -> None:
    db.execute("begin")
    try:
        after = filled(db, range(4), 4 * BLOCK - 5, [])
        after = content.apply(db, 99, after, [("z", BLOCK - 1, 2 * BLOCK + 1), ("z", 3 * BLOCK, 4 * BLOCK - 5)])
        assert [n for n, _ in content.pack_rows(db, 99)] == [0, 2] and after.size == 4 * BLOCK - 5
    finally:
        db.execute("rollback")


def test_a_block_of_one_owner_is_changed_in_place_and_one_of_several_left_as_it_is(db: apsw.Connection) -> None:
    db.execute("begin")
    try:
        after = filled(db, range(3), 3 * BLOCK, [])
        first = content.pack_rows(db, 99)
        content.apply(db, 99, after, [("w", BLOCK, b"y")])
        assert content.pack_rows(db, 99) == first
        packed = content.take_map(db, 99)
        for piece in (b"z", bytes(BLOCK)):
            content.apply(db, 99, after, [("w", BLOCK, piece)])
            second = content.pack_rows(db, 99)
            assert [second[n] == first[n] for n in range(3)] == [True, False, True]
            assert content.read_map(db, 99, packed, 0, 3 * BLOCK)[BLOCK] == ord("y")
        assert content.unpack_map(packed) == first and content.pack_rows(db, 99) == second
    finally:
        db.execute("rollback")


def test_small_pieces_are_folded_before_they_are_many_or_large(db: apsw.Connection) -> None:
    """Every read puts them together."""
    for piece, most in ((b"x", content.TAIL_PIECES), (bytes(content.TAIL_BYTES // 4), 4)):
        db.execute("begin")
        try:
            after = content.apply(db, 99, content.Applied(0, b""), [("w", 0, bytes(INLINE_LIMIT + 1))])
            for _ in range(3 * most):
                after = content.append(db, 99, after, piece)
                assert db.execute("select count(*) from tail where node = 99").get < most
            added = content.read(db, 99, after.size, after.extents, INLINE_LIMIT + 1, after.size)
            assert added == piece * 3 * most
        finally:
            db.execute("rollback")


@given(st.binary(max_size=9), st.lists(st.one_of(SMALL, st.just(("t", 0))), min_size=1, max_size=3))
@example(b"old", [("t", 0), ("w", 0, b"hello"), ("w", 0, b"J")])
@example(b"old", [("w", 0, b"J")])
@example(b"old", [("t", 1), ("w", 0, b"J")])
@settings(max_examples=100)
def test_small_contents_follow_the_model(db: apsw.Connection, data: bytes, edits: list[Edit]) -> None:
    assert content.apply(db, 99, content.Applied(len(data), data), edits).inline == applied(data, edits)
    db.execute("delete from body where id <> 1000")


def test_what_is_written_whole_is_stored_as_it_comes() -> None:
    for size, data in ((0, b"x" * INLINE_LIMIT), (5, b"x")):
        edits: list[Edit] = [("t", 0), ("w", 0, data)]
        assert whole(size, edits if size else edits[1:]) == data
    rest: list[list[Edit]] = [[("w", 0, bytes(INLINE_LIMIT + 1))], [("w", 1, b"x")], [("t", 5)], [("t", 0)], []]
    assert [whole(0, edits) for edits in rest] == [None] * len(rest) and whole(5, [("w", 0, b"x")]) is None


def test_a_small_piece_at_the_end_of_a_file_that_is_not_small_is_an_append() -> None:
    size = content.TAIL_FROM
    for data in (b"x", bytes(content.TAIL_PIECE - 1)):
        assert content.small_append(size, [("w", size, data)]) == data
    others: list[list[Edit]] = [
        [("w", size, b"")],
        [("w", size, bytes(content.TAIL_PIECE))],
        [("w", size - 1, b"x")],
        [("w", size, b"x"), ("w", size + 1, b"x")],
        [("t", size)],
        [],
    ]
    assert [content.small_append(size, edits) for edits in others] == [None] * len(others)
    assert content.small_append(size - 1, [("w", size - 1, b"x")]) is None


def test_a_piece_that_is_gone_is_an_error_that_names_the_file(db: apsw.Connection) -> None:
    for edit in (("w", 5, b"x"), ("t", 5)):
        db.execute("begin")
        try:
            after = content.apply(db, 99, content.Applied(0, b""), [("w", 0, bytes(INLINE_LIMIT + 1))])
            packed = content.take_map(db, 99)
            db.execute("delete from block")
            with pytest.raises(StoreFailed, match="its bytes are not there"):
                content.apply(db, 99, after, [edit])
            with pytest.raises(StoreFailed, match="its bytes are not there"):
                content.read_map(db, 99, packed, 0, after.size)
        finally:
            db.execute("rollback")
