"""A full disk from which files were removed takes large files again: in parts, since the log has no room for them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, cast

import pytest

from avmfs.access import Policy
from avmfs.errors import Denied, NoSpace
from avmfs.store.client.client import WriterClient
from avmfs.store.identity import OPERATOR
from avmfs.store.schema import database
from avmfs.store.schema.tables import MEMORY
from avmfs.store.store import Store
from avmfs.store.writer import split_commit
from avmfs.store.writer.split_commit import PART
from tests.contract.store_world import ALICE, BOB, WriterProcess, faults
from tests.small_disks import small_disk

MB = 1 << 20


def laid(edits: list[Any], size: int) -> bytes:
    found = bytearray(size)
    for edit in edits:
        if edit[0] == "w":
            found[edit[1] : edit[1] + len(edit[2])] = edit[2]
        else:
            del found[edit[1] :]
            found.extend(bytes(edit[1] - len(found)))
    return bytes(found)


def test_parts_come_to_the_same_as_the_whole() -> None:
    data = random.Random(1).randbytes(3 * PART)
    edits = [["t", 0], ["w", 0, data], ["w", 100, b"little"], ["t", 5 * PART], ["w", 4 * PART, data[: PART + 1]]]
    found = list(split_commit.parts(edits))
    assert len(found) == 5 and found[0][0] == ["t", 0]
    assert all(split_commit.size({"edits": part}) <= PART for part in found)
    assert laid(list(chain(*found)), 0) == laid(edits, 0)
    assert list(split_commit.parts([["t", 7]])) == [[["t", 7]]]
    assert list(split_commit.parts([])) == [[]]


@pytest.mark.parametrize("malformed", ["x", 7, [], ["w"], ["w", "0", b"x"], ["w", 0, "x"], None])
def test_malformed_edits_are_left_to_the_command(malformed: Any) -> None:
    assert list(split_commit.parts([malformed])) == [[malformed]]


@pytest.fixture
def emptied(tmp_path: Path) -> Iterator[WriterProcess]:
    """On a tmpfs of 20 MB that was filled, and all of it removed. Needs root."""
    with small_disk(tmp_path / "disk", "20m") as where:
        writer = WriterProcess(where / "avm.db", tmp_path / "clock", socket_path=tmp_path / "sock")
        try:
            fill_and_empty(writer)
            yield writer
        finally:
            writer.close()


def fill_and_empty(writer: WriterProcess) -> None:
    store, random_, names = writer.attach("*", patience_s=200), random.Random(3), []
    store.submit(ALICE, "enroll")
    with pytest.raises(NoSpace):
        for number in range(100):
            name = b"f%d" % number
            store.submit(ALICE, "write_path", path=[b"memory", name], data=random_.randbytes(300_000))
            names.append(name)
    assert len(names) > 40
    for name in names:
        store.submit(ALICE, "unlink", parent=MEMORY, name=name)
    while store.submit(OPERATOR, "reap_all_orphans")["more"]:
        pass
    store.close()


def made(store: Store, name: bytes) -> int:
    reply = store.submit(ALICE, "create", parent=MEMORY, name=name, mode=0o644, exclusive=True)
    return int(reply["node"])


def test_large_files_find_room_where_others_were(emptied: WriterProcess) -> None:
    store, random_ = emptied.attach("*", patience_s=200), random.Random(4)
    contents = {b"large": random_.randbytes(7 * MB), b"other": random_.randbytes(5 * MB)}
    for name, data in contents.items():
        edits = [["w", 0, data[: 4 * MB]], ["w", 4 * MB, data[4 * MB :]]]
        reply = store.submit(ALICE, "commit", node=made(store, name), handle=len(name), edits=edits, mtime=5)
        assert reply["size"] == len(data)
    with store.reading(ALICE) as reader:
        for name, data in contents.items():
            node = reader.child(MEMORY, name)
            assert node is not None and node.mtime == 5 and reader.read(node.id, 0, len(data) + 1) == data
    assert os.statvfs(emptied.database.parent).f_bavail * os.statvfs(emptied.database.parent).f_frsize > MB // 2
    store.close()
    emptied.close()
    assert database.integrity(emptied.database) == [] and faults(emptied.database, Policy()) == []


def test_what_does_not_fit_in_parts_either_is_refused_whole(emptied: WriterProcess) -> None:
    store = emptied.attach("*", patience_s=200)
    node = made(store, b"kept")
    store.submit(ALICE, "commit", node=node, handle=1, edits=[["w", 0, b"kept"]])
    with pytest.raises(NoSpace):
        store.submit(ALICE, "commit", node=node, handle=2, edits=[["w", 0, bytes(16 * MB)]])
    with store.reading(ALICE) as reader:
        assert reader.read(node, 0, 9) == b"kept"
    store.close()


def test_what_was_appended_meanwhile_comes_behind_all_parts(emptied: WriterProcess) -> None:
    store, data = emptied.attach("*", patience_s=200), random.Random(6).randbytes(3 * MB)
    node = made(store, b"log")
    before = time.time_ns()
    store.submit(BOB, "append", node=node, handle=2, data=b"line\n")
    reply = store.submit(ALICE, "commit", node=node, handle=1, edits=[["w", 0, data]], mtime=before, made=before)
    assert reply["behind"] == 5 and reply["size"] == len(data) + 5
    with store.reading(ALICE) as reader:
        assert reader.read(node, 0, len(data) + 9) == data + b"line\n"
    store.close()


def test_nobody_writes_in_parts_what_he_may_not_write(emptied: WriterProcess) -> None:
    store = emptied.attach("*", patience_s=200)
    store.submit(BOB, "enroll")
    store.submit(ALICE, "write_path", path=[b"memory", b"private", b"alice", b"mine"], data=b"mine")
    with store.reading(ALICE) as reader:
        parent = reader.child(MEMORY, b"private")
        assert parent is not None
        own = reader.child(parent.id, b"alice")
        assert own is not None
        node = reader.child(own.id, b"mine")
        assert node is not None
    with pytest.raises((Denied, FileNotFoundError)):
        store.submit(BOB, "commit", node=node.id, handle=1, edits=[["w", 0, bytes(3 * MB)]])
    with store.reading(ALICE) as reader:
        assert reader.read(node.id, 0, 9) == b"mine"
    store.close()


def test_a_request_that_was_answered_is_not_done_in_parts_again(emptied: WriterProcess) -> None:
    """Resent after its reply was lost: what came after it stays."""
    store = emptied.attach("*", patience_s=200)
    node, data = made(store, b"f"), random.Random(5).randbytes(3 * MB)
    client = cast(WriterClient, store._submitter)
    lane = client._lane(b"r" * 16)
    request = ["alice", False, "commit", {"node": node, "handle": 1, "edits": [["w", 0, data]]}]
    first = lane.call(request)
    store.submit(ALICE, "commit", node=node, handle=2, edits=[["w", 0, b"newer"]])
    again = client._lane(b"r" * 16)
    assert again.call(request) == first, "the same client and number"
    with store.reading(ALICE) as reader:
        assert reader.read(node, 0, 5) == b"newer"
        assert reader.read(node, 5, len(data)) == data[5:]
    lane.close()
    again.close()
    store.close()
