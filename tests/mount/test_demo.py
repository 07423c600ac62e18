"""The first command of the README does what it shows."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.mount

ROOT = Path(__file__).parents[2]


@pytest.fixture
def short() -> Iterator[Path]:
    """A place whose path leaves room for the names of sockets."""
    with tempfile.TemporaryDirectory(prefix="avmd-", dir="/tmp") as folder:
        yield Path(folder)


def test_the_demo_runs_to_its_end_and_leaves_nothing(short: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AVM_")}
    environ = {
        **kept,
        "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
        "TMPDIR": str(short),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    done = subprocess.run(
        ["sh", str(ROOT / "examples/demo.sh")], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [*short.glob("avm-demo.*")]
    assert str(short) not in Path("/proc/mounts").read_text()
