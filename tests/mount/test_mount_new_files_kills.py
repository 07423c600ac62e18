"""New files whose mount, or whose everything, is killed between open(2) and close(2): whoever holds one goes on with
it, and what close() has returned is there.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from mount_world import LIMIT_S, Place, World, cat, until
from new_file_steps import NEW, created

pytestmark = pytest.mark.mount

linux_only = pytest.mark.skipif(
    os.environ.get("AVM_FRONT_END") == "portable", reason="a mount of libfuse has no successor"
)
FLAGS = (NEW | os.O_TRUNC, NEW, NEW | os.O_EXCL)


def _pid(world: World, agent: str) -> int | None:
    """Of the process behind a mount. Starts no program: that would close, and so flush, a copy of each descriptor."""
    world.note_pids()
    for pid in world.left():
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/comm").read_text() == f"avm {agent}\n":
                return pid
    return None


def _kill_mount(world: World, agent: str) -> None:
    """kill -9 of the process behind a mount; returns once there is another."""
    old = until(lambda: _pid(world, agent))
    os.kill(old, signal.SIGKILL)
    until(lambda: _pid(world, agent) not in (old, None), every_s=0.005)


@linux_only
def test_the_same_descriptors_go_on_after_a_kill(world: World, place: Place) -> None:
    stages = (b"", b"first ", b"x" * 70_000)
    for number in range(20):
        flags = FLAGS[number % 3]
        opened_now: dict[str, tuple[int, bytes]] = {}
        for stage in range(3):
            data = stages[(stage + number) % 3]  # a kill follows at once on an open, or on a write
            name = f"f{number}-{stage}"
            opened_now[name] = os.open(place.alice / name, flags), data
            if data:
                os.write(opened_now[name][0], data)
        numbers = {name: os.fstat(descriptor).st_ino for name, (descriptor, _) in opened_now.items() if number % 2}
        _kill_mount(world, "alice")
        for name, (descriptor, _) in opened_now.items():
            os.write(descriptor, b"last")
            if name.endswith("1"):
                _kill_mount(world, "alice")
        for name, (descriptor, data) in opened_now.items():
            assert os.fstat(descriptor).st_nlink == 1
            os.close(descriptor)
            assert (place.bob / name).read_bytes() == data + b"last"
            assert (place.alice / name).stat().st_ino == numbers.get(name, (place.bob / name).stat().st_ino)
            assert cat(place.bob / f"{name}:history").count("\n") == 1
    assert len(os.listdir(place.bob)) == 60


@linux_only
def test_whoever_makes_files_notices_no_kill(world: World, place: Place) -> None:
    over = threading.Event()

    def make() -> list[bytes]:
        made: list[bytes] = []
        while not over.is_set():
            data = b"%d" % len(made) * (len(made) % 3)
            with created(place.alice / f"f{len(made)}", FLAGS[len(made) // 3 % 3], data):
                made.append(data)
        return made

    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(make)
        try:
            for _ in range(12):
                time.sleep(0.05)
                _kill_mount(world, "alice")
        finally:
            over.set()
        made = making.result(LIMIT_S)
    assert {path.name: path.read_bytes() for path in place.bob.iterdir()} == {
        f"f{number}": data for number, data in enumerate(made)
    }
    assert len(made) > 12


def test_what_close_has_returned_survives_a_kill_of_everything(world: World, place: Place) -> None:
    for attempt in range(2):
        for number in range(40):
            with created(place.alice / f"f{attempt}-{number}", FLAGS[number % 2], b"x" * number):
                pass
        left = os.open(place.alice / f"left{attempt}", NEW)
        world.kill()
        with suppress(OSError):
            os.close(left)
        world.start()
        for top in (place.alice, place.bob):
            found = {path.name: path.stat().st_size for path in top.iterdir() if path.name[0] == "f"}
            assert found == {f"f{past}-{number}": number for past in range(attempt + 1) for number in range(40)}
