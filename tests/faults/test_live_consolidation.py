"""Consolidation beside a daemon: the keeper does it by itself, and a killed writer leaves each step whole."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from typing import Any

import pytest

from avmfs.rpc.client import RemoteDoor
from tests.faults.daemons import KILLED, Daemon, wait

SAID = "The release train number {} leaves on Thursday from the staging branch.\n"
PAIRS = 150


def state(door: Any) -> dict[str, tuple[Any, ...]]:
    records = door.call("records", data=True)["records"]
    named = ("data", "mode", "tags", "links", "importance", "user")
    return {each["path"]: tuple(each[key] for key in named) for each in records if each["kind"] == "file"}


@pytest.mark.logs()
def test_the_keeper_consolidates_once_a_day_and_says_so(daemon: Daemon) -> None:
    daemon.mounts()
    daemon.settings("embedding: {enabled: false}\n")
    daemon.start()
    with contextlib.closing(RemoteDoor(daemon.run / "avm.sock", "alice")) as door:
        for name in "12":
            door.call("write", path=f"/private/{name}.md", data=SAID.format(7).encode())
    daemon.command("stop")
    daemon.settings("embedding: {enabled: false}\nconsolidate: {every: 1d, limit: 5}\n")
    daemon.start()
    wait(lambda: daemon.status()["consolidation"].get("notes") is not None)
    assert daemon.status()["consolidation"] == {"agents": 1, "error": "", "notes": 1}
    with contextlib.closing(RemoteDoor(daemon.run / "avm.sock", "alice")) as door:
        assert len(state(door)) == 1
        assert len(door.call("unconsolidate")["back"]) == 1 and len(state(door)) == 2


@pytest.mark.logs(KILLED)
def test_a_writer_that_is_killed_leaves_each_step_whole_and_all_of_it_comes_back(daemon: Daemon) -> None:
    daemon.mounts()
    daemon.settings("embedding: {enabled: false}\n")
    daemon.start()
    with contextlib.closing(RemoteDoor(daemon.run / "avm.sock", "alice")) as door:
        for number in range(PAIRS):
            data = SAID.format(number).encode()
            items = [{"path": f"/shared/{number}{k}.md", "data": data, "tags": [f"t{number}", k]} for k in "12"]
            assert door.call("put", items=items) == [None, None]
        before = state(door)
        agreed = door.call("consolidate")["agreed"]
        writer = daemon.family()["writer"]
        done: list[Any] = []
        asked = threading.Thread(target=lambda: done.append(door.call("consolidate", agreed=agreed)))
        asked.start()
        # Another agent: who has two long requests answered is told to ask later.
        with contextlib.closing(RemoteDoor(daemon.run / "avm.sock", "bob")) as other:
            wait(lambda: len(state(other)) < 2 * PAIRS)
            os.kill(writer, signal.SIGKILL)
        asked.join()
        assert (done[0]["fewer"], done[0]["left_out"]) == (PAIRS, 0)
        after = state(door)
        assert len(after) == PAIRS
        for _, _, tags, links, *_ in after.values():
            assert len(tags) == 3 and [kind for _, kind in links] == ["supersedes"]
        assert len(door.call("unconsolidate", run=done[0]["run"])["back"]) == PAIRS
        assert state(door) == before
