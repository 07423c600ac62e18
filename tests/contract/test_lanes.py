"""Work that a successor repeats: what a killed process had submitted is applied once and answered as the first time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from avmfs import handover
from avmfs.errors import Exists
from avmfs.handover import HandoverState
from avmfs.store.client.client import WriterClient
from avmfs.store.client.inflight import COMMIT, REQUEST
from avmfs.store.identity import proof
from avmfs.store.schema.tables import SHARED
from tests.contract.store_world import ALICE, WriterProcess


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[WriterProcess]:
    writer = WriterProcess(tmp_path / "avm.db", tmp_path / "clock", socket_path=tmp_path / "w.sock")
    yield writer
    for begun in reversed(_BEGUN):
        begun.__exit__(None, None, None)
    for client in _CLIENTS:
        client.close()
    _BEGUN.clear()
    _CLIENTS.clear()
    writer.close()


_BEGUN: list[AbstractContextManager[None]] = []
_CLIENTS: list[WriterClient] = []


def process(writer: WriterProcess, memory: HandoverState) -> WriterClient:
    """A mount's client. A killed one is simply not asked any more: its work never ends."""
    client = WriterClient(writer.address, ALICE.name, proof(writer.key, ALICE.name))
    client.keep(handover.reopen(memory.tables, memory.log_file), b"12345678")
    _CLIENTS.append(client)
    return client


def create(client: WriterClient, name: str) -> Any:
    arguments = {"parent": SHARED, "name": name.encode(), "mode": 0o644, "exclusive": True, "uid": None, "gid": None}
    return client.submit(ALICE, "create", arguments)["node"]


def begin(client: WriterClient, kind: int, key: int) -> None:
    _BEGUN.append(client.once(kind, key))
    _BEGUN[-1].__enter__()


def test_a_repeated_submission_gets_its_first_answer(writer: WriterProcess) -> None:
    memory = handover.make()
    first = process(writer, memory)
    begin(first, REQUEST, 42)
    made = create(first, "a"), create(first, "b")
    second = process(writer, memory)
    assert second.left(REQUEST, 42) and not second.left(REQUEST, 43) and not second.left(COMMIT, 42)
    with second.once(REQUEST, 42):
        assert (create(second, "a"), create(second, "b")) == made
        third = create(second, "c")
    assert not second.left(REQUEST, 42) and third not in made
    with second.once(REQUEST, 42), pytest.raises(Exists):
        create(second, "a")


def test_what_need_not_be_done_again_leaves_its_answer_to_nobody_else(writer: WriterProcess) -> None:
    """Work may no longer find to do what it began with, and may then need more than before."""
    memory = handover.make()
    first = process(writer, memory)
    begin(first, REQUEST, 41)
    other = create(first, "other")
    begin(first, REQUEST, 42)
    first.submit(ALICE, "set_attributes", {"node": other, "mode": 0o600})
    made = create(first, "a")
    second = process(writer, memory)
    with second.once(REQUEST, 41):
        assert create(second, "other") == other
    begin(second, REQUEST, 42)
    assert create(second, "a") == made
    more = create(second, "b")  # over the lane that is free by now
    third = process(writer, memory)
    with third.once(REQUEST, 42):
        assert (create(third, "a"), create(third, "b")) == (made, more)
        with pytest.raises(Exists):
            create(third, "b")


def test_what_was_noted_and_never_sent_is_applied(writer: WriterProcess) -> None:
    memory = handover.make()
    first = process(writer, memory)
    begin(first, REQUEST, 1)
    writer.stop()
    first._patience = 0.0
    with pytest.raises(OSError):
        create(first, "a")
    writer.start()
    second = process(writer, memory)
    with second.once(REQUEST, 1):
        create(second, "a")


def test_a_successor_of_a_successor_repeats_it_too(writer: WriterProcess) -> None:
    memory = handover.make()
    clients = [process(writer, memory)]
    begin(clients[0], REQUEST, 5)
    made = create(clients[0], "a")
    for _ in range(3):
        clients.append(process(writer, memory))
        begin(clients[-1], REQUEST, 5)
        assert create(clients[-1], "a") == made


def test_work_inside_other_work_is_its_own(writer: WriterProcess) -> None:
    memory = handover.make()
    first = process(writer, memory)
    begin(first, REQUEST, 7)
    with first.once(COMMIT, 9):
        create(first, "done")
    begin(first, COMMIT, 10)
    inner = create(first, "inner")
    second = process(writer, memory)
    assert not second.left(COMMIT, 9) and not second.left(REQUEST, 7)
    with second.once(REQUEST, 8), second.once(COMMIT, 10):
        assert create(second, "inner") == inner


def test_work_that_is_done_is_left_to_nobody(writer: WriterProcess) -> None:
    """Or the next commit of the same file would be answered with this one's answer."""
    memory = handover.make()
    first = process(writer, memory)
    with first.once(COMMIT, 9):
        made = create(first, "a")
    second = process(writer, memory)
    assert not second.left(COMMIT, 9)
    with second.once(COMMIT, 9):
        assert not second.repeats() and create(second, "b") != made


def test_work_that_nobody_takes_up_gives_its_lanes_back(writer: WriterProcess) -> None:
    memory = handover.make()
    first = process(writer, memory)
    for key in range(20):
        begin(first, REQUEST, key)
        create(first, f"n{key}")
    second = process(writer, memory)
    second.settle(REQUEST, {3})
    assert [key for key in range(20) if second.left(REQUEST, key)] == [3]
    for key in range(100, 140):
        with second.once(REQUEST, key):
            create(second, f"m{key}")
    assert len(list(handover.reopen(memory.tables, memory.log_file).lanes.used())) == 20


def test_commands_that_may_be_left_out_are_not_counted(writer: WriterProcess) -> None:
    memory = handover.make()
    first = process(writer, memory)
    begin(first, REQUEST, 1)
    first.submit(ALICE, "enroll", {})
    assert not list(handover.reopen(memory.tables, memory.log_file).lanes.used()), "nor noted"
    made = create(first, "a")
    second = process(writer, memory)
    with second.once(REQUEST, 1):
        assert create(second, "a") == made
