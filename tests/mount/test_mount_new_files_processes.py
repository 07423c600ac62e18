"""New files and processes: several that hold one, many that make them; and kills of who made one, of its mount or of
everything between open(2) and close(2). What close() has returned is there.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mount.mount_world import LIMIT_S, Place, World, cat, line_from, linux_only, python, running, sh, until
from tests.mount.new_file_steps import NEW, created

pytestmark = [pytest.mark.mount, pytest.mark.usefixtures("not_the_first")]

has_successor = linux_only("a mount of libfuse has no successor")
FLAGS = (NEW | os.O_TRUNC, NEW, NEW | os.O_EXCL)


# Processes and threads -----------------------------------------------------------------------------------------------

FORKED = """
import os, sys
here, there = sys.argv[1:]
fd = os.open(f"{here}/f", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
os.write(fd, b"parent ")
child = os.fork()
if child == 0:
    os.write(fd, b"child ")
    os.close(fd)
    print(open(f"{there}/f").read(), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(open(f"{there}/f").read())
os.write(fd, b"parent again")
copy = os.dup2(fd, 77)
os.close(fd)
print(open(f"{there}/f").read())
os.write(copy, b", and a copy")
os._exit(0)
"""


def test_what_each_process_has_closed_is_there(place: Place) -> None:
    told = python(FORKED, place.alice, place.bob).splitlines()
    assert told == ["parent child ", "parent child ", "parent child parent again"]
    assert (place.bob / "f").read_bytes() == b"parent child parent again, and a copy"
    assert (
        sh(
            'exec 3> g; bash -c "echo inherited >&3"; cat "$THERE/g"', cwd=place.alice, env={"THERE": str(place.bob)}
        ).stdout
        == "inherited\n"
    )


MAKER = "import os, sys\nfd = os.open(sys.argv[1], 0o101)\nos.write(fd, sys.argv[2].encode())\nprint('made')\ninput()\n"


@pytest.mark.parametrize("data", ["", "bytes of a killed process"])
def test_what_a_killed_process_has_made_is_there(place: Place, data: str) -> None:
    for number in range(3):
        with running(MAKER, place.alice / f"f{number}", data) as maker:
            assert line_from(maker) == "made"
        until(lambda number=number: (place.bob / f"f{number}").read_text() == data)
    assert len(os.listdir(place.bob)) == 3


def test_every_listing_and_look_has_what_was_made_before_it_began(place: Place) -> None:
    made: list[str] = []
    over = threading.Event()

    def make(who: int) -> None:
        chance = random.Random(who)
        for number in range(100):
            name = f"{who}-{number}"
            with created(place.alice / name, FLAGS[number % 3], b"x" * (number % 2)):
                made.append(name)
                time.sleep(chance.random() * 0.003)

    def look() -> int:
        times = 0
        while not over.is_set():
            least = made[:]
            found = set(os.listdir(place.alice))
            assert found >= set(least)
            assert all((place.alice / name).exists() for name in least[-5:])
            times += 1
        return times

    def look_from_elsewhere() -> int:
        seen: set[str] = set()
        while not over.is_set():
            found = set(os.listdir(place.bob))
            assert found >= seen
            assert all((place.bob / name).stat().st_size <= 1 for name in found - seen)
            seen = found
        return len(seen)

    with ThreadPoolExecutor(5) as pool:
        looking = [pool.submit(look), pool.submit(look_from_elsewhere)]
        try:
            for making in [pool.submit(make, who) for who in range(3)]:
                making.result(300)
        finally:
            over.set()
        assert min(each.result(300) for each in looking) > 3
    assert len(os.listdir(place.bob)) == 300


# Kills ----------------------------------------------------------------------------------------------------------------


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
    world.expected.append("ended: killed by SIGKILL")
    os.kill(old, signal.SIGKILL)
    until(lambda: _pid(world, agent) not in (old, None), every_s=0.005)


@has_successor
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


@has_successor
def test_whoever_makes_files_notices_no_kill(world: World, place: Place) -> None:
    over = threading.Event()
    made: list[bytes] = []

    def make() -> None:
        while not over.is_set():
            data = b"%d" % len(made) * (len(made) % 3)
            with created(place.alice / f"f{len(made)}", FLAGS[len(made) // 3 % 3], data):
                made.append(data)

    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(make)
        try:
            for _ in range(12):
                before = len(made)
                until(lambda before=before: len(made) > before)
                time.sleep(0.02)
                _kill_mount(world, "alice")
        finally:
            over.set()
        making.result(LIMIT_S)
    assert {path.name: path.read_bytes() for path in place.bob.iterdir()} == {
        f"f{number}": data for number, data in enumerate(made)
    }


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
