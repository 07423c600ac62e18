"""A day of one agent in a shell, through a real mount: examples/agent_day.sh, which the guide shows."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.mount.mount_world import cat, echo, until, view

pytestmark = pytest.mark.mount

TREE = Path(__file__).parents[2]
SCRIPT = TREE / "examples/agent_day.sh"
GUIDE = TREE / "docs/guides/shell.md"


def test_the_guide_shows_the_script_as_it_is() -> None:
    shown = re.search(r"```sh\n(#!/bin/sh\n.*?)```", GUIDE.read_text(), re.DOTALL)
    assert shown is not None and shown[1] == SCRIPT.read_text()


def test_a_day_from_the_inbox_to_the_handoff(alice: Path, bob: Path) -> None:
    (alice / "shared/plan.md").write_text("# Release plan\n- The release is on Monday\n- The freeze ends on Sunday\n")
    cat(bob / "memory/shared/:delta")  # yesterday's session
    cat(bob / "shared/plan.md:delta")
    (alice / "shared/plan.md").write_text("# Release plan\n- The release is on Monday\n- The freeze ends on Monday\n")
    (alice / "shared/risks.md").write_text("The database migration takes four hours.\n")
    echo("The freeze moved, please adapt the plan.", alice / "tell/bob")

    def answer() -> None:
        """What alice does when bob's question has come."""
        until(lambda: "Is QA fine with noon?" in cat(alice / ":inbox"))
        time.sleep(0.3)
        echo("Noon is fine.", alice / "tell/bob")

    other = threading.Thread(target=answer)
    other.start()
    done = subprocess.run(["sh", str(SCRIPT), str(bob)], capture_output=True, text=True, timeout=300)
    other.join(300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    start, work, remember, tell, _ = re.split(r"^== .*\n", done.stdout, flags=re.MULTILINE)[1:]

    assert "> The freeze moved, please adapt the plan." in start
    assert "M /memory/shared/plan.md\n" in start and "A /memory/shared/risks.md\n" in start
    assert "## Relevant Memory" in start and "Release plan" in start
    assert "-- The freeze ends on Sunday\n+- The freeze ends on Monday\n" in work, "his own delta of the file"
    assert "+- QA has until Tuesday noon\n" in work
    assert remember == ""
    assert "> Noon is fine." in tell and "please adapt" not in tell.partition("(read)")[0]

    assert (alice / "shared/plan.md").read_text() == (
        "# Release plan\n- The release is on Tuesday\n- The freeze ends on Tuesday\n- QA has until Tuesday noon\n"
    )
    history = cat(alice / "shared/plan.md:history")
    assert history.splitlines()[0].split()[4] == "bob/mount" and "alice" in history, (
        "sed -i went on with the same document"
    )
    note = bob / "private/lessons/freeze.md"
    meta = json.loads(cat(view(note, ":meta")))
    assert meta["tags"] == ["lesson", "release"] and meta["importance"] == 0.8
    assert cat(view(note, ":links")) == "-> /memory/shared/plan.md (derived)\n"
    assert not (alice / "memory/private/bob").exists()
    assert "Handoff is in /shared/handoff.md" in cat(alice / ":inbox")
    assert "Open: release notes" in (alice / "shared/handoff.md").read_text()
    assert "handoff.md" in cat(alice / "memory/shared/:list?tag=handoff")

    # The next morning nothing is told twice.
    assert "0 unread" in cat(bob / ":inbox").splitlines()[0]
    assert cat(bob / "memory/shared/:delta") == "(no changes)\n"
    assert "Handoff" in cat(bob / ":recall?q=what is left open of the release&min_relevance=0")


def test_the_loop_that_the_guide_shows_handles_each_message_once(tmp_path: Path, alice: Path, bob: Path) -> None:
    shown = re.search(r"^ +(while :; do cat ':inbox.*?)```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    (tmp_path / "handle").write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/handled\n')
    (tmp_path / "handle").chmod(0o755)
    (tmp_path / "handled").touch()
    said = ["loop 1", "loop 2", "loop 3"]

    def handled() -> list[str]:
        bodies = [json.loads(line)["body"].strip() for line in (tmp_path / "handled").read_text().splitlines()]
        return [body for body in bodies if body in said]

    def say(body: str) -> None:
        echo(body, alice / "tell/bob")
        until(lambda: body in handled())

    path = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    loop = subprocess.Popen(["sh", "-c", shown[1]], cwd=bob, env=path, start_new_session=True)
    try:
        for body in said:
            say(body)
    finally:
        os.killpg(loop.pid, signal.SIGKILL)
        loop.wait(60)
    assert handled() == said
