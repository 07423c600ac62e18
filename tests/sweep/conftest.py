"""One daemon, three mounts, planted once for all sweeps; copies of its store to do as one likes with. With
AVM_TWO_HOSTS=1 who asks is on another host, and the copies are of that one's store."""

from __future__ import annotations

import os
import secrets
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount.mount_world import OnTwoHosts, World
from tests.sweep.planting import SETTINGS, Planted, plant
from tests.sweep.recipes import Ground


@pytest.fixture(scope="session")
def planted(request: pytest.FixtureRequest) -> Iterator[Planted]:
    entries = [{"agent_id": agent, "xattr": True} for agent in ("alice", "bob", "carol")]
    if os.environ.get("AVM_TWO_HOSTS") == "1":
        address = request.getfixturevalue("postgres").database(secrets.token_hex(8))
        world: World = OnTwoHosts(entries, SETTINGS, address)
    else:
        world = World(entries, SETTINGS)
    try:
        world.start()
        yield plant(world)
    finally:
        world.end()


@pytest.fixture(scope="session")
def ground(planted: Planted) -> Ground:
    bob = planted.mount("bob")
    files, folders = [], ["/", "/shared", "/private"]
    for top, _, names in os.walk(bob / "memory"):
        where = "/" + str(Path(top).relative_to(bob))
        folders.append(where)
        files += [f"{where}/{name}" for name in names if not Path(top, name).is_symlink()]
    return Ground.of(planted, sorted(files), folders)


@pytest.fixture(scope="session")
def copies(planted: Planted) -> Iterator[Callable[..., Path]]:
    """Makes copies of the planted store, each in a home of its own; gives the home. All are of one moment: the daemon
    goes on keeping house."""
    with tempfile.TemporaryDirectory(prefix="avms-", dir="/tmp") as name:
        number, frozen = 0, Path(name, "1")

        def copy(source: Path | None = None) -> Path:
            nonlocal number
            number += 1
            root = Path(name, str(number))
            (root / "config").mkdir(parents=True)
            (root / "data").mkdir(mode=0o700)
            (root / "config/config.yaml").write_text(SETTINGS)
            asked = planted.world.other if isinstance(planted.world, OnTwoHosts) else planted.world
            given = (source or (frozen if number > 1 else asked.root)) / "data/avm.db"
            with sqlite3.connect(f"file:{given}?mode=ro", uri=True) as before:
                with sqlite3.connect(root / "data/avm.db") as after:
                    before.backup(after)
                    after.execute("delete from setting where key = 'shared_log'")  # nobody else writes to it
                after.close()
            before.close()
            return root

        copy()
        yield copy
