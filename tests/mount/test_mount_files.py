"""Real files behave as on ext4, and the usual programs work."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import socket
import sqlite3
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from avmfs.rpc.client import RemoteDoor
from avmfs.rpc.transferring import PUT
from tests.mount.mount_world import Place, World, cat, code_of, echo, meta, needs, python, quoted, sh, until, view

pytestmark = pytest.mark.mount

GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "A",
    "GIT_COMMITTER_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


@pytest.fixture(scope="module")
def mounts() -> list[dict[str, Any]]:
    return [{"agent_id": "alice"}, {"agent_id": "bob"}, {"agent_id": "carol", "read_only": True}]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with some of everything, outside the mounts."""
    top = tmp_path / "tree"
    (top / "src/deep/er").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "README.md").write_text("# Read me\n")
    (top / "src/main.py").write_text("print('hello')\n" * 500)
    (top / "src/deep/er/data.bin").write_bytes(random.Random(1).randbytes(300_000))
    (top / "src/empty.txt").touch()
    (top / "src/run.sh").write_text("#!/bin/sh\n")
    (top / "src/run.sh").chmod(0o755)
    (top / "name with blanks.txt").write_text("blanks\n")
    (top / "link").symlink_to("src/main.py")
    for number, path in enumerate(sorted(top.rglob("*"))):
        os.utime(path, ns=(10**18 + number, 1_500_000_000_123_456_789 + number * 10**9), follow_symlinks=False)
    return top


def _same(one: Path, other: Path, *, times: bool = True) -> None:
    """The two directories hold the same: names, kinds, bytes, modes and (of files and links) mtimes."""

    def told(top: Path) -> dict[str, object]:
        found: dict[str, object] = {}
        for path in sorted(top.rglob("*")):
            at = path.lstat()
            data = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
            mtime = at.st_mtime_ns if times else None
            found[str(path.relative_to(top))] = (oct(at.st_mode), data, mtime)
        return found

    ours, theirs = told(one), told(other)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name] == theirs[name], name


# Bytes --------------------------------------------------------------------------------------------------------


def test_ten_megabytes_of_anything_come_back_as_they_were(place: Place) -> None:
    data = random.Random(7).randbytes(10 * 1024 * 1024)
    (place.alice / "big.bin").write_bytes(data)
    wanted = hashlib.sha256(data).hexdigest()
    assert sh(f"sha256sum < {quoted(place.bob / 'big.bin')}").stdout.split()[0] == wanted
    assert hashlib.sha256((place.alice / "big.bin").read_bytes()).hexdigest() == wanted
    with (place.bob / "big.bin").open("r+b") as file:
        file.seek(5_000_001)
        file.write(b"patched")
    data = data[:5_000_001] + b"patched" + data[5_000_008:]
    assert (place.alice / "big.bin").read_bytes() == data


def test_every_byte_value_survives(place: Place) -> None:
    data = bytes(range(256)) * 5 + b"\xff\xfe\x00\x00\r\n\x00"
    (place.alice / "b").write_bytes(data)
    assert (place.bob / "b").read_bytes() == data
    assert cat(view(place.bob / "b", ":data")).encode("utf-8", "surrogateescape") == data


def test_random_writes_and_truncations_are_those_of_a_local_file(place: Place, tmp_path: Path) -> None:
    dice, local = random.Random(3), tmp_path / "same"
    ours = [os.open(path, os.O_RDWR | os.O_CREAT) for path in (local, place.alice / "same")]
    try:
        for step in range(300):
            choice, at, length = dice.random(), dice.randrange(400_000), dice.randrange(1, 20_000)
            data = dice.randbytes(length)
            answers: list[Any] = []
            for descriptor in ours:
                if choice < 0.6:
                    answers.append(os.pwrite(descriptor, data, at))
                elif choice < 0.75:
                    answers.append(os.ftruncate(descriptor, at))
                elif choice < 0.85:
                    answers.append(os.fsync(descriptor))
                else:
                    answers.append(os.pread(descriptor, length, at))
                answers.append(os.fstat(descriptor).st_size)
            assert answers[:2] == answers[2:], f"step {step}"
    finally:
        for descriptor in ours:
            os.close(descriptor)
    assert (place.bob / "same").read_bytes() == local.read_bytes()


