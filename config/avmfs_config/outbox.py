"""The sections ``webhooks`` and ``hooks`` of config.yaml: their values, and what each key may hold.

Read by the loader; used by whoever takes a subscription, and by the daemon's housekeeping, which delivers. Hooks run
commands as the daemon's user, so a file that somebody else could have written may not hold any: `check_owner`.
It must not know how anything is delivered.
"""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from avmfs_config.errors import ConfigError
from avmfs_config.parse import Range, Readers, Value

HookEvent = Literal[
    "any", "create", "write", "rename", "remove", "mkdir", "rmdir", "tags", "links", "meta", "shared", "ttl", "let_out"
]
EVENTS: tuple[HookEvent, ...] = get_args(HookEvent)
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*")


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """How webhooks are delivered.

    `allow` are the private places that a webhook may name: addresses, networks (10.0.0.0/8) and host names. Each try
    may take `timeout_s` in all; after `attempts` of them a delivery is a dead letter. Between two tries pass
    `backoff_s`, then three times as long each time, at most six hours, and by chance up to half of it less.
    """

    allow: tuple[str, ...] = ()
    attempts: Annotated[int, Range(1, 100)] = 8
    timeout_s: Annotated[float, Range(0.05, 300.0)] = 10.0
    backoff_s: Annotated[float, Range(0.01, 3600.0)] = 5.0


@dataclass(frozen=True, slots=True)
class Hook:
    """A command that runs after each change of a path that matches `pattern` (`*` also crosses ``/``), without a shell,
    for at most `timeout_s`. `event` is the kind of change."""

    pattern: str
    command: tuple[str, ...]
    event: HookEvent = "any"
    timeout_s: Annotated[float, Range(0.01, 3600.0)] = 30.0


def check_owner(path: Path, hooks: tuple[Hook, ...], providers: Sequence[object] = ()) -> None:
    """Raise ConfigError when there are hooks or providers, and somebody else could have written the file at ``path``:
    both run what it names."""
    if not hooks and not providers:
        return
    key = "hooks" if hooks else "providers"
    for place in (path, path.parent):
        try:
            found = os.stat(place)
        except OSError as e:  # it is being replaced
            raise ConfigError(path.name, key, f"{place}: {e.strerror}") from None
        if found.st_uid not in (os.geteuid(), 0):
            raise ConfigError(path.name, key, f"{place} belongs to uid {found.st_uid}: chown it to run {key}")
        # In a directory with the sticky bit others cannot replace the file.
        loose = found.st_mode & 0o002 and not (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX)
        if loose:
            raise ConfigError(path.name, key, f"{place} can be written by everybody: chmod o-w it to run {key}")


def read_command(value: Value) -> tuple[str, ...]:
    """A program and its arguments."""
    words = value.items(Value.text)
    if not words:
        raise value.error("needs a program")
    if not os.path.isabs(words[0]):
        raise value.child(0).error(f"must be an absolute path (no shell looks it up), not {words[0]!r}")
    return words


def _allowed(value: Value) -> str:
    """An address, a network, or a host name."""
    text = value.text().lower().rstrip(".")
    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        if not _HOST.fullmatch(text) or text.rpartition(".")[2].isdigit():
            raise value.error(
                f"expected a host name, an address or a network (10.0.0.0/8), not {value.data!r}"
            ) from None
        return text


WEBHOOKS: Readers = {"allow": lambda value: value.items(_allowed)}
