"""A function's annotations as the schema of what callers send to it: views, door methods and store commands.

Owns how annotations are read, and the refusal of what does not fit. The first parameter is the callee's own (a context,
a memory, a transaction) and no part of it. Called by the three registries. Knows none of them.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, Literal, get_args, get_origin

from avmfs.errors import Invalid

Test = Callable[[Any], bool]
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
# Of what Python reads as numbers: no other digits, `1_0`, `+5`, nor blanks.
_PLAIN = re.compile(r"[0-9A-Za-z.-]+(?:e\+[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a numeric parameter, inclusive: ``limit: Annotated[int, Range(1, 10_000)] = 100``."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Parameter:
    """``argument`` is the function's own name for it: ``from`` cannot be one, so it is ``from_``. ``type`` of
    ``X | None`` is X, ``choices`` are those of a Literal, ``low`` and ``high`` those of a Range."""

    argument: str
    hint: Any
    default: Any  # inspect.Parameter.empty: required
    type: type
    choices: tuple[str, ...]
    low: float | None
    high: float | None

    @property
    def name(self) -> str:
        return self.argument.removesuffix("_")

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty

    def parse(self, text: str) -> Any:
        """The value that a text stands for. Raises ValueError that says what is expected."""
        if self.choices:
            if text not in self.choices:
                raise ValueError(f"one of {', '.join(self.choices)}")
            return text
        if self.type is bool:
            if text not in ("0", "1", "true", "false"):
                raise ValueError("1 or 0")
            return text in ("1", "true")
        if self.type is str:
            return text
        try:
            number = self.type(text if _PLAIN.fullmatch(text) else "")
        except ValueError:
            raise ValueError("a number") from None
        if not ((self.low is None or number >= self.low) and (self.high is None or number <= self.high)):  # nan, too
            raise ValueError(f"{self.low:g} to {self.high:g}")
        return number


def parameters(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """All but the first."""
    hints = typing.get_type_hints(function, include_extras=True)
    found = []
    for each in list(inspect.signature(function).parameters.values())[1:]:
        hint, bounds = hints[each.name], None
        if get_origin(hint) is Annotated:
            hint, bounds = get_args(hint)[:2]
        inner = next((kind for kind in get_args(hint) if kind is not types.NoneType), hint) if _is_union(hint) else hint
        choices: tuple[str, ...] = ()
        if get_origin(inner) is Literal:
            inner, choices = str, get_args(inner)
        low, high = (bounds.low, bounds.high) if isinstance(bounds, Range) else (None, None)
        found.append(Parameter(each.name, hint, each.default, inner, choices, low, high))
    return tuple(found)


class _Signature:
    """What a function takes. ``title`` begins every refusal."""

    __slots__ = ("_required", "_title", "parameters")
    _noun = "argument"

    def __init__(self, function: Callable[..., Any], title: str) -> None:
        self._title = title
        self.parameters = {self._name(each): each for each in parameters(function)}
        self._required = frozenset(name for name, each in self.parameters.items() if each.required)

    @staticmethod
    def _name(parameter: Parameter) -> str:
        return parameter.argument

    def _unknown(self, name: str) -> Invalid:
        known = ", ".join(self.parameters) or "none"
        return Invalid(f"{self._title}: unknown {self._noun} {name!r} (it takes: {known})")

    def _missing(self, given: Collection[str]) -> Invalid:
        first = next(name for name in self.parameters if name in self._required and name not in given)
        return Invalid(f"{self._title}: {self._noun} {first!r} is required")


class Query(_Signature):
    """Parameters that are given as text."""

    __slots__ = ()
    _noun = "parameter"

    @staticmethod
    def _name(parameter: Parameter) -> str:
        return parameter.name

    def parse(self, given: dict[str, str]) -> dict[str, Any]:
        """Return the arguments that texts stand for. Raise Invalid, naming the parameter."""
        for name in given:
            if name not in self.parameters:
                raise self._unknown(name)
        if not self._required <= given.keys():
            raise self._missing(given)
        bound = {}
        for name, text in given.items():
            parameter = self.parameters[name]
            try:
                bound[parameter.argument] = parameter.parse(text)
            except ValueError as e:
                raise Invalid(f"{self._title}: {name}={text[:80]!r}: expected {e}") from None
        return bound


class Arguments(_Signature):
    """Arguments that are given as values. ``stored``: exactly of their types, and such as SQLite can keep."""

    __slots__ = ("_bounded", "_range", "_tests")

    def __init__(self, function: Callable[..., Any], title: str, *, stored: bool = False) -> None:
        super().__init__(function, title)
        self._range = ", or out of range" if stored else ""
        self._bounded = [(name, each.low, each.high) for name, each in self.parameters.items() if each.low is not None]
        self._tests = {
            name: (_outright(each.hint, stored), _test(each.hint, stored)) for name, each in self.parameters.items()
        }

    def check(self, given: dict[str, Any]) -> None:
        """Raise Invalid, naming it, for an argument that is unknown, missing or of a wrong type."""
        tests = self._tests
        for name, value in given.items():
            expected = tests.get(name)
            if expected is None:
                raise self._unknown(name)
            outright, test = expected
            if type(value) not in outright and not test(value):
                raise Invalid(f"{self._title}: {name}: wrong type {type(value).__name__}{self._range}")
        if not self._required <= given.keys():
            raise self._missing(given)

    def within(self, given: dict[str, Any]) -> None:
        """Raise Invalid for a number that is out of its Range, or none (nan)."""
        for name, low, high in self._bounded:
            value = given.get(name)
            if value is not None and not low <= value <= high:
                raise Invalid(f"{name} {value}: expected {low} to {high}")


def is_stored_integer(value: Any) -> bool:
    """An integer that SQLite can keep."""
    return type(value) is int and _LEAST <= value <= _MOST


def _outright(kind: Any, stored: bool) -> frozenset[type]:
    """The types of which every value fits."""
    if _is_union(kind):
        return frozenset[type]().union(*(_outright(one, stored) for one in get_args(kind)))
    plain = get_origin(kind) or kind
    if kind is Any or (stored and kind in (int, float, str)) or (plain is dict and not stored):
        return frozenset()
    if plain is list and get_args(kind)[0] is not Any:
        return frozenset()
    return frozenset((float, int) if kind is float else (plain,))


def _test(kind: Any, stored: bool) -> Test:
    """Whether any other value fits."""
    if kind is Any:
        return lambda value: True
    if _is_union(kind):
        return reduce(_either, (_test(one, stored) for one in get_args(kind)))
    plain = get_origin(kind) or kind
    if plain is list:
        inner = get_args(kind)[0]
        outright, each = _outright(inner, stored), _test(inner, stored)
        return lambda value: (
            (type(value) is list if stored else isinstance(value, list))
            and (inner is Any or all(type(item) in outright or each(item) for item in value))
        )
    if stored:
        exact = {int: is_stored_integer, float: _is_stored_number, str: _is_stored_text}
        return exact.get(plain, lambda value: type(value) is plain)
    if plain is dict:  # of a caller's own making: the store looks closer
        return lambda value: isinstance(value, dict) and all(isinstance(key, str) for key in value)
    number = (int, float) if plain is float else plain
    return lambda value: isinstance(value, number) and (plain is bool or not isinstance(value, bool))


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (types.UnionType, typing.Union)


def _either(one: Test, other: Test) -> Test:
    return lambda value: one(value) or other(value)


def _is_stored_number(value: Any) -> bool:
    return type(value) is float or is_stored_integer(value)


def _is_stored_text(value: Any) -> bool:
    """Text without lone surrogates."""
    if type(value) is not str:
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False
