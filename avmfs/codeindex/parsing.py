"""From a source file to its symbols.

Owns what a symbol is and how its name, first lines and documentation are found in a syntax tree, whatever the language
(``languages`` has what differs). Called by ``scanning``, in the process of the command that scans. Knows no store.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from avmfs.codeindex.languages import CONTAINERS, Language
from avmfs.errors import Invalid
from avmfs.extras import bring
from avmfs.text import segment

if TYPE_CHECKING:
    from tree_sitter import Node, Parser, Query

SIGNATURE, DOC, CALLS = 240, 300, 60  # characters of a signature, and of what is told of one; names of what one calls
_COMMENTS: Final = frozenset(("comment", "line_comment", "block_comment"))
_SKIPPED: Final = frozenset(("attribute_item", "decorator", "inner_attribute_item"))
_WRAPS_WORDS: Final = (
    "lexical_declaration variable_declaration export_statement decorated_definition expression_statement"
    " template_declaration type_declaration const_declaration var_declaration var_spec_list ambient_declaration"
    " declaration assignment_expression type_definition linkage_specification"
)
_WRAPS: Final = frozenset(_WRAPS_WORDS.split())
_MARKS: Final = re.compile(r"^\s*(?:/\*+!?|//+!?|\*+/?|#+!?)\s?|\s*\*+/\s*$")
_TAG: Final = re.compile(r"^\s*[@\\]\w+")
_LEGAL: Final = re.compile(r"copyright|licen[cs]e|spdx|-\*-|eslint|vim:|^!", re.IGNORECASE)
_QUOTES: Final = re.compile(r"""(?s)\A[rRuUbB]*(?:\"{3}|'{3}|"|')(.*?)(?:\"{3}|'{3}|"|')\Z""")
_LAST_NAME: Final = re.compile(r"([A-Za-z_$~][\w$]*)\W*\Z")
_GENERIC: Final = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")
_ENDING: Final = re.compile(r"(?:\s*(?:=>|[{:;=]))+\s*\Z")
_NOWHERE: Final = frozenset(("exports", "module.exports", "this", "self", "window", "module"))


@dataclass(frozen=True, slots=True)
class Symbol:
    """``name`` with what it is in, ``Class.method``. ``line`` from 1. ``calls``: names alone, as written: which of
    several of a name is meant no parser knows."""

    name: str
    kind: str
    line: int
    signature: str = ""
    doc: str = ""
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Module:
    """A source file. ``broken``: its syntax has errors; what could be read is there."""

    language: str
    lines: int
    doc: str
    symbols: tuple[Symbol, ...]
    broken: bool = False


def parse(data: bytes, language: Language) -> Module:
    parser, symbols, calls = _grammar(language)  # which says so where the parsers are missing
    from tree_sitter import QueryCursor

    root = parser.parse(data).root_node
    made = list(_symbols(root, symbols))
    called: dict[int, dict[str, None]] = {}
    for node in QueryCursor(calls).captures(root).get("call", []):
        within = _innermost(made, node.start_byte)
        found = _LAST_NAME.search(_GENERIC.sub("", _text(node)))
        if within is not None and found is not None:
            called.setdefault(within, {})[found[1]] = None
    out = tuple(
        Symbol(
            each.name,
            each.kind,
            each.node.start_point.row + 1,
            _signature(each.node),
            _doc(each.node, language),
            tuple(called.get(number, ()))[:CALLS],
        )
        for number, each in enumerate(made)
        if each.kind != "impl"
    )
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    return Module(language.name, lines, _module_doc(root, language), out, root.has_error)


@dataclass(slots=True)
class _Found:
    name: str
    kind: str
    node: Node


@cache
def _grammar(language: Language) -> tuple[Parser, Query, Query]:
    try:
        import tree_sitter

        module = importlib.import_module(language.package)
    except ImportError as e:
        raise Invalid(f"the index of code needs its parsers ({e.name}): {bring('index')}") from None
    grammar = tree_sitter.Language(getattr(module, language.grammar)())
    queries = (tree_sitter.Query(grammar, each) for each in (language.symbols, language.calls))
    return tree_sitter.Parser(grammar), next(queries), next(queries)


