"""What the kernel may ask of a file, a directory or an attribute beyond reading and writing, on every front end."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from avmfs import AVM
from tests.mount.mount_world import Place, World, cat, code_of, echo, linux_only, until, view

pytestmark = pytest.mark.mount

_LIBC = ctypes.CDLL(None, use_errno=True)
KEEP_SIZE, PUNCH_HOLE, COLLAPSE, ZERO_RANGE = 1, 2, 8, 16


@pytest.fixture(scope="module")
def mounts() -> list[dict[str, Any]]:
    return [{"agent_id": "alice", "xattr": True}, {"agent_id": "bob"}, {"agent_id": "carol", "coherence": "strict"}]


def _fallocate(descriptor: int, mode: int, offset: int, length: int) -> int:
    """0, or the errno."""
    done = _LIBC.fallocate(descriptor, mode, ctypes.c_long(offset), ctypes.c_long(length))
    return ctypes.get_errno() if done else 0


# Pages ----------------------------------------------------------------------------------------------------------


def test_an_open_after_another_mounts_commit_reads_the_new_bytes_however_often_the_old_were_read(place: Place) -> None:
    """Of the same size, and with the time set back, so that nothing but the open itself can tell."""
    for number in range(60):
        text = f"{number:03}"
        (place.alice / "f").write_text(text)
        os.utime(place.alice / "f", (1, 1))
        for _ in range(3):
            assert (place.bob / "f").read_text() == text


def test_many_readers_see_every_commit_that_was_acknowledged_before_they_opened(place: Place) -> None:
    (place.alice / "f").write_text("000000")
    acknowledged, over, wrong = [0], threading.Event(), []

    def reading() -> None:
        while not over.is_set():
            least = acknowledged[0]
            found = int((place.bob / "f").read_text())
            if found < least:
                wrong.append((found, least))

    readers = [threading.Thread(target=reading) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1, 150):
            (place.alice / "new").write_text(f"{number:06}")
            if number % 2:
                (place.alice / "new").rename(place.alice / "f")
            else:
                (place.alice / "f").write_text(f"{number:06}")
            acknowledged[0] = number
    finally:
        over.set()
        for reader in readers:
            reader.join(300)
    assert wrong == []


def test_what_a_shared_mapping_wrote_is_read_by_the_next_open_everywhere(place: Place) -> None:
    path = place.bob / "mapped"
    path.write_bytes(b"a" * 8192)
    assert path.read_bytes() == b"a" * 8192
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 8192) as shared:
        shared[4096:4101] = b"HELLO"
        shared.flush()
        os.fsync(file.fileno())
        assert (place.alice / "mapped").read_bytes()[4096:4101] == b"HELLO"
        assert path.read_bytes()[4096:4101] == b"HELLO"
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as private:
        assert private[4096:4101] == b"HELLO"


# Listings -------------------------------------------------------------------------------------------------------


def test_a_listing_shows_what_was_there_when_the_directory_was_opened(place: Place) -> None:
    """The kernel may keep a listing only while nothing has changed: names, visibility, nothing."""
    seen: set[str] = set()
    for number in range(40):
        assert set(os.listdir(place.bob)) == seen
        assert set(os.listdir(place.bob)) == seen
        (place.alice / f"f{number}").write_text("x")
        seen.add(f"f{number}")
        if number % 3 == 2:
            (place.alice / f"f{number - 1}").unlink()
            seen.discard(f"f{number - 1}")
    assert set(os.listdir(place.bob)) == seen
    echo("alice", view(place.alice / "f39", ":shared"))
    assert set(os.listdir(place.bob)) == seen - {"f39"}
    echo("all", view(place.alice / "f39", ":shared"))
    assert set(os.listdir(place.bob)) == seen


def test_a_private_index_of_code_is_listed_and_read_as_files(world: World, alice: Path, tmp_path: Path) -> None:
    (tmp_path / "barn.py").write_text("def harvest() -> None: ...\n")
    with AVM(agent="alice", environ=world.environ) as avm:
        avm.index_scan("house", tmp_path, private=True)
    assert (alice / "tell").is_dir() and (alice / "index/private").stat().st_ino != (alice / "tell").stat().st_ino
    sheets = [path for path in (alice / "index/private/alice/house").rglob("*") if path.is_file()]
    assert any("harvest" in sheet.read_text() for sheet in sheets)


def test_an_expired_name_leaves_a_listing_without_any_commit(place: Place) -> None:
    (place.alice / "brief").write_text("x")
    assert os.listdir(place.bob) == ["brief"]
    echo("1s", view(place.alice / "brief", ":ttl"))
    assert os.listdir(place.bob) in (["brief"], [])
    until(lambda: os.listdir(place.bob) == [])


def test_names_that_stay_are_listed_once_while_thousands_come_and_go(place: Place) -> None:
    stay = {f"stay{number:05}" for number in range(2500)}
    folder = place.alice / "many"
    folder.mkdir()
    for name in stay:
        (folder / name).touch()
    over = threading.Event()

    def churn() -> None:
        number = 0
        while not over.is_set():
            number += 1
            (folder / f"stay{number % 2500:05}-x").touch()
            (folder / f"stay{(number - 5) % 2500:05}-x").unlink(missing_ok=True)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(4):
            found: list[str] = []
            with os.scandir(place.bob / "many") as entries:
                for entry in entries:
                    found.append(entry.name)
                    if len(found) % 700 == 0:
                        time.sleep(0.02)
            kept = [name for name in found if name in stay]
            assert len(kept) == len(set(kept)) and set(kept) == stay
    finally:
        over.set()
        thread.join(300)


def test_a_directory_stream_can_be_rewound_and_sought(place: Place) -> None:
    names = sorted(f"n{number:04}" for number in range(1500))
    for name in names:
        (place.alice / name).touch()
    _LIBC.opendir.restype = ctypes.c_void_p
    _LIBC.readdir.restype = ctypes.c_void_p
    _LIBC.telldir.restype = ctypes.c_long
    stream = ctypes.c_void_p(_LIBC.opendir(os.fsencode(place.bob)))

    def following() -> str | None:
        entry = _LIBC.readdir(stream)
        return None if not entry else ctypes.string_at(entry + 19).decode()

    try:
        found, places = [], {}
        while (name := following()) is not None:
            found.append(name)
            places[name] = _LIBC.telldir(stream)
        assert sorted(found) == sorted([*names, ".", ".."])
        for name in ("n0003", "n1200", "n0900"):
            _LIBC.seekdir(stream, ctypes.c_long(places[name]))
            assert following() == f"n{int(name[1:]) + 1:04}"
        (place.alice / "a-new-one").touch()
        _LIBC.rewinddir(stream)
        again = []
        while (name := following()) is not None:
            again.append(name)
        assert "a-new-one" in again and len(again) == len(found) + 1
    finally:
        _LIBC.closedir(stream)


@pytest.mark.parametrize("first", ["alice", "bob"])
def test_who_has_uncommitted_bytes_reads_what_another_mount_commits_beside_them(place: Place, first: str) -> None:
    """``first``: who writes first; bob always commits after alice has written and read."""
    (place.alice / "f").write_bytes(b"0" * 16384)
    here, there = os.open(place.alice / "f", os.O_RDWR), os.open(place.bob / "f", os.O_RDWR)
    try:
        for number in range(5):
            mine, other = b"alice%d" % number, b"bob%d" % number
            if first == "alice":
                os.pwrite(here, mine, 0)
            else:
                os.pwrite(there, other, 8192)
                os.pwrite(here, mine, 0)
            assert other not in os.pread(here, 16384, 0)
            if first == "alice":
                os.pwrite(there, other, 8192)
            os.fsync(there)
            seen = os.fstat(here)
            assert os.pread(here, len(other), 8192) == other and os.pread(here, len(mine), 0) == mine
            assert os.fstat(here).st_mtime_ns == seen.st_mtime_ns
            os.fsync(here)
            assert os.pread(here, len(other), 8192) == other and os.pread(there, len(mine), 0) == mine
    finally:
        os.close(here)
        os.close(there)


def test_an_open_file_is_read_anew_though_its_time_was_set_back(place: Place) -> None:
    """As by `rsync --inplace -t`: the kernel compares size and mtime."""
    path, at = place.alice / "f", (10**18, 10**18)
    path.write_bytes(b"0" * 8192)
    os.utime(path, ns=at)
    with open(place.bob / "f", "rb", buffering=0) as file:
        for number in range(1, 4):
            assert os.pread(file.fileno(), 8192, 0) == b"%d" % (number - 1) * 8192
            with open(path, "r+b", buffering=0) as changed:
                changed.write(b"%d" % number * 8192)
                os.utime(changed.fileno(), ns=at)
            assert os.fstat(file.fileno()).st_mtime_ns == 10**18
            assert os.pread(file.fileno(), 8192, 0) == b"%d" % number * 8192


@linux_only("libfuse's kernel takes the new time over and keeps its pages")
@pytest.mark.parametrize("change", [(os.fchmod, 0o600), (os.utime, (5, 6)), (os.chown, -1, 7), (os.truncate, 8192)])
def test_an_open_file_is_read_anew_though_its_attributes_were_set(place: Place, change: tuple[Any, ...]) -> None:
    """The kernel takes over the time that the change comes with, and then has nothing to compare."""
    (place.alice / "f").write_bytes(b"0" * 8192)
    with open(place.bob / "f", "r+b", buffering=0) as file:
        assert os.pread(file.fileno(), 8192, 0) == b"0" * 8192
        with open(place.alice / "f", "r+b", buffering=0) as changed:
            changed.write(b"1" * 8192)
        call, *values = change
        call(file.fileno(), *values)
        assert os.pread(file.fileno(), 8192, 0) == b"1" * 8192


def test_times_do_not_go_back_when_what_was_written_earlier_is_committed_later(place: Place) -> None:
    (place.alice / "f").write_bytes(b"0123456789")
    for change in (lambda path: path.write_bytes(b"BBBBBBBBBB"), lambda path: path.chmod(0o600)):
        with open(place.alice / "f", "r+b", buffering=0) as file:
            file.write(b"A")
            change(place.bob / "f")
            before = (place.bob / "f").stat()
        after = (place.bob / "f").stat()
        assert (place.bob / "f").read_bytes().startswith(b"AB")
        assert after.st_mtime_ns >= before.st_mtime_ns and after.st_ctime_ns > before.st_ctime_ns
        (place.alice / "f").write_bytes(b"BBBBBBBBBB")


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b"B" * 10), lambda path: path.chmod(0o600)])
def test_who_saves_is_shown_the_times_that_all_have_though_another_was_in_between(
    place: Place, change: Callable[[Path], object]
) -> None:
    (place.alice / "f").write_bytes(b"0123456789")
    with open(place.alice / "f", "r+b", buffering=0) as file:
        file.write(b"A")
        change(place.bob / "f")
        before, shown = (place.bob / "f").stat(), os.fstat(file.fileno())
        assert shown.st_mtime_ns >= before.st_mtime_ns and shown.st_ctime_ns >= before.st_ctime_ns
    here, there = (place.alice / "f").stat(), (place.bob / "f").stat()
    assert (here.st_atime_ns, here.st_mtime_ns, here.st_ctime_ns) == (
        there.st_atime_ns,
        there.st_mtime_ns,
        there.st_ctime_ns,
    )


# Holes ----------------------------------------------------------------------------------------------------------


def test_fallocate_reaches_keeps_punches_and_zeroes_as_on_a_local_disk(place: Place, tmp_path: Path) -> None:
    for path in (tmp_path / "f", place.alice / "f"):
        with open(path, "w+b", buffering=0) as file:
            descriptor = file.fileno()
            file.write(b"x" * 10000)
            told = [
                _fallocate(descriptor, 0, 5000, 10000),
                os.fstat(descriptor).st_size,
                _fallocate(descriptor, KEEP_SIZE, 15000, 10000),
                os.fstat(descriptor).st_size,
                _fallocate(descriptor, PUNCH_HOLE | KEEP_SIZE, 100, 200),
                os.fstat(descriptor).st_size,
                _fallocate(descriptor, PUNCH_HOLE | KEEP_SIZE, 9000, 90000),
                os.fstat(descriptor).st_size,
                _fallocate(descriptor, ZERO_RANGE, 14000, 6000),
                os.fstat(descriptor).st_size,
            ]
            assert told == [0, 15000, 0, 15000, 0, 15000, 0, 15000, 0, 20000], path
            expected = bytearray(20000)
            expected[:9000] = b"x" * 9000
            expected[100:300] = bytes(200)
            assert os.pread(descriptor, 30000, 0) == expected
    assert (place.bob / "f").read_bytes() == expected
    with open(place.alice / "f", "r+b") as file:
        assert _fallocate(file.fileno(), COLLAPSE, 0, 4096) == errno.EOPNOTSUPP


@pytest.mark.parametrize("mode", ["grow", 0, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE | KEEP_SIZE, ZERO_RANGE])
def test_what_another_mount_appends_stays_when_a_file_is_made_longer_or_zeroed_to_its_end(
    place: Place, mode: int | str
) -> None:
    added = b"from bob" * 40
    descriptor = os.open(place.alice / "f", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"x" * 100)
    os.fsync(descriptor)
    if isinstance(mode, str):
        os.ftruncate(descriptor, 200)
    else:
        assert _fallocate(descriptor, mode, 50, 150) == 0
    with open(place.bob / "f", "ab") as file:
        file.write(added)
    os.close(descriptor)
    kept = bytes(50) if mode in (PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE | KEEP_SIZE, ZERO_RANGE) else b"x" * 50
    assert (place.bob / "f").read_bytes() == b"x" * 50 + kept + added


@linux_only("mfusepy has no lseek")
def test_holes_of_a_large_file_are_found(place: Place) -> None:
    block = 64 * 1024
    with open(place.alice / "sparse", "wb") as file:
        file.seek(4 * block)
        file.write(b"d" * block)
        file.truncate(10 * block)
    with open(place.bob / "sparse", "rb") as file:
        descriptor = file.fileno()
        assert os.lseek(descriptor, 0, os.SEEK_DATA) == 4 * block
        assert os.lseek(descriptor, 4 * block + 7, os.SEEK_DATA) == 4 * block + 7
        assert os.lseek(descriptor, 0, os.SEEK_HOLE) == 0
        assert os.lseek(descriptor, 4 * block, os.SEEK_HOLE) == 5 * block
        assert code_of(os.lseek, descriptor, 6 * block, os.SEEK_DATA) == errno.ENXIO
        assert code_of(os.lseek, descriptor, 10 * block, os.SEEK_HOLE) == errno.ENXIO
    (place.alice / "small").write_text("12345")
    with open(place.bob / "small", "rb") as file:
        assert os.lseek(file.fileno(), 2, os.SEEK_DATA) == 2 and os.lseek(file.fileno(), 2, os.SEEK_HOLE) == 5


# What cannot be had ---------------------------------------------------------------------------------------------


def test_what_this_filesystem_never_offers_says_so(place: Place) -> None:
    (place.alice / "f").write_text("x")
    assert code_of(os.link, place.alice / "f", place.alice / "g") == errno.EPERM
    assert code_of(os.mknod, place.alice / "fifo", 0o644 | stat.S_IFIFO) == errno.EPERM
    if os.geteuid() == 0:
        assert code_of(os.mknod, place.alice / "null", 0o644 | stat.S_IFCHR, os.makedev(1, 3)) == errno.EPERM
    assert code_of(os.open, place.alice, os.O_TMPFILE | os.O_RDWR) == errno.EOPNOTSUPP
    assert sorted(os.listdir(place.alice)) == ["f"]


def test_renameat2_refuses_exchanges_and_knows_no_whiteouts(place: Place) -> None:
    (place.alice / "a").write_text("a")
    (place.alice / "b").write_text("b")

    def rename(flags: int) -> int:
        names = (os.fsencode(place.alice / "a"), os.fsencode(place.alice / "b"))
        return ctypes.get_errno() if _LIBC.renameat2(-100, names[0], -100, names[1], flags) else 0

    assert rename(1) == errno.EEXIST
    assert rename(4) == errno.EINVAL
    assert rename(2) == 0
    assert ((place.bob / "a").read_text(), (place.bob / "b").read_text()) == ("b", "a")


# Attributes -----------------------------------------------------------------------------------------------------


def test_extended_attributes_tell_of_the_document_where_the_mount_offers_them(place: Place) -> None:
    note = place.alice / "note.md"
    note.write_text("x")
    echo("beta,alpha", view(note, ":tags"))
    assert os.getxattr(note, "user.avm.tags") == b"alpha,beta"
    assert os.getxattr(note, "user.avm.author") == b"alice"
    assert cat(view(note, ":path")).strip().endswith("note.md")
    assert sorted(os.listxattr(note)) == [f"user.avm.{name}" for name in ("author", "id", "tags", "version")]
    assert code_of(os.setxattr, note, "user.avm.tags", b"mine", os.XATTR_CREATE) == errno.EEXIST
    assert os.getxattr(note, "user.avm.tags") == b"alpha,beta"
    os.setxattr(note, "user.avm.tags", b"gamma", os.XATTR_REPLACE)
    os.setxattr(note, "user.avm.importance", b"0.5")
    assert cat(view(place.bob / "note.md", ":tags")) == "gamma\n"
    assert os.getxattr(note, "user.avm.importance") == b"0.5"
    os.removexattr(note, "user.avm.tags")
    assert code_of(os.setxattr, note, "user.avm.tags", b"mine", os.XATTR_REPLACE) == errno.ENODATA
    assert code_of(os.getxattr, note, "user.avm.tags") == errno.ENODATA
    os.setxattr(note, "user.avm.tags", b"mine", os.XATTR_CREATE)
    assert os.getxattr(note, "user.avm.tags") == b"mine"
    assert code_of(os.setxattr, note, "user.avm.importance", b"much") == errno.EINVAL
    assert code_of(os.setxattr, note, "user.other", b"x") == errno.EOPNOTSUPP
    assert code_of(os.getxattr, note, "user.other") == errno.ENODATA
    assert os.listxattr(place.alice) == []


def test_extended_attributes_are_not_there_where_the_mount_does_not_offer_them(place: Place) -> None:
    (place.alice / "note.md").write_text("x")
    for _ in range(2):
        assert code_of(os.getxattr, place.bob / "note.md", "user.avm.id") == errno.EOPNOTSUPP
        assert code_of(os.listxattr, place.bob / "note.md") in (None, errno.EOPNOTSUPP)


def test_a_strict_mount_sees_foreign_attributes_in_the_next_stat(world: World, place: Place) -> None:
    carol = world.mounts["carol"] / place.path[1:]
    (place.alice / "f").write_text("")
    with open(carol / "f", "rb") as held:
        for number in range(1, 60):
            (place.alice / "f").write_text("x" * number)
            assert os.fstat(held.fileno()).st_size == number == (carol / "f").stat().st_size
            (place.alice / "f").chmod(0o600 + number % 8)
            assert (carol / "f").stat().st_mode & 0o777 == 0o600 + number % 8


def test_a_locked_file_is_unlocked_when_any_descriptor_of_the_process_is_closed(place: Place) -> None:
    """fcntl(2): also one that was only open for reading."""
    (place.alice / "f").write_text("x")
    script = (
        "import fcntl, os, sys\n"
        "d = os.open(sys.argv[1], os.O_RDWR)\n"
        "try:\n fcntl.lockf(d, fcntl.LOCK_EX | fcntl.LOCK_NB); print('free')\n"
        "except OSError:\n print('taken')\n"
    )

    def state() -> str:
        command = [sys.executable, "-c", script, os.fspath(place.bob / "f")]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout.strip()

    held, other = os.open(place.alice / "f", os.O_RDWR), os.open(place.alice / "f", os.O_RDONLY)
    try:
        fcntl.lockf(held, fcntl.LOCK_EX)
        assert state() == "taken"
        os.close(other)
        other = -1
        assert state() == "free"
    finally:
        os.close(held)
        if other >= 0:
            os.close(other)
