"""What commits have changed, told in shared memory: whoever remembers nodes need not ask the database.

Owns a file that the writer and the processes of its daemon map: a ring of records, one for each commit, in order. A
record is the header of the WAL index as the commit left it (``wal_header``), and a part for each request that was
committed: the rows that it appended to the log, and the columns NODE of every node that is otherwise since then: those
that the log names, and those that a hook of the writing connection has heard of, so that none is left out. Before all
that it says whom each part concerns, in words of the machine: of sixteen mounts that each work in a place of their own,
every one passes over what the others did without unpacking it, also where it was committed together with what this one
did. Who has heard of all records up to one whose header is the present one knows what the database says of these nodes,
without a statement, a lock or a page.

The writer tells after COMMIT and before the replies; who looks in between finds no record for the header, and asks the
database. So does everybody when the writer was replaced (another generation), when a commit was too large to be told,
or when so much was written that the ring went round. Nothing here has to be durable, and nobody waits for anybody.

All of the file's readers can read the database as well: a record says nothing that they could not ask.

Words are stored whole, and in order where it matters: taking a lock is a full memory barrier.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import secrets
import struct
import threading
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from avmfs import wire
from avmfs.store.files.displaced import OpenStoreFiles
from avmfs.store.files.wal_header import HEADER
from avmfs.store.rows.log_ops import ChangedNode, concerned
from avmfs.store.rows.nodes import NODE, LogRow
from avmfs.store.schema.database import translated

log = logging.getLogger(__name__)

SUFFIX: Final = ".news"  # of the file, beside the writer's socket
_GENERATION, _END = 0, 1  # words: who tells, 0 nobody; bytes told so far
_AT: Final = 4096  # where the ring begins
_ROOM: Final = 1 << 18
_LONGEST: Final = 1 << 14  # what a record says
_MOST: Final = 64  # rows, and nodes, of a request that is told
_MOST_PARTS: Final = 256
_MOST_NUMBERS: Final = 1024
_WORD: Final = 8
# A record: its bytes, how many parts and how many numbers follow, its newest row, its newest scope or _ALL, the header
# of the WAL index. Then of each part: how many of the numbers are its own, bytes, scope. Then the numbers of the nodes
# and directories that it concerns (``log_ops.concerned``), part by part; then rows and nodes of each part, packed.
_HEAD: Final = struct.Struct(f"=IIIQQ{HEADER}s")
_PART: Final = struct.Struct("=IIQ")
_ALL: Final = (1 << 64) - 1  # it concerns everybody
_MORE: Final = _HEAD.size + _MOST_PARTS * _PART.size + _MOST_NUMBERS * _WORD + _LONGEST  # than this no record adds
_NODE: Final = f"select {NODE} from node where id = ?"

_PARENT, _KIND, _SCOPE = (NODE.split(", ").index(column) for column in ("parent", "kind", "scope"))


class Part(NamedTuple):
    """What one request has changed. ``numbers``: the nodes and directories that it concerns; everybody where ``scope``,
    the newest one that it has used, is higher than all there are."""

    scope: int
    numbers: Collection[int]
    packed: bytes | memoryview

    def unpacked(self) -> tuple[list[list[Any]], list[list[Any]]]:
        """Rows of the log as (seq, scope, op, node), nodes; of one that is gone only its id."""
        rows, nodes = wire.unpack(self.packed)
        return rows, nodes


class Record(NamedTuple):
    """One commit. ``scope`` and ``numbers`` are those of all its parts."""

    header: bytes
    seq: int
    scope: int
    numbers: list[int]
    table: memoryview
    packed: memoryview

    def concerning(self, scope: int, held: Set[int], coming: Set[int]) -> Iterator[Part]:
        """The parts, in the order in which they were done, that are of a scope beyond this one or concern a node or
        directory that is in one of these sets when it is its turn."""
        numbers = self.numbers
        if scope >= self.scope and held.isdisjoint(numbers) and coming.isdisjoint(numbers):
            return
        first = begin = 0
        for count, size, newest in _PART.iter_unpack(self.table):
            own = numbers[first : first + count]
            if newest > scope or not held.isdisjoint(own) or not coming.isdisjoint(own):
                yield Part(newest, own, self.packed[begin : begin + size])
            first, begin = first + count, begin + size


def recorded(header: bytes, seq: int, parts: Sequence[Part]) -> bytes:
    """A record as it is told; empty when it says too much for that."""
    numbers = array("Q", (number for part in parts for number in part.numbers))
    said = b"".join(part.packed for part in parts)
    if len(said) > _LONGEST or len(numbers) > _MOST_NUMBERS or len(parts) > _MOST_PARTS:
        return b""
    table = b"".join(_PART.pack(len(part.numbers), len(part.packed), part.scope) for part in parts)
    rest = table + numbers.tobytes() + said
    scope = max((part.scope for part in parts), default=0)
    return _HEAD.pack(_HEAD.size + len(rest), len(parts), len(numbers), seq, scope, header) + rest


def records_in(data: bytes) -> list[Record]:
    """Of one record after the other."""
    found, view, at = [], memoryview(data), 0
    while at < len(data):
        size, parts, count, seq, scope, header = _HEAD.unpack_from(data, at)
        begin = at + _HEAD.size
        middle = begin + parts * _PART.size
        end, at = middle + count * _WORD, at + size
        numbers = view[middle:end].cast("Q").tolist()
        found.append(Record(header, seq, scope, numbers, view[begin:middle], view[end:at]))
    return found


def beside(socket: Path) -> Path:
    """Where the writer with this socket tells."""
    return socket.with_suffix(SUFFIX)


def _told(row: Sequence[Any]) -> ChangedNode:
    return ChangedNode(row[0], row[_PARENT], row[_KIND], row[_SCOPE])


class _Ring:
    """The file, mapped."""

    def __init__(self, descriptor: int, access: int) -> None:
        self._map = mmap.mmap(descriptor, _AT + _ROOM, access=access)
        self.words = memoryview(self._map)[:_AT].cast("Q")
        self._mutex = threading.Lock()

    def barrier(self) -> None:
        with self._mutex:
            pass

    def put(self, at: int, data: bytes) -> None:
        at %= _ROOM
        first = data[: _ROOM - at]
        self._map[_AT + at : _AT + at + len(first)] = first
        if rest := len(data) - len(first):
            self._map[_AT : _AT + rest] = data[-rest:]

    def get(self, at: int, size: int) -> bytes:
        at %= _ROOM
        first = self._map[_AT + at : _AT + min(at + size, _ROOM)]
        return first if len(first) == size else first + self._map[_AT : _AT + size - len(first)]


def _made(path: Path) -> _Ring | None:
    """That of a killed writer, which others have mapped, goes on."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _AT + _ROOM)  # a page without room for it would kill us (SIGBUS)
            return _Ring(descriptor, mmap.ACCESS_WRITE)
        finally:
            os.close(descriptor)
    except OSError as e:
        log.warning("no room to tell other processes what is committed, so they will have to ask: %s", e)
        return None


