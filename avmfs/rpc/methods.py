"""The registry of the door's methods: what one is, and how what a caller sent is checked.

A method takes one agent's memory and plain values, and returns plain values (what msgpack can carry). Its
signature is checked against what a caller sent: names and types. Adding a method is adding a function
with ``@method`` to one of the modules below. The policy is applied below, in the store; nothing here decides who may
see what.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from avmfs.errors import NO_TEXT, AvmError, Denied, Invalid, IsDirectory, NotDirectory, NotFound
from avmfs.memory import Memory

_OF_A_PATH = (Denied, IsDirectory, NotDirectory, NotFound)
_METHODS: dict[str, Callable[..., Any]] = {}
_MODULES = (
    "files",
    "finding",
    "mail",
    "documents",
    "people",
    "discovery",
    "subscriptions",
    "audit",
    "navigating",
    "describing",
    "replaying",
)  # which import this one: they are loaded with the first call


def method(function: Callable[..., Any]) -> Callable[..., Any]:
    _METHODS[function.__name__] = function
    return function


def names() -> tuple[str, ...]:
    return tuple(sorted(_loaded()))


def call(memory: Memory, name: str, arguments: dict[str, Any]) -> Any:
    """Run one method. Raises Invalid for an unknown name or arguments of the wrong name or type."""
    function = _loaded().get(name)
    if function is None:
        raise Invalid(f"unknown method {name!r}")
    _check(name, function, arguments)
    try:
        return function(memory, **arguments)
    except UnicodeEncodeError:  # of an argument: nothing that is stored has such text. Over a socket it cannot come
        raise Invalid(f"{name}: {NO_TEXT}") from None
    except AvmError as e:
        path = arguments.get("path")
        memory.refused(name, e, path if isinstance(path, str) else None)
        if e.filename is None and isinstance(e, _OF_A_PATH):
            e.filename = _named(arguments)
        raise


def _named(arguments: dict[str, Any]) -> str | None:
    """The path that a call is about, as the caller wrote it: deep down it is but a node, and an error has no name."""
    if isinstance(path := arguments.get("path"), str):
        return path
    ends = [arguments.get("source"), arguments.get("target")]
    return " -> ".join(each for each in ends if isinstance(each, str)) or None


@cache
def _loaded() -> dict[str, Callable[..., Any]]:
    for module in _MODULES:
        importlib.import_module(f"avmfs.rpc.{module}")
    return _METHODS


@cache
def _schema(function: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, inspect.Parameter]]:
    """Types and parameters of a method, but for the memory."""
    return get_type_hints(function), dict(tuple(inspect.signature(function).parameters.items())[1:])


def _check(name: str, function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    hints, parameters = _schema(function)
    for given, value in arguments.items():
        if given not in parameters:
            raise Invalid(f"{name}: unknown argument {given!r}")
        if not _fits(value, hints[given]):
            raise Invalid(f"{name}: {given}: wrong type {type(value).__name__}")
    for wanted, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and wanted not in arguments:
            raise Invalid(f"{name}: {wanted} is required")


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if isinstance(hint, UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (None, NoneType):
        return value is None
    if get_origin(hint) is dict:  # of a caller's own making: the store looks closer
        return isinstance(value, dict) and all(isinstance(each, str) for each in value)
    if get_origin(hint) is not None:
        (inner,) = get_args(hint)
        return isinstance(value, get_origin(hint)) and all(_fits(each, inner) for each in value)
    return isinstance(value, hint)
