"""The baseline of bench_store: SQLite and nothing else, from as many processes as there are clients.

Each write is a transaction of its own: a node row, a version row with the body, a log row, durable at commit
(WAL, synchronous=FULL). Writers that meet wait in SQLite's busy handler. No search index, rights or views.
"""

from __future__ import annotations

import time
from pathlib import Path

import apsw

BUSY_TIMEOUT_MS = 60_000

SCHEMA = """
create table if not exists node (
    id integer primary key,
    path text not null unique,
    version integer not null,
    size integer not null,
    changed_ns integer not null
);
create table if not exists version (
    node integer not null references node,
    number integer not null,
    body blob not null,
    primary key (node, number)
) without rowid;
create table if not exists log (
    seq integer primary key,
    node integer not null,
    version integer not null,
    at_ns integer not null
);
"""


class SqliteWriter:
    """One process's connection to the database at a path, which is made where it is missing."""

    def __init__(self, database: Path) -> None:
        self._connection = apsw.Connection(str(database))
        self._connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        self._connection.execute("pragma journal_mode = wal")
        self._connection.execute("pragma synchronous = full")
        self._connection.execute("begin immediate")
        self._connection.execute(SCHEMA)
        self._connection.execute("commit")

    def create(self, path: str, data: bytes) -> None:
        self._write(
            "insert into node (path, version, size, changed_ns) values (:path, 1, :size, :now) returning id, version",
            path,
            data,
        )

    def update(self, path: str, data: bytes) -> None:
        self._write(
            "update node set version = version + 1, size = :size, changed_ns = :now where path = :path"
            " returning id, version",
            path,
            data,
        )

    def close(self) -> None:
        self._connection.close()

    def _write(self, change_node: str, path: str, data: bytes) -> None:
        execute = self._connection.execute
        now = time.time_ns()
        execute("begin immediate")
        try:
            [(node, version)] = execute(change_node, {"path": path, "size": len(data), "now": now}).fetchall()
            execute("insert into version (node, number, body) values (?, ?, ?)", (node, version, data))
            execute("insert into log (node, version, at_ns) values (?, ?, ?)", (node, version, now))
            execute("commit")
        except BaseException:
            execute("rollback")
            raise