class ChangeRing:
    """The writer's side, of its one connection to ``database``. ``header`` reads the WAL index, ``appended`` gives all
    rows that were appended to the log since it was called last. Where there is no room for the file nothing is told."""

    def __init__(
        self,
        db: apsw.Connection,
        database: Path,
        socket: Path,
        header: Callable[[], bytes],
        appended: Callable[[], list[LogRow]],
    ) -> None:
        self._db = db
        self._translated = translated(database)
        self._header, self._appended = header, appended
        self._changed: set[int] = set()  # nodes, since ``gather``
        self._parts: list[Part] | None = []  # since the last record; None: too much to be told
        self._appended()  # whoever follows begins with what is in the database
        self._seq: int = db.execute("select max(seq) from log").get or 0
        self._newest = self._seq  # row of the log, of what has yet to be committed as well
        self._path = beside(socket)
        self._ring = _made(self._path)
        if self._ring is not None:
            self._begin_anew(self._ring)
            db.set_update_hook(self._row_changed)

    def hear(self, db: apsw.Connection) -> None:
        """Of another connection that changes nodes, in the same thread."""
        if self._ring is not None:
            db.set_update_hook(self._row_changed)

    def close(self) -> None:
        if self._ring is not None:
            self._ring.words[_GENERATION] = 0
        self._path.unlink(missing_ok=True)
        self._db.set_update_hook(None)

    def _begin_anew(self, ring: _Ring) -> None:
        """Nobody can follow from what was told before to what comes."""
        ring.words[_GENERATION] = 0
        ring.barrier()
        ring.words[_END] = self._end = 0
        ring.barrier()
        ring.words[_GENERATION] = secrets.randbits(63) | 1

    def _row_changed(self, what: int, database: str, table: str, row: int) -> None:
        if table == "node" and len(self._changed) <= _MOST:
            self._changed.add(row)

    def gather(self) -> None:
        """Inside the transaction, when a request is done: see what it has changed. After a commit it can be done as
        well."""
        rows = self._appended()
        if self._ring is None or not (rows or self._changed):
            return
        if rows:
            self._newest = rows[-1][0]
        changed, self._changed = self._changed, set()
        changed.update(row[3] for row in rows if row[3])
        if self._parts is None or len(rows) > _MOST or len(changed) > _MOST:
            self._parts = None
            return
        execute = self._db.execute
        with self._translated:
            nodes: list[Any] = [execute(_NODE, (number,)).fetchone() or (number,) for number in changed]
        told = [ChangedNode(node[0], None, None, 0) if len(node) == 1 else _told(node) for node in nodes]
        everybody, numbers = concerned(rows, told)
        scope = _ALL if everybody else max((node.scope for node in told), default=0)
        self._parts.append(Part(scope, numbers, wire.pack([rows, nodes])))

    def lost(self) -> None:
        """The transaction was rolled back."""
        self._parts, self._newest = [], self._seq

    def tell(self) -> None:
        """After COMMIT, of all that was changed since this was called last."""
        ring = self._ring
        if ring is None:
            return
        self.gather()
        parts, self._parts, self._seq = self._parts, [], self._newest
        record = b"" if parts is None else recorded(self._header(), self._seq, parts)
        if not record:
            self._begin_anew(ring)
            return
        ring.put(self._end, record)
        ring.barrier()
        self._end += len(record)
        ring.words[_END] = self._end


