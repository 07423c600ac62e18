"""Kill -9 under load: no client sees an error, nothing acknowledged is lost, nothing happens twice.

A short run by default; AVM_KILL_ROUNDS=200 makes it the long one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from avmfs_daemon import control

from avmfs.store.schema import database
from tests.faults.daemons import LIMIT_S, QUIET, Daemon, kill_and_wait, wait

ROUNDS = int(os.environ.get("AVM_KILL_ROUNDS", "12"))
CLIENTS = 4

pytestmark = [pytest.mark.mount, pytest.mark.timeout(600 + 20 * ROUNDS)]


class Load:
    """Tireless clients on alice's mount."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.daemon = daemon
        self.at = daemon.at("alice") / "memory/soak"
        (self.at / "race").mkdir(parents=True)
        self.journals = {f"c{number}": folder / f"c{number}" for number in range(CLIENTS)}
        self.processes = {
            name: subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("tireless.py")),
                    str(daemon.at("alice")),
                    str(journal),
                    name,
                    str(CLIENTS),
                ],
                stdin=subprocess.PIPE,
            )
            for name, journal in self.journals.items()
        }

    def said(self, name: str, what: str) -> list[Any]:
        lines = map(json.loads, self.journals[name].read_text().splitlines())
        return [line[what] for line in lines if what in line]

    def working(self, rounds: float) -> bool:
        """Has every client got so far? One that has failed gets no further."""
        return bool(self.failures()) or all(
            path.exists() and len(self.said(name, "created")) > rounds for name, path in self.journals.items()
        )

    def gets_on(self) -> None:
        """Wait until every client has done more than it has now: none waits longer than its patience of 30 s, however
        fast one kill follows another."""
        most = max(len(self.said(name, "created")) for name, path in self.journals.items() if path.exists())
        wait(lambda: self.working(most))

    def failures(self) -> list[str]:
        return [
            failed for name in self.journals if self.journals[name].exists() for failed in self.said(name, "failed")
        ]

    def finish(self) -> None:
        for process in self.processes.values():
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(b"\n")
                process.stdin.close()
        for process in self.processes.values():
            process.wait(300)

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(300)
            if process.stdin is not None and not process.stdin.closed:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()

    def check(self) -> None:
        """Every acknowledged effect is there once, on every mount."""
        for mount in ("alice", "bob"):
            at = self.daemon.at(mount) / "memory/soak"
            names = os.listdir(at)
            assert len(names) == len(set(names))
            log = (at / "log").read_text().splitlines()
            assert len(log) == len(set(log)), "an append was applied twice"
            inbox = (self.daemon.at("bob") / ":inbox?format=jsonl").read_text()
            told = [json.loads(line)["body"] for line in inbox.splitlines()]
            assert len(told) == len(set(told)), "a message was sent twice"
            won: list[int] = []
            for name in self.journals:
                removed = set(self.said(name, "removed"))
                for created in self.said(name, "created"):
                    assert (created in names) == (created not in removed), created
                    if created in names:
                        assert (at / created).read_text() == created * 50
                assert [f"{name} {number}" in log for number in self.said(name, "appended")].count(False) == 0
                assert (at / f"{name}.saved").read_text() == f"{name} {self.said(name, 'saved')[-1]}"
                assert {f"{name} {number}" for number in self.said(name, "told")} <= set(told)
                won += self.said(name, "won")
            assert len(won) == len(set(won)), "two won a race"
            assert sorted(map(int, os.listdir(at / "race"))) == sorted(won)
            assert len(log) == sum(len(self.said(name, "appended")) for name in self.journals)
        kinds = ("created", "removed", "appended", "saved", "told", "won")
        counts = {kind: sum(len(self.said(name, kind)) for name in self.journals) for kind in kinds}
        print(f"{sum(counts.values())} acknowledged, 0 lost: {counts}")


@pytest.fixture
def load(daemon: Daemon, tmp_path: Path) -> Iterator[Load]:
    daemon.settings(QUIET + "limits: {unread: 100000}\n")
    daemon.mounts("alice", "bob")
    daemon.start()
    load = Load(daemon, tmp_path)
    try:
        yield load
    finally:
        load.end()


