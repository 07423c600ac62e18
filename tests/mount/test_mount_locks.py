"""fcntl and flock locks, within a mount and across two."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.mount.mount_world import LIMIT_S, Place, line_from, linux_only, python, quoted, running, sh, until

pytestmark = pytest.mark.mount

# Prints "held" once it has the lock; lets go when a line comes in, in the way that its last argument says.
HOLDER = """
import fcntl, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts behind itself ignores it
path, kind, how, end = sys.argv[1:]
file = open(path, "r+b")
take = {"fcntl": fcntl.lockf, "flock": fcntl.flock}[kind]
operation = {"ex": fcntl.LOCK_EX, "sh": fcntl.LOCK_SH}[how]
print("asks", flush=True)
take(file, operation)
print("held", flush=True)
sys.stdin.readline()
if end == "unlock":
    take(file, fcntl.LOCK_UN)
elif end == "close":
    file.close()
elif end == "exit":
    os._exit(0)
print("free", flush=True)
sys.stdin.readline()
"""

TRIES = """
import fcntl, sys
path, kind, how = sys.argv[1:]
file = open(path, "r+b")
take = {"fcntl": fcntl.lockf, "flock": fcntl.flock}[kind]
try:
    take(file, {"ex": fcntl.LOCK_EX, "sh": fcntl.LOCK_SH}[how] | fcntl.LOCK_NB)
    print("yes")
except BlockingIOError:
    print("no")
"""


def _try(path: Path, kind: str, how: str = "ex") -> str:
    return python(TRIES, path, kind, how).strip()


@pytest.mark.parametrize("kind", ["fcntl", "flock"])
@pytest.mark.parametrize("end", ["unlock", "close", "exit", "kill"])
def test_a_lock_holds_on_both_mounts_until_it_is_given_back(place: Place, kind: str, end: str) -> None:
    (place.alice / "f").write_text("x")
    with running(HOLDER, place.alice / "f", kind, "ex", end) as holder:
        assert [line_from(holder), line_from(holder)] == ["asks", "held"]
        assert _try(place.bob / "f", kind) == _try(place.alice / "f", kind) == _try(place.bob / "f", kind, "sh") == "no"
        with running(HOLDER, place.bob / "f", kind, "ex", "close") as waiter:
            assert line_from(waiter) == "asks"
            time.sleep(0.3)
            assert holder.stdin is not None
            if end == "kill":
                holder.kill()
            else:
                holder.stdin.write("\n")
                holder.stdin.flush()
            assert line_from(waiter) == "held", "the waiter was not woken"
            assert _try(place.alice / "f", kind) == "no"
    assert until(lambda: _try(place.alice / "f", kind) == "yes")


@pytest.mark.parametrize("kind", ["fcntl", "flock"])
def test_shared_locks_go_together_and_keep_exclusive_ones_out(place: Place, kind: str) -> None:
    (place.alice / "f").write_text("x")
    with running(HOLDER, place.alice / "f", kind, "sh", "close") as one:
        assert [line_from(one), line_from(one)] == ["asks", "held"]
        with running(HOLDER, place.bob / "f", kind, "sh", "close") as two:
            assert [line_from(two), line_from(two)] == ["asks", "held"]
            assert _try(place.alice / "f", kind) == "no" and _try(place.bob / "f", kind, "sh") == "yes"


def test_the_two_kinds_do_not_meet(place: Place) -> None:
    (place.alice / "f").write_text("x")
    with running(HOLDER, place.alice / "f", "flock", "ex", "close") as holder:
        assert [line_from(holder), line_from(holder)] == ["asks", "held"]
        assert _try(place.bob / "f", "fcntl") == "yes"


def test_locks_of_other_files_and_ranges_do_not_meet(place: Place) -> None:
    for name in ("f", "g"):
        (place.alice / name).write_text("x" * 100)
    code = """