class Follower:
    """A reader's side. One thread at a time."""

    def __init__(self, socket: Path) -> None:
        self._path = beside(socket)
        self._ring: _Ring | None = None
        self._generation = 0
        self._at = 0
        self._file = OpenStoreFiles(self._path)

    def take(self) -> list[Record] | None:
        """All records since the last call; None when some may be missing. What was committed before those that come
        next is in the database by now."""
        ring = self._ring or self._opened()
        if ring is None:
            return None
        words = ring.words
        generation, at = words[_GENERATION], self._at
        ring.barrier()
        end = words[_END]
        if generation != self._generation or not generation or end - at > _ROOM - _MORE or end < at:
            self._generation, self._at = generation, end
            if not generation:
                self._ring = None  # that writer has left in order: the next one makes another file
            return None
        if end == at and self._file.displaced():  # the name was removed: the next writer tells in another file
            self._ring = None
            return None
        ring.barrier()
        data = ring.get(at, end - at)
        ring.barrier()
        self._at = end
        if words[_GENERATION] != generation or words[_END] + _MORE - at > _ROOM:
            self._generation = 0
            return None
        return records_in(data)

    def _opened(self) -> _Ring | None:
        """None while no writer has begun to tell."""
        with contextlib.suppress(FileNotFoundError, ValueError):  # not there yet, or not of its size yet
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._ring = _Ring(descriptor, mmap.ACCESS_READ)
                self._file = OpenStoreFiles(self._path)
            finally:
                os.close(descriptor)
        return self._ring
