"""How what is optional is brought to where avmfs is installed.

Owns the command that messages advise. Called wherever an import of an extra's package fails.
"""

from __future__ import annotations

import sys
from pathlib import Path


def bring(extra: str, prefix: str | Path = sys.prefix) -> str:
    """The command that installs avmfs[``extra``] into the environment at ``prefix``. A shell's ``pip`` does not reach
    one that uv or pipx made, and uv takes out again the extras that it is not told."""
    receipt = Path(prefix, "uv-receipt.toml")
    if receipt.exists():
        import tomllib

        required = tomllib.loads(receipt.read_text("utf-8"))["tool"]["requirements"]
        told = {extra, *(each for by in required if by["name"] == "avmfs" for each in by.get("extras", ()))}
        return f"uv tool install 'avmfs[{','.join(sorted(told))}]'"
    pipx = Path(prefix, "pipx_metadata.json").exists()
    return f"{'pipx inject avmfs' if pipx else 'pip install'} 'avmfs[{extra}]'"
