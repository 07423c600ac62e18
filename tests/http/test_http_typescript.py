"""The TypeScript client: it compiles as strictly as there is, and its own tests pass against a service."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.daemons import LIMIT_S
from tests.http.http_world import Web

CLIENT = Path(__file__).parents[2] / "clients/typescript"


def test_the_client_is_built_and_its_tests_pass(web: Web, tmp_path: Path) -> None:
    node = shutil.which("node")
    places = [Path(sys.prefix), CLIENT]
    installed = next((each / "node_modules" for each in places if (each / "node_modules/typescript").exists()), None)
    if node is None or installed is None:
        pytest.skip("node or its typescript is not installed: ./run web brings them")
    shutil.copytree(CLIENT, tmp_path / "client", ignore=shutil.ignore_patterns("node_modules", "dist"))
    (tmp_path / "client/node_modules").symlink_to(installed)
    for command in ([node, "node_modules/typescript/bin/tsc"], [node, "--test", "dist/test/"]):
        environ = {**os.environ, "AVM_URL": web.url, "AVM_TOKEN": web.token("alice")}
        done = subprocess.run(
            command, cwd=tmp_path / "client", env=environ, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
