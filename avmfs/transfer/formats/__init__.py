"""One format each: a module with a function below ``@reader`` or ``@writer``, or both.

A reader takes a path and gives records, and refusals of what it cannot read; a writer takes records and a path. Adding
a format is adding a module here. None knows a door, or who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from avmfs.errors import Invalid
from avmfs.registration import load
from avmfs.transfer.record import Record, Refusal

Read = Callable[[Path], Iterator[Record | Refusal]]
F = TypeVar("F", bound=Callable[..., int])  # of a path and an iterator; returns how many there were


@dataclass(frozen=True, slots=True)
class Format:
    """``native``: of the product's own, with the paths of where it was exported. ``into``: where it belongs.
    ``history``: it is given the steps of the memory's history (``exporting.Step``) in place of records."""

    name: str
    summary: str
    call: Callable[..., object]
    native: bool = False
    into: str = ""
    history: bool = False


_READERS: dict[str, Format] = {}
_WRITERS: dict[str, Format] = {}


def reader(name: str, summary: str, *, native: bool = False, into: str = "") -> Callable[[Read], Read]:
    def register(function: Read) -> Read:
        place = into or ("/memory" if native else f"/private/imported/{name}")
        _READERS[name] = Format(name, summary, function, native, place)
        return function

    return register


def writer(name: str, summary: str, *, history: bool = False) -> Callable[[F], F]:
    def register(function: F) -> F:
        _WRITERS[name] = Format(name, summary, function, history=history)
        return function

    return register


def readers() -> dict[str, Format]:
    _load()
    return dict(sorted(_READERS.items()))


def writers() -> dict[str, Format]:
    _load()
    return dict(sorted(_WRITERS.items()))


def found(name: str, among: dict[str, Format]) -> Format:
    if name not in among:
        raise Invalid(f"format {name!r}: expected {', '.join(among)}")
    return among[name]


@cache
def _load() -> None:
    load(__name__, "reader")
    load(__name__, "writer")
