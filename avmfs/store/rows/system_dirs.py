"""Directories that every tree has: /, /memory, /memory/shared, /memory/private and each agent's space in it; and the
ways to what is put away, /trash/private, /archive/private and the mirrors beside them, which come with the first of it.

Owns which they are. Called by the commands that move and remove, and by doors before they begin with what is below.
"""

from __future__ import annotations

from collections.abc import Callable

from avmfs import paths
from avmfs.errors import NotPermitted
from avmfs.node import Kind, Node
from avmfs.store.schema.tables import ARCHIVE, PRIVATE, TRASH


def is_everybodys(node: Node) -> bool:
    """Return whether it is one of them, but for the agents' own spaces: one that all agents go through."""
    return node.id < 16 or (
        node.parent in (TRASH, ARCHIVE)
        and node.kind is Kind.DIRECTORY
        and paths.origin((paths.TRASH, node.name)) in ((paths.MEMORY,), (paths.MEMORY, paths.PRIVATE))
    )


def refuse_fixed(node: Node, path: Callable[[], bytes]) -> None:
    """Raises NotPermitted for one of them: they stay where they are, but for a mirror: what is moved with it gets the
    rights of where it is then. ``path`` is asked only then."""
    if node.parent == PRIVATE or (is_everybodys(node) and (node.id < 16 or node.name == paths.PRIVATE)):
        raise NotPermitted("part of every tree; what is in it can be moved and removed", paths.text(path()))


def refuse_closing(node: Node, mode: int | None, uid: int | None, gid: int | None, path: Callable[[], bytes]) -> None:
    """Raises NotPermitted where one of them would get an owner, or its owner fewer bits. Nobody owns it, so that each
    mount shows its own user: what others of that machine may is for whoever changes it to say."""
    if is_everybodys(node) and ((mode is not None and node.mode & 0o700 & ~mode) or uid is not None or gid is not None):
        raise NotPermitted("part of every tree, and all agents go through it", paths.text(path()))