import fcntl, os, sys, struct
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 10, 20)
print("held", flush=True)
sys.stdin.readline()
fcntl.lockf(file, fcntl.LOCK_UN, 4, 23)
print("split", flush=True)
sys.stdin.readline()
"""
    tries = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
for start in map(int, sys.argv[2:]):
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, start)
        print("yes", end=" ")
        fcntl.lockf(file, fcntl.LOCK_UN, 1, start)
    except BlockingIOError:
        print("no", end=" ")
"""
    with running(code, place.alice / "f") as holder:
        assert line_from(holder) == "held"
        assert python(tries, place.bob / "f", 0, 19, 20, 29, 30, 5000).split() == [
            "yes",
            "yes",
            "no",
            "no",
            "yes",
            "yes",
        ]
        assert python(tries, place.bob / "g", 20).split() == ["yes"]
        assert holder.stdin is not None
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert line_from(holder) == "split"
        assert python(tries, place.bob / "f", 20, 22, 23, 26, 27, 29).split() == ["no", "no", "yes", "yes", "no", "no"]


def test_who_asks_is_told_of_the_lock_in_the_way(place: Place) -> None:
    (place.alice / "f").write_text("x" * 100)
    code = """
import fcntl, os, struct, sys
layout = "hhqqi4x"
file = open(sys.argv[1], "r+b")
answer = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(layout, fcntl.F_WRLCK, 0, 0, 0, 0))
kind, whence, start, length, pid = struct.unpack(layout, answer)
print({fcntl.F_RDLCK: "read", fcntl.F_WRLCK: "write", fcntl.F_UNLCK: "none"}[kind], start, length, pid)
"""
    assert python(code, place.bob / "f").split()[0] == "none"
    with running(HOLDER, place.alice / "f", "fcntl", "sh", "close") as holder:
        assert [line_from(holder), line_from(holder)] == ["asks", "held"]
        assert python(code, place.bob / "f").split() == ["read", "0", "0", "0"]
        assert python(code, place.alice / "f").split() == ["read", "0", "0", str(holder.pid)]


def test_of_several_holders_the_one_in_the_way_is_named(place: Place) -> None:
    (place.alice / "f").write_text("x" * 100)
    holds = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 10, int(sys.argv[2]))
fcntl.lockf(file, fcntl.LOCK_SH, 5, int(sys.argv[2]))
fcntl.lockf(file, fcntl.LOCK_UN, 1, int(sys.argv[2]) + 7)
print("held", flush=True)
sys.stdin.readline()
"""
    asks = """
import fcntl, struct, sys
file = open(sys.argv[1], "r+b")
for start in map(int, sys.argv[2:]):
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, start, 1, 0)
    kind, _, at, length, pid = struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, asked))
    print(at, length, pid) if kind != fcntl.F_UNLCK else print("none")