def test_gaps_are_zeros(place: Place) -> None:
    with (place.alice / "sparse").open("wb") as file:
        file.write(b"begin")
        file.seek(3_000_000)
        file.write(b"end")
    assert (place.bob / "sparse").read_bytes() == b"begin" + bytes(2_999_995) + b"end"
    sh("truncate -s 100000 t && printf x | dd of=t seek=50000 bs=1 conv=notrunc", cwd=place.alice)
    assert (place.bob / "t").read_bytes() == bytes(50_000) + b"x" + bytes(49_999)
    assert sh("tr -d '\\0' < t", cwd=place.bob).stdout == "x"


def test_truncation_counts_bytes_down_and_up(place: Place) -> None:
    (place.alice / "t").write_text("äöüß")
    os.truncate(place.alice / "t", 3)
    assert (place.bob / "t").read_bytes() == "äöüß".encode()[:3]
    os.truncate(place.bob / "t", 6)
    assert (place.alice / "t").read_bytes() == "äöüß".encode()[:3] + bytes(3)
    with (place.alice / "t").open("r+b") as file:
        file.truncate(2)
        assert os.fstat(file.fileno()).st_size == 2
    assert (place.bob / "t").stat().st_size == 2
    os.truncate(place.alice / "t", 0)
    assert (place.bob / "t").read_bytes() == b""


def test_write_plus_reads_back_and_write_only_does_not_read(place: Place) -> None:
    with (place.alice / "w").open("w+") as file:
        file.write("read back")
        file.seek(0)
        assert file.read() == "read back"
    descriptor = os.open(place.alice / "w", os.O_WRONLY)
    try:
        assert code_of(os.read, descriptor, 10) == errno.EBADF
    finally:
        os.close(descriptor)


# Names --------------------------------------------------------------------------------------------------------

NAMES = [
    b"plain",
    b"with blanks  inside ",
    "grüße 局势 🦊".encode(),
    "e\u0301 decomposed".encode(),
    b"a:b",
    b":x",
    b"what?",
    b"100%",
    b"%41",
    b"x@y",
    b"@handle",
    b"@k7f2",
    b"a&b=c",
    b"new\nline",
    b"tab\there",
    b"\xff\xfe invalid \x80",
    b"back\\slash",
    b"'quoted' \"twice\"",
    b"$HOME `id`",
    b"-rf",
    b"*",
    b".hidden",
    b"...",
    b"~",
    b"note.md:metadata",
    b"note:meta:x",
    b"12:30",
    b"a" * 255,
    "ä".encode() * 127,
    b"list",
    b"tell",
    b"CON",
    b"x:y?z=1",
    b"_",
    b"a_b",
    b"%25",
]


def test_any_name_can_be_used(place: Place) -> None:
    there, here = os.fsencode(place.alice), os.fsencode(place.bob)
    for name in NAMES:
        with open(there + b"/" + name, "wb") as file:
            file.write(b"content of " + name)
    assert sorted(os.listdir(here)) == sorted(NAMES)
    for name in NAMES:
        with open(here + b"/" + name, "rb") as file:
            assert file.read() == b"content of " + name
        assert os.stat(here + b"/" + name).st_size == len(name) + 11
    sh("cp -r . ../copied && diff -r . ../copied", cwd=place.bob)
    for number, name in enumerate(NAMES):
        os.rename(here + b"/" + name, here + b"/moved%d" % number)
        os.rename(here + b"/moved%d" % number, here + b"/" + name)
        with open(there + b"/" + name, "rb") as file:
            assert file.read() == b"content of " + name
        os.unlink(there + b"/" + name)
    assert os.listdir(here) == []
    for name in NAMES:
        os.mkdir(here + b"/" + name)
        os.symlink(b"nowhere", there + b"/" + name + b"/" + name)
        assert os.listdir(there + b"/" + name) == [name]
    sh('rm -rf ../copied && find . -mindepth 1 -delete && test -z "$(ls -A)"', cwd=place.alice)


