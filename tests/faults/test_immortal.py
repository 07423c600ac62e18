"""A mount whose process is killed goes on: what clients hold open, wait for and have locked stays as it was."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from avmfs_daemon import control

from tests.faults.daemons import LIMIT_S, QUIET, SOON_S, Daemon, alive, kill_and_wait, wait

pytestmark = pytest.mark.mount


class Mounted:
    """alice's mount, and the means to end its process."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.memory = daemon.at("alice") / "memory"
        self.root = daemon.at("alice")

    def status(self, agent: str = "alice") -> dict[str, Any]:
        found: dict[str, Any] = control.ask(self.daemon.run / "control.sock", "status")
        (mount,) = [mount for mount in found["mounts"] if mount["agent_id"] == agent]
        self.daemon.pids.add(found["pid"])
        return mount

    def kill(self, agent: str = "alice", number: int = signal.SIGKILL) -> None:
        """End the process; returns once its successor serves."""
        pid = self.status(agent)["pid"]
        os.kill(pid, number)
        wait(lambda: self.status(agent)["pid"] not in (pid, None) and self.status(agent)["state"] == "ready")
        self.daemon.pids.add(self.status(agent)["pid"])


@pytest.fixture
def mounted(daemon: Daemon) -> Mounted:
    daemon.mounts("alice", "bob")
    daemon.start()
    return Mounted(daemon)


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def code_of(function: Callable[..., object], *arguments: Any) -> int | None:
    """The errno of the OSError that it raises, None where it does not."""
    try:
        function(*arguments)
    except OSError as e:
        return e.errno
    return None


