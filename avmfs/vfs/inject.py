"""Urgent mail inside file reads, on a read-only mount that asks for it (``urgent: inject``).

Owns which bytes such a mount shows for a file and how many it says there are. A file is read as its ``:annotated``
view: rendered once at open, so that what is read fits the size that fstat(2) tells for as long as it is open. Called by
the tree and by what makes attributes. A writable mount never injects: an editor would save the banner into the file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from avmfs import paths, views
from avmfs.memory import Memory
from avmfs.node import Kind, Node
from avmfs.vfs.virtual_handles import ViewHandle
from avmfs.views import View

LARGEST: Final = 16 * 1024 * 1024  # a file above it is shown as it is: its bytes are not held for every reader
VIEW: Final = "annotated"


class Injection:
    """One mount's. Thread-safe."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._mutex = threading.Lock()
        self._open: dict[int, list[int]] = {}  # node -> the sizes that its open handles show, newest last

    def concerns(self, node: Node) -> bool:
        return node.kind is Kind.FILE and node.size <= LARGEST

    def size(self, node: Node) -> int:
        """What stat(2) says: of an open file what its newest reader reads, else what one would read now."""
        if not self.concerns(node):
            return node.size
        with self._mutex:
            if sizes := self._open.get(node.id):
                return sizes[-1]
        return node.size + len(self._memory.banner().encode("utf-8", "surrogateescape"))

    def open(self, node: Node) -> InjectedHandle | None:
        """A handle for reading; None for what is read as it is. Raises NotFound for an unlinked file."""
        view = views.find(VIEW, node)
        if view is None or not self.concerns(node):
            return None
        with self._memory.reading() as reader:
            path = reader.path(node.id)
        handle = InjectedHandle(self._memory, view, node, path, self._closed)
        with self._mutex:
            self._open.setdefault(node.id, []).append(handle.size)
        return handle

    def _closed(self, node: int, size: int) -> None:
        with self._mutex:
            sizes = self._open[node]
            sizes.remove(size)
            if not sizes:
                del self._open[node]


class InjectedHandle(ViewHandle):
    """A file as its annotated view, which it is for whoever takes it over, too."""

    def __init__(self, memory: Memory, view: View, node: Node, path: bytes, closed: Callable[[int, int], None]) -> None:
        super().__init__(memory, view, node, path, paths.ViewName(node.name, view.name), True, False)
        self.size = 0 if self.rendered is None else len(self.rendered.data)
        self._closed = closed

    def release(self) -> None:
        self._closed(self.context.node.id, self.size)
