"""The tree as it was, through real mounts: beside plain copies of it, by ordinary programs, for everybody's rights."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import sqlite3
import stat
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from avmfs import AVM
from tests.behind import connect
from tests.mount.mount_world import Place, World, cat, code_of, needs, sh

STEPS = int(os.environ.get("AVM_PAST_STEPS", "600"))  # of changes, and one in fifty is kept and compared
HANGS_AFTER_S = 1500.0  # thousands of files are compared, by three mounts
pytestmark = [pytest.mark.mount, pytest.mark.timeout(1800)]
Tree = dict[str, tuple[Any, ...]]


@pytest.fixture(scope="module")
def mounts() -> list[dict[str, Any]]:
    return [{"agent_id": "alice"}, {"agent_id": "bob"}, {"agent_id": "carol"}]


def copied(top: Path) -> Tree:
    """By path below it: type, mode (as far as everybody may read it the same), size, mtime, bytes or target."""
    seen: Tree = {}
    for folder, directories, files in os.walk(top):
        for name in [*directories, *files]:
            path = Path(folder) / name
            told = path.lstat()
            link = stat.S_ISLNK(told.st_mode)
            data: Any = os.readlink(path) if link else path.read_bytes() if path.is_file() else b""
            bits = 0 if link else told.st_mode & 0o555
            size = 0 if path.is_dir() and not link else told.st_size
            seen[str(path.relative_to(top))] = (stat.S_IFMT(told.st_mode), bits, size, told.st_mtime_ns, data)
    return seen


def now() -> str:
    """An instant that no change of before or after shares, as it stands in a path."""
    time.sleep(0.002)
    found = time.time_ns()
    time.sleep(0.002)
    seconds, rest = divmod(found, 10**9)
    return time.strftime("@%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1000:06d}Z"


def change(rnd: random.Random, top: Path) -> None:
    path, other = (top / rnd.choice(["", "d1", "d2", "d1/d3"]) / f"f{rnd.randrange(75)}" for _ in range(2))
    kind = rnd.randrange(10)
    if kind < 4:
        path.write_bytes(rnd.randbytes(rnd.choice([0, 9, 800, 9000, 90_000])))
    elif kind == 4:
        with open(path, "ab") as file:
            file.write(rnd.randbytes(50))
    elif kind == 5:
        path.rename(other)
    elif kind == 6:
        path.unlink()
    elif kind == 7:
        path.chmod(rnd.choice([0o600, 0o644, 0o755]))
    elif kind == 8:
        temporary = path.with_name("saved")
        temporary.write_bytes(rnd.randbytes(700))
        temporary.rename(path)
    else:
        os.symlink(f"to-{rnd.randrange(9)}", path)


def test_the_mounted_past_is_what_a_plain_copy_of_it_was_also_after_a_kill(world: World) -> None:
    tops = [world.mounts[name] / "memory" / "shared" for name in ("alice", "bob", "carol")]
    for name in ("d1", "d1/d3", "d2"):
        (tops[0] / name).mkdir()
    rnd = random.Random(20)
    kept: dict[str, Tree] = {}
    instants = set(rnd.sample(range(STEPS), STEPS // 50))
    for step in range(STEPS):
        try:
            change(rnd, rnd.choice(tops))
        except OSError as e:
            assert e.errno in (errno.ENOENT, errno.EEXIST), e
        if step in instants:
            kept[now()] = copied(tops[0])
    assert len(max(kept.values(), key=len)) > 150
    for moment, was in kept.items():
        assert copied(world.mounts["bob"] / moment / "memory" / "shared") == was, moment
    world.kill()
    world.expected.append("after its last flush are lost")
    world.start()
    for moment, was in kept.items():
        assert copied(world.mounts["carol"] / moment / "shared") == was, moment


@needs("flock")
def test_a_file_of_the_past_can_be_locked_as_who_reads_a_database_does(place: Place) -> None:
    here = place.alice
    with contextlib.closing(sqlite3.connect(here / "j.db")) as db:
        db.executescript("create table t(x); insert into t values (7)")
    moment = now()
    (here / "j.db").unlink()
    mount = next(parent for parent in here.parents if os.path.ismount(parent))
    past = mount / moment / here.relative_to(mount) / "j.db"
    with contextlib.closing(sqlite3.connect(f"file:{past}?mode=ro", uri=True)) as db:
        assert db.execute("select x from t").fetchall() == [(7,)]
    sh(f"flock -s {past} true && flock -x {past} true")
    with past.open("rb") as file:
        fcntl.lockf(file, fcntl.LOCK_SH)
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        assert fcntl.fcntl(file, fcntl.F_GETLK, asked)[:2] == struct.pack("h", fcntl.F_UNLCK)
        fcntl.lockf(file, fcntl.LOCK_UN)


@needs("git", "rsync")
def test_ordinary_programs_work_in_the_past(place: Place, tmp_path: Path) -> None:
    here = place.alice
    (here / "a.md").write_text("one\n")
    (here / "d").mkdir()
    (here / "d" / "b.md").write_text("b\n" * 50_000)
    os.symlink("a.md", here / "link")
    moment = now()
    (here / "a.md").write_text("two\n")
    (here / "d" / "b.md").unlink()
    (here / "d").rmdir()
    mount = next(parent for parent in here.parents if os.path.ismount(parent))
    past = mount / moment / here.relative_to(mount)
    assert sorted(os.listdir(past)) == ["a.md", "d", "link"]
    sh(f"cp -a {past} {tmp_path}/copy && rsync -a {past}/ {tmp_path}/synced/")
    assert copied(tmp_path / "copy") == copied(past)
    for to in ("copy", "synced"):
        assert (tmp_path / to / "d" / "b.md").read_text() == "b\n" * 50_000
    assert sh(f"grep -rl one {past}").stdout == f"{past}/a.md\n"
    told = sh(f"diff -r {past} {here}", check=False).stdout
    assert "< one" in told and "> two" in told and f"Only in {past}: d" in told
    assert "-one" in sh(f"git diff --no-index {past}/a.md {here}/a.md", check=False).stdout
    assert sh(f"cd {past}/d && wc -l < b.md && find . -type f").stdout == "50000\n./b.md\n"
    for attempt in (
        lambda: (past / "new").write_text("x"),
        lambda: (past / "a.md").write_text("x"),
        lambda: (past / "a.md").unlink(),
        lambda: (past / "a.md").chmod(0o777),
        lambda: (past / "a.md").rename(past / "z"),
        lambda: (past / "n").mkdir(),
        lambda: os.truncate(past / "a.md", 0),
        lambda: (past / "a.md").rename(here / "z"),
    ):
        assert code_of(attempt) in (errno.EROFS, errno.EACCES)
    assert not any(name.startswith("@") for name in os.listdir(mount))


def test_a_snapshot_of_a_part_is_a_tree_of_its_own_beside_the_whole(world: World) -> None:
    mount = world.mounts["alice"]
    top = mount / "memory" / "shared"
    for name in ("part", "beside"):
        (top / name).mkdir()
        (top / name / "a.md").write_text(name)
    with AVM(agent="alice", environ=world.environ) as avm:
        avm.snapshot("part", "/shared/part")
    with contextlib.closing(connect(world.root / "data" / "avm.db")) as db:
        seq = db.execute("select seq from snapshot").get
    whole, part = (mount / name / "memory" / "shared" for name in (f"@seq.{seq}", "@snap.part"))  # after one change
    for _ in range(2):
        assert {"part", "beside"} <= set(os.listdir(whole)) and (whole / "beside" / "a.md").read_text() == "beside"
        assert os.listdir(part) == ["part"] and (part / "part" / "a.md").read_text() == "part"
        assert code_of(lambda: (part / "beside").stat()) == errno.ENOENT
    assert whole.stat().st_ino != part.stat().st_ino


def test_views_of_the_past_tell_of_then(place: Place) -> None:
    here = place.alice
    (here / "a.md").write_text("the owl flies\n")
    (here / "a.md:tags").write_text("bird\n")
    (here / "gone.md").write_text("the owl sleeps\n")
    moment = now()
    (here / "a.md").write_text("the owl swims\n")
    (here / "a.md:tags").write_text("fish\n")
    (here / "gone.md").unlink()
    (here / "later.md").write_text("the owl sings\n")
    (here / "kept.md").write_text("x\n")
    mount = next(parent for parent in here.parents if os.path.ismount(parent))
    past = mount / moment / here.relative_to(mount)
    assert cat(past / "a.md:tags") == "bird\n"
    assert cat(past / "a.md:history").count("\n") == 1
    assert '"version": 1' in cat(past / "a.md:meta")
    assert "gone.md" in cat(past / ":list") and "later.md" not in cat(past / ":list")
    assert "gone.md" in cat(past / ":tree") and '"files": 2' in cat(past / ":stats")
    recalled = cat(past / ":recall?q=owl")
    assert recalled.startswith("# as of ") and "2 files of then, changed or gone since, could not" in recalled
    assert "sings" not in recalled and "swims" not in recalled
    assert code_of(os.stat, past / "a.md:delta") == errno.ENOENT
    assert code_of(open, past / "a.md:tags", "w") in (errno.EROFS, errno.EACCES)
    later = mount / now() / here.relative_to(mount)
    assert "sings" in cat(later / ":recall?q=owl") and "all of it was searched" in cat(later / ":recall?q=owl")


def test_what_is_not_kept_says_from_when_on_the_past_is(world: World) -> None:
    mount = world.mounts["alice"]
    for name in ("@1999-01-01", "@2999-01-01", "@-999d", "@snap.none"):
        assert code_of(os.listdir, mount / name) == errno.ENOENT
    assert code_of(os.listdir, mount / "@1999-01-01") == errno.ENOENT
    assert "the past is kept from" in cat(mount / ":error")
    assert code_of(os.listdir, mount / "@2026-99-01") == errno.ENOENT
    assert "expected @yesterday" in cat(mount / ":error")


def test_a_private_past_stays_private(world: World) -> None:
    alice, bob = (world.mounts[name] for name in ("alice", "bob"))
    (alice / "private" / "draft.md").write_text("a secret sentence\n")
    before = now()
    (alice / "private" / "draft.md").write_text("for all\n")
    (alice / "private" / "draft.md").rename(alice / "shared" / "draft.md")
    after = now()
    assert (alice / before / "private" / "draft.md").read_text() == "a secret sentence\n"
    assert code_of(os.stat, bob / before / "memory" / "private" / "alice") == errno.ENOENT
    assert code_of(os.stat, bob / before / "shared" / "draft.md") == errno.ENOENT
    assert (bob / after / "shared" / "draft.md").read_text() == "for all\n"
    assert cat(bob / after / "shared" / "draft.md:history").count("\n") == 1
    assert "secret" not in sh(f"grep -r . {bob}/{before} {bob}/{after}", check=False).stdout
