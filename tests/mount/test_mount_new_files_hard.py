"""New files under hard conditions: the same name from two mounts, what another does to such a
name, refusals and quotas.

While a new file is open on one mount, the others see its name within a second; until then either order of what two
mounts do is right, but not that both succeed and one is lost.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.mount.fsx_steps import whole
from tests.mount.mount_world import LIMIT_S, Place, World, cat, linux_only, rounds, sh, until
from tests.mount.new_file_steps import NEW, PAUSES, closes, created, errno_of, opened, used

pytestmark = [pytest.mark.mount, pytest.mark.usefixtures("losses_are_told", "not_the_first")]

by_node = linux_only("libfuse asks by path")
FLAGS = (NEW | os.O_TRUNC, NEW)
NODES, BYTES = 20, 100_000


@pytest.fixture(scope="module")
def mounts() -> list[dict[str, Any]]:
    return [
        {"agent_id": "alice"},
        {"agent_id": "bob"},
        {"agent_id": "carol", "coherence": "strict"},
        {"agent_id": "dave"},
        {"agent_id": "eve", "read_only": True},
    ]


SETTINGS = f"""
embedding: {{enabled: false}}
agents:
  dave: {{quota: {{nodes: {NODES}, bytes: {BYTES}}}}}
permissions:
  - {{pattern: /memory/ro/*, access: ro, agents: [alice]}}
  - {{pattern: /memory/mixed/no-*, access: ro, agents: [alice]}}
  - {{pattern: "/memory/late/*", access: %s, agents: [alice]}}
  - {{pattern: /memory/*, access: rw}}
"""


@pytest.fixture(scope="module")
def settings() -> str:
    return SETTINGS % "rw"


# The same name from two mounts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("pause", PAUSES)
def test_two_that_make_the_same_name_have_one_file_and_the_later_bytes_lie_over_the_earlier(
    place: Place, pause: float
) -> None:
    names = []
    for number in range(16):
        name, alice_first, early = f"f{number}", bool(number & 1), bool(number & 2)
        names.append(name)
        one = os.open(place.alice / name, FLAGS[number >> 2 & 1])
        if early:
            os.write(one, b"alice's are longer")
        time.sleep(pause)
        two = os.open(place.bob / name, FLAGS[number >> 3])
        os.write(two, b"bob's")
        if not early:
            os.write(one, b"alice's are longer")
        for descriptor in (one, two) if alice_first else (two, one):
            os.close(descriptor)
        told = {(top / name).read_bytes() for top in (place.alice, place.bob)}
        assert told == {b"bob's's are longer"} if alice_first else {b"alice's are longer"}, number
        assert len({(top / name).stat().st_ino for top in (place.alice, place.bob)}) == 1
        assert cat(place.bob / ":changes").count(f"/{name}\n") == 1
        assert cat(place.bob / f"{name}:history").count("\n") == 2
    assert sorted(os.listdir(place.alice)) == sorted(os.listdir(place.bob)) == sorted(names)


@pytest.mark.parametrize("pause", PAUSES)
def test_an_exclusive_creation_that_has_returned_is_the_only_one(place: Place, pause: float) -> None:
    for number in range(10):
        with created(place.alice / f"f{number}", NEW | os.O_EXCL, b"x" * (number % 2)) as descriptor:
            time.sleep(pause)
            assert errno_of(opened, place.bob / f"f{number}", NEW | os.O_EXCL) == "EEXIST"
            os.write(descriptor, b"mine")
        assert (place.bob / f"f{number}").read_bytes() == b"x" * (number % 2) + b"mine"


@by_node
@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("flags", FLAGS)
def test_a_file_that_another_moved_over_a_new_name_keeps_its_bytes(place: Place, pause: float, flags: int) -> None:
    for number, early in enumerate((b"", b"alice's were longer") * 4):
        name = f"f{number}"
        (place.bob / "other").write_bytes(b"bob's")
        one = os.open(place.alice / name, flags)
        if early:
            os.write(one, early)
        time.sleep(pause)
        (place.bob / "other").rename(place.bob / name)
        if not early:
            with suppress(OSError):
                os.write(one, b"alice's are longer")
        closes(one)
        assert [(top / name).read_bytes() for top in (place.alice, place.bob)] == [b"bob's"] * 2, number


@by_node
@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("early", [b"", b"first "])
@pytest.mark.parametrize(
    "what", ["mkdir", "symlink", "exclusive", "unlink", "rmdir", "rename it", "move the directory"]
)
def test_what_another_does_to_a_new_name_and_its_close_never_both_succeed_with_a_loss(
    place: Place, what: str, early: bytes, pause: float
) -> None:
    """Bob finds the name, and the usual is said; or he does not, and then alice's close must not have lost anything."""
    there = place.bob / "d/f"
    does: dict[str, tuple[Callable[[], object], str]] = {  # what bob does; what it says where the name is there
        "mkdir": (there.mkdir, "EEXIST"),
        "symlink": (lambda: there.symlink_to("nothing"), "EEXIST"),
        "exclusive": (lambda: opened(there, NEW | os.O_EXCL), "EEXIST"),
        "unlink": (there.unlink, "ok"),
        "rmdir": (there.parent.rmdir, "ENOTEMPTY"),
        "rename it": (lambda: there.rename(place.bob / "moved"), "ok"),
        "move the directory": (lambda: there.parent.rename(place.bob / "D"), "ok"),
    }
    for _ in range(4):
        (place.alice / "d").mkdir()
        used(place.alice / "d", place.bob / "d")
        one = os.open(place.alice / "d/f", NEW | os.O_TRUNC)
        if early:
            os.write(one, early)
        time.sleep(pause)
        said = errno_of(does[what][0])
        wrote = errno_of(os.write, one, b"last")
        closed = closes(one) if wrote == "ok" else (closes(one), wrote)[1]
        data, alike = early + b"last", whole(place.alice)
        assert alike == whole(place.bob)
        files = {name: (place.bob / name).read_bytes() for name in alike if (place.bob / name).is_file()}
        at = {"rename it": "moved", "move the directory": "D/f"}.get(what, "d/f") if said == "ok" else "d/f"
        if what == "unlink" and said == "ok":
            assert files == {}
        elif said in (does[what][1], "ok") and closed == "ok":
            assert files == {at: data}, (said, wrote)
        else:
            assert said in ("ok", "ENOENT") and (closed != "ok" or files == {at: data}), (said, wrote, closed)
        if pause > 0.02:
            assert said == does[what][1] and closed == "ok"
        sh("rm -rf d D moved", cwd=place.bob)


# Races ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [NEW | os.O_TRUNC, NEW, NEW | os.O_EXCL])
def test_of_those_who_race_for_a_new_name_each_has_it_whole_or_one_alone(tops: list[Path], flags: int) -> None:
    def player(who: int) -> Callable[[int], object]:
        def play(number: int) -> object:
            try:
                with created(tops[who % 3] / f"f{number}", flags, b"%d" % who * 64):
                    return True
            except FileExistsError:
                return False

        return play

    results = rounds(120, *(player(who) for who in range(4)))
    for number, won in enumerate(results):
        assert sum(map(bool, won)) == (1 if flags & os.O_EXCL else 4)
        told = {(top / f"f{number}").read_bytes() for top in tops}
        assert len(told) == 1 and told <= {b"%d" % who * 64 for who in range(4) if won[who]}, number
    for top in tops:
        assert len(os.listdir(top)) == 120
    assert cat(tops[1] / ":changes?limit=1000").count("/f") == 120


def test_a_directory_is_removed_or_has_the_new_file(place: Place) -> None:
    def make(number: int) -> object:
        try:
            with created(place.alice / f"d{number}/f", data=b"x" * (number % 2)):
                return None
        except OSError as e:
            return e.errno

    for number in range(150):
        (place.alice / f"d{number}").mkdir()
        used(place.alice / f"d{number}")
    for number, (refused, removed) in enumerate(
        rounds(150, make, lambda number: errno_of((place.bob / f"d{number}").rmdir))
    ):
        assert (refused is None) != (removed == "ok"), (number, refused, removed)
        for top in (place.alice, place.bob):
            assert (top / f"d{number}/f").exists() == (refused is None)


def test_a_new_name_that_was_unlinked_or_replaced_elsewhere_does_not_come_back(place: Place) -> None:
    def make(number: int) -> object:
        with created(place.alice / f"f{number}", data=b"alice's are longer" * (number % 2)):
            return None

    def against(number: int) -> object:
        if number % 3:
            return errno_of((place.bob / f"f{number}").unlink)
        (place.bob / f"other{number}").write_bytes(b"bob's")
        return errno_of((place.bob / f"other{number}").rename, place.bob / f"f{number}")

    for number, (_, said) in enumerate(rounds(150, make, against)):
        told = [
            (top / f"f{number}").read_bytes() if (top / f"f{number}").exists() else None
            for top in (place.alice, place.bob)
        ]
        mine = b"alice's are longer" * (number % 2)
        if number % 3:
            assert told == [None if said == "ok" else mine] * 2, (number, said, told)
        else:  # whoever was the later; alice may have opened what bob had moved there, and written over it
            assert told[0] == told[1] and told[0] in (b"bob's", mine, b""), (number, told)


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shared/x:meta", "EINVAL"),
        ("shared/x:list?q=a", "EINVAL"),
        ("shared/:tags", "EINVAL"),
        ("private/x", "ok"),
        ("shared/" + "n" * 256, "ENAMETOOLONG"),
        ("shared/" + "\xfc" * 128, "ENAMETOOLONG"),
        ("new", "EACCES"),
        ("shared/no directory/x", "ENOENT"),
        ("memory/private/bob/x", "ENOENT"),
        ("memory/private/x", "EACCES"),
        ("tell/nobody", "ENOENT"),
        ("@yesterday/memory/x", "ENOENT"),
        ("trash/x", "EACCES"),
        ("shared", "EISDIR"),
        ("shared/" + "n" * 255, "ok"),
    ],
)
def test_a_name_that_cannot_be_is_refused_by_open_itself(alice: Path, place: Place, name: str, said: str) -> None:
    for flags in FLAGS:
        for _ in range(3):
            (place.alice / "made").touch()
            assert errno_of(opened, alice / name, flags) == said
            (place.alice / "made").unlink()
    assert said != "ok" or (alice / name).stat().st_size == 0
    with suppress(OSError):
        (alice / name).unlink()


def test_who_may_not_write_is_refused_by_open_itself_at_any_time(world: World, place: Place) -> None:
    alice, bob, eve = (world.mounts[agent] / "memory" for agent in ("alice", "bob", "eve"))
    for name in ("ro", "mixed"):
        (bob / name).mkdir()
    for number in range(100):
        assert errno_of(opened, alice / f"ro/f{number % 7}", FLAGS[number % 2]) == "EACCES"
        assert errno_of(opened, eve / f"shared/f{number % 7}", FLAGS[number % 2]) == "EROFS"
        with created(alice / f"mixed/yes{number}", FLAGS[number % 2], b"x" * (number % 2)):
            assert errno_of(opened, alice / f"mixed/no-{number % 7}", FLAGS[number % 2]) == "EACCES"
    for top in (alice, bob, eve):
        assert sorted(os.listdir(top / "mixed")) == sorted(f"yes{number}" for number in range(100))
        assert os.listdir(top / "ro") == []


def test_a_rule_that_comes_later_refuses_or_loses_nothing(world: World, place: Place) -> None:
    alice, bob, file = (
        world.mounts["alice"] / "memory/late",
        world.mounts["bob"] / "memory/late",
        world.root / "config/config.yaml",
    )
    bob.mkdir()
    made: list[str] = []
    said = ""
    for number in range(20):
        opened(alice / f"before{number}", NEW)
    file.write_text(SETTINGS % "ro")
    try:
        with ThreadPoolExecutor(1) as pool:
            reload = pool.submit(world.command, "reload")
            until_s = time.monotonic() + LIMIT_S
            while said != "EACCES" and time.monotonic() < until_s:
                try:
                    descriptor = os.open(alice / f"f{len(made)}", NEW)
                except PermissionError:
                    said = "EACCES"
                else:
                    if (closed := closes(descriptor)) == "ok":
                        made.append(f"f{len(made)}")
                    assert closed in ("ok", "EACCES")
            assert reload.result(LIMIT_S).returncode == 0 and said == "EACCES"
        for number in range(20):
            assert errno_of(opened, alice / f"after{number}", NEW) == "EACCES"
    finally:
        file.write_text(SETTINGS % "rw")
        assert world.command("reload").returncode == 0
    assert sorted(os.listdir(bob)) == sorted([*made, *(f"before{number}" for number in range(20))])


@pytest.mark.parametrize("held", [False, True])
def test_what_is_beyond_a_quota_fails_and_leaves_no_name(world: World, place: Place, held: bool) -> None:
    dave = world.mounts["dave"] / place.path[1:]
    room = os.statvfs(dave).f_ffree
    names = [f"f{number}" for number in range(room + 5)]
    descriptors: dict[str, int] = {}
    refused: set[object] = set()
    for name in names:
        try:
            descriptors[name] = os.open(dave / name, NEW | os.O_TRUNC)
            os.write(descriptors[name], name.encode())
        except OSError as e:
            refused.add(e.errno)
        if not held and name in descriptors and (said := closes(descriptors.pop(name))) != "ok":
            refused.add(said)
    refused |= {closes(descriptor) for descriptor in descriptors.values()} - {"ok"}
    assert refused and refused <= {errno.EDQUOT, "EDQUOT"}
    left = set(os.listdir(place.bob))
    assert len(left) == room and left == set(os.listdir(dave)) == set(os.listdir(place.alice))
    assert all((top / name).read_text() == name for name in left for top in (dave, place.bob))
    for name in {*names, "more"} - left:
        done = sh(f": > {name}", cwd=dave, check=False)
        assert "quota" in done.stderr or done.returncode == 0  # bash says nothing of a close(2) that failed
        for top in (dave, place.bob):
            assert not (top / name).exists() and name not in os.listdir(top)
    (dave / left.pop()).unlink()
    (dave / "more").touch()
    assert (place.bob / "more").exists()
    shutil.rmtree(place.bob)


def test_bytes_beyond_a_quota_fail_and_are_nowhere(world: World, place: Place) -> None:
    dave = world.mounts["dave"] / place.path[1:]
    for number in range(6):
        descriptor = os.open(dave / f"f{number}", FLAGS[number % 2])
        said = [errno_of(os.write, descriptor, b"x" * 2 * BYTES), closes(descriptor)]
        assert "EDQUOT" in said and set(said) <= {"ok", "EDQUOT"}
        for path in (place.bob / f"f{number}", dave / f"f{number}"):  # his own are gone once the kernel has released it
            until(lambda path=path: not path.exists() or path.read_bytes() == b"")
            until(lambda path=path: not path.exists() or path.stat().st_size == 0)
        assert sorted(os.listdir(dave)) == sorted(os.listdir(place.bob))
    (dave / "fits").write_bytes(b"x" * (BYTES * 9 // 10))
    assert (place.bob / "fits").stat().st_size == BYTES * 9 // 10
    shutil.rmtree(place.bob)


@pytest.mark.parametrize("read", [False, True])
def test_a_size_that_could_not_be_kept_is_shown_by_none_once_the_file_is_closed(
    world: World, place: Place, read: bool
) -> None:
    """Whose close failed may not be the last who had it open; who had was told the size that it was to have."""
    dave = world.mounts["dave"] / place.path[1:]
    for number in range(6):
        path = dave / f"f{number}"
        path.write_bytes(b"old")
        assert path.stat().st_size == 3
        writer, reader = os.open(path, FLAGS[1]), os.open(path, os.O_RDONLY) if read else None
        os.write(writer, b"x" * 2 * BYTES)
        assert path.stat().st_size == 2 * BYTES and closes(writer) == "EDQUOT"
        if reader is not None:
            time.sleep(0.01 * (number % 2))  # until the kernel has released the other, or not
            path.stat()
            os.close(reader)
        until(lambda path=path: path.stat().st_size == 3)
        assert (path.read_bytes(), (place.bob / path.name).stat().st_size) == (b"old", 3)
    shutil.rmtree(place.bob)
