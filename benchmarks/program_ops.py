"""Programs over a tree of notes: what bench_programs runs; runs in client processes.

A program's output goes to a pipe and is thrown away, except for a check that it did the whole work: `ls` and `grep`
take short cuts where they see that it goes to /dev/null.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.clients import Command, reply_of
from benchmarks.figures import timed_loop, wait_until

FOLDERS = 100
WANTED = "frothy"
WANTED_EVERY = 50
PROGRAM_S = 240.0
ENVIRONMENT = {**os.environ, "LC_ALL": "C", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}


def commands() -> Mapping[str, Command]:
    return {"source": source, "copy": copy, "run": run}


def source(folder: str, notes: int, listed: int) -> None:
    """On the disk: `notes` notes of about 1 KB in FOLDERS folders, committed and packed by git, and a flat folder."""
    choose = random.Random(3)
    words = [f"w{choose.randrange(20_000)}" for _ in range(4000)]
    for i in range(notes):
        below = Path(folder, "tree", f"d{i % FOLDERS:03}")
        below.mkdir(parents=True, exist_ok=True)
        text = [" ".join(choose.choices(words, k=12)) for _ in range(14)]
        if i % WANTED_EVERY == 0:
            text[7] += f" {WANTED}"
        (below / f"note{i:05}.md").write_text("\n".join(text) + "\n")
    flat = Path(folder, "flat")
    flat.mkdir()
    for i in range(listed):
        (flat / f"note{i:05}.md").write_text(f"note {i}\n")
    tree = f"{folder}/tree"
    for words in (
        ["init", "-q"],
        ["config", "core.checkStat", "default"],
        ["config", "gc.auto", "0"],  # else the commit starts one in the background, which ours would meet
        ["add", "."],
        ["-c", "user.name=bench", "-c", "user.email=b@localhost", "commit", "-q", "-m", "notes"],
        ["gc", "-q", "--prune=now"],
    ):
        subprocess.run(["git", "-C", tree, *words], check=True, timeout=PROGRAM_S, env=ENVIRONMENT)
    for hook in Path(tree, ".git/hooks").glob("*.sample"):
        hook.unlink()


def copy(folder: str, into: str, start_ns: int, limit_s: float) -> list[object]:
    """Both folders, with the repository, into a variant's directory; git's index learns the new times."""

    def once(_: int) -> None:
        os.makedirs(into)
        subprocess.run(["cp", "-r", f"{folder}/tree", f"{folder}/flat", into], check=True, timeout=limit_s)
        subprocess.run(["git", "-C", f"{into}/tree", "status", "-s"], check=True, timeout=limit_s, env=ENVIRONMENT)

    wait_until(start_ns)
    return reply_of(timed_loop(once, range(1), limit_s))


def run(program: str, into: str, times: int, notes: int, listed: int, start_ns: int, limit_s: float) -> list[object]:
    """Run a program so many times; each is one operation."""
    command, lines = _command(program, into, notes, listed)

    def once(_: int) -> None:
        done = subprocess.run(command, capture_output=True, timeout=PROGRAM_S, env=ENVIRONMENT)
        if done.stdout.count(b"\n") != lines:
            said = done.stdout.count(b"\n")
            raise ValueError(f"{program}: {said} lines instead of {lines}: {done.stderr[-200:]!r}")

    wait_until(start_ns)
    return reply_of(timed_loop(once, range(times), limit_s))


def _command(program: str, into: str, notes: int, listed: int) -> tuple[Sequence[str], int]:
    """The words, and how many lines come when all is done."""
    found = -(-notes // WANTED_EVERY)
    match program:
        case "ls -l":
            return ["ls", "-l", f"{into}/flat"], listed + 1
        case "grep -r":
            return ["grep", "-r", "--exclude-dir=.git", WANTED, f"{into}/tree"], found
        case "git status":
            return ["git", "-C", f"{into}/tree", "status", "--porcelain"], 0
        case "find":
            return ["find", f"{into}/tree", "-name", "note*"], notes
        case _:
            raise ValueError(f"unknown program: {program}")
