"""Editing a JSON file that belongs to somebody else, with its comments and trailing commas: all other bytes stay.

Owns where a value stands in the text, and how one is put beside others. Called by ``clients``. Edits are pure functions
from text to text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_BLANK = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_SCALAR = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"|-?\d[\d.eE+-]*|true|false|null')
Step = str | int


class NotJson(ValueError):
    """``str()`` is line, column and reason."""


@dataclass(slots=True)
class Node:
    """A value and where it stands. Of an object ``items`` has keys, of an array numbers; ``begins`` is where an item
    begins, with its key."""

    value: Any
    start: int
    end: int
    begins: int
    items: dict[Step, Node] = field(default_factory=dict)


def parse(text: str) -> Node:
    """Raises NotJson for what is none, also where a key stands twice: nobody knows which one holds."""
    at = _blank(text, 0)
    node = _value(text, at, at)
    if (end := _blank(text, node.end)) != len(text):
        raise _wrong(text, end, "something after the end")
    return node


def put(text: str, path: Sequence[Step], value: Any) -> str:
    """With the value at ``path``, made or replaced; what is missing on the way is made. A number past the end of an
    array is appended. Raises NotJson where the way leads through another kind of value."""
    node = parse(text)
    for depth, step in enumerate(path):
        kind: type = dict if isinstance(step, str) else list
        if not isinstance(node.value, kind):
            raise _wrong(text, node.start, f"expected {'an object' if kind is dict else 'a list'} here")
        if step not in node.items:
            for below in reversed(path[depth + 1 :]):
                value = {below: value} if isinstance(below, str) else [value]
            return _added(text, node, step, value)
        node = node.items[step]
    if node.value == value:
        return text
    return text[: node.start] + _printed(value, _indent(text, node.begins)) + text[node.end :]


def drop(text: str, path: Sequence[Step]) -> str:
    """Without what stands at ``path``, and without the objects and lists around it that are empty then. As it is where
    nothing stands there."""
    *above, last = path
    node = parse(text)
    for step in above:
        if step not in node.items:
            return text
        node = node.items[step]
    if last not in node.items:
        return text
    if len(node.items) == 1 and above:
        return drop(text, above)
    keys = list(node.items)
    place, gone = keys.index(last), node.items[last]
    if place:
        return text[: node.items[keys[place - 1]].end] + text[gone.end :]
    until = node.items[keys[1]].begins if len(keys) > 1 else node.end - 1
    return text[: gone.begins] + text[until:] if len(keys) > 1 else text[: node.start + 1] + text[until:]


def _added(text: str, node: Node, step: Step, value: Any) -> str:
    outer = _indent(text, node.begins)
    items = list(node.items.values())
    inner = _indent(text, items[-1].begins) if items else outer + "  "
    entry = f"{json.dumps(step)}: " if isinstance(step, str) else ""
    entry += _printed(value, inner)
    if not items:
        kept = text[node.start + 1 : node.end - 1].rstrip()
        return f"{text[: node.start + 1]}{kept}\n{inner}{entry}\n{outer}{text[node.end - 1 :]}"
    at = items[-1].end
    comma = _blank(text, at)
    if text[comma] == ",":  # a trailing one
        return f"{text[: comma + 1]}\n{inner}{entry}{text[comma + 1 :]}"
    return f"{text[:at]},\n{inner}{entry}{text[at:]}"


def _printed(value: Any, indent: str) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", f"\n{indent}")


def _indent(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip())]


def _value(text: str, at: int, begins: int) -> Node:
    opened = text[at : at + 1]
    if opened in ("{", "["):
        return _container(text, at, begins, named=opened == "{")
    if (found := _SCALAR.match(text, at)) is None:
        raise _wrong(text, at, "expected a value")
    try:
        return Node(json.loads(found[0]), at, found.end(), begins)
    except ValueError:
        raise _wrong(text, at, "no value that JSON has") from None


def _container(text: str, start: int, begins: int, *, named: bool) -> Node:
    items: dict[Step, Node] = {}
    closing = "}" if named else "]"
    at = _blank(text, start + 1)
    while text[at : at + 1] != closing:
        first = at
        key: Step = len(items)
        if named:
            name = _value(text, at, at)
            if not isinstance(name.value, str) or name.value in items:
                raise _wrong(text, at, "a key twice" if isinstance(name.value, str) else "expected a key")
            key, at = name.value, _blank(text, name.end)
            if text[at : at + 1] != ":":
                raise _wrong(text, at, "expected ':'")
            at = _blank(text, at + 1)
        items[key] = _value(text, at, first)
        at = _blank(text, items[key].end)
        if text[at : at + 1] == ",":
            at = _blank(text, at + 1)
        elif text[at : at + 1] != closing:
            raise _wrong(text, at, f"expected ',' or '{closing}'")
    value: Any = (
        {name: each.value for name, each in items.items()} if named else [each.value for each in items.values()]
    )
    return Node(value, start, at + 1, begins, items)


def _blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return at if found is None else found.end()


def _wrong(text: str, at: int, reason: str) -> NotJson:
    before = text[:at]
    return NotJson(f"line {before.count(chr(10)) + 1}, column {at - before.rfind(chr(10))}: {reason}")
