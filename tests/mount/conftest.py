"""Two agents, alice and bob, with a mount each, of one daemon per module."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mount.mount_world import OnTwoHosts, Place, World
from tests.mount.new_file_steps import used

HANGS_AFTER_S = 500.0
LOST = "after its last flush are lost"


@pytest.fixture(scope="module")
def mounts() -> list[dict[str, Any]]:
    """Entries of mounts.yaml but for the mountpoint. A module may have others."""
    return [{"agent_id": "alice"}, {"agent_id": "bob"}]


@pytest.fixture(scope="module")
def settings() -> str:
    """config.yaml. A module may have another."""
    return "embedding: {enabled: false}\n"


@pytest.fixture(scope="module")
def two_hosts() -> bool:
    """Is bob's mount on another host? A module may say so; AVM_TWO_HOSTS=1 says so of all."""
    return os.environ.get("AVM_TWO_HOSTS") == "1"


@pytest.fixture(scope="module")
def world(
    mounts: list[dict[str, Any]], settings: str, two_hosts: bool, request: pytest.FixtureRequest
) -> Iterator[World]:
    if two_hosts:
        address = request.getfixturevalue("postgres").database(secrets.token_hex(8))
        world: World = OnTwoHosts(mounts, settings, address)
    else:
        world = World(mounts, settings)
    try:
        world.start()
        yield world
    finally:
        world.end()


@pytest.fixture(autouse=True)
def _no_hanging(world: World, request: pytest.FixtureRequest) -> Iterator[None]:
    """A system call that a mount never answers cannot be interrupted; without the daemon the kernel ends it. A module
    whose tests can be made longer says HANGS_AFTER_S itself."""
    timer = threading.Timer(getattr(request.module, "HANGS_AFTER_S", HANGS_AFTER_S), world.kill)
    timer.start()
    yield
    timer.cancel()
    assert world.process is not None
    assert world.process.poll() is None, "the daemon has died, or was killed because the test hung"


@pytest.fixture
def alice(world: World) -> Path:
    return world.mounts["alice"]


@pytest.fixture
def bob(world: World) -> Path:
    return world.mounts["bob"]


@pytest.fixture
def place(world: World, alice: Path, bob: Path, request: pytest.FixtureRequest) -> Place:
    number = sum(1 for _ in (alice / "memory/shared").iterdir())
    path = f"memory/shared/t{number}"
    (alice / path).mkdir()
    return Place(f"/{path}", alice / path, bob / path)


@pytest.fixture
def tops(world: World, place: Place) -> list[Path]:
    """The test's directory on each mount that may write there, in a module where carol has one too."""
    return [world.mounts[agent] / place.path[1:] for agent in ("alice", "bob", "carol")]


@pytest.fixture
def not_the_first(place: Place) -> None:
    """No file of the test shall be the first that its mount makes in the test's directory."""
    used(place.alice, place.bob)


@pytest.fixture
def losses_are_told(world: World) -> None:
    """Bytes that cannot be kept are an error in the log, too; here their writer has been told."""
    if LOST not in world.expected:
        world.expected.append(LOST)
