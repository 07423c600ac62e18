"""Open live files that a source takes.

Owns the whole of such a file between open and close: reads and writes are of these bytes, and a flush that carries
written ones gives all of them to the source, whose refusal is the error of that close or fsync. Nothing of it is in the
store until the source has it.
"""

from __future__ import annotations

import struct
from contextlib import suppress

from avmfs import calls
from avmfs.errors import AvmError, BadHandle, TooBig
from avmfs.memory import Memory
from avmfs.vfs.virtual_handles import Remembering, VirtualHandle

_EDIT = struct.Struct("=cQ")  # what happened, and where; the bytes follow
_WRITE, _APPEND, _CUT = b"w", b"a", b"t"


class LiveHandle(VirtualHandle):
    """``node`` is the file's, ``data`` what it has. ``emptied``: it was, by its opening, which alone is no reason to
    write: a shell empties a file, closes a copy of the handle and only then writes."""

    def __init__(
        self, memory: Memory, node: int, parts: tuple[bytes, ...], data: bytes, readable: bool, *, emptied: bool
    ) -> None:
        super().__init__(memory, readable, True)
        self.node, self.parts, self.emptied = node, parts, emptied
        self.data = bytearray(data)
        self.written_to = self.refused = False
        if emptied:
            self._changed()
        self._most = 0 if memory.around.live is None else memory.around.live.most(parts)

    def read(self, offset: int, length: int) -> bytes:
        if not self.readable:
            raise BadHandle("not open for reading")
        with self.lock:
            return bytes(self.data[offset : offset + length])

    def write(self, offset: int, data: bytes, *, append: bool = False, sync: bool = False) -> int:
        with self.lock, Remembering(self.memory, every=True):
            self._check((len(self.data) if append else offset) + len(data))
            self.edit(self.framed(offset, data, append=append))
        if sync:
            self.fsync()
        return len(data)

    def truncate(self, size: int) -> None:
        with self.lock, Remembering(self.memory, every=True):
            calls.go_on()  # else it would come after what was written when it had been given up
            self._check(size)
            self.edit(self.cut(size))

    def _check(self, size: int) -> None:
        """Raises TooBig, now and from then on: half of a file is nothing to give to a source."""
        self.refused = self.refused or size > self._most
        if self.refused:
            raise TooBig(f"the source takes {self._most} bytes (max_bytes)")

    def framed(self, offset: int, data: bytes, *, append: bool) -> bytes:
        return _EDIT.pack(_APPEND if append else _WRITE, offset) + data

    @staticmethod
    def cut(size: int) -> bytes:
        """An edit as bytes, which a successor of this process makes again."""
        return _EDIT.pack(_CUT, size)

    def edit(self, framed: bytes) -> None:
        kind, at = _EDIT.unpack_from(framed)
        data = framed[_EDIT.size :]
        at = len(self.data) if kind == _APPEND else at
        self.data.extend(bytes(max(at - len(self.data), 0)))
        if kind == _CUT:
            del self.data[at:]
            self.emptied = True
        else:
            self.data[at : at + len(data)] = data
            self.written_to = True
        self._changed()

    def _changed(self) -> None:
        if (live := self.memory.around.live) is not None:
            live.changed[self.node] = self.data

    def flush(self) -> None:
        if self.written_to:
            self._give()

    def fsync(self) -> None:
        """Also what another thread is giving."""
        self._give()

    def release(self) -> None:
        """The last close. What a flush has refused is not tried again; that a file was only emptied is said now, when
        no error reaches anybody: /:error and the audit have it."""
        with suppress(AvmError):
            if self.emptied:
                self._give()
        if (live := self.memory.around.live) is not None and live.changed.get(self.node) is self.data:
            live.changed.pop(self.node, None)

    def _give(self) -> None:
        live = self.memory.around.live
        with self.lock, Remembering(self.memory, every=True):
            if self.refused or not (self.written_to or self.emptied):
                return
            given = self.written_to, self.emptied
            self.written_to = self.emptied = False
            try:
                if live is None or not live.takes(self.memory.who, self.parts):  # who may write can have changed since
                    raise BadHandle("no source takes this any more")
                live.write(self.memory.who, self.parts, bytes(self.data))
            except AvmError:
                if (call := getattr(calls.working, "call", None)) is not None and call.given_up:
                    self.written_to, self.emptied = given  # nobody was told: the next one asks again
                raise
