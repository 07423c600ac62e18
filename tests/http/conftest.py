"""A daemon with the HTTP service on, for the tests of a module."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette")

from tests.http.http_world import Web, of, started
from tests.log_lines import unexpected


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    with tempfile.TemporaryDirectory(prefix="avm-", dir="/tmp") as name:
        daemon = started(Path(name))
        try:
            yield of(daemon)
            assert unexpected(daemon.log(), []) == [], daemon.log()[-6000:]
        finally:
            with contextlib.suppress(AssertionError):
                daemon.command("stop")
            daemon.clean_up()


@pytest.fixture
def root() -> Iterator[Path]:
    # The names of sockets below it have to be short, which tmp_path is not.
    with tempfile.TemporaryDirectory(prefix="avm-", dir="/tmp") as name:
        yield Path(name)
