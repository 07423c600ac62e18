"""What README.md shows in its first console block is what happens when it is pasted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCK = re.findall(r"```console\n(.*?)```", README, re.DOTALL)[0]
# What differs from run to run: dates, times, numbers drawn by chance, the store's own count of changes.
_CHANCE = ((r"\d{4}-\d\d-\d\d( \d\d:\d\d)?", "DATE"), (r"#\d{4,}", "#ID"), (r"\b(cli|mount) \d{6}\b", r"\1 N"))
_SEQ = (r"\(seq=\d+ \d{6}\)", "(seq N)")


def steps() -> list[tuple[str, str]]:
    """Each command, and what is shown of what it prints."""
    found: list[tuple[str, str]] = []
    for line in BLOCK.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:].strip(), ""))
        else:
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def same(text: str) -> str:
    for pattern, word in (*_CHANCE, _SEQ):
        text = re.sub(pattern, word, text)
    return text


@pytest.fixture
def environ() -> Iterator[dict[str, str]]:
    home = Path(tempfile.mkdtemp(prefix="avmr-", dir="/tmp"))
    bin_ = home / "bin"
    bin_.mkdir()
    for name, module in (("avm", "avmfs.cli"), ("avm-daemon", "avmfs_daemon")):
        (bin_ / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (bin_ / name).chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AVM_", "XDG_"))}
    path = f"{bin_}{os.pathsep}{os.environ['PATH']}"
    environ = {**kept, "HOME": str(home), "PATH": path, "HF_HUB_OFFLINE": "1", "AVM_RUNTIME_DIR": str(home / "run")}
    try:
        yield environ
    finally:
        subprocess.run(["avm-daemon", "stop"], env=environ, capture_output=True, timeout=300, check=False)
        shutil.rmtree(home)


@pytest.mark.mount
@pytest.mark.model
def test_the_first_screen_of_the_readme_runs_as_it_is_pasted(environ: dict[str, str]) -> None:
    assert len(steps()) >= 9
    for command, shown in steps():
        done = subprocess.run(
            ["bash", "-c", command], env=environ, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, (command, done.stderr)
        if shown:
            assert same(done.stdout) == same(shown), command
