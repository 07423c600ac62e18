"""What rows of the log mean for who remembers nodes and names (``peek``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from avmfs.node import Node
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


def last_name(path: bytes) -> bytes:
    return path[path.rfind(b"/") + 1 :]


def same_place(one: Node, other: Node) -> bool:
    """May the same see both, for as long, and by the same name?"""
    return (
        one.parent == other.parent and one.name == other.name and one.scope == other.scope
        and one.expires == other.expires
    )  # fmt: skip
