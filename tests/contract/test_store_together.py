"""What is remembered is right after commands of several agents that were committed together, of which some are told to
concern who remembers it, and the others are passed over."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from avmfs.store.notify.change_ring import Follower
from avmfs.store.schema.tables import MEMORY
from tests.contract.store_world import ALICE, BOB, World
from tests.contract.test_store_peek import _Actor, _compare


def _at_once(world: World, *steps: Callable[[], object]) -> None:
    """They wait for a writer that stands still, mostly in this order."""
    assert world.writer is not None and world.writer.process is not None
    threads = [threading.Thread(target=step) for step in steps]
    world.writer.process.send_signal(signal.SIGSTOP)
    try:
        for thread in threads:
            thread.start()
            time.sleep(0.001)  # what comes later than the last one's is in the next commit
    finally:
        world.writer.process.send_signal(signal.SIGCONT)
    for thread in threads:
        thread.join()


class _Crowd(_Actor):
    """Several commands at once."""

    def step(self) -> None:
        _at_once(self.world, *[super().step] * 6)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("share", [0.2, 0.05])
def test_quick_answers_are_right_after_commands_that_were_committed_together(
    tmp_path: Path, seed: int, share: float
) -> None:
    world = World(tmp_path, "attached")
    with contextlib.closing(world):
        actor = _Crowd(world, seed)
        assert world.writer is not None
        following = Follower(world.writer.address)
        following.take()
        together = False
        for number in range(200):
            actor.step()
            told = following.take()
            assert told is not None
            together |= any(len(list(record.concerning(-1, set(), set()))) > 2 for record in told)
            if together and number >= 4:  # a busy machine may send them one by one
                break
        assert together
        with contextlib.closing(world.writer.attach(clock=world.clock)) as other:
            _compare(world, other, actor, share, 1)


def test_a_file_that_comes_and_is_written_in_one_commit_is_known_as_it_was_written(
    tmp_path: Path, asked: list[object]
) -> None:
    """Who remembers that nothing had its name is concerned by what is written to it, once it has come; not by what is
    made beside where it was."""
    world = World(tmp_path, "attached")
    with contextlib.closing(world):
        assert world.writer is not None
        world.mkdir(ALICE, "/memory/elsewhere")
        elsewhere = world.node(ALICE, "/memory/elsewhere").id
        new: dict[str, Any] = {"parent": elsewhere, "mode": 0o644, "exclusive": True}
        following = Follower(world.writer.address)
        with contextlib.closing(world.writer.attach(clock=world.clock)) as other:
            for number in range(500):
                name = b"%d" % number
                file = world.do(ALICE, "create", name=name, **new)["node"]
                assert other.cached_child(ALICE, MEMORY, name) is None
                following.take()
                move = {"parent": elsewhere, "name": name, "new_parent": MEMORY, "new_name": name}
                edits = [["w", 0, b"text"]]
                _at_once(
                    world,
                    lambda: world.do(BOB, "create", name=b"beside %b" % name, **new),  # noqa: B023
                    lambda: world.do(ALICE, "rename", **move),  # noqa: B023
                    lambda: world.do(BOB, "commit", node=file, handle=None, edits=edits),  # noqa: B023
                )
                asked.clear()
                found = other.cached_child(ALICE, MEMORY, name)
                assert found is not None and (found.id, found.size) == (file, 4)
                told = [
                    [(MEMORY in part.numbers, file in part.numbers) for part in record.concerning(-1, set(), set())]
                    for record in following.take() or []
                ]
                if not asked and [(False, False), (True, True), (False, True)] in [parts[:3] for parts in told]:
                    break  # in one commit, in this order, and the writer's word was enough
            else:
                pytest.fail("never in one commit, in this order")
