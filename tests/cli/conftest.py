"""A daemon per module for the command line and the API."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from avmfs import AVM
from tests.cli.shells import QuickShell, Shell, configured, environment
from tests.mount.mount_world import World

Open = Callable[[str], AVM]


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
    with configured(settings) as root:
        yield QuickShell(environment(root), root)


@pytest.fixture
def apart(settings: str) -> Iterator[Shell]:
    """The same, each command in a process of its own: for those that leave one behind, or that take their time."""
    with configured(settings) as root:
        yield Shell(environment(root))


@pytest.fixture(scope="module", params=["daemon", "alone"])
def opened(request: pytest.FixtureRequest, settings: str) -> Iterator[Open]:
    """AVM(agent) of one store, behind a daemon or without one."""
    made: list[AVM] = []

    def opener(environ: dict[str, str]) -> Open:
        def open_(agent: str) -> AVM:
            avm = AVM(agent=agent, environ=environ, embeddings=False)
            made.append(avm)
            return avm

        return open_

    try:
        if request.param == "daemon":
            world: World = request.getfixturevalue("world")
            yield opener(world.environ)
        else:
            with configured(settings) as root:
                yield opener(environment(root))
    finally:
        for avm in made:
            avm.close()
