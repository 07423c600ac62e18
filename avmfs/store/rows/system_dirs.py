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
