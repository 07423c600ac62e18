"""What of avmfs is installed, and how what is optional is brought there.

Owns the version, and the command that messages advise wherever an import of an extra's package fails.
"""

from __future__ import annotations

import sys
from functools import lru_cache
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


@lru_cache(maxsize=1)
def version_text() -> str:
    """As installed; from a bare checkout, as pyproject.toml says; unknown while it is being installed anew."""
    from importlib import metadata

    try:
        return metadata.version("avmfs")
    except metadata.PackageNotFoundError:
        import tomllib

        path = Path(__file__).parents[1] / "pyproject.toml"
        return str(tomllib.loads(path.read_text("utf-8"))["project"]["version"]) if path.exists() else "unknown"