def test_a_name_has_at_most_255_bytes(place: Place) -> None:
    assert (place.alice / ("a" * 255)).write_text("fits") == 4
    assert (place.bob / ("a" * 255)).read_text() == "fits"
    for name in ("a" * 256, "ä" * 128):
        assert code_of((place.alice / name).write_text, "x") == errno.ENAMETOOLONG
        assert code_of((place.alice / name).mkdir) == errno.ENAMETOOLONG
        assert code_of((place.alice / name).stat) == errno.ENAMETOOLONG
        assert code_of((place.alice / ("a" * 255)).rename, place.alice / name) == errno.ENAMETOOLONG
        assert code_of(os.symlink, "x", place.alice / name) == errno.ENAMETOOLONG


def test_names_that_begin_alike_are_different(place: Place) -> None:
    """The earlier AVM found /shared/foobar under /shared/foo, and took _ and % for wildcards."""
    for name in ("foobar", "a_b", "axb", "100%", "100x"):
        (place.alice / name).write_text(name)
    assert not (place.bob / "foo").exists()
    (place.alice / "foo").mkdir()
    (place.alice / "foo/in").write_text("in")
    assert os.listdir(place.bob / "foo") == ["in"]
    (place.bob / "a_b").unlink()
    (place.bob / "100%").unlink()
    sh("rm -r foo", cwd=place.bob)
    assert sorted(os.listdir(place.alice)) == ["100x", "axb", "foobar"]
    assert "foobar" not in cat(place.bob / ":list?q=fo_b")


def test_a_directory_of_ten_thousand_files_is_listed_whole(place: Place, world: World) -> None:
    (place.alice / "many").mkdir()
    names = {f"note-{number:05}.md" for number in range(10_000)}

    items = [{"path": f"{place.path}/many/{name}", "data": b""} for name in sorted(names)]
    with contextlib.closing(RemoteDoor(world.root / "run/avm.sock", "alice", timeout_s=300.0)) as door:
        for start in range(0, len(items), PUT):
            assert set(door.call("put", items=items[start : start + PUT])) == {None}
    began = time.monotonic()
    assert set(os.listdir(place.bob / "many")) == names
    assert len(os.listdir(place.bob / "many")) == 10_000
    assert sh("ls many | wc -l; ls -f many | sort | uniq -d | wc -l", cwd=place.bob).stdout.split() == ["10000", "0"]
    assert time.monotonic() - began < 300
    assert "(9900 more: offset=100)" in cat(place.bob / "many/:list")
    (place.alice / "many/note-05000.md").unlink()
    assert len(os.listdir(place.bob / "many")) == 9_999


def test_a_listing_that_goes_on_while_names_come_and_go_shows_the_others_once(place: Place) -> None:
    for number in range(1000):
        os.mknod(place.alice / f"keep{number:04}")
    seen: list[str] = []
    with os.scandir(place.bob) as entries:
        for count, entry in enumerate(entries):
            seen.append(entry.name)
            if count % 200 == 0:
                os.mknod(place.alice / f"new{count}")
                (place.alice / f"new{count}").unlink()
    kept = [name for name in seen if name.startswith("keep")]
    assert len(kept) == len(set(kept)) == 1000


# Attributes ---------------------------------------------------------------------------------------------------


def test_times_and_modes_are_kept_and_the_other_sees_them(place: Place) -> None:
    there, here = place.alice / "f", place.bob / "f"
    there.write_text("x")
    os.utime(there, ns=(1_234_567_890_123_456_789, 987_654_321_987_654_321))
    assert here.stat().st_mtime_ns == 987_654_321_987_654_321
    assert here.stat().st_atime_ns == 1_234_567_890_123_456_789
    there.chmod(0o640)
    assert stat.S_IMODE(here.stat().st_mode) == 0o640
    sh("touch -d '2001-02-03 04:05:06 UTC' f && chmod u+x f", cwd=place.bob)
    assert there.stat().st_mtime == 981173106
    assert stat.S_IMODE(there.stat().st_mode) == 0o740
    here.read_text()
    assert there.stat().st_mtime == 981173106
    before = time.time()
    there.write_text("written")
    assert before - 1 <= here.stat().st_mtime <= time.time() + 1
    sh("touch -r f g && test ! f -nt g && test ! g -nt f", cwd=place.bob)
    (place.alice / "d").mkdir(mode=0o750)
    assert stat.S_IMODE((place.bob / "d").stat().st_mode) == 0o750
    os.utime(place.alice / "d", (5, 6))
    assert (place.bob / "d").stat().st_mtime == 6


