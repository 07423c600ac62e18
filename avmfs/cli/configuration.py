"""avm config: what is configured, and where each value comes from."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from avmfs_config import ConfigError, Paths, check, load_mounts, load_settings
from avmfs_config.document import read_document

from avmfs.cli.main import Command, CommandGroup, Globals, subcommand
from avmfs.cli.session import locations, show
from avmfs.providers.handler import check_providers
from avmfs.text.escapes import visible


@dataclass(frozen=True, slots=True)
class Setting:
    """``source``: "default", "environment VARIABLE", "option --NAME", or the name of a file."""

    key: str
    value: Any
    source: str


_PATHS = {
    "config_dir": ("AVM_CONFIG_DIR", "XDG_CONFIG_HOME"),
    "data_dir": ("AVM_DATA_DIR", "XDG_DATA_HOME"),
    "runtime_dir": ("AVM_RUNTIME_DIR", "XDG_RUNTIME_DIR"),
    "mounts_file": ("AVM_MOUNTS", "AVM_CONFIG_DIR", "XDG_CONFIG_HOME"),
    "config_file": ("AVM_CONFIG", "AVM_CONFIG_DIR", "XDG_CONFIG_HOME"),
    "database": ("AVM_DB", "AVM_DATA_DIR", "XDG_DATA_HOME"),
}
_OPTIONS = {"config_file": "config", "database": "db"}


@subcommand(
    "config", "Show what is configured, and where each value comes from.", cls=CommandGroup, invoke_without_command=True
)
def config_(ctx: click.Context) -> None:
    """Show where everything is and every setting in force, each with where it comes from.

    A value is of an option, an AVM_ variable, mounts.yaml, config.yaml, or the default. Secrets in a provider's config
    are shown as they are written: ${NAME}.
    """
    if ctx.invoked_subcommand is not None:
        return
    where = locations()
    found = [*_paths(where, ctx.obj, os.environ), *_mounts(where), *_settings(where)]
    wide = max(len(each.key) for each in found)
    text = "".join(f"{visible(f'{each.key:<{wide}}  {_shown(each.value)}  ({each.source})')}\n" for each in found)
    show([dataclasses.asdict(each) for each in found], text, prose=False)


@config_.command("check", cls=Command)
def check_(ctx: click.Context) -> None:
    """Check mounts.yaml and config.yaml; exit 1 with file, key and reason when one cannot be used."""
    where = locations()
    found = check(where, os.environ)
    if where.config_file.name not in {each.file for each in found}:
        try:
            check_providers(where.config_file.name, load_settings(where.config_file, os.environ).providers)
        except ConfigError as e:
            found.append(e)
    problems = [*dict.fromkeys(map(str, found))]
    if not where.mounts_file.exists():  # commands need none; a daemon does
        problems = [each for each in problems if not each.startswith(where.mounts_file.name)]
    says = "ok\n" if not problems else "".join(f"{visible(problem)}\n" for problem in problems)
    show({"ok": not problems, "problems": problems}, says, prose=False)
    if problems:
        ctx.exit(1)


def _paths(where: Paths, given: Globals, environ: Mapping[str, str]) -> Iterator[Setting]:
    for name, variables in _PATHS.items():
        option = _OPTIONS.get(name)
        named = [each for each in variables if environ.get(each)]
        named = [each for each in named if each.startswith("AVM_") or os.path.isabs(environ[each])]  # as find_paths
        source = f"environment {named[0]}" if named else "default"
        if option is not None and getattr(given, option) is not None:
            source = f"option --{option}"
        yield Setting(f"paths.{name}", os.fspath(getattr(where, name)), source)


def _mounts(where: Paths) -> Iterator[Setting]:
    if not where.mounts_file.exists():
        return
    for index, mount in enumerate(load_mounts(where.mounts_file, os.environ)):
        yield Setting(f"mounts[{index}]", _plain(mount), where.mounts_file.name)


def _settings(where: Paths) -> Iterator[Setting]:
    """Every leaf of the settings; of the file's those that it names."""
    settings, written = load_settings(where.config_file, os.environ), read_document(where.config_file) or {}
    for key, value in _leaves((), _plain(settings)):
        yield Setting(".".join(key), value, where.config_file.name if _names(written, key) else "default")


def _names(written: Any, key: tuple[str, ...]) -> bool:
    """Whether the file says something about this key."""
    for name in key:
        if not isinstance(written, dict):
            return True  # said as a whole, above it
        found = [value for said, value in written.items() if str(said) == name]
        if not found:
            return False
        written = found[0]
    return True


def _leaves(above: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _leaves((*above, name), below)
    else:
        yield above, value


def _plain(value: Any) -> Any:
    """A setting as JSON can carry it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return os.fspath(value) if isinstance(value, Path) else value


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_shown(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(f"{{{_shown(each)}}}" if isinstance(each, dict) else _shown(each) for each in value) or "none"
    return str(value)
