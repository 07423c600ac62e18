"""The files that one mount has open, by node.

Owns the table of ``OpenFile`` and the one rule that joins it with the store: what a node is now is what the store says
with the uncommitted edits of this mount laid over it. Called by the tree from many threads. Knows nothing of names.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from avmfs.errors import AvmError, Stale, StoreFailed
from avmfs.memory import Memory
from avmfs.node import Node
from avmfs.vfs.open_file import FileHandle, Keep, OpenFile, process_of

log = logging.getLogger(__name__)

_NUMBERS = (1 << 63) - 1
_Found = TypeVar("_Found", Node, Node | None)


class OpenFiles:
    """Thread-safe. An OpenFile lives as long as one handle on it."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._files: dict[int, OpenFile] = {}
        self._mutex = threading.Lock()
        self._commits = object()  # another object after each commit of edits
        self._numbers = itertools.count(secrets.randbits(63))  # of writing handles, not to be met with in another mount
        self.keep: Keep | None = None
        self.aside: Callable[[], None] = lambda: None
        """Called in a thread that has to wait for another one's commit, before it does."""
        self.gave_up: Callable[[int], None] = lambda node: None
        """Called with a node whose edits could not be committed and are no more, or whose bytes may be others though
        its size and time are as they were: what was told of it is not so."""
        self.changed: Callable[[int], None] = lambda node: None
        """Called with a node whose commit may have made it otherwise than this mount had it."""
        self.asker: Callable[[], int] = lambda: 0
        """See ``Files``."""

    def handle(
        self,
        node: int,
        *,
        readable: bool,
        writable: bool,
        append: bool,
        number: int = -1,
        in_trash: bool | None = None,
    ) -> FileHandle:
        if number < 0:  # who only reads commits nothing
            number = self.number() if writable else 0
        with self._mutex:
            file = self.reopened(node)
            if in_trash is not None:
                file.in_trash = in_trash
            elif not file.handles:
                file.in_trash = self._in_trash(node)
            return FileHandle(file, number, readable, writable, append, self)

    def number(self) -> int:
        """What the store knows a writing handle by."""
        return next(self._numbers) & _NUMBERS

    def reopen(
        self, node: int, readable: bool, writable: bool, append: bool, number: int, *, in_trash: bool
    ) -> FileHandle:
        """A handle that a predecessor of this process had given out. Asks nothing of the store."""
        how = {"readable": readable, "writable": writable, "append": append, "in_trash": in_trash}
        handle = self.handle(node, number=number, **how)
        handle.file.unsynced = handle.file.unsynced or writable  # for all that is known
        return handle

    def reopened(self, node: int) -> OpenFile:
        """A file, whether somebody has it open or (`finish_abandoned`) a predecessor left edits of it."""
        file = self._files.get(node)
        if file is None:
            # The last two are given when a successor has restored its files.
            how = (self._committed, self.keep, lambda: self.aside(), lambda node: self.changed(node))
            file = self._files[node] = OpenFile(self._memory, node, *how)
        return file

    def finish_abandoned(self) -> None:
        """Commit what a predecessor left of files that nobody has open."""
        with self._mutex:
            abandoned = [file for file in self._files.values() if not file.handles]
            for file in abandoned:
                file.handles += 1  # ours, for as long as this takes
        for file in abandoned:
            self._commit_or_tell(file, "lost")
            self.close(file)

    def close(self, file: OpenFile) -> None:
        """One handle less."""
        with self._mutex:
            file.handles -= 1
            if file.handles:
                return
            self._files.pop(file.node, None)
            lost = file.written != 0  # it could not be committed, and nobody is left to be told
            if lost:
                file.give_up(StoreFailed("nobody has it open any more"))
        if lost:
            self.gave_up(file.node)

    def has(self, node: int) -> bool:
        return node in self._files

    def _in_trash(self, node: int) -> bool:
        store, who = self._memory.store, self._memory.who
        try:
            return store.cached_in_trash(who, store.cached_node(who, node).scope)
        except Stale:
            return False

    def _removed(self, file: OpenFile, node: Node) -> bool:
        """Return whether a file was open here when it was removed, to the trash: for those who have it open it has no
        name any more, as elsewhere. A program that locks a file looks whether that is so."""
        if not self._memory.store.cached_in_trash(self._memory.who, node.scope):
            file.in_trash = False
            return False
        if not file.in_trash and file.removed[0] != node.parent:
            with self._memory.reading() as reader:
                file.removed = (node.parent, reader.was_removed(node.id))
        return not file.in_trash and file.removed[1]

    def nodes(self) -> set[int]:
        with self._mutex:
            return set(self._files)

    def overlaid(self, peek: Callable[[], _Found]) -> tuple[_Found, _Found]:
        """What ``peek`` finds in the store, and that with the uncommitted edits. Edits that became the store's between
        the two steps would be missing from both: look again."""
        while True:
            commits = self._commits
            node = peek()
            file = self._files.get(node.id) if node is not None else None
            seen = node if node is None or file is None else file.overlaid(node)
            if seen is not None and file is not None and self._removed(file, seen):
                seen = seen._replace(parent=None)
            if commits is self._commits:
                return node, seen

    def edited(self, node: int) -> bool:
        """Return whether this mount has the node otherwise than the store."""
        file = self._files.get(node)
        return file is not None and file.written != 0

    def commit(self, node: int) -> None:
        """Make this mount's edits of a node durable, whichever handles they came through."""
        if (file := self._files.get(node)) is not None:
            file.commit(self.number())

    def publish(self, node: int) -> None:
        """A lock of a file is about to go: whoever gets it next is to find what was written under it, by whomever to
        that file, and to others by the process that lets it go. What cannot be committed is given up, and the next
        flush says so."""
        dirty = [file for file in list(self._files.values()) if file.edits]
        process = process_of(self.asker()) if dirty else 0
        for file in sorted(dirty, key=lambda file: file.written):
            for handle in list(file.dirtied):
                if file.node == node or not _is_anothers(handle.asker, process):
                    with suppress(AvmError):  # as ``refused``
                        file.settle(handle)
                    break

    def commit_all(self) -> None:
        """The mount ends: whatever was written and not yet flushed becomes durable. What cannot is told in the log; who
        has it open is told by its close, if that still reaches us."""
        for file in list(self._files.values()):
            self._commit_or_tell(file, "not kept")

    def _commit_or_tell(self, file: OpenFile, fate: str) -> None:
        """Where nobody waits for an answer, the log has it: what becomes of edits that cannot be committed."""
        try:
            file.commit(self.number())
        except AvmError as e:
            log.error("edits of node %d are %s: %s", file.node, fate, e)

    def _committed(self) -> None:
        self._commits = object()


def _is_anothers(thread: int, process: int) -> bool:
    """Return whether a thread is known to be another process' than that."""
    return process > 0 and Path(f"/proc/{thread}").exists() and not Path(f"/proc/{process}/task/{thread}").exists()
