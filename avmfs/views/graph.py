"""The links below a directory. Owns :graph: what is told of them, and the forms that programs draw or read."""

from __future__ import annotations

import html
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final, Literal
from xml.sax.saxutils import escape

from avmfs import paths
from avmfs.agents.graph import Edge, edges
from avmfs.agents.told import told
from avmfs.memory import Memory
from avmfs.signatures import Range
from avmfs.text.escapes import escaped
from avmfs.views.registry import Context, view
from avmfs.views.shape import json_text, lines

Format = Literal["text", "mermaid", "dot", "graphml", "json"]
_GRAPHML: Final = """\
<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="path" for="node" attr.name="path" attr.type="string"/>
  <key id="type" for="edge" attr.name="type" attr.type="string"/>
  <graph id="memory" edgedefault="directed">
"""


@dataclass(frozen=True, slots=True)
class Graph:
    """The links that lead from files below ``path``; of ``more`` files nothing is known."""

    path: bytes
    edges: list[Edge]
    more: int

    @property
    def nodes(self) -> list[bytes]:
        """The files with a link, those outside that a link leads to included, in order."""
        return sorted({name for edge in self.edges for name in (edge.source, edge.target)})


@view("graph", "directory", summary="the links below it, as lines or for a program that draws or reads graphs")
def graph(ctx: Context, *, format: Format = "text", limit: Annotated[int, Range(1, 10_000)] = 1000) -> str:
    return FORMS[format](collected(ctx.memory, ctx.node.id, limit))


def collected(memory: Memory, directory: int, limit: int) -> Graph:
    """The links that lead from the first ``limit`` files below a directory."""
    with memory.reading() as reader:
        entries, total = reader.listing(directory, limit=limit, offset=0, query="")
        found = edges(reader, (entry for entry, _ in entries))
        return Graph(reader.path(directory), found, max(0, total - len(entries)))


def value(found: Graph) -> dict[str, object]:
    """For JSON: {"path", "nodes": [path], "edges": [{"source", "target", "type"}], "more"}."""
    return {
        "path": paths.text(found.path),
        "nodes": [paths.text(name) for name in found.nodes],
        "edges": [told(each, "source target type") for each in found.edges],
        "more": found.more,
    }


def _text(found: Graph) -> str:
    rows = [
        f"{paths.printable(each.source)} -[{escaped(each.type)}]-> {paths.printable(each.target)}"
        for each in found.edges
    ]
    return lines(rows, "no links") + (f"({found.more} files not looked at: limit)\n" if found.more else "")


def _dot(found: Graph) -> str:
    rows = [
        f"  {_quoted(paths.printable(each.source))} -> {_quoted(paths.printable(each.target))}"
        f" [label={_quoted(escaped(each.type))}];\n"
        for each in found.edges
    ]
    return "digraph memory {\n  rankdir=LR;\n" + "".join(rows) + "}\n"


def _mermaid(found: Graph) -> str:
    names = _numbered(found)
    nodes = [f'  {name}["{_label(paths.printable(path))}"]\n' for path, name in names.items()]
    rows = [f"  {names[each.source]} -->|{_label(escaped(each.type))}| {names[each.target]}\n" for each in found.edges]
    return "graph LR\n" + "".join(nodes + rows)


def _graphml(found: Graph) -> str:
    names = _numbered(found)
    nodes = [
        f'    <node id="{name}"><data key="path">{_xml(paths.printable(path))}</data></node>\n'
        for path, name in names.items()
    ]
    rows = [
        f'    <edge source="{names[each.source]}" target="{names[each.target]}">'
        f'<data key="type">{_xml(escaped(each.type))}</data></edge>\n'
        for each in found.edges
    ]
    return _GRAPHML + "".join(nodes + rows) + "  </graph>\n</graphml>\n"


def _xml(name: str) -> str:
    """XML has no U+FFFE and U+FFFF; what else it lacks is escaped in names already."""
    return escape(name.replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff"))


def _numbered(found: Graph) -> dict[bytes, str]:
    return {path: f"n{number}" for number, path in enumerate(found.nodes)}


def _quoted(name: str) -> str:
    """A string of DOT, which is UTF-8 and in which a backslash is written as in JSON."""
    return json.dumps(name, ensure_ascii=False)


def _label(name: str) -> str:
    """Of Mermaid, whose quotation mark is an entity."""
    return html.escape(name).replace("&quot;", "#quot;")


FORMS: Final[dict[str, Callable[[Graph], str]]] = {
    "text": _text,
    "mermaid": _mermaid,
    "dot": _dot,
    "graphml": _graphml,
    "json": lambda found: json_text(value(found)),
}
