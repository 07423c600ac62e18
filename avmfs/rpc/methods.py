"""The registry of the door's methods: what one is, and how what a caller sent is checked.

A method takes one agent's memory and plain values, and returns plain values (what msgpack can carry). What a caller
sent is checked against its signature: names, types, and the Range of a number. Adding a method is adding a function
with ``@method`` to a module of this package. The policy is applied below, in the store; nothing here decides who may
see what.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

from avmfs import paths
from avmfs.errors import NO_TEXT, AvmError, Denied, Invalid, IsDirectory, NotDirectory, NotFound, ReadOnly
from avmfs.memory import Memory
from avmfs.registration import load
from avmfs.signatures import Arguments, Range
from avmfs.vfs.sources import bring

log = logging.getLogger(__name__)

_OF_A_PATH = (Denied, IsDirectory, NotDirectory, NotFound)
_THROUGH_TREE = frozenset(("entries", "read", "write"))
_OF_PAST = frozenset(("blame", "history", "links", "listing", "recall", "search", "tree", "version"))
Limit = Annotated[int, Range(1, 1000)]
Page = Annotated[int, Range(1, 10_000)]

_METHODS: dict[str, Callable[..., Any]] = {}


def method(function: Callable[..., Any]) -> Callable[..., Any]:
    _METHODS[function.__name__] = function
    return function


def names() -> tuple[str, ...]:
    return tuple(sorted(_loaded()))


def function(name: str) -> Callable[..., Any]:
    """What is called by that name, for who describes it."""
    return _loaded()[name]


def call(memory: Memory, name: str, arguments: dict[str, Any]) -> Any:
    """Run one method. Raises Invalid for an unknown name or arguments of the wrong name or type."""
    function = _loaded().get(name)
    if function is None:
        raise Invalid(f"unknown method {name!r}")
    _arguments(name).check(arguments)
    try:
        _arguments(name).within(arguments)
        if name != "write" and isinstance(given := arguments.get("path"), str):
            bring(memory, paths.raw(given))
        return function(*_then(memory, name, arguments), **arguments)
    except UnicodeEncodeError:  # of an argument: nothing that is stored has such text. Over a socket it cannot come
        raise Invalid(f"{name}: {NO_TEXT}") from None
    except AvmError as e:
        path = arguments.get("path")
        memory.refused(name, e, path if isinstance(path, str) else None)
        if e.filename is None and isinstance(e, _OF_A_PATH):
            e.filename = _named(arguments)
        raise


def urgent(memory: Memory) -> str:
    """The banner of an answer. What a method has done is done, whatever keeps the banner from being made: the key that
    was shown may have been revoked by it, the time for the request may be over."""
    try:
        return memory.banner()
    except AvmError:  # what is wrong beyond this request the next one says
        return ""
    except Exception:
        log.exception("the banner of an answer failed")
        return ""


def _then(memory: Memory, name: str, arguments: dict[str, Any]) -> tuple[Memory]:
    """Of whose memory the path speaks: below ``/@TIME`` it is that of then, and the path the one in it. Methods that go
    through the tree find their way themselves."""
    where = ("path", "under", "source") if "target" in arguments else ("path", "under")  # else: how a text came in
    given = next((each for each in where if isinstance(arguments.get(each), str)), None)
    if given is None or name in _THROUGH_TREE:
        return (memory,)
    text, inside = paths.split_moment(paths.raw(arguments[given]))
    if text is None:
        return (memory,)
    if name not in _OF_PAST:
        raise ReadOnly("the past can only be read, listed and searched", arguments[given])
    arguments[given] = paths.text(inside)
    return (memory.at(memory.moment(text)),)


def _named(arguments: dict[str, Any]) -> str | None:
    """The path that a call is about, as the caller wrote it: deep down it is but a node, and an error has no name."""
    if isinstance(path := arguments.get("path"), str) or "target" not in arguments:
        return path
    ends = [arguments.get("source"), arguments.get("target")]
    return " -> ".join(each for each in ends if isinstance(each, str)) or None


@cache
def _loaded() -> dict[str, Callable[..., Any]]:
    load("avmfs.rpc", "method")  # with the first call: they import this module
    return _METHODS


@cache
def _arguments(name: str) -> Arguments:
    return Arguments(_METHODS[name], name)
