"""Reverse deltas: whatever two texts are given, the older comes back from the newer."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from avmfs.store.rows import deltas
from avmfs.store.rows.deltas import Encoding

# Few letters, so that texts have much in common; and any bytes at all.
TEXT = st.one_of(
    st.binary(max_size=300), st.lists(st.sampled_from([b"a", b"b", b"\n", b"word "]), max_size=120).map(b"".join)
)


def back(older: bytes, newer: bytes) -> bytes:
    encoding, body = deltas.encode(older, newer)
    return deltas.decode(encoding, body, len(older), newer)


@given(TEXT, TEXT)
@settings(max_examples=400)
def test_the_older_text_comes_back(older: bytes, newer: bytes) -> None:
    assert back(older, newer) == older


@given(TEXT, TEXT, TEXT, TEXT)
@settings(max_examples=300)
def test_after_a_change_in_the_middle_too(head: bytes, old: bytes, new: bytes, tail: bytes) -> None:
    assert back(head + old + tail, head + new + tail) == head + old + tail


@given(TEXT, TEXT)
@settings(max_examples=200)
def test_what_was_appended_to_needs_no_body(older: bytes, more: bytes) -> None:
    assert deltas.encode(older, older + more) == (Encoding.PREFIX, None)
    assert deltas.decode(Encoding.PREFIX, None, len(older), older + more) == older


@given(st.lists(TEXT, min_size=2, max_size=12))
@settings(max_examples=100)
def test_a_chain_of_versions_unrolls(versions: list[bytes]) -> None:
    kept = [deltas.encode(older, newer) for older, newer in itertools.pairwise(versions)]
    data = versions[-1]
    for (encoding, body), version in zip(reversed(kept), reversed(versions[:-1]), strict=True):
        data = deltas.decode(encoding, body, len(version), data)
        assert data == version


@given(TEXT)
def test_a_keyframe_stands_alone(data: bytes) -> None:
    encoding, body = deltas.keyframe(data)
    assert deltas.self_contained(encoding) and deltas.decode(encoding, body, len(data), b"whatever") == data


def test_large_middles_go_beyond_the_window() -> None:
    older, newer = bytes(range(256)) * 1024, bytes(reversed(range(256))) * 1024
    assert back(older, newer) == older
    shifted = b"x" * 40_000 + older
    assert back(older, shifted) == older and back(shifted, older) == shifted


def test_a_small_change_takes_little() -> None:
    older = b"".join(b"line %d of a longer note\n" % n for n in range(2000))
    newer = older.replace(b"line 1000 ", b"LINE 1000 ")
    encoding, body = deltas.encode(older, newer)
    assert encoding == Encoding.DELTA and len(body or b"") < 40
    assert back(older, newer) == older


def test_what_has_nothing_in_common_is_kept_alone() -> None:
    encoding, _ = deltas.encode(b"aaaa" * 50, b"zz")
    assert encoding in (Encoding.ZLIB, Encoding.DELTA) and back(b"aaaa" * 50, b"zz") == b"aaaa" * 50


@pytest.mark.parametrize(
    ("encoding", "body"), [(Encoding.ZLIB, None), (Encoding.DELTA, None), (Encoding.MAP, b""), (0, b""), (9, b"")]
)
def test_what_cannot_be_decoded_is_an_error(encoding: int, body: bytes | None) -> None:
    with pytest.raises(ValueError):
        deltas.decode(encoding, body, 1, b"newer")
