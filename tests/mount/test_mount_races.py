"""Races between processes on one mount and on two: what has returned is what the next open() sees, everywhere."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from avmfs.fuse.entry_cache import CACHED_S
from tests.mount.fsx_steps import Names, name_steps, outcome, shown, whole
from tests.mount.mount_world import LIMIT_S, Place, line_from, linux_only, rounds, running, until

pytestmark = pytest.mark.mount

by_node = linux_only(
    "libfuse asks by path: a file that was replaced while open has the new one's size, an unlinked one none"
)


def _together(*functions: Callable[[], object]) -> list[Any]:
    """Run all at once, in a thread each; what they return."""
    barrier = threading.Barrier(len(functions))

    def run(function: Callable[[], object]) -> object:
        barrier.wait(LIMIT_S)
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, functions))


_SAVER = """
import os, sys
at, name = sys.argv[1:]
sys.stdin.readline()
for number in range(250):
    with open(f"{at}/{name}.tmp", "w") as file:
        file.write(str(number))
    os.replace(f"{at}/{name}.tmp", f"{at}/{name}.saved")
    for _ in range(3):
        own = [found for found in os.listdir(at) if found.startswith(name)]
        assert own == [f"{name}.saved"], (number, own)
print("done")
"""
_LISTER = """
import os, sys
at = sys.argv[1]
print("ready")
while True:
    os.listdir(at)
"""


def test_who_saves_by_rename_never_lists_the_temporary_name_while_others_list(place: Place) -> None:
    """Who lists may read from the store what a commit has changed before it has heard of it."""
    at = place.alice / "listed"
    at.mkdir()
    for number in range(60):
        (at / f"m{number:02}").touch()
    with ExitStack() as stack:
        listers = [stack.enter_context(running(_LISTER, at)) for _ in range(3)]
        savers = [stack.enter_context(running(_SAVER, at, name)) for name in ("a", "b")]
        for lister in listers:
            assert line_from(lister) == "ready"
        for saver in savers:
            assert saver.stdin is not None
            saver.stdin.write("go\n")
            saver.stdin.flush()
        for saver in savers:
            assert line_from(saver) == "done"


def test_exclusive_creation_has_one_winner_and_all_read_what_he_wrote(place: Place) -> None:
    """250 races of four, two of them on each mount."""
    after = threading.Barrier(4)

    def player(who: int) -> Callable[[int], Any]:
        top = place.alice if who % 2 else place.bob

        def play(number: int) -> Any:
            path, won = top / f"lock{number}", False
            with suppress(FileExistsError):
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                os.write(descriptor, b"winner %d" % who)
                os.close(descriptor)
                won = True
            after.wait(LIMIT_S)
            return won, path.read_bytes()

        return play

    for number, results in enumerate(rounds(250, *(player(who) for who in range(4)))):
        winners = [who for who, (won, _) in enumerate(results) if won]
        assert len(winners) == 1, f"race {number}: {results}"
        assert {data for _, data in results} == {b"winner %d" % winners[0]}, f"race {number}: {results}"


def test_a_file_written_elsewhere_while_its_creation_returns_is_read_whole(place: Place) -> None:
    count = 400
    code = """
import os, sys
top, count = sys.argv[1], int(sys.argv[2])
print("ready")
for number in range(count):
    while True:
        try:
            descriptor = os.open(f"{top}/f{number}", os.O_WRONLY)
            break
        except FileNotFoundError:
            pass
    os.write(descriptor, b"from bob")
    os.close(descriptor)
    print(number)
