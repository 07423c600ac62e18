"""Urgent mail inside file reads, on a read-only mount that asks for it (``urgent: inject``).

Owns which bytes such a mount shows for a file and how many it says there are. A file is its own bytes, below the banner
while urgent mail is unread: put together once at open, so that what is read fits the size that fstat(2) tells for as
long as it is open. Called by the tree, by what makes attributes, and by who takes a mount over. A writable mount never
injects: an editor would save the banner into the file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from avmfs.memory import Memory
from avmfs.node import Kind, Node
from avmfs.vfs.virtual_handles import VirtualHandle
from avmfs.views import Rendered
from avmfs.views.shape import whole

LARGEST: Final = 16 * 1024 * 1024  # a file above it is shown as it is: its bytes are not held for every reader


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
        return node.size + len(self._banner())

    def open(self, node: Node) -> InjectedHandle | None:
        """A handle for reading; None for what is read as it is. Raises NotFound for an unlinked file."""
        if not self.concerns(node):
            return None
        with self._memory.reading() as reader:
            data = whole(reader, reader.node(node.id))
        return self.opened(node.id, self._banner() + data)

    def opened(self, node: int, data: bytes) -> InjectedHandle:
        """A handle that shows these bytes, which it does for whoever takes it over, too."""
        with self._mutex:
            self._open.setdefault(node, []).append(len(data))
        return InjectedHandle(self._memory, node, data, self._closed)

    def _banner(self) -> bytes:
        return self._memory.banner().encode("utf-8", "surrogateescape")

    def _closed(self, node: int, size: int) -> None:
        with self._mutex:
            sizes = self._open[node]
            sizes.remove(size)
            if not sizes:
                del self._open[node]


class InjectedHandle(VirtualHandle):
    def __init__(self, memory: Memory, node: int, data: bytes, closed: Callable[[int, int], None]) -> None:
        super().__init__(memory, True, False)
        self.node, self.size, self.rendered = node, len(data), Rendered(data)
        self._closed = partial(closed, node, len(data))

    def release(self) -> None:
        self._closed()