def _symbols(root: Node, query: Query) -> Iterator[_Found]:
    """In the order of the text, named with what they are in."""
    from tree_sitter import QueryCursor

    found: dict[int, tuple[int, str, Node, Node, Node | None]] = {}
    for pattern, captures in QueryCursor(query).matches(root):
        kind = next(each for each in captures if each not in ("name", "of"))
        name, node, of = captures["name"][0], captures[kind][0], captures.get("of", [None])[0]
        key = name.start_byte
        if key not in found or pattern < found[key][0]:
            found[key] = (pattern, kind, node, name, of)
    inside: list[tuple[int, str, str]] = []
    for _, kind, node, name, of in sorted(found.values(), key=lambda each: (each[2].start_byte, -each[2].end_byte)):
        while inside and inside[-1][0] <= node.start_byte:
            inside.pop()
        said = _name(name)
        if not said:
            continue
        above = inside[-1][1] if inside else ""
        if of is not None:
            above = _GENERIC.sub("", _text(of)).removesuffix(".prototype").strip("()")
            above = "" if above in _NOWHERE else above.split()[-1].lstrip("*") if above else ""
            above = above.replace("(", "").replace(")", "")[:80]
        whole = f"{above}.{said}" if above else said
        if kind == "function" and inside and of is None and inside[-1][2] in CONTAINERS:
            kind = "method"
        if kind == "prototype" and inside and inside[-1][2] not in ("namespace",):
            continue  # of C's: what looks like one in a function constructs a variable
        inside.append((node.end_byte, whole, kind))
        yield _Found(whole, kind, node)


def _name(node: Node) -> str:
    """Of a declarator, its innermost name: int *(*f)(int) is f."""
    while True:
        below = node.child_by_field_name("declarator")
        if below is None and node.type in ("reference_declarator", "parenthesized_declarator"):
            below = node.named_children[-1] if node.named_children else None
        if below is None:
            break
        node = below
    text = _GENERIC.sub("", _text(node)).strip("'\"`").replace("::", ".")
    return segment.one_line(text, 120)


def _innermost(found: list[_Found], at: int) -> int | None:
    """Symbols are in the order of where they begin: the last one that holds the place is the innermost."""
    low, high = 0, len(found)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if found[middle].node.start_byte <= at else (low, middle)
    for number in range(low - 1, max(-1, low - 200), -1):
        if found[number].node.end_byte > at and found[number].kind != "impl":
            return number
    return None


def _signature(node: Node) -> str:
    """What stands before the body, on one line; of what has none, its first line."""
    body = node.child_by_field_name("body")
    if body is None and (value := node.child_by_field_name("value") or node.child_by_field_name("right")) is not None:
        body = value.child_by_field_name("body")
    text = (
        _text(node)
        if body is None
        else (node.text or b"")[: body.start_byte - node.start_byte].decode("utf-8", "replace")
    )
    if body is None and "(" not in text[:200]:
        text = text.partition("\n")[0]
    return _ENDING.sub("", segment.one_line(text, SIGNATURE))


def _doc(node: Node, language: Language) -> str:
    inner = node.child_by_field_name("body") if language.name == "python" else None
    if inner is not None and (said := _docstring(inner)):
        return said
    above: list[str] = []
    here = node
    while True:
        before = here.prev_sibling
        while before is not None and before.type in _SKIPPED:
            here, before = before, before.prev_sibling
        if before is not None and _comment(before):
            break
        if here.parent is None or here.parent.type not in _WRAPS:
            return ""
        here = here.parent
    while before is not None and _comment(before) and _last_row(before) >= here.start_point.row - 1:
        if _text(before).startswith("//!"):  # Rust: of what it stands in
            break
        statement = before.prev_sibling
        if statement is not None and statement.end_point.row == before.start_point.row and not _comment(statement):
            break  # it stands behind another statement, on its line
        above.append(_text(before))
        here, before = before, before.prev_sibling
    return _said("\n".join(reversed(above)))


def _comment(node: Node) -> bool:
    return node.type in _COMMENTS


def _last_row(node: Node) -> int:
    """Of some comments the line end is a part."""
    return node.end_point.row - (node.end_point.column == 0)


def _docstring(block: Node) -> str:
    first = block.named_children[0] if block.named_children else None
    if first is None or first.type != "expression_statement" or not first.named_children:
        return ""
    said = _QUOTES.match(_text(first.named_children[0])) if first.named_children[0].type == "string" else None
    return "" if said is None else _paragraph(said[1].splitlines())


def _module_doc(root: Node, language: Language) -> str:
    if language.name == "python" and (said := _docstring(root)):
        return said
    for node in root.named_children[:6]:
        if node.type not in _COMMENTS:
            return ""
        if not _LEGAL.search(_text(node)):
            after = node.next_named_sibling
            alone = after is None or _comment(after) or after.start_point.row > _last_row(node) + 1
            return _said(_text(node)) if alone else ""
    return ""


def _said(comment: str) -> str:
    if _LEGAL.search(comment[:400]):
        return ""
    return _paragraph([_MARKS.sub("", _MARKS.sub("", line)) for line in comment.splitlines()])


def _paragraph(lines: list[str]) -> str:
    """The first one, on one line."""
    kept: list[str] = []
    for line in lines:
        if _TAG.match(line) or (kept and not line.strip()):
            break
        if line.strip():
            kept.append(line)
    return segment.one_line(" ".join(kept), DOC)


def _text(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")
