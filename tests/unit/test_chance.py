"""Numbers that nobody can guess: never the same twice, in no thread and no process."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from avmfs.store.tx import random_ids


@pytest.mark.slow
def test_threads_share_no_bytes() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: random_ids.eight(), range(20_000)))
    assert {len(each) for each in found} == {8}
    assert len(set(found)) == len(found)


def test_a_forked_process_draws_its_own() -> None:
    random_ids.eight()  # so that some are left over
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"".join(random_ids.eight() for _ in range(300)))
        os._exit(0)
    theirs = os.read(reading, 300 * 8)
    os.waitpid(child, 0)
    os.close(reading)
    os.close(writing)
    drawn = {theirs[at : at + 8] for at in range(0, len(theirs), 8)}
    assert len(drawn) == 300
    assert drawn.isdisjoint(random_ids.eight() for _ in range(300))


@pytest.mark.parametrize("bits", [1, 20, 63])
def test_a_number_has_so_many_bits(bits: int) -> None:
    found = [random_ids.number(bits) for _ in range(300)]
    assert all(0 <= each < 1 << bits for each in found)
    assert max(found).bit_length() == bits
