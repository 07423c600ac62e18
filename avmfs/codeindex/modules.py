"""The note of a source file: how its symbols are written, and read again.

Owns the format (docs/FORMATS.md) and where a project's notes are. Called by ``scanning``, which writes, and
``finding``, which reads. Names are written apart as well (``parseView`` as parse view), or search would not find their
parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from avmfs.codeindex.parsing import Module, Symbol
from avmfs.errors import Invalid
from avmfs.text.escapes import escaped

TOP: Final = "/index"
OVERVIEW: Final = "INDEX.md"
META: Final = "index"
"""The key of a note's metadata that says what it was made of."""
_PROJECT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEADING: Final = re.compile(r"## (?P<name>.+) \((?P<kind>[a-z]+), line (?P<line>\d+)\)\Z")
_WORD: Final = re.compile(r"[^\W_]+")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])|_+|\W+")


@dataclass(frozen=True, slots=True)
class Place:
    """A symbol, and where it is: ``path`` the note's, ``source`` the file's in the project."""

    project: str
    path: str
    source: str
    symbol: Symbol

    def plain(self) -> dict[str, Any]:
        each = self.symbol
        said = {"name": each.name, "kind": each.kind, "line": each.line, "signature": each.signature, "doc": each.doc}
        return {**said, "project": self.project, "source": self.source, "path": self.path, "calls": list(each.calls)}


def folder(project: str, agent: str = "") -> str:
    """Where the notes of a project are; ``agent``: whose alone. Raises Invalid for what is no name of one."""
    if not _PROJECT.fullmatch(project) or project == "private":
        raise Invalid(f"project {project!r}: expected letters, digits, . _ - (64 at most), and not private")
    return f"{TOP}/private/{agent}/{project}" if agent else f"{TOP}/{project}"


def apart(name: str) -> str:
    """``RetryPolicy.max_delay`` -> retry policy max delay."""
    return " ".join(_HUMP.sub(" ", name).lower().split())


def written(source: str, module: Module) -> str:
    count = len(module.symbols)
    symbols = f"{count} symbol{'s' * (count != 1)}"
    lines = [f"# {escaped(source)}", "", f"{module.language}, {module.lines} lines, {symbols}"]
    lines += [f"> {module.doc}"] * bool(module.doc)
    for each in module.symbols:
        lines += ["", f"## {each.name} ({each.kind}, line {each.line})", f"    {each.signature}"]
        if (words := apart(each.name)).split() != _WORD.findall(each.name.lower()):
            lines.append(f"words: {words}")
        lines += [f"> {each.doc}"] * bool(each.doc)
        lines += [f"calls: {', '.join(each.calls)}"] * bool(each.calls)
    return "\n".join(lines) + "\n"


def read(text: str) -> Iterator[Symbol]:
    """The symbols of a note. What is none of its lines is passed over."""
    said: dict[str, Any] = {}
    for line in [*text.split("\n"), "## "]:
        if line.startswith("## "):
            if said:
                yield Symbol(**said)
            found = _HEADING.match(line)
            said = {} if found is None else {**found.groupdict(), "line": int(found["line"])}
        elif not said:
            continue
        elif line.startswith("    "):
            said["signature"] = line[4:]
        elif line.startswith("> "):
            said["doc"] = line[2:]
        elif line.startswith("calls: "):
            said["calls"] = tuple(line[7:].split(", "))


def places(path: str, said: dict[str, Any], text: str) -> Iterator[Place]:
    """The symbols of the note at ``path``, of which its metadata says ``said``; of what is no such note, none."""
    if isinstance(source := said.get("source"), str):
        project = path[: -len(source) - 4].rpartition("/")[2]
        yield from (Place(project, path, source, symbol) for symbol in read(text))
