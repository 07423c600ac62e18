"""Every change that the store can make, one function each.

A command takes the open transaction and plain values (what msgpack can carry) and returns plain values.
It checks the policy itself, in the transaction, so no door can skip it. The writer and direct mode
call ``run``; nobody else may change the database. Adding a command is adding a function here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from avmfs.errors import Invalid
from avmfs.store.commands import arguments as fitting
from avmfs.store.transaction import Tx

Command = Callable[..., Any]
_COMMANDS: dict[str, Command] = {}
_RELAXED: set[str] = set()


def command(function: Command) -> Command:
    """Register a write command under its own name. Its reply promises that the change survives power loss."""
    if function.__name__ in _COMMANDS:
        raise ValueError(f"command {function.__name__} is registered twice")
    _COMMANDS[function.__name__] = function
    return function


def relaxed(function: Command) -> Command:
    """Register a command whose reply does not promise that: its change survives kill -9 of everything at once, and
    power loss with the next command that promises it (``sync``, say, when the file is closed)."""
    _RELAXED.add(function.__name__)
    return command(function)


def promises_durability(name: str) -> bool:
    """Does the reply to this command wait for the disk?"""
    return name not in _RELAXED


def names() -> tuple[str, ...]:
    _load()
    return tuple(sorted(_COMMANDS))


def run(tx: Tx, name: str, arguments: dict[str, Any]) -> Any:
    """Run one command. Raises Invalid for an unknown one or arguments that do not fit, else what it raises."""
    _load()
    found = _COMMANDS.get(name)
    if found is None:
        raise Invalid(f"unknown store command {name!r}")
    fitting.check(found, arguments)
    return found(tx, **arguments)


@lru_cache(maxsize=1)
def _load() -> None:
    for module in (
        "namespace",
        "renaming",
        "writing",
        "documents",
        "messages",
        "indexing",
        "upkeep",
        "people",
        "discovery",
        "subscribing",
        "outbox",
        "auditing",
    ):
        importlib.import_module(f"avmfs.store.commands.{module}")