"""
    with running(code, place.bob, count) as bob:
        assert line_from(bob) == "ready"
        for number in range(count):
            path = place.alice / f"f{number}"
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            assert line_from(bob) == str(number)
            assert path.read_bytes() == b"from bob", number


def test_a_first_look_during_a_write_hides_nothing_of_it(place: Place) -> None:
    count, chance = 400, random.Random(1)
    for number in range(count):
        (place.bob / f"f{number}").write_bytes(b"1")

    def write(number: int) -> None:
        (place.bob / f"f{number}").write_bytes(b"22")

    def look(number: int) -> None:
        time.sleep(chance.random() * 0.002)
        (place.alice / f"f{number}").stat()

    for number in range(count):
        _together(lambda number=number: write(number), lambda number=number: look(number))
        assert (place.alice / f"f{number}").read_bytes() == b"22", number
    # A size lags for as long as the notice is on its way: long before the kernel would ask by itself.
    until(lambda: all(path.stat().st_size == 2 for path in place.alice.iterdir()), CACHED_S / 2)


def test_eight_processes_append_and_no_record_is_lost_or_torn(place: Place) -> None:
    code = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    record = f"{sys.argv[2]} {number} ".encode()
    os.write(descriptor, record + b"x" * (100 + number % 300 - len(record)) + b"\\n")
os.close(descriptor)
print("done")
"""
    each = 60
    with ExitStack() as stack:
        writers = [
            stack.enter_context(running(code, (place.alice if n % 2 else place.bob) / "log", n, each)) for n in range(8)
        ]
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write("go\n")
            writer.stdin.flush()
        assert [line_from(writer) for writer in writers] == ["done"] * 8
    for top in (place.alice, place.bob):
        lines = (top / "log").read_bytes().splitlines()
        found = sorted((int(line.split()[0]), int(line.split()[1])) for line in lines)
        assert found == [(n, number) for n in range(8) for number in range(each)]
        assert all(len(line) == 100 + int(line.split()[1]) % 300 for line in lines)


@by_node
def test_readers_of_a_file_replaced_by_rename_see_one_whole_version(place: Place) -> None:
    def version(number: int) -> bytes:
        return (b"%06d" % number) * (1 + number * 37 % 5000)

    over = threading.Event()
    (place.alice / "f").write_bytes(version(0))

    def replace() -> None:
        try:
            for number in range(1, 150):
                new = place.alice / f"new{number % 3}"
                new.write_bytes(version(number))
                new.rename(place.alice / "f")
        finally:
            over.set()

    def read(top: Path) -> Callable[[], int]:
        def run() -> int:
            seen, last = 0, 0
            while not over.is_set():
                data = (top / "f").read_bytes()  # never ENOENT, never a mixture
                number = int(data[:6])
                assert data == version(number) and number >= last
                seen, last = seen + 1, number
            return seen

        return run

    _, *seen = _together(replace, read(place.alice), read(place.bob), read(place.bob))
    assert min(seen) > 3
    assert (place.bob / "f").read_bytes() == version(149)


def test_a_file_that_goes_while_it_is_opened_is_whole_or_absent(place: Place) -> None:
    data = b"whole" * 20_000
    over = threading.Event()

    def make_and_remove() -> None:
        try:
            for _ in range(120):
                (place.alice / "new").write_bytes(data)
                (place.alice / "new").rename(place.alice / "f")
                time.sleep(0.001)
                (place.alice / "f").unlink()
        finally:
            over.set()

    def read() -> tuple[int, int]:
        whole, absent = 0, 0
        while not over.is_set():
            try:
                assert (place.bob / "f").read_bytes() == data
                whole += 1
            except FileNotFoundError:
                absent += 1
        return whole, absent

    _, (whole, absent) = _together(make_and_remove, read)
    assert whole and absent
    assert os.listdir(place.bob) == []


def test_a_directory_is_made_and_removed_by_one_at_a_time(place: Place) -> None:
    def player(top: Path) -> Callable[[int], object]:
        def play(number: int) -> object:
            done = 0
            for function in (os.mkdir, os.rmdir):
                with suppress(FileExistsError, FileNotFoundError):
                    function(top / "d")
                    done += 1 if function is os.mkdir else -1
            return done

        return play

    for results in rounds(100, player(place.alice), player(place.bob), player(place.bob)):
        assert sum(results) == (1 if (place.alice / "d").exists() else 0)
        assert (place.alice / "d").exists() == (place.bob / "d").exists()
        with suppress(FileNotFoundError):
            os.rmdir(place.alice / "d")


