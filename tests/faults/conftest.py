"""A daemon of its own for each test: real processes, real mounts, nothing left behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemons import Daemon


@pytest.fixture
def root() -> Iterator[Path]:
    # The names of sockets below it have to be short, which tmp_path is not.
    with tempfile.TemporaryDirectory(prefix="avm-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def daemon(root: Path) -> Iterator[Daemon]:
    if not os.path.exists("/dev/fuse"):
        if os.environ.get("AVM_REQUIRE_MOUNTS") == "1":
            pytest.fail("no /dev/fuse")
        pytest.skip("no /dev/fuse")
    daemon = Daemon(root)
    yield daemon
    daemon.clean_up()
