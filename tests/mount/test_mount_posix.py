"""Every case of posix_cases.py does the same on a mount as on the machine's own filesystem, line by line.

What differs on purpose is stated here, with its reason: hard links, fifos, sockets and device nodes are refused, and
reading changes no atime.
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mount.mount_world import PORTABLE, World
from tests.mount.posix_cases import CASES

pytestmark = pytest.mark.mount

LIMIT_S = 400.0

# What libfuse's high-level interface cannot do: see the docstring of avmfs/fuse/portable.py.
_BY_PATH = "libfuse asks by path, and an unlinked file or a removed directory has none"
NOT_PORTABLE = {
    "chmod_of_every_kind": _BY_PATH,
    "renaming_keeps_what_a_node_is": _BY_PATH,
    "unlinking": _BY_PATH,
    "truncating_changes_size_bytes_and_times": _BY_PATH,
    "set_id_bits_go_when_another_user_writes": "libfuse does not say who may keep them",
}


@pytest.fixture(scope="module")
def mounts() -> list[dict[str, Any]]:
    return [{"agent_id": "alice", "allow_other": os.geteuid() == 0}]


def _told(top: Path) -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("posix_cases.py")), os.fspath(top)],
        timeout=LIMIT_S,
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, list[str]] = json.loads(done.stdout)
    return told


@pytest.fixture(scope="module")
def told(world: World, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[list[str], list[str]]]:
    """(of the machine's own filesystem, of the mount), by case."""
    os.chmod(world.root, 0o755)
    own = world.root / "own"
    own.mkdir(mode=0o755)
    there = world.mounts["alice"] / "memory/shared/cases"
    there.mkdir(mode=0o755)
    ours, theirs = _told(own), _told(there)
    return lambda name: (ours[name], theirs[name])


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_mount_answers_like_the_machine_s_filesystem(
    name: str, told: Callable[[str], tuple[list[str], list[str]]]
) -> None:
    if CASES[name].users and os.geteuid() != 0:
        pytest.skip("needs root, to act as other users")
    if PORTABLE and name in NOT_PORTABLE:
        pytest.skip(f"portable front end: {NOT_PORTABLE[name]}")
    own, mount = told(name)
    assert not any("RAISED" in line or "failed" in line for line in own), own[-3:]
    assert own == mount, "\n".join(difflib.unified_diff(own, mount, "own filesystem", "mount", lineterm="", n=1))