@linux_only("libfuse asks by path, and a removed directory has none")
def test_a_directory_that_another_mount_removed_is_empty_for_those_in_it(place: Place) -> None:
    for remover in (place.alice, place.bob):
        (place.alice / "d").mkdir(mode=0o750)
        descriptor = os.open(place.alice / "d", os.O_RDONLY)
        try:
            before = os.fstat(descriptor)
            os.rmdir(remover / "d")
            after = os.fstat(descriptor)
            assert (after.st_ino, after.st_mode, after.st_nlink) == (before.st_ino, before.st_mode, 0)
            for function in (
                os.stat,
                os.mkdir,
                os.unlink,
                lambda name, dir_fd: os.open(name, os.O_CREAT, dir_fd=dir_fd),
            ):
                with pytest.raises(FileNotFoundError):
                    function("f", dir_fd=descriptor)
            with suppress(FileNotFoundError):  # as the kernel says where this mount has removed it
                assert os.listdir(descriptor) == []
        finally:
            os.close(descriptor)


@linux_only("libfuse asks by path, and a removed directory has none")
def test_a_directory_that_another_mount_replaced_or_removed_after_it_moved_another_is_empty(place: Place) -> None:
    def listed(folder: Path) -> list[str]:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            return os.listdir(descriptor)
        finally:
            os.close(descriptor)

    for number in range(20):
        for name in "dex":
            (place.bob / f"{name}{number}").mkdir()
        descriptor = os.open(place.alice / f"d{number}", os.O_RDONLY)
        try:
            assert os.fstat(descriptor).st_nlink == 2
            if number % 2:
                os.rename(place.bob / f"x{number}", place.bob / f"y{number}")
                os.rmdir(place.bob / f"d{number}")
            else:
                os.rename(place.bob / f"e{number}", place.bob / f"d{number}")
            assert os.fstat(descriptor).st_nlink == 0
            assert listed(Path(f"/proc/self/fd/{descriptor}")) == [], "as opened anew: ls in it"
        finally:
            os.close(descriptor)


@linux_only("libfuse asks by path, and a removed directory has none")
def test_a_path_whose_directory_another_mount_keeps_replacing_is_there_or_not(place: Place) -> None:
    """Never ESTALE, after which the kernel does not always look again."""

    at, there = place.alice / "d", place.bob / "d"

    def each(*functions: Callable[[], object]) -> Callable[[int], set[int | None]]:
        def play(number: int) -> set[int | None]:
            errors: set[int | None] = set()
            for function in functions:
                try:
                    function()
                except OSError as e:
                    errors.add(e.errno)
            return errors

        return play

    churn = each(
        there.mkdir,
        lambda: (there / "f").write_text("x"),
        lambda: os.unlink(there / "f"),
        lambda: os.rmdir(there / "g"),
        lambda: os.rmdir(there),
    )
    use = each(
        lambda: os.listdir(at),
        lambda: os.mkdir(at / "g"),
        lambda: os.stat(at),
        lambda: os.stat(at / "f"),
        lambda: (at / "f").write_text("y"),
        lambda: os.chmod(at, 0o755),
        lambda: (at / "f").read_text(),
    )
    found: set[object] = set().union(*(errors for results in rounds(300, churn, use, use) for errors in results))
    assert errno.ENOENT in found and found <= {errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY}, found


@pytest.mark.parametrize("how", [fcntl.lockf, fcntl.flock])
def test_a_counter_under_a_lock_loses_nothing_between_mounts(place: Place, how: Callable[[int, int], object]) -> None:
    code = f"""
import fcntl, os, sys
for _ in range(40):
    descriptor = os.open(sys.argv[1], os.O_RDWR)
    fcntl.{how.__name__}(descriptor, fcntl.LOCK_EX)
    number = int(os.pread(descriptor, 100, 0)) + 1
    os.pwrite(descriptor, b"%d" % number, 0)
    os.close(descriptor)
print("done")
"""
    (place.alice / "counter").write_bytes(b"0")
    with ExitStack() as stack:
        tops = (place.alice, place.bob, place.alice, place.bob)
        processes = [stack.enter_context(running(code, top / "counter")) for top in tops]
        assert [line_from(process) for process in processes] == ["done"] * 4
    assert (place.alice / "counter").read_bytes() == (place.bob / "counter").read_bytes() == b"160"


def test_a_counter_under_a_lock_held_through_one_descriptor_loses_nothing(place: Place) -> None:
    """As databases do it: the file stays open, and a write is there once fsync has returned and the lock is gone."""
    code = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
