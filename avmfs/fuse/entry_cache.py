"""What the kernel is told of a node: its entry and attributes, and for how long it may keep them.

Owns the packing of ``vfs`` attributes into the kernel's structures, the cache times, and the packed entries remembered
for being asked again. Real nodes and absent names may stay in the kernel while the writer tells it of every commit
(``switch``), which it does for those names only that were noted before they were told (``will_be_cached``). Virtual
nodes are never cached nor remembered.

An entry is remembered until anybody commits what concerns it (``Store.cached_state``, ``cached_changes``), so that it
holds what this agent may see, as it is; not of a node that expires, since time passes without a commit. Uncommitted
edits of this mount are not in the store: a node that has some is asked for anew. All quick answers are given in the
reading thread; what is remembered may come from any.

The kernel drops notices about a node that it does not have, and of one whose entry is under way nobody can say whether
it does: what it has forgotten may be told of (FORGET) after it has asked again. So an entry's attributes are for the
moment alone, and those that GETATTR tells are for keeping: a kernel that asks for them has the node. In that moment the
writer, whose notice found no node, ends the names (``kernel_notices``), and an open drops what has changed (``late``).

A name that has come, gone or changed hands a moment ago (``restless``) will often do so again, and ending one name in
the kernel's cache costs it all others. Until it has rested, the kernel asks for it at every use, and nobody need tell.
Where names change after they had rested, those of the same directory rest longer.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from time import monotonic

from avmfs import paths
from avmfs.errors import NotFound
from avmfs.fuse import protocol as p
from avmfs.fuse.inodes import Inodes, is_past, is_real
from avmfs.lru import FIFO
from avmfs.node import Kind, Node
from avmfs.store.cache.nodes import oldest
from avmfs.store.notify.kernel_filter import KernelFilter
from avmfs.store.schema.tables import ROOT
from avmfs.vfs.address import Address, Real
from avmfs.vfs.attributes import Attributes
from avmfs.vfs.tree import Handle, Tree

CACHED_S = 60  # a safety net: notices end what is cached long before
BRIEF_NS = 1_000_000  # what a name's entry says of its node: stat(2) is spared a second question
RESTS_S, MOST_RESTS_S = 3.0, 60.0  # how long a name has to stand for the same before the kernel may keep it
_MOST_RESTLESS = 10_000
_MOST_LIVELY = 1_000  # directories
_MOST_AT_ONCE = 512  # more are what the store's memory has no room for, rather than changes
PAST_S = 1  # how long it may keep a name of the past
_NS = 1_000_000_000
_MASK = (1 << 64) - 1  # times before 1970 travel as two's complement
_MOST = 50_000  # nodes and names: some 20 MB
_NAME = p.IN_HEADER.size  # where the name of a LOOKUP begins
_ATTR = p.ENTRY_OUT.size  # where the attributes of an entry begin


class EntryCache:
    """One mount's replies about nodes."""

    def __init__(self, tree: Tree, numbers: Inodes, seen: KernelFilter) -> None:
        self._tree = tree
        self._store = tree.memory.store
        self._edited, self._changing = tree.opened.edited, tree.sources.changed
        self._numbers = numbers
        # The kernel is about to have a name, or its absence: whoever changes it has to tell. Before it is looked up or
        # made; also while nothing may be cached, which may change before the reply leaves.
        self.will_be_cached = seen.note
        self._note_node = seen.note_node
        self._valid = 0  # seconds that the kernel may keep names and attributes
        self._moment = -1  # of the store, for what follows
        self._entries: dict[int, bytes] = {}
        self._names: dict[tuple[int, bytes], int] = {}  # with the name's NUL; node 0: no such name
        self._restless: dict[tuple[int, bytes], float] = {}  # until when, in order of their change
        self._rests_s: FIFO[int, float] = FIFO(_MOST_LIVELY)  # of directories whose names take longer
        self._mutex = threading.Lock()  # over changes of the last five
        self._told: FIFO[int, bytes] = FIFO(_MOST)  # by the last entry of a node that was not opened since
        self._before: FIFO[int, bytes] = FIFO(_MOST)  # the entry of a node that has changed while it was open
        for node in tree.opened.nodes():
            self._before.put(node, b"")  # a predecessor has told of it, nobody knows what

    @property
    def caching(self) -> bool:
        return self._valid > 0

    def switch(self, caching: bool) -> set[int]:
        """From now on replies may be cached, or must not be. Returns the nodes of which the kernel may have been told
        what nobody will have told it the end of."""
        with self._mutex:
            told = {*self._entries, *self._tree.opened.nodes()}
            self._valid = CACHED_S if caching else 0
            self._forget(-1)
        return told

    # From memory ---------------------------------------------------------------------------------------

    def known(self, node: int) -> bytes | None:
        """The entry of a real node if it was told before and still is as it was."""
        # In this order: edits that are no longer there have been committed, which the state then tells.
        if self._edited(node):
            return None
        self._catch_up()
        return self._entries.get(node)

    def lookup(self, unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        """The whole reply to a LOOKUP."""
        key = (node, bytes(view[_NAME:size]))
        number = self._names.get(key)
        if number is None:
            return self._look(unique, node, key[1][:-1])
        # In this order: edits that are no longer there have been committed, which the state then tells.
        edited = number and (self._edited(number) or number in self._changing)
        self._catch_up()
        if self._names.get(key) != number:  # what changes is looked at twice before it is noted
            return self._look(unique, node, key[1][:-1])
        self.will_be_cached(node, key[1][:-1])
        self._catch_up()
        entry = self._entries.get(number)
        if edited or self._names.get(key) != number or (number and entry is None):  # it has changed, or may have
            return self._look(unique, node, key[1][:-1])
        if entry is None:
            return self._absence(unique)
        self._told.put(number, entry)
        return p.ENTRY_REPLY.pack(p.ENTRY_REPLY.size, 0, unique, entry)

    def getattr(self, unique: int, node: int, view: memoryview, size: int) -> bytes | None:
        """The whole reply to a GETATTR."""
        if not is_real(node):
            return None
        self._note_node(node)
        if self._edited(node) or node in self._changing:
            return None
        self._catch_up()  # in this order: see known()
        entry = self._entries.get(node)
        if entry is None:
            # What changes most is a directory, by a name that came or went. What goes wrong here does so once more.
            moment, found = self._moment, self._tree.peek(node)
            if found.expires is not None:
                return None
            directory = found.kind is Kind.DIRECTORY  # which nobody edits
            of = self._tree.attributer.of_node(found) if directory else self._tree.attributes_of(node)
            if not of.nlink and found.parent is not None:
                return None
            entry = self._entry(moment, node, found, of)
        return p.ATTR_REPLY.pack(p.ATTR_REPLY.size, 0, unique, self._valid, 0, 0, entry[_ATTR:])

    # From the tree -------------------------------------------------------------------------------------

    def _look(self, unique: int, directory: int, name: bytes) -> bytes | None:
        """The whole reply to a LOOKUP of what is, if anything, a node of the store and nothing else."""
        if directory == ROOT or not is_real(directory) or b":" in name or len(name) > paths.NAME_MAX:
            return None
        moment, restless = self._asked(directory, name)
        if self._tree.peek(directory).kind is not Kind.DIRECTORY:
            return None
        child = self._tree.child(directory, name)
        if child is None and self._tree.sources.any and self._tree.sources.awaits(self._tree.peek(directory)):
            return None  # a source may have it
        if child is None:
            if restless:
                return p.OUT_HEADER.pack(p.OUT_HEADER.size, -NotFound.code, unique)
            self._remember_name(moment, directory, name, 0)
            return self._absence(unique)
        found, attributes = child
        number = found.id
        entry = self._entry(moment, number, found, attributes)
        self._told.put(number, entry)
        if restless:
            entry = _nameless(entry)
        elif found.expires is None:
            self._remember_name(moment, directory, name, number)
        return p.ENTRY_REPLY.pack(p.ENTRY_REPLY.size, 0, unique, entry)

    def found(self, parent: int, name: bytes) -> bytes:
        """The reply to LOOKUP of a name, without its NUL. Raises NotFound where an absence may not be kept."""
        moment, restless = self._asked(parent, name)
        where = self._numbers.directory(parent)
        try:
            found, attributes = self._tree.lookup(where, name)
        except NotFound:
            # The epoch ends it when another mount makes the name. Not at the root and not for views, whose coming and
            # going is in no log.
            if not isinstance(where, Real) or where.node.id == ROOT or b":" in name or restless:
                raise
            if self._tree.sources.awaits(where.node):  # a source may come to have it
                raise
            self._remember_name(moment, parent, name, 0)
            if not self._valid:
                raise
            return p.ENTRY_OUT.pack(0, 0, self._valid, 0, 0, 0) + bytes(p.ATTR.size)
        number, node = self._numbers.number(found), _stored(found)
        entry = self._entry(moment, number, node, attributes)
        if node is not None:
            self._told.put(number, entry)
        if restless:
            return _nameless(entry)
        if node is not None and node.expires is None:
            self._remember_name(moment, parent, name, number)
        return entry

    def made(self, found: Address) -> bytes:
        """The reply to all that make a name, whose attributes the kernel takes over whatever it has heard meanwhile:
        they are not for keeping."""
        attributes, valid = self._tree.attributes_of_made(found), self._validity(_stored(found))
        return p.ENTRY_OUT.pack(self._numbers.number(found), 0, valid, 0, 0, 0) + packed(attributes)

    def attributes(self, number: int, handle: Handle | None = None) -> bytes:
        """The reply to GETATTR, by a handle where the kernel says which."""
        self._note_node(number)
        moment = self._catch_up()
        found = self._numbers.address(number)
        node = _stored(found)
        attributes = self._tree.attributes(found)
        entry = self._entry(moment, number, node, attributes)
        if number in self._changing:
            return p.ATTR_OUT.pack(0, 0, 0) + packed(self._tree.sources.changing(attributes, handle))
        # Of a file in the trash without a link the log does not tell when it is closed, and has one again.
        passing = not attributes.nlink and node is not None and node.parent is not None
        return p.ATTR_OUT.pack(0 if passing else self._validity(node), 0, 0) + entry[_ATTR:]

    def will_change(self, number: int) -> None:
        """Attributes are about to be set: the kernel takes over the time that the reply tells, for the pages that it
        has."""
        self._catch_up()
        if self._before.pop(number, None) is not None:
            self._tree.opened.gave_up(number)

    def changed_attributes(self, number: int) -> bytes:
        """The reply to SETATTR, which the kernel takes over whatever it has heard meanwhile."""
        return p.ATTR_OUT.pack(0, 0, 0) + packed(self._tree.attributes(self._numbers.address(number)))

    def late(self, node: int) -> bool:
        """A node is being opened. Return whether its last entry told attributes that it no longer has: what is read
        next depends on the size. For the quick answer, which is asked before any other, but for what is sent again,
        after the entry's moment, and on strict mounts, whose entries let nothing be kept."""
        told = self._told.pop(node, None)
        return told is not None and self.known(node) != told

    def _asked(self, parent: int, name: bytes) -> tuple[int, bool]:
        """A name is about to be looked up: the moment, and whether the kernel must not keep what it will be told."""
        self._catch_up()
        until = self._restless.get((parent, name))
        if until is not None and monotonic() < until:
            return self._moment, True
        self.will_be_cached(parent, name)
        return self._catch_up(), False  # what changed between the two is told of

    def _catch_up(self) -> int:
        """Let go of what has changed. Returns the moment under which what is asked from now on is remembered."""
        store = self._store
        moment = store.cached_state()
        if moment == self._moment:
            return moment
        with self._mutex:
            changes = store.cached_changes(self._moment) if self._moment >= 0 else None
            if changes is None:
                self._forget(moment)
                return moment
            for node in changes.nodes:
                self._let_go(node)
            if changes.names:
                self._changed(changes.names, monotonic())
            # Further changes may have come meanwhile: they are let go of once more, the next time.
            self._moment = moment
        return moment

    def _changed(self, names: Collection[tuple[int, bytes]], now: float) -> None:
        """These stand for something else now, or may, where they are too many."""
        if len(names) > _MOST_AT_ONCE:
            for parent, name in names:
                self._names.pop((parent, name + b"\0"), None)
            return
        for changed in names:
            parent, name = changed
            rests_s = self._rests_s.get(parent, RESTS_S)
            if self._names.pop((parent, name + b"\0"), 0):  # a node's, which the kernel was left
                rests_s = min(2 * rests_s, MOST_RESTS_S)
                self._rests_s.put(parent, rests_s)
            self._restless.pop(changed, None)
            self._restless[changed] = now + rests_s
        while self._restless:
            first = next(iter(self._restless))
            if self._restless[first] > now and len(self._restless) <= _MOST_RESTLESS:
                break
            del self._restless[first]

    def _let_go(self, node: int) -> None:
        entry = self._entries.pop(node, None)
        if entry is not None and self._tree.opened.has(node):
            self._before.put(node, entry)

    def _forget(self, moment: int) -> None:
        for node in self._tree.opened.nodes():
            self._let_go(node)
        self._entries.clear()
        self._names.clear()
        self._moment = moment

    def _remember_name(self, moment: int, parent: int, name: bytes, number: int) -> None:
        with self._mutex:
            if self._takes(moment):
                self._names[parent, name + b"\0"] = number

    def _entry(self, moment: int, number: int, node: Node | None, attributes: Attributes) -> bytes:
        """Of a node of the store, None for a virtual one."""
        if is_past(number) and self._valid:  # rules alone change what is seen of it, and end all names of a kernel
            return p.ENTRY_OUT.pack(number, 0, PAST_S, PAST_S, 0, 0) + packed(attributes)
        valid = self._validity(node)
        ns = BRIEF_NS if valid and number not in self._changing else 0
        if valid and self._note_node(number) and self._store.cached_state() != moment:
            ns = 0  # they may have changed before the writer knew that it has to tell
        entry = p.ENTRY_OUT.pack(number, 0, valid, 0, 0, ns) + packed(attributes)
        if self._before and (before := self._before.pop(number, None)) is not None and _same_to_pages(before, entry):
            self._tree.opened.gave_up(number)  # else it goes on with the pages that it has: the bytes may be others
        if node is not None and _as_stored(node, attributes):
            with self._mutex:
                if valid == self._valid and self._takes(moment):
                    self._entries[number] = entry
        return entry

    def _takes(self, moment: int) -> bool:
        """Return whether what was asked for since a moment may be remembered. Only what the store's own memory took as
        well: it can tell when that changes. Nothing where urgent mail, of which it does not hear, changes a file's
        size."""
        if self._tree.injection is not None or moment != self._moment or moment != self._store.cached_state():
            return False
        if len(self._entries) + len(self._names) > _MOST:
            for node in oldest(self._entries):
                self._let_go(node)
            for name in oldest(self._names):
                del self._names[name]
        return True

    def _absence(self, unique: int) -> bytes:
        if not self._valid:
            return p.OUT_HEADER.pack(p.OUT_HEADER.size, -NotFound.code, unique)
        return p.ENTRY_REPLY.pack(p.ENTRY_REPLY.size, 0, unique, p.ENTRY_OUT.pack(0, 0, self._valid, 0, 0, 0))

    def _validity(self, node: Node | None) -> int:
        """Seconds that the kernel may keep what it is told of a node, a virtual one's None: never longer than the node
        lives."""
        if node is None:
            return 0
        if node.expires is None:
            return self._valid
        return max(0, min(self._valid, (node.expires - self._tree.memory.now()) // _NS))


def _stored(found: Address) -> Node | None:
    return found.node if isinstance(found, Real) else None


def _nameless(entry: bytes) -> bytes:
    """An entry whose attributes the kernel may keep, but not its name."""
    node, generation, _, kept, _, kept_ns = p.ENTRY_OUT.unpack_from(entry)
    return p.ENTRY_OUT.pack(node, generation, 0, kept, 0, kept_ns) + entry[_ATTR:]


def _as_stored(node: Node, told: Attributes) -> bool:
    """Return whether the log tells when these attributes change. Not of an unlinked file, of uncommitted edits, of
    time."""
    return (
        told.nlink > 0
        and node.expires is None
        and (told.size, told.mtime, told.ctime) == (node.size, node.mtime, node.ctime)
    )


def _same_to_pages(before: bytes, entry: bytes) -> bool:
    """Return whether the kernel takes a file's bytes for the same, by size and mtime, though its ctime is another.
    Where nobody knows ``before``: whether it may, as the newest change is not what has set the mtime."""
    now = p.ATTR.unpack_from(entry, _ATTR)
    if not before:
        return (now[4], now[7]) != (now[5], now[8])
    _, size, _, _, m, c, _, m_ns, c_ns, *_ = p.ATTR.unpack_from(before, _ATTR)
    return (size, m, m_ns) == (now[1], now[4], now[7]) and (c, c_ns) != (now[5], now[8])


def packed(found: Attributes) -> bytes:
    """struct fuse_attr."""
    (a, a_ns), (m, m_ns), (c, c_ns) = divmod(found.atime, _NS), divmod(found.mtime, _NS), divmod(found.ctime, _NS)
    times = (a & _MASK, m & _MASK, c & _MASK, a_ns, m_ns, c_ns)
    return p.ATTR.pack(
        found.ino, found.size, found.blocks, *times, found.mode, found.nlink, found.uid, found.gid, 0, 65536, 0
    )
