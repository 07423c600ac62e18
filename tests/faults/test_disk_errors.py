"""A disk that fails under a running daemon: changes are refused with the reason, reading goes on, and all of it ends by
itself."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from avmfs.store.files.store_lock import StoreLock
from tests.dropping_disk import DroppingDisk
from tests.faults.daemons import LIMIT_S, wait
from tests.faults.machines import Machine, machine

pytestmark = pytest.mark.mount

FOREVER = 1_000_000


@pytest.fixture
def failing(tmp_path: Path) -> Iterator[Machine]:
    with machine(tmp_path, DroppingDisk(tmp_path / "disk")) as made:
        made.daemon.start()
        yield made


def write(path: Path, text: str) -> int:
    """The errno of the write, 0 for none."""
    try:
        path.write_text(text)
    except OSError as e:
        return e.errno or -1
    return 0


def test_a_failing_disk_is_told_and_survived(failing: Machine) -> None:
    daemon, disk = failing.daemon, failing.disk
    assert isinstance(disk, DroppingDisk)
    note, other = daemon.at("alice") / "memory/note", daemon.at("bob") / "memory/note"
    assert write(note, "before") == 0
    disk.fail("sync", errno.EIO, times=FOREVER, name="avm.db-wal")
    wait(lambda: write(note, "lost?") == errno.EIO)
    pid = daemon.status()["store"]["writer_pid"]
    for _ in range(2):
        assert write(daemon.at("bob") / "memory/more", "x") == errno.EIO
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            (daemon.at("bob") / "memory/new").mkdir()
        assert other.read_text() in ("before", "lost?")
        assert "note" in os.listdir(daemon.at("bob") / "memory")
        status = daemon.status()["store"]
        assert "every change is refused" in status["error"] and os.strerror(errno.EIO) in status["error"]
        assert "every change is refused" in daemon.command("status", expect=1)
        (found,) = [each for each in daemon.doctor("daemon") if each["state"] == "problem"]
        says = found["says"]
        assert (
            says.startswith("its writer is ") and "every change is refused" in says and os.strerror(errno.EIO) in says
        )
        assert found["todo"] == "avm-daemon stop; avm doctor"
        assert status["writer_pid"] == pid, "it does not end, again and again"
        os.kill(pid, signal.SIGKILL)  # nor does its successor know less
        wait(lambda pid=pid: daemon.status()["store"]["writer_pid"] not in (None, pid))
        wait(lambda: "error" in daemon.status()["store"])
        pid = daemon.status()["store"]["writer_pid"]
    failing.kill()
    daemon.start()  # with all its mounts
    assert other.read_text() in ("before", "lost?")
    assert write(note, "still") == errno.EIO
    pid = daemon.status()["store"]["writer_pid"]
    disk.heal()
    wait(lambda: write(note, "after") == 0)
    wait(lambda: "error" not in daemon.status()["store"])
    assert daemon.status()["store"]["writer_pid"] == pid
    failing.power_loss("synced", 0)
    daemon.start()
    assert (daemon.at("bob") / "memory/note").read_text() == "after"
    assert not (daemon.at("bob") / "memory/new").exists()


def test_a_disk_that_fails_at_the_end_is_remembered_by_the_next_command(failing: Machine) -> None:
    """The daemon's last sync failed, and what follows it is a command that works by itself."""
    daemon, disk = failing.daemon, failing.disk
    assert isinstance(disk, DroppingDisk)
    lock = StoreLock(failing.database)
    assert write(daemon.at("alice") / "memory/note", "x") == 0
    daemon.command("stop")
    assert lock.clean, "an end in order"
    daemon.start()
    assert write(daemon.at("alice") / "memory/note", "y") == 0
    disk.fail("sync", errno.EIO, times=FOREVER, name="avm.db-wal")
    assert write(daemon.at("alice") / "memory/note", "z") == errno.EIO
    daemon.command("stop")
    assert not lock.clean
    disk.heal()
    done = subprocess.run(
        [sys.executable, "-m", "avmfs.cli", "-a", "alice", "write", "/memory/direct", "kept"],
        timeout=LIMIT_S,
        env={**daemon.environ, "AVM_AUTOSTART": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert lock.clean
    failing.power_loss("synced", 0)
    daemon.start()
    assert (daemon.at("bob") / "memory/direct").read_text() == "kept"
