"""One agent's tree as operations on paths and handles.

Owns the translation of filesystem operations into store commands and handles, attributes included. Called by
a front end from many threads at once; every method either returns or raises a domain error with the
exact errno. Slow views simply take their time: whoever calls must not be the only thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from avmfs import paths, views
from avmfs.errors import (
    Denied,
    Invalid,
    IsDirectory,
    NotDirectory,
    NotFound,
    NotPermitted,
    NotSupported,
    ReadOnly,
)
from avmfs.memory import Memory
from avmfs.node import Kind, Node
from avmfs.store.protocol import Reader
from avmfs.store.schema import ROOT
from avmfs.vfs import address, nodes
from avmfs.vfs.address import ASK, Address, Alias, Mailbox, Place, Question, Real, ViewOf
from avmfs.vfs.files import FileHandle, OpenFile

Handle = FileHandle | nodes.VirtualHandle
_TYPE = {Kind.FILE: stat.S_IFREG, Kind.DIRECTORY: stat.S_IFDIR, Kind.SYMLINK: stat.S_IFLNK}


@dataclass(frozen=True, slots=True)
class Attributes:
    """stat(2): times in ns, ``blocks`` of 512 bytes."""

    ino: int
    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    atime: int
    mtime: int
    ctime: int

    @property
    def blocks(self) -> int:
        return (self.size + 511) // 512


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose process asks; recorded as owner where it is not the mount's own."""

    uid: int
    gid: int


