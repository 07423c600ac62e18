"""Who is in the writer's next transaction: see ``avmfs.store.writer.scheduler``."""

from __future__ import annotations

from typing import Any

import pytest

from avmfs.store.writer.request import Request, parse
from avmfs.store.writer.scheduler import _UNFINISHED, AT_ONCE, MOST, MOST_BYTES, SHARE, Scheduler


def _request(command: str, **arguments: Any) -> Request:
    found = parse([1, None, False, command, arguments, "mount"])
    assert found is not None
    return found


def _commit(node: Any, data: bytes = b"x") -> Request:
    return _request("commit", node=node, edits=[["w", 0, data]])


def _scheduler(*waiting: tuple[str, Request]) -> Scheduler[str]:
    turns: Scheduler[str] = Scheduler(lambda request: request.command == "alone")
    for who, request in waiting:
        turns.add(who, request)
    return turns


def _names(turns: Scheduler[str]) -> list[str]:
    return [who for who, _ in turns.next()]


def test_the_oldest_come_first_and_nobody_twice() -> None:
    turns = _scheduler(*((f"{number}", _commit(number)) for number in range(5 * AT_ONCE)))
    seen: list[str] = []
    while turns:
        seen += _names(turns)
    assert seen == [f"{number}" for number in range(5 * AT_ONCE)]


def test_a_few_are_taken_together_and_of_many_a_part() -> None:
    few = _scheduler(*((f"{number}", _commit(number)) for number in range(AT_ONCE)))
    assert len(few.next()) == AT_ONCE and not few
    many = _scheduler(*((f"{number}", _commit(number)) for number in range(10 * AT_ONCE)))
    assert len(many.next()) == 10 * AT_ONCE // SHARE
    crowd = _scheduler(*((f"{number}", _commit(number)) for number in range(10 * MOST)))
    assert len(crowd.next()) == MOST


def test_who_has_had_a_file_made_does_not_queue_again_to_write_to_it() -> None:
    turns = _scheduler()
    turns.applied(_request("create"), {"node": 7, "new": True})
    for number in range(3 * AT_ONCE):
        turns.add(f"{number}", _commit(100 + number))
    turns.add("sets its mode", _request("set_attributes", node=7))
    turns.add("maker", _commit(7))
    assert _names(turns)[:2] == ["maker", "0"]
    turns.applied(_commit(7), {})
    turns.add("maker", _commit(7))
    while turns:
        last = _names(turns)[-1]
    assert last == "maker", "once: the next change of the file waits like any other"


def test_who_begins_a_note_comes_before_those_who_came_at_the_same_time() -> None:
    turns = _scheduler(*((f"{number}", _commit(number)) for number in range(3 * AT_ONCE)))
    turns.add("maker", _request("create", parent=1, name=b"new"))
    assert _names(turns)[0] == "maker"


def test_the_first_bytes_of_several_new_files_come_in_their_order() -> None:
    turns = _scheduler()
    for node in (7, 8, 9):
        turns.applied(_request("create"), {"node": node, "new": True})
    for number, node in enumerate((100, 8, 101, 9)):
        turns.add(f"{number}", _commit(node))
    turns.next()
    for number in range(2 * AT_ONCE):
        turns.add(f"then {number}", _commit(8 if number == 3 else 9 if number == 5 else 100 + number))
    assert _names(turns)[:3] == ["then 3", "then 5", "then 0"]


def test_files_that_never_get_their_bytes_are_forgotten() -> None:
    """Their makers were killed, or are content with an empty file."""

    def first(*nodes: int) -> str:
        for node in nodes:
            turns.add(f"{node}", _commit(node))
        return _names(turns)[0]

    turns = _scheduler()
    for node in range(_UNFINISHED):
        turns.applied(_request("create"), {"node": node, "new": True})
    others = [10**6 + number for number in range(AT_ONCE)]
    assert first(*others, 0) == "0"
    turns.applied(_request("create"), {"node": _UNFINISHED, "new": True})
    while turns:
        turns.next()
    assert first(*others, 1) == f"{others[0]}"
    while turns:
        turns.next()
    assert first(*others, _UNFINISHED) == f"{_UNFINISHED}"


def test_a_few_that_are_taken_together_are_in_the_order_of_coming() -> None:
    few = [(f"{number}", _commit(number)) for number in range(AT_ONCE - 1)] + [("maker", _request("create"))]
    assert _names(_scheduler(*few)) == [who for who, _ in few]
    assert _names(_scheduler(("one more", _commit(100)), *few))[0] == "maker"


def test_who_has_waited_for_longer_comes_before_all_who_begin_one() -> None:
    turns = _scheduler(*((f"{number}", _commit(number)) for number in range(3 * AT_ONCE)))
    first = _names(turns)
    for number in range(10 * AT_ONCE):  # however many
        turns.add("maker", _request("create", parent=1, name=b"%d" % number))
    waited: list[str] = []
    while len(first) + len(waited) < 3 * AT_ONCE:
        waited += _names(turns)
    assert "maker" not in (first + waited)[: 3 * AT_ONCE]


