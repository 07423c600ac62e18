"""A mount child that misbehaves harms its own agent only: the supervisor and the others go on."""

from __future__ import annotations

import os
import signal
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from avmfs_daemon.child import FIRST_PAUSE_S

from avmfs.errors import Busy
from tests.faults.daemons import SOON_S, Daemon, wait
from tests.faults.hostile import running

pytestmark = pytest.mark.mount


@pytest.mark.parametrize("eve", ["eve-floods", "eve-garbles", "eve-lists", "eve-stalls", "eve-boasts"])
def test_a_hostile_child_does_not_hold_up_the_loop(daemon: Daemon, eve: str) -> None:
    daemon.mounts("alice", eve)
    with running(daemon):
        for number in range(5):
            assert daemon.mount("alice")["state"] == "ready"  # the question has a time limit
            (daemon.at("alice") / f"memory/note{number}").write_text("text")
        victim = daemon.mount("alice")["pid"]
        os.kill(victim, signal.SIGKILL)
        wait(lambda: daemon.mount("alice")["pid"] not in (victim, None))
    wait(daemon.gone, SOON_S)


def test_a_child_asks_less_than_a_busy_machine_could_just_answer(daemon: Daemon) -> None:
    daemon.mounts("alice", "eve-asks")
    with running(daemon):
        wait(lambda: "too many messages" in daemon.mount("eve-asks").get("error", ""))


def test_a_child_that_is_at_work_has_the_time_that_it_needs_and_one_that_hangs_has_not(daemon: Daemon) -> None:
    daemon.mounts("alice", "eve-hangs", "eve-labours")
    with running(daemon, READY_S="5"):
        wait(lambda: daemon.mount("eve-labours")["state"] == "ready")
        assert daemon.mount("eve-labours")["restarts"] == 0
        wait(lambda: daemon.mount("eve-hangs")["state"] == "failed")
        assert daemon.mount("eve-hangs")["error"] == "did not get ready in time"


def test_a_fork_server_that_always_dies_ends_no_mount(daemon: Daemon) -> None:
    daemon.mounts("alice")
    with running(daemon, SHORT_LIFE_S="1000"):
        with open(daemon.at("alice") / "memory/note", "w", buffering=1) as file:
            for number in range(4):
                file.write(f"{number}\n")
                victim = daemon.mount("alice")["pid"]
                fork_server = int(Path(f"/proc/{victim}/stat").read_text().rpartition(")")[2].split()[1])
                os.kill(fork_server, signal.SIGKILL)
                wait(lambda before=victim: daemon.mount("alice")["pid"] not in (before, None))
                wait(lambda: daemon.state("alice") == "ready")
            daemon.family()
        assert (daemon.at("alice") / "memory/note").read_text() == "0\n1\n2\n3\n"


def ends(daemon: Daemon, name: str) -> list[datetime]:
    """When a child of this name ended, by the log."""
    lines = (daemon.root / "log").read_text().splitlines()
    return [datetime.fromisoformat(line[:23].replace(",", ".")) for line in lines if f" {name} (pid " in line]


def test_a_child_that_cannot_start_is_failed_with_its_reason_and_tried_ever_more_slowly(daemon: Daemon) -> None:
    daemon.mounts("alice", "eve-dies", "eve-explains")
    with running(daemon):
        wait(lambda: daemon.mount("eve-dies")["state"] == daemon.mount("eve-explains")["state"] == "failed")
        assert daemon.mount("eve-dies")["error"] == "ended with status 3"
        assert daemon.mount("eve-explains")["error"] == "out of luck"
        wait(lambda: len(ends(daemon, "eve-dies")) > 5)
        between = [(after - before).total_seconds() for before, after in pairwise(ends(daemon, "eve-dies"))]
        assert all(took > FIRST_PAUSE_S * 2**number for number, took in enumerate(between[:5])), between
        with pytest.raises(PermissionError):
            (daemon.at("eve-dies") / "lost").write_text("nothing covers it")
    (daemon.at("eve-dies") / "ordinary").write_text("text")


def test_status_fails_with_the_reason_while_there_is_no_writer(daemon: Daemon) -> None:
    daemon.mounts("alice")
    with running(daemon, WRITER="once"):
        os.kill(daemon.family()["writer"], signal.SIGKILL)
        wait(lambda: daemon.status()["store"]["writer_state"] == "failed")
        assert "no writer: ended with status 3" in daemon.command("status", expect=1)


@pytest.mark.logs("no descriptor")
def test_whoever_comes_to_a_door_that_cannot_be_started_is_told_why_and_so_is_status(daemon: Daemon) -> None:
    daemon.mounts("alice")
    with running(daemon, DOOR="dies"):
        wait(lambda: "door: cannot be started: no descriptor" in daemon.status()["problem"])
        daemon.command("status", expect=1)
        with pytest.raises(Busy, match="no descriptor"):
            daemon.door("alice")
