"""One agent's tree as operations on paths and handles.

Owns the translation of filesystem operations into store commands and handles. Called by
a front end from many threads at once; every method either returns or raises a domain error with the
exact errno. Slow views simply take their time: whoever calls must not be the only thread.
"""

from __future__ import annotations

import os
import secrets
import stat
import threading
from collections.abc import Callable
from functools import partial

from avmfs import paths, views
from avmfs.errors import (
    Denied,
    Invalid,
    IsDirectory,
    NotDirectory,
    NotFound,
    NotPermitted,
    NotSupported,
    PastEnd,
    ReadOnly,
    Stale,
)
from avmfs.lru import FIFO
from avmfs.memory import Memory
from avmfs.node import UNOWNED, Kind, Node
from avmfs.search.then import REFUSED
from avmfs.store.rows.nodes import node_of
from avmfs.store.rows.system_dirs import is_everybodys
from avmfs.store.schema.tables import ROOT
from avmfs.vfs import address, listings, virtual_handles
from avmfs.vfs.address import ASK, Address, Alias, Made, Mailbox, Place, Question, Real, Then, ViewOf, ViewThen
from avmfs.vfs.attributes import Attributer, Attributes, Caller
from avmfs.vfs.inject import InjectedHandle, Injection
from avmfs.vfs.open_file import FileHandle
from avmfs.vfs.open_files import OpenFiles
from avmfs.vfs.sources import Sources
from avmfs.vfs.statfs import room

Handle = FileHandle | virtual_handles.VirtualHandle

REMOVED_KEPT = 1024
_WRITES = os.O_ACCMODE | os.O_TRUNC


