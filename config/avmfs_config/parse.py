"""Typed readers over plain data: each takes a value with its place, and returns it typed or says why not.

What a key may hold follows from its field's type (``reader_of``); readers of its own say what a type cannot. Called by
the loader. It must not know the keys, nor where data comes from.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from avmfs_config.document import child_key
from avmfs_config.errors import ConfigError
from avmfs_config.paths import expand_path

T = TypeVar("T")
S = TypeVar("S", bound=str)
Reader = Callable[["Value"], T]
Readers = Mapping[str, Reader[Any]]


class Range(NamedTuple):
    """Bounds of a number, inclusive: ``unread: Annotated[int, Range(1)] = 100``."""

    least: float
    most: float = math.inf


@dataclass(frozen=True, slots=True)
class Value:
    """Plain data at `key` of `file`; `environ` is for the variables in its paths.

    Every method that reads it raises ConfigError, naming both, where the data is not what was asked for.
    """

    file: str
    key: str
    data: object
    environ: Mapping[str, str] = field(default_factory=dict)

    def error(self, reason: str) -> ConfigError:
        """The error to raise about this value."""
        return ConfigError(self.file, self.key, reason)

    def expected(self, what: str) -> ConfigError:
        """The error to raise where this value should have been `what`."""
        return self.error(f"expected {what}, not {_describe(self.data)}")

    def child(self, name: str | int) -> Value:
        """The place of an entry that is no longer at hand as data, to raise an error about it."""
        key = f"{self.key}[{name}]" if isinstance(name, int) else child_key(self.key, name)
        return replace(self, key=key, data=None)

    def text(self) -> str:
        """Text of at least one character, without NUL."""
        if not isinstance(self.data, str):
            quotable = isinstance(self.data, (bool, int, float))
            raise self.expected("text (put it in quotes)" if quotable else "text")
        if not self.data or "\0" in self.data:
            raise self.error("cannot be empty" if not self.data else "cannot contain a NUL character")
        return self.data

    def boolean(self) -> bool:
        """true or false."""
        if not isinstance(self.data, bool):
            raise self.expected("true or false")
        return self.data

    def checked(self, check: Callable[[str], T]) -> T:
        """`check` of this text; the ValueError by which it refuses becomes an error with a place."""
        text = self.text()
        try:
            return check(text)
        except ValueError as problem:
            raise self.error(str(problem)) from None

    def path(self) -> Path:
        return self.checked(lambda text: expand_path(text, self.environ))

    def integer(self, least: float, most: float = math.inf) -> int:
        """A whole number from `least` to `most`, of 64 bits."""
        if isinstance(self.data, bool) or not isinstance(self.data, int):
            raise self.expected("a whole number")
        if not least <= self.data <= min(most, 2**63 - 1):
            raise self.error(f"must be {_range(least, most)}, not {_describe(self.data)}")
        return self.data

    def number(self, least: float, most: float = math.inf) -> float:
        """A finite number from `least` to `most`."""
        if isinstance(self.data, bool) or not isinstance(self.data, (int, float)):
            raise self.expected("a number")
        # Compared before float(), which overflows for a large int.
        if not (least <= self.data <= most and abs(self.data) < 1e300):
            raise self.error(f"must be {_range(least, most)}, not {_describe(self.data)}")
        return float(self.data)

    def choice(self, options: tuple[S, ...]) -> S:
        """One of `options`."""
        for option in options:
            if self.data == option:
                return option
        raise self.expected(f"{', '.join(options[:-1])} or {options[-1]}")

    def optional(self, read: Reader[T]) -> T | None:
        """None for null, else what `read` makes of it."""
        return None if self.data is None else read(self)

    def items(self, read: Reader[T]) -> tuple[T, ...]:
        """A list, each entry read by `read`."""
        if not isinstance(self.data, list):
            raise self.expected("a list" if self.data is not None else "a list ([] for an empty one)")
        return tuple(read(replace(self, key=f"{self.key}[{n}]", data=item)) for n, item in enumerate(self.data))

    def entries(self) -> dict[str | int, Value]:
        """A mapping, as values by key, in the file's order."""
        if not isinstance(self.data, dict):
            raise self.expected("a mapping" if self.data is not None else "a mapping ({} for an empty one)")
        return {name: replace(self, key=child_key(self.key, name), data=item) for name, item in self.data.items()}

    def plain(self) -> Mapping[str, Any]:
        """A mapping with text keys all the way down, as it is."""
        return {self._text_key(name, value): value._plain() for name, value in self.entries().items()}

    def _plain(self) -> Any:
        if isinstance(self.data, dict):
            return self.plain()
        return list(self.items(Value._plain)) if isinstance(self.data, list) else self.data

    @staticmethod
    def _text_key(name: str | int, value: Value) -> str:
        if not isinstance(name, str):
            raise value.error("a key must be text (put it in quotes)")
        return name

    def record(self, kind: type[T], own: Readers | None = None) -> T:
        """A mapping as the dataclass `kind`: fields are read by `own`, the others by their types; one without a default
        is required."""
        entries, readers = self.entries(), readers_of(kind, own or {})
        for name, value in entries.items():
            if name not in readers:
                guess = _guess(name, readers)
                known = f"did you mean {guess}?" if guess else f"known keys: {', '.join(readers)}"
                raise value.error(f"unknown key; {known}")
        declared: tuple[Field[Any], ...] = fields(kind)  # type: ignore[arg-type]  # T is always a dataclass
        for item in declared:
            required = item.default is MISSING and item.default_factory is MISSING
            if required and item.name not in entries:
                raise ConfigError(self.file, child_key(self.key, item.name), "required")
        return kind(**{str(name): readers[str(name)](value) for name, value in entries.items()})


def readers_of(kind: type[Any], own: Readers) -> Readers:
    """One for each field of a dataclass."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {each.name: own.get(each.name) or reader_of(hints[each.name]) for each in fields(kind)}


def reader_of(hint: Any, bounds: Range = Range(0)) -> Reader[Any]:  # noqa: B008
    """What reads a value of this type: a plain one, a path, a Literal, a dataclass, a tuple of these, null beside."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return reader_of(*inner)
    if origin is Literal:
        return lambda value: value.choice(inner)
    if origin is tuple:
        each = reader_of(inner[0])
        return lambda value: value.items(each)
    if origin in (types.UnionType, typing.Union):
        given = reader_of(inner[0], bounds)
        return lambda value: value.optional(given)
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: value.record(hint)
    plain: dict[Any, Reader[Any]] = {
        bool: Value.boolean,
        str: Value.text,
        Path: Value.path,
        int: lambda value: value.integer(*bounds),
        float: lambda value: value.number(*bounds),
    }
    return plain[hint]


def _guess(wrong: object, known: Iterable[str]) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(str(wrong).lower(), list(known), n=1)), None)


def _range(least: float, most: float) -> str:
    return f"at least {least}" if most == math.inf else f"from {least} to {most}"


def _describe(data: object) -> str:
    match data:
        case None:
            return "nothing (null, or an unquoted ~ or #)"
        case bool():
            return str(data).lower()
        case str():
            return f"the text {data if len(data) <= 40 else data[:39] + '…'!r}"
        case list():
            return "a list"
        case dict():
            return "a mapping"
    return str(data)
