"""The registry of views.

Owns what a view is. A view's reader is a function of a Context and keyword-only parameters; that signature
*is* the query's schema: names, types and defaults are read from it (``signatures``). Called by the vfs (find, bind,
render, write) and by whoever lists views (help, info, docs). Knows nothing of handles or FUSE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal

from avmfs import paths
from avmfs.errors import Denied
from avmfs.memory import Memory
from avmfs.node import Kind, Node
from avmfs.registration import load
from avmfs.signatures import Parameter, Query
from avmfs.store.schema.tables import ROOT

On = Literal["file", "directory", "root"]


@dataclass(frozen=True, slots=True)
class Context:
    """What a view works with: one agent's memory, and the node it is of. ``path`` is absolute in the mount."""

    memory: Memory
    node: Node
    path: bytes


_Write = Callable[[Context, str], str | None]
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
class View:
    """One view. ``prose``: it may carry the urgent banner. ``write`` gets the text written to it, and may return one
    that undoes it; ``check`` says early whether text so far can ever be right (raises Invalid); False: more must come.
    ``empty_write``: opening for writing and closing, or touching, is a write; text means nothing where there is no
    ``check`` then. ``once``: of what comes in several writes ``write`` gets each line once, not with those before it;
    it may say so of a text. ``past``: there is one of a node as it was, too. ``shows_bytes``: it shows a file's bytes,
    or says something of them, so those of live content are fetched first. ``changes``: to read it changes what others
    see, so that a mount that only reads has none of it."""

    name: str
    on: frozenset[On]
    summary: str
    read: Callable[..., str | bytes | Rendered] | None
    query: Query
    prose: bool = False
    past: bool = False
    shows_bytes: bool = False
    changes: bool = False
    write: _Write | None = None
    check: Callable[[str], object] | None = None
    empty_write: bool = False
    once: bool | Callable[[str], bool] = False
    writes: str = field(default="")

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(self.query.parameters.values())

    def fits(self, node: Node) -> bool:
        """Return whether there is such a view of this node."""
        if node.kind is Kind.FILE:
            return "file" in self.on
        if node.kind is not Kind.DIRECTORY:
            return False
        return "directory" in self.on or (node.id == ROOT and "root" in self.on)

    def bind(self, given: dict[str, str]) -> dict[str, Any]:
        """Query values by their parameters' types. Raises Invalid naming the parameter."""
        return self.query.parse(given)

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
    name: str,
    *on: On,
    summary: str,
    prose: bool = False,
    past: bool = False,
    shows_bytes: bool = False,
    changes: bool = False,
) -> Callable[[Callable[..., str | bytes | Rendered]], Callable[..., str | bytes | Rendered]]:
    """Register a reader. Its first parameter is the Context; the others, keyword-only, are the query."""

    def register(function: Callable[..., str | bytes | Rendered]) -> Callable[..., str | bytes | Rendered]:
        if name in _VIEWS:
            raise ValueError(f"view :{name} is registered twice")
        query = Query(function, f":{name}")
        _VIEWS[name] = View(name, frozenset(on), summary, function, query, prose, past, shows_bytes, changes)
        return function

    return register


def writes(
    name: str,
    says: str,
    *,
    check: Callable[[str], object] | None = None,
    empty_write: bool = False,
    once: bool | Callable[[str], bool] = False,
) -> Callable[[_Write], _Write]:
    """Register what writing to an already registered view does; ``says`` is for the tables."""

    def register(function: _Write) -> _Write:
        made = _VIEWS[name]
        _VIEWS[name] = replace(made, write=function, check=check, empty_write=empty_write, once=once, writes=says)
        return function

    return register


def by_lines(parse: Callable[[str], object]) -> Callable[[str], bool]:
    """The ``check`` of what is written in lines: ``parse`` judges the whole ones, the last may go on."""

    def check(text: str) -> bool:
        complete = text[: text.rfind("\n") + 1]
        if complete:
            parse(complete)
        return complete == text

    return check


@lru_cache(maxsize=1)
def _loaded() -> dict[str, View]:
    load("avmfs.views", "view")
    if unseen := _VIEWS.keys() - paths.CORE_VIEWS:
        raise ValueError(f"@view must begin a line and name its view with a plain string: {', '.join(sorted(unseen))}")
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
