"""Typed readers over plain data: each takes a value with its place, and returns it typed or says why not.

Called by the loader, which says what each key holds. It must not know the keys, nor where data comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, TypeVar

from avmfs_config.document import child_key
from avmfs_config.errors import ConfigError

T = TypeVar("T")
S = TypeVar("S", bound=str)
Reader = Callable[["Value"], T]


@dataclass(frozen=True, slots=True)
class Value:
    """Plain data at `key` of `file`.

    Every method that reads it raises ConfigError, naming both, where the data is not what was asked for.
    """

    file: str
    key: str
    data: object

    def error(self, reason: str) -> ConfigError:
        """The error to raise about this value."""
        return ConfigError(self.file, self.key, reason)

    def expected(self, what: str) -> ConfigError:
        """The error to raise where this value should have been `what`."""
        return self.error(f"expected {what}, not {_describe(self.data)}")

    def child(self, name: str | int) -> Value:
        """The place of an entry that is no longer at hand as data, to raise an error about it."""
        key = f"{self.key}[{name}]" if isinstance(name, int) else child_key(self.key, name)
        return Value(self.file, key, None)

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

    def integer(self, least: int, most: int = 2**63 - 1) -> int:
        """A whole number from `least` to `most`."""
        if isinstance(self.data, bool) or not isinstance(self.data, int):
            raise self.expected("a whole number")
        if not least <= self.data <= most:
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
        return tuple(read(Value(self.file, f"{self.key}[{index}]", item)) for index, item in enumerate(self.data))

    def entries(self) -> dict[str | int, Value]:
        """A mapping, as values by key, in the file's order."""
        if not isinstance(self.data, dict):
            raise self.expected("a mapping" if self.data is not None else "a mapping ({} for an empty one)")
        return {name: Value(self.file, child_key(self.key, name), item) for name, item in self.data.items()}

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

    def record(self, kind: type[T], readers: Mapping[str, Reader[Any]]) -> T:
        """A mapping as the dataclass `kind`: one reader per field; a field without a default is required."""
        entries = self.entries()
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


def _guess(wrong: object, known: Iterable[str]) -> str | None:
    import difflib

    return next(iter(difflib.get_close_matches(str(wrong).lower(), list(known), n=1)), None)


def _range(least: float, most: float) -> str:
    return f"at least {least}" if most in (math.inf, 2**63 - 1) else f"from {least} to {most}"


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