def in_background(work: Callable[[], Any]) -> Callable[[], Any]:
    """Start it in a thread; the returned function waits for its result, or raises its error."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((True, work()))
        except BaseException as e:
            outcome.append((False, e))

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(LIMIT_S)
        assert outcome, "still waiting"
        well, value = outcome[0]
        if not well:
            raise value
        return value

    return result


def test_what_is_open_goes_on(mounted: Mounted) -> None:
    """Written and not flushed, half read, unlinked, a current directory, a directory half listed, a mapping."""
    at = mounted.memory
    names = [f"name{number:04}" for number in range(400)]
    (at / "many").mkdir()
    for name in names:
        (at / "many" / name).touch()
    (at / "read").write_bytes(b"r" * 5000 + b"s" * 5000)
    (at / "gone").write_text("still there")
    (at / "cut").write_text("long enough")
    (at / "mapped").write_bytes(b"." * 8192)
    shell = subprocess.Popen(
        ["bash", "-c", "cd many && echo in && read line && ls | wc -l && echo x > made && cat made && pwd"],
        cwd=at,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shell.stdout is not None and shell.stdout.readline() == "in\n"
    with contextlib.ExitStack() as stack:
        write = stack.enter_context(opened(at / "written", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.write(write, b"one ")
        append = stack.enter_context(opened(at / "appended", os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        os.write(append, b"a")
        read = stack.enter_context(opened(at / "read", os.O_RDONLY))
        assert os.read(read, 5000) == b"r" * 5000
        gone = stack.enter_context(opened(at / "gone", os.O_RDWR))
        (at / "gone").unlink()
        cut = stack.enter_context(opened(at / "cut", os.O_RDWR))
        os.ftruncate(cut, 4)
        mapped = stack.enter_context(opened(at / "mapped", os.O_RDWR))
        area = stack.enter_context(mmap.mmap(mapped, 8192))
        area[:5] = b"first"
        listing = stack.enter_context(os.scandir(at / "many"))
        seen = [next(listing).name for _ in range(130)]
        for round_ in range(3):
            mounted.kill()
            os.write(write, b"more ")
            os.write(append, b"b")
            assert os.pread(gone, 100, 0) == b"still there" + b"!" * round_
            os.pwrite(gone, b"!", 11 + round_)
            assert os.fstat(gone).st_nlink == 0 and os.fstat(write).st_size == 9 + 5 * round_
        assert os.read(read, 10_000) == b"s" * 5000
        assert os.pread(cut, 100, 0) == b"long"
        area[4096:4101] = b"later"
        seen += [entry.name for entry in listing]
        output, _ = shell.communicate("go\n", timeout=300)
        assert output.splitlines() == ["400", "x", str(at / "many")]
    assert (at / "written").read_text() == "one more more more "
    assert (at / "appended").read_text() == "abbb"
    assert (at / "cut").read_text() == "long"
    assert (at / "mapped").read_bytes() == b"first" + b"." * 4091 + b"later" + b"." * 4091
    assert sorted(seen) == names
    other = mounted.daemon.at("bob") / "memory"
    assert (other / "written").read_text() == "one more more more "
    assert not (other / "gone").exists()


def test_uncommitted_bytes_survive_and_close_commits_them(mounted: Mounted) -> None:
    body = os.urandom(3_000_000)
    with opened(mounted.memory / "big", os.O_WRONLY | os.O_CREAT) as file:
        for start in range(0, len(body), 300_000):
            os.write(file, body[start : start + 300_000])
        assert not (mounted.daemon.at("bob") / "memory/big").read_bytes()
        mounted.kill()
        assert os.fstat(file).st_size == len(body)
    assert (mounted.daemon.at("bob") / "memory/big").read_bytes() == body


def test_what_was_refused_stays_so_and_who_has_not_been_told_is_told(daemon: Daemon) -> None:
    daemon.settings(QUIET + "agents: {alice: {quota: {bytes: 100000}}}\n")
    daemon.mounts("alice", "bob")
    daemon.start()
    mounted = Mounted(daemon)
    path = mounted.memory / "f"
    path.write_bytes(b"old")
    with opened(path, os.O_WRONLY) as two, opened(path, os.O_RDONLY) as reader:
        one = os.open(path, os.O_WRONLY)
        os.pwrite(two, b"small", 0)
        os.pwrite(one, b"x" * 160_000, 0)
        assert code_of(os.close, one) == errno.EDQUOT
        mounted.kill()
        assert (path.read_bytes(), os.pread(reader, 9, 0), os.fstat(two).st_size) == (b"old", b"old", 3)
        assert code_of(os.pwrite, two, b"more", 0) == errno.EDQUOT
        mounted.kill()
        assert code_of(os.fsync, two) == errno.EDQUOT and code_of(os.fsync, two) is None
        os.pwrite(two, b"n", 0)
        mounted.kill()
        assert code_of(os.fsync, two) == errno.EDQUOT, "once more: nobody can tell whom the predecessor had told"
        assert code_of(os.fsync, two) is None
    assert path.read_bytes() == (daemon.at("bob") / "memory/f").read_bytes() == b"nld"


def test_requests_that_nobody_answers_wait_for_the_successor(mounted: Mounted) -> None:
    """While the process is stopped nothing is answered; what was sent to it is answered by the next one."""
    at = mounted.memory
    (at / "there").write_text("text")
    pid = mounted.status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    results = [
        in_background(lambda: (at / "new").write_text("new")),
        in_background(lambda: (at / "there").read_text()),
        in_background(lambda: os.close(os.open(at / "once", os.O_CREAT | os.O_EXCL | os.O_WRONLY))),
        in_background(lambda: (at / "there2").symlink_to("there")),
        in_background(lambda: os.listdir(at)),
    ]
    time.sleep(0.3)
    mounted.kill()
    assert [result() for result in results][:2] == [3, "text"]
    assert (at / "new").read_text() == "new" and (at / "once").exists() and (at / "there2").read_text() == "text"


def test_locks_are_kept_and_waited_for(mounted: Mounted) -> None:
    path = mounted.memory / "locked"
    path.write_text("x" * 100)
    with opened(path, os.O_RDWR) as ranged, opened(path, os.O_RDWR) as whole:
        fcntl.lockf(ranged, fcntl.LOCK_EX, 10, 0)
        fcntl.flock(whole, fcntl.LOCK_EX)
        code = (
            "import fcntl, os, sys\n"
            "f = os.open(sys.argv[1], os.O_RDWR)\n"
            "{'lockf': lambda: fcntl.lockf(f, fcntl.LOCK_EX, 10, 0), 'flock': lambda: fcntl.flock(f, fcntl.LOCK_EX),\n"
            " 'try': lambda: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0),\n"
            " 'beside': lambda: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 50)}[sys.argv[2]]()\n"
        )

        def locking(how: str, mount: str = "alice") -> subprocess.Popen[bytes]:
            there = mounted.daemon.at(mount) / "memory/locked"
            return subprocess.Popen([sys.executable, "-c", code, there, how], stderr=subprocess.DEVNULL)

        waiting = [locking("lockf"), locking("flock"), locking("lockf", "bob")]
        time.sleep(0.5)
        mounted.kill()
        time.sleep(0.3)
        assert [process.poll() for process in waiting] == [None] * 3
        assert locking("try").wait(LIMIT_S) == 1 and locking("try", "bob").wait(LIMIT_S) == 1
        assert locking("beside").wait(LIMIT_S) == 0
        fcntl.lockf(ranged, fcntl.LOCK_UN, 10, 0)
        fcntl.flock(whole, fcntl.LOCK_UN)
        assert [process.wait(LIMIT_S) for process in waiting] == [0] * 3


def test_a_lock_of_an_open_file_description_ends_with_it_also_at_a_successor(mounted: Mounted) -> None:
    path = mounted.memory / "locked"
    path.write_text("x")
    request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with opened(mounted.daemon.at("bob") / "memory/locked", os.O_RDWR) as other:
        with opened(path, os.O_RDWR) as one:
            fcntl.fcntl(one, fcntl.F_OFD_SETLK, request)
            mounted.kill()
            with pytest.raises(BlockingIOError):
                fcntl.fcntl(other, fcntl.F_OFD_SETLK, request)

        def is_free() -> bool:
            with contextlib.suppress(BlockingIOError):
                fcntl.fcntl(other, fcntl.F_OFD_SETLK, request)
                return True
            return False

        wait(is_free)


def test_a_lock_ends_with_its_file_and_not_a_moment_later(mounted: Mounted) -> None:
    path = mounted.memory / "locked"
    path.write_text("x")
    mounted.kill()
    for _ in range(50):
        with opened(path, os.O_RDWR) as one:
            fcntl.lockf(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with opened(mounted.daemon.at("bob") / "memory/locked", os.O_RDWR) as other:
            fcntl.lockf(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_parked_reader_of_the_inbox_goes_on_waiting(mounted: Mounted) -> None:
    (mounted.root / ":inbox?mark=read").read_text()
    inbox = in_background(lambda: (mounted.root / ":inbox?wait=30").read_text())
    time.sleep(0.3)
    mounted.kill()
    time.sleep(0.2)
    (mounted.daemon.at("bob") / "tell/alice").write_text("wake up")
    assert "wake up" in inbox()


def test_open_views_go_on(mounted: Mounted) -> None:
    at = mounted.memory
    (at / "note.md").write_text("".join(f"line {number}\n" for number in range(2000)))
    (mounted.daemon.at("bob") / "tell/alice").write_text("hello")
    with (
        opened(at / "note.md:history", os.O_RDONLY) as history,
        opened(mounted.root / ":inbox?mark=read", os.O_RDONLY) as inbox,
        opened(mounted.root / "tell/bob", os.O_WRONLY) as mail,
        opened(at / "note.md:tags", os.O_WRONLY) as tags,
    ):
        begin = os.read(history, 10)
        first = os.read(inbox, 10)
        os.write(mail, b"half a message, ")
        os.write(tags, b"one, ")
        mounted.kill()
        os.write(mail, b"and the other half\n")
        os.write(tags, b"two")
        whole = begin + os.read(history, 100_000)
        read = first
        while piece := os.read(inbox, 10_000):
            read += piece
    assert whole == (at / "note.md:history").read_bytes()
    assert b"hello" in read
    assert [message["read"] for message in _mail(mounted.root)] == [True]
    assert [message["body"] for message in _mail(mounted.daemon.at("bob"))] == ["half a message, and the other half"]
    assert (at / "note.md:tags").read_text().replace(",", " ").split() == ["one", "two"]


def _mail(mount: Path) -> list[Any]:
    return [json.loads(line) for line in (mount / ":inbox?format=jsonl").read_text().splitlines()]


def test_names_and_questions_are_remembered(mounted: Mounted) -> None:
    (mounted.root / ":ask/q").write_text("what is it?")
    (mounted.memory / "seen").write_text("1")
    assert not (mounted.memory / "unseen").exists()
    mounted.kill()
    (mounted.daemon.at("bob") / "memory/unseen").write_text("2")
    (mounted.daemon.at("bob") / "memory/seen").write_text("3")
    assert (mounted.memory / "unseen").read_text() == "2" and (mounted.memory / "seen").read_text() == "3"
    assert os.listdir(mounted.root / ":ask") == ["q"]


def test_changes_made_while_nobody_serves_are_seen(mounted: Mounted) -> None:
    """The writer tells the kernel of commits also while a mount's process hangs or is replaced."""
    wait(lambda: mounted.status()["caching"] == "epoch")
    at, other = mounted.memory, mounted.daemon.at("bob") / "memory"
    (at / "file").write_text("1")
    os.stat(at / "file")
    assert not (at / "later").exists()
    pid = mounted.status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    (other / "file").write_text("longer")
    (other / "later").write_text("x")
    size = in_background(lambda: (os.stat(at / "file").st_size, (at / "later").exists()))
    time.sleep(0.2)
    os.kill(pid, signal.SIGCONT)
    assert size() == (6, True)
    assert mounted.status()["caching"] == "epoch"


