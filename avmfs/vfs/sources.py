"""Live content as the tree needs it: what a source has is in the store before a name is looked up, a file is opened or
a directory is listed.

Called by ``tree``, by the front ends, which may not wait where they read requests (``awaits``), and by the door before
a method that names a path (``bring``). Asks ``providers.live``; nothing may be read meanwhile.
"""

from __future__ import annotations

from avmfs import paths
from avmfs.errors import Denied, NotDirectory, NotFound, Stale
from avmfs.memory import Memory
from avmfs.node import Kind, Node
from avmfs.vfs import virtual_handles
from avmfs.vfs.address import Address, Real, ViewOf
from avmfs.vfs.attributes import Attributes
from avmfs.vfs.live_handle import LiveHandle


class Sources:
    """Of one tree."""

    def __init__(self, memory: Memory) -> None:
        self._memory, self._live = memory, memory.around.live
        self.any = self._live is not None
        self.changed: dict[int, bytearray] = {} if self._live is None else self._live.changed
        self._errors = virtual_handles.Remembering(memory, every=True)

    def awaits(self, node: Node, name: bytes = b"") -> bool:
        """Return whether a source may have to be asked before this node is read, or this name in it is looked up."""
        memory = self._memory
        if self._live is None or not memory.store.cached_live(memory.who, node.scope):
            return False
        return not name or memory.store.cached_child(memory.who, node.id, name) is None

    def concern(self, number: int) -> bool:
        """``awaits``, by its number; one that is gone may have been theirs."""
        try:
            return self.awaits(self._memory.store.cached_node(self._memory.who, number))
        except Stale:
            return True

    def appear(self, directory: Node, name: bytes) -> None:
        """Before a name, or a view of one, is looked up. Raises what the source comes to."""
        if self._live is None or not self.awaits(directory, name) or len(name) > paths.NAME_MAX:
            return
        view = paths.parse_view(name)
        base = name if view is None else view.base
        if base and (view is None or self.awaits(directory, base)):
            with self._errors:
                self._live.appear(self._memory.who, (*self._parts(directory), base))

    def fresh(self, found: Address) -> None:
        """Before it is opened. Raises what the source comes to."""
        if isinstance(found, ViewOf) and found.node.kind is Kind.FILE and not found.view.shows_bytes:
            return
        if self._live is not None and isinstance(found, Real | ViewOf) and self.awaits(found.node):
            with self._errors:
                self._live.bring(self._parts(found.node), found.node.kind is Kind.DIRECTORY)

    def taken(self, node: Node, name: bytes = b"") -> tuple[bytes, ...] | None:
        """Where a source takes what is written to this node, or to ``name`` in it; None where no source has it. Raises
        Denied where this agent may only read, or the source does."""
        memory = self._memory
        if self._live is None or not memory.store.cached_live(memory.who, node.scope):
            return None
        parts = (*self._parts(node), paths.check_name(name)) if name else self._parts(node)
        if not self._live.takes(memory.who, parts):
            raise Denied("no source takes what is written here", paths.text(parts[-1]))
        return parts

    def place(self, directory: Node, name: bytes, parts: tuple[bytes, ...]) -> Node:
        """A file of that name, for what is about to be written. Raises Stale where it has gone again."""
        assert self._live is not None
        self._live.place(parts)
        made = self._memory.store.cached_child(self._memory.who, directory.id, name)
        if made is None or made.kind is not Kind.FILE:
            raise Stale()
        return made

    def handle(self, node: Node, parts: tuple[bytes, ...], readable: bool, *, new: bool) -> LiveHandle:
        """``new``: it begins empty, whatever the source has."""
        assert self._live is not None
        data = b""
        if not new:
            with self._memory.reading() as reader:
                data = reader.read(node.id, 0, reader.node(node.id).size)
        return LiveHandle(self._memory, node.id, parts, data, readable, emptied=new)

    def changing(self, found: Attributes, handle: object) -> Attributes:
        """stat(2) of a file that is being written, for who has it open by a handle. None: nobody knows who asks, and
        it is as who has changed it last has it."""
        data = handle.data if isinstance(handle, LiveHandle) else None if handle else self.changed.get(found.ino)
        return found if data is None else found._replace(size=len(data))

    def _parts(self, node: Node) -> tuple[bytes, ...]:
        with self._memory.reading() as reader:
            return paths.split(reader.path(node.id))


def bring(memory: Memory, path: bytes) -> None:
    """What providers have of a path is in the store afterwards, and fresh. Raises what the source comes to."""
    live, parts = memory.around.live, paths.split(path)
    if live is None or memory.then is not None or not path.startswith(b"/") or not live.has(parts):
        return
    if (view := paths.parse_view(parts[-1])) is not None:
        parts = (*parts[:-1], view.base) if view.base else parts[:-1]
    for length in range(1, len(parts) + 1):
        with memory.reading() as reader:
            try:
                found: Node | None = memory.resolve(reader, paths.join(parts[:length]))
            except (NotFound, NotDirectory):
                found = None
        if found is None and not live.appear(memory.who, parts[:length]):
            return
        if found is not None and length == len(parts) and memory.store.cached_live(memory.who, found.scope):
            live.bring(parts, found.kind is Kind.DIRECTORY)
