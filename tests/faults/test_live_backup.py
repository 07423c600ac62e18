"""Backups beside a daemon in which many write: what was acknowledged before one is in it, and its age is told."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from avmfs.agents import anchors, auditing, backups
from avmfs.rpc.client import RemoteDoor
from avmfs.store.backup import archive
from avmfs.store.identity import OPERATOR
from avmfs.store.repair import examine
from tests.faults.daemons import Daemon, wait

WRITERS = 8


def avm(daemon: Daemon, *arguments: str, expect: int = 0) -> str:
    done = daemon.avm("-a", "alice", *arguments)
    assert done.returncode == expect, (arguments, done.stdout, done.stderr)
    return done.stdout


class Busy:
    """Eight agents who write as fast as it goes, and note when each write was acknowledged."""

    def __init__(self, daemon: Daemon) -> None:
        self.acknowledged: dict[str, float] = {}
        self.over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(daemon, n)) for n in range(WRITERS)]

    def _write(self, daemon: Daemon, number: int) -> None:
        door = RemoteDoor(daemon.run / "avm.sock", f"agent{number}")
        with contextlib.closing(door):
            count = 0
            while not self.over.is_set():
                count += 1
                path = f"/memory/shared/{number}/{count}.md"
                door.call("write", path=path, data=os.urandom(2000).hex().encode())
                self.acknowledged[path] = time.time()

    def __enter__(self) -> Busy:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self.over.set()
        for each in self._threads:
            each.join()


@pytest.mark.logs()
def test_backups_while_eight_agents_write_have_all_that_was_acknowledged_before(daemon: Daemon, root: Path) -> None:
    daemon.mounts()
    daemon.start()
    made: list[tuple[float, dict[str, Any]]] = []
    with Busy(daemon) as busy:
        wait(lambda: len(busy.acknowledged) > 100)
        for _ in range(4):
            began = time.time()
            made.append((began, json.loads(avm(daemon, "--json", "backup", str(root / "kept")))))
    daemon.command("stop")
    assert made[-1][1]["new_bytes"] < made[-1][1]["bytes"]
    for number, (began, told) in enumerate(made):
        to = root / f"to{number}" / "avm.db"
        chosen = next(each for each in archive.backups(root / "kept") if each.path.name == told["name"])
        backups.restore(root / "kept", to, chosen.at)
        with contextlib.closing(examine.FrozenStore(to, True)) as store:
            assert list(examine.rows(store)) == []
            assert auditing.verify(store, OPERATOR, anchors.read(anchors.beside(to))).ok
            with store.reading(OPERATOR) as reader:
                there = {
                    f"/memory/shared/{folder.name.decode()}/{file.name.decode()}"
                    for folder in reader.children(3)
                    for file in reader.children(folder.id)
                }
        assert {path for path, at in busy.acknowledged.items() if at < began} <= there


@pytest.mark.logs()
def test_the_daemon_makes_backups_and_tells_the_age_of_the_last(daemon: Daemon, root: Path) -> None:
    daemon.mounts()
    daemon.settings(f"embedding: {{enabled: false}}\nbackup: {{folder: {root / 'kept'}, every_s: 3600}}\n")
    daemon.start()
    wait(lambda: daemon.status()["backup"]["at"] is not None)
    told = daemon.status()["backup"]
    assert told["folder"] == str(root / "kept") and told["age_s"] >= 0 and told["error"] == ""
    assert f"in {root / 'kept'}" in daemon.command("status")
    avm(daemon, "write", "/shared/a.md", "x")
    avm(daemon, "backup", str(root / "other"))
    assert daemon.status()["backup"]["folder"] == str(root / "other"), "by hand is as good"
    daemon.command("stop")
    avm(daemon, "backup", "restore", str(root / "other"), "--to", str(root / "new"))
    assert avm(daemon, "--db", str(root / "new" / "avm.db"), "read", "/shared/a.md") == "x"
