"""Memory that outlives its process: what is in it after SIGKILL at any moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from avmfs import handover
from avmfs.errors import Invalid, OverQuota
from avmfs.handover import HandoverState


def reopened(made: HandoverState) -> HandoverState:
    return handover.reopen(made.tables, made.log_file)


def test_a_successor_finds_rows_and_values() -> None:
    made = handover.make()
    assert made.fresh
    row = made.handles.take()
    made.handles.write(row, 7, 1, 2, 1 << 63, 4)
    made.log.add(b"k", b"one")
    made.log.add(b"k", b"tw", b"o")
    made.set_fact(3, 99)
    other = reopened(made)
    assert not other.fresh and other.fact(3) == 99
    assert [(row, words[:5]) for row, words in other.handles.used()] == [(row, [7, 1, 2, 1 << 63, 4])]
    assert other.log.values(b"k") == [b"one", b"two"] and list(other.lanes.used()) == []


def test_a_row_that_was_taken_and_not_written_is_free_for_the_successor() -> None:
    made = handover.make()
    first, second = made.handles.take(), made.handles.take()
    made.handles.write(second, 1)
    assert reopened(made).handles.take() == first


def test_freed_rows_are_given_again() -> None:
    made = handover.make()
    row = made.nodes.take()
    made.nodes.write(row, 1)
    made.nodes.free(row)
    assert made.nodes.take() == row
    assert list(reopened(made).nodes.used()) == []


def test_there_is_an_end_of_rows() -> None:
    made = handover.make()
    rows = [made.lanes.take() for _ in range(handover.AREAS["lanes"])]
    assert len(set(rows)) == len(rows)
    with pytest.raises(OverQuota):
        made.lanes.take()


def test_dropped_values_are_gone_and_others_stay() -> None:
    made = handover.make()
    made.log.add(b"a", b"1")
    made.log.add(b"b", b"2")
    made.log.drop(b"a")
    made.log.drop(b"never")
    assert reopened(made).log.all_keys() == [b"b"]
    made.log.drop(b"b")
    made.log.add(b"c", b"3")
    assert {key: reopened(made).log.values(key) for key in reopened(made).log.all_keys()} == {b"c": [b"3"]}


def test_room_is_bounded_by_what_is_live() -> None:
    made = handover.make()
    made.log.add(b"stays", b"x" * 100)
    for number in range(3000):
        made.log.add(b"%d" % number, b"y" * 10_000)
        made.log.drop(b"%d" % number)
    assert os.fstat(made.log_file).st_size <= 16 << 20
    assert reopened(made).log.values(b"stays") == [b"x" * 100] and reopened(made).log.all_keys() == [b"stays"]


def test_room_is_refused_only_where_what_is_live_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "MOST", 64 << 20)
    made, mib = handover.make(), bytes(1 << 20)
    for number in range(16):
        made.log.add(b"stays %d" % number, mib)
    for _ in range(100):
        made.log.add(b"goes", mib)
        made.log.drop(b"goes")
    assert os.fstat(made.log_file).st_size <= 128 << 20
    for number in range(100):
        try:
            made.log.add(b"more %d" % number, mib)
        except OverQuota:
            break
    assert number == 47
    made.log.add(b"more 0", b"void", alone=True)  # nothing that lets go is refused
    made.log.drop(b"more 1")
    made.log.add(b"more 1", mib)
    found = reopened(made).log
    assert found.values(b"more 0") == [b"void"] and found.values(b"more 1") == found.values(b"stays 9") == [mib]


def test_the_log_does_what_a_dictionary_does() -> None:
    chance = random.Random(5)
    made, model = handover.make(), dict[bytes, list[bytes]]()
    for _ in range(20_000):
        key = b"%d" % chance.randrange(40)
        if chance.random() < 0.7:
            value = chance.randbytes(chance.choice((0, 3, 200, 5000)))
            alone = chance.random() < 0.2
            made.log.add(key, value, alone=alone)
            model[key] = [value] if alone else [*model.get(key, []), value]
        else:
            made.log.drop(key)
            model.pop(key, None)
        if chance.random() < 0.001:
            made = reopened(made)
    assert {key: made.log.values(key) for key in made.log.all_keys()} == model


def test_another_layout_is_refused() -> None:
    made = handover.make()
    os.pwrite(made.tables, b"another!", 0)
    with pytest.raises(Invalid):
        reopened(made)


WORK = """
import os, sys
from avmfs import handover
made = handover.reopen(int(sys.argv[1]), int(sys.argv[2]))
number = made.fact(0)
while True:
    number += 1
    key = b"%d" % (number % 50)
    made.log.drop(key)
    for part in range(3):
        made.log.add(key, b"%d %d " % (number, part), b"x" * (number % 3000))
    row = made.handles.take()
    made.handles.write(row, 1, number, number, number)
    if number % 3:
        made.handles.free(row)
    for row, words in list(made.handles.used())[:-20]:
        made.handles.free(row)
    made.set_fact(0, number)
"""


@pytest.mark.slow
def test_nothing_is_torn_by_kill_9() -> None:
    made = handover.make()
    chance = random.Random(3)
    for _ in range(25):
        process = subprocess.Popen(
            [sys.executable, "-c", WORK, str(made.tables), str(made.log_file)],
            pass_fds=[made.tables, made.log_file],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        before = reopened(made).fact(0)
        while reopened(made).fact(0) == before:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.wait(300)
        found = reopened(made)
        done = found.fact(0)
        for number in range(max(1, done - 40), done + 1):
            values = found.log.values(b"%d" % (number % 50))
            assert values == [b"%d %d " % (number, part) + b"x" * (number % 3000) for part in range(3)]
        assert all(words[1] == words[2] == words[3] for _, words in found.handles.used())


def test_others_can_look_at_rows_without_taking_them_over() -> None:
    made = handover.make()
    assert list(handover.look(made.tables, "handles", 1)) == []
    for number in range(3):
        made.handles.write(made.handles.take(), 7, 10 + number, 20 + number)
    made.nodes.write(made.nodes.take(), 5, 99)
    made.handles.free(1)
    assert list(handover.look(made.tables, "handles", 1)) == [(7, 10), (0, 11), (7, 12)]
    assert list(handover.look(made.tables, "handles", 2)) == [(7, 20), (0, 21), (7, 22)]
    assert list(handover.look(made.tables, "nodes", 1)) == [(5, 99)] and not list(
        handover.look(made.tables, "lanes", 1)
    )


def test_nobody_looks_at_what_another_version_has_kept() -> None:
    made = handover.make()
    with pytest.raises(Invalid, match="another version"):
        handover.look(made.log_file, "handles", 1)
    os.pwrite(made.tables, b"avm?????", 0)
    with pytest.raises(Invalid, match="another version"):
        handover.look(made.tables, "handles", 1)