for _ in range(40):
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    number = int(os.pread(descriptor, 100, 0)) + 1
    os.pwrite(descriptor, b"%06d" % number, 0)
    os.fsync(descriptor)
    fcntl.lockf(descriptor, fcntl.LOCK_UN)
print("done")
"""
    (place.alice / "counter").write_bytes(b"000000")
    with ExitStack() as stack:
        processes = [stack.enter_context(running(code, top / "counter")) for top in (place.alice, place.bob) * 2]
        assert [line_from(process) for process in processes] == ["done"] * 4
    assert (place.bob / "counter").read_bytes() == b"000160"


def test_truncating_and_appending_never_tear_a_record(place: Place) -> None:
    """A log that one mount empties while the other appends to it holds whole records only."""
    over = threading.Event()
    record = b"a record of thirty-two bytes...\n"

    def append() -> None:
        try:
            with (place.alice / "log").open("ab", buffering=0) as file:
                for _ in range(300):
                    file.write(record)
        finally:
            over.set()

    def empty() -> int:
        times = 0
        while not over.is_set():
            os.truncate(place.bob / "log", 0)
            data = (place.bob / "log").read_bytes()
            assert data == record * (len(data) // 32)
            times += 1
            time.sleep(0.005)
        return times

    (place.alice / "log").touch()
    _, times = _together(append, empty)
    assert times
    for top in (place.alice, place.bob):
        data = (top / "log").read_bytes()
        assert data == record * (len(data) // 32)
    (place.alice / "log").unlink()


def test_names_that_come_and_go_are_seen_at_once_after_a_cached_miss(place: Place) -> None:
    for number in range(150):
        here, there = place.alice / f"n{number}", place.bob / f"n{number}"
        assert not there.exists() and not there.exists()
        here.write_bytes(b"%d" % number)
        assert there.read_bytes() == b"%d" % number
        assert there.name in os.listdir(place.bob)
        moved = place.alice / f"m{number}"
        here.rename(moved)
        assert not there.exists() and (place.bob / moved.name).read_bytes() == b"%d" % number
        moved.unlink()
        assert not (place.bob / moved.name).exists()


def test_what_is_written_with_o_sync_is_there_before_close(place: Place) -> None:
    for flags in (os.O_SYNC, os.O_DSYNC):
        descriptor = os.open(place.alice / "f", os.O_RDWR | os.O_CREAT | flags)
        os.write(descriptor, b"synced")
        assert (place.bob / "f").read_bytes() == b"synced"
        os.close(descriptor)
        (place.alice / "f").unlink()


def test_a_name_that_becomes_a_symlink_while_it_is_created_is_followed(place: Place) -> None:
    def link(number: int) -> None:
        with suppress(FileExistsError):
            os.symlink("target", place.bob / f"n{number}")

    def create(number: int) -> None:
        with (place.alice / f"n{number}").open("w") as file:
            file.write(f"{number}")

    for number, _ in enumerate(rounds(300, link, create)):
        path = place.bob / f"n{number}"
        assert not path.is_symlink() or os.readlink(path) == "target"
    assert {path.name for path in place.alice.iterdir()} - {"target"} == {f"n{number}" for number in range(300)}


@by_node
def test_random_names_from_two_mounts_give_only_the_errors_that_one_filesystem_gives(place: Place) -> None:
    usual = {"ENOENT", "ENOTDIR", "EEXIST", "EISDIR", "ENOTEMPTY", "ELOOP", "EINVAL"}

    def player(top: Path, seed: int) -> Callable[[], set[Any]]:
        def play() -> set[Any]:
            names, found = Names(top), set()
            try:
                for step in name_steps(seed, 300):
                    if step[0] not in ("whole", "readlink"):
                        told = outcome(names, step)
                        found |= {f"{shown(step)}: {told}"} if isinstance(told, str) and told not in usual else set()
            finally:
                names.close()
            return found

        return play

    tops = (place.alice, place.bob) * 2
    for unusual in _together(*(player(top, seed) for seed, top in enumerate(tops))):
        assert not unusual
    assert whole(place.alice) == whole(place.bob)
