"""What flush, fsync or close has refused is gone there and then: nobody reads it, nothing commits it later, and each
that wrote some of it is told."""

from __future__ import annotations

import fcntl
import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.mount.mount_world import LIMIT_S, Place, World, cat, echo, line_from, linux_only, meta, running, view
from tests.mount.new_file_steps import closes, errno_of

pytestmark = pytest.mark.mount

ROOM = 100_000
TOO_MUCH = b"x" * 160_000
WHOLE, ONLY = os.O_RDWR, os.O_WRONLY  # the kernel caches what goes through the former


@pytest.fixture(scope="module")
def mounts() -> list[dict[str, Any]]:
    others = {"agent_id": "bob"}, {"agent_id": "carol", "coherence": "strict"}
    return [{"agent_id": "alice", "xattr": True}, *others]


SETTINGS = f"""
embedding: {{enabled: false}}
agents:
  alice: {{quota: {{bytes: {ROOM}}}}}
  carol: {{quota: {{bytes: {ROOM}}}}}
permissions:
  - {{pattern: "/memory/late/*", access: %s, agents: [alice]}}
  - {{pattern: /memory/*, access: rw}}
"""


@pytest.fixture(scope="module")
def settings() -> str:
    return SETTINGS % "rw"


@pytest.fixture
def path(place: Place) -> Iterator[Path]:
    """A file of alice's, of three bytes. Nothing of the test stays, to be counted in the next one."""
    path = place.alice / "f"
    path.write_bytes(b"old")
    yield path
    path.unlink()


def other(path: Path) -> Path:
    """The file as bob has it."""
    return Path(str(path).replace("/alice/", "/bob/", 1))


def fsyncs(descriptor: int) -> str:
    return errno_of(os.fsync, descriptor)


def is_old(path: Path, *readers: int) -> None:
    """At once, wherever one looks."""
    assert (path.read_bytes(), path.stat().st_size) == (b"old", 3)
    assert [(os.pread(each, 9, 0), os.fstat(each).st_size) for each in readers] == [(b"old", 3)] * len(readers)
    assert (other(path).read_bytes(), other(path).stat().st_size) == (b"old", 3)


@contextmanager
def opened(path: Path, *flags: int) -> Iterator[list[int]]:
    """Descriptors, of which those that the test has not closed are closed at its end."""
    descriptors = [os.open(path, each) for each in flags]
    identities = [os.fstat(each) for each in descriptors]
    try:
        yield descriptors
    finally:
        for descriptor, identity in zip(descriptors, identities, strict=True):
            if errno_of(os.fstat, descriptor) == "ok" and os.path.samestat(os.fstat(descriptor), identity):
                closes(descriptor)


@pytest.mark.parametrize("agent", ["alice", "carol"])
@pytest.mark.parametrize("flags", [WHOLE, ONLY])
def test_a_close_that_fails_leaves_the_bytes_size_and_time_of_before(
    world: World, place: Place, flags: int, agent: str
) -> None:
    path = world.mounts[agent] / place.path[1:] / "f"
    path.write_bytes(b"old")
    for number in range(100):
        before = path.stat()
        with opened(path, os.O_RDONLY, flags) as (reader, writer):
            assert os.pread(reader, 9, 0) == b"old"
            os.pwrite(writer, TOO_MUCH, 0)
            assert os.pread(reader, 3, 0) == b"xxx" and path.stat().st_size == len(TOO_MUCH)
            assert (fsyncs if number % 2 else closes)(writer) == "EDQUOT"
            after = path.stat()
            assert (after.st_size, after.st_mtime_ns, path.read_bytes()) == (3, before.st_mtime_ns, b"old"), number
            assert (os.pread(reader, 9, 0), os.fstat(reader).st_size) == (b"old", 3), number
    path.unlink()


@pytest.mark.parametrize("flags", [WHOLE, ONLY])
def test_nothing_refused_is_committed_by_another_handle_later(path: Path, flags: int) -> None:
    with opened(path, flags, flags, os.O_RDONLY) as (one, two, reader):
        os.pwrite(one, TOO_MUCH, 0)
        assert closes(one) == "EDQUOT"
        is_old(path, reader)
        os.pwrite(two, b"n", 0)
        assert closes(two) == "ok"
        assert [each.read_bytes() for each in (path, other(path))] == [b"nld"] * 2


@pytest.mark.parametrize("first", [fsyncs, closes])
@pytest.mark.parametrize("greedy", [0, 1])
def test_each_that_wrote_some_of_it_is_told_whoever_asked_first(
    path: Path, first: Callable[[int], str], greedy: int
) -> None:
    with opened(path, WHOLE, ONLY, WHOLE) as writers:
        one, two, idle = writers
        os.pwrite(writers[greedy], TOO_MUCH, 0)
        os.pwrite(writers[1 - greedy], b"small", 1)
        assert first(one) == "EDQUOT"
        is_old(path, idle)
        assert errno_of(os.pwrite, two, b"more", 200) == errno_of(os.ftruncate, two, 9) == "EDQUOT", (
            "it would be a hole"
        )
        is_old(path, idle)
        assert fsyncs(two) == "EDQUOT" and fsyncs(two) == "ok"
        assert os.pwrite(two, b"n", 0) == 1 and closes(two) == "ok" and closes(idle) == "ok"
        assert [each.read_bytes() for each in (path, other(path))] == [b"nld"] * 2


