"""What a running daemon has in the file system is removed under it: by a logout, by a cleaner, by hand."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from avmfs.errors import Busy
from avmfs.store.client.client import WriterClient
from avmfs.store.files.store_lock import StoreLock
from avmfs.store.identity import OPERATOR
from tests.faults.daemons import LIMIT_S, Daemon, alive, wait
from tests.small_disks import small_disk

# What is removed here is said, by the supervisor and by whoever meets with it first.
pytestmark = pytest.mark.mount

SOCKETS = ("avm.sock", "control.sock", "hold.sock", "index.sock", "writer.sock")


def avm(daemon: Daemon, *arguments: str, expect: int = 0) -> str:
    done = daemon.avm(*arguments, agent="alice")
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr, daemon.log())
    return done.stdout + done.stderr


def there(daemon: Daemon) -> bool:
    """Does the daemon answer, with all that it had?"""
    for name in SOCKETS:
        kind = socket.SOCK_SEQPACKET if name == "hold.sock" else socket.SOCK_STREAM
        with socket.socket(socket.AF_UNIX, kind) as sock:
            try:
                sock.connect(os.fspath(daemon.run / name))
            except OSError:
                return False
    return all(mount["state"] == "ready" for mount in daemon.status()["mounts"])


def vanish(daemon: Daemon, in_its_place: str = "") -> None:
    """As cleaners remove it, though the daemon, which makes it anew, puts something there meanwhile."""

    def gone() -> bool:
        with contextlib.suppress(OSError):
            shutil.rmtree(daemon.run)
            if in_its_place:
                daemon.run.write_text(in_its_place)
            return True
        return False

    wait(gone)


@pytest.fixture
def serving(daemon: Daemon) -> Daemon:
    daemon.mounts("alice", "bob")
    daemon.start()
    (daemon.at("alice") / "shared/before").write_text("before")
    return daemon


def works(daemon: Daemon, text: str) -> None:
    (daemon.at("alice") / "shared/note").write_text(text)
    assert (daemon.at("bob") / "shared/note").read_text() == text
    assert (daemon.at("bob") / "shared/before").read_text() == "before"
    assert text in avm(daemon, "read", "/shared/note")


def test_the_runtime_directory_is_made_anew_and_mounts_go_on(serving: Daemon) -> None:
    with open(serving.at("alice") / "shared/open", "w") as file:
        file.write("one ")
        file.flush()
        vanish(serving)
        (serving.at("alice") / "shared/meanwhile").write_text("written")  # over connections that are there
        wait(lambda: serving.run.is_dir() and there(serving))
        file.write("two")
    assert (serving.at("bob") / "shared/open").read_text() == "one two"
    assert (serving.at("bob") / "shared/meanwhile").read_text() == "written"
    works(serving, "after")
    assert oct(serving.run.stat().st_mode & 0o777) == "0o700"
    assert "made anew" in serving.log()
    before = serving.family()
    for name in ("alice", "writer", "door", "index", "keeper", "holder", "fork server"):
        os.kill(before[name], signal.SIGKILL)
        wait(lambda name=name: not alive(before[name]) and serving.family().keys() == before.keys())
        wait(lambda: there(serving))
        works(serving, f"without {name}")
    assert json.loads((serving.run / "state.json").read_text())["mountpoints"]
    assert serving.status()["problem"] == ""
    serving.command("stop")
    assert serving.gone() and not serving.mounted("alice")


@pytest.mark.parametrize("killed", ["alice", "writer", "fork server", "holder"])
def test_who_is_killed_while_there_is_no_runtime_directory_comes_back(serving: Daemon, killed: str) -> None:
    pids = serving.family()
    os.kill(pids["supervisor"], signal.SIGSTOP)
    try:
        vanish(serving)
        os.kill(pids[killed], signal.SIGKILL)
    finally:
        os.kill(pids["supervisor"], signal.SIGCONT)
    wait(lambda: (serving.run / "control.sock").exists() and there(serving))
    works(serving, "after")


@pytest.mark.parametrize("name", [*SOCKETS, "daemon.lock", "state.json", "writer.news"])
def test_what_is_removed_alone_is_made_anew(serving: Daemon, name: str) -> None:
    pids = serving.family()
    (serving.run / name).unlink()
    if name == "writer.news":
        os.kill(pids["writer"], signal.SIGKILL)  # it is nobody else's
    wait(lambda: (serving.run / name).exists() and there(serving))
    works(serving, "after")
    assert {"supervisor", "alice", "bob", "holder"} & {
        what for what, pid in serving.family().items() if pids[what] == pid
    } == {"supervisor", "alice", "bob", "holder"}
    if name == "daemon.lock":
        assert "already running" in serving.command("start", expect=1)


LOCKED = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX, *([5, 2] if sys.argv[2] == "lockf" else []))
print("locked", flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("kind", ["lockf", "flock"])
def test_locks_hold_across_mounts_when_their_files_are_removed(serving: Daemon, kind: str) -> None:
    ours, theirs = (serving.at(agent) / "shared/locked" for agent in ("alice", "bob"))
    holder = subprocess.Popen(
        [sys.executable, "-c", LOCKED, str(ours), kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    serving.pids.add(holder.pid)
    assert holder.stdout is not None and holder.stdout.readline() == "locked\n"

    def granted(start: int, length: int) -> bool:
        """In a process of its own, which ends with it: the descriptors of this one are other mounts' too."""
        ranged = f", {length}, {start}" if kind == "lockf" else ""
        done = subprocess.run(
            [sys.executable, "-c", f"import fcntl; fcntl.{kind}(open({str(theirs)!r}, 'r+'), 6{ranged})"],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0 or "BlockingIOError" in done.stderr, done.stderr
        return done.returncode == 0

    assert not granted(2, 5)
    before = {path.name: path.stat().st_ino for path in (serving.run / "locks").iterdir()}
    (name,) = before
    vanish(serving)
    wait(lambda: (serving.run / "locks" / name).exists() and there(serving))
    assert not granted(2, 5)
    assert kind == "flock" or granted(7, 1)  # of the range that is held, and of no more
    pid = serving.family()["alice"]
    os.kill(pid, signal.SIGKILL)  # the holder has the new one
    wait(lambda: serving.mount("alice")["pid"] not in (pid, None) and serving.state("alice") == "ready")
    assert not granted(2, 5)
    holder.communicate("\n", timeout=LIMIT_S)
    assert granted(2, 5)


WRITING = """
import os, sys
number = 0
while True:
    name = f"{sys.argv[1]}/{number}"
    file = os.open(name, os.O_WRONLY | os.O_CREAT)
    os.write(file, name.encode() * 50)
    os.fsync(file)
    os.close(file)
    print(number, flush=True)
    number += 1
"""


class Client:
    """Writes files through a mount, one after the other, and says of each when it is acknowledged."""

    def __init__(self, daemon: Daemon) -> None:
        self.folder = daemon.at("alice") / "shared/many"
        self.folder.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITING, str(self.folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        daemon.pids.add(self.process.pid)
        self.done = 0

    def go_on(self, count: int) -> None:
        assert self.process.stdout is not None and self.process.stderr is not None
        for _ in range(count):
            assert (line := self.process.stdout.readline()), self.process.stderr.read()
            assert int(line) == self.done
            self.done += 1

    def stop(self) -> None:
        self.process.kill()
        self.done += len(self.process.communicate(timeout=LIMIT_S)[0].splitlines())

    def all_there(self, folder: Path) -> bool:
        return all(
            (folder / str(number)).read_bytes() == f"{self.folder}/{number}".encode() * 50
            for number in range(self.done)
        )


def removed(path: Path, how: str) -> None:
    if how == "replaced":
        new = path.with_name("new")
        new.write_bytes(path.read_bytes()[:1])
        new.replace(path)
    elif how == "moved":
        path.rename(path.with_name("elsewhere"))
    else:
        path.unlink()


@pytest.mark.parametrize(
    ("names", "how"),
    [
        ("wal", "removed"),
        ("wal", "replaced"),
        ("wal", "moved"),
        ("shm", "removed"),
        ("lock", "removed"),
        ("lock", "replaced"),
        ("wal shm lock", "removed"),
    ],
)
def test_nothing_acknowledged_is_lost_with_a_file_of_the_store(serving: Daemon, names: str, how: str) -> None:
    client = Client(serving)
    client.go_on(30)
    before = serving.family()
    for name in names.split():
        path = serving.root / "data" / ("avm.db." + name if name == "lock" else f"avm.db-{name}")
        removed(path, how)
        if how == "moved":
            (path.with_name("elsewhere")).unlink()
    client.go_on(30)
    wait(lambda: "removed or replaced" in serving.log())
    wait(lambda: there(serving) and serving.status()["problem"] == "")
    client.go_on(30)
    assert before["supervisor"] == serving.family()["supervisor"] and before["holder"] == serving.holder
    assert not nameless(serving)
    client.stop()
    assert client.all_there(serving.at("bob") / "shared/many")
    works(serving, "after")
    assert "already running" in serving.command("start", expect=1)
    serving.kill_all()
    serving.start()
    assert client.all_there(serving.at("bob") / "shared/many")
    works(serving, "after all")


def nameless(daemon: Daemon) -> list[str]:
    """Files of the store that a process writes or reads, and that nobody can find."""
    found = []
    for name, pid in daemon.family().items():
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(entry)
            except FileNotFoundError:
                continue  # closed meanwhile
            if "/avm.db" in target and target.endswith("(deleted)") and name != "supervisor":
                found.append(f"{name}: {target}")
    return found


@pytest.mark.parametrize("ended", ["stopped", "writer killed", "all told to stop"])
def test_a_log_that_is_removed_just_before_the_end_is_put_back(serving: Daemon, ended: str) -> None:
    client = Client(serving)
    client.go_on(30)
    client.stop()
    pids = serving.family()
    os.kill(pids["supervisor"], signal.SIGSTOP)  # it has no time to notice
    (serving.root / "data/avm.db-wal").unlink()
    if ended == "writer killed":
        with contextlib.suppress(ProcessLookupError):  # it may have seen that itself, and ended
            os.kill(pids["writer"], signal.SIGKILL)
    else:
        os.kill(pids["supervisor"], signal.SIGTERM)
    if ended == "all told to stop":
        for name in ("writer", "keeper", "index", "door"):
            with contextlib.suppress(ProcessLookupError):  # likewise
                os.kill(pids[name], signal.SIGTERM)
        wait(lambda: not alive(pids["writer"]))
    os.kill(pids["supervisor"], signal.SIGCONT)
    if ended == "writer killed":
        wait(lambda: "all that was committed is in the database" in serving.log())
        serving.kill_all()
    else:
        wait(lambda: not alive(pids["supervisor"]))
    serving.start()
    assert client.all_there(serving.at("bob") / "shared/many")
    works(serving, "after")


@pytest.mark.parametrize("what", ["data/avm.db", "data"])
def test_nothing_is_written_beside_a_database_that_is_not_the_one_that_is_read(serving: Daemon, what: str) -> None:
    database, moved = serving.root / "data/avm.db", serving.root / what
    away = moved.with_name("away")
    moved.rename(away)
    wait(lambda: "removed or replaced" in serving.status()["problem"])
    assert f"nothing is written to {database}" in serving.command("status", expect=1)
    if what == "data/avm.db":  # beside which the lock says where the daemon is
        (found,) = [each for each in serving.doctor("daemon") if each["state"] == "problem"]
        assert found["says"].startswith("its writer is ") and "removed or replaced" in found["says"]
    writing = subprocess.Popen(
        [sys.executable, "-c", WRITING, str(serving.at("alice") / "shared")], stdout=subprocess.PIPE
    )
    serving.pids.add(writing.pid)
    assert not database.exists() and writing.poll() is None
    away.rename(moved)
    wait(lambda: serving.status()["problem"] == "" and there(serving))
    assert writing.stdout is not None and writing.stdout.readline() == b"0\n"
    writing.kill()
    writing.communicate()
    works(serving, "after")


def test_who_took_the_lock_meanwhile_writes_alone(serving: Daemon) -> None:
    lock = StoreLock(serving.root / "data/avm.db")
    lock.path.unlink()
    descriptor = lock.acquire(10)
    wait(lambda: "in use" in serving.status()["problem"])
    writing = subprocess.Popen(
        [sys.executable, "-c", WRITING, str(serving.at("alice") / "shared")], stdout=subprocess.PIPE
    )
    serving.pids.add(writing.pid)
    wait(lambda: serving.status()["store"]["writer_state"] == "restarting")
    assert (serving.at("bob") / "shared/before").read_text() == "before"
    lock.release(descriptor, clean=True)
    assert writing.stdout is not None and writing.stdout.readline() == b"0\n"
    writing.kill()
    writing.communicate()
    wait(lambda: serving.status()["problem"] == "")
    holder = lock.holder()
    assert holder is not None and holder["pid"] == serving.status()["pid"]
    works(serving, "after")


def test_commands_find_the_daemon_wherever_its_runtime_directory_is(serving: Daemon) -> None:
    pid, there_before = serving.status()["pid"], serving.environ["AVM_RUNTIME_DIR"]
    serving.environ["AVM_RUNTIME_DIR"] = f"/tmp/{'x' * 120}"  # where there can be no socket
    assert serving.status()["pid"] == pid
    serving.environ["AVM_RUNTIME_DIR"] = str(serving.root / "elsewhere")
    assert serving.status()["pid"] == pid
    assert "0 added" in serving.command("reload")
    said = serving.command("start", expect=1)
    assert f"already running (pid {pid}) in {there_before}; avm-daemon stop ends it" in said
    works(serving, "from elsewhere")
    assert f"(pid {pid}) has stopped" in serving.command("stop")
    assert serving.gone()
    assert "not running" in serving.command("status", expect=1)


def test_a_daemon_that_cannot_be_asked_is_named_and_a_second_one_does_not_start(serving: Daemon) -> None:
    pid = serving.status()["pid"]
    vanish(serving, "in the way")
    (serving.at("alice") / "shared/meanwhile").write_text("written")
    with ThreadPoolExecutor() as pool:  # each of which waits for the socket to come back
        for said in pool.map(lambda command: serving.command(command, expect=1), ("status", "stop", "reload")):
            assert f"kill {pid} stops the daemon" in said
    wait(lambda: f"cannot be made anew: {serving.run}: File exists" in serving.log())
    serving.environ["AVM_RUNTIME_DIR"] = str(serving.root / "elsewhere")
    assert f"already running (pid {pid})" in serving.command("start", expect=1)
    serving.environ["AVM_RUNTIME_DIR"] = str(serving.run)
    serving.run.unlink()
    wait(lambda: (serving.run / "control.sock").exists() and there(serving))
    assert (serving.at("bob") / "shared/meanwhile").read_text() == "written"
    works(serving, "after")


STRANGER = """
import os, select, socket, sys
listeners = []
for name in sys.argv[2:]:
    listeners.append(socket.socket(socket.AF_UNIX))
    listeners[-1].bind(f"{sys.argv[1]}/{name}")
os.setgroups([])
os.setuid(65534)
for each in listeners:
    each.listen()
print("listening", flush=True)
while True:
    for each in select.select(listeners, [], [])[0]:
        client, _ = each.accept()
        print("heard" if client.recv(1) else "nothing", flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_another_user_s_directory_in_place_of_the_removed_one_is_left_alone(serving: Daemon) -> None:
    """As anybody may make /tmp/avm-UID once a cleaner has removed it: with links to that user's files, and sockets."""
    precious = {name: serving.root / f"precious-{name}" for name in ("daemon.lock", "state.json.new")}
    folder, pids = serving.root / "documents", serving.family()
    folder.mkdir()
    for file in (*precious.values(), folder / "1"):
        file.write_text("precious\n" * 100)
    os.kill(pids["supervisor"], signal.SIGSTOP)
    try:
        vanish(serving)
        serving.run.mkdir(mode=0o777)
        serving.run.chmod(0o777)
        for name, file in precious.items():
            (serving.run / name).symlink_to(file)
        (serving.run / "present").symlink_to(folder)
        os.chown(serving.run, 65534, 65534)
        command = [sys.executable, "-c", STRANGER, str(serving.run), "avm.sock", "writer.sock"]
        stranger = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        serving.pids.add(stranger.pid)
        assert stranger.stdout is not None and stranger.stdout.readline() == "listening\n"
    finally:
        os.kill(pids["supervisor"], signal.SIGCONT)
    wait(lambda: f"{serving.run}: belongs to another user (uid 65534)" in serving.log())
    assert "another user listens there" in avm(serving, "write", "/shared/note", "secret", expect=75)
    with pytest.raises(Busy):
        WriterClient(serving.run / "writer.sock", "*", b"", 0.2).submit(OPERATOR, "enroll", {})
    (serving.at("alice") / "shared/meanwhile").write_text("written")
    (serving.at("bob") / ":agents").read_bytes()  # who is here
    os.kill(pids["supervisor"], signal.SIGHUP)
    wait(lambda: "reloaded; mounts: " in serving.log())
    stranger.kill()
    assert {*stranger.communicate(timeout=LIMIT_S)[0].split()} == {"nothing"}
    assert {file.read_text() for file in (*precious.values(), folder / "1")} == {"precious\n" * 100}
    assert [each.name for each in folder.iterdir()] == ["1"]
    shutil.rmtree(serving.run)
    wait(lambda: (serving.run / "control.sock").exists() and there(serving))
    assert (serving.at("bob") / "shared/meanwhile").read_text() == "written"
    works(serving, "after")


@pytest.mark.parametrize("full", ["64k", "1m,nr_inodes=40"])
def test_a_full_runtime_directory_holds_up_no_start_that_could_be_made(daemon: Daemon, full: str) -> None:
    """Where no byte fits, nothing that is written there is needed; where no name fits, no socket does."""
    daemon.mounts("alice", "bob")
    with small_disk(daemon.run, full):
        (daemon.run / "others").mkdir()
        with contextlib.suppress(OSError), open(daemon.run / "others/fill", "wb") as file:
            file.write(bytes(1 << 20 if "inodes" not in full else 1))
            for number in range(100 if "inodes" in full else 0):
                (daemon.run / f"others/{number}").touch()
        if "inodes" in full:
            said = daemon.command("start", "--daemon", expect=1)
            assert f"{daemon.run}" in said and "No space left on device" in said, said
            shutil.rmtree(daemon.run / "others")
            daemon.command("start", "--daemon")
        else:
            daemon.command("start", "--daemon")
        daemon.family()
        (daemon.at("alice") / "shared/before").write_text("before")
        works(daemon, "on a full one")
        pid = daemon.family()["alice"]
        os.kill(pid, signal.SIGKILL)
        wait(lambda: daemon.mount("alice")["pid"] not in (pid, None) and there(daemon))
        works(daemon, "and after a kill")
        daemon.command("stop")
        assert daemon.gone()
        assert daemon.log().count("cannot note who holds it") == ("inodes" not in full)