@pytest.mark.parametrize("how", ["as it is", "with edits of its own", "with its time set back"])
def test_what_is_open_shows_what_is_committed_while_its_mount_is_replaced(mounted: Mounted, how: str) -> None:
    """The kernel keeps the bytes that it has for as long as it is told the same size and time."""
    at, other, then = mounted.memory / "f", mounted.daemon.at("bob") / "memory/f", (10**18, 10**18)
    at.write_bytes(b"0" * 16384)
    os.utime(at, ns=then)
    with opened(at, os.O_RDWR) as here, opened(other, os.O_RDWR) as there:
        if how == "with edits of its own":
            os.pwrite(here, b"alice", 0)
        os.fstat(here)
        assert os.pread(here, 16384, 0).endswith(b"0" * 10000)
        pid = mounted.status()["pid"]
        os.kill(pid, signal.SIGKILL)
        os.pwrite(there, b"bob", 8192)
        os.fsync(there)
        if how == "with its time set back":
            os.utime(other, ns=then)
        assert os.pread(here, 3, 8192) == b"bob"  # which waits for the successor
    wait(lambda: mounted.status()["pid"] not in (pid, None))
    mounted.daemon.pids.add(mounted.status()["pid"])


def test_what_is_open_and_known_shows_what_is_committed_while_the_writer_is_replaced(mounted: Mounted) -> None:
    """The new writer tells a kernel of what it commits once the mount has come to it, and not before."""
    wait(lambda: mounted.status("alice")["caching"] == mounted.status("bob")["caching"] == "epoch")
    at, other = mounted.memory, mounted.daemon.at("bob") / "memory"
    (at / "log").write_text("first\n")
    with contextlib.ExitStack() as stack:
        seen, directory = stack.enter_context(opened(at / "log", os.O_RDONLY)), os.open(at, os.O_RDONLY)
        stack.callback(os.close, directory)
        added = stack.enter_context(opened(other / "log", os.O_WRONLY | os.O_APPEND))
        links = os.fstat(directory).st_nlink
        assert (os.pread(seen, 99, 0), os.fstat(seen).st_size) == (b"first\n", 6)
        os.kill(mounted.daemon.status()["store"]["writer_pid"], signal.SIGKILL)
        os.write(added, b"second\n")
        (other / "below").mkdir()
        assert (os.pread(seen, 99, 0), os.fstat(seen).st_size) == (b"first\nsecond\n", 13)
        assert os.fstat(directory).st_nlink == links + 1


