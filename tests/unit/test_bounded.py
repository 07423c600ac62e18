"""A memory of bounded size."""

from __future__ import annotations

import random
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from avmfs.lru import FIFO, LRU


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    memory: LRU[str, int] = LRU(3)
    for number, key in enumerate("abc"):
        memory.put(key, number)
    assert memory.get("a") == 0 and memory.get("unknown") is None
    memory.put("d", 3)
    assert [key in memory for key in "abcd"] == [True, False, True, True]
    memory.put("c", 4)  # asked for, and another value
    memory.put("e", 5)
    assert [memory.get(key) for key in "acde"] == [None, 4, 3, 5] and len(memory) == memory.size == 3


def test_sizes_count_and_what_is_too_large_alone_drives_nothing_out() -> None:
    memory: LRU[int, bytes] = LRU(10, len)
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
    memory: LRU[int, str] = LRU(2, gone=gone.append)
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
    memory: LRU[int, bytes] = LRU(50, len)
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


def test_of_a_fifo_those_that_came_first_go_and_lookups_change_nothing() -> None:
    memory: FIFO[int, int] = FIFO(16)
    for number in range(16):
        memory.put(number, number)
    assert memory.get(0) == 0 and len(memory) == 16
    memory.put(0, 100)
    assert memory[0] == 100 and len(memory) == 16, "nobody has to go for what stands there already"
    memory.put(16, 16)
    assert sorted(memory) == [*range(3, 17)], "an eighth and one"


def test_a_fifo_is_never_larger_than_it_may_be() -> None:
    for most in (1, 2, 7, 8, 9, 100):
        memory: FIFO[int, int] = FIFO(most)
        for number in range(5 * most):
            memory.put(number, number)
            assert len(memory) <= most and memory[number] == number


def test_threads_may_put_into_a_fifo_at_once() -> None:
    memory: FIFO[int, int] = FIFO(8)

    def fill(first: int) -> None:
        for number in range(first, first + 20_000):
            memory.put(number, number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(fill, range(0, 80_000, 20_000)))
    assert len(memory) <= 8 + 4, "each thread may have put one after it had looked"
