"""Digest, bundle and graph of two weeks of three agents, as they are printed.

    python benchmarks/two_weeks_shown.py [FILE]     benchmarks/results/two_weeks.md

The history is that of the tests of the page (tests/http/two_weeks.py); the commands are a user's.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHOWN = (
    "avm -a bob digest --days 2 --limit 5",
    "avm -a carol bundle deploys --max-tokens 600",
    "avm -a alice graph /shared --format mermaid",
)


def main() -> int:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "benchmarks/results/two_weeks.md"
    with tempfile.TemporaryDirectory() as folder:
        places = {f"AVM_{name}_DIR": f"{folder}/{name.lower()}" for name in ("DATA", "CONFIG", "RUNTIME")}
        environ = {**os.environ, **places, "AVM_AUTOSTART": "0", "TZ": "UTC"}
        for place in places.values():
            Path(place).mkdir(mode=0o700)
        Path(places["AVM_CONFIG_DIR"], "config.yaml").write_text("embedding: {enabled: false}\n")
        history = [sys.executable, str(ROOT / "tests/http/two_weeks.py"), "14"]
        subprocess.run(history, env=environ, check=True)
        text = "# Two weeks of three agents\n\nMade by `python benchmarks/two_weeks_shown.py`.\n"
        for line in SHOWN:
            program = [sys.executable, "-m", "avmfs.cli", *shlex.split(line)[1:]]
            done = subprocess.run(program, env=environ, check=True, capture_output=True, text=True, cwd=ROOT)
            text += f"\n```console\n$ {line}\n{done.stdout.rstrip()}\n```\n"
    target.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
