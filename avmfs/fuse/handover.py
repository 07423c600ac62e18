"""What a mount's process leaves to its successor, and how that one goes on.

Owns the meaning of the kept memory (``avmfs.handover``) for the Linux front end: which handles the kernel holds, what
was written through them and is not committed, which virtual nodes it knows. Everything is noted before the reply that
it justifies, so a request that the kernel sends again after a kill finds the state it needs. Called by ``linux`` and
``inodes``, in whichever thread serves a request.

A successor takes the device over, restores all of this without asking the store, drops what the kernel has cached (it
may have missed a commit; where the writer still tells it of each, not before those who have waited are answered), and
asks the kernel to send again what was not answered (FUSE_NOTIFY_RESEND, kernel 6.9).

What is not kept: the reason that /:error tells, and the count of a virtual node's lookups that were under way, which
may keep a few bytes for as long as the mount lasts.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import struct
from collections.abc import Collection, Iterable, Mapping
from operator import itemgetter
from typing import Final, Protocol

from avmfs import handover as memory_kept
from avmfs import wire
from avmfs.errors import AvmError, from_wire
from avmfs.fuse import protocol as p
from avmfs.handover import HandoverState
from avmfs.store.client.inflight import COMMIT, REQUEST
from avmfs.store.rows.content import Edit
from avmfs.vfs import handover
from avmfs.vfs.address import Address
from avmfs.vfs.locks import Holder
from avmfs.vfs.open_file import FileHandle
from avmfs.vfs.tree import Handle, Tree
from avmfs.vfs.virtual_handles import VirtualHandle

log = logging.getLogger(__name__)

DEVICE, TABLES, LOG, SINK, SEEN = "device", "tables", "log", "sink", "seen"  # names in the entry; locks have theirs
_GREETED, _MINOR, _AGREED, _GENERATION, _ORIGIN = 0, 1, 2, 3, 4  # facts
_FILE, _VIRTUAL, _LISTING = 1, 2, 3  # states of a handle's row
_READABLE, _WRITABLE, _APPENDS, _IN_TRASH = 1 << 8, 1 << 9, 1 << 10, 1 << 11
_REFUSED = 16  # the errno of what was given up begins at this bit
_NODE, _ID, _FH, _UNIQUE = 1, 2, 3, 4  # its columns
_REACHED = _ID  # of a virtual one, how many bytes of it were handed out
_ROW_BITS = 20
_EDIT = struct.Struct("=BQQ")  # what, offset or size or errno, time
_CUT, _WRITE, _GIVEN_UP, _GROW, _ZERO = range(5)  # what; the third voids those before
_KINDS: Final = {"t": _CUT, "w": _WRITE, "g": _GROW, "z": _ZERO}
_END = struct.Struct("=Q")  # of zeros
_MARK = struct.Struct("=Q")  # offset of a directory's reader, and the name before it


class FdEntry(Holder, Protocol):
    """Keeps descriptors for the successor, whatever happens to this process."""

    def take(self) -> dict[str, int]:
        """What a predecessor has put there, as descriptors of this process. It stays in the entry."""
        ...

    def empty(self) -> None: ...


def left_by_predecessor(found: Mapping[str, int]) -> HandoverState | None:
    """The kept memory of a mount that can go on, None when there is none: it never got ready, is unmounted meanwhile,
    or was kept by another version."""
    if not {DEVICE, TABLES, LOG, SEEN} <= found.keys():
        return None
    poll = select.poll()
    poll.register(found[DEVICE], select.POLLOUT)
    if any(events & select.POLLERR for _, events in poll.poll(0)):
        return None
    try:
        kept = memory_kept.reopen(found[TABLES], found[LOG])
    except AvmError as e:
        log.warning("cannot go on with the mount as it is: %s", e)
        return None
    return kept if kept.fact(_GREETED) else None


def open_among(tables: int, nodes: Collection[int]) -> set[int]:
    """Of these nodes, those of files that a mount has open, whether or not a process serves it now. Raises Invalid for
    what another version has kept, OSError."""
    # Twice: who opens one of them by another handle meanwhile, and closes the first, is seen at least once.
    rows = itertools.chain(*(memory_kept.look(tables, "handles", _NODE) for _ in range(2)))
    return {node for state, node in rows if node in nodes and state & 0xFF == _FILE}


def forget_cached(descriptor: int, tables: int) -> None:
    """Make the kernel look every name up again that it has cached of the mount with this device, and ask again for the
    attributes of what is open. Raises Invalid for what another version has kept, OSError."""
    with contextlib.suppress(OSError):  # unmounted, or before protocol 7.44, when nothing is cached
        os.write(descriptor, p.INC_EPOCH)
    rows = memory_kept.look(tables, "handles", _NODE)
    for node in {node for state, node in rows if state & 0xFF in (_FILE, _LISTING)}:
        with contextlib.suppress(OSError):  # the kernel has forgotten it
            os.write(descriptor, p.inval_attributes(node))


class Handover:
    """One mount's. ``handles`` are those of the predecessor; numbers that it gave out are never given again."""

    def __init__(self, tree: Tree, kept: HandoverState) -> None:
        self._tree = tree
        self.kept = kept
        self._rows, self._log = kept.handles, kept.log
        generation = kept.fact(_GENERATION) + 1
        kept.set_fact(_GENERATION, generation)
        self.generation = generation
        self._count = itertools.count()
        self._given: dict[int, int] = {}  # unique of an OPEN -> its handle
        self._last_write: dict[int, int] = {}  # handle -> unique
        self._listings: dict[int, int] = {}
        self._asked = 0  # how often questions have changed
        self.handles: dict[int, Handle] = {}
        tree.opened.keep = self
        origin = kept.fact(_ORIGIN)
        used = tree.memory.store.keep(kept, origin.to_bytes(8, "big") if origin else None)
        kept.set_fact(_ORIGIN, int.from_bytes(used, "big"))
        self._restore()

    # Uncommitted edits: vfs.files.Keep -----------------------------------------------------------------------

    def edited(self, node: int, edit: Edit, at: int) -> bool:
        data = edit[2] if edit[0] == "w" else _END.pack(edit[2]) if edit[0] == "z" else b""
        return self._log.add(_edits_key(node), _EDIT.pack(_KINDS[edit[0]], edit[1], at), data) > memory_kept.CROWDED

    def committed(self, node: int) -> None:
        self._log.drop(_edits_key(node))

    def gave_up(self, node: int, handles: Iterable[FileHandle], error: AvmError) -> None:
        # First of all the edits are void: a successor commits none of them, and tells all who can write.
        self._log.add(_edits_key(node), _EDIT.pack(_GIVEN_UP, error.code, 0), alone=True)
        for fh, handle in list(self.handles.items()):
            if isinstance(handle, FileHandle) and handle in handles:
                self._rows.set(fh & ((1 << _ROW_BITS) - 1), 0, _state(handle))
        self._log.drop(_edits_key(node))

    # Handles -------------------------------------------------------------------------------------------------

    def opened(self, handle: Handle, unique: int) -> int:
        """Note a handle; the number that the kernel will call it by."""
        if not isinstance(handle, FileHandle):
            return self._note(_VIRTUAL, 0, 0, unique, wire.pack(handover.plain_handle(handle)))
        return self._note(_state(handle), handle.file.node, handle.id, unique)

    def opened_listing(self, node: int, unique: int) -> int:
        return self._note(_LISTING, node, 0, unique)

    def closed(self, fh: int) -> None:
        """A handle is released. Its row may be another's by now, when the request is sent again."""
        row = fh & ((1 << _ROW_BITS) - 1)
        state = self._rows.get(row, 0)
        if state and self._rows.get(row, _FH) == fh:
            if state & 0xFF != _FILE:
                self._log.drop(_handle_key(fh))
            self._rows.free(row)

    def given(self, unique: int) -> int | None:
        """The handle that a resent OPEN, CREATE or OPENDIR had made before."""
        return self._given.get(p.plain_unique(unique))

    def progress(self, fh: int, handle: VirtualHandle, unique: int = 0, data: bytes = b"") -> None:
        """What has become of a virtual handle; ``data`` was written to it by that request."""
        if handover.is_as_opened(handle):
            self._log.add(_handle_key(fh), wire.pack(handover.plain_handle(handle)), alone=True)
        else:
            self._log.add(_handle_key(fh), wire.pack([handover.plain_progress(handle), p.plain_unique(unique), data]))

    def reached(self, fh: int, count: int) -> None:
        """So many bytes of a view were handed out: a number that each read has a new value of is none for the log."""
        self._rows.set(fh & ((1 << _ROW_BITS) - 1), _REACHED, count)

    def written(self, fh: int, unique: int) -> bool:
        """Return whether a predecessor took the bytes of this WRITE to a virtual handle."""
        return self._last_write.get(fh) == p.plain_unique(unique)

    def asked(self) -> None:
        """Questions have changed."""
        with self._tree.memory.mutex:  # who was asked last notes last
            self._asked += 1
            self._log.add(_questions_key(self._asked), wire.pack([self._asked, self._tree.memory.questions]))
            self._log.drop(_questions_key(self._asked - 1))  # afterwards: one of the two is there at any time

    def _note(self, state: int, node: int, identity: int, unique: int, *record: bytes) -> int:
        row = self._rows.take()
        fh = self.generation << 44 | (next(self._count) & 0xFFFFFF) << _ROW_BITS | row
        if record:
            self._log.add(_handle_key(fh), *record)
        self._rows.write(row, state, node, identity, fh, unique & ~p.RESENT)
        return fh

    # Directories ---------------------------------------------------------------------------------------------

    def listed(self, fh: int, offset: int, last: bytes, *, anew: bool) -> None:
        """The reader of a directory has come to ``offset``, right behind the entry ``last``. ``anew``: from the
        beginning."""
        self._log.add(_handle_key(fh), _MARK.pack(offset), last, alone=anew)

    def marks(self, fh: int) -> list[tuple[int, bytes]]:
        """The offsets that the reader of a directory has come to since it began, each with the entry before it."""
        values = self._log.values(_handle_key(fh))
        return [(*_MARK.unpack_from(value), value[_MARK.size :]) for value in values]

    def listings(self) -> dict[int, int]:
        """The directories that a predecessor had open: their nodes by number."""
        return dict(self._listings)

    # Taking over -----------------------------------------------------------------------------------------------

    def leave(self, fd_entry: FdEntry, descriptor: int, seen: int, minor: int, agreed: int) -> None:
        """From now on a successor can take over. On a mount that was taken over itself there is nothing to do."""
        if self.minor:
            return
        self.kept.set_fact(_MINOR, minor)
        self.kept.set_fact(_AGREED, agreed)
        self.kept.set_fact(_GREETED, 1)
        left = ((TABLES, self.kept.tables), (LOG, self.kept.log_file), (SEEN, seen), (DEVICE, descriptor))
        for name, each in left:
            fd_entry.put(name, each)

    @property
    def minor(self) -> int:
        """Of the protocol that the kernel and a predecessor agreed on; 0 when there was none."""
        return self.kept.fact(_MINOR) if self.kept.fact(_GREETED) else 0

    @property
    def agreed(self) -> int:
        """The Init flags that the two agreed on."""
        return self.kept.fact(_AGREED)

    def refresh(self, descriptor: int) -> None:
        """Nothing that the kernel has cached counts any more: names, and the attributes of what is open."""
        forget_cached(descriptor, self.kept.tables)

    def settle(self, resent: set[int]) -> None:
        """The kernel has sent again all that it will, ``resent`` by their plain uniques: what else the predecessor had
        under way is over."""
        self._tree.memory.store.settle(REQUEST, resent)
        self._given = {unique: fh for unique, fh in self._given.items() if unique in resent}

    def _restore(self) -> None:
        known: set[bytes] = set()
        for row, words in list(self._rows.used()):
            state, fh = words[0], words[_FH]
            try:
                self._restore_handle(state, fh, words)
            except (AvmError, wire.FrameError, ValueError, TypeError) as e:
                log.error("an open handle is lost: %s", e)
                self._rows.free(row)
                continue
            known.add(_handle_key(fh))
            self._given[words[_UNIQUE]] = fh
        edited: set[int] = set()
        for key in self._log.all_keys():
            if key[:1] == b"h" and key not in known:
                self._log.drop(key)
            elif key[:1] == b"e":
                edited.add(node := int.from_bytes(key[1:], "big"))
                self._restore_edits(node)
        # Of other nodes the edits were committed and let go of: what is committed next is something else.
        self._tree.memory.store.settle(COMMIT, edited)
        left = [wire.unpack(value) for turn in (0, 1) for value in self._log.values(_questions_key(turn))]
        if left:
            self._asked, questions = max(left, key=itemgetter(0))
            self._log.drop(_questions_key(self._asked - 1))
            self._tree.memory.questions.update(questions)

    def _restore_handle(self, state: int, fh: int, words: list[int]) -> None:
        if state & 0xFF == _FILE:
            bits = (_READABLE, _WRITABLE, _APPENDS, _IN_TRASH)
            readable, writable, appends, in_trash = (bool(state & bit) for bit in bits)
            reopen = self._tree.opened.reopen
            handle = reopen(words[_NODE], readable, writable, appends, words[_ID], in_trash=in_trash)
            if state >> _REFUSED:
                handle.refused = from_wire(state >> _REFUSED, "", None)
            self.handles[fh] = handle
            return
        records = self._log.values(_handle_key(fh))
        if state & 0xFF == _LISTING:
            self._listings[fh] = words[_NODE]
            return
        virtual = handover.handle_from(self._tree.memory, wire.unpack(records[0]), self._tree.injection)
        for record in records[1:]:
            progress, unique, data = wire.unpack(record)
            handover.set_progress(virtual, progress, data)
            if data:
                self._last_write[fh] = unique
        virtual.reached = words[_REACHED]
        self.handles[fh] = virtual

    def _restore_edits(self, node: int) -> None:
        file = self._tree.opened.reopened(node)
        file.dirtied.update(file.writers)
        for record in self._log.values(_edits_key(node)):
            what, at, time = _EDIT.unpack_from(record)
            if what == _GIVEN_UP:
                file.give_up(from_wire(at, "", None))
                return
            file.restore(_edit(what, at, record[_EDIT.size :]), time)
        file.unfinished = self._tree.memory.store.left(COMMIT, node)
        # What others have committed below them meanwhile, nobody knows: with a time of before it would not be read.
        file.moved = self._tree.memory.now()

    # Nodes -----------------------------------------------------------------------------------------------------

    def node_known(self, found: Address) -> tuple[int, int]:
        """Note a virtual node at its first lookup: (its row, a number that no other node has had)."""
        row = self.kept.nodes.take()
        number = self.generation << 40 | (next(self._count) & 0x7FFFFF) << 17 | row
        self._log.add(_node_key(number), wire.pack(handover.plain_address(found)))
        self.kept.nodes.write(row, 1, number, 0)
        return row, number

    def node_counted(self, row: int, count: int) -> None:
        self.kept.nodes.set(row, 2, count)

    def node_forgotten(self, row: int, number: int) -> None:
        self.kept.nodes.free(row)
        self._log.drop(_node_key(number))

    def nodes(self) -> list[tuple[int, int, int, Address]]:
        """The predecessor's: (row, number, lookups, address)."""
        found = []
        for row, words in list(self.kept.nodes.used()):
            try:
                (value,) = self._log.values(_node_key(words[1]))
                found.append((row, words[1], words[2], handover.address_from(wire.unpack(value))))
            except (AvmError, wire.FrameError, ValueError, TypeError) as e:
                log.error("a virtual node is lost: %s", e)
                self.node_forgotten(row, words[1])
        return found


def _state(handle: FileHandle) -> int:
    """Column 0 of an open file's row."""
    how = (handle.readable and _READABLE) | (handle.writable and _WRITABLE) | (handle.appends and _APPENDS)
    return (
        _FILE
        | how
        | (handle.file.in_trash and _IN_TRASH)
        | (0 if handle.refused is None else handle.refused.code << _REFUSED)
    )


def _edit(what: int, at: int, data: bytes) -> Edit:
    if what == _WRITE:
        return ("w", at, data)
    if what == _ZERO:
        return ("z", at, *_END.unpack(data))
    return ("g" if what == _GROW else "t", at)


def _edits_key(node: int) -> bytes:
    return b"e" + node.to_bytes(8, "big")


def _handle_key(fh: int) -> bytes:
    return b"h" + fh.to_bytes(8, "big")


def _questions_key(turn: int) -> bytes:
    return b"q%d" % (turn % 2)


def _node_key(number: int) -> bytes:
    return b"v" + number.to_bytes(8, "big")