@pytest.mark.parametrize("flags", [WHOLE, ONLY])
def test_what_fits_is_kept_when_it_is_written_by_the_same_handle_later(path: Path, flags: int) -> None:
    with opened(path, flags) as (one,):
        os.pwrite(one, TOO_MUCH, 0)
        assert (fsyncs(one), fsyncs(one)) == ("EDQUOT", "ok")
        is_old(path)
        assert os.pwrite(one, b"new one", 0) == 7 and fsyncs(one) == "ok"
        assert [each.read_bytes() for each in (path, other(path))] == [b"new one"] * 2
        os.ftruncate(one, 1 << 40)
        assert fsyncs(one) == "EDQUOT" and os.fstat(one).st_size == path.stat().st_size == 7
        assert closes(one) == "ok" and other(path).read_bytes() == b"new one"


def test_a_duplicate_in_the_same_process_is_told_once(path: Path) -> None:
    with opened(path, ONLY) as (one,):
        two = os.dup(one)
        os.pwrite(one, TOO_MUCH, 0)
        assert closes(two) == "EDQUOT"
        is_old(path)
        os.pwrite(one, b"n", 0)
        assert closes(one) == "ok" and other(path).read_bytes() == b"nld"


def test_a_child_that_closes_what_it_inherited_has_told_nobody(path: Path) -> None:
    """fork(2) and exec(2) close descriptors, and nobody looks at what that says."""
    with opened(path, ONLY) as (one,):
        os.pwrite(one, TOO_MUCH, 0)
        subprocess.run(["true"], check=True, timeout=LIMIT_S)
        is_old(path)
        assert errno_of(os.write, one, b"tail") == "EDQUOT"
        is_old(path)
        assert closes(one) == "EDQUOT"
        is_old(path)


@pytest.mark.parametrize("how", [closes, fsyncs, None], ids=["close", "fsync", "append"])
@pytest.mark.parametrize("agent", ["alice", "bob"])
def test_its_reason_is_in_error_and_no_earlier_one(
    world: World, path: Path, agent: str, how: Callable[[int], str] | None
) -> None:
    root = world.mounts[agent]
    for _ in range(2):
        assert errno_of(os.open, root / ":recall?max_tokens=x", os.O_RDONLY) == "EINVAL"
        assert "'q' is required" in cat(root / ":error")
        with opened(path if agent == "alice" else other(path), ONLY | (0 if how else os.O_APPEND)) as (one,):
            said = errno_of(os.write, one, TOO_MUCH)
            assert (how(one) if how else said) == "EDQUOT"
        assert f"alice may have {ROOM} bytes" in (told := cat(root / ":error"))
        assert ("this would be more" in told) == (agent == "bob")


def test_a_record_appended_meanwhile_is_refused_by_its_write_and_taken_afterwards(path: Path) -> None:
    with opened(path, ONLY, ONLY | os.O_APPEND) as (one, log):
        os.pwrite(one, TOO_MUCH, 0)
        assert errno_of(os.write, log, b"line") == "EDQUOT"
        assert closes(one) == "EDQUOT"
        is_old(path)
        assert os.write(log, b"line") == 4 and closes(log) == "ok"
        assert [each.read_bytes() for each in (path, other(path))] == [b"oldline"] * 2


def test_a_truncation_by_name_that_fails_is_none(path: Path) -> None:
    with opened(path, ONLY, os.O_RDONLY) as (one, reader):
        assert errno_of(os.truncate, path, 1 << 40) == "EDQUOT"
        is_old(path, reader)
        os.pwrite(one, b"new", 0)
        assert errno_of(os.truncate, path, 1 << 40) == "EDQUOT"
        is_old(path, reader)
        assert closes(one) == "EDQUOT"


def test_what_rename_and_chmod_cannot_commit_waits_for_its_close(path: Path) -> None:
    with opened(path, ONLY) as (one,):
        os.pwrite(one, TOO_MUCH, 0)
        assert errno_of(os.rename, path, path.with_name("g")) == errno_of(os.chmod, path, 0o600) == "EDQUOT"
        assert path.stat().st_size == len(TOO_MUCH) and path.stat().st_mode & 0o777 == 0o644
        assert closes(one) == "EDQUOT"
        is_old(path)
        assert not path.with_name("g").exists()