def test_a_time_that_is_set_alone_leaves_the_other(place: Place) -> None:
    file = place.alice / "f"
    file.touch()
    before = file.stat()
    sh("touch -m -d 2001-01-01T00:00:00Z f", cwd=place.alice)
    for each in (file, place.bob / "f"):
        assert (each.stat().st_atime_ns, each.stat().st_mtime_ns) == (before.st_atime_ns, 978307200 * 10**9)
    sh("touch -a -d 2002-01-01T00:00:00Z f", cwd=place.alice)
    assert (file.stat().st_atime_ns, file.stat().st_mtime_ns) == (1009843200 * 10**9, 978307200 * 10**9)


def test_a_time_set_through_an_open_file_stays_after_close(place: Place) -> None:
    with (place.alice / "f").open("w") as file:
        file.write("x" * 10)
        file.flush()
        os.utime(file.fileno(), (1000, 2000))
    assert (place.bob / "f").stat().st_mtime == 2000


def test_ctime_follows_every_change_and_no_reading(place: Place) -> None:
    path = place.alice / "f"
    path.write_text("x")

    def ctime() -> int:
        ours, theirs = path.stat().st_ctime_ns, (place.bob / "f").stat().st_ctime_ns
        assert ours == theirs
        return ours

    first = ctime()
    path.read_text(), cat(view(path, ":meta")), os.listdir(place.bob)
    assert ctime() == first
    for change in (
        lambda: path.chmod(0o600),
        lambda: os.utime(path, (1, 1)),
        lambda: (place.bob / "f").write_text("y"),
        lambda: path.rename(place.alice / "f2") and (place.alice / "f2").rename(path),
    ):
        time.sleep(0.01)
        change()
        now = ctime()
        assert now > first
        first = now
    assert abs(first / 1e9 - time.time()) < 60


def test_a_directory_s_mtime_changes_with_its_names_only(place: Place) -> None:
    (place.alice / "d").mkdir()
    (place.alice / "d/f").write_text("x")
    before = (place.bob / "d").stat().st_mtime_ns
    time.sleep(0.01)
    (place.alice / "d/f").write_text("other")
    cat(place.bob / "d/:list")
    assert (place.bob / "d").stat().st_mtime_ns == before
    (place.alice / "d/g").touch()
    assert (place.bob / "d").stat().st_mtime_ns > before


def test_link_counts_and_inodes_are_those_of_a_filesystem(place: Place) -> None:
    (place.alice / "d/one").mkdir(parents=True)
    (place.alice / "d/two").mkdir()
    (place.alice / "d/f").write_text("x")
    assert (place.bob / "d").stat().st_nlink == 4
    assert (place.bob / "d/f").stat().st_nlink == 1
    inodes = {path: path.stat().st_ino for path in (place.bob / "d").iterdir()}
    assert len(set(inodes.values())) == 3 and 0 not in inodes.values()
    (place.alice / "d/f").rename(place.alice / "d/one/g")
    assert (place.bob / "d/one/g").stat().st_ino == inodes[place.bob / "d/f"]


def test_df_is_sane(place: Place) -> None:
    found = os.statvfs(place.bob)
    assert found.f_frsize > 0 and 0 < found.f_bavail <= found.f_bfree <= found.f_blocks and found.f_namemax == 255
    rows = sh("df . && df -i .", cwd=place.bob).stdout.splitlines()
    assert rows[1].split()[0] == "avmfs"


def test_hard_links_fifos_sockets_and_devices_are_refused(place: Place) -> None:
    (place.alice / "f").write_text("x")
    assert code_of(os.link, place.alice / "f", place.alice / "hard") == errno.EPERM
    assert code_of(os.mkfifo, place.alice / "fifo") == errno.EPERM
    assert code_of(os.mknod, place.alice / "dev", stat.S_IFCHR | 0o600, os.makedev(1, 3)) == errno.EPERM
    with socket.socket(socket.AF_UNIX) as server:
        # The address has its own limit of length.
        os.symlink(place.alice, short := f"/tmp/avmt-s{os.getpid()}")
        try:
            assert code_of(server.bind, f"{short}/sock") == errno.EPERM
        finally:
            os.unlink(short)
    assert os.listdir(place.bob) == ["f"]


