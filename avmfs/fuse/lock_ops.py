"""fcntl and flock requests, as calls of the mount's lock table.

A lock that has to be waited for is waited for where it may block, by any number of clients: what its holder asks before
it gives it back finds a thread. Giving it back needs none.
"""

from __future__ import annotations

import fcntl

from avmfs.fuse import protocol as p
from avmfs.fuse.handles import Handles
from avmfs.fuse.protocol import Op
from avmfs.fuse.request import Request
from avmfs.fuse.session import Session
from avmfs.vfs.locks import LockTable

_WHOLE = (1 << 63) - 1  # the kernel's OFFSET_MAX: a lock to the end of file


class LockOps:
    """See the module."""

    def __init__(self, session: Session, handles: Handles, locks: LockTable) -> None:
        self._handles, self._locks = handles, locks
        session.answers({Op.SETLK: self._unlock, Op.SETLKW: self._unlock})
        session.serves({Op.GETLK: self._getlk})
        session.serves({Op.SETLK: self._setlk, Op.SETLKW: session.apart(self._setlk)}, blocking=True)

    def _getlk(self, request: Request) -> bytes:
        fh, owner, start, end, kind, _, _, _ = p.LK_IN.unpack_from(request.body)
        handle = self._handles.file(fh)
        if handle is None or not (
            found := self._locks.conflict(handle.file.node, owner, kind, start, _length(start, end))
        ):
            return p.LK_OUT.pack(0, 0, fcntl.F_UNLCK, 0)
        kind, at, length, pid = found
        return p.LK_OUT.pack(at, _WHOLE if length == 0 else at + length - 1, kind, pid)

    def _unlock(self, unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        """Of flock(2) by SETLKW too."""
        body = bytes(view[p.IN_HEADER.size : size])
        if p.LK_IN.unpack_from(body)[4] != fcntl.F_UNLCK:
            return None
        self._setlk(Request(Op.SETLK, unique, node, 0, 0, body))
        return p.OUT_HEADER.pack(p.OUT_HEADER.size, 0, unique)

    def _setlk(self, request: Request) -> bytes:
        fh, owner, start, end, kind, pid, flags, _ = p.LK_IN.unpack_from(request.body)
        handle, wait = self._handles.file(fh), request.op == Op.SETLKW
        if handle is None:
            return b""
        node = handle.file.node
        if flags & p.LK_FLOCK:
            operation = {fcntl.F_RDLCK: fcntl.LOCK_SH, fcntl.F_WRLCK: fcntl.LOCK_EX, fcntl.F_UNLCK: fcntl.LOCK_UN}[kind]
            self._locks.set_whole(node, owner, operation | (0 if wait else fcntl.LOCK_NB))
        else:
            span, alone = (start, _length(start, end)), handle.file.is_shared_memory()
            self._locks.set_range(node, owner, kind, *span, wait=wait, through=fh, pid=pid, alone=alone)
        return b""


def _length(start: int, end: int) -> int:
    return 0 if end >= _WHOLE else end - start + 1