def test_a_crowd_that_waits_for_the_disk_keeps_nobody_waiting() -> None:
    turns = _scheduler(("writes", _commit(1)), *((f"{number}", _request("sync")) for number in range(3 * AT_ONCE)))
    assert _names(turns)[0] == "writes"


def test_what_has_to_be_alone_is() -> None:
    turns = _scheduler(("a", _commit(1)), ("b", _request("alone")), ("c", _commit(2)))
    assert [_names(turns), _names(turns), _names(turns)] == [["a"], ["b"], ["c"]]


def test_a_transaction_has_no_more_bytes_than_its_log_takes() -> None:
    half = MOST_BYTES // 2
    turns = _scheduler(("a", _commit(1, bytes(half))), ("b", _commit(2, bytes(half))), ("c", _commit(3)))
    assert [_names(turns), _names(turns)] == [["a", "b"], ["c"]]
    turns = _scheduler(("a", _commit(1, bytes(2 * MOST_BYTES))), ("b", _commit(2)))
    assert _names(turns) == ["a"], "one larger than all is taken, by itself"


def test_what_finishes_something_still_comes_into_a_transaction() -> None:
    turns = _scheduler(("a", _commit(1)), ("b", _commit(2)))
    turns.applied(_request("create"), {"node": 7, "new": True})
    assert _names(turns) == ["a", "b"]
    for who, request in (("c", _commit(3)), ("maker", _commit(7)), ("closes", _request("sync"))):
        turns.add(who, request)
    assert [who for who, _ in turns.late()] == ["maker", "closes"]
    assert turns.late() == [] and _names(turns) == ["c"]


def test_what_comes_late_has_to_fit() -> None:
    turns = _scheduler(("a", _commit(1, bytes(MOST_BYTES - 10))), ("b", _commit(2)))
    turns.applied(_request("create"), {"node": 7, "new": True})
    assert _names(turns) == ["a", "b"]
    turns.add("maker", _commit(7, bytes(20)))
    assert turns.late() == [] and _names(turns) == ["maker"]


def test_what_is_late_keeps_its_order_and_so_does_what_stays() -> None:
    turns = _scheduler(("a", _commit(1)), ("b", _commit(2)))
    for node in (7, 8):
        turns.applied(_request("create"), {"node": node, "new": True})
    turns.next()
    for who, request in (("c", _commit(3)), ("x", _commit(8)), ("d", _commit(4)), ("y", _commit(7))):
        turns.add(who, request)
    assert [who for who, _ in turns.late()] == ["x", "y"]
    assert _names(turns) == ["c", "d"]


def test_into_one_that_is_alone_nothing_comes_late() -> None:
    turns = _scheduler(("a", _request("alone")), ("b", _commit(2)))
    turns.applied(_request("create"), {"node": 7, "new": True})
    assert _names(turns) == ["a"]
    turns.add("maker", _commit(7))
    turns.add("empty", _commit(8, b""))
    assert turns.late() == turns.late(everybody=True) == []


def test_where_everybody_may_be_late_all_come_that_fit_and_need_not_be_alone() -> None:
    turns = _scheduler(("a", _commit(1)))
    assert _names(turns) == ["a"]
    for who, request in (("b", _commit(2)), ("c", _request("alone")), ("d", _commit(3, bytes(MOST_BYTES)))):
        turns.add(who, request)
    turns.add("e", _commit(4))
    assert [who for who, _ in turns.late(everybody=True)] == ["b", "e"]
    assert [_names(turns), _names(turns)] == [["c"], ["d"]]
    crowd = _scheduler(*((f"{number}", _commit(number)) for number in range(3 * MOST)))
    crowd.next()
    assert len(crowd.late(everybody=True)) == MOST


@pytest.mark.parametrize("arguments", [None, [], {"node": []}, {"node": {}}, {}])
def test_a_malformed_request_is_somebody_elses_to_refuse(arguments: Any) -> None:
    request = parse([1, None, False, "commit", arguments])
    assert request is not None and request.route == ""
    turns = _scheduler(*((f"{number}", request) for number in range(AT_ONCE + 2)))
    assert len(turns.next()) == AT_ONCE


@pytest.mark.parametrize(
    "item", [None, {}, [], [1, None, False, "sync"], ["1", None, False, "sync", {}], [1, None, False, "sync", {}, 7]]
)
def test_what_is_no_request_is_none(item: Any) -> None:
    assert parse(item) is None


def test_a_request_knows_what_its_command_is() -> None:
    assert _request("sync").traits.only_syncs and _commit(1).traits.fills_file and _request("create").traits.begins_file
    for command, arguments in ((None, {}), (7, {}), ("sync", None), ("sync", [])):
        found = parse([1, None, False, command, arguments])
        assert found is not None and found.command == "" and found.arguments == {} and not found.traits.only_syncs
