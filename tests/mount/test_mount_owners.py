"""What another mount did to owners and modes counts at once for what users may do through this one.

The kernel decides who may chmod, chown, set times and remove from a sticky directory, by what it knows of a file.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mount.mount_world import Place, World, line_from, running

pytestmark = [
    pytest.mark.mount,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as other users"),
]

USER, OTHER = 65534, 65533
YOUNG_S = 3.2  # a name is not for keeping of which the mount has heard within less


@pytest.fixture(scope="module")
def mounts() -> list[dict[str, Any]]:
    return [{"agent_id": "alice", "allow_other": True}, {"agent_id": "bob", "allow_other": True}]


@pytest.fixture(autouse=True)
def _reached(world: World) -> Iterator[None]:
    os.chmod(world.root, 0o755)
    yield


def _as(uid: int, groups: list[int], call: Callable[..., object], *arguments: object) -> str:
    """What comes of a call by a user: "ok" or an errno's name."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            os.setgroups(groups)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            call(*arguments)
            said = "ok"
        except OSError as e:
            said = errno.errorcode.get(e.errno or 0, str(e))
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    said = os.read(reading, 100).decode()
    os.close(reading)
    return said


def _known(*paths: Path) -> None:
    """The kernel has them for keeping: this mount has long heard of them, and been asked for their attributes."""
    for pause_s in (YOUNG_S, 0, 0):
        for path in paths:
            os.stat(path, follow_symlinks=False)
        time.sleep(pause_s)


def test_a_new_owner_may_at_once_and_the_old_one_no_more(place: Place) -> None:
    calls: list[tuple[Callable[..., object], tuple[object, ...]]] = [
        (os.chmod, (0o640,)),
        (os.utime, ((5, 5),)),
        (os.chown, (-1, OTHER)),
    ]
    pairs = [(place.alice / call.__name__, place.bob / call.__name__) for call, _ in calls]
    for here, _ in pairs:
        here.write_text("x")
        os.chown(here, 0, 0)
    os.chown(place.alice, USER, USER)
    _known(*(there for _, there in pairs))  # all at once: it takes seconds
    for (call, arguments), (here, there) in zip(calls, pairs, strict=True):
        assert _as(USER, [OTHER], call, there, *arguments) == "EPERM", call
        os.chown(here, USER, USER)
        assert _as(USER, [OTHER], call, there, *arguments) == "ok", call
    _known(*(there for _, there in pairs))
    for (call, arguments), (here, there) in zip(calls, pairs, strict=True):
        os.chown(here, OTHER, OTHER)
        assert _as(USER, [OTHER], call, there, *arguments) == "EPERM", call


def test_a_set_group_bit_goes_by_the_group_that_another_mount_gave(place: Place) -> None:
    here, there = place.alice / "f", place.bob / "f"
    here.write_text("x")
    os.chown(here, USER, USER)
    _known(there)
    os.chown(here, USER, 0)
    assert _as(USER, [], os.chmod, there, 0o2755) == "ok"
    assert os.stat(here).st_mode & 0o7777 == os.stat(there).st_mode & 0o7777 == 0o755


def test_who_may_remove_from_a_sticky_directory(place: Place) -> None:
    os.chmod(place.alice, 0o1777)
    here, there = place.alice / "f", place.bob / "f"
    here.write_text("x")
    os.chown(here, USER, USER)
    _known(place.bob, there)
    os.chown(here, OTHER, OTHER)
    assert _as(USER, [], os.unlink, there) == "EPERM"
    assert _as(USER, [], os.rename, there, place.bob / "g") == "EPERM"
    os.chown(here, USER, USER)
    assert _as(USER, [], os.rename, there, place.bob / "g") == "ok"
    os.chown(place.alice / "g", OTHER, OTHER)
    assert _as(USER, [], os.unlink, place.bob / "g") == "EPERM"
    assert (place.alice / "g").exists()


# As a user, a file of its own at each line that comes in; prints whose it is, or the errno's name.
CREATES = """
import errno, os, sys
path, user, flags = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.umask(0)
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
print("ready")
for number, _ in enumerate(sys.stdin):
    try:
        descriptor = os.open(f"{path}/n{number}", os.O_CREAT | flags, 0o600)
        print(os.fstat(descriptor).st_uid)
        os.close(descriptor)
    except OSError as e:
        print(errno.errorcode[e.errno])
"""


def test_who_creates_what_another_user_makes_at_that_moment_opens_it_by_its_mode_alone(place: Place) -> None:
    os.chmod(place.alice, 0o777)
    with (
        running(CREATES, place.alice, USER, os.O_EXCL | os.O_WRONLY) as owner,
        running(CREATES, place.bob, OTHER, os.O_RDONLY) as other,
    ):
        assert line_from(owner) == line_from(other) == "ready"
        came = set()
        for number in range(400):
            for each in (owner, other) if number % 2 else (other, owner):
                assert each.stdin is not None
                each.stdin.write("\n")
                each.stdin.flush()
            came.add((line_from(owner), line_from(other)))
    assert came == {(str(USER), "EACCES"), ("EEXIST", str(OTHER))}
