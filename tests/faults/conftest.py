"""A daemon of its own for each test: real processes, real mounts, nothing left behind."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.daemons import Daemon
from tests.log_lines import tracebacks, unexpected

# What a child says that was being made when its fork server was killed: multiprocessing's own, before a line of ours.
_UNBORN = "EOFError: Ran out of input"


@pytest.fixture
def root() -> Iterator[Path]:
    # The names of sockets below it have to be short, which tmp_path is not.
    with tempfile.TemporaryDirectory(prefix="avm-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def daemon(root: Path, request: pytest.FixtureRequest) -> Iterator[Daemon]:
    """Fails a test whose daemon logged a traceback.

    A fault makes the daemon complain, and in which words depends on the moment that it strikes. A test marked ``logs``
    fails on every other warning and error as well, save those with one of the mark's parts in them.
    """
    if not os.path.exists("/dev/fuse"):
        if os.environ.get("AVM_REQUIRE_MOUNTS") == "1":
            pytest.fail("no /dev/fuse")
        pytest.skip("no /dev/fuse")
    daemon = Daemon(root)
    yield daemon
    daemon.clean_up()
    log, marks = daemon.log(), list(request.node.iter_markers("logs"))
    found = unexpected(log, [part for mark in marks for part in mark.args]) if marks else tracebacks(log)
    found = [line for line in found if _UNBORN not in line]
    assert not found, "\n".join([*found, log[-4000:]])