def test_the_usual_mistakes_have_the_usual_errors(place: Place) -> None:
    (place.alice / "d/sub").mkdir(parents=True)
    (place.alice / "f").write_text("x")
    there = place.alice
    assert code_of((there / "f/x").stat) == errno.ENOTDIR
    assert code_of((there / "d").read_bytes) == errno.EISDIR
    assert code_of((there / "d").rmdir) == errno.ENOTEMPTY
    assert code_of((there / "f").rmdir) == errno.ENOTDIR
    assert code_of(os.unlink, there / "d") in (errno.EISDIR, errno.EPERM)
    assert code_of((there / "d").mkdir) == errno.EEXIST
    assert code_of((there / "none").unlink) == errno.ENOENT
    assert code_of((there / "no/where").write_text, "x") == errno.ENOENT
    assert code_of((there / "f").rename, there / "d") == errno.EISDIR
    assert code_of((there / "d").rename, there / "f") == errno.ENOTDIR
    assert code_of((there / "d").rename, there / "d/sub/d") == errno.EINVAL
    assert code_of(os.readlink, there / "f") == errno.EINVAL
    assert code_of(os.open, there / "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY) == errno.EEXIST
    assert sorted(os.listdir(there)) == ["d", "f"] and (there / "f").read_text() == "x"


def test_nothing_can_be_made_at_the_root(alice: Path) -> None:
    before = sorted(os.listdir(alice))
    assert before == ["memory", "private", "shared", "tell"]
    for function in ((alice / "f").write_text, (alice / "memory2/x").write_text):
        assert code_of(function, "x") in (errno.EACCES, errno.EPERM, errno.ENOENT)
    assert code_of((alice / "d").mkdir) in (errno.EACCES, errno.EPERM)
    assert code_of((alice / "memory").rename, alice / "memory9") in (errno.EACCES, errno.EPERM)
    assert code_of((alice / "memory/shared").rename, alice / "memory/other") in (errno.EACCES, errno.EPERM)
    assert code_of((alice / "memory/private").rmdir) in (errno.EACCES, errno.EPERM, errno.ENOTEMPTY)
    assert sorted(os.listdir(alice)) == before


# Symlinks -----------------------------------------------------------------------------------------------------


def test_symlinks_are_kept_as_they_were_written(place: Place, bob: Path) -> None:
    (place.alice / "d").mkdir()
    (place.alice / "d/target").write_text("reached\n")
    os.symlink("d/target", place.alice / "relative")
    os.symlink("../d", place.alice / "d/up")
    os.symlink("/etc/hostname", place.alice / "absolute")
    os.symlink("nowhere/at all", place.alice / "dangling")
    os.symlink(b"\xff\n" + b"x" * 3000, os.fsencode(place.alice / "long"))
    assert os.readlink(place.bob / "relative") == "d/target"
    assert (place.bob / "relative").read_text() == (place.bob / "d/up/target").read_text() == "reached\n"
    assert os.readlink(place.bob / "absolute") == "/etc/hostname"
    assert os.readlink(os.fsencode(place.bob / "long")) == b"\xff\n" + b"x" * 3000
    assert (place.bob / "dangling").is_symlink() and not (place.bob / "dangling").exists()
    assert (place.bob / "relative").lstat().st_size == len("d/target")
    (place.bob / "relative").write_text("through the link\n")
    assert (place.alice / "d/target").read_text() == "through the link\n"
    (place.bob / "relative").unlink()
    assert (place.alice / "d/target").exists()


def test_private_and_shared_are_symlinks_to_the_agent_s_own_places(alice: Path, bob: Path) -> None:
    assert os.readlink(alice / "private") == "memory/private/alice"
    assert os.readlink(bob / "private") == "memory/private/bob"
    assert os.readlink(bob / "shared") == "memory/shared"
    (alice / "private/own.md").write_text("mine\n")
    assert (alice / "memory/private/alice/own.md").read_text() == "mine\n"
    assert os.listdir(bob / "private") == [] and os.listdir(bob / "memory/private") == ["bob"]


# Programs -----------------------------------------------------------------------------------------------------


def test_cp_and_rm_of_a_tree(place: Place, tree: Path) -> None:
    sh(f"cp -r {quoted(tree)} one && cp -a {quoted(tree)} two", cwd=place.alice)
    _same(tree, place.bob / "one", times=False)
    _same(tree, place.bob / "two")
    sh("cp -p two/README.md three && cp -r two four", cwd=place.bob)
    assert (place.alice / "three").stat().st_mtime_ns == (tree / "README.md").stat().st_mtime_ns
    _same(tree, place.alice / "four", times=False)
    sh("rm -r one two four && mkdir -p a/b/c/d && rm -r a three", cwd=place.bob)
    assert os.listdir(place.alice) == []


def test_moving_a_directory_keeps_its_documents(place: Place) -> None:
    (place.alice / "old/deep").mkdir(parents=True)
    note = place.alice / "old/deep/note.md"
    note.write_text("one\n")
    note.write_text("two\n")
    (place.alice / "other.md").write_text("other\n")
    echo("kept", view(note, ":tags"))
    echo(f"{place.path}/other.md", view(note, ":links"))
    cat(view(place.bob / "old/deep/note.md", ":delta"))
    before, history = meta(note), cat(view(note, ":history"))
    sh("mkdir -p new/place && mv old new/place/", cwd=place.bob)
    moved = place.alice / "new/place/old/deep/note.md"
    after = meta(moved)
    assert after == {**before, "path": f"{place.path}/new/place/old/deep/note.md", "indexed": after["indexed"]}
    assert cat(view(moved, ":history")) == history
    assert cat(view(moved, ":links")) == f"-> {place.path}/other.md (related)\n"
    assert cat(view(place.bob / "new/place/old/deep/note.md", ":delta")) == "(no changes)\n"
    assert f"{place.path}/new/place/old/deep/note.md (related)" in cat(view(place.bob / "other.md", ":links"))
    assert not (place.alice / "old").exists()


@needs("git")
def test_git_works(place: Place, tree: Path) -> None:
    sh(
        f"git init -q repo && cp -a {quoted(tree)}/. repo/ && cd repo && git add -A && git commit -qm first"
        " && echo more >> README.md && git commit -qam second && git mv src/main.py src/app.py && git commit -qm third"
        " && git gc -q && git fsck --strict",
        cwd=place.alice,
        env=GIT,
        limit_s=300,
    )
    there = place.bob / "repo"
    assert sh("git status --porcelain && git log --format=%s", cwd=there, env=GIT).stdout.split() == [
        "third",
        "second",
        "first",
    ]
    sh("git checkout -q HEAD~2 && test -e src/main.py && git checkout -q - && git branch topic", cwd=there, env=GIT)
    assert sh("git status --porcelain && git branch", cwd=place.alice / "repo", env=GIT).stdout.split() == [
        "*",
        "master",
        "topic",
    ]
    sh("rmdir repo/empty && git clone -q repo clone && cd clone && git fsck", cwd=place.bob, env=GIT)
    sh("diff -r --no-dereference -x .git clone repo", cwd=place.alice)


@needs("rsync")
def test_rsync_copies_everything_and_then_nothing(place: Place, tree: Path) -> None:
    sh(f"rsync -a {quoted(tree)}/ mirror/", cwd=place.alice)
    _same(tree, place.bob / "mirror")
    assert sh(f"rsync -ai {quoted(tree)}/ mirror/", cwd=place.bob).stdout == ""
    (tree / "README.md").write_text("# Changed\n")
    changed = sh(f"rsync -ai {quoted(tree)}/ mirror/", cwd=place.bob).stdout
    assert [line.split()[-1] for line in changed.splitlines() if line.startswith(">f")] == ["README.md"]
    sh("rsync -a mirror/ again/ && rsync -a --checksum --delete mirror/ again/", cwd=place.alice)
    assert sh("rsync -aic mirror/ again/", cwd=place.alice).stdout == ""


def test_tar_both_ways(place: Place, tree: Path, tmp_path: Path) -> None:
    sh(f"tar -C {quoted(tree)} --format=posix -cf - . | (mkdir in && tar -C in -xf -)", cwd=place.alice)
    _same(tree, place.bob / "in")
    (tmp_path / "out").mkdir()
    sh(f"tar --format=posix -cf - -C in . | tar -C {quoted(tmp_path / 'out')} -xf -", cwd=place.bob)
    _same(tree, tmp_path / "out")
    sh("tar -czf in.tgz in && tar -tzf in.tgz > names && tar -dzf in.tgz", cwd=place.bob)
    assert not [line for line in (place.bob / "names").read_text().splitlines() if ":" in line]


@pytest.mark.parametrize("mode", ["wal", "delete", "truncate", "persist"])
def test_an_sqlite_database_works_within_one_mount(place: Place, mode: str) -> None:
    path = place.alice / "data.db"
    code = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=300)
