"""Are a command's arguments of the types that it names? Asked once, before it runs.

Owns the reading of annotations. Requests come from other processes (writer.py), and SQLite stores what it is given: a
text where a number belongs would break every reader of that row. Knows no command.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any

from avmfs.errors import Invalid

Test = Callable[[Any], bool]
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def check(command: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Raise Invalid, naming the argument, unless ``command(tx, **arguments)`` is a call that fits its signature."""
    tests, required = _expected(command)
    for name, value in arguments.items():
        expected = tests.get(name)
        if expected is None:
            raise Invalid(f"{command.__name__}: no argument is called {name!r}")
        outright, test = expected
        if type(value) not in outright and not test(value):
            raise Invalid(f"{command.__name__}: {name} cannot be of type {type(value).__name__}, or out of range")
    if not required <= arguments.keys():
        raise Invalid(f"{command.__name__}: {', '.join(sorted(required - arguments.keys()))} required")


def whole(value: Any) -> bool:
    """An integer that SQLite can keep."""
    return type(value) is int and _LEAST <= value <= _MOST


@lru_cache(maxsize=256)
def _expected(command: Callable[..., Any]) -> tuple[dict[str, tuple[frozenset[type], Test]], frozenset[str]]:
    """By argument: the types of which every value fits, and the test of any other; and which must be there."""
    hints = typing.get_type_hints(command)
    parameters = list(inspect.signature(command).parameters.values())[1:]  # the first is the transaction
    tests = {p.name: (_outright(hints[p.name]), _test(hints[p.name])) for p in parameters}
    return tests, frozenset(p.name for p in parameters if p.default is inspect.Parameter.empty)


def _outright(kind: Any) -> frozenset[type]:
    if isinstance(kind, types.UnionType):
        return frozenset[type]().union(*(_outright(one) for one in typing.get_args(kind)))
    if kind in (Any, int, float, str):
        return frozenset()
    if typing.get_origin(kind) is list and typing.get_args(kind)[0] is not Any:
        return frozenset()
    return frozenset((typing.get_origin(kind) or kind,))


def _test(kind: Any) -> Test:
    if kind is Any:
        return lambda value: True
    if kind is int:
        return whole
    if kind is float:
        return lambda value: type(value) is float or whole(value)
    if kind is str:
        return _storable
    if isinstance(kind, types.UnionType):
        return reduce(_either, map(_test, typing.get_args(kind)))
    if typing.get_origin(kind) is list:
        each = _test(typing.get_args(kind)[0])
        return lambda value: type(value) is list and all(map(each, value))
    plain = typing.get_origin(kind) or kind  # bytes, bool, None, dict
    return lambda value: type(value) is plain


def _either(one: Test, other: Test) -> Test:
    return lambda value: one(value) or other(value)


def _storable(value: Any) -> bool:
    """Text that SQLite can keep: no lone surrogates."""
    if type(value) is not str:
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False
