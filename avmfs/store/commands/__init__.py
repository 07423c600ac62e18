"""Every change that the store can make, one function each.

A command takes the open transaction and plain values (what msgpack can carry) and returns plain values.
It checks the policy itself, in the transaction, so no door can skip it. The writer and direct mode
call ``run``; nobody else may change the database. Adding a command is adding a function below ``@command`` to a module
here; what the writer and its clients have to know of it stands in the decorator (``Traits``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, overload

from avmfs.errors import Invalid
from avmfs.registration import load
from avmfs.signatures import Arguments
from avmfs.store.tx.transaction import Tx

Command = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What others do differently because of a command. The defaults are the safe side: of a command that nothing is
    said of they are true."""

    durable: bool = True
    """Its reply promises that the change survives power loss. Else the change survives kill -9 of everything at once,
    and power loss with the next command that promises it (``sync``, say, when the file is closed)."""
    repeatable: bool = False
    """It may be applied again, and work that a killed process left may leave it out when it runs anew."""
    frees_space: bool = False
    """It makes the store smaller in the end, or without it that would not go on: it is let in on a full disk."""
    uses_reserve: bool = False
    """On a full disk it may have half of the reserve: it is about what was written when there was room."""
    native: bool = False
    """It answers a request of a kernel, which then knows the outcome by itself."""
    begins_file: bool = False
    """It makes an empty file and replies with its ``node``; the file's bytes are another request."""
    fills_file: bool = False
    """It writes the ``edits`` of one ``node``, which may be laid down in parts, and from the start again."""
    appends: bool = False
    """Who does it and then syncs, again and again, is foreseen to sync."""
    rewrites: bool = False
    """Before it, whoever writes writes the whole file anew, where that is due."""
    only_syncs: bool = False
    """It changes nothing: its reply waits for what is committed already."""


_SAFE: Final = Traits()
_COMMANDS: dict[str, Command] = {}
_TRAITS: dict[str, Traits] = {}


@overload
def command(function: Command) -> Command: ...
@overload
def command(function: None = None, **traits: bool) -> Callable[[Command], Command]: ...
def command(function: Command | None = None, **traits: bool) -> Any:
    """Register a write command under its own name, with the given ``Traits``."""

    def register(function: Command) -> Command:
        if function.__name__ in _COMMANDS:
            raise ValueError(f"command {function.__name__} is registered twice")
        _TRAITS[function.__name__] = Traits(**traits)
        _COMMANDS[function.__name__] = function
        return function

    return register if function is None else register(function)


def traits(name: str) -> Traits:
    """Of a command; of what is none, the defaults."""
    found = _TRAITS.get(name)
    if found is None:
        _load()
        found = _TRAITS.get(name, _SAFE)
    return found


def names() -> tuple[str, ...]:
    _load()
    return tuple(sorted(_COMMANDS))


def run(tx: Tx, name: str, arguments: dict[str, Any]) -> Any:
    """Run one command. Raises Invalid for an unknown one or arguments that do not fit, else what it raises."""
    if name not in _COMMANDS:
        _load()
    found = _COMMANDS.get(name)
    if found is None:
        raise Invalid(f"unknown store command {name!r}")
    signature(found).check(arguments)
    return found(tx, **arguments)


@cache
def signature(function: Command) -> Arguments:
    """What a command takes. Requests come from other processes, and SQLite stores what it is given: a text where a
    number belongs would break every reader of that row."""
    return Arguments(function, function.__name__, stored=True)


@cache
def _load() -> None:
    load(__name__, "command")
