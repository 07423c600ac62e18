"""Open handles by number: what a file's or directory's ``fh`` stands for.

Owns the one table of what this mount has open; every handle gets its number in ``keep`` and loses it in ``drop``, and
nowhere else. Called by the operations on open files, directories and locks.
"""

from __future__ import annotations

import itertools

from avmfs.errors import BadHandle, Invalid
from avmfs.vfs.files import FileHandle
from avmfs.vfs.tree import Handle


class Handles:
    """One mount's open handles. Threads may share it: each step is one operation on a dict."""

    def __init__(self) -> None:
        self._next = itertools.count(1)
        self._open: dict[int, Handle] = {}

    def keep(self, handle: Handle) -> int:
        """A number for a new handle."""
        number = next(self._next)
        self._open[number] = handle
        return number

    def __getitem__(self, number: int) -> Handle:
        try:
            return self._open[number]
        except KeyError:
            raise BadHandle() from None

    def find(self, number: int) -> Handle | None:
        return self._open.get(number)

    def file(self, number: int) -> FileHandle:
        """The handle, which must be a real file's. Raises Invalid."""
        handle = self[number]
        if not isinstance(handle, FileHandle):
            raise Invalid("a view cannot be locked")
        return handle

    def drop(self, number: int) -> None:
        self._open.pop(number, None)

    def __len__(self) -> int:
        return len(self._open)
