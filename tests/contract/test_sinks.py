"""Kernel caches as the writer's peers: who is told what, and what a hostile one can do."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator

import pytest

from avmfs.store.notify import kernel_filter
from avmfs.store.notify.kernel_filter import KernelFilter
from avmfs.store.notify.kernel_notices import Sink, noticed, parse_sink
from avmfs.store.rows.log_ops import BESIDE, MOVED, RIGHTS, TOUCHED, Event

GOOD = {"origin": b"mount", "names": b"N" * 16, "node": b"I" * 16 + bytes(24), "at": 16}


def told(*events: Event, names: KernelFilter | None = None) -> list[bytes]:
    """What a sink of the mount ``mine`` is sent, frame by frame."""
    reading, writing = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)  # packets: a write is a read
    try:
        Sink(writing, b"mine", b"NAMES", b"node" + bytes(8), 4, names).tell(noticed(events))
        os.close(writing)
        frames = []
        while frame := os.read(reading, 4096):
            frames.append(frame)
        return frames
    finally:
        os.close(reading)


def node(number: int) -> bytes:
    return b"node" + number.to_bytes(8, sys.byteorder)


def test_a_foreign_name_ends_all_names_and_the_attributes_of_its_node() -> None:
    assert told(Event(b"other", "create", 7), Event(b"other", TOUCHED, 3)) == [b"NAMES", node(3), node(7)]


def test_many_names_of_one_commit_are_one_notice() -> None:
    events = [Event(b"other", "rename", number) for number in range(20, 30)]
    assert told(*events).count(b"NAMES") == 1


def test_foreign_bytes_end_attributes_only() -> None:
    assert told(Event(b"other", "write", 7), Event(b"", "attributes", 8)) == [node(7), node(8)]


def test_an_own_change_is_known_but_for_the_directory_s_link_count() -> None:
    assert told(Event(b"mine", "write", 7), Event(b"mine", "mkdir", 8), Event(b"mine", TOUCHED, 3)) == [node(3)]


def test_what_comes_of_an_own_change_beside_is_told() -> None:
    assert told(Event(b"mine", "rename", 7), Event(b"mine", BESIDE, 7)) == [b"NAMES", node(7)]


def test_what_no_kernel_asked_for_is_told_to_all() -> None:
    assert told(Event(b"", "ttl", 7))[0] == b"NAMES"
    assert told(Event(b"", "rules", 1))[0] == b"NAMES"


def test_mail_is_told_to_nobody() -> None:
    assert told(Event(b"", "tell", 4)) == []


@pytest.fixture
def names() -> Iterator[KernelFilter]:
    descriptor = kernel_filter.create()
    table = KernelFilter(descriptor)
    yield table
    table.close()
    os.close(descriptor)


def test_a_name_that_this_kernel_does_not_have_costs_it_nothing(names: KernelFilter) -> None:
    names.note(3, b"mine")
    for number in (7, 8, 9):
        names.note_node(number)
    coming = Event(b"other", "create", 7, 3, b"new")
    assert told(coming, names=names) == [node(7)]
    assert told(Event(b"other", "create", 8, 4, b"mine"), names=names) == [node(8)], "in another directory"
    assert told(Event(b"other", "remove", 9, 3, b"mine"), names=names) == [b"NAMES", node(9)]


def test_another_owner_or_mode_ends_the_name_that_this_kernel_has(names: KernelFilter) -> None:
    names.note(3, b"mine")
    names.note_node(7)
    changed = (Event(b"other", "attributes", 7, 3, b"mine"), Event(b"other", RIGHTS, 7, 3, b"mine"))
    assert told(*changed, names=names) == [b"NAMES", node(7)]
    assert told(*changed, names=names) == [node(7)], "it has no name any more"
    names.note(3, b"mine")
    assert told(changed[0], names=names) == [node(7)], "times alone"
    assert told(*(event._replace(origin=b"mine") for event in changed), names=names) == []


def test_a_notice_ends_all_names_so_none_is_noted_after_it(names: KernelFilter) -> None:
    names.note(3, b"a")
    names.note(3, b"b")
    assert [names.note_node(number) for number in (7, 8)] == [True, True]
    gone = Event(b"other", "remove", 7, 3, b"a")
    assert told(gone, names=names)[0] == b"NAMES"
    assert told(gone, Event(b"other", "rename", 8, 3, b"b"), names=names) == [node(7), node(8)]
    names.note(3, b"a")
    assert told(gone, names=names)[0] == b"NAMES"


def test_a_node_that_this_kernel_does_not_have_costs_it_nothing(names: KernelFilter) -> None:
    """And one that it has costs a notice each time: none ends what it keeps of all nodes."""
    assert names.note_node(7) and not names.note_node(7)
    foreign = [Event(b"other", "write", 7), Event(b"", "attributes", 8), Event(b"other", TOUCHED, 3)]
    assert told(*foreign, names=names) == [node(7)]
    names.note(3, b"a")
    assert told(Event(b"other", "remove", 9, 3, b"a"), names=names) == [b"NAMES"]
    assert told(*foreign, names=names) == [node(7)]
    assert told(Event(b"mine", "write", 7), Event(b"mine", TOUCHED, 7), names=names) == [node(7)]


def test_a_kernel_that_does_not_have_a_node_yet_looks_its_name_up_again(
    names: KernelFilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply that tells of the node as it was may be under way: what arrives after this notice is looked up anew."""
    for number in (7, 8, 9):
        names.note_node(number)
    names.note(3, b"a")
    write = os.write

    def without_node(descriptor: int, data: bytes) -> int:
        if bytes(data) in (node(8), node(9)):
            raise FileNotFoundError(errno.ENOENT, "no such inode")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", without_node)
    assert told(*(Event(b"other", "write", number) for number in (7, 8, 9)), names=names) == [node(7), b"NAMES"]
    assert not names.has(3, b"a"), "it has none any more"
    assert told(Event(b"other", "write", 7), names=names) == [node(7)]
    names.note(3, b"a")
    assert told(Event(b"other", "remove", 8, 3, b"a"), names=names) == [b"NAMES"], "once is enough"


