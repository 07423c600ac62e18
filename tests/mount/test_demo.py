"""The first command of the README does what it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.mount, pytest.mark.timeout(150)]

ROOT = Path(__file__).parents[2]


def test_the_demo_runs_to_its_end_and_leaves_nothing(tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AVM_")}
    environ = {
        **kept, "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}", "TMPDIR": str(tmp_path),
        "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    done = subprocess.run(
        ["sh", str(ROOT / "examples/demo.sh")], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [*tmp_path.glob("avm-demo.*")]
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
