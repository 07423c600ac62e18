"""What a transaction has changed as a record of the shared log, and laying such records down on another host.

Owns the form of a record's data, and one connection, on which records are applied: without triggers, whose doings are
in the record as well. Beside the rows (a patchset of SQLite's session extension) a record has what that cannot see, the
words of passages, whose index is a virtual table; and what caches have to hear. Where this store stands in the log
(``log_position``) is in no record.

Records are applied in order to a store that is equal to the one that they were made on, so nothing can be in their way.
If something is, the stores differ: that is damage, and nothing more is applied. A record names the one that it follows,
by its token: in a log that has lost its end and grown another one, what fits by chance is not taken for what follows.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import apsw

from avmfs import wire
from avmfs.errors import Invalid, StoreFailed
from avmfs.store.rows.log_ops import Event
from avmfs.store.rows.log_position import place, position
from avmfs.store.rows.nodes import LogRow
from avmfs.store.schema import database, tables
from avmfs.store.sharedlog.protocol import Record

Words = Sequence[tuple[int, str | None]]

_FORM: Final = 2  # the first had not whom it follows
_OWN: Final = ("sqlite_", "terms_")  # tables of each host alone: SQLite's, and the words' index, made by statements
_SETTINGS: Final = "setting"  # some of its rows go without a record: 'unwiped', once this host's file is written anew


def session(db: apsw.Connection) -> apsw.Session:
    """Of what the transaction that was just begun is going to change."""
    made = apsw.Session(db, "main")
    made.config(apsw.SQLITE_SESSION_OBJCONFIG_ROWID, True)  # outbox_cursor has no key: it would be in no record
    made.table_filter(lambda table: not table.startswith(_OWN))
    made.attach()
    return made


def packed(patch: bytes, words: Words, rows: Sequence[LogRow], events: Sequence[Event], last: str) -> bytes:
    """A record's data. ``last``: the token of the one before it."""
    told = [tuple(event)[1:] for event in events]
    return zlib.compress(wire.pack([_FORM, tables.VERSION, patch, words, rows, told, last]), 1)


def unpacked(record: Record) -> list[Any]:
    """What ``packed`` took, behind its form and the version of the tables. Raises StoreFailed."""
    try:
        found: list[Any] = wire.unpack(zlib.decompress(record.data))
    except (zlib.error, wire.FrameError, ValueError) as e:
        raise StoreFailed(f"record {record.number} of the shared log is damaged: {e}") from None
    return found


@dataclass(slots=True)
class Applied:
    """What caches have to hear of, and the rows of the log."""

    rows: list[LogRow] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    settings: bool = False  # may the store's settings, the rules among them, be others?


class Replica:
    """The store as others change it. ``at``: where it stands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = database.connect(path, writable=True)
        database.run(self.db, "pragma synchronous = normal")
        self.db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        at = position(self.db)
        if at is None:
            self.db.close()
            says = "this store is not one of the shared log's: avm cluster init begins with it, avm cluster join brings"
            raise Invalid(f"{says} the log's own", str(path))
        self.at = at

    def apply(self, records: Sequence[Record]) -> Applied:
        """Lay down those that follow, in one transaction: all or none. Raises StoreFailed where they do not fit, for
        one that this program cannot read too."""
        done = Applied()
        fresh = [record for record in records if record.number > self.at.number]
        if not fresh:
            return done
        last = self.at.last
        with database.translated(self.path), database.transaction(self.db):
            for number, record in enumerate(fresh, self.at.number + 1):
                if record.number != number:
                    raise StoreFailed(f"record {number} of the shared log is missing; the newest are joined anew")
                self._apply(record, last, done)
                last = record.token.hex()
            after = replace(self.at, number=fresh[-1].number, last=last)
            place(self.db, after)
        self.at = after
        return done

    def _apply(self, record: Record, last: str, done: Applied) -> None:
        form, version, patch, words, rows, events, *follows = unpacked(record)
        if form > _FORM or version > tables.VERSION:
            raise StoreFailed(
                f"record {record.number} of the shared log was written by a newer avmfs on {record.host}: this host"
                " follows when it has it too"
            )
        if last and follows not in ([], [""], [last]):
            raise StoreFailed(
                f"record {record.number} of the shared log ({record.host}) does not follow what this host has: the log"
                " has lost records that were applied here; avm cluster join brings the store anew"
            )
        done.settings = done.settings or _SETTINGS.encode() in patch
        if sum(row[2] == "rename" for row in rows) > 1:
            self._make_way(patch)
        try:
            apsw.Changeset.apply(patch, self.db, conflict=_conflict)
        except apsw.AbortError:
            raise StoreFailed(
                f"record {record.number} of the shared log ({record.host}) does not fit this store, which is not what"
                " it should be: avm cluster join brings it anew"
            ) from None
        for passage, text in words:
            if text is None:
                self.db.execute("delete from terms where rowid = ?", (passage,))
            else:
                self.db.execute("insert into terms(rowid, t) values(?, ?)", (passage, text))
        if any(row[2] == "purge" for row in rows):
            # Where whoever purged was due already, the record changes a row that this host has no more.
            self.db.execute("insert or replace into setting(key, value) values('unwiped', '1')")
        done.rows += [(row[0], row[1], row[2], row[3]) for row in rows]
        done.events += [Event(b"", *event) for event in events]

    def _make_way(self, patch: bytes) -> None:
        """Two that trade names are each in the other's way, whichever comes first: take them aside before."""
        for change in apsw.Changeset.iter(patch):
            if change.name == "node" and change.op == "UPDATE" and change.old and change.new:
                node, parent, name = change.old[0], change.new[1], change.new[2]
                if name is not apsw.no_change:
                    self.db.execute("update node set name = ? where id = ?", (f"/{node}".encode(), node))
                elif parent is not apsw.no_change:
                    self.db.execute("update node set parent = -id where id = ?", (node,))

    def agree(self, rules: str) -> None:
        """Note that this host has the rules that are in force."""
        if rules != self.at.rules:
            at = replace(self.at, rules=rules)
            with database.translated(self.path):
                place(self.db, at)
            self.at = at

    def close(self) -> None:
        self.db.close()


def _conflict(reason: int, change: apsw.TableChange) -> int:
    if change.name != _SETTINGS:
        return int(apsw.SQLITE_CHANGESET_ABORT)
    if reason == apsw.SQLITE_CHANGESET_CONFLICT:
        return int(apsw.SQLITE_CHANGESET_REPLACE)
    return int(apsw.SQLITE_CHANGESET_OMIT)
