"""A store in each of its two modes, audited when the test is over. With AVM_TWO_HOSTS=1 in one only: written by a host
of a shared log, followed by another host, which has to be its equal in the end."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from avmfs.store.queries.connections import Connections
from tests.contract.store_world import Mode, Rule, World

Build = Callable[..., World]


TWO_HOSTS = os.environ.get("AVM_TWO_HOSTS") == "1"


@pytest.fixture(params=["attached"] if TWO_HOSTS else ["direct", "attached"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param


@pytest.fixture
def build(tmp_path: Path, mode: Mode, request: pytest.FixtureRequest) -> Iterator[Build]:
    """Makes the test's one world: build(rules, default)."""
    made: list[World] = []

    def make(rules: list[Rule] | None = None, default: str = "rw") -> World:
        log = request.getfixturevalue("postgres").database(secrets.token_hex(8)) if TWO_HOSTS else ""
        made.append(World(tmp_path, "attached" if TWO_HOSTS else mode, rules, default, log))  # no other way is there
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(build: Build) -> World:
    return build()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one with every question to the database."""
    found: list[object] = []
    borrow = Connections.borrow

    def counted(self: Connections) -> Any:
        found.append(self)
        return borrow(self)

    monkeypatch.setattr(Connections, "borrow", counted)
    return found


@pytest.fixture
def still(world: World) -> World:
    """Its time is what the test makes of it."""
    if world.mode != "direct":
        pytest.skip("the time is that of another process")
    world.clock.stand_still()
    return world
