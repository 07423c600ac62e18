"""A writer that does not answer keeps those waiting who wait for it, and nobody else on the same mount."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.daemons import Daemon

pytestmark = pytest.mark.mount


def begun(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ended(thread: threading.Thread, limit_s: float) -> bool:
    thread.join(limit_s)
    return not thread.is_alive()


def test_commits_under_way_keep_no_other_request_waiting(daemon: Daemon) -> None:
    daemon.mounts("alice")
    daemon.start()
    memory = daemon.at("alice") / "memory"
    for name in ("same", "old", "gone"):
        (memory / name).write_text(name)
    beside = memory / "beside"  # the kernel itself makes who looks wait in a directory that is being changed
    beside.mkdir()
    (beside / "read").write_text("read")
    writer = daemon.family()["writer"]
    with open(memory / "log", "ab", buffering=0) as log:
        os.kill(writer, signal.SIGSTOP)
        try:
            changes = [
                begun(lambda: (memory / "same").write_text("first")),
                begun(lambda: (memory / "new").write_text("new")),
                begun(lambda: (memory / "old").rename(memory / "moved")),
                begun(lambda: (memory / "gone").unlink()),
                begun(lambda: log.write(b"line\n")),
            ]
            assert not any(ended(change, 0.1) for change in changes)
            # Whoever wants the same file waits for its commit, and lets others pass all the same.
            changes.append(begun(lambda: (memory / "same").write_text("second, longer")))
            assert not ended(changes[-1], 0.2)

            def look() -> None:
                assert (beside / "read").read_text() == "read"
                assert (beside / "read").stat().st_size == 4
                assert not (beside / "nowhere").exists()

            for _ in range(3):
                looks = begun(look)
                assert ended(looks, 30), "a read waits for the writer"
        finally:
            os.kill(writer, signal.SIGCONT)
        assert all(ended(change, 30) for change in changes)
    assert _texts(memory) == {
        "same": "second, longer",
        "new": "new",
        "moved": "old",
        "log": "line\n",
    }


def test_a_close_that_nobody_answers_fails_and_leaves_what_is_committed(daemon: Daemon) -> None:
    """Whether the writer does it yet, once it goes on, is open; everybody sees the same."""
    daemon.mounts("alice", "bob")
    daemon.start()
    path, other = (daemon.at(agent) / "memory/f" for agent in ("alice", "bob"))
    path.write_bytes(b"old")
    writer = daemon.family()["writer"]
    descriptor, reader = os.open(path, os.O_RDWR), os.open(path, os.O_RDONLY)
    os.pwrite(descriptor, b"new", 0)
    os.kill(writer, signal.SIGSTOP)
    try:
        with pytest.raises(BlockingIOError):
            os.close(descriptor)
        assert path.read_bytes() == os.pread(reader, 9, 0) == other.read_bytes() == b"old"
    finally:
        os.kill(writer, signal.SIGCONT)
        os.close(reader)
    (path.parent / "after").write_bytes(b"after")
    assert path.read_bytes() == other.read_bytes() in (b"old", b"new")


def _texts(memory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in memory.iterdir() if path.is_file()}
