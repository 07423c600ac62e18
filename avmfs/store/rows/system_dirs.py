"""Directories that every tree has: /, /memory, /memory/shared, /memory/private and each agent's space in it.

Owns which they are. Called by the commands that move and remove, and by doors before they begin with what is below.
"""

from __future__ import annotations

from collections.abc import Callable

from avmfs import paths
from avmfs.errors import NotPermitted
from avmfs.node import Node
from avmfs.store.schema.tables import PRIVATE


def refuse_fixed(node: Node, path: Callable[[], bytes]) -> None:
    """Raises NotPermitted for one of them: they stay where they are. ``path`` is asked only then."""
    if node.id < 16 or node.parent == PRIVATE:
        raise NotPermitted("part of every tree; what is in it can be moved and removed", paths.text(path()))


def refuse_closing(node: Node, mode: int | None, uid: int | None, gid: int | None, path: Callable[[], bytes]) -> None:
    """Raises NotPermitted where one of them, which all agents go through, would get another owner or fewer bits."""
    if node.id < 16 and (
        node.mode & 0o777 & ~(node.mode if mode is None else mode)
        or uid not in (None, node.uid)
        or gid not in (None, node.gid)
    ):
        raise NotPermitted("part of every tree: agents go through it, and its permissions stay", paths.text(path()))
