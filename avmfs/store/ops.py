"""What rows of the log mean for who remembers nodes and names (``peek``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from avmfs.node import Kind, Node
from avmfs.store.schema import NOBODYS

_RULES: Final = "policy"  # of nobody's rows the one that says that other rules are in force
_ONE_NODE: Final = frozenset(("write", "attributes", "tags", "meta", "links", "ttl", "shared"))
DIRECTORY_NAMES: Final = frozenset(("mkdir", "rmdir"))
MOVES: Final = frozenset(("create", "remove", "rename"))
NAMES: Final = DIRECTORY_NAMES | MOVES
_TOLD: Final = _ONE_NODE | NAMES
_NOTHING: Final = frozenset(("tell",))
MAKES: Final = frozenset(("create", "mkdir"))
BYTES_ALONE: Final = frozenset(("write", "attributes", "tags", "meta", "links"))  # who may see it, and where, stays so


def done_to(rows: Sequence[Sequence[Any]]) -> dict[int, list[str]] | None:
    """What has happened to which node, of rows that begin with (seq, scope, op, node); None when the log does not
    say enough."""
    ops: dict[int, list[str]] = {}
    for row in rows:
        op = row[2]
        if row[1] == NOBODYS:
            if op == _RULES:
                return None
        elif op in _TOLD:
            ops.setdefault(row[3], []).append(op)
        elif op not in _NOTHING:
            return None
    return ops


class Told(NamedTuple):
    """A changed node, as far as it matters here; None where it is gone."""

    node: int
    parent: int | None
    kind: int | None
    scope: int


def concerned(rows: Sequence[Sequence[Any]], changed: Iterable[Told]) -> tuple[bool, set[int]]:
    """Whom a commit concerns, of rows as in ``done_to`` and all nodes that are otherwise since then. True: everybody,
    since more may be otherwise than these nodes. Else those who remember one of the nodes or directories with these
    numbers: to everybody else it is as if it had not been."""
    named: set[int] = set()
    written: set[int] = set()
    everybody = False
    for row in rows:
        op = row[2]
        if row[1] == NOBODYS:
            everybody |= op == _RULES
        elif op in BYTES_ALONE:
            written.add(row[3])
        elif op in MOVES:
            named.add(row[3])
        elif op not in _NOTHING:
            everybody = True
    numbers: set[int] = set()
    for node, parent, kind, _ in changed:
        numbers.add(node)
        if node in named and (kind is None or kind == Kind.DIRECTORY):
            everybody = True  # with all that is below it
        # Where a name came or went the directory is among the nodes; one that stays where it is has only other times.
        elif parent is not None and (node in named or (node not in written and kind != Kind.DIRECTORY)):
            numbers.add(parent)
    return everybody, numbers


def last_name(path: bytes) -> bytes:
    return path[path.rfind(b"/") + 1 :]


def same_place(one: Node, other: Node) -> bool:
    """May the same see both, for as long, and by the same name?"""
    return (
        one.parent == other.parent and one.name == other.name and one.scope == other.scope
        and one.expires == other.expires
    )  # fmt: skip
