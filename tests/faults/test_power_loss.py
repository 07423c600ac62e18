"""Every promise that a mount, a command or another door makes, kept through power loss.

The store lies on a disk that drops what was not synced (``dropping_disk``). Several programs (``powered``) are at work
through two mounts and the other doors when the power goes; whatever was acknowledged until then is there afterwards,
through each mount, and the rest is as if it had not begun, or was done, or was left between two of its steps. Nothing
else than the ordinary start repairs anything.

A short run by default; AVM_POWER_ROUNDS=500 makes it the long one, AVM_POWER_SEED another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from avmfs import AVM
from avmfs.rpc.client import RemoteDoor
from avmfs.store.schema import database
from tests.disk_model import Keep, Names
from tests.dropping_disk import DroppingDisk
from tests.ext4_disk import Ext4Disk
from tests.faults.daemons import LIMIT_S, wait
from tests.faults.machines import Machine, machine
from tests.faults.powered import seen
from tests.faults.receivers import Receiver, receiving

ROUNDS = int(os.environ.get("AVM_POWER_ROUNDS", "1"))
SEED = int(os.environ.get("AVM_POWER_SEED", "1"))
pytestmark = [pytest.mark.mount, pytest.mark.timeout(600 + 300 * ROUNDS)]

VICTIMS = (None, None, "writer", "alice")
"""Whose process is killed shortly before; nobody else notices more than a pause."""
SYNCS = ((0.0, 0.0), (0.001, 0.02), (0.01, 0.06))  # seconds


class Work:
    """What a program's journal says."""

    def __init__(self, journal: Path, home: str, agent: str, at: float) -> None:
        self.home, self.agent = home, agent
        lines = [json.loads(line) for line in journal.read_text().splitlines() if line.endswith("}")]
        done = {line["id"] for line in lines if line.get("done", at) < at}
        self.states: list[dict[str, Any]] = [{}]
        self.promised = 0  # of the states, this one or a later one is to be found
        self.held: list[tuple[str, Any]] = []
        self.tried: list[tuple[str, Any]] = []
        for line in lines:
            if "done" in line:
                continue
            for step in line["steps"]:
                state = {**self.states[-1], **step}
                self.states.append({name: value for name, value in state.items() if value is not None})
            facts = [(kind, value) for kind, value in line["facts"]]
            self.tried += facts
            if line["id"] in done:
                self.promised = len(self.states) - 1
                self.held += facts
        self.acknowledged = len(done)

    def check(self, mount: Path) -> None:
        found = seen(mount / self.home)
        possible = self.states[self.promised :]
        if found not in possible:
            pytest.fail(f"{mount}/{self.home}: {self.acknowledged} acknowledged; {_difference(found, possible[0])}")


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    names = sorted({*found, *wanted})
    return "; ".join(
        f"{name} is {str(found.get(name))[:60]}, was {str(wanted.get(name))[:60]}"
        for name in names
        if found.get(name) != wanted.get(name)
    )


def facts_of(machine: Machine, agents: set[str]) -> dict[str, Counter[Any]]:
    """What is there now, of the kinds that programs state."""
    mail = (machine.daemon.at("carol") / ":inbox?format=jsonl").read_text()
    found = {
        "told": Counter(json.loads(line)["body"] for line in mail.splitlines()),
        "line": Counter((machine.daemon.at("bob") / "memory/log").read_text().splitlines()),
        "subscribed": Counter[Any](),
        "key": Counter[Any](),
        "linked": Counter[Any](),
    }
    for agent in agents:
        door = RemoteDoor(machine.daemon.run / "avm.sock", agent, timeout_s=LIMIT_S)
        try:
            found["subscribed"].update(one["pattern"] for one in door.call("subscriptions")["subscriptions"])
            found["key"].update(key["label"] for key in door.call("list_keys"))
            found["linked"] = Counter(link["path"] for link in door.call("links", path="/memory/log")["links"])
        finally:
            door.close()
    return found


def check_facts(machine: Machine, works: list[Work]) -> None:
    found = facts_of(machine, {work.agent for work in works})
    for work in works:
        for kind, value in work.held:
            if kind in found:
                assert found[kind][value] == 1, f"{work.home}: {kind} {value!r} is there {found[kind][value]} times"
            elif kind == "marked":
                said = (machine.daemon.at(work.agent) / "memory/log:mark").read_text()
                assert int(said.split(",")[0].rpartition("v")[2]) >= value, (work.home, said, value)
        tried = set(work.tried)
        for kind in ("told", "line"):
            for value in found[kind]:
                if value.startswith(work.home.rpartition("/")[2] + " "):
                    assert (kind, value) in tried and found[kind][value] == 1, f"{kind} {value!r}"


def check_store(machine: Machine) -> None:
    operator = RemoteDoor(machine.daemon.run / "avm.sock", "alice", operator=True, timeout_s=LIMIT_S)
    try:
        verdict = operator.call("audit_verify")
    finally:
        operator.close()
    assert verdict["ok"], verdict
    for line in machine.daemon.log().splitlines():
        assert " ERROR " not in line and " CRITICAL " not in line, line


