"""From a file to values: which file, over which defaults, and the rules that span several mounts.

Called through the package by every program, and by the daemon again at reload: a load has no effects, so one
that fails leaves the configuration in use as it was. It must not know what a single key may hold.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from avmfs_config.document import parse_document, read_document
from avmfs_config.errors import ConfigError
from avmfs_config.outbox import check_owner
from avmfs_config.parse import Value
from avmfs_config.paths import Paths, find_paths
from avmfs_config.readers import read_mount, read_settings
from avmfs_config.settings import Mount, Settings

DEFAULTS = "defaults.yaml"
SECTIONS = ("embedding", "search", "limits", "gossip")  # mappings laid over the default key by key
_EXAMPLE = r"mounts:\n  - {mountpoint: ~/agents/alice/avm, agent_id: alice}\n"


@dataclass(frozen=True, slots=True)
class _MountsFile:
    mounts: tuple[Mount, ...]


def load_settings(path: Path, environ: Mapping[str, str]) -> Settings:
    """The settings in the file at `path` over the packaged defaults; a missing file is the defaults, unless AVM_CONFIG
    names it: they would be another policy. Programs name the usual place to each other.

    What the file names replaces the default: a list as a whole (so `permissions`, if given, are all there
    are), the sections `embedding`, `search` and `limits` key by key. Raises ConfigError for the first thing
    wrong.
    """
    given = read_document(path)
    if given is None:
        if environ.get("AVM_CONFIG") and path != find_paths({**environ, "AVM_CONFIG": ""}).config_file:
            raise ConfigError("environment", "AVM_CONFIG", f"no such file: {path}")
        return default_settings()
    entries = Value(path.name, "", given).entries()
    settings = _over_defaults({name: value.data for name, value in entries.items()}, path.name, environ)
    check_owner(path, settings.hooks, settings.providers)
    return settings


def changed_settings(path: Path, environ: Mapping[str, str], changes: Iterable[str]) -> Settings:
    """As load_settings, with ``KEY=VALUE`` laid over the file: dotted keys, values as in YAML. Raises ConfigError."""
    load_settings(path, environ)  # what is wrong with the file is told of the file
    given = read_document(path) or {}
    for change in changes:
        key, equals, text = change.partition("=")
        *above, last = names = key.strip().split(".")
        if not equals or not all(names):
            raise ConfigError("--set", change, "expected KEY=VALUE, such as search.weights.words=0.5")
        place = given
        for name in above:
            place = place.setdefault(name, {}) if isinstance(place, dict) else place
        if not isinstance(place, dict):
            raise ConfigError("--set", key, "there is nothing below that key")
        place[last] = parse_document(text.encode(), "--set")
    return _over_defaults(
        {name: value.data for name, value in Value("", "", given).entries().items()}, "--set", environ
    )


def default_settings() -> Settings:
    """The settings of somebody without a config.yaml."""
    return _over_defaults({}, DEFAULTS, {})


def load_mounts(path: Path, environ: Mapping[str, str]) -> tuple[Mount, ...]:
    """The mounts in the file at `path`, in its order. Raises ConfigError for the first thing wrong.

    No two share an agent or a mountpoint, none lies inside another, and none would hide avmfs's own files.
    Mountpoints are compared as text, links unresolved: asking the filesystem could hang on a dead mount.
    """
    data = read_document(path)
    if data is None:
        raise ConfigError(path.name, "", _how_to_create(path))
    listed = Value(path.name, "", data, environ)
    mounts = listed.record(_MountsFile, {"mounts": lambda value: value.items(read_mount)}).mounts
    own = find_paths(environ)
    hidden = (path.absolute(), own.config_dir, own.config_file, own.data_dir, own.database, own.runtime_dir)
    _check_together(Value(path.name, "mounts", None), mounts, hidden)
    return mounts


def check(paths: Paths, environ: Mapping[str, str]) -> list[ConfigError]:
    """The first problem of each file, mounts.yaml's first; empty where both can be used."""
    loads: tuple[Callable[[], object], ...] = (
        lambda: load_mounts(paths.mounts_file, environ),
        lambda: load_settings(paths.config_file, environ),
    )
    problems = []
    for load in loads:
        try:
            load()
        except ConfigError as problem:
            problems.append(problem)
    return problems


def _over_defaults(given: Mapping[str | int, object], file: str, environ: Mapping[str, str]) -> Settings:
    from importlib.resources import files

    packaged = parse_document(files("avmfs_config").joinpath(DEFAULTS).read_bytes(), DEFAULTS)
    merged = {name: value.data for name, value in Value(DEFAULTS, "", packaged).entries().items()}
    for name, data in given.items():
        default = merged.get(name)
        if name in SECTIONS and isinstance(default, dict) and isinstance(data, dict):
            data = {**default, **data}
        merged[name] = data
    return read_settings(Value(file, "", merged, environ))


def _check_together(listing: Value, mounts: Iterable[Mount], hidden: Iterable[Path]) -> None:
    earlier: list[tuple[Value, Mount]] = []
    for index, mount in enumerate(mounts):
        place = listing.child(index)
        where, who = place.child("mountpoint"), place.child("agent_id")
        point = mount.mountpoint
        if point == Path("/"):
            raise where.error("cannot be the root of the filesystem")
        for path in hidden:
            if path.is_relative_to(point):
                raise where.error(f"{point} would hide {path}, which avmfs needs")
        for other_place, other in earlier:
            if mount.agent_id == other.agent_id:
                raise who.error(f"{mount.agent_id} is already mounted by {other_place.key}")
            if point == other.mountpoint:
                raise where.error(f"{point} is already used by {other_place.key}")
            if point.is_relative_to(other.mountpoint):
                raise where.error(f"{point} lies inside {other.mountpoint} ({other_place.key})")
            if other.mountpoint.is_relative_to(point):
                raise where.error(f"{other.mountpoint} ({other_place.key}) lies inside {point}")
        earlier.append((place, mount))


def _how_to_create(path: Path) -> str:
    folder, file = shlex.quote(str(path.parent)), shlex.quote(str(path))
    return f"no such file: {path}; create it, for example: mkdir -p {folder} && printf '{_EXAMPLE}' > {file}"