def status(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = control.ask(daemon.run / "control.sock", "status")
    daemon.pids.add(*(mount["pid"] for mount in found["mounts"] if mount["pid"]))
    return found


def ready(daemon: Daemon, who: str) -> int | None:
    """The pid of a child that serves."""
    found = status(daemon)
    if who == "writer":
        pid, state = found["store"]["writer_pid"], found["store"]["writer_state"]
    else:
        (mount,) = [mount for mount in found["mounts"] if mount["agent_id"] == who]
        pid, state = mount["pid"], mount["state"]
    return int(pid) if state == "ready" and pid else None


def kill(daemon: Daemon, who: str, killed: dict[str, int]) -> None:
    """Kill a child that serves, and none twice: the supervisor may not have heard yet that the last one is dead."""
    found: list[int] = []

    def serves() -> bool:
        pid = ready(daemon, who)
        found[:] = [pid] if pid is not None and pid != killed.get(who) else []
        return bool(found)

    wait(serves)
    killed[who] = found[0]
    os.kill(found[0], signal.SIGKILL)


@pytest.mark.parametrize(
    ("victims", "pause_s"),
    [(["alice"], 0.1), (["writer"], 0.4), (["alice", "writer"], 0.4)],
    ids=["child", "writer", "both"],
)
def test_clients_notice_no_kill(daemon: Daemon, load: Load, victims: list[str], pause_s: float) -> None:
    chance = random.Random(11)
    killed: dict[str, int] = {}
    for number in range(1, ROUNDS + 1):
        time.sleep(chance.uniform(pause_s, 0.2 + pause_s))
        for victim in victims:
            kill(daemon, victim, killed)
        if number % 12 == 0 and number < ROUNDS:
            load.gets_on()
        assert load.failures() == [], daemon.log()[-4000:]
    wait(lambda: load.working(ROUNDS / 8))
    load.finish()
    assert load.failures() == [], daemon.log()[-4000:]
    load.check()
    assert "Traceback" not in daemon.log() and " ERROR " not in daemon.log(), daemon.log()[-6000:]
    daemon.command("stop")
    assert database.integrity(daemon.root / "data" / "avm.db") == []


def test_clients_only_wait_while_there_is_no_supervisor(daemon: Daemon, load: Load) -> None:
    rounds = 2 + ROUNDS // 10
    for _ in range(rounds):
        time.sleep(1)
        kill_and_wait(status(daemon)["pid"])
        daemon.start()
        assert load.failures() == [], daemon.log()[-4000:]
    wait(lambda: load.working(rounds + 1))
    load.finish()
    assert load.failures() == [], daemon.log()[-4000:]
    load.check()
    daemon.command("stop")
    assert database.integrity(daemon.root / "data" / "avm.db") == []


RANDOM_STEPS = """
import mmap, os, random, sys
path, seed = sys.argv[1], int(sys.argv[2])
chance, model = random.Random(seed), bytearray()
file = os.open(path, os.O_RDWR | os.O_CREAT)
for step in range(100_000):
    kind = chance.choice(("write", "write", "read", "cut", "sync", "reopen", "append", "map", "stat"))
    at, size = chance.randrange(60_000), chance.randrange(1, 20_000)
    if kind == "write":
        data = chance.randbytes(size)
        assert os.pwrite(file, data, at) == size
        model.extend(bytes(max(0, at - len(model))))
        model[at:at + size] = data
    elif kind == "read":
        assert os.pread(file, size, at) == model[at:at + size], (step, at, size)
    elif kind == "cut" and step % 3 == 0:
        os.ftruncate(file, at)
        model = model[:at] + bytes(max(0, at - len(model)))
    elif kind == "sync":
        os.fsync(file)
    elif kind == "reopen":
        os.close(file)
        file = os.open(path, os.O_RDWR)
    elif kind == "append":
        with open(path, "ab", buffering=0) as end:
            data = chance.randbytes(size % 500)
            assert end.write(data) == len(data)
        model += data
    elif kind == "map" and len(model) > 100:
        with mmap.mmap(file, len(model)) as area:
            assert area[-50:] == model[-50:], step
            area[:20] = model[:20] = chance.randbytes(20)
            area.flush()
    elif kind == "stat":
        assert os.fstat(file).st_size == os.stat(path).st_size == len(model), (step, os.fstat(file).st_size, len(model))
    if step % 10 == 0:
        print(step, flush=True)
        if sys.stdin in __import__("select").select([sys.stdin], [], [], 0)[0]:
            break
os.close(file)
assert open(path, "rb").read() == model
print("well")
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_a_file_under_random_steps_is_what_it_would_be_on_a_disk(daemon: Daemon, seed: int) -> None:
    daemon.mounts("alice")
    daemon.start()
    path = daemon.at("alice") / "memory/random"
    client = subprocess.Popen(
        [sys.executable, "-c", RANDOM_STEPS, str(path), str(seed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said: list[str] = []
    killed: dict[str, int] = {}
    assert client.stdin is not None and client.stdout is not None and client.stderr is not None
    listener = threading.Thread(target=lambda out: said.extend(out), args=(client.stdout,))
    listener.start()
    try:
        for _ in range(ROUNDS):
            count = len(said)
            wait(lambda count=count: len(said) > count or client.poll() is not None)  # ten steps a line  # type: ignore[misc]
            time.sleep(0.2)
            kill(daemon, "alice", killed)
            assert client.poll() is None, client.stderr.read()
        client.stdin.write("enough\n")
        client.stdin.close()
        client.wait(300)
    finally:
        client.kill()
        client.wait(300)
        listener.join(LIMIT_S)
    assert said[-1] == "well\n", client.stderr.read()
    client.stdout.close()
    client.stderr.close()