def begun(journal: Path, program: subprocess.Popen[bytes]) -> bool:
    """Has it done something? Fails, with what it said, once it has ended: waiting for that would say nothing of it."""
    assert program.poll() is None, (journal.name, (journal.parent / "programs.log").read_text())
    return journal.exists() and '"done"' in journal.read_text()


Program = tuple[str, str]  # its kind, and who it is


def run(
    machine: Machine, number: int, chance: random.Random, keep: Keep, *programs: Program, victim: str | None = None
) -> list[Work]:
    """A round: work, ``victim`` is killed shortly before the power goes, the ordinary start, checks."""
    machine.disk.slow(*chance.choice(SYNCS))
    root, daemon = machine.daemon.root, machine.daemon
    names = [f"{number}{letter}" for letter, _ in zip("abcdefg", programs, strict=False)]
    started = []
    for name, (kind, agent) in zip(names, programs, strict=True):
        mount = daemon.at(agent)
        home = [mount / "memory" / name, mount] if kind == "files" else [f"/memory/{name}", agent]
        started.append(machine.program(kind, root / f"journal{name}", *home))
    wait(lambda: all(begun(root / f"journal{name}", each) for name, each in zip(names, started, strict=True)))
    time.sleep(chance.uniform(0.3, 3.0))
    if victim is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon.family()[victim], signal.SIGKILL)
        time.sleep(chance.uniform(0.0, 1.0))
    ended = [program.poll() for program in started]
    at = machine.power_loss(keep, number)
    for program in started:
        program.wait(LIMIT_S)
    assert ended == [None] * len(started), (root / "programs.log").read_text()
    daemon.start()
    works = [
        Work(root / f"journal{name}", f"memory/{name}", agent, at)
        for name, (_, agent) in zip(names, programs, strict=True)
    ]
    for work in works:
        for mount in (daemon.at("alice"), daemon.at("bob")):
            work.check(mount)
    check_facts(machine, works)
    check_store(machine)
    return works


@pytest.mark.parametrize("names", ["ext4", "posix"])
def test_what_any_door_acknowledged_is_there_after_power_loss(root: Path, names: Names) -> None:
    with machine(root, DroppingDisk(root / "disk", names)) as it:
        rounds(it, random.Random(f"{names} {SEED}"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can use loop devices")
def test_what_any_door_acknowledged_is_there_after_ext4_was_shut_down(root: Path) -> None:
    with machine(root, Ext4Disk(root / "disk")) as it:
        rounds(it, random.Random(SEED))


def rounds(it: Machine, chance: random.Random) -> None:
    acknowledged = 0
    with receiving(receiver := Receiver()):
        it.daemon.start()
        door = RemoteDoor(it.daemon.run / "avm.sock", "carol", timeout_s=LIMIT_S)
        door.call("subscribe", pattern="/memory/**", url=receiver.url("/all"))
        door.call("write", path="/memory/log", data=b"")
        door.close()
        for number in range(ROUNDS):
            works = run(
                it,
                number,
                chance,
                chance.choice(("synced", "some")),
                ("files", "alice"),
                ("files", "bob"),
                ("files", "alice"),
                ("doors", "dave"),
                victim=chance.choice(VICTIMS),
            )
            acknowledged += sum(work.acknowledged for work in works)
            written = {f"/{value}" for work in works for kind, value in work.held if kind == "written"}
            wait(lambda written=written: written <= {each.said["path"] for each in receiver.taken()})
            if number % 10 == 9 or number == ROUNDS - 1:
                it.daemon.command("stop")
                assert database.integrity(it.database) == []
                print(f"{type(it.disk).__name__}: {number + 1} rounds, {acknowledged} acknowledged, 0 lost", flush=True)
                it.daemon.start()
    assert acknowledged > 5 * ROUNDS, "they hardly got to work"


@pytest.mark.parametrize("names", ["ext4", "posix"])
def test_what_was_done_without_a_daemon_is_there_after_power_loss(root: Path, names: Names) -> None:
    chance = random.Random(f"direct {names} {SEED}")
    counts: Counter[str] = Counter()
    with machine(root, DroppingDisk(root / "disk", names)) as it:
        it.daemon.environ["AVM_AUTOSTART"] = "0"
        for agent in ("carol", "dave"):
            with AVM(agent=agent, environ=it.daemon.environ, embeddings=False) as avm:
                avm.write("/memory/log", "")
        for number in range(ROUNDS):
            works = run(it, number, chance, chance.choice(("synced", "some")), ("doors", "dave"), ("doors", "bob"))
            counts.update(acknowledged=sum(work.acknowledged for work in works), rounds=1)
            it.daemon.command("stop")
            assert database.integrity(it.database) == []
    print(f"without a daemon, {names}: {dict(counts)}, 0 lost")
