"""What the tree was: the state that a node leaves becomes a row of ``past``, whatever command changed it.

Owns the writing of ``past``, ``past_version`` and ``past_said``. Triggers of the one writing connection tell of every
node that changes, and as what it was at the beginning of the request; at its end each is written down once, in the same
transaction, under the request's change. What is written within a second is one state, as it is one version. Called by
the applier, and by the commands for what no trigger can know: which bytes go on where. Same thread as the connection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import apsw

from avmfs.errors import StoreFailed
from avmfs.store.rows import checksums, content, deltas, kept_versions
from avmfs.store.rows.deltas import SAME, Encoding
from avmfs.store.rows.parts import Parts

log = logging.getLogger(__name__)

TOGETHER_NS: Final = 1_000_000_000
_COLUMNS: Final = "since, parent, name, kind, mode, uid, gid, size, mtime, scope, document, expires"
_OLD: Final = (
    ", ".join(f"{{0}}{column}" for column in _COLUMNS.split(", "))
    + ", coalesce((select head from document where id = {0}document), 0)"
    + ", iif({0}kind = 3, (select data from body where id = {0}body), null)"
)
_WATCHED: Final = "parent, name, kind, mode, uid, gid, size, mtime, scope, document, expires"
_TRIGGERS: Final = {
    "state_ends": f"after update of {_WATCHED} on main.node when old.parent is not null"
    f" begin select avm_was(old.id, {_OLD.format('old.')})",
    "state_goes": f"after delete on main.node when old.parent is not null"
    f" begin select avm_was(old.id, {_OLD.format('old.')})",
    "state_comes": "after insert on main.node begin select avm_came(new.id)",
}
_SEE: Final = f"select {_OLD.format('')} from node where id = ? and parent is not null"
_PAST: Final = (
    f"insert into past(until, node, {_COLUMNS}, version, target)"
    f" values({', '.join('?' * (4 + len(_COLUMNS.split(', '))))})"
)
_BEGAN: Final = "select since, (select at from log where seq = since) from node where id = ?"
_SAID: Final = {
    "tags": "select json_group_array(tag order by tag) from tag where document = ?1",
    "links": "select json_group_array(json_array(source, target, type)) from link where source = ?1 or target = ?1",
    "meta": "select json_array(importance, user) from document where id = ?1",
}
# Of a document that ends: its bytes, and all of its row. Its versions, of which number ?3, if any, gets another body.
_RETIRES: Final = (
    "select head, node.id, node.size, extents, encoding,"
    " coalesce((select min(seq) from version as kept where kept.document = document.id), since),"
    " json_array(document.handle, creator, created, importance, user, shared, node.scope) from document"
    " join node on node.id = node left join version on version.document = document.id and number = head"
    " where document.id = ?"
)
_RETIRE: Final = (
    "insert or replace into past_version(document, number, since, until, at, author, route, size, encoding, body, crc)"
    " select document, number, seq, coalesce(lead(seq) over (order by number), ?2), at, author, route, size,"
    " iif(number = ?3, ?4, encoding), iif(number = ?3, ?5, body), iif(number = ?3, ?6, crc)"
    " from version where document = ?1 order by number"
)
# A version, and those before it that are stated against it.
_FORGET: Final = (
    "delete from past_version where document = ?1 and number <= ?2 and number > coalesce((select max(number)"
    " from past_version where document = ?1 and number < ?2"
    f" and encoding in ({', '.join(str(int(each)) for each in deltas.SELF_CONTAINED)})), 0)"
)
_LINKED: Final = "select target from link where source = ?1 union select source from link where target = ?1"


class Triggers:
    """Temporary triggers of the one writing connection, there as long as somebody wants to hear of what they tell."""

    def __init__(self, db: apsw.Connection, triggers: dict[str, str]) -> None:
        self._db, self._triggers = db, triggers
        self.kept: bool | None = False  # are they there? None: not known

    def keep(self, wanted: bool) -> None:
        """Hear of changes from now on, or no longer."""
        if wanted != self.kept:
            for name, does in self._triggers.items():
                if wanted:
                    self._db.execute(f"create temp trigger if not exists {name} {does}; end")
                else:
                    self._db.execute(f"drop trigger if exists temp.{name}")
        self.kept = wanted

    def forget(self) -> None:
        """The transaction was rolled back, and the triggers with it if they were made in it."""
        self.kept = None


class States(Triggers):
    """See the module. ``keep`` before the first request; ``begin`` and ``settle`` with each."""

    def __init__(self, db: apsw.Connection) -> None:
        super().__init__(db, _TRIGGERS)
        self._was: dict[int, tuple[Any, ...]] = {}
        self._came: set[int] = set()
        self._on: set[int] = set()
        self._ended: list[tuple[int, int, int]] = []  # document, newest version, the change noted as that of its end
        self._said: dict[tuple[int, str], str] = {}
        self.short: Callable[[], bool] = lambda: False
        self.parts: Parts | None = None  # what is known of them, from one step of trimming to the next
        db.create_scalar_function("avm_was", self._left, 15)
        db.create_scalar_function("avm_came", self._comes, 1)

    def _left(self, *told: Any) -> None:
        self._was.setdefault(told[0], told[1:])

    def _comes(self, *told: Any) -> None:
        self._came.add(told[0])

    def begin(self) -> None:
        """A request begins; what one before it did was rolled back if it is still here."""
        self._was.clear()
        self._came.clear()
        self._on.clear()
        self._ended.clear()
        self._said.clear()

    def settle(self, do: Callable[..., object], seq: int | None) -> None:
        """Write down what ended with this request, whose last change is ``seq`` (None: it noted none)."""
        if not (self._was or self._came or self._said):
            return
        if seq is None:
            seq = self._newest()
        for node, was in self._was.items():
            if node in self._came or node in self._on:
                continue
            if was[0] < seq:
                do(_PAST, (seq, node, *was))
            do("update node set since = ? where id = ?", (seq, node))
        for node in self._came:
            do("update node set since = ? where id = ?", (seq, node))
        for document, head, until in self._ended:
            if until != seq:
                do("update past_version set until = ? where document = ? and number = ?", (seq, document, head))
        for (document, what), value in self._said.items():
            do("insert or replace into past_said values(?, ?, ?, ?)", (document, what, seq, value))

    def disown(self, nodes: set[int], documents: set[int]) -> None:
        """What this request did to them is not to be written down."""
        for node in nodes & self._was.keys():
            del self._was[node]
        self._came -= nodes
        self._said = {key: value for key, value in self._said.items() if key[0] not in documents}

    def _newest(self) -> int:
        return int(self._db.execute("select max(seq) from log").get or 0)

    # Of nodes ------------------------------------------------------------------------------------------------

    def see(self, node: int) -> None:
        """It is about to lose what a trigger would look for."""
        row: Any = self._db.execute(_SEE, (node,)).fetchone()
        if row is not None:
            self._left(node, *row)

    def goes_on(self, node: int, now: int) -> None:
        """What has been written is of the state that began a moment ago, and not another one."""
        if node not in self._came and self._recent(*self._began(node), now):
            self._on.add(node)

    def may_amend(self, node: int, version: int, seq: int, now: int, *, appends: bool) -> bool:
        """Return whether the newest version, which is of the change ``seq``, may have other bytes, as far as the past
        needs those that it has. What only appends leaves them be, and makes it one of a later change."""
        if self._snapped(seq):
            return False
        former = "select 1 from past where node = ? and version = ? and size > 0 limit 1"
        return appends or (self._recent(*self._began(node), now) and not self._db.execute(former, (node, version)).get)

    def _began(self, node: int) -> tuple[int, int | None]:
        row: Any = self._db.execute(_BEGAN, (node,)).fetchone()
        return row[0], row[1]

    def _recent(self, since: int, at: int | None, now: int) -> bool:
        return at is not None and now - at <= TOGETHER_NS and not self._snapped(since)

    def _snapped(self, since: int) -> bool:
        """Whether a snapshot has what there is since this change: the state of a node, or its document's newest
        version, which is amended no more then. So whatever snapshot has a version is none of before its ``seq``."""
        return bool(self._db.execute("select 1 from snapshot where seq >= ? limit 1", (since,)).get)

    # Of documents --------------------------------------------------------------------------------------------

    def says(self, document: int, *about: str) -> None:
        """What is said of it is about to be otherwise."""
        for what in about:
            if (document, what) not in self._said:
                value = self._db.execute(_SAID[what], (document,)).get
                if value is not None:
                    self._said[document, what] = value

    def retire(
        self,
        document: int,
        most: int,
        becomes: tuple[int, int] | None,
        seq: int,
        *,
        tagged: bool,
        linked: bool,
    ) -> bool:
        """A document is about to end: what was said of it is the past's, and so are its versions. False where these are
        not to be kept: no snapshot has one, and there is no room, or the file alone has more than ``most`` bytes.
        ``becomes``: another document and its version that will have these bytes. ``seq``: of the request's newest
        change so far. What is not said of it, no row has to tell."""
        row: Any = self._db.execute(_RETIRES, (document,)).fetchone()
        if row is None:
            return False
        head, node, size, extents, encoding, since, value = row
        self._said.setdefault((document, "document"), value)
        self.says(document, *["tags"] * tagged, *["links"] * linked)
        if not head:
            return True
        others: list[Any] = self._db.execute(_LINKED, (document,)).fetchall() if linked else []
        for (other,) in others:
            self.says(other, "links")
        if (size > most or self.short()) and not self._snapped(since):
            return False
        kept: tuple[int, Encoding, bytes | None, int | None] = 0, Encoding.HEAD, None, None
        damage: StoreFailed | None = None
        if encoding == Encoding.HEAD:
            try:
                if becomes is not None and head == 1 and not self._snapped(since):
                    stated: tuple[Encoding, bytes | None] = Encoding.SAME, SAME.pack(*becomes)
                elif extents:
                    stated = Encoding.MAP, content.take_map(self._db, node)
                else:
                    stated = deltas.keyframe(content.read(self._db, node, size, False, 0, size))
                kept = head, *stated, None if stated[1] is None else checksums.crc(stated[1])
            except StoreFailed as e:  # the file goes all the same
                damage = e
        self._ended.append((document, head, seq))
        self._db.execute(_RETIRE, (document, seq, *kept))
        if damage is not None:
            _forget(self._db, document, head, damage)
        return True

    def keep_for_snapshots(self, document: int, up_to: int) -> None:
        """Versions up to this number are about to be forgotten: those of a snapshot are the past's."""
        if not self._db.execute("select 1 from snapshot limit 1").get:
            return
        rows: list[Any] = self._db.execute(
            "select number from (select number, seq as began, lead(seq) over (order by number) as later from version"
            " where document = ?1 and number <= ?2 + 1) where number <= ?2"
            " and exists (select 1 from snapshot where seq >= began and seq < later)",
            (document, up_to),
        ).fetchall()
        for (number,) in rows:
            self._db.execute(
                "insert or ignore into past_version(document, number, since, until, at, author, route, size, encoding)"
                " select document, number, seq, (select seq from version where document = ?1 and number = ?2 + 1), at,"
                " author, route, size, 1 from version where document = ?1 and number = ?2",
                (document, number),
            )
            stand_alone(self._db, document, number)


def stand_alone(db: apsw.Connection, document: int, number: int) -> None:
    """State a version that is the past's so that it needs no later one: of a large file by its blocks, which get one
    owner more. One that is damaged is forgotten."""
    try:
        packed = kept_versions.in_blocks(db, document, number)
        data = kept_versions.read(db, document, number) if packed is None else None
    except StoreFailed as e:
        _forget(db, document, number, e)
        return
    if packed is None:
        assert data is not None, "no version of the past that is another document's is stated anew"
        encoding, body = deltas.keyframe(data)
    else:
        encoding, body = Encoding.MAP, content.own_map(db, packed)
    db.execute(
        "update past_version set encoding = ?, body = ?, crc = ? where document = ? and number = ?",
        (int(encoding), body, None if body is None else checksums.crc(body), document, number),
    )


def _forget(db: apsw.Connection, document: int, number: int, damage: StoreFailed) -> None:
    """The past does not keep a version that cannot be read, nor what is stated against it: nobody else is to fail
    because of it."""
    log.error("%s: version %d of it is not kept as of the past", damage, number)
    db.execute(_FORGET, (document, number))
