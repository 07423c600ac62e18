"""A daemon per module, clients in an event loop of their own thread."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from tests.cli.shells import environment
from tests.mcp import peers
from tests.mcp.peers import Peer
from tests.mount.mount_world import World

SETTINGS = "embedding: {enabled: false}\n"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """One mount, carol's: alice and bob come through MCP alone."""
    world = World([{"agent_id": "carol"}], SETTINGS)
    try:
        world.start()
        yield world
    finally:
        world.end()


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def alice(world: World, portal: BlockingPortal) -> Iterator[Peer]:
    """In the protocol of the handshake."""
    with peers.stdio(portal, world.environ, "alice", mode="legacy") as peer:
        yield peer


@pytest.fixture(scope="module")
def bob(world: World, portal: BlockingPortal) -> Iterator[Peer]:
    """In the newest protocol."""
    with peers.stdio(portal, world.environ, "bob") as peer:
        yield peer


@pytest.fixture(scope="module")
def url(world: World) -> Iterator[str]:
    """Of alice's server over HTTP."""
    with peers.http_server(world.environ, "alice") as url:
        yield url


@pytest.fixture
def alone() -> Iterator[dict[str, str]]:
    """The environment of a store without a daemon."""
    root = Path(tempfile.mkdtemp(prefix="avmp-", dir="/tmp"))
    (root / "config").mkdir()
    (root / "config/config.yaml").write_text(SETTINGS)
    yield environment(root)
    shutil.rmtree(root)
