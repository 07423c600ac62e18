"""A daemon per module for the command line and the API, and hands for running `avm`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "mount"))

from mount_world import World  # noqa: E402

LIMIT_S = 30.0


@dataclass
class Shell:
    """Runs `avm` as an agent in one environment."""

    environ: dict[str, str]

    def run(
        self, *arguments: str, agent: str | None = "alice", data: bytes | None = None, code: int | None = 0
    ) -> subprocess.CompletedProcess[bytes]:
        """What it printed; fails unless its exit code is ``code`` (None: any), and always on a traceback."""
        environ = {**self.environ, **({"AVM_AGENT": agent} if agent is not None else {})}
        done = subprocess.run(
            [sys.executable, "-m", "avmfs.cli", *arguments], env=environ, capture_output=True, timeout=LIMIT_S,
            **({"input": data} if data is not None else {"stdin": subprocess.DEVNULL}),
        )  # fmt: skip
        assert b"Traceback" not in done.stderr, done.stderr.decode(errors="replace")
        assert code is None or done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        return done

    def out(self, *arguments: str, **more: Any) -> str:
        return self.run(*arguments, **more).stdout.decode("utf-8", "surrogateescape")

    def complaint(self, *arguments: str, code: int, **more: Any) -> str:
        """What a refused command says; it prints no data."""
        done = self.run(*arguments, code=code, **more)
        assert done.stdout == b"", done.stdout
        return done.stderr.decode("utf-8", "surrogateescape")


def environment(root: Path) -> dict[str, str]:
    """Of commands whose configuration, data and sockets are below ``root``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AVM_")}
    return {
        **kept, "AVM_CONFIG_DIR": str(root / "config"), "AVM_DATA_DIR": str(root / "data"),
        "AVM_RUNTIME_DIR": str(root / "run"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "LC_ALL": "C.UTF-8",
    }  # fmt: skip


@pytest.fixture(scope="module")
def settings() -> str:
    """config.yaml. A module may have another."""
    return "embedding: {enabled: false}\n"


@pytest.fixture(scope="module")
def agents() -> list[str]:
    """Who has a mount of the module's daemon."""
    return ["alice"]


@pytest.fixture(scope="module")
def world(agents: list[str], settings: str) -> Iterator[World]:
    world = World([{"agent_id": agent} for agent in agents], settings)
    try:
        world.start()
        yield world
    finally:
        world.end()


@pytest.fixture
def alone(settings: str) -> Iterator[Shell]:
    """No daemon, an empty store."""
    root = Path(tempfile.mkdtemp(prefix="avmc-", dir="/tmp"))
    (root / "config").mkdir()
    (root / "config/config.yaml").write_text(settings)
    yield Shell(environment(root))
    shutil.rmtree(root)