"""
    with running(holds, place.alice / "f", 0) as first, running(holds, place.alice / "f", 20) as second:
        assert line_from(first) == line_from(second) == "held"
        one, two = first.pid, second.pid
        found = python(asks, place.alice / "f", 2, 6, 7, 9, 15, 24, 29).splitlines()
        assert found == [f"0 5 {one}", f"5 2 {one}", "none", f"8 2 {one}", "none", f"20 5 {two}", f"28 2 {two}"]


# Takes the lock of one byte, says so, is told to take another's and says what came of it.
CROSSING = """
import errno, fcntl, sys
path, first, then = sys.argv[1:]
file = open(path, "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, int(first))
print("held", flush=True)
sys.stdin.readline()
print("asks", flush=True)
try:
    fcntl.lockf(file, fcntl.LOCK_EX, 1, int(then))
    print("got", flush=True)
except OSError as e:
    print("told" if e.errno == errno.EDEADLK else e, flush=True)
sys.stdin.readline()
"""


def _go(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def _sleeps(process: subprocess.Popen[str]) -> bool:
    """In the kernel: waiting for what it has asked."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] in "SD"


def test_who_would_close_a_circle_of_waiters_is_told(place: Place) -> None:
    """Three processes of a mount; the others go on once the one that was told has let go."""
    path = place.alice / "f"
    path.write_text("x" * 10)
    with running(CROSSING, path, 0, 1) as a, running(CROSSING, path, 1, 2) as b, running(CROSSING, path, 2, 0) as c:
        assert line_from(a) == line_from(b) == line_from(c) == "held"
        _go(a, b)
        assert line_from(a) == line_from(b) == "asks"
        until(lambda: all(_sleeps(each) for each in (a, b)))
        for _ in range(20):
            os.statvfs(path)  # which the mount answers after it has come to what they ask
        time.sleep(0.3)
        _go(c)
        assert [line_from(c), line_from(c)] == ["asks", "told"]
        _go(c)
        assert line_from(b) == "got"
        _go(b)
        assert line_from(a) == "got"


def test_waiting_that_closes_no_circle_is_none(place: Place) -> None:
    """A holder that waits for somebody else, and one who asked in vain before and holds nothing now."""
    path = place.alice / "f"
    path.write_text("x" * 10)
    with running(CROSSING, path, 0, 5) as a, running(CROSSING, path, 1, 0) as b, running(CROSSING, path, 2, 1) as c:
        assert line_from(a) == line_from(b) == line_from(c) == "held"
        _go(b)
        assert line_from(b) == "asks"
        time.sleep(0.2)
        _go(c)
        assert line_from(c) == "asks"
        time.sleep(0.2)
        _go(a)
        assert [line_from(a), line_from(a)] == ["asks", "got"]
        _go(a)
        assert line_from(b) == "got"
        _go(b)
        assert line_from(c) == "got"


@pytest.mark.parametrize("kind", ["fcntl", "flock"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_waiter_can_be_ended(place: Place, kind: str, number: signal.Signals) -> None:
    (place.alice / "f").write_text("x")
    with running(HOLDER, place.alice / "f", kind, "ex", "close") as holder:
        assert [line_from(holder), line_from(holder)] == ["asks", "held"]
        for path in (place.bob / "f", place.alice / "f"):
            with running(HOLDER, path, kind, "ex", "close") as waiter:
                assert line_from(waiter) == "asks"
                time.sleep(0.2)
                waiter.send_signal(number)
                waiter.wait(LIMIT_S)
    assert until(lambda: _try(place.bob / "f", kind) == "yes"), "the ended waiter got the lock"


def test_closing_any_descriptor_ends_the_fcntl_locks_of_the_process(place: Place) -> None:
    """POSIX wants it so; flock locks belong to the open file instead."""
    (place.alice / "f").write_text("x")
    code = """
import fcntl, os, sys
one, two = os.open(sys.argv[1], os.O_RDWR), os.open(sys.argv[1], os.O_RDWR)
{"fcntl": fcntl.lockf, "flock": fcntl.flock}[sys.argv[2]](one, fcntl.LOCK_EX)
os.close(two)
print("closed", flush=True)
sys.stdin.readline()
"""
    for kind, free in (("fcntl", "yes"), ("flock", "no")):
        with running(code, place.alice / "f", kind) as holder:
            assert line_from(holder) == "closed"
            assert _try(place.bob / "f", kind) == free


@linux_only("libfuse ends those with the mount")
def test_locks_of_an_open_file_description_end_with_it(place: Place) -> None:
    """Also those that were only asked about, and not before the last descriptor is closed, in whichever process."""
    (place.alice / "f").write_text("x")
    code = """
import fcntl, os, struct, sys, time
path = sys.argv[1]
lock = lambda kind: struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)
first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
fcntl.fcntl(first, fcntl.F_OFD_SETLK, lock(fcntl.F_WRLCK))
print(struct.unpack("hhqqi4x", fcntl.fcntl(second, fcntl.F_OFD_GETLK, lock(fcntl.F_WRLCK)))[0] == fcntl.F_WRLCK)
os.close(second)
if os.fork() == 0:
    sys.stdin.readline()
    os._exit(0)
os.close(first)
print("closed")
os.wait()
time.sleep(60)
"""
    with running(code, place.alice / "f") as holder:
        assert [line_from(holder), line_from(holder)] == ["True", "closed"]
        assert _try(place.alice / "f", "fcntl") == _try(place.bob / "f", "fcntl") == "no"
        assert holder.stdin is not None
        holder.stdin.write("go\n")
        holder.stdin.flush()
        until(lambda: _try(place.alice / "f", "fcntl") == _try(place.bob / "f", "fcntl") == "yes")


def test_a_waiter_gets_its_lock_though_its_process_closes_the_file_elsewhere(place: Place) -> None:
    (place.alice / "f").write_text("x")
    code = """
import fcntl, os, sys, threading, time
path = sys.argv[1]
file = open(path, "r+b")
thread = threading.Thread(target=fcntl.lockf, args=(file, fcntl.LOCK_EX))
thread.start()
time.sleep(0.2)
open(path).close()
others = [open(path + str(number), "w") for number in range(50)]
print("closed", flush=True)
thread.join()
print("held", flush=True)
sys.stdin.readline()
"""
    with running(HOLDER, place.bob / "f", "fcntl", "ex", "unlock") as holder:
        assert [line_from(holder), line_from(holder)] == ["asks", "held"]
        with running(code, place.alice / "f") as waiter:
            assert line_from(waiter) == "closed"
            assert holder.stdin is not None
            holder.stdin.write("go\n")
            holder.stdin.flush()
            assert [line_from(waiter), line_from(holder)] == ["held", "free"]
            assert _try(place.bob / "f", "fcntl") == _try(place.alice / "f", "fcntl") == "no"


def test_counters_under_a_lock_lose_nothing(place: Place) -> None:
    (place.alice / "n").write_text("0")
    code = """
import fcntl, sys
for _ in range(25):
    with open(sys.argv[1], "r+") as file:
        {"fcntl": fcntl.lockf, "flock": fcntl.flock}[sys.argv[2]](file, fcntl.LOCK_EX)
        number = int(file.read())
        file.seek(0)
        file.write(str(number + 1))
        file.flush()
"""
    for kind in ("fcntl", "flock"):
        (place.alice / "n").write_text("0")
        with ExitStack() as stack:
            paths = (place.alice, place.bob, place.alice, place.bob)
            contenders = [stack.enter_context(running(code, path / "n", kind)) for path in paths]
            assert [process.wait(300) for process in contenders] == [0, 0, 0, 0]
        assert (place.bob / "n").read_text() == "100", kind


def _take(kind: str, descriptor: int, how: int) -> bool:
    """A lock of ``kind``, or none (F_UNLCK), without waiting. Was it granted?"""
    whole = {fcntl.F_WRLCK: fcntl.LOCK_EX, fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_UNLCK: fcntl.LOCK_UN}[how]
    try:
        if kind == "flock":
            fcntl.flock(descriptor, whole | fcntl.LOCK_NB)
        else:
            command = fcntl.F_SETLK if kind == "fcntl" else fcntl.F_OFD_SETLK
            fcntl.fcntl(descriptor, command, struct.pack("hhqqi4x", how, os.SEEK_SET, 0, 0, 0))
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("end", ["unlock", "share", "close"])
@pytest.mark.parametrize(
    "kind", ["fcntl", "flock", pytest.param("ofd", marks=linux_only("libfuse ends those with the mount"))]
)
def test_who_gets_a_lock_next_finds_what_was_written_under_it(place: Place, kind: str, end: str) -> None:
    """Though all descriptors stay open, and have been read through before; also where another one was written to."""
    (place.alice / "f").write_bytes(b"before")
    locks, writes = (os.open(place.alice / "f", os.O_RDWR) for _ in range(2))
    there = os.open(place.bob / "f", os.O_RDWR)
    try:
        for number in range(3):
            assert os.pread(there, 6, 0) == (b"under%d" % (number - 1) if number else b"before")
            assert _take(kind, locks, fcntl.F_WRLCK) and not _take(kind, there, fcntl.F_RDLCK)
            assert os.pwrite(writes if end == "close" else locks, b"under%d" % number, 0) == 6
            if end == "close":
                os.close(locks)
            else:
                assert _take(kind, locks, fcntl.F_UNLCK if end == "unlock" else fcntl.F_RDLCK)
            until(lambda: _take(kind, there, fcntl.F_RDLCK if end == "share" else fcntl.F_WRLCK))
            assert os.pread(there, 6, 0) == b"under%d" % number
            _take(kind, there, fcntl.F_UNLCK)
            if end == "close":
                locks = os.open(place.alice / "f", os.O_RDWR)
    finally:
        for descriptor in (locks, writes, there):
            os.close(descriptor)


@pytest.mark.parametrize("end", ["unlock", "close", "exit"])
@pytest.mark.parametrize("kind", ["fcntl", "flock"])
def test_a_lock_file_guards_what_is_open_beside_it(place: Place, kind: str, end: str) -> None:
    """Written by a thread that has ended, and by one that asks for the lock."""
    code = """
import fcntl, os, sys, threading
at, kind, end = sys.argv[1:]
lock, one, two = (os.open(f"{at}/{name}", os.O_RDWR) for name in ("lock", "one", "two"))
take = {"fcntl": fcntl.lockf, "flock": fcntl.flock}[kind]
take(lock, fcntl.LOCK_EX)
writing = threading.Thread(target=os.pwrite, args=(one, b"under it", 0))
writing.start()
writing.join()
os.pwrite(two, b"under it", 0)
print("held", flush=True)
sys.stdin.readline()
if end == "unlock":
    take(lock, fcntl.LOCK_UN)
elif end == "close":
    os.close(lock)
else:
    os._exit(0)
sys.stdin.readline()
"""
    for name in ("lock", "one", "two"):
        (place.alice / name).write_text("before")
    with running(code, place.alice, kind, end) as holder, (place.bob / "lock").open("r+b") as lock:
        assert line_from(holder) == "held"
        _go(holder)
        until(lambda: _take(kind, lock.fileno(), fcntl.F_WRLCK), every_s=0.0001)
        assert [(place.bob / name).read_text() for name in ("one", "two")] == ["under it", "under it"]


def test_a_lock_that_ends_commits_nothing_of_another_process(place: Place) -> None:
    """Whose file may be empty as yet."""
    (place.alice / "saved").write_text("before")
    (place.alice / "lock").touch()
    code = "import sys; file = open(sys.argv[1], 'w'); print('opened'); sys.stdin.readline()"
    with running(code, place.alice / "saved") as saves:
        assert line_from(saves) == "opened"
        with (place.alice / "lock").open("r+b") as lock:
            assert _take("flock", lock.fileno(), fcntl.F_WRLCK) and _take("flock", lock.fileno(), fcntl.F_UNLCK)
        assert (place.bob / "saved").read_text() == "before"


def test_a_close_that_ends_a_lock_commits_nothing_of_another_process_however_much_is_asked_beside(place: Place) -> None:
    (place.alice / "saved").write_text("before")
    (place.alice / "state").touch()
    saves = "import sys; file = open(sys.argv[1], 'w'); print('goes on'); sys.stdin.readline()"
    looks = "import os, sys\nprint('goes on')\nwhile True: os.close(os.open(sys.argv[1], os.O_RDONLY))"
    with ExitStack() as stack:
        for code in (saves, looks, looks):
            process = stack.enter_context(running(code, place.alice / ("saved" if code is saves else "state")))
            assert line_from(process) == "goes on"
        for number in range(200):
            with (place.alice / "state").open("r+b") as state:
                fcntl.lockf(state, fcntl.LOCK_EX)
                state.write(b"%d" % number)
        assert (place.bob / "saved").read_text() == "before"


def test_many_waiters_do_not_keep_the_holder_from_giving_the_lock_back(place: Place) -> None:
    (place.alice / "f").write_text("x")
    with running(HOLDER, place.alice / "f", "flock", "ex", "close") as holder:
        assert [line_from(holder), line_from(holder)] == ["asks", "held"]
        waits = "for _ in $(seq 20); do (echo asks; exec flock f echo had) & done; wait"
        with subprocess.Popen(["bash", "-c", waits], cwd=place.alice, stdout=subprocess.PIPE, text=True) as waiting:
            try:
                assert [line_from(waiting) for _ in range(20)] == ["asks"] * 20
                time.sleep(1)
                _go(holder)
                assert line_from(holder) == "free"
                assert [line_from(waiting) for _ in range(20)] == ["had"] * 20
            finally:
                waiting.kill()


def test_flock_1_works_from_the_shell(place: Place) -> None:
    add = "for i in $(seq 20); do (flock 9; n=$(cat n); echo $((n + 1)) > n) 9> lock; done"
    (place.alice / "n").write_text("0\n")
    one = f"cd {quoted(place.alice)} && {add}"
    other = f"cd {quoted(place.bob)} && {add}"
    sh(f"({one}) & ({other}) & wait")
    assert (place.alice / "n").read_text() == "40\n"
    assert sh("flock -n lock true && flock -w 1 lock echo yes", cwd=place.bob).stdout == "yes\n"


def test_removing_a_locked_file_frees_its_name(place: Place) -> None:
    (place.alice / "f").write_text("x")
    with running(HOLDER, place.alice / "f", "flock", "ex", "close") as holder:
        assert [line_from(holder), line_from(holder)] == ["asks", "held"]
        os.unlink(place.bob / "f")
        (place.bob / "f").write_text("new")
        assert _try(place.bob / "f", "flock") == "yes"
