"""Rows of the table node as Node, and what caches have to know of a row of the log."""

from __future__ import annotations

from typing import Any

from avmfs.node import Kind, Node

LogRow = tuple[int, int, str, int]
"""What caches have to know of a row of the log: seq, scope, op, node."""

_KINDS = {int(kind): kind for kind in Kind}
NODE = "id, parent, name, kind, mode, uid, gid, size, atime, mtime, ctime, scope, document, expires"
NODE_JOINED = ", ".join(f"node.{column}" for column in NODE.split(", "))  # where other tables are asked as well
SEEN_JOINED = "node.scope in (select value from json_each(:scopes)) and (node.expires is null or node.expires > :now)"


def members(shared: str | None) -> tuple[str, ...] | None:
    """Whom a document is limited to, from its column: "" is nobody, null all."""
    return None if shared is None else tuple(filter(None, shared.split(",")))


def node_of(row: tuple[Any, ...]) -> Node:
    """A Node from a row of the columns NODE."""
    id_, parent, name, kind, mode, uid, gid, size, atime, mtime, ctime, scope, document, expires = row
    return Node(
        id_,
        parent,
        name,
        _KINDS[kind],
        mode,
        uid,
        gid,
        size,
        mtime if atime is None else atime,
        mtime,
        ctime,
        scope,
        document,
        expires,
    )