class Tree:
    """See the module. ``uid``/``gid`` own what nobody else does; ``closed``: nobody else comes past the root.
    ``inject``: see vfs.inject. ``trash``: removed notes go there."""

    def __init__(
        self,
        memory: Memory,
        *,
        uid: int,
        gid: int,
        read_only: bool = False,
        inject: bool = False,
        closed: bool = False,
        trash: bool = True,
    ) -> None:
        self.memory = memory
        self._store, self._who = memory.store, memory.who
        self.owner = Caller(uid, gid)
        self._read_only, self._trash = read_only, trash
        self._errors = virtual_handles.Remembering(memory)
        self._of_views = virtual_handles.Remembering(memory, every=True)
        self.sources = Sources(memory)
        self.opened = OpenFiles(memory)
        self._mutex = threading.Lock()
        self.fresh: Callable[[], None] | None = None  # is waited for before names are looked at
        self._holder = secrets.token_bytes(16)
        self._removed: FIFO[int, Node] = FIFO(REMOVED_KEPT)  # directories that a process may still be in
        self.injection = Injection(memory) if inject else None
        self.attributer = Attributer(
            memory, self.owner, read_only, None if self.injection is None else self.injection.size, closed
        )

    # Looking ---------------------------------------------------------------------------------------------

    def locate(self, path: bytes) -> Address:
        """What stands at a path. Raises NotFound, NotDirectory."""
        with self.memory.reading() as reader:
            return address.locate(self.memory, reader, path)

    def parent(self, path: bytes) -> tuple[Address, bytes]:
        """The directory of a path and its last name. Raises what locate() does, NotPermitted for the root."""
        parts = paths.split(path)
        if not parts:
            raise NotPermitted(path="/")
        return self.locate(paths.join(parts[:-1])), parts[-1]

    def lookup(self, where: Address, name: bytes) -> tuple[Address, Attributes]:
        """An entry of a directory with its attributes."""
        if isinstance(where, Real):
            self.sources.appear(where.node, name)
        if isinstance(where, Real) and where.node.id != ROOT and b":" not in name:
            if (child := self.child(where.node.id, name)) is not None:
                return Real(child[0]), child[1]
            if where.node.kind is not Kind.DIRECTORY:
                raise NotDirectory(path=paths.text(name))
            raise address.absent(name)
        if isinstance(where, Then):
            past = self.memory.at(where.moment)
            with past.reading() as reader:
                found = address.of_then(past, reader, where, name)
                if isinstance(found, Then):
                    return found, self.attributer.of_past(found.moment, reader.node(found.node))
                return found, self.attributes(found)
        with self.memory.reading() as reader:
            found = address.entry(self.memory, reader, where, name)
            return found, self.attributes(found)

    def child(self, directory: int, name: bytes) -> tuple[Node, Attributes] | None:
        """A node of the store by its name, which says nothing else. The caller knows that the directory is visible."""
        node, seen = self.opened.overlaid(partial(self._store.cached_child, self._who, directory, name))
        return None if node is None or seen is None else (node, self.attributer.of_node(seen))

    def node(self, number: int) -> Real:
        """The node by its number, with or without a name. Raises Stale."""
        return Real(self.peek(number))

    def peek(self, number: int) -> Node:
        """The store's node; a directory that has been removed goes on, empty and without links, for those in it. Raises
        Stale."""
        try:
            return self._store.cached_node(self._who, number)
        except Stale:
            if (gone := self._removed.get(number) or self._store.cached_gone(self._who, number)) is None:
                raise
            return gone

    def attributes(self, found: Address) -> Attributes:
        """stat(2); of a real node as it is now, which for an open one includes uncommitted edits."""
        if isinstance(found, Real):
            return self.attributes_of(found.node.id)
        if isinstance(found, Then):
            with self.memory.at(found.moment).reading() as reader:
                return self.attributer.of_past(found.moment, reader.node(found.node))
        return self.attributer.of_virtual(found)

    def attributes_of(self, number: int) -> Attributes:
        """fstat(2) of a node by its number. Raises Stale."""
        return self.attributer.of_node(self.opened.overlaid(partial(self.peek, number))[1])

    def attributes_of_made(self, found: Address) -> Attributes:
        """Of what was just made: also when another mount has removed it meanwhile."""
        if isinstance(found, Made):
            return self.attributer.of_new(found.node)
        try:
            return self.attributes(found)
        except (Stale, NotFound):
            if not isinstance(found, Real):
                raise
            return self.attributer.of_node(found.node._replace(parent=None))

    def names(self, found: Address) -> list[listings.Entry]:
        """All entries but . and .., in order of name; views are never among them."""
        return listings.names(self.memory, found)

    def readlink(self, found: Address) -> bytes:
        if isinstance(found, Alias):
            return found.target
        if isinstance(found, Real) and found.node.kind is Kind.SYMLINK:
            with self.memory.reading() as reader:
                return reader.target(found.node.id)
        if isinstance(found, Then) and found.kind is Kind.SYMLINK:
            with self.memory.at(found.moment).reading() as reader:
                return reader.target(found.node)
        raise Invalid("not a symlink")

    # Names -----------------------------------------------------------------------------------------------

    def mkdir(self, where: Address, name: bytes, mode: int, caller: Caller) -> Real:
        with self._errors:
            parent = self._directory(where, name)
            if isinstance(where, Real):
                mode |= where.node.mode & stat.S_ISGID
            made = self.memory.submit(
                "mkdir", parent=parent, name=name, mode=mode, **self.attributer.recorded(caller, where)
            )
            return self._made(made["node"], Kind.DIRECTORY, mode)

    def symlink(self, where: Address, name: bytes, target: bytes, caller: Caller) -> Real:
        with self._errors:
            parent = self._directory(where, name)
            made = self.memory.submit(
                "symlink", parent=parent, name=name, target=target, **self.attributer.recorded(caller, where)
            )
            return self._made(made["node"], Kind.SYMLINK, 0o777)

    def _made(self, number: int, kind: Kind, mode: int) -> Real:
        """What was just made. Another mount may have removed it before we were told that it is there."""
        try:
            return self.node(number)
        except Stale:
            now = self.memory.now()
            gone = Node(number, None, b"", kind, mode, None, None, 0, now, now, now, 0, None, None)
            self._remember_removed(gone)
            return Real(gone)

    def unlink(self, where: Address, name: bytes) -> None:
        with self._errors:
            if isinstance(where, Place) and where.name == ASK:
                with self.memory.mutex:
                    if self.memory.questions.pop(paths.text(Question(name).stem), None) is None:
                        raise NotFound(path=paths.text(name))
                return
            parent = self._directory(where, name, removing=True)
            self.memory.submit("unlink", parent=parent, name=name, trash=self._trash)

    def rmdir(self, where: Address, name: bytes) -> None:
        with self._errors:
            parent = self._directory(where, name, removing=True)
            gone = self._store.cached_child(self._who, parent, name)
            self.memory.submit("rmdir", parent=parent, name=name)
            self._remember_removed(gone)

    def rename(self, old: Address, name: bytes, new: Address, new_name: bytes, flags: int = 0) -> None:
        """rename(2). What this mount still holds uncommitted of the file is committed first: a save by rename is
        complete on every mount when it returns."""
        with self._errors:
            here, there = self._directory(old, name, removing=True), self._directory(new, new_name)
            peek = partial(self._store.cached_child, self._who)
            moved, replaced = peek(here, name), peek(there, new_name)
            if moved is not None:
                self.opened.commit(moved.id)
            ends = {"new_parent": there, "new_name": new_name}
            self.memory.submit("rename", parent=here, name=name, **ends, flags=flags, trash=self._trash)
            if moved != replaced and not flags:
                self._remember_removed(replaced)

    def set_attributes(
        self,
        found: Address,
        handle: Handle | None,
        *,
        mode: int | None = None,
        uid: int | None = None,
        gid: int | None = None,
        atime: int | None = None,
        mtime: int | None = None,
    ) -> None:
        """chmod, chown, utimens; None leaves a value. Uncommitted edits are committed first, so that a time set
        after a write stays. A touch of a view is a write of nothing."""
        with self._errors:
            if isinstance(found, ViewOf):
                if found.view.empty_write and mtime is not None:
                    (
                        handle
                        if isinstance(handle, virtual_handles.ViewHandle)
                        else self._open_view(found, False, True)
                    ).touch()
                return
            if isinstance(found, Then | ViewThen):
                raise ReadOnly(REFUSED)
            if not isinstance(found, Real):
                return
            self.require_writable()
            self.opened.commit(found.node.id)
            # cp -a, tar, mv and sed -i say again what the mount has shown.
            stays, kept = None if is_everybodys(found.node) else UNOWNED, (found.node.uid, found.node.gid)
            uid, gid = (
                stays if shown == given and had is None else given
                for given, shown, had in zip((uid, gid), self.owner, kept, strict=True)
            )
            self.memory.submit(
                "set_attributes", node=found.node.id, mode=mode, uid=uid, gid=gid, atime=atime, mtime=mtime
            )

    # Bytes -----------------------------------------------------------------------------------------------

    def open(self, found: Address, flags: int) -> Handle:
        """open(2) of what exists. Raises Denied, ReadOnly, IsDirectory, Invalid (a bad query)."""
        readable, writable = _modes(flags)
        taken = None
        if self.sources.any:
            taken = self._taken(found, flags)
            if readable if taken is None else not flags & os.O_TRUNC:
                self.sources.fresh(found)
        with self._errors if isinstance(found, Real) else self._of_views:
            if isinstance(found, Real) and taken is not None:
                return self.sources.handle(found.node, taken, readable, new=bool(flags & os.O_TRUNC))
            if isinstance(found, Real):
                reads = not writable and not flags & os.O_TRUNC
                injected = self.injection.open(found.node) if self.injection is not None and reads else None
                return injected or self.open_file(found.node, flags)
            if isinstance(found, ViewOf):
                return self._open_view(found, readable, writable)
            if isinstance(found, Then | ViewThen):
                return self._open_then(found, writable or bool(flags & os.O_TRUNC))
            if isinstance(found, Mailbox):
                if readable:
                    raise Denied("a mailbox can only be written: read /:inbox")
                self.require_writable()
                return virtual_handles.MailHandle(self.memory, found.name)
            if isinstance(found, Question):
                return self._open_question(found.name, readable, writable)
            raise IsDirectory()

    def _taken(self, found: Address, flags: int) -> tuple[bytes, ...] | None:
        """Where a source takes what this open is to write; None for what no source has, and for reading."""
        if not isinstance(found, Real) or found.node.kind is not Kind.FILE or not flags & _WRITES:
            return None
        with self._errors:
            parts = self.sources.taken(found.node)
            if parts is not None:
                self.require_writable()
            return parts

    def _open_then(self, found: Then | ViewThen, writable: bool) -> virtual_handles.VirtualHandle:
        if writable:
            raise ReadOnly(REFUSED)
        past = self.memory.at(found.moment)
        if isinstance(found, ViewThen):
            with past.reading() as reader:
                path = reader.path(found.of.node.id)
            return virtual_handles.ViewHandle(past, found.of.view, found.of.node, path, found.of.name, True, False)
        if found.kind is not Kind.FILE:
            raise IsDirectory()
        return virtual_handles.PastHandle(past, found.node)

    def open_file(self, node: Node, flags: int) -> FileHandle:
        """open(2) of a node of the store, as it is now. Raises what open() does, and tells nobody of a refusal."""
        if node.kind is Kind.DIRECTORY:
            raise IsDirectory()
        if flags & _WRITES:
            self.require_writable()
            if not self._store.cached_writable(self._who, node.scope):
                raise Denied("read-only for you", paths.text(node.name))
        handle = self._opened(node.id, flags)
        try:
            if flags & os.O_TRUNC:
                handle.empty()
        except BaseException:
            handle.give_back()
            raise
        return handle

    def _opened(self, node: int, flags: int) -> FileHandle:
        readable, writable = _modes(flags)
        return self.opened.handle(
            node, readable=readable, writable=writable, append=bool(flags & os.O_APPEND) and writable
        )

    def open_known(self, node: int) -> FileHandle:
        """open(2) for reading of a regular file that the caller knows to be there and visible."""
        return self.opened.handle(node, readable=True, writable=False, append=False)

    def create(self, where: Address, name: bytes, mode: int, flags: int, caller: Caller) -> tuple[Address, Handle]:
        """open(2) with O_CREAT of a name that the kernel did not find. Raises Stale if another mount has made it since:
        whether it may be opened was asked of nobody."""
        with self._errors if isinstance(where, Real) else self._of_views:
            if isinstance(where, Place) and where.name == ASK:
                self.require_writable()
                asked = Question(paths.check_name(name))
                virtual_handles.ask(self.memory, paths.text(paths.check_name(asked.stem)), "")
                return asked, self._open_question(name, False, True)
            parent = self._directory(where, name)
            if isinstance(where, Real) and (parts := self.sources.taken(where.node, name)) is not None:
                node = self.sources.place(where.node, name, parts)
                return Real(node), self.sources.handle(node, parts, _modes(flags)[0], new=True)
            made = self.memory.submit(
                "create",
                parent=parent,
                name=name,
                mode=mode,
                exclusive=bool(flags & os.O_EXCL),
                **self.attributer.recorded(caller, where),
            )
            if "row" not in made:  # the kernel looks again: it follows a symlink, and asks the mode of a file
                raise Stale("another mount has made it meanwhile")
            found = Made(node_of(tuple(made["row"])))
            handle = self._opened(found.node.id, flags)
            handle.file.unsynced = handle.syncs = True
            return found, handle

    def truncate(self, found: Address, size: int) -> None:
        """truncate(2): durable when it returns. Of a virtual node: nothing to cut."""
        if isinstance(found, Then | ViewThen):
            raise ReadOnly(REFUSED)
        if isinstance(found, Real):
            with self._errors:
                handle = self.open(found, os.O_WRONLY)
                try:
                    handle.truncate(size)
                    (handle.flush if isinstance(handle, FileHandle) else handle.fsync)()
                finally:
                    handle.release()

    def drop_set_ids(self, node: int, caller: Caller) -> None:
        """Who may not keep them (CAP_FSETID) has changed a file's bytes: the bits go."""
        if (mode := self.without_set_ids(node, caller)) is not None:
            self.memory.submit("set_attributes", node=node, mode=mode)

    def without_set_ids(self, node: int, caller: Caller) -> int | None:
        """A file's mode without the set-user-id and set-group-id bits, the latter kept where it marks no program and
        the caller is in the group. None where it has none."""
        found = self.peek(node)
        gone = found.mode & (stat.S_ISUID | stat.S_ISGID)
        group = self.owner.gid if found.gid is None else found.gid
        if not found.mode & stat.S_IXGRP and (caller.uid == 0 or caller.gid == group):
            gone &= ~stat.S_ISGID
        return found.mode & ~gone if gone and found.kind is Kind.FILE else None

    def allocate(self, handle: Handle, mode: int, offset: int, length: int) -> None:
        """fallocate(2); see FileHandle.allocate."""
        if not isinstance(handle, FileHandle):
            raise NotSupported("only a real file has room")
        handle.allocate(mode, offset, length)

    def seek(self, handle: Handle, offset: int, *, hole: bool) -> int:
        """lseek(2) with SEEK_DATA or SEEK_HOLE. Raises PastEnd."""
        if isinstance(handle, virtual_handles.PastHandle | InjectedHandle):  # all of it is data
            if offset >= handle.size:
                raise PastEnd()
            return handle.size if hole else offset
        if not isinstance(handle, FileHandle):
            raise Invalid("a view has neither data nor holes")
        found = handle.file.seek(offset, hole=hole)
        if found is None:
            raise PastEnd()
        return found

    def require_writable(self) -> None:
        """Raises ReadOnly on a mount that only reads."""
        if self._read_only:
            raise ReadOnly("this mount is read-only")

    def statfs(self) -> os.statvfs_result:
        return room(self.memory)

    def hold_orphans(self) -> None:
        """Renew this mount's leases on files that were unlinked while it has them open. Called every half minute."""
        if held := self.opened.nodes():
            orphans = [node for node, _ in self.memory.store.orphans() if node in held]
            if orphans:
                self.memory.submit("hold", holder=self._holder, nodes=orphans)

    def commit_all(self) -> None:
        """The mount ends: whatever was written and not yet flushed becomes durable."""
        self.opened.commit_all()

    # Inside ----------------------------------------------------------------------------------------------

    def _directory(self, where: Address, name: bytes, removing: bool = False) -> int:
        """The directory node in which ``name`` may be made or removed. Raises what doing so would."""
        self.require_writable()
        if isinstance(where, Then | ViewThen):
            raise ReadOnly(REFUSED)
        if isinstance(where, Place):
            if where.name == paths.TELL and not removing:
                raise NotFound("no agent of that name", paths.text(name))
            raise Denied("nothing can be created or removed here", paths.text(name))
        if not isinstance(where, Real) or where.node.kind is not Kind.DIRECTORY:
            raise NotDirectory()
        if where.node.id == ROOT:
            if not removing:
                paths.check_name(name)
            raise Denied("nothing can be created or removed here", paths.text(name))
        return where.node.id

    def _open_view(self, found: ViewOf, readable: bool, writable: bool) -> virtual_handles.ViewHandle:
        with self.memory.reading() as reader:
            path = reader.path(found.node.id)
            if writable:
                if found.view.write is None:
                    raise Denied(f":{found.view.name} cannot be written", paths.text(path))
                # Marks, mail and what only the root has are the asker's own; everything else changes the document.
                if not found.view.empty_write and "root" not in found.view.on:
                    reader.visible.require(found.node.scope, paths.text(path))
        if writable or found.view.changes:
            self.require_writable()
        return virtual_handles.ViewHandle(self.memory, found.view, found.node, path, found.name, readable, writable)

    def _open_question(self, name: bytes, readable: bool, writable: bool) -> virtual_handles.QuestionHandle:
        with self.memory.reading() as reader:
            root = reader.node(ROOT)
        recall = views.find("recall", root)
        if recall is None:
            raise NotFound()
        return virtual_handles.QuestionHandle(self.memory, name, readable, writable, recall, root)

    def _remember_removed(self, node: Node | None) -> None:
        if node is not None and node.kind is not Kind.FILE:
            with self._mutex:
                self._removed.put(node.id, node._replace(parent=None))


def _modes(flags: int) -> tuple[bool, bool]:
    access = flags & os.O_ACCMODE
    return access in (os.O_RDONLY, os.O_RDWR), access in (os.O_WRONLY, os.O_RDWR)
