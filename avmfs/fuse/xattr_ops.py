"""Extended attributes, on a mount that offers them; on any other the kernel asks once and never again.

Owns the shape of these requests; what attributes there are is ``vfs.xattrs``.
"""

from __future__ import annotations

from avmfs.errors import NoAttribute, TooSmall
from avmfs.fuse import protocol as p
from avmfs.fuse.inodes import Inodes
from avmfs.fuse.protocol import Op
from avmfs.fuse.request import Request
from avmfs.fuse.session import Session
from avmfs.vfs import xattrs
from avmfs.vfs.tree import Tree

_CREATE, _REPLACE = 1, 2  # flags of setxattr(2)


class XattrOps:
    """See the module."""

    def __init__(self, session: Session, tree: Tree, numbers: Inodes) -> None:
        self._tree, self._numbers = tree, numbers
        session.answers({Op.GETXATTR: _foreign})
        session.serves({Op.GETXATTR: self._get, Op.LISTXATTR: self._list})
        session.serves({Op.SETXATTR: self._set, Op.REMOVEXATTR: self._remove}, blocking=True)

    def _get(self, request: Request) -> bytes:
        size, _ = p.GETXATTR_IN.unpack_from(request.body)
        name = request.body[p.GETXATTR_IN.size :].rstrip(b"\0")
        return _sized(xattrs.get(self._tree.memory, self._numbers.address(request.node), name), size)

    def _list(self, request: Request) -> bytes:
        size, _ = p.GETXATTR_IN.unpack_from(request.body)
        found = xattrs.names(self._tree.memory, self._numbers.address(request.node))
        return _sized(b"".join(name + b"\0" for name in found), size)

    def _set(self, request: Request) -> bytes:
        size, flags = p.SETXATTR_IN.unpack_from(request.body)
        name, _, value = request.body[p.SETXATTR_IN.size :].partition(b"\0")
        memory, found = self._tree.memory, self._numbers.address(request.node)
        if memory.store.repeats():  # a killed mount found it right, and set it
            flags = 0
        self._tree.require_writable()
        create, replace = bool(flags & _CREATE), bool(flags & _REPLACE)
        xattrs.put(memory, found, name, value[:size], create=create, replace=replace)
        return b""

    def _remove(self, request: Request) -> bytes:
        self._tree.require_writable()
        memory, found = self._tree.memory, self._numbers.address(request.node)
        xattrs.remove(memory, found, request.body.rstrip(b"\0"), again=memory.store.repeats())
        return b""


def _foreign(unique: int, node: int, view: memoryview, size: int) -> bytes | None:
    """The kernel itself asks for security.* with every write."""
    name = p.IN_HEADER.size + p.GETXATTR_IN.size
    if bytes(view[name : name + len(xattrs.PREFIX)]) == xattrs.PREFIX:
        return None
    return p.OUT_HEADER.pack(p.OUT_HEADER.size, -NoAttribute.code, unique)


def _sized(value: bytes, size: int) -> bytes:
    """The value, or how long it is when the caller only asks that. Raises TooSmall."""
    if size == 0:
        return p.GETXATTR_OUT.pack(len(value), 0)
    if len(value) > size:
        raise TooSmall(f"the value has {len(value)} bytes, there is room for {size}")
    return value