def test_status_tells_how_a_mount_survives_and_caches(mounted: Mounted) -> None:
    wait(lambda: mounted.status()["caching"] == "epoch")
    assert mounted.status()["survives"] == "resume" and mounted.status()["caching_reason"] == ""
    mounted.daemon.mounts("alice", "bob", more=", coherence: strict")
    mounted.daemon.command("reload")
    assert mounted.status()["caching"] == "none" and "strict" in mounted.status()["caching_reason"]
    assert mounted.status()["survives"] == "resume"


def test_other_settings_are_taken_in_without_a_client_noticing(mounted: Mounted) -> None:
    with opened(mounted.memory / "file", os.O_WRONLY | os.O_CREAT) as file:
        os.write(file, b"before ")
        device = os.fstat(file).st_dev
        before = mounted.status()["pid"]
        mounted.daemon.settings(QUIET + "search: {max_tokens: 1000}\n")
        assert "restarted" in mounted.daemon.command("reload")
        assert mounted.status()["pid"] != before
        os.write(file, b"after")
    assert (mounted.memory / "file").read_text() == "before after"
    assert os.stat(mounted.memory).st_dev == device


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV])
def test_other_ends_are_survived_too(mounted: Mounted, number: int) -> None:
    with opened(mounted.memory / "file", os.O_WRONLY | os.O_CREAT) as file:
        os.write(file, b"before ")
        mounted.kill(number=number)
        os.write(file, b"after")
    assert (mounted.memory / "file").read_text() == "before after"


