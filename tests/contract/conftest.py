"""A store in each of its two modes, audited when the test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_world import Mode, Rule, World

Build = Callable[..., World]


@pytest.fixture(params=["direct", "attached"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def build(tmp_path: Path, mode: Mode) -> Iterator[Build]:
    """Makes the test's one world: build(rules, default)."""
    made: list[World] = []

    def make(rules: list[Rule] | None = None, default: str = "rw") -> World:
        made.append(World(tmp_path, mode, rules, default))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(build: Build) -> World:
    return build()