for number in range(20):
    with db:
        db.execute("insert into t(who, n) values (?, ?)", (sys.argv[2], number))
db.close()
"""
    with sqlite3.connect(path) as db:
        assert db.execute(f"pragma journal_mode={mode}").fetchone() == (mode,)
        db.execute("create table t(who text, n int)")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda who: python(code, path, who), ["one", "two"]))
    assert db.execute("select who, count(*) from t group by who").fetchall() == [("one", 20), ("two", 20)]
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    try:
        with db:
            db.execute("delete from t")
            raise KeyError
    except KeyError:
        pass
    assert db.execute("select count(*) from t").fetchone() == (40,)
    db.close()
    other = sqlite3.connect(f"file:{place.bob / 'data.db'}?mode=ro", uri=True)
    assert other.execute("select count(*) from t").fetchone() == (40,)
    other.close()


def test_sqlite_rollback_databases_work_across_mounts(place: Place) -> None:
    code = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=300, isolation_level=None)
for number in range(15):
    db.execute("begin immediate")
    (n,) = db.execute("select n from t").fetchone()
    db.execute("update t set n = ?", (n + 1,))
    db.execute("commit")
"""
    with sqlite3.connect(place.alice / "c.db") as db:
        db.execute("create table t(n int)")
        db.execute("insert into t values(0)")
    db.close()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda path: python(code, path / "c.db", limit_s=300), [place.alice, place.bob]))
    db = sqlite3.connect(place.bob / "c.db")
    assert db.execute("select n from t").fetchone() == (30,)
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    db.close()