def test_a_process_that_always_dies_ends_the_mount_instead_of_hanging_it(mounted: Mounted) -> None:
    file = os.open(mounted.memory / "file", os.O_WRONLY | os.O_CREAT)

    def given_up() -> bool:
        with contextlib.suppress(ProcessLookupError):
            if (pid := mounted.status()["pid"]) is not None:
                os.kill(pid, signal.SIGSEGV)
        return "mounting anew" in mounted.daemon.log()

    wait(given_up)
    with contextlib.suppress(OSError):
        os.close(file)
    wait(lambda: mounted.status()["state"] == "ready" and _works(mounted.memory / "file"))
    assert mounted.status()["survives"] == "resume"


def _works(path: Path) -> bool:
    with contextlib.suppress(OSError):
        path.write_text("again")
        return path.read_text() == "again"
    return False


def test_an_unmounted_mount_is_made_anew(mounted: Mounted) -> None:
    pid = mounted.status()["pid"]
    subprocess.run(["fusermount3", "-uz", str(mounted.root)], check=True, timeout=300)
    wait(lambda: mounted.status()["pid"] not in (pid, None) and mounted.status()["state"] == "ready")
    assert _works(mounted.memory / "file")


# --- the supervisor and the holder


def test_a_killed_supervisor_keeps_clients_waiting_until_the_next_one(mounted: Mounted) -> None:
    daemon = mounted.daemon
    device = os.stat(mounted.memory).st_dev
    family = daemon.family()
    # Not from this process: a fork closes its copies of what is open, and such a close waits for the mount too.
    starter = subprocess.Popen(
        ["bash", "-c", 'read line; exec "$0" -m avmfs_daemon start --daemon', sys.executable],
        env=daemon.environ,
        cwd=daemon.root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with opened(mounted.memory / "file", os.O_WRONLY | os.O_CREAT) as file, opened(mounted.memory, os.O_RDONLY):
        os.write(file, b"before ")
        fcntl.flock(file, fcntl.LOCK_EX)
        gone = os.open(mounted.memory / "unlinked", os.O_RDWR | os.O_CREAT)
        os.write(gone, b"kept")
        os.fsync(gone)
        (mounted.memory / "unlinked").unlink()
        os.kill(family["supervisor"], signal.SIGKILL)
        wait(lambda: not any(alive(pid) for name, pid in family.items() if name != "holder"))
        late = in_background(lambda: (mounted.memory / "late").write_text("acknowledged"))
        time.sleep(0.3)
        started, _ = starter.communicate("go\n", timeout=300)
        assert "is running" in started
        assert late() == 12
        os.write(file, b"after")
        assert os.pread(gone, 10, 0) == b"kept"
        os.close(gone)
        with opened(daemon.at("bob") / "memory/file", os.O_RDONLY) as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        assert mounted.status()["state"] == "ready"
    assert (daemon.at("bob") / "memory/file").read_text() == "before after"
    assert (daemon.at("bob") / "memory/late").read_text() == "acknowledged"
    assert os.stat(mounted.memory).st_dev == device
    daemon.command("stop")
    wait(daemon.gone, SOON_S)
    assert not daemon.mounted("alice")


def test_a_start_that_fails_leaves_the_mounts_to_the_next_one(daemon: Daemon) -> None:
    daemon.environ["AVM_HOLD_S"] = str(LIMIT_S)
    daemon.mounts("alice", "bob")
    daemon.start()
    family, memory = daemon.family(), daemon.at("alice") / "memory"
    fails_first = 'read line; WRITER=dies "$0" -m tests.faults.hostile; "$0" -m avmfs_daemon start --daemon'
    starter = subprocess.Popen(  # see above
        ["bash", "-c", fails_first, sys.executable],
        env=daemon.environ,
        cwd=daemon.root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with opened(memory / "file", os.O_WRONLY | os.O_CREAT) as file:
        os.write(file, b"before ")
        fcntl.flock(file, fcntl.LOCK_EX)
        os.kill(family["supervisor"], signal.SIGKILL)
        wait(lambda: not any(alive(pid) for name, pid in family.items() if name != "holder"))
        started, _ = starter.communicate("go\n", timeout=LIMIT_S)
        assert "writer does not start" in started and "is running" in started, started
        os.write(file, b"after")
        with opened(daemon.at("bob") / "memory/file", os.O_RDONLY) as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert (memory / "file").read_text() == "before after"
    assert daemon.family()["holder"] == family["holder"]


def test_a_command_starts_no_daemon_where_mounts_wait_for_the_next_one(daemon: Daemon) -> None:
    daemon.environ["AVM_HOLD_S"] = str(LIMIT_S)
    daemon.mounts("alice", "bob")
    daemon.start()
    family, memory = daemon.family(), daemon.at("alice") / "memory"
    asks_first = 'read line; AVM_AGENT=bob AVM_AUTOSTART=1 "$0" -m avmfs.cli ls /; "$0" -m avmfs_daemon start --daemon'
    starter = subprocess.Popen(  # see above
        ["bash", "-c", asks_first, sys.executable],
        env=daemon.environ,
        cwd=daemon.root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with opened(memory / "file", os.O_WRONLY | os.O_CREAT) as file:
        os.write(file, b"before ")
        os.kill(family["supervisor"], signal.SIGKILL)
        wait(lambda: not any(alive(pid) for name, pid in family.items() if name != "holder"))
        said, _ = starter.communicate("go\n", timeout=LIMIT_S)
        assert "mounts wait for avm-daemon start" in said and "shared" in said and "is running" in said, said
        os.write(file, b"after")
    assert (memory / "file").read_text() == "before after"
    assert daemon.family()["holder"] == family["holder"]


@pytest.mark.parametrize("next_one", ["start", "stop"])
def test_a_daemon_that_a_command_starts_leaves_dead_mounts_for_the_next_one(daemon: Daemon, next_one: str) -> None:
    daemon.mounts("alice", "bob")
    daemon.start()
    daemon.kill_all()
    assert daemon.run_module("avmfs.cli", "ls", "/", AVM_AGENT="bob", AVM_AUTOSTART="1").returncode == 0
    daemon.whole_family()
    assert daemon.status()["automatic"]
    for agent in "alice", "bob":
        with pytest.raises(OSError) as refused:
            (daemon.at(agent) / "lost.md").write_text("lost")
        assert refused.value.errno == errno.ENOTCONN
    if next_one == "start":
        daemon.start()
        (daemon.at("alice") / "shared/a.md").write_text("kept")
        assert (daemon.at("bob") / "shared/a.md").read_text() == "kept"
    else:
        daemon.command("stop")
        assert not daemon.mounted("alice") and not daemon.mounted("bob")


def _asked(daemon: Daemon) -> bool:
    with contextlib.suppress(control.NotRunning, control.ControlError):
        return bool(control.ask(daemon.run / "control.sock", "status"))
    return False


@pytest.mark.parametrize("killed", [("supervisor",), ("supervisor", "holder")])
@pytest.mark.parametrize("writer", ["dies", "hangs"])
def test_nothing_is_mounted_after_a_start_that_failed_or_was_stopped_and_a_stop(
    mounted: Mounted, writer: str, killed: tuple[str, ...]
) -> None:
    daemon = mounted.daemon
    family = daemon.family()
    for name in killed:
        os.kill(family[name], signal.SIGKILL)
    wait(lambda: not any(alive(pid) for name, pid in family.items() if name != "holder" or name in killed))
    command, environ = [sys.executable, "-m", "tests.faults.hostile"], daemon.environ | {"WRITER": writer}
    with subprocess.Popen(command, env=environ, cwd=daemon.root, stdout=subprocess.DEVNULL) as process:
        daemon.supervisors.add(process.pid)
        daemon.pids.add(process.pid)
        if writer == "hangs":
            wait(lambda: _asked(daemon))
            process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == (writer == "dies")
    if writer == "dies":
        daemon.command("stop")
    assert not daemon.mounted("alice") and not daemon.mounted("bob")
    wait(daemon.gone, SOON_S)
    assert "nothing to stop" in daemon.command("stop", expect=1)


def test_a_mount_that_is_no_longer_configured_ends_with_the_next_start(mounted: Mounted) -> None:
    daemon = mounted.daemon
    kill_and_wait(daemon.family()["supervisor"])
    daemon.mounts("bob")
    stuck = in_background(lambda: (mounted.memory / "never").write_text("x"))
    daemon.start()
    with pytest.raises(OSError):
        stuck()
    assert not daemon.mounted("alice")
    assert _works(daemon.at("bob") / "memory/x"), daemon.log()


def test_stop_ends_what_a_killed_supervisor_left_and_whoever_waits_for_it(mounted: Mounted) -> None:
    daemon = mounted.daemon
    family = daemon.family()
    os.kill(family["supervisor"], signal.SIGKILL)
    wait(lambda: not any(alive(pid) for name, pid in family.items() if name != "holder"))
    stuck = in_background(lambda: (mounted.memory / "never").write_text("x"))
    time.sleep(0.2)
    daemon.command("stop")
    with pytest.raises(OSError):
        stuck()
    assert not daemon.mounted("alice") and not daemon.mounted("bob")
    wait(daemon.gone, SOON_S)


def test_nobody_waits_for_a_supervisor_for_ever(daemon: Daemon) -> None:
    daemon.environ["AVM_HOLD_S"] = "1"
    daemon.mounts("alice")
    daemon.start()
    family = daemon.family()
    os.kill(family["supervisor"], signal.SIGKILL)
    began = time.monotonic()
    wait(lambda: not any(alive(pid) for name, pid in family.items() if name != "holder"))  # who lives may still answer
    stuck = in_background(lambda: (daemon.at("alice") / "memory/never").write_text("x"))
    with pytest.raises(OSError):
        stuck()
    assert time.monotonic() - began > 0.5
    wait(daemon.gone, SOON_S)
    daemon.start()
    assert _works(daemon.at("alice") / "memory/x")


def test_without_a_holder_mounts_are_made_anew(daemon: Daemon) -> None:
    daemon.environ["AVM_HOLD_S"] = "0"
    daemon.mounts("alice")
    daemon.start()
    assert "holder" not in daemon.family() and daemon.mount("alice")["survives"] != "resume"
    assert _works(daemon.at("alice") / "memory/x")
    os.kill(pid := daemon.family()["alice"], signal.SIGKILL)
    wait(lambda: daemon.mount("alice")["pid"] not in (pid, None) and daemon.state("alice") == "ready")
    assert _works(daemon.at("alice") / "memory/y")


def test_a_killed_holder_is_replaced_and_mounts_still_survive(mounted: Mounted) -> None:
    with opened(mounted.memory / "file", os.O_WRONLY | os.O_CREAT) as file:
        os.write(file, b"before ")
        fcntl.flock(file, fcntl.LOCK_EX)
        holder = mounted.daemon.family()["holder"]
        os.kill(holder, signal.SIGKILL)
        wait(lambda: mounted.daemon.family().get("holder") not in (holder, None))
        time.sleep(0.5)
        mounted.kill()
        os.write(file, b"after")
        with opened(mounted.daemon.at("bob") / "memory/file", os.O_RDONLY) as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert (mounted.memory / "file").read_text() == "before after"


def _unlinked(daemon: Daemon) -> set[int]:
    """The files without a name whose bytes are still there."""
    with contextlib.closing(sqlite3.connect(f"file:{daemon.root}/data/avm.db?mode=ro", uri=True)) as db:
        return {node for (node,) in db.execute("select id from node where parent is null and id <> 1")}


@pytest.mark.timeout(5 * LIMIT_S)
def test_unlinked_files_go_within_seconds_but_those_that_are_open_stay_through_kills(mounted: Mounted) -> None:
    daemon, alice, bob = mounted.daemon, mounted.memory, mounted.daemon.at("bob") / "memory"
    for name in ("held", "mapped", *(f"closed{number}" for number in range(20))):
        (alice / name).write_bytes(name.encode() * 10_000)
    with opened(bob / "held", os.O_RDWR) as held, opened(alice / "mapped", os.O_RDONLY) as file:
        mapping = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
        for entry in [entry for entry in alice.iterdir() if entry.is_file()]:
            entry.unlink()
        assert len(_unlinked(daemon)) >= 22
        for agent in ("bob", "alice"):
            mounted.kill(agent)
        wait(lambda: len(_unlinked(daemon)) == 2, 2 * LIMIT_S)
        os.kill(daemon.family()["keeper"], signal.SIGKILL)
        for agent in ("alice", "bob"):
            mounted.kill(agent)
        time.sleep(12)  # longer than from one look to the next
        assert len(_unlinked(daemon)) == 2
        assert os.pread(held, 8, 40_000 - 8) == b"heldheld" and mapping[-6:] == b"mapped"
        os.pwrite(held, b"more", 0)
        os.fsync(held)
        assert os.pread(held, 8, 0) == b"moreheld"
        mapping.close()
    wait(lambda: not _unlinked(daemon), 2 * LIMIT_S)
