"""One store on several hosts: a daemon with a home of its own for each, and a PostgreSQL that keeps their log."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from daemons import KILLED, QUIET, Daemon, wait

pytestmark = pytest.mark.mount
MISSED = ("shared log", "nothing can be written", KILLED)


class Hosts:
    """``a`` has made the log; the others join."""

    def __init__(self, root: Path, address: str) -> None:
        self.root, self.address = root, address
        self.all: list[Daemon] = []

    def host(self, name: str, *agents: str, address: str = "", more: str = "") -> Daemon:
        (self.root / name).mkdir()
        made = Daemon(self.root / name)
        made.mounts(*agents)
        made.settings(f"{QUIET}store: {{log: '{address or self.address}', host: {name}{more}}}\n")
        self.all.append(made)
        return made

    def first(self, *agents: str) -> Daemon:
        made = self.host("a", *agents)
        avm(made, "cluster", "init")
        made.start()
        return made

    def joined(self, name: str, *agents: str, address: str = "", more: str = "") -> Daemon:
        made = self.host(name, *agents, address=address, more=more)
        avm(made, "cluster", "join")
        made.start()
        return made


def avm(daemon: Daemon, *arguments: str, expect: int = 0) -> str:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "avmfs.cli", *arguments],
        env=daemon.environ,
        cwd=daemon.root,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr, daemon.log())
    return done.stdout + done.stderr


@pytest.fixture
def hosts(root: Path, postgres: Any) -> Iterator[Hosts]:
    if not os.path.exists("/dev/fuse"):
        pytest.skip("no /dev/fuse")
    found = Hosts(root, postgres.database(secrets.token_hex(8)))
    yield found
    for daemon in found.all:
        daemon.clean_up()
        assert "Traceback" not in daemon.log(), daemon.log()[-4000:]


def reads(path: Path, text: str) -> bool:
    try:
        return path.read_text() == text
    except FileNotFoundError:
        return False


def test_what_is_written_on_one_host_is_read_on_the_other(hosts: Hosts) -> None:
    a = hosts.first("alice")
    b = hosts.joined("b", "bob")
    (a.at("alice") / "memory/one.md").write_text("from a")
    wait(lambda: reads(b.at("bob") / "memory/one.md", "from a"))
    (b.at("bob") / "memory/one.md").write_text("from b")
    wait(lambda: reads(a.at("alice") / "memory/one.md", "from b"))
    (b.at("bob") / "tell/alice").write_text("hello")
    wait(lambda: "hello" in (a.at("alice") / ":inbox").read_text())
    assert not (b.at("bob") / "memory/private/alice").exists()
    said = a.status()["cluster"]
    assert said["host"] == "a" and said["error"] == "" and said["record"] > 0
    assert "shared log record" in a.command("status")
    assert "b " in avm(a, "cluster", "status")
