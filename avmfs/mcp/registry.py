"""The registry of tools: what a tool is, and the schemas that its signature means.

Owns how a function becomes a tool. The function's annotations are the input schema, its return annotation the output
schema, its docstring the description; docs/MCP.md and the tests derive from the same. Called by the server and by the
reference. Knows nothing of sessions, transports or the door.

The SDK's own registration is not used: it lets unknown arguments pass, converts "5" to 5, and builds all schemas at
start, which a client that only wants to connect would wait for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Generic, Protocol, Self, TypeVar, get_args, get_type_hints

from mcp_types import ToolAnnotations
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from avmfs.registration import load


class Result(BaseModel):
    """Base of structured results: exactly the fields that are declared."""

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """Made of what a method of the door gives, which may have more."""
        return cls(**{name: found[name] for name in cls.model_fields})


R = TypeVar("R", bound=Result)


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
    """What a tool gives back: a text for a model to read, and the same for a program. ``failed``: the text says why
    nothing was done."""

    text: str
    value: R | None
    failed: bool = False


class Call(Protocol):
    """What a tool works with: one request of one agent."""

    agent: str

    def door(self, method: str, /, **arguments: Any) -> Any:
        """Call a method of the door. Raises AvmError. Text in the result is valid Unicode."""
        ...

    def patient(self, method: str, **arguments: Any) -> Any:
        """Like ``door``, for a call that waits: other calls of this server go on meanwhile."""
        ...

    def progress(self, done: float, total: float, message: str) -> None:
        """Tell a client that wants to know how far this is."""
        ...

    def urgent_is_shown(self) -> None:
        """The answer itself has the urgent mail: no block of its own for it."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    name: str
    title: str
    run: Callable[..., Answer[Any]]
    annotations: ToolAnnotations

    @property
    def description(self) -> str:
        return inspect.cleandoc(self.run.__doc__ or "")


class BadArguments(ValueError):
    """Arguments that do not fit the schema; ``str()`` names each and says why."""


_TOOLS: dict[str, Tool] = {}


def tool(
    title: str, *, reads: bool = False, destroys: bool = False, repeatable: bool = False
) -> Callable[[Callable[..., Answer[Any]]], Callable[..., Answer[Any]]]:
    """Register a tool under its function's name. ``reads``: it changes nothing but what its own agent has read;
    ``destroys``: it may take away or replace what was there; ``repeatable``: a second call with the same arguments
    changes nothing more."""

    def register(function: Callable[..., Answer[Any]]) -> Callable[..., Answer[Any]]:
        hints = ToolAnnotations(
            read_only_hint=reads, destructive_hint=destroys, idempotent_hint=reads or repeatable, open_world_hint=False
        )
        _TOOLS[function.__name__] = Tool(function.__name__, title, function, hints)
        return function

    return register


@cache
def tools() -> dict[str, Tool]:
    """All tools by name, in order of name."""
    load("avmfs.mcp", "tool")
    return dict(sorted(_TOOLS.items()))


CORE: Final = (
    "avm_recall", "avm_remember", "avm_search", "avm_browse", "avm_fetch", "avm_read", "avm_write", "avm_list",
    "avm_tell", "avm_inbox", "avm_ask",
)  # fmt: skip
"""What is offered where nobody says otherwise: each further tool costs every session of every agent its tokens."""


def offered(said: str) -> dict[str, Tool]:
    """The tools that ``said`` names: core, all, or names with commas between. Raises BadArguments."""
    known = tools()
    names = {"core": CORE, "all": tuple(known)}.get(said) or tuple(filter(None, map(str.strip, said.split(","))))
    if wrong := [each for each in names if each not in known]:
        raise BadArguments(f"--tools: no tool is called {wrong[0]!r}; core, all, or some of {', '.join(known)}")
    return {name: known[name] for name in sorted(names)}


@cache
def arguments_model(found: Tool) -> type[BaseModel]:
    """The arguments of a tool: names, types and bounds as its signature says, nothing else, nothing converted."""
    hints = get_type_hints(found.run, include_extras=True)
    parameters = list(inspect.signature(found.run).parameters.values())[1:]
    fields: dict[str, Any] = {
        each.name: (hints[each.name], ... if each.default is inspect.Parameter.empty else each.default)
        for each in parameters
    }
    return create_model(found.name, __config__=ConfigDict(extra="forbid", strict=True), **fields)


@cache
def result_model(found: Tool) -> type[Result]:
    model: type[Result]
    (model,) = get_args(get_type_hints(found.run)["return"])
    return model


@cache
def input_schema(found: Tool) -> dict[str, Any]:
    schema = _plain(arguments_model(found).model_json_schema())
    return {**schema, "properties": {name: _given(each) for name, each in schema.get("properties", {}).items()}}


@cache
def output_schema(found: Tool) -> dict[str, Any]:
    return _plain(result_model(found).model_json_schema(mode="serialization"))


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """What an argument is where it is given: that it may be left out, ``required`` says. That it is not empty is
    checked and not told: it would cost every session as much as a tool."""
    kinds = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(kinds) == 1 and schema.get("default", 0) is None:
        schema = {**kinds[0], **{key: each for key, each in schema.items() if key not in ("anyOf", "default")}}
    return {key: each for key, each in schema.items() if (key, each) != ("minLength", 1)}


def bind(found: Tool, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments, checked. Raises BadArguments."""
    try:
        bound = arguments_model(found).model_validate(given)
    except ValidationError as e:
        raise BadArguments("; ".join(_problem(each) for each in e.errors(include_url=False))) from None
    return {name: getattr(bound, name) for name in type(bound).model_fields}


def _problem(error: Any) -> str:
    where = ".".join(map(str, error["loc"])) or "arguments"
    if error["type"] == "extra_forbidden":
        return f"{where}: no such argument"
    if error["type"] == "missing":
        return f"{where}: required"
    said = str(error["msg"])
    return f"{where}: {said[:1].lower()}{said[1:]}"


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Without the titles that pydantic makes up from names: they cost tokens in every session and tell nothing."""

    def clean(value: Any, names: bool) -> Any:
        if isinstance(value, dict):
            return {
                key: clean(each, names=key in ("properties", "$defs") and not names)
                for key, each in value.items()
                if names or key != "title" or not isinstance(each, str)
            }
        return [clean(each, names=False) for each in value] if isinstance(value, list) else value

    cleaned: dict[str, Any] = clean(schema, names=False)
    return {key: value for key, value in cleaned.items() if key != "description"}
