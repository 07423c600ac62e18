"""Forgetting for good beside a daemon: who has the file open, every file below the data directory, kill -9 in the
middle."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.faults.daemons import Daemon, wait

SECRET = "zqxcanary"
KILLS = 4


def avm(daemon: Daemon, *arguments: str, agent: str = "alice") -> subprocess.CompletedProcess[str]:
    return daemon.avm("-a", agent, *arguments)


def nowhere(daemon: Daemon) -> bool:
    """By the command, and by reading every file."""
    said = avm(daemon, "--operator", "purge", "--verify", SECRET)
    files = [each for each in (daemon.root / "data").rglob("*") if each.is_file()]
    raw = [each.name for each in files if SECRET.encode() in each.read_bytes()]
    assert (said.returncode == 0) >= (not raw) or said.stdout, (said.stdout, said.stderr, raw)
    return said.stdout == "(nowhere)\n" and not raw


@pytest.mark.logs("after its last flush are lost")
def left_of(descriptor: int) -> bytes:
    """What can still be read of a file that was open when it went."""
    try:
        return os.pread(descriptor, 9000, 0)
    except OSError:
        return b""


def test_a_file_that_another_mount_has_open_is_gone_for_it_too_and_is_nowhere(daemon: Daemon, root: Path) -> None:
    daemon.mounts("alice", "bob")
    daemon.start()
    hers, his = (daemon.at(agent) / f"memory/shared/{SECRET}.md" for agent in ("alice", "bob"))
    hers.write_text(f"the {SECRET} lives in the attic\n" * 300)
    hers.write_text(f"the {SECRET} lives in the cellar\n" * 300)
    with his.open("rb", buffering=0) as opened, his.open("r+b", buffering=0) as writing:
        assert SECRET.encode() in opened.read(4000)
        writing.seek(5)
        writing.write(b"half done")
        assert not nowhere(daemon)
        done = avm(daemon, "purge", f"/shared/{SECRET}.md", "--yes")
        assert (done.returncode, done.stdout) == (0, "1 purged\n"), done.stderr
        assert nowhere(daemon)
        assert SECRET.encode() not in left_of(opened.fileno())
        assert not his.exists() and not hers.exists()
        try:
            writing.write(b"more")
            os.fsync(writing.fileno())
        except OSError:
            pass
        else:
            raise AssertionError("a write to what was purged was acknowledged")
        with contextlib.suppress(OSError):
            writing.close()
    assert not his.exists() and nowhere(daemon)
    made = avm(daemon, "backup", str(root / "kept"))
    assert made.returncode == 0, made.stderr
    assert not [each for each in (root / "kept").rglob("*") if each.is_file() and SECRET.encode() in each.read_bytes()]
    daemon.command("stop")
    assert nowhere(daemon)


def test_what_was_saved_over_while_another_mount_has_it_open_is_nowhere_either(daemon: Daemon) -> None:
    daemon.mounts("alice", "bob")
    daemon.start()
    hers = daemon.at("alice") / "memory/shared/s.md"
    hers.write_text(f"the {SECRET} lives in the attic\n" * 3000)
    with (daemon.at("bob") / "memory/shared/s.md").open("rb", buffering=0) as opened:
        assert SECRET.encode() in opened.read(4000)
        new = hers.with_name("s.md.new")
        new.write_text("it has moved\n")
        new.replace(hers)
        done = avm(daemon, "purge", "/shared/s.md", "--yes")
        assert (done.returncode, done.stdout) == (0, "1 purged\n"), done.stderr
        assert nowhere(daemon)
        assert SECRET.encode() not in left_of(opened.fileno())
    daemon.command("stop")
    assert nowhere(daemon)


def test_killed_in_the_middle_it_is_done_or_nothing_of_it_is(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    rnd = random.Random(20)
    file = daemon.at("alice") / "memory/private/alice/s.md"
    for number in range(KILLS):
        if not file.exists():
            file.write_text(f"the {SECRET} {number}\n" * 3000)
            file.write_text(f"the {SECRET} moved {number}\n" * 3000)
        before = avm(daemon, "history", "/private/s.md").stdout
        purging = threading.Thread(target=avm, args=(daemon, "purge", "/private/s.md", "--yes"))
        purging.start()
        victims = daemon.whole_family()
        if number % 2:
            wait(lambda: not file.exists())  # it is gone, and its bytes may still be there
        else:
            time.sleep(rnd.uniform(0.3, 2.0))
        for name in ("writer", "keeper", "door") if number % 3 else ("writer",):
            os.kill(victims[name], signal.SIGKILL)
        purging.join()
        wait(lambda: avm(daemon, "ls", "/private").returncode == 0)
        if file.exists():
            assert avm(daemon, "history", "/private/s.md").stdout == before
            assert SECRET in file.read_text()
        else:
            wait(lambda: nowhere(daemon))
    daemon.command("stop")
