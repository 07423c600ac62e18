"""A memory of bounded size."""

from __future__ import annotations

import random
from collections import OrderedDict

from avmfs.bounded import Bounded


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    memory: Bounded[str, int] = Bounded(3)
    for number, key in enumerate("abc"):
        memory.put(key, number)
    assert memory.get("a") == 0 and memory.get("unknown") is None
    memory.put("d", 3)
    assert [key in memory for key in "abcd"] == [True, False, True, True]
    memory.put("c", 4)  # asked for, and another value
    memory.put("e", 5)
    assert [memory.get(key) for key in "acde"] == [None, 4, 3, 5] and len(memory) == memory.size == 3


def test_sizes_count_and_what_is_too_large_alone_drives_nothing_out() -> None:
    memory: Bounded[int, bytes] = Bounded(10, len)
    memory.put(1, b"1234")
    memory.put(2, b"123456")
    memory.put(3, b"x" * 11)
    assert 3 not in memory and (memory.get(1), memory.get(2), memory.size) == (b"1234", b"123456", 10)
    memory.put(2, b"x" * 11)
    assert 2 not in memory and memory.size == 4, "what stood there is no longer so"
    memory.put(1, b"12345")
    memory.put(4, b"1234567890")
    assert 1 not in memory and memory.size == 10
    memory.put(5, b"")
    assert 4 in memory and 5 in memory


def test_whoever_wants_hears_of_everything_that_goes() -> None:
    gone: list[str] = []
    memory: Bounded[int, str] = Bounded(2, gone=gone.append)
    memory.put(1, "replaced")
    memory.put(1, "dropped")
    memory.put(2, "driven out")
    memory.drop(1)
    memory.drop(1)
    memory.put(3, "three")
    memory.put(4, "four")
    assert gone == ["replaced", "dropped", "driven out"]
    memory.clear()
    assert gone == ["replaced", "dropped", "driven out"] and len(memory) == memory.size == 0


def test_it_remembers_what_a_plain_dictionary_with_the_same_rules_would() -> None:
    chance = random.Random(1)
    memory: Bounded[int, bytes] = Bounded(50, len)
    plain: OrderedDict[int, bytes] = OrderedDict()
    for _ in range(3000):
        key, data = chance.randrange(12), bytes(chance.randrange(25))
        match chance.randrange(4):
            case 0:
                assert memory.get(key) == plain.get(key)
                if key in plain:
                    plain.move_to_end(key)
            case 1:
                memory.drop(key)
                plain.pop(key, None)
            case _:
                memory.put(key, data)
                plain.pop(key, None)
                plain[key] = data
                while sum(map(len, plain.values())) > 50:
                    plain.popitem(last=False)
        assert {key for key in range(12) if key in memory} == plain.keys()
        assert memory.size == sum(map(len, plain.values())) and len(memory) == len(plain)
