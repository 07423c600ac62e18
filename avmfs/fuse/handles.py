"""Open handles by number: what a file's or directory's ``fh`` stands for.

Owns the one table of what this mount has open; every handle gets its number in ``keep`` and loses it in ``drop``, and
nowhere else. Called by the operations on open files, directories and locks.
"""

from __future__ import annotations

from collections.abc import Callable

from avmfs.errors import BadHandle, Invalid
from avmfs.fuse import protocol as p
from avmfs.fuse.handover import Handover
from avmfs.vfs.open_file import FileHandle
from avmfs.vfs.tree import Handle
from avmfs.vfs.virtual_handles import PastHandle, QuestionHandle, VirtualHandle


class Handles:
    """One mount's open handles. Threads may share it: each step is one operation on a dict."""

    def __init__(self, continuity: Handover) -> None:
        self._continuity = continuity
        self._open: dict[int, Handle] = continuity.handles
        self.find: Callable[[int], Handle | None] = self._open.get

    def keep(self, handle: Handle, unique: int) -> int:
        """A number for a new handle, which that request asked for."""
        number = self._continuity.opened(handle, unique)
        self._open[number] = handle
        return number

    def given(self, unique: int) -> int | None:
        """The handle that a predecessor had made for this request, before it was killed."""
        return self._continuity.given(unique) if unique >= p.RESENT else None

    def went_on(self, number: int, handle: VirtualHandle, unique: int = 0, data: bytes = b"") -> None:
        """Something was done to a virtual handle; ``data`` was written to it by that request."""
        if isinstance(handle, QuestionHandle):  # first: what counts as asked is there
            self._continuity.asked()
        self._continuity.progress(number, handle, unique, data)

    def reached(self, number: int, count: int) -> None:
        """So many bytes of a view were handed out."""
        self._continuity.reached(number, count)

    def asked(self) -> None:
        """Questions have changed."""
        self._continuity.asked()

    def written(self, number: int, unique: int) -> bool:
        """Return whether a predecessor took the bytes of this WRITE to a virtual handle."""
        return unique >= p.RESENT and self._continuity.written(number, unique)

    def __getitem__(self, number: int) -> Handle:
        try:
            return self._open[number]
        except KeyError:
            raise BadHandle() from None

    def file(self, number: int) -> FileHandle | None:
        """The handle of a real file, which is to be locked; None for a file of the past: nobody changes it, whoever has
        a lock of it. Raises Invalid."""
        handle = self[number]
        if isinstance(handle, PastHandle):
            return None
        if not isinstance(handle, FileHandle):
            raise Invalid("a view cannot be locked")
        return handle

    def drop(self, number: int) -> None:
        self._open.pop(number, None)
        self._continuity.closed(number)

    def __len__(self) -> int:
        return len(self._open)