class Tree:
    """See the module. ``uid``/``gid`` own what nobody else does."""

    def __init__(self, memory: Memory, *, uid: int, gid: int, read_only: bool = False, inject: bool = False) -> None:
        self.memory = memory
        self.owner = Caller(uid, gid)
        self._read_only = read_only
        self._inject = inject and read_only
        self._open: dict[int, OpenFile] = {}
        self._mutex = threading.Lock()
        self._holder = secrets.token_bytes(16)
        self._born = memory.now()

    # Looking ---------------------------------------------------------------------------------------------

    def attributes(self, path: bytes) -> Attributes:
        with self._errors(), self.memory.reading() as reader:
            found = address.locate(self.memory, reader, path)
            if isinstance(found, Real):
                return self._of_node(reader, self._overlaid(found.node))
            return self._of_virtual(found, path)

    def attributes_of(self, handle: FileHandle) -> Attributes:
        """fstat(2): works for a file that has no name any more."""
        with self.memory.reading() as reader:
            return self._of_node(reader, handle.file.overlaid(reader.open_node(handle.file.node)))

    def names(self, path: bytes) -> list[tuple[bytes, int, int]]:
        """(name, ino, mode) of all entries but . and .., in order of name; views are never among them."""
        with self._errors(), self.memory.reading() as reader:
            found = address.locate(self.memory, reader, path)
            if isinstance(found, Place):
                return self._names_of_place(reader, found)
            if not isinstance(found, Real) or found.node.kind is not Kind.DIRECTORY:
                raise NotDirectory(path=paths.printable(path))
            entries = [(node.name, node.id, _TYPE[node.kind]) for node in reader.children(found.node.id)]
            if found.node.id == ROOT:
                entries += [(alias.name, _ino(alias.name), stat.S_IFLNK) for alias in address.aliases(self.memory)]
                entries.append((paths.TELL, _ino(paths.TELL), stat.S_IFDIR))
                entries.sort()
            return entries

    def readlink(self, path: bytes) -> bytes:
        with self._errors(), self.memory.reading() as reader:
            found = address.locate(self.memory, reader, path)
            if isinstance(found, Alias):
                return found.target
            if isinstance(found, Real) and found.node.kind is Kind.SYMLINK:
                return reader.target(found.node.id)
            raise Invalid("not a symlink", paths.printable(path))

    # Names -----------------------------------------------------------------------------------------------

    def mkdir(self, path: bytes, mode: int, caller: Caller) -> None:
        with self._errors():
            parent, name = self._parent(path)
            self.memory.submit("mkdir", parent=parent, name=name, mode=mode, **self._owned(caller))

    def symlink(self, path: bytes, target: bytes, caller: Caller) -> None:
        with self._errors():
            parent, name = self._parent(path)
            self.memory.submit("symlink", parent=parent, name=name, target=target, **self._owned(caller))

    def unlink(self, path: bytes) -> None:
        with self._errors():
            parts = paths.split(path)
            if len(parts) == 2 and parts[0] == ASK:
                with self.memory.mutex:
                    if self.memory.questions.pop(paths.text(parts[1]), None) is None:
                        raise NotFound(path=paths.printable(path))
                return
            parent, name = self._parent(path, removing=True)
            self.memory.submit("unlink", parent=parent, name=name)

    def rmdir(self, path: bytes) -> None:
        with self._errors():
            parent, name = self._parent(path, removing=True)
            self.memory.submit("rmdir", parent=parent, name=name)

    def rename(self, old: bytes, new: bytes, flags: int = 0) -> None:
        """rename(2). What this mount still holds uncommitted of the file is committed first: a save by rename is
        complete on every mount when it returns."""
        with self._errors():
            here, name = self._parent(old, removing=True)
            there, new_name = self._parent(new)
            with self.memory.reading() as reader:
                moved = reader.child(here, name)
            if moved is not None and (file := self._open.get(moved.id)) is not None:
                file.commit(secrets.randbits(63))
            self.memory.submit("rename", parent=here, name=name, new_parent=there, new_name=new_name, flags=flags)

    def set_attributes(
        self, path: bytes, handle: Handle | None, *, mode: int | None = None, uid: int | None = None,
        gid: int | None = None, atime: int | None = None, mtime: int | None = None,
    ) -> None:  # fmt: skip
        """chmod, chown, utimens; None leaves a value. Uncommitted edits are committed first, so that a time set
        after a write stays."""
        with self._errors():
            if isinstance(handle, FileHandle):
                node = handle.file.node
            elif handle is not None:
                if isinstance(handle, nodes.ViewHandle):
                    handle.touch()
                return
            else:
                found = self._locate(path)
                if isinstance(found, ViewOf):
                    self._touch(found, path)
                    return
                if not isinstance(found, Real):
                    raise NotPermitted(path=paths.printable(path))
                node = found.node.id
            self._writable()
            if (file := self._open.get(node)) is not None:
                file.commit(secrets.randbits(63))
            self.memory.submit("set_attributes", node=node, mode=mode, uid=uid, gid=gid, atime=atime, mtime=mtime)

    # Bytes -----------------------------------------------------------------------------------------------

    def open(self, path: bytes, flags: int) -> Handle:
        """open(2) of what exists. Raises Denied, ReadOnly, IsDirectory, Invalid (a bad query)."""
        readable, writable = _modes(flags)
        with self._errors():
            found = self._locate(path)
            if isinstance(found, Real):
                return self._open_file(found.node, path, flags)
            if isinstance(found, ViewOf):
                return self._open_view(found, readable, writable)
            if isinstance(found, Mailbox):
                if readable:
                    raise Denied("a mailbox can only be written: read /:inbox", paths.printable(path))
                self._writable()
                return nodes.MailHandle(self.memory, found.name)
            if isinstance(found, Question):
                return self._open_question(found.name, readable, writable)
            raise IsDirectory(path=paths.printable(path))

    def create(self, path: bytes, mode: int, flags: int, caller: Caller) -> Handle:
        """open(2) with O_CREAT of a name that the kernel did not find; another mount may have made it since."""
        with self._errors():
            self._writable()
            parts = paths.split(path)
            if len(parts) == 2 and parts[0] == ASK:
                paths.check_name(parts[1])
                nodes.ask(self.memory, paths.text(parts[1]), "")
                return self._open_question(parts[1], False, True)
            parent, name = self._parent(path)
            made = self.memory.submit(
                "create", parent=parent, name=name, mode=mode, exclusive=bool(flags & os.O_EXCL), **self._owned(caller)
            )
            with self.memory.reading() as reader:
                node = reader.open_node(made["node"])
            return self._open_file(node, path, flags)

    def truncate(self, path: bytes, size: int) -> None:
        """truncate(2): durable when it returns."""
        with self._errors():
            found = self._locate(path)
            if not isinstance(found, Real):
                return
            if found.node.kind is Kind.DIRECTORY:
                raise IsDirectory(path=paths.printable(path))
            handle = self._open_file(found.node, path, os.O_WRONLY)
            try:
                handle.truncate(size)
                handle.flush()
            finally:
                handle.release()

    def allocate(self, handle: Handle, mode: int, offset: int, length: int) -> None:
        """fallocate(2) without flags: the file reaches at least to offset + length."""
        if mode or not isinstance(handle, FileHandle):
            raise NotSupported("only plain fallocate")
        if offset + length > handle.file.now().size:
            handle.truncate(offset + length)

    def statfs(self) -> os.statvfs_result:
        """Of the filesystem that holds the store."""
        return self.memory.store.capacity()

    def hold_orphans(self) -> None:
        """Renew this mount's leases on files that were unlinked while it has them open. Called every half minute."""
        with self._mutex:
            held = set(self._open)
        if held:
            orphans = [node for node, _ in self.memory.store.orphans() if node in held]
            if orphans:
                self.memory.submit("hold", holder=self._holder, nodes=orphans)

    def commit_all(self) -> None:
        """The mount ends: whatever was written and not yet flushed becomes durable."""
        for file in list(self._open.values()):
            file.commit(secrets.randbits(63))

    # Inside ----------------------------------------------------------------------------------------------

    def _locate(self, path: bytes) -> Address:
        with self.memory.reading() as reader:
            return address.locate(self.memory, reader, path)

    def _parent(self, path: bytes, removing: bool = False) -> tuple[int, bytes]:
        """The directory node that holds ``path``, and the name. Raises what creating or removing there would."""
        self._writable()
        parts = paths.split(path)
        if not parts:
            raise NotPermitted(path="/")
        if len(parts) == 1 or parts[0] in (paths.TELL, ASK):
            if len(parts) == 1 and not removing:
                paths.check_name(parts[0])
            if parts[0] == paths.TELL and len(parts) == 2 and not removing:
                raise NotFound("no agent of that name", paths.printable(path))
            raise Denied("nothing can be created or removed here", paths.printable(path))
        found = self._locate(paths.join(parts[:-1]))
        if not isinstance(found, Real) or found.node.kind is not Kind.DIRECTORY:
            raise NotDirectory(path=paths.printable(path))
        return found.node.id, parts[-1]

    def _open_file(self, node: Node, path: bytes, flags: int) -> FileHandle:
        readable, writable = _modes(flags)
        if node.kind is Kind.DIRECTORY:
            raise IsDirectory(path=paths.printable(path))
        if writable or flags & os.O_TRUNC:
            self._writable()
            with self.memory.reading() as reader:
                if not reader.visible.writable(node.scope):
                    raise Denied("read-only for you", paths.printable(path))
        with self._mutex:
            file = self._open.get(node.id)
            if file is None:
                file = self._open[node.id] = OpenFile(self.memory, node.id)
            handle = FileHandle(
                file, readable=readable, writable=writable, append=bool(flags & os.O_APPEND) and writable,
                released=self._close,
            )  # fmt: skip
        try:
            if flags & os.O_TRUNC:
                handle.truncate(0)
        except BaseException:
            self._close(file)
            raise
        return handle

    def _close(self, file: OpenFile) -> None:
        with self._mutex:
            file.handles -= 1
            if file.handles == 0:
                self._open.pop(file.node, None)

    def _open_view(self, found: ViewOf, readable: bool, writable: bool) -> nodes.ViewHandle:
        with self.memory.reading() as reader:
            path = reader.path(found.node.id)
            if writable:
                if found.view.write is None:
                    raise Denied(f":{found.view.name} cannot be written", paths.printable(path))
                # Marks and mail are the asker's own; everything else changes the document.
                if not found.view.empty_write:
                    reader.visible.require(found.node.scope, paths.printable(path))
        if writable:
            self._writable()
        return nodes.ViewHandle(self.memory, found.view, found.node, path, found.name, readable, writable)

    def _open_question(self, name: bytes, readable: bool, writable: bool) -> nodes.QuestionHandle:
        with self.memory.reading() as reader:
            root = reader.node(ROOT)
        recall = views.find("recall", root)
        if recall is None:
            raise NotFound()
        return nodes.QuestionHandle(self.memory, name, readable, writable, recall, root)

    def _touch(self, found: ViewOf, path: bytes) -> None:
        if found.view.empty_write:
            self._open_view(found, False, True).touch()

    def _overlaid(self, node: Node) -> Node:
        file = self._open.get(node.id)
        return node if file is None else file.overlaid(node)

    def _of_node(self, reader: Reader, node: Node) -> Attributes:
        mode = node.mode
        if node.kind is not Kind.SYMLINK and (self._read_only or not reader.visible.writable(node.scope)):
            mode &= ~0o222
        nlink = 1
        if node.kind is Kind.DIRECTORY:
            nlink = 2 + reader.subdirectories(node.id)
        elif node.parent is None:
            nlink = 0
        return Attributes(
            node.id, _TYPE[node.kind] | mode, nlink,
            self.owner.uid if node.uid is None else node.uid, self.owner.gid if node.gid is None else node.gid,
            node.size, node.atime, node.mtime, node.ctime,
        )  # fmt: skip

    def _of_virtual(self, found: Address, path: bytes) -> Attributes:
        if isinstance(found, Alias):
            mode, size, at = stat.S_IFLNK | 0o777, len(found.target), self._born
        elif isinstance(found, Place):
            mode, size, at = stat.S_IFDIR | 0o755, 0, self._born
        elif isinstance(found, ViewOf):
            bits = (0o444 if found.view.read else 0) | (0o222 if found.view.write and not self._read_only else 0)
            mode, size, at = stat.S_IFREG | bits, 0, found.node.mtime
        elif isinstance(found, Mailbox):
            mode, size, at = stat.S_IFREG | 0o222, 0, self._born
        else:
            mode, size, at = stat.S_IFREG | 0o644, 0, self._born
        links = 2 if isinstance(found, Place) else 1
        return Attributes(_ino(path), mode, links, self.owner.uid, self.owner.gid, size, at, at, at)

    def _names_of_place(self, reader: Reader, found: Place) -> list[tuple[bytes, int, int]]:
        if found.name == ASK:
            with self.memory.mutex:
                names = [paths.raw(name) for name in self.memory.questions]
        else:
            names = [paths.raw(name) for name in [paths.EVERYONE, *reader.agents()]]
        return [(name, _ino(found.name + b"/" + name), stat.S_IFREG) for name in sorted(names)]

    def _owned(self, caller: Caller) -> dict[str, int | None]:
        """Owner to record: None where it is the mount's, so that other mounts show their own."""
        return {
            "uid": caller.uid if caller.uid != self.owner.uid else None,
            "gid": caller.gid if caller.gid != self.owner.gid else None,
        }

    def _writable(self) -> None:
        if self._read_only:
            raise ReadOnly("this mount is read-only")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """Keep the reason of an EINVAL for /:error."""
        try:
            yield
        except Invalid as e:
            self.memory.error = str(e)
            raise


def _modes(flags: int) -> tuple[bool, bool]:
    access = flags & os.O_ACCMODE
    return access in (os.O_RDONLY, os.O_RDWR), access in (os.O_WRONLY, os.O_RDWR)


def _ino(path: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(path, digest_size=8).digest(), "big") >> 1 | 1 << 62
