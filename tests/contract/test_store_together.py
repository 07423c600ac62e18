"""What is remembered is right after commands of several agents that were committed together, of which some are told to
concern who remembers it, and the others are passed over."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from pathlib import Path

import pytest

from avmfs.store.notify.change_ring import Follower
from tests.contract.store_world import World
from tests.contract.test_store_peek import _Actor, _compare


class _Crowd(_Actor):
    """Several commands at once, which wait for a writer that stands still."""

    def step(self) -> None:
        assert self.world.writer is not None and self.world.writer.process is not None
        one = super().step
        threads = [threading.Thread(target=one) for _ in range(6)]
        self.world.writer.process.send_signal(signal.SIGSTOP)
        try:
            for thread in threads:
                thread.start()
            time.sleep(0.005)  # what comes later is in the next commit
        finally:
            self.world.writer.process.send_signal(signal.SIGCONT)
        for thread in threads:
            thread.join()


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
