"""Edits laid over bytes, in memory and in the tables, against a bytearray."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avmfs.errors import StoreFailed, TooBig
from avmfs.store.rows import content
from avmfs.store.rows.content import Edit
from avmfs.store.schema import database, tables
from avmfs.store.schema.tables import BLOCK, INLINE_LIMIT

SMALL = st.one_of(
    st.tuples(st.just("t"), st.integers(0, 60)),
    st.tuples(st.just("w"), st.integers(0, 60), st.binary(min_size=1, max_size=20)),
)
NEAR = st.one_of(*[st.integers(border - 3, border + 3) for border in (3, INLINE_LIMIT, BLOCK * 2, BLOCK * 3)])
LARGE = st.one_of(
    st.tuples(st.just("t"), NEAR),
    st.tuples(
        st.just("w"),
        NEAR,
        st.one_of(st.binary(min_size=1, max_size=9), st.integers(1, 2 * BLOCK).map(lambda n: b"x" * n)),
    ),
)


def applied(data: bytes, edits: list[Edit]) -> bytes:
    model = bytearray(data)
    for edit in edits:
        if edit[0] == "t":
            del model[edit[1] :]
            model.extend(bytes(edit[1] - len(model)))
        else:
            model.extend(bytes(max(0, edit[1] - len(model))))
            model[edit[1] : edit[1] + len(edit[2])] = edit[2]
    return bytes(model)


@given(st.binary(max_size=50), st.lists(SMALL, max_size=6), st.integers(0, 70), st.integers(0, 70))
@settings(max_examples=500, deadline=None)
def test_overlay_is_what_a_file_would_read(data: bytes, edits: list[Edit], offset: int, length: int) -> None:
    after = applied(data, edits)
    base = data[offset : offset + length]
    assert content.overlay(base, offset, length, len(data), edits) == after[offset : offset + length]
    assert content.size_after(len(data), edits) == len(after)
    if content.only_appends(len(data), edits):
        assert after[: len(data)] == data


def test_sizes_have_a_limit() -> None:
    assert content.size_after(0, [("t", content.SIZE_LIMIT)]) == content.SIZE_LIMIT
    large: list[list[Edit]] = [[("t", content.SIZE_LIMIT + 1)], [("w", content.SIZE_LIMIT, b"x")]]
    for edits in large:
        with pytest.raises(TooBig):
            content.size_after(0, edits)
    with pytest.raises(TooBig):
        content.size_after(0, [("t", content.SIZE_LIMIT + 1), ("t", 0)])


@pytest.fixture(scope="module")
def db() -> Iterator[apsw.Connection]:
    made = apsw.Connection(":memory:")
    database.run(made, tables.TABLES)
    made.execute("insert into node(id, name, kind, mode, mtime, ctime, scope) values(99, x'', 1, 0, 0, 0, 1)")
    yield made
    made.close()


@given(st.lists(st.tuples(st.lists(LARGE, min_size=1, max_size=3), st.booleans()), min_size=1, max_size=6))
@settings(max_examples=120, deadline=None)
def test_stored_bytes_follow_the_model_and_maps_stay_as_they_were(
    db: apsw.Connection, steps: list[tuple[list[Edit], bool]]
) -> None:
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
            db.execute("update node set body = ? where id = 99", (after.body,))
            model, size, extents = applied(model, edits), after.size, after.extents
            assert after.inline in (model, None)
            assert size == len(model) and (extents or size <= INLINE_LIMIT)
            assert content.read(db, 99, size, extents, 0, size) == model
            for offset in (0, 5, INLINE_LIMIT - 2, BLOCK * 2 - 1):
                assert content.read(db, 99, size, extents, offset, 7) == model[offset : offset + 7]
        for packed, whole in maps:
            assert content.read_map(db, 99, packed, len(whole)) == whole
        content.release(db, 99)
        for packed, whole in maps:
            assert content.read_map(db, 99, packed, len(whole)) == whole, "a map owns its blocks"
            content.release_map(db, packed)
        for table in ("body", "extent", "block", "shared", "tail"):
            assert db.execute(f"select count(*) from {table}").get == 0, table
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


def test_of_a_file_written_anew_all_that_is_written_stays(db: apsw.Connection) -> None:
    edits: list[Edit] = [("t", 0), ("w", 0, b"hello"), ("w", 0, b"J")]
    assert content.apply(db, 99, content.Applied(3, b"old"), edits).inline == b"Jello"
    db.execute("delete from body")


def test_a_piece_that_is_gone_is_an_error_that_names_the_file(db: apsw.Connection) -> None:
    for edit in (("w", 5, b"x"), ("t", 5)):
        db.execute("begin")
        try:
            after = content.apply(db, 99, content.Applied(0, b""), [("w", 0, bytes(INLINE_LIMIT + 1))])
            db.execute("delete from block")
            with pytest.raises(StoreFailed, match="its bytes are not there"):
                content.apply(db, 99, after, [edit])
        finally:
            db.execute("rollback")
