"""What a writing connection remembers, so as not to ask the database again.

Owns the scopes in memory, which readers keep too, and ``WriterMemo``. Called by ``transaction`` and the applier. Each
of these is right as long as no other connection writes, and is forgotten otherwise and after a rollback.
"""

from __future__ import annotations

from typing import Any

import apsw

from avmfs import paths
from avmfs.access import Area, Policy
from avmfs.lru import FIFO
from avmfs.node import Node
from avmfs.store.rows.scopes import Scopes
from avmfs.trust import OWN, Origin

_DIRECTORIES = 50_000  # remembered ones
_PLACES = 4096
_QUEUED = 50_000
_LEFT = 10_000
_APPENDED, _APPENDS = 200, 500  # files, and of each the latest
_Appends = tuple[tuple[int, int, int], ...]
# Of all that changes nodes, whatever command does it: a directory that is not what it was. Its times are not kept.
_WATCH = """
create temp trigger directory_changes
  after update of parent, name, kind, mode, uid, gid, scope, document, expires on main.node when old.kind = 2
  begin select avm_directory(old.id); end;
create temp trigger directory_goes after delete on main.node when old.kind = 2
  begin select avm_directory(old.id); end;
"""


class WriterMemo:
    """Scopes, the areas of API keys, directories and where they stand, what waits to be indexed, which names files have
    left, what was appended. The applier calls ``renew`` where others may have written, and ``forget`` after a
    rollback."""

    def __init__(self) -> None:
        self.scopes = Scopes()
        self.areas: tuple[Area, ...] = ()
        self.moved = False  # did this request change areas, or where a directory stands?
        self.waiting = 0  # documents that have come to wait for the next step of indexing, ever; rolled back ones too
        self.queued: set[int] = set()  # documents of which it is certain that they wait in both queues
        self.places: FIFO[int, tuple[bytes, ...]] = FIFO(_DIRECTORIES)  # of directories: names from the root
        self._directories: FIFO[int, Node] = FIFO(_DIRECTORIES)
        self._watching = False
        # By a directory above, whose space it is, and :shared; and of which top ones no rule looks at what is below.
        self._placed: FIFO[tuple[tuple[bytes, ...], str | None, tuple[str, ...] | None, Origin], int] = FIFO(_PLACES)
        self._uniform: dict[tuple[bytes, ...], bool] = {}
        self._placed_by: Policy | None = None
        # By node: when something was appended, to which size, and the mtime that the file got. Kept through all else
        # that is forgotten: where the file has the last one's, nobody has done anything to its bytes since.
        self._appended: FIFO[int, _Appends] = FIFO(_APPENDED)
        # What stood there before, by node, in the order in which the open transaction has changed it.
        self.undo: list[tuple[int, _Appends]] = []
        self._left: set[tuple[int, bytes]] = set()
        self._left_since: int | None = None

    def renew(self, db: apsw.Connection) -> None:
        """Others may have written: start from what the database says."""
        self.places.clear()
        self._directories.clear()
        self.queued.clear()
        self._left_since = None
        self.scopes.load(db)
        self.read_areas(db)

    def read_areas(self, db: apsw.Connection) -> None:
        rows: list[Any] = db.execute("select id, path from area").fetchall()
        self.areas = tuple((number, tuple(bytes(path).split(b"/")[1:])) for number, path in rows)

    def doubt(self, since: int) -> None:
        """A command was rolled back, and with it perhaps what was read after it had changed it. ``since``: how much
        there was to ``undo`` before it."""
        self._directories.clear()
        self.queued.clear()
        while len(self.undo) > since:
            self._know(*self.undo.pop())

    def forget(self) -> None:
        """Rolled back: what was learnt in the transaction may not be so."""
        self.places.clear()
        self._placed.clear()
        self.scopes.forget()

    def scope(
        self,
        db: apsw.Connection,
        policy: Policy,
        parts: tuple[bytes, ...],
        shared: tuple[str, ...] | None,
        origin: Origin = OWN,
    ) -> int:
        """The interned scope of a place. Without areas, and where the rules do not look at names, all places of a space
        below one directory have the same."""
        inside = paths.origin(parts)
        if self.areas or len(inside) < 2:
            return self.scopes.intern(db, policy.scope(parts, shared, self.areas, origin))
        if policy is not self._placed_by:
            self._placed.clear()
            self._uniform.clear()
            self._placed_by = policy
        top = parts[:1]
        directory = (*top, *inside[1:-1])  # of what is at the top of a further mirror, too, the one above its space
        uniform = self._uniform.get(top)
        if uniform is None:
            uniform = self._uniform[top] = policy.uniform(top)
        place = top if uniform else directory, paths.agent_space(parts), shared, origin
        found = self._placed.get(place)
        if found is None:
            found = self.scopes.intern(db, policy.scope(parts, shared, (), origin))
            if uniform or policy.uniform(directory):
                self._placed.put(place, found)
        return found

    def queue(self, document: int) -> bool:
        """Return whether the document has to be put into the queues. From now on it is in both."""
        if document in self.queued:
            return False
        if len(self.queued) > _QUEUED:
            self.queued.clear()
        self.queued.add(document)
        self.waiting += 1
        return True

    def appended(self, node: Node, at: int, mtime: int) -> None:
        """Bytes come behind those that a file has, which gets ``mtime``."""
        self._change(node, (*self._appends(node)[1 - _APPENDS :], (at, node.size, mtime)))

    def written(self, node: Node) -> None:
        """A file's bytes change otherwise."""
        if node.id in self._appended:
            self._change(node, ())

    def appended_since(self, node: Node, since: int) -> list[tuple[int, int]]:
        """What has been appended to a file since then, as far as that is known: when, and to which size. Whoever has
        seen an append is later than that."""
        return [(at, size) for at, size, _ in self._appends(node) if at >= since and size < node.size]

    def still_appended(self, node: Node, appends: list[tuple[int, int]], behind: int) -> None:
        """A file's bytes have changed otherwise, and what was appended are its last bytes still, ``behind`` of them."""
        moved = node.size - behind - appends[0][1]
        self._change(node, tuple((at, size + moved, node.mtime) for at, size in appends))

    def _appends(self, node: Node) -> _Appends:
        appends = self._appended.get(node.id)
        return () if appends is None or appends[-1][2] != node.mtime else appends

    def _change(self, node: Node, appends: _Appends) -> None:
        self.undo.append((node.id, self._appended.get(node.id, ())))
        self._know(node.id, appends)

    def _know(self, node: int, appends: _Appends) -> None:
        if appends:
            self._appended.put(node, appends)
        else:
            self._appended.pop(node, None)

    def left(self, parent: int, name: bytes) -> None:
        """A file leaves this name for another one."""
        if len(self._left) > _LEFT:
            self._left.clear()
            self._left_since = None
        self._left.add((parent, name))

    def may_have_left(self, parent: int, name: bytes, now: int, within: int) -> bool:
        """Return whether a file could have left this name in the last ``within`` ns. True while that cannot be
        known."""
        if self._left_since is None:
            self._left_since = now
        return (parent, name) in self._left or now - self._left_since <= within

    def forget_directories(self) -> None:
        """One moves or goes, and with it all below."""
        self.moved = True
        self.places.clear()

    def watch(self, db: apsw.Connection) -> None:
        """From now on nodes of directories may be kept: their changes are heard of. Outside a transaction."""
        db.create_scalar_function("avm_directory", self._changed, 1)
        for _ in db.execute(_WATCH):
            pass
        self._watching = True

    def _changed(self, *told: Any) -> None:
        self._directories.pop(told[0], None)

    def directory(self, node: int) -> Node | None:
        """A directory, right but for its times; None when it has to be asked."""
        return self._directories.get(node)

    def keep_directory(self, node: Node) -> None:
        if self._watching:
            self._directories.put(node.id, node)
