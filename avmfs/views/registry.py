"""The registry of views and the binding of queries to their parameters.

Owns what a view is. A view's reader is a function of a Context and keyword-only parameters; that signature
*is* the query's schema: names, types and defaults are read from it. Called by the vfs (find, bind,
render, write) and by whoever lists views (help, info, docs). Knows nothing of handles or FUSE.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from keyword import iskeyword
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from avmfs.errors import Denied, Invalid
from avmfs.memory import Memory
from avmfs.node import Kind, Node
from avmfs.store.schema import ROOT

On = Literal["file", "directory", "root"]
_MODULES = (
    "documents", "history", "reading", "listing", "finding", "messages", "about", "why", "plan", "topics", "timeline",
    "tree", "related", "synthesis", "savings", "who", "subscriptions", "pending",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a numeric parameter, inclusive: ``limit: Annotated[int, Range(1, 10_000)] = 100``."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Context:
    """What a view works with: one agent's memory, and the node it is of. ``path`` is absolute in the mount."""

    memory: Memory
    node: Node
    path: bytes


_ENDINGS: dict[str, Callable[..., None]] = {}


def ending(function: Callable[..., None]) -> Callable[..., None]:
    """Register what can stand in an AtEnd."""
    _ENDINGS[function.__name__] = function
    return function


@dataclass(frozen=True, slots=True)
class AtEnd:
    """What runs when a reader has read past the last byte: a function registered with ``ending``, of the context and
    of plain values, so that it can be told to a process that takes the open view over."""

    name: str
    context: Context
    values: list[Any]

    def __call__(self) -> None:
        _ENDINGS[self.name](self.context, *self.values)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A view's bytes. ``at_end`` runs once, when a reader has read past the last one."""

    data: bytes
    at_end: AtEnd | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: type
    choices: tuple[str, ...]
    low: float | None
    high: float | None
    default: Any  # inspect.Parameter.empty: required

    @property
    def argument(self) -> str:
        """The reader's own name for it: ``from`` cannot be one, so it is ``from_``."""
        return f"{self.name}_" if iskeyword(self.name) else self.name


@dataclass(frozen=True, slots=True)
class View:
    """One view. ``prose``: it may carry the urgent banner. ``write`` gets the text written to it; ``check`` says
    early whether text so far can ever be right (raises Invalid); False: more must come. ``empty_write``: opening for
    writing and closing, or touching, is a write. ``slow``: rendering may wait."""

    name: str
    on: frozenset[On]
    summary: str
    read: Callable[..., str | bytes | Rendered] | None
    parameters: tuple[Parameter, ...] = ()
    prose: bool = False
    slow: bool = False
    write: Callable[[Context, str], None] | None = None
    check: Callable[[str], object] | None = None
    empty_write: bool = False
    writes: str = field(default="")

    def fits(self, node: Node) -> bool:
        """Is there such a view of this node?"""
        if node.kind is Kind.FILE:
            return "file" in self.on
        if node.kind is not Kind.DIRECTORY:
            return False
        return "directory" in self.on or (node.id == ROOT and "root" in self.on)

    def bind(self, given: dict[str, str]) -> dict[str, Any]:
        """Query values by their parameters' types. Raises Invalid naming the parameter."""
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in given:
            if name not in known:
                expected = ", ".join(known) or "none"
                raise Invalid(f":{self.name}: unknown parameter {name!r} (it takes: {expected})")
        bound: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.name in given:
                bound[parameter.argument] = _convert(self.name, parameter, given[parameter.name])
            elif parameter.default is inspect.Parameter.empty:
                raise Invalid(f":{self.name}: parameter {parameter.name!r} is required")
        return bound

    def render(self, context: Context, given: dict[str, str]) -> Rendered:
        """The view's bytes, with the urgent banner on top where it belongs. Raises Denied for one that cannot be
        read, Invalid for a bad query."""
        if self.read is None:
            raise Denied(f":{self.name} can only be written")
        made = self.read(context, **self.bind(given))
        rendered = (
            made
            if isinstance(made, Rendered)
            else Rendered(made if isinstance(made, bytes) else made.encode("utf-8", "surrogateescape"))
        )
        if self.prose and self.name != "recall" and (banner := context.memory.banner()):
            return replace(rendered, data=banner.encode("utf-8", "surrogateescape") + rendered.data)
        return rendered


_VIEWS: dict[str, View] = {}


def view(
    name: str, *on: On, summary: str, prose: bool = False, slow: bool = False
) -> Callable[[Callable[..., str | bytes | Rendered]], Callable[..., str | bytes | Rendered]]:
    """Register a reader. Its first parameter is the Context; the others, keyword-only, are the query."""

    def register(function: Callable[..., str | bytes | Rendered]) -> Callable[..., str | bytes | Rendered]:
        if name in _VIEWS:
            raise ValueError(f"view :{name} is registered twice")
        _VIEWS[name] = View(name, frozenset(on), summary, function, _signature(function), prose, slow)
        return function

    return register


def writes(
    name: str, says: str, *, check: Callable[[str], object] | None = None, empty_write: bool = False
) -> Callable[[Callable[[Context, str], None]], Callable[[Context, str], None]]:
    """Register what writing to an already registered view does; ``says`` is for the tables."""

    def register(function: Callable[[Context, str], None]) -> Callable[[Context, str], None]:
        _VIEWS[name] = replace(_VIEWS[name], write=function, check=check, empty_write=empty_write, writes=says)
        return function

    return register


@lru_cache(maxsize=1)
def _loaded() -> dict[str, View]:
    for module in _MODULES:
        importlib.import_module(f"avmfs.views.{module}")
    return _VIEWS


def find(name: str, node: Node) -> View | None:
    """The view of that name, if this kind of node has it."""
    found = _loaded().get(name)
    return found if found is not None and found.fits(node) else None


def all_views() -> tuple[View, ...]:
    """In order of name."""
    return tuple(sorted(_loaded().values(), key=lambda each: each.name))


def of_node(node: Node) -> Iterable[View]:
    return (each for each in all_views() if each.fits(node))


def _signature(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    hints = get_type_hints(function, include_extras=True)
    found: list[Parameter] = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        hint = hints[parameter.name]
        low = high = None
        if get_origin(hint) is Annotated:
            hint, bounds = get_args(hint)[:2]
            low, high = bounds.low, bounds.high
        choices: tuple[str, ...] = ()
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        if get_origin(hint) is Literal:
            hint, choices = str, get_args(hint)
        elif kinds:  # X | None
            hint = kinds[0]
            if get_origin(hint) is Literal:
                hint, choices = str, get_args(hint)
        name = parameter.name.removesuffix("_")
        found.append(Parameter(name, hint, choices, low, high, parameter.default))
    return tuple(found)


def _convert(view_name: str, parameter: Parameter, value: str) -> Any:
    where = f":{view_name}: {parameter.name}={value[:80]!r}"
    if parameter.choices:
        if value not in parameter.choices:
            raise Invalid(f"{where}: expected one of {', '.join(parameter.choices)}")
        return value
    if parameter.type is bool:
        if value not in ("0", "1", "true", "false"):
            raise Invalid(f"{where}: expected 1 or 0")
        return value in ("1", "true")
    if parameter.type is str:
        return value
    try:
        number = parameter.type(value)
    except ValueError:
        raise Invalid(f"{where}: expected a number") from None
    low, high = parameter.low, parameter.high
    if not ((low is None or number >= low) and (high is None or number <= high)):  # also refuses nan
        raise Invalid(f"{where}: expected {low:g} to {high:g}")
    return number
