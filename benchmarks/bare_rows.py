"""The least that SQLite has to do for one file operation: the baseline "C + SQLite" of bench_mount.

One connection a client process, on a database that all of them share (WAL, synchronous=FULL, busy handler). Each
operation is one durable transaction with the rows that any store with history and exactly-once requests must write:
the node, its bytes, the version that they supersede, the log, the reply kept for a resend, the queue of what is to be
indexed. A new name is visible to others before its bytes are durable, so creating is one commit that is not synced
and one that is. Nothing checks rights, folds scopes, states versions as differences, or indexes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

BUSY_TIMEOUT_MS = 60_000

SCHEMA = """
create table if not exists node (
    id integer primary key, parent int not null, name blob not null, size int not null, version int not null,
    changed int not null, unique (parent, name)
);
create table if not exists body (node integer primary key, data blob not null);
create table if not exists version (
    node int not null, number int not null, body blob, primary key (node, number)
) without rowid;
create table if not exists log (
    seq integer primary key, at int not null, op text not null, node int not null, path text not null
);
create table if not exists applied (client blob primary key, number int not null, reply blob not null) without rowid;
create table if not exists queue (turn integer primary key, node int not null unique);
"""


class BareRows:
    """Paths are "DIRECTORY/NAME"; a directory is its hash, for nothing here lists one's parents."""

    def __init__(self, database: Path, client: str) -> None:
        self._db = apsw.Connection(str(database))
        self._db.set_busy_timeout(BUSY_TIMEOUT_MS)
        self._db.execute("pragma journal_mode = wal").fetchall()
        self._sync("full")
        self._client = client.encode()
        self._number = 0
        self._db.execute("begin immediate")
        for _ in self._db.execute(SCHEMA):
            pass
        self._db.execute("commit")

    # Reading -------------------------------------------------------------------------------------------

    def look(self, path: str) -> tuple[int, int] | None:
        """(node, size) or None."""
        parent, name = _split(path)
        found: tuple[int, int] | None = self._db.execute(
            "select id, size from node where parent = ? and name = ?", (parent, name)
        ).fetchone()
        return found

    def read(self, path: str) -> bytes:
        found = self.look(path)
        assert found is not None, path
        return bytes(self._db.execute("select data from body where node = ?", (found[0],)).get)

    def names(self, folder: str) -> list[bytes]:
        parent, _ = _split(f"{folder}/x")
        return [row[0] for row in self._db.execute("select name from node where parent = ? order by name", (parent,))]

    # Writing -------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> None:
        """Two commits: see the module."""
        self.create_name(path)
        self.create_body(path, data)

    def create_name(self, path: str) -> None:
        parent, name = _split(path)
        self._sync("normal")
        with self._transaction():
            self._db.execute(
                "insert into node(parent, name, size, version, changed) values(?, ?, 0, 0, ?)",
                (parent, name, time.time_ns()),
            )
            self._note("create", self._db.last_insert_rowid(), path)
        self._sync("full")

    def create_body(self, path: str, data: bytes) -> None:
        with self._transaction():
            found = self.look(path)
            assert found is not None, path
            self._replace(found[0], data, None)
            self._note("write", found[0], path)

    def overwrite(self, path: str, data: bytes) -> None:
        with self._transaction():
            found = self.look(path)
            assert found is not None, path
            old = self._db.execute("select data from body where node = ?", (found[0],)).get
            self._replace(found[0], data, old)
            self._note("write", found[0], path)

    def append(self, path: str, data: bytes) -> None:
        with self._transaction():
            found = self.look(path)
            assert found is not None, path
            self._db.execute("update body set data = data || ? where node = ?", (data, found[0]))
            self._stamp(found[0], found[1] + len(data), None)
            self._note("write", found[0], path)

    def rename(self, path: str, target: str) -> None:
        (parent, name), (to, called) = _split(path), _split(target)
        with self._transaction():
            [(node,)] = self._rows(
                "update node set parent = ?, name = ?, changed = ? where parent = ? and name = ? returning id",
                (to, called, time.time_ns(), parent, name),
            )
            self._note("rename", node, target)

    def unlink(self, path: str) -> None:
        parent, name = _split(path)
        with self._transaction():
            [(node,)] = self._rows("delete from node where parent = ? and name = ? returning id", (parent, name))
            self._db.execute("delete from body where node = ?", (node,))
            self._db.execute("delete from version where node = ?", (node,))
            self._note("remove", node, path)

    def _replace(self, node: int, data: bytes, old: bytes | None) -> None:
        self._db.execute("insert or replace into body(node, data) values(?, ?)", (node, data))
        self._stamp(node, len(data), old)

    def _stamp(self, node: int, size: int, old: bytes | None) -> None:
        [(version,)] = self._db.execute(
            "update node set size = ?, version = version + 1, changed = ? where id = ? returning version",
            (size, time.time_ns(), node),
        ).fetchall()
        self._db.execute("insert into version(node, number, body) values(?, ?, ?)", (node, version, old))
        self._db.execute("insert or ignore into queue(node) values(?)", (node,))

    def _note(self, op: str, node: int, path: str) -> None:
        self._number += 1
        now = time.time_ns()
        self._db.execute("insert into log(at, op, node, path) values(?, ?, ?, ?)", (now, op, node, path))
        self._db.execute(
            "insert or replace into applied(client, number, reply) values(?, ?, ?)",
            (self._client, self._number, b"%d" % node),
        )

    def _rows(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        return list(self._db.execute(statement, values))

    def _sync(self, how: str) -> None:
        self._db.execute(f"pragma synchronous = {how}").fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("begin immediate")
        try:
            yield
            self._db.execute("commit")
        except BaseException:
            self._db.execute("rollback")
            raise


def _split(path: str) -> tuple[int, bytes]:
    folder, _, name = path.rpartition("/")
    number = 0
    for byte in folder.encode():  # FNV-1a, 63 bits: the same in every process
        number = ((number ^ byte) * 1099511628211) & ((1 << 63) - 1)
    return number, name.encode()
