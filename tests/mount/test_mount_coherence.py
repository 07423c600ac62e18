"""What one mount has done, the other's kernel must not remember otherwise: random steps on one, checks on the other.

Every step first makes the other mount look, so that its kernel has something to forget.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount.mount_world import LIMIT_S, Place, World, linux_only, needs, running, until

pytestmark = pytest.mark.mount

STEPS = int(os.environ.get("AVM_COHERENCE_STEPS", "500"))
LATE_STEPS = 2 * STEPS // 5  # each of which waits for some late replies
LATE_US = 6000
_LOOKER = "import os, sys\nwhile True: os.stat(sys.argv[1])"
_OPENER = "import sys\nwhile True: open(sys.argv[1]).close()"


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
def test_what_changes_while_a_reply_is_on_its_way_is_seen(world: World, place: Place, two_hosts: bool) -> None:
    """Every fifth reply of one mount reaches its kernel late, and tells what was so before the other mount's step."""
    if two_hosts:
        pytest.skip("another host sees it soon, not at once")
    directory, file = place.bob / "q", place.bob / "f"
    (place.alice / "q").mkdir()
    (place.alice / "f").touch()
    wrong = []
    with contextlib.ExitStack() as stack:
        for code, path in ((_LOOKER, directory), (_LOOKER, directory), (_OPENER, file)):
            stack.enter_context(running(code, path))
        stack.enter_context(_late_replies(world, "bob"))
        chance = random.Random(12)
        for number in range(LATE_STEPS):
            (place.bob / f"e{number}").exists()  # what it has asked for makes it look all names up again
            (place.alice / f"e{number}").touch()
            inner = place.alice / "q" / chance.choice("abcd")
            if inner.exists():
                inner.rmdir()
            else:
                inner.mkdir()
            # At once: what comes with a name lives for some milliseconds.
            seen_links, links = directory.stat().st_nlink, 2 + len(os.listdir(place.alice / "q"))
            with (place.alice / "f").open("a") as writing:
                writing.write(f"{number}\n")
                size = writing.tell()
            with file.open() as reading:
                seen = seen_links, os.fstat(reading.fileno()).st_size, len(reading.read())
            if seen != (links, size, size):
                wrong.append((number, seen, (links, size, size)))
    assert wrong == []


@contextlib.contextmanager
def _late_replies(world: World, agent: str) -> Iterator[None]:
    """What this agent's mount writes, replies among it, is sometimes held up for LATE_US."""
    status = world.status()
    assert status is not None
    (pid,) = (mount["pid"] for mount in status["mounts"] if mount["agent_id"] == agent)
    held_up = f"inject=write:delay_enter={LATE_US}:when=1+5"
    command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=write", "-e", held_up, "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        try:
            yield
            if tracer.poll() is not None:
                assert tracer.stderr is not None
                pytest.skip(f"strace may not do this here: {tracer.stderr.read()}")
        finally:
            tracer.terminate()
            tracer.wait(LIMIT_S)


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
