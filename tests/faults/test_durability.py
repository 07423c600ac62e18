"""What close() acknowledged survives kill -9, whoever is killed, and the ordinary start repairs the rest.

A short run by default; AVM_CRASH_ROUNDS=100 makes it the long crash soak.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from avmfs.store.files import sync_note
from avmfs.store.schema import database
from tests.behind import connect
from tests.faults.daemons import QUIET, REPOSITORY, Daemon, alive, wait
from tests.tracing import strace

ROUNDS = int(os.environ.get("AVM_CRASH_ROUNDS", "4"))

pytestmark = pytest.mark.timeout(600 + 10 * ROUNDS)

# A client in a process of its own: it writes to the mount and journals intent and acknowledgement outside. Errors end
# an operation, not the client: the mount may be gone for a moment.
CLIENT = """
import os, sys, time
mount, journal, name = sys.argv[1:]
log = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def say(*words):
    os.write(log, (" ".join(words) + "\\n").encode())
n = 0
while True:
    n += 1
    text = f"{name} {n}"
    for kind in ("create", "replace", "append"):
        say("try", kind, str(n))
        try:
            if kind == "create":
                with open(f"{mount}/memory/{name}-{n}", "x") as file:
                    file.write(text)
            elif kind == "replace":
                with open(f"{mount}/memory/{name}.tmp", "w") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(f"{mount}/memory/{name}.tmp", f"{mount}/memory/{name}-newest")
            else:
                fd = os.open(f"{mount}/memory/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                try:
                    os.write(fd, (text + "\\n").encode())
                finally:
                    os.close(fd)
            say("done", kind, str(n))
        except OSError:
            time.sleep(0.02)
"""


def shell(command: str) -> int:
    return subprocess.run(["bash", "-c", command], timeout=300).returncode


@pytest.mark.parametrize(
    "victims", [["alice"], ["writer"], ["alice", "writer", "index", "door", "keeper"], "everything"]
)
def test_what_echo_wrote_is_there_after_kill_9_at_once(daemon: Daemon, victims: list[str] | str) -> None:
    daemon.mounts("alice", "bob")
    daemon.start()
    family = daemon.family()
    pids = list(family.values()) if victims == "everything" else [family[name] for name in victims]
    assert shell(f"echo x > {daemon.at('alice')}/memory/f") == 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it went with its supervisor
            os.kill(pid, signal.SIGKILL)
    if victims == "everything":
        wait(lambda: not any(alive(pid) for pid in family.values()))
        daemon.start()
    wait(lambda: _reads(daemon.at("bob") / "memory/f") == "x\n")
    wait(lambda: _reads(daemon.at("alice") / "memory/f") == "x\n")


def test_nothing_acknowledged_is_lost_whoever_is_killed(daemon: Daemon, tmp_path: Path) -> None:
    daemon.mounts("alice", "bob")
    daemon.start()
    chance = random.Random(7)
    clients = {
        name: subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(daemon.at(agent)), str(tmp_path / name), name], cwd=REPOSITORY
        )
        for name, agent in (("a", "alice"), ("b", "bob"), ("c", "alice"))
    }
    try:
        for _ in range(ROUNDS):
            time.sleep(chance.uniform(0.3, 0.9))
            family = daemon.family()
            kind = chance.choice(["alice", "bob", "writer", "everything"])
            for pid in family.values() if kind == "everything" else [family[kind]]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if kind == "everything":
                wait(lambda family=family: not any(alive(pid) for pid in family.values()))
                daemon.start()
            else:
                wait(lambda kind=kind, pid=family[kind]: daemon.family().get(kind) not in (pid, None))
            wait(lambda: {mount["state"] for mount in daemon.status()["mounts"]} == {"ready"})
    finally:
        for client in clients.values():
            client.kill()
            client.wait(300)
    wait(lambda: _reads(daemon.at("alice") / "memory/log") is not None)
    for mount in (daemon.at("alice"), daemon.at("bob")):
        lines = (mount / "memory/log").read_text().splitlines()
        assert len(lines) == len(set(lines)), "an append was applied twice"
        for name in clients:
            tried, done = _journal(tmp_path / name)
            for number in done["create"]:
                assert (mount / f"memory/{name}-{number}").read_text() == f"{name} {number}"
            for number in done["append"]:
                assert f"{name} {number}" in lines
            newest = int((mount / f"memory/{name}-newest").read_text().split()[1])
            assert newest >= max(done["replace"]), "an acknowledged save was lost"
            assert newest in tried["replace"]
            assert len(done["create"]) > ROUNDS, "the client hardly got to work"
    daemon.command("stop")
    assert database.integrity(daemon.root / "data" / "avm.db") == []


def _journal(path: Path) -> tuple[dict[str, set[int]], dict[str, set[int]]]:
    tried: dict[str, set[int]] = {"create": set(), "replace": set(), "append": set()}
    done: dict[str, set[int]] = {"create": set(), "replace": set(), "append": set()}
    for line in path.read_text().splitlines():
        what, kind, number = line.split()
        (tried if what == "try" else done)[kind].add(int(number))
    return tried, done


def _reads(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None


@contextlib.contextmanager
def syncs_of(pid: int, said: Path) -> Iterator[Callable[[], int]]:
    """While the block lasts, how often the process has synced the log of the store. Skips the test where strace may not
    look at it."""
    options = ("-y", "-e", "trace=fdatasync", "-e", "signal=none", "-o", os.fspath(said))
    with strace(pid, *options):
        yield lambda: said.read_text().count("avm.db-wal>")


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_what_nobody_waits_for_is_synced_by_itself(daemon: Daemon, tmp_path: Path) -> None:
    """Each on a store in which nothing else is done: no other request brings it to the disk."""
    daemon.settings(QUIET + "audit: {interval_s: 86400}\n")
    daemon.mounts("alice")
    daemon.start()
    data = daemon.root / "data" / "avm.db"
    note = daemon.at("alice") / "memory/note"
    note.write_text("text")
    opened = [appended := os.open(note, os.O_WRONLY | os.O_APPEND)]
    steps: tuple[Callable[[], object], ...] = (
        lambda: note.chmod(0o600),
        lambda: opened.append(os.open(note.with_name("new"), os.O_WRONLY | os.O_CREAT)),
        lambda: os.write(appended, b"more"),
    )

    def newest() -> int:
        with contextlib.closing(connect(data, read_only=True)) as db:
            return int(db.execute("select max(seq) from log").get)

    with syncs_of(daemon.family()["writer"], tmp_path / "syncs") as syncs:
        for step in steps:
            wait(lambda: sync_note.read(data) == newest())
            before, done = newest(), syncs()
            step()
            assert newest() > before
            wait(lambda done=done: syncs() > done and sync_note.read(data) == newest())
    for descriptor in opened:
        os.close(descriptor)
