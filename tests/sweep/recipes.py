"""How anything that takes arguments is asked by somebody who wants what is not theirs.

One table of values by the *name* of a parameter, for views, methods of the door, commands, tools and the Python
class alike. Numbers, switches and choices come from the type. So whatever is added later is swept without a line here,
unless it has a text parameter of a new name: then `NoRecipe` says which, and a value is added to `TEXTS`.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click

from avmfs.cli.main import avm
from tests.sweep.planting import WORD, Planted

FULL = os.environ.get("AVM_SWEEP") == "full"
EACH = 1000 if FULL else 12  # values of one parameter, the others as usual
MIXED = 200 if FULL else 4  # further cases with everything mixed
NUMBERS: tuple[int, ...] = (0, 1, 2, 3, 100, -1)

QUERIES = ("market report", "open", "*", '"', "NOT market", "芯片", "alice", "private", "team alice note", "")
AGENTS = ("alice", "bob", "carol", "@all", "ALICE", "alic", "nobody")
TIMES = ("0", "1", "2000-01-01", "not a time")


@dataclass(frozen=True)
class Ground:
    """What bob sees (``files``, ``folders``) and what he guesses, as paths."""

    files: tuple[str, ...]
    folders: tuple[str, ...]
    guesses: tuple[str, ...]

    @staticmethod
    def of(planted: Planted, files: Sequence[str], folders: Sequence[str]) -> Ground:
        hers = planted.hers
        guesses = [
            "/memory/private/alice",
            "/memory/private/alice/note.md",
            "/memory/private/alice/old.md:history",
            "/private/../alice/note.md",
            "/memory/private/ALICE/note.md",
            "/memory/private/a_ice/note.md",
            "/memory/private/alic%/note.md",
            "/memory/private/ali/note.md",
            "/memory/hidden",
            "/memory/private/%",
            *(f"/{handle}" for handle in planted.handles[:4]),
            *(f"/{handle}:meta" for handle in planted.handles[:2]),
            *(
                path
                for path in hers
                if any(WORD[kind] in path for kind in ("name", "limitedname", "hiddenname", "livename"))
            ),
            f"/memory/private/alice/{WORD['folder']}/below",
            "/memory/shared/team/ends.md",
            "/memory/shared/team/brief.md",
            *(f"/memory/private/alice/note.md{suffix}" for suffix in (":meta", ":tags", ":data")),
        ]
        return Ground(tuple(files), tuple(folders), tuple(dict.fromkeys(guesses)))


class NoRecipe(AssertionError):
    """Something can be asked for that the sweep does not know how to ask for."""


def texts(ground: Ground) -> Mapping[str, Sequence[str]]:
    """What a text parameter of that name is given: guesses first, since only some are tried in the short form."""
    targets = _mixed(ground.guesses, ground.files, ground.folders)
    plain = ("market, said by bob", "x")
    return {
        **dict.fromkeys(
            (
                "path",
                "paths",
                "target",
                "targets",
                "source",
                "where",
                "supersedes",
                "after",
                "under",
                "after",
                "namespace",
                "old_path",
                "new_path",
                "prefix",
                "root",
                "directory",
                "what",
            ),
            targets,
        ),
        **dict.fromkeys(("pattern", "patterns"), ("/memory/private/alice/*", "/memory/**", "/memory/hidden/*", "*")),
        **dict.fromkeys(("q", "query", "question"), QUERIES),
        **dict.fromkeys(("name", "topic"), ("market", "report", "alice", "note", "open")),
        **dict.fromkeys(("project",), ("market", "hers", "alice", "private")),
        "kind": ("function", "x"),
        **dict.fromkeys(("tag", "tags", "add", "remove", "replace"), ("shown", "market", "a,b", "%")),
        **dict.fromkeys(
            ("agent", "agents", "recipient", "user", "by", "to", "of", "who", "author", "sender", "whose"), AGENTS
        ),
        **dict.fromkeys(
            (
                "content",
                "text",
                "texts",
                "body",
                "data",
                "about",
                "title",
                "label",
                "file_text",
                "insert_text",
                "old_str",
                "new_str",
                "note",
                "reason",
            ),
            plain,
        ),
        **dict.fromkeys(
            ("since", "created", "at", "until", "before", "older", "newer", "number", "from", "version"), TIMES
        ),
        **dict.fromkeys(("expires", "lease", "ttl"), ("1s", "2h", "never", "x")),
        "type": ("related", "cites", "x y"),
        **dict.fromkeys(
            (
                "strategy",
                "on_duplicate",
                "mode",
                "priority",
                "cite",
                "privacy",
                "via",
                "action",
                "actions",
                "command",
                "format",
                "shape",
                "mark",
            ),
            ("balanced", "full", "none", "urgent", "path", "read", "write", "jsonl", "realtime", "replace"),
        ),
        **dict.fromkeys(("url", "webhook"), ("http://127.0.0.1:9/", "https://example.com/x")),
        **dict.fromkeys(
            ("id", "ids", "messages", "notices", "anchor", "agreed", "key", "group", "capability"),
            ("1", "x", "sudo", "search_all"),
        ),
    }


# What only these names can hold, whatever their type.
GIVEN: Mapping[str, Sequence[Any]] = {
    "wait": (0,),
    "instead_of": (hashlib.sha256(b"").digest(), hashlib.sha256(b"market, said by bob").digest(), b"x"),
    "items": (
        [{"content": "market, said by bob"}],
        [{"content": "x", "path": "/memory/private/alice/x.md"}],
        [
            {"path": "/memory/private/alice/x.md", "data": b"x"},
            {"path": "/memory/private/alice/note.md", "tags": ["x"]},
        ],
        [
            {"path": "/memory/private/alice", "mode": 0o777},
            {"path": "/memory/shared/team/s", "target": b"/memory/private"},
        ],
    ),
    "users": ({"bob": {"capabilities": ["search_all", "sudo"]}}, {"alice": {}}),
    "when": (1, 2, "2000-01-01", "not a time"),
    "permissions": ({"users": {"bob": {"capabilities": ["search_all", "sudo"]}}}, {"users": {}}),
    "view_range": ([1, 5],),
    "weights": ({}, {"words": 5.0, "cosine": 0.0}, {"x": 1}),
    "config": (),
    "db": (),
}

# Options that a command is always given, for without them it goes on until somebody ends it.
ALWAYS: Mapping[str, str] = {"watch": "wait"}


def _mixed(*groups: Sequence[str]) -> tuple[str, ...]:
    return tuple(each for each in itertools.chain.from_iterable(itertools.zip_longest(*groups)) if each is not None)


def values(ground: Ground, what: str, name: str, hint: Any) -> list[Any]:
    """Values for one parameter. Raises NoRecipe."""
    if name in GIVEN:
        return [*GIVEN[name]]
    if name in ("root", "directory") and what.rpartition(".")[2].replace("_", " ").startswith("index "):
        return ["/memory/private/alice", "/nowhere"]  # of this machine: all of "/" would be read
    origin = get_origin(hint)
    if origin is Annotated:
        return values(ground, what, name, get_args(hint)[0])
    if origin in (Union, UnionType):
        kinds = [each for each in get_args(hint) if each is not NoneType]
        return [value for kind in kinds for value in values(ground, what, name, kind)]
    if origin is Literal:
        return [*get_args(hint)]
    if origin in (list, tuple, Sequence) or getattr(origin, "__name__", "") == "Sequence":
        inner = [each for each in get_args(hint) if each is not Ellipsis]
        found = values(ground, what, name, inner[0]) if inner else []
        return [[each] for each in found] + [found[:8], []]
    if hint is bool:
        return [True, False]
    if hint in (int, float):
        return [hint(number) for number in NUMBERS] + ([0.5] if hint is float else [])
    table = texts(ground)
    if name not in table:
        raise NoRecipe(f"{what}: what would an intruder give as {name!r} ({hint})? Add it to TEXTS in {__file__}")
    if hint is bytes:
        return [each.encode() for each in table[name]]
    return [*table[name]]


@dataclass(frozen=True)
class Parameter:
    name: str
    hint: Any
    required: bool


def cases(
    ground: Ground, what: str, parameters: Sequence[Parameter], each_most: int = EACH
) -> Iterator[dict[str, Any]]:
    """Arguments to try: each value of each parameter once, the required others as first in the table, and some with
    everything mixed (the same ones in every run)."""
    candidates = {each.name: values(ground, what, each.name, each.hint) for each in parameters}
    base = {each.name: candidates[each.name][0] for each in parameters if each.required}
    yield dict(base)
    for each in parameters:
        for value in candidates[each.name][:each_most]:
            yield {**base, each.name: value}
    chance = random.Random(what)
    for _ in range(MIXED if len(parameters) > 1 else 0):
        chosen = [each for each in parameters if candidates[each.name] and (each.required or chance.random() < 0.5)]
        yield {each.name: chance.choice(candidates[each.name]) for each in chosen}


def of_function(function: Any, hints: Mapping[str, Any], *, skip: int) -> list[Parameter]:
    """The parameters of a function but for the first ones."""
    return [
        Parameter(each.name, hints[each.name], each.default is inspect.Parameter.empty)
        for each in list(inspect.signature(function).parameters.values())[skip:]
    ]


def command_cases(ground: Ground, name: str, each_most: int = EACH if FULL else 6) -> Iterator[list[str]]:
    """Command lines of one command, its sub-commands' too; each of them opens the store anew."""
    found = avm.get_command(click.Context(avm), name)
    assert found is not None
    waiting: list[tuple[list[str], click.Command]] = [([name], found)]
    while waiting:
        words, command = waiting.pop()
        if isinstance(command, click.Group):
            context = click.Context(command)
            below = [(each, command.get_command(context, each)) for each in command.list_commands(context)]
            waiting += [([*words, each], one) for each, one in below if one is not None]
            continue
        own = [each for each in command.params if each.name not in ("db", "config", "agent", "operator", "no_color")]
        always = ALWAYS.get(" ".join(words))
        parameters = [Parameter(each.name or "", _hint(each), each.required or each.name == always) for each in own]
        for given in cases(ground, " ".join(words), parameters, each_most):
            line = list(words)
            for each in own:
                if each.name in given:
                    line += _spoken(each, given[each.name])
            yield line


def _hint(parameter: click.Parameter) -> Any:
    if isinstance(parameter.type, click.Choice):
        return Literal[tuple(parameter.type.choices)]
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return bool
    return {"integer": int, "integer range": int, "float": float, "float range": float}.get(parameter.type.name, str)


def _spoken(parameter: click.Parameter, value: Any) -> list[str]:
    if isinstance(parameter, click.Option):
        name = parameter.opts[0]
        if parameter.is_flag:
            return [name] if value else []
        return [f"{name}={value}"] if name.startswith("--") else [name, str(value)]
    return [str(value)] if not str(value).startswith("-") else ["--", str(value)]
