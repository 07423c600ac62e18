"""log: {format: json}: each record of each process is an object on a line; and a reload goes back to text."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.daemons import KILLED, QUIET, Daemon, wait


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with tempfile.TemporaryDirectory(prefix="avm-", dir="/tmp") as name:
        made = Daemon(Path(name))
        try:
            yield made
        finally:
            with contextlib.suppress(AssertionError):
                made.command("stop")
            made.clean_up()


def test_every_record_is_an_object_until_a_reload_says_otherwise(daemon: Daemon) -> None:
    daemon.mounts()
    daemon.settings(QUIET + "log: {format: json}\n")
    daemon.start()
    os.kill(daemon.family()["writer"], signal.SIGKILL)
    wait(lambda: KILLED in daemon.log() and daemon.status()["store"]["writer_state"] == "ready")
    wait(lambda: daemon.log().count("the store's log is on the disk") == 2)
    records = [json.loads(line) for line in daemon.log().splitlines()]
    assert {"supervisor", "writer"} <= {each["process"] for each in records}
    assert all({"at", "level", "logger", "message", "process"} <= each.keys() for each in records)
    [killed] = [each for each in records if KILLED in each["message"]]
    assert (killed["level"], killed["process"]) == ("WARNING", "supervisor")
    daemon.settings(QUIET)
    daemon.command("reload")
    daemon.command("stop")
    assert " supervisor: INFO stopping" in daemon.log().splitlines()[-1] or "INFO stopping" in daemon.log()


def test_a_reload_reaches_the_writer(daemon: Daemon) -> None:
    """It is replaced, as any process is, for what is no rule."""
    daemon.mounts("alice")
    daemon.settings(QUIET)
    daemon.start()
    (daemon.at("alice") / "memory/note").write_text("one")
    before = daemon.family()["writer"]
    daemon.settings(QUIET + "log: {format: json}\n")
    daemon.command("reload")
    (daemon.at("alice") / "memory/note").write_text("two")
    assert daemon.whole_family()["writer"] != before
    told = [line for line in daemon.log().splitlines() if "the store's log is on the disk" in line]
    assert len(told) == 2 and json.loads(told[1])["process"] == "writer"
    now = daemon.whole_family()["writer"]
    daemon.settings(QUIET + "log: {format: json}\nhttp: {metrics: false}\n")
    daemon.command("reload")
    assert daemon.whole_family()["writer"] != now and (daemon.at("alice") / "memory/note").read_text() == "two"
