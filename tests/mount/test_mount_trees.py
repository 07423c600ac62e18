"""Several change trees through two mounts while others walk them, and the mounts are killed meanwhile: every step has
happened, on every mount, when it has returned.

A few seconds by default; AVM_TREE_S=300 makes it the long one, AVM_TREE_SEED another one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from tests.mount.mount_world import LIMIT_S, Place, World, linux_only, running

SECONDS = float(os.environ.get("AVM_TREE_S", "6"))
SEED = os.environ.get("AVM_TREE_SEED", "1")
HANGS_AFTER_S = 500 + 2 * SECONDS
KILL_EVERY_S = 0.4

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600 + 2 * SECONDS)]

_WALKER = """
import errno, os, random, sys
top = sys.argv[1]
while True:
    for directory, inner, files in os.walk(top):
        for name in inner + files:
            try:
                os.lstat(f"{directory}/{name}")
                if random.random() < 0.2:
                    open(f"{directory}/{name}").close()
            except OSError as e:
                if e.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
                    raise
"""


@linux_only("libfuse asks by path, and its kernel keeps what another mount has changed for a second")
@pytest.mark.parametrize("killed", [False, True])
def test_every_step_on_a_tree_is_seen_on_every_mount(world: World, place: Place, killed: bool) -> None:
    tops = [place.alice, place.bob]
    with ExitStack() as stack:
        walkers = [stack.enter_context(running(_WALKER, top)) for top in tops]
        workers = []
        for name, each in (("A", tops), ("B", tops), ("C", tops[::-1])):
            workers.append(stack.enter_context(_working(each, name)))
            stack.callback(workers[-1].kill)
        end, kills = time.monotonic() + SECONDS, 0
        while any(worker.poll() is None for worker in workers):
            assert time.monotonic() < end + LIMIT_S, "a worker hangs"
            if killed and (time.monotonic() < end or kills < SECONDS):  # then they get on on a busy machine too
                kills += _kill_mounts(world)
            time.sleep(KILL_EVERY_S)
        assert (kills >= SECONDS) == killed
        for worker in workers:
            said, error = worker.communicate(timeout=LIMIT_S)
            assert worker.returncode == 0, error
            assert int(said.split()[0]) > 20 * SECONDS, said
        assert [walker.poll() for walker in walkers] == [None, None], "a walker has met an error"


def _working(tops: list[Path], name: str) -> Popen[str]:
    program = Path(__file__).with_name("tree_worker.py")
    return Popen(
        [sys.executable, program, ":".join(map(str, tops)), name, SEED, str(SECONDS)],
        stdout=PIPE,
        stderr=PIPE,
        text=True,
    )


def _kill_mounts(world: World) -> int:
    """How many processes were killed."""
    found, kills = world.status(), 0
    world.note_pids()
    for mount in found["mounts"] if found is not None else ():
        if mount["pid"] in world.left():
            world.expected.append("ended: killed by SIGKILL")
            os.kill(mount["pid"], signal.SIGKILL)
            kills += 1
    return kills
