"""Which lane and number a submission uses, what is noted of it, and what a successor makes of that."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

from avmfs import handover
from avmfs.store.client.inflight import COMMIT, REQUEST, InFlight

_IDLE, _BUSY = 1, 2  # of a row: noted by one version, read by the next


class Writer:
    """Answers a number of a client that it has answered before with what it said then."""

    def __init__(self) -> None:
        self.memory = handover.make()
        self.answered: dict[bytes, tuple[int, str]] = {}
        self.open: list[bytes] = []
        self.applied: list[str] = []
        self.noted: list[int] = []  # in the row of the last submission, as it was sent

    def process(self) -> InFlight:
        """One that takes over from those before, which are not asked any more."""
        lanes = handover.reopen(self.memory.tables, self.memory.log_file).lanes
        return InFlight(lanes, lambda client: Lane(self, client))

    def rows(self) -> list[list[int]]:
        return [words for _, words in self.memory.lanes.used()]


class Lane:
    def __init__(self, writer: Writer, client: bytes) -> None:
        assert len(client) == 16
        self.writer, self.client = writer, client
        writer.open.append(client)

    def call(self, request: list[Any], number: int) -> str:
        said = f"{request[2]} {request[3]}"
        self.writer.noted = next(row for row in self.writer.rows() if client(row) == self.client)
        last, reply = self.writer.answered.get(self.client, (0, ""))
        assert number >= last, "overtaken"
        if number > last:
            self.writer.applied.append(said)
            reply = f"{said}: {len(self.writer.applied)}"
            self.writer.answered[self.client] = number, reply
        return reply

    def close(self) -> None:
        self.writer.open.remove(self.client)


def client(row: list[int]) -> bytes:
    return row[1].to_bytes(8) + row[2].to_bytes(8)


@pytest.fixture
def writer() -> Iterator[Writer]:
    made = Writer()
    yield made
    os.close(made.memory.tables)
    os.close(made.memory.log_file)


def ask(process: InFlight, what: str, command: str = "create") -> Any:
    return process.call([None, False, command, what])


def killed(process: InFlight, kind: int, key: int, *asked: str) -> list[Any]:
    """Work that submits and does not end."""
    process.once(kind, key).__enter__()
    return [ask(process, *each.split()) for each in asked]


def test_what_is_noted_of_a_submission_before_it_is_sent(writer: Writer) -> None:
    process = writer.process()
    with process.once(REQUEST, 42):
        for count, command in enumerate(("create", "append")):
            ask(process, "a", command)
            state, _, _, number, *work = writer.noted
            assert (state, number, work) == (_BUSY, 1, [REQUEST, 42, count, zlib.crc32(command.encode())])
            assert client(writer.noted) == writer.open[-1]
    assert [row[0] for row in writer.rows()] == [_IDLE, _IDLE]
    with process.once(COMMIT, 7):
        ask(process, "b")
    assert writer.noted[3:] == [2, COMMIT, 7, 0, zlib.crc32(b"create")], "the next number of a lane that was free"
    assert len(writer.rows()) == len(writer.open) == 2
    process.close()
    assert writer.open == []
    after = writer.process()
    with after.once(REQUEST, 1):
        ask(after, "c"), ask(after, "d")
    assert sorted(row[3] for row in writer.rows()) == [2, 3], "its lanes are those that were there"


def test_submissions_are_repeated_in_their_order_whichever_lanes_they_took(writer: Writer) -> None:
    first = writer.process()
    with first.once(REQUEST, 1):
        ask(first, "x"), ask(first, "y")
    said = killed(first, REQUEST, 2, "a", "b")  # of the two lanes the one that was used last comes first
    assert [row[6] for row in writer.rows()] == [1, 0]
    for _ in range(2):
        process = writer.process()
        assert process.left(REQUEST, 2) and not process.left(COMMIT, 2) and not process.left(REQUEST, 1)
        assert killed(process, REQUEST, 2, "a", "b") == said
    last = writer.process()
    with last.once(REQUEST, 2):
        assert last.repeats()
        assert [ask(last, "a"), ask(last, "b")] == said and not last.repeats()
        assert ask(last, "b") not in said
        assert writer.noted[6] == 2, "the third"
    assert not last.left(REQUEST, 2) and {row[0] for row in writer.rows()} == {_IDLE}


def test_a_submission_is_taken_for_one_of_the_same_command(writer: Writer) -> None:
    first = writer.process()
    said = killed(first, REQUEST, 1, "a mkdir", "b create", "c create")
    second = writer.process()
    second.once(REQUEST, 1).__enter__()
    assert ask(second, "b") == said[1], "the first need not be done any more"
    assert ask(second, "new", "append") not in said
    assert writer.noted[6] == 2, "it follows what was repeated"
    assert ask(second, "c") == said[2]
    assert ask(second, "d") not in said and writer.noted[6] == 4


def test_a_version_that_did_not_note_the_command_is_repeated_in_order(writer: Writer) -> None:
    said = killed(writer.process(), REQUEST, 1, "a mkdir", "b")
    for row, _ in writer.memory.lanes.used():
        writer.memory.lanes.set(row, 7, 0)
    second = writer.process()
    with second.once(REQUEST, 1):
        assert [ask(second, "a", "mkdir"), ask(second, "b")] == said


def test_work_that_ends_early_gives_back_what_it_did_not_repeat(writer: Writer) -> None:
    killed(writer.process(), REQUEST, 1, "a", "b")
    second = writer.process()
    with second.once(REQUEST, 1):
        ask(second, "a")
    assert not second.left(REQUEST, 1) and {row[0] for row in writer.rows()} == {_IDLE}
    with second.once(REQUEST, 2):
        ask(second, "c"), ask(second, "d")
    assert writer.applied == ["create a", "create b", "create c", "create d"] and len(writer.rows()) == 2


def test_work_of_one_kind_that_nobody_takes_up_is_settled(writer: Writer) -> None:
    first = writer.process()
    for kind, key in ((REQUEST, 1), (REQUEST, 2), (COMMIT, 1), (COMMIT, 2)):
        killed(first, kind, key, f"{kind}-{key}")
    second = writer.process()
    second.settle(REQUEST, {2})
    there = {(kind, key) for kind in (REQUEST, COMMIT) for key in (1, 2) if second.left(kind, key)}
    assert there == {(REQUEST, 2), (COMMIT, 1), (COMMIT, 2)}
    assert [row[0] for row in writer.rows()] == [_IDLE, _BUSY, _BUSY, _BUSY]
    second.close()
    assert len(writer.open) == 4, "of the first process, which was killed"


def test_who_is_not_within_work_repeats_nothing_and_work_inside_other_work_is_its_own(writer: Writer) -> None:
    killed(writer.process(), COMMIT, 9, "inner")
    process = writer.process()
    assert not process.counts("create") and not process.repeats()
    with process.once(REQUEST, 8):
        assert process.counts("create") and not process.counts("enroll"), "which may be left out"
        assert not process.repeats()
        with process.once(COMMIT, 9):
            assert process.repeats()
        assert not process.repeats() and process.counts("create")
        ask(process, "outer")
        assert writer.noted[4:7] == [REQUEST, 8, 0]
    assert not process.counts("create")
