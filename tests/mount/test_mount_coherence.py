"""What one mount has done, the other's kernel must not remember otherwise: random steps on one, checks on the other.

Every step first makes the other mount look, so that its kernel has something to forget.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from avmfs.fuse.entry_cache import RESTS_S
from tests.mount.mount_world import LIMIT_S, Place, World, linux_only, needs, until
from tests.tracing import strace

pytestmark = pytest.mark.mount

STEPS = int(os.environ.get("AVM_COHERENCE_STEPS", "500"))
LATE_TRIES = 5
LATE_US = 250_000
_OLD, _NEW = b"old", b"another text"


def test_random_steps_on_one_mount_are_seen_on_the_other_at_once(place: Place, two_hosts: bool) -> None:
    chance = random.Random(11)
    wrong: list[tuple[str, int]] = []
    for number in range(STEPS):
        here, there = (place.alice, place.bob) if chance.random() < 0.5 else (place.bob, place.alice)
        name = f"f{chance.randrange(7)}"
        exists = (there / name).exists()
        step = chance.choice(_ALWAYS if not exists else _ALWAYS + _EXISTING)
        if two_hosts and step is _held_open:
            step = _held_open_soon
        if not step(here, there, name, number):
            wrong.append((step.__name__, number))
    assert wrong == []


@linux_only("libfuse asks by path, and its kernel keeps what another mount has changed for a second")
@needs("strace")
@pytest.mark.parametrize("how", ["stat", "read"])
def test_what_changes_while_a_reply_is_on_its_way_is_seen(
    world: World, place: Place, two_hosts: bool, how: str
) -> None:
    """The reply that tells of a file is held up; what the writer says of it meanwhile finds no such file."""
    if two_hosts:
        pytest.skip("another host sees it soon, not at once")
    names = [f"f{number}" for number in range(LATE_TRIES)]
    for name in names:
        (place.alice / name).write_bytes(_OLD)
    changed, seen = threading.Event(), []

    def stat(name: str) -> bool:
        os.stat(name, dir_fd=above)
        before = changed.is_set()  # at once: what comes with a name lives for a moment
        return os.stat(name, dir_fd=above).st_size == len(_NEW) or not before

    def read(name: str) -> bool:
        descriptor = os.open(name, os.O_RDONLY, dir_fd=above)
        try:
            before = changed.is_set()
            return os.read(descriptor, 99) in (_OLD, _NEW) or not before
        finally:
            os.close(descriptor)

    with contextlib.ExitStack() as stack:
        above = os.open(place.bob, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, above)
        os.fstat(above)
        time.sleep(RESTS_S + 0.5)  # until then its kernel keeps no name of these
        pool = stack.enter_context(ThreadPoolExecutor(1))
        for name in names:
            changed.clear()
            os.fstat(above)
            with _late_reply(world, "bob"):
                looking = pool.submit(stat if how == "stat" else read, name)
                time.sleep(LATE_US / 5e6)
                descriptor = os.open(place.alice / name, os.O_WRONLY)
                os.write(descriptor, _NEW)
                os.close(descriptor)
                changed.set()
                seen.append(looking.result(LIMIT_S))
    assert all(seen), seen


@contextlib.contextmanager
def _late_reply(world: World, agent: str) -> Iterator[None]:
    """The first that each thread of this agent's mount writes, the next reply, is held up for LATE_US."""
    status = world.status()
    assert status is not None
    (pid,) = (mount["pid"] for mount in status["mounts"] if mount["agent_id"] == agent)
    held_up = f"inject=write:delay_enter={LATE_US}:when=1"
    with strace(pid, "-o", os.devnull, "-e", "trace=write", "-e", held_up):
        yield


def _overwrite(here: Path, there: Path, name: str, number: int) -> bool:
    (here / name).write_text(f"v{number}")
    return (there / name).stat().st_size == len(f"v{number}") and (there / name).read_text() == f"v{number}"


def _save(here: Path, there: Path, name: str, number: int) -> bool:
    (here / "save.tmp").write_text(f"s{number}")
    seen = (there / "save.tmp").exists()
    (here / "save.tmp").rename(here / name)
    return seen and (there / name).read_text() == f"s{number}" and not (there / "save.tmp").exists()


