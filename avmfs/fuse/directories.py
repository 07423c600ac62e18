"""Operations on open directories.

Owns listings under way. Listing runs in the session's pool when it has to ask the store: a large directory takes its
time.
"""

from __future__ import annotations

import itertools
import stat

from avmfs.fuse import protocol as p
from avmfs.fuse.numbers import Numbers
from avmfs.fuse.protocol import Op
from avmfs.fuse.session import Later, Request, Session
from avmfs.vfs.address import Address
from avmfs.vfs.tree import Tree


class Directories:
    """See the module."""

    def __init__(self, session: Session, tree: Tree, numbers: Numbers) -> None:
        self._session, self._tree, self._numbers = session, tree, numbers
        self._next = itertools.count(1)
        self._listings: dict[int, tuple[Address, list[tuple[bytes, int, int]]]] = {}
        session.serves({
            Op.OPENDIR: self._opendir, Op.READDIR: self._readdir, Op.RELEASEDIR: self._releasedir,
            Op.FSYNCDIR: lambda request: b"",
        })  # fmt: skip

    def _opendir(self, request: Request) -> bytes:
        number = next(self._next)
        self._listings[number] = (self._numbers.address(request.node), [])
        return p.OPEN_OUT.pack(number, 0, 0)

    def _readdir(self, request: Request) -> bytes:
        """Streams: an entry's offset is its place in a list that is made when the reader (re)starts at 0."""
        fh, offset, size, _, _, _, _ = p.READ_IN.unpack_from(request.body)
        where, entries = self._listings[fh]
        if offset == 0:
            if not self._session.may_block():
                raise Later  # a large directory takes its time
            entries = [(b".", 0, stat.S_IFDIR), (b"..", 0, stat.S_IFDIR), *self._tree.names(where)]
            self._listings[fh] = (where, entries)
        reply = bytearray()
        for place in range(offset, len(entries)):
            name, ino, kind = entries[place]
            if len(reply) + p.DIRENT.size + len(name) + 8 > size:
                break
            reply += p.dirent(ino or 1, place + 1, kind, name)
        return bytes(reply)

    def _releasedir(self, request: Request) -> bytes:
        self._listings.pop(p.RELEASE_IN.unpack_from(request.body)[0], None)
        return b""