def test_one_node_of_those_with_the_same_place_costs_nothing_for_the_others(names: KernelFilter) -> None:
    same = [7 + (n << 20) for n in range(3)]
    assert names.note_node(same[0])
    assert told(*(Event(b"other", "write", number) for number in same), names=names) == [node(same[0])]
    assert names.note_node(same[1]) and not names.note_node(same[0]) and not names.note_node(same[1])
    assert told(*(Event(b"other", "write", number) for number in same), names=names) == [node(n) for n in same]


def test_an_earlier_version_has_told_of_no_nodes_so_its_successor_takes_all_for_known() -> None:
    descriptor = kernel_filter.create(all_nodes=True)
    table = KernelFilter(descriptor)
    try:
        assert told(Event(b"other", "create", 2**62 + 5, 3, b"a"), names=table) == [node(2**62 + 5)]
    finally:
        table.close()
        os.close(descriptor)


def test_a_moved_directory_and_changed_rights_concern_every_name(names: KernelFilter) -> None:
    for op in (MOVED, "shared", "ttl", "rules"):
        assert told(Event(b"other", op, 7, 3, b"x"), names=names)[0] == b"NAMES"


def test_only_what_cannot_shrink_is_a_table_of_names() -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    shrinking = os.memfd_create("t", os.MFD_ALLOW_SEALING)
    os.ftruncate(shrinking, kernel_filter.SIZE)
    short, null, good = os.memfd_create("t"), os.open("/dev/null", os.O_RDWR), kernel_filter.create()
    try:
        for bad in (shrinking, short, null):
            assert parse_sink(GOOD, [device, bad]) is None
        sink = parse_sink(GOOD, [device, good])
        assert sink is not None and sink.seen is not None
        sink.close()
    finally:
        for descriptor in (device, shrinking, short, null, good):
            os.close(descriptor)


def test_only_a_fuse_device_can_be_a_sink() -> None:
    others = [*os.pipe(), os.open("/dev/null", os.O_WRONLY)]
    try:
        assert [parse_sink(GOOD, [descriptor]) for descriptor in others] == [None, None, None]
    finally:
        for descriptor in others:
            os.close(descriptor)


def test_a_malformed_sink_is_none() -> None:
    device = os.open("/dev/fuse", os.O_RDWR) if os.access("/dev/fuse", os.W_OK) else -1
    bad = [
        None,
        [],
        {},
        {**GOOD, "at": 33},
        {**GOOD, "at": -1},
        {**GOOD, "at": "16"},
        {**GOOD, "origin": b""},
        {**GOOD, "names": b"N" * 1000},
        {**GOOD, "node": b"short"},
        {**GOOD, "names": "text"},
    ]
    assert [parse_sink(said, [device]) for said in bad] == [None] * len(bad)
    if device >= 0:
        assert parse_sink(GOOD, [device]) is not None and parse_sink(GOOD, []) is None
        os.close(device)
