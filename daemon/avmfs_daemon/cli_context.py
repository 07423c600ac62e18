"""What every sub-command of `avm-daemon` starts from: where things are, and how one fails.

Owns the environment that the daemon and its children get, and the exception that ends a command with one line.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from avmfs_config import ConfigError, Paths, find_paths

from avmfs.text.escapes import visible


class Failure(click.ClickException):
    """Printed as one line; exit code 1."""

    def show(self, file: Any = None) -> None:
        complain(self.message)


def complain(problem: str) -> None:
    """A line to stderr."""
    click.echo(f"avm-daemon: {visible(problem)}", err=True)


def paths_and_environ() -> tuple[Paths, dict[str, str]]:
    """The paths, and an environment that means the same from any working directory."""
    try:
        paths = find_paths(os.environ)
    except ConfigError as e:
        raise Failure(str(e)) from None
    fixed = {
        "AVM_CONFIG_DIR": paths.config_dir,
        "AVM_DATA_DIR": paths.data_dir,
        "AVM_RUNTIME_DIR": paths.runtime_dir,
        "AVM_MOUNTS": paths.mounts_file,
        "AVM_CONFIG": paths.config_file,
        "AVM_DB": paths.database,
    }
    if given := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in given.split(os.pathsep))
    return paths, {**os.environ, **{name: os.fspath(path) for name, path in fixed.items()}}


def log_path(paths: Paths) -> Path:
    return paths.data_dir / "logs" / "avm-daemon.log"
