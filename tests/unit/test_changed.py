"""The ring of changed nodes: nothing that changed is ever left out."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from avmfs.store import changed
from avmfs.store.changed import EVERYTHING, SLOTS, ChangedNodes, Changes


@pytest.fixture
def sides() -> Iterator[tuple[ChangedNodes, Changes]]:
    descriptor = changed.create()
    writing, reading = ChangedNodes(descriptor), Changes(descriptor)
    yield writing, reading
    writing.close()
    reading.close()
    os.close(descriptor)


def test_what_was_published_is_named_until_it_has_been_committed(sides: tuple[ChangedNodes, Changes]) -> None:
    writing, reading = sides
    since = reading.committed
    writing.publish([7, 8])
    assert reading.since(since) == {7, 8}
    assert reading.committed == since, "a row of 7 that is read now may be the old one: it is named once more"
    writing.committed()
    assert reading.since(since) == {7, 8} and reading.since(reading.committed) == set()


def test_more_than_the_ring_holds_is_everything(sides: tuple[ChangedNodes, Changes]) -> None:
    writing, reading = sides
    since = reading.committed
    for start in range(0, SLOTS, 1000):
        writing.publish(range(16 + start, 1016 + start))
        writing.committed()
    assert reading.since(since) is None
    assert reading.since(reading.committed) == set()


def test_everything_is_everything_and_nothing_is_seen_too(sides: tuple[ChangedNodes, Changes]) -> None:
    writing, reading = sides
    since, published = reading.committed, reading.published
    writing.publish([])
    assert reading.since(since) == set() and reading.published > published
    writing.publish([7, EVERYTHING])
    assert reading.since(since) is None


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40))
def test_it_goes_round_and_round(sizes: list[int]) -> None:
    descriptor = changed.create()
    writing, reading = ChangedNodes(descriptor), Changes(descriptor)
    number = 16
    try:
        for size in sizes:
            since = reading.committed
            writing.publish(range(number, number + size))
            writing.committed()
            assert reading.since(since) == set(range(number, number + size))
            number += size
    finally:
        writing.close()
        reading.close()
        os.close(descriptor)


def test_nothing_else_is_taken_for_a_ring() -> None:
    for descriptor in (os.memfd_create("short"), os.open("/dev/null", os.O_RDWR)):
        with pytest.raises(ValueError, match="not a ring"):
            Changes(descriptor)
        os.close(descriptor)