def test_what_another_process_reads_is_what_is_committed(path: Path) -> None:
    watch = """
import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
for line in sys.stdin:
    print(os.pread(file, 9, 0), os.fstat(file).st_size, flush=True)
"""
    with running(watch, path) as process, opened(path, WHOLE) as (one,):
        assert process.stdin is not None

        def seen() -> str:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return line_from(process)

        assert seen() == "b'old' 3"
        for _ in range(20):
            os.pwrite(one, TOO_MUCH, 0)
            assert seen() == "b'xxxxxxxxx' 160000"
            assert fsyncs(one) == "EDQUOT"
            assert seen() == "b'old' 3"


def test_fcntl_locks_end_with_a_close_that_fails(path: Path) -> None:
    """A duplicate keeps the handle; the process' locks end with any of its descriptors, as ever."""
    asks = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with opened(path, WHOLE) as (one,):
        two = os.dup(one)
        fcntl.lockf(one, fcntl.LOCK_EX)
        os.pwrite(one, TOO_MUCH, 0)
        assert closes(two) == "EDQUOT"
        with running(asks, path) as process:
            assert process.wait(LIMIT_S) == 0


# Refused by a rule that came after the open -------------------------------------------------------------------------


@pytest.fixture
def late(world: World) -> Iterator[tuple[Path, Callable[[str], None]]]:
    """A file below a directory, and what sets alice's access there."""
    file = world.root / "config/config.yaml"

    def access(how: str) -> None:
        file.write_text(SETTINGS % how)
        assert world.command("reload").returncode == 0

    path = world.mounts["alice"] / "memory/late/f"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"old")
    yield path, access
    access("rw")
    path.unlink()


def test_bytes_in_the_same_place_are_gone_from_the_kernel_too(late: tuple[Path, Callable[[str], None]]) -> None:
    """Neither size nor time tells the kernel that what it has is nobody's."""
    path, access = late
    with opened(path, WHOLE, WHOLE, os.O_RDONLY) as (one, two, reader):
        access("ro")  # before anything is written: the child that asks for it closes all of these
        with mmap.mmap(two, 3) as area:
            assert area[:] == b"old"
            os.pwrite(one, b"new", 0)
            assert area[:] == b"new", "and no read(2) or stat(2), for which the kernel asks for size and time"
            assert fsyncs(one) == "EACCES"
            assert area[:] == os.pread(reader, 3, 0) == path.read_bytes() == b"old"
        assert errno_of(os.pwrite, one, b"new", 0) == "ok" and closes(one) == "EACCES"
        is_old(path, reader)
        assert closes(two) == "ok"


@linux_only("libfuse flushes what is mapped by itself")
def test_who_wrote_through_a_mapping_is_told_whichever_handle_the_kernel_sends_it_by(
    late: tuple[Path, Callable[[str], None]],
) -> None:
    path, access = late
    with opened(path, WHOLE, WHOLE) as (one, two):
        access("ro")
        with mmap.mmap(two, 3) as area:
            area[:] = b"new"
            assert errno_of(area.flush) == "EACCES"
            is_old(path, one)
            assert area[:] == b"old"
            area[:] = b"new"
        assert {closes(two), closes(one)} >= {"EACCES"}
        is_old(path)


def test_attributes_that_are_refused_stay_as_they_were(late: tuple[Path, Callable[[str], None]]) -> None:
    path, access = late
    before = other(path).stat()
    echo("kept", view(path, ":tags"))
    with opened(path, ONLY) as (one,):
        access("ro")
        os.write(one, b"new")
        refused = [
            errno_of(os.chmod, path, 0o600),
            errno_of(os.utime, path, (1, 1)),
            errno_of(os.rename, path, path.with_name("g")),
            errno_of(os.unlink, path),
            errno_of(os.truncate, path, 0),
            errno_of(os.mkdir, path.with_name("d")),
            errno_of(os.symlink, "f", path.with_name("s")),
            errno_of(os.open, path.with_name("h"), os.O_WRONLY | os.O_CREAT),
            errno_of(os.setxattr, path, "user.avm.tags", b"other"),
            errno_of(os.removexattr, path, "user.avm.tags"),
            errno_of(echo, "other", view(path, ":tags")),
            errno_of(echo, '{"importance": 0.9}', view(path, ":meta")),
        ]
        assert refused == ["EACCES"] * len(refused)
        assert closes(one) == "EACCES"
    after = other(path).stat()
    assert (after.st_mode, after.st_mtime_ns, path.read_bytes()) == (before.st_mode, before.st_mtime_ns, b"old")
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert (os.getxattr(path, "user.avm.tags"), cat(view(path, ":tags"))) == (b"kept", "kept\n")
    here, there = ({**meta(each), "indexed": None} for each in (path, other(path)))  # which is done in its own time
    assert here == there and here["tags"] == ["kept"]
    assert sorted(os.listdir(path.parent)) == sorted(os.listdir(other(path).parent)) == ["f"]
    assert not any(path.with_name(name).exists() for name in "gdsh")