# A read-only mount --------------------------------------------------------------------------------------------


def test_a_read_only_mount_reads_everything_and_changes_nothing(world: World, place: Place) -> None:
    there = world.mounts["carol"] / place.path[1:]
    (place.alice / "d").mkdir()
    (place.alice / "f").write_text("as it is")
    (place.alice / "f").chmod(0o666)
    assert (there / "f").read_text() == "as it is"
    assert "f" in cat(there / ":list")
    for function, *arguments in (
        ((there / "f").write_text, "no"),
        ((there / "new").write_text, "no"),
        ((there / "f").unlink,),
        ((there / "d").rmdir,),
        ((there / "e").mkdir,),
        ((there / "f").rename, there / "g"),
        ((there / "f").chmod, 0o600),
        (os.utime, there / "f", (1, 1)),
        (os.truncate, there / "f", 0),
        (os.symlink, "x", there / "s"),
        (echo, "tag", view(there / "f", ":tags")),
        (echo, "hello", world.mounts["carol"] / "tell/alice"),
        (cat, view(there, ":next")),
    ):
        assert code_of(function, *arguments) == errno.EROFS, function
    assert sh(f"echo no > {quoted(there / 'f')}", check=False).returncode != 0
    assert (place.alice / "f").read_text() == "as it is"
    assert cat(view(place.alice / "f", ":claim")) == "(unclaimed)\n"
    (place.alice / "f").write_text("changed")
    until(lambda: (there / "f").read_text() == "changed")
    assert sorted(os.listdir(there)) == ["d", "f"]
