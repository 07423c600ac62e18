"""New files: what open(2) with O_CREAT has returned is at once all that POSIX says on its own mount, whatever is asked
next; what close() has returned is there for all, and what is not is an error.

What one mount does is compared with the machine's own filesystem.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mount.fsx_steps import whole
from tests.mount.mount_world import Place, World, cat, echo, linux_only, meta, python, sh, until, view
from tests.mount.new_file_steps import NEW, PAUSES, STEPS, Hands, closes, created, errno_of, opened, used

pytestmark = [pytest.mark.mount, pytest.mark.usefixtures("losses_are_told", "not_the_first")]

by_node = linux_only("libfuse asks by path, and an unlinked file has none")
FLAGS = (NEW | os.O_TRUNC, NEW, NEW | os.O_EXCL, NEW | os.O_APPEND, os.O_RDWR | os.O_CREAT)
SEEDS = int(os.environ.get("AVM_NEW_FILE_SEEDS", "4"))
TICK_S = 0.012  # longer than what the times of any usual filesystem can tell apart
SEEN_S = 20.0  # a second where the machine has nothing else to do; never, where it waits for its maker
ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def mounts() -> list[dict[str, Any]]:
    return [
        {"agent_id": "alice", "allow_other": ROOT},
        {"agent_id": "bob"},
        {"agent_id": "carol", "coherence": "strict"},
    ]


def _alike(place: Place, own: Path, steps: tuple[str, ...], flags: int, data: bytes, last: bytes) -> None:
    """The same on a mount and beside it; then the same bytes under the same names on both mounts."""
    told: list[list[object]] = []
    for top in (place.alice, own):
        (top / "d").mkdir()
        h = Hands(top / "d")
        h.make(flags, data)
        answers: list[object] = []
        try:
            answers += [(step, h.does(step)) for step in steps]
        finally:
            answers.append(h.end(last))
        there = place.bob / h.top.name if top is place.alice else h.top
        told.append([*answers, *(whole(found) if found.exists() else None for found in (h.top, there))])
        if h.top.exists():
            shutil.rmtree(h.top)
    for mount, machine in zip(*told, strict=True):
        assert mount == machine, (steps, flags, data, last)
    assert told[0][-1] == told[0][-2], (steps, flags, data, last)


@by_node
@pytest.mark.parametrize("step", sorted(STEPS))
def test_a_file_just_made_answers_as_on_the_machine_s_own_filesystem(place: Place, tmp_path: Path, step: str) -> None:
    for flags in FLAGS:
        for data, last in ((b"", b"-last"), (b"first bytes", b"-last"), (b"", b"")):
            _alike(place, tmp_path, (step,), flags, data, last)


@by_node
@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_steps_in_any_order_answer_so(place: Place, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    names = sorted(STEPS)
    for _ in range(40):
        steps = tuple(chance.choice(names) for _ in range(chance.randrange(2, 7)))
        _alike(place, tmp_path, steps, chance.choice(FLAGS), chance.choice((b"", b"first")), b"-last")


# Times, owners and views --------------------------------------------------------------------------------------------


def test_the_directory_s_times_change_with_the_creation_and_not_with_the_close(place: Place) -> None:
    for number in range(20):
        before = [os.stat(place.alice) for _ in range(2)][1]
        time.sleep(TICK_S)
        with created(place.alice / f"f{number}", data=b"x" * (number % 2)):
            at = os.stat(place.alice)
            assert min(at.st_mtime_ns, at.st_ctime_ns) > max(before.st_mtime_ns, before.st_ctime_ns)
            time.sleep(0.03 * (number % 3))
        assert os.stat(place.alice).st_mtime_ns == at.st_mtime_ns == os.stat(place.bob).st_mtime_ns


def test_a_new_file_s_times_and_number_are_those_of_its_creation(place: Place) -> None:
    for number in range(30):
        path, there = place.alice / f"f{number}", place.bob / f"f{number}"
        began = time.time_ns() - 20_000_000
        with created(path) as descriptor:
            made = time.time_ns()
            first = os.fstat(descriptor)
            time.sleep(0.03 * (number % 3))
            again = os.fstat(descriptor)
            assert began <= first.st_mtime_ns <= made and first.st_ctime_ns <= made
            assert (first.st_ino, first.st_mtime_ns, first.st_ctime_ns) == (
                again.st_ino,
                again.st_mtime_ns,
                again.st_ctime_ns,
            )
            if number % 2:
                os.write(descriptor, b"x")
                assert os.fstat(descriptor).st_mtime_ns >= first.st_mtime_ns
        at, closed = path.stat(), time.time_ns()
        assert first.st_mtime_ns <= at.st_mtime_ns <= (closed if number % 2 else made)
        assert at.st_ino == first.st_ino == there.stat().st_ino
        assert at.st_mtime_ns == there.stat().st_mtime_ns


def test_times_set_on_a_file_just_made_stay(place: Place) -> None:
    for number, pause in enumerate((0, 0, 0.03)):
        with created(place.alice / f"f{number}", data=b"x" * number) as descriptor:
            os.utime(descriptor, (5, 6))
            time.sleep(pause)
        assert [(top / f"f{number}").stat().st_mtime for top in (place.alice, place.bob)] == [6, 6]


def test_modes_and_the_umask_are_those_of_the_creation(place: Place) -> None:
    for number, (mode, mask) in enumerate((m, u) for m in (0o666, 0o600, 0o777, 0o444, 0) for u in (0, 0o022, 0o077)):
        before = os.umask(mask)
        try:
            with created(place.alice / f"f{number}", mode=mode, data=b"x") as descriptor:
                os.umask(0)
                assert os.fstat(descriptor).st_mode & 0o7777 == mode & ~mask
        finally:
            os.umask(before)
        for top in (place.alice, place.bob):
            assert stat.S_IMODE((top / f"f{number}").stat().st_mode) == mode & ~mask


AS_ANOTHER = """
import os, sys
top = sys.argv[1]
os.setgroups([]); os.setgid(65533); os.setuid(65534)
told = []
for name in ("open/f", "setgid/f", "closed/f", "open/g"):
    try:
        fd = os.open(f"{top}/{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o640)
    except PermissionError:
        told.append("refused")
        continue
    os.write(fd, b"x")
    told.append((os.fstat(fd).st_uid, os.fstat(fd).st_gid))
    os.close(fd)
print(told)
"""


@pytest.mark.skipif(not ROOT, reason="needs root, to act as another user")
def test_a_new_file_belongs_to_who_made_it_and_only_who_may_makes_one(place: Place, world: World) -> None:
    os.chmod(world.root, 0o755)
    for name, mode in (("open", 0o777), ("setgid", 0o2777), ("closed", 0o755)):
        (place.alice / name).mkdir()
        os.chmod(place.alice / name, mode)
        used(place.alice / name)
    os.chown(place.alice / "setgid", 0, 65532)
    told = python(AS_ANOTHER, place.alice).strip()
    assert told == "[(65534, 65533), (65534, 65532), 'refused', (65534, 65533)]"
    for top in (place.alice, place.bob):
        owners = [(at.st_uid, at.st_gid) for at in ((top / name).stat() for name in ("open/f", "setgid/f", "open/g"))]
        assert owners == [(65534, 65533), (65534, 65532), (65534, 65533)] and os.listdir(top / "closed") == []


def _tagged(path: Path) -> bool:
    echo("tag", view(path, ":tags"))
    return meta(path)["tags"] == ["tag"] and cat(path.parent / ":list?tag=tag").count(path.name) == 1


def _linked(path: Path) -> bool:
    (path.parent / "other.md").write_text("x")
    echo(meta(path)["path"], path.parent / "other.md:links")
    return "other.md" in cat(view(path, ":links")) and path.name in cat(path.parent / "other.md:links")


def _limited(path: Path) -> bool:
    echo("alice", view(path, ":shared"))
    return cat(view(path, ":shared")) == "alice\n"


VIEWS: dict[str, Callable[[Path], bool]] = {
    "meta": lambda path: meta(path)["path"].endswith(path.name) and meta(path)["creator"] == "alice",
    "path": lambda path: cat(view(path, ":path")).endswith(f"{path.name}\n"),
    "info": lambda path: ":history" in cat(view(path, ":info")),
    "data": lambda path: cat(view(path, ":data")) in ("", path.read_text()),
    "history": lambda path: len(cat(view(path, ":history")).splitlines()) == 1,
    "ttl": lambda path: cat(view(path, ":ttl")) == "never\n",
    "mark": lambda path: cat(view(path, ":mark")).startswith("marked: v"),
    "list": lambda path: cat(path.parent / ":list").count(f"  {path.name}") == 1,
    "tree": lambda path: f"  {path.name}\n" in cat(path.parent / ":tree"),
    "stats": lambda path: json.loads(cat(path.parent / ":stats"))["files"] == 1,
    "changes": lambda path: cat(path.parent / ":changes").count(f"/{path.name}\n") == 1,
    "delta of the directory": lambda path: cat(path.parent / ":delta").count(f"/{path.name}\n") == 1,
    "handle": lambda path: (path.parents[4] / meta(path)["id"]).samefile(path),
    "tags": _tagged,
    "links": _linked,
    "shared": _limited,
}


@by_node
@pytest.mark.parametrize("name", sorted(VIEWS))
def test_views_on_its_own_mount_know_a_file_just_made(place: Place, name: str) -> None:
    for number, data in enumerate((b"", b"first bytes")):
        folder = place.alice / f"d{number}"
        folder.mkdir()
        used(folder)
        with created(folder / "new.md", data=data) as descriptor:
            assert VIEWS[name](folder / "new.md"), data
            os.write(descriptor, b"-last")
        there = place.bob / f"d{number}/new.md"
        if name == "shared":
            assert not there.exists() and sorted(os.listdir(there.parent)) == []
        else:
            assert there.read_bytes() == data + b"-last" and cat(view(there, ":history")).count("\n") == 1
            assert cat(view(there, ":tags")) == ("tag\n" if name == "tags" else "(no tags)\n")


@pytest.mark.parametrize(
    ("script", "size", "versions"),
    [
        ("touch f", 0, 0),
        (": > f", 0, 0),
        (": >> f", 0, 0),
        ("echo x > f", 2, 1),
        ("echo x >> f", 2, 1),
        ("cp /etc/hostname f; cp /dev/null f; touch f", 0, 2),
        ("exec 3> f; echo 1 >&3; echo 2 >&3", 4, 1),
        ("dd if=/dev/zero of=f bs=10 count=3 conv=fsync 2>&1", 30, 1),
        (": > f; echo x > f; echo x >> f", 4, 2),
        ("mktemp f.XXXX > n; echo x > $(cat n); mv $(cat n) f", 2, 1),
        ("set -C; echo x > f; ! echo y > f", 2, 1),
        ("(umask 77; echo x > f) & wait; chmod 644 f", 2, 1),
        ("truncate -s 10 f", 10, 1),
        ("printf '' | tee f", 0, 0),
        ("install -m 600 /dev/null f", 0, 0),
        ("ln -s f l; echo x > l", 2, 1),
        ("head -c 99999 /dev/zero >f", 99999, 1),
    ],
)
def test_what_a_shell_has_made_is_there_with_as_many_versions_as_ever(
    place: Place, script: str, size: int, versions: int
) -> None:
    sh(script, cwd=place.alice)
    for top in (place.bob, place.alice):
        assert (top / "f").stat().st_size == size
        history = cat(top / "f:history")
        assert history.count("\n") == versions if versions else history == "(no versions)\n", history
        assert meta(top / "f")["version"] == versions


def test_write_fsync_write_close_is_one_version_and_each_is_there_when_it_returns(place: Place) -> None:
    for number, flags in enumerate((NEW | os.O_TRUNC, NEW, NEW | os.O_EXCL)):
        there = place.bob / f"f{number}"
        with created(place.alice / there.name, flags, b"one ") as descriptor:
            os.fsync(descriptor)
            assert there.read_bytes() == b"one "
            os.write(descriptor, b"two ")
            os.close(os.dup(descriptor))
            assert there.read_bytes() == b"one two "
            os.write(descriptor, b"three")
        assert there.read_bytes() == b"one two three"
        assert cat(view(there, ":history")).count("\n") == 1
    for number, sync in enumerate((os.fsync, os.fdatasync, lambda fd: os.close(os.dup(fd)))):
        with created(place.alice / f"e{number}") as descriptor:
            sync(descriptor)
            assert (place.bob / f"e{number}").read_bytes() == b""


@pytest.mark.parametrize("data", [b"", b"first "])
def test_a_name_made_anew_after_it_was_renamed_away_is_the_same_document(place: Place, data: bytes) -> None:
    """As vim saves, and as logs are rotated."""
    for number in range(5):
        path = place.alice / f"f{number}"
        path.write_bytes(b"before")
        echo("kept", view(path, ":tags"))
        path.rename(f"{path}~")
        with created(path, FLAGS[number], data) as descriptor:
            os.write(descriptor, b"after")
        Path(f"{path}~").unlink()
        there = place.bob / path.name
        assert there.read_bytes() == data + b"after" and cat(view(there, ":tags")) == "kept\n"
        assert cat(view(there, ":history")).startswith("v2 ")


def test_hundreds_may_be_open_at_once_before_any_is_closed(place: Place) -> None:
    names = [f"f{number}" for number in range(300)]
    descriptors = {name: os.open(place.alice / name, NEW | os.O_TRUNC) for name in names}
    for name in names[::3]:
        os.write(descriptors[name], name.encode())
    for name in names[::50]:
        (place.alice / name).unlink()
    assert len(os.listdir(place.alice)) == 294
    for name in reversed(names):
        os.write(descriptors[name], name.encode())
        os.close(descriptors[name])
    assert {path.name: path.read_text() for path in place.bob.iterdir()} == {
        name: name * (1 + (number % 3 == 0)) for number, name in enumerate(names) if number % 50
    }


# Directories that go --------------------------------------------------------------------------------------------------


@by_node
@pytest.mark.parametrize("what", ["rmdir", "rename", "unlink all"])
def test_a_directory_that_is_held_takes_a_new_file_where_it_is_or_none(place: Place, what: str) -> None:
    for number in range(8):
        name = f"d{number}"
        (place.alice / name).mkdir()
        used(place.alice / name)
        held = os.open(place.alice / name, os.O_RDONLY | os.O_DIRECTORY)
        by = place.bob if number % 2 else place.alice
        (by / name).rename(by / f"{name}-moved") if what == "rename" else shutil.rmtree(by / name)
        try:
            one = os.open("f", NEW | os.O_TRUNC, dir_fd=held)
        except OSError as e:
            said = e.errno
        else:
            os.write(one, b"bytes")
            said = 0 if closes(one) == "ok" else 1
        os.close(held)
        if what == "rename":
            assert said == 0 and (place.bob / f"{name}-moved/f").read_bytes() == b"bytes"
        else:
            assert said and (number % 2 or said == errno.ENOENT)
        assert not any((top / name).exists() for top in (place.alice, place.bob))


@by_node
@pytest.mark.parametrize("data", [b"", b"bytes"])
def test_a_directory_taken_away_while_a_new_file_is_open_loses_nothing(bob: Path, place: Place, data: bytes) -> None:
    (bob / "private/taken").mkdir(exist_ok=True)
    for number, pause in enumerate(PAUSES * 2):
        (place.alice / "d").mkdir()
        used(place.alice / "d")
        one = os.open(place.alice / "d/f", NEW)
        time.sleep(pause)
        (place.bob / "d").rename(bob / f"private/taken/{data!r}{number}")
        wrote = errno_of(os.write, one, data) if data else "ok"
        there = bob / f"private/taken/{data!r}{number}/f"
        if (closes(one), wrote) == ("ok", "ok"):
            assert there.read_bytes() == data
        assert not (place.alice / "d").exists() and not (place.bob / "d").exists()


# Names that were missed ----------------------------------------------------------------------------------------------


def test_a_name_that_was_missed_is_found_once_close_has_returned(tops: list[Path]) -> None:
    alice, *others = tops
    for number in range(300):
        name, data = f"f{number % 50}", b"%d" % number * (number % 4 > 0)
        for there in others:
            assert not (there / name).exists() and errno_of(os.stat, there / name) == "ENOENT"
            assert name not in os.listdir(there)
        with created(alice / name, FLAGS[number % 5], data):
            pass
        for there in others if number % 2 else reversed(others):
            if number % 3:
                assert (there / name).stat().st_size == len(data)
            assert (there / name).read_bytes() == data and name in os.listdir(there)
        (alice / name).unlink()


def test_a_name_is_seen_within_a_second_while_its_maker_does_nothing(tops: list[Path]) -> None:
    alice, *others = tops
    looks: list[Callable[[Path], bool]] = [
        Path.exists,
        lambda path: path.name in os.listdir(path.parent),
        lambda path: errno_of(opened, path, os.O_RDONLY) == "ok",
    ]
    for number in range(12):
        look, name = looks[number % 3], f"f{number}"
        for there in others:
            assert not (there / name).exists() and name not in os.listdir(there)
        with created(alice / name, FLAGS[number % 5], b"x" * (number % 3)):
            for there in others:
                until(lambda look=look, there=there, name=name: look(there / name), SEEN_S, every_s=0.005)
                assert (there / name).exists() and name in os.listdir(there)