def _save_and_leave(here: Path, there: Path, name: str, number: int) -> bool:
    """What replaced a file is gone again, or elsewhere, before the other mount looks."""
    seen = (there / name).exists() and name in os.listdir(there)
    (here / "left.tmp").write_text(f"l{number}")
    (here / "left.tmp").rename(here / name)
    if number % 2:
        (here / name).unlink()
    else:
        (here / name).rename(here / "left")
    return seen and not (there / name).exists() and name not in os.listdir(there)


def _append(here: Path, there: Path, name: str, number: int) -> bool:
    for mount, mark in ((here, "+"), (there, "*")):
        with open(mount / name, "a") as file:
            file.write(mark)
    sizes = {(mount / name).stat().st_size for mount in (here, there)}
    return len(sizes) == 1 and (here / name).read_text().endswith("+*")


def _directory(here: Path, there: Path, name: str, number: int) -> bool:
    made, moved = f"d{number}", f"e{number}"
    looked = (there / made).exists() or (there / moved).exists()
    (here / made).mkdir()
    (there / made / "z").write_text("z")
    inside = (here / made / "z").read_text() == "z" and (here / made).stat().st_nlink == 2
    links = here.stat().st_nlink == there.stat().st_nlink
    (here / made).rename(here / moved)
    gone = not (there / made).exists() and (there / moved / "z").read_text() == "z"
    (there / moved / "z").unlink()
    empty = os.listdir(here / moved) == []
    (here / moved).rmdir()
    return not looked and inside and links and gone and empty and not (there / moved).exists()


def _held_open(here: Path, there: Path, name: str, number: int) -> bool:
    """A descriptor that was open before sees the new bytes and their size."""
    (here / name).write_text("old")
    with open(there / name, "rb", buffering=0) as file:
        before = file.read()
        (here / name).write_text(f"newer {number}")
        size = os.fstat(file.fileno()).st_size
        after = os.pread(file.fileno(), 99, 0)
        return before == b"old" and size == len(f"newer {number}") and after == b"newer %d" % number


def _held_open_soon(here: Path, there: Path, name: str, number: int) -> bool:
    """On another host it does as soon as that has heard: nothing is looked up any more."""
    (here / name).write_text("old")
    with open(there / name, "rb", buffering=0) as file:
        before = file.read()
        (here / name).write_text(f"newer {number}")
        until(lambda: os.pread(file.fileno(), 99, 0) == b"newer %d" % number)
        return before == b"old" and os.fstat(file.fileno()).st_size == len(f"newer {number}")


def _unlink(here: Path, there: Path, name: str, number: int) -> bool:
    (here / name).unlink()
    return not (there / name).exists() and name not in os.listdir(there)


def _chmod(here: Path, there: Path, name: str, number: int) -> bool:
    (here / name).chmod(0o600 + number % 2 * 0o40)
    return (there / name).stat().st_mode & 0o777 == 0o600 + number % 2 * 0o40


def _truncate(here: Path, there: Path, name: str, number: int) -> bool:
    os.truncate(here / name, number % 50)
    return (there / name).stat().st_size == number % 50 == len((there / name).read_bytes())


def _utime(here: Path, there: Path, name: str, number: int) -> bool:
    os.utime(here / name, (1, number))
    return (there / name).stat().st_mtime == number


def _becomes_a_directory(here: Path, there: Path, name: str, number: int) -> bool:
    (here / name).unlink()
    (here / name).mkdir()
    directory = (there / name).is_dir()
    (there / name).rmdir()
    (there / name).symlink_to("elsewhere")
    link = os.readlink(here / name) == "elsewhere"
    (here / name).unlink()
    return directory and link and not (there / name).is_symlink()


def _exclusive(here: Path, there: Path, name: str, number: int) -> bool:
    """The other's kernel remembers the name as absent, or as present: O_EXCL is decided by the store."""
    with contextlib.suppress(FileNotFoundError):
        (here / name).unlink()
    (there / name).touch(exist_ok=False)
    try:
        (here / name).touch(exist_ok=False)
    except FileExistsError:
        return True
    return False


_ALWAYS: list[Callable[[Path, Path, str, int], bool]] = [_overwrite, _save, _append, _directory, _held_open, _exclusive]
_EXISTING: list[Callable[[Path, Path, str, int], bool]] = [
    _unlink,
    _chmod,
    _truncate,
    _utime,
    _becomes_a_directory,
    _save_and_leave,
]
