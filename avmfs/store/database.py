"""Opening the SQLite file: pragmas, identity, migrations.

Owns connections. Called by the writer, the reader pool and direct mode. A connection is opened after
any fork, belongs to one process for its life, and is never read from inside a transaction that
outlives a request (the WAL would grow without bound).
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from types import TracebackType

import apsw

from avmfs.errors import AvmError, Busy, Invalid, NoSpace, ReadOnly, StoreFailed
from avmfs.store import schema

log = logging.getLogger(__name__)

_PRAGMAS = """
pragma journal_mode = wal;
pragma synchronous = full;
pragma cache_size = -16000;
pragma temp_store = memory;
pragma secure_delete = off;
pragma journal_size_limit = 67108864;
"""
_STATEMENTS = 512  # prepared ones that a connection keeps


def connect(path: Path, *, writable: bool, busy_ms: int = 5000) -> apsw.Connection:
    """Open an existing, prepared store. Raises StoreFailed when it is missing or no store of ours."""
    flags = apsw.SQLITE_OPEN_READWRITE if writable else apsw.SQLITE_OPEN_READONLY
    with translated(path):
        db = apsw.Connection(os.fspath(path), flags=flags, statementcachesize=_STATEMENTS)
        # A plan is made once for a statement: with STAT4 in it, SQLite otherwise prepares a join anew whenever another
        # value is bound (measured: 13 us each time instead of 3).
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        db.set_busy_timeout(busy_ms)
        found = db.execute("pragma application_id").get
        if found != schema.APPLICATION_ID:
            raise Invalid(_foreign(path, found))
        check_version(db, path)
        if writable:  # not before: the journal mode is kept in the file, which may be another program's
            run(db, _PRAGMAS)
            db.execute("pragma wal_autocheckpoint = 0")
        else:
            run(db, "pragma cache_size = -16000; pragma query_only = on;")
    return db


def prepare(path: Path) -> None:
    """Create the store or bring it to this program's version. Runs before anybody serves.

    Raises Invalid for a database of another program or of a newer avmfs, Busy when it is in use.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    with translated(path), contextlib.closing(apsw.Connection(os.fspath(path))) as db:
        db.set_busy_timeout(5000)
        application, version = db.execute("pragma application_id").get, db.execute("pragma user_version").get
        if application != schema.APPLICATION_ID:
            if db.execute("select count(*) from sqlite_schema").get or application or version:
                raise Invalid(_foreign(path, application))
            run(db, f"pragma application_id = {schema.APPLICATION_ID}")
        check_version(db, path)
        run(db, _PRAGMAS)
        for number in range(version, schema.VERSION):
            with db:
                run(db, schema.MIGRATIONS[number])
                run(db, f"pragma user_version = {number + 1}")
            log.info("store %s is now at version %d", path, number + 1)


def check_version(db: apsw.Connection, path: Path) -> None:
    """Raise Invalid when a newer avmfs wrote the store."""
    version = db.execute("pragma user_version").get
    if version > schema.VERSION:
        raise Invalid(f"written by a newer avmfs (version {version}; this one reads {schema.VERSION})", os.fspath(path))


def run(db: apsw.Connection, script: str) -> None:
    """Execute every statement of a script: a cursor left half-way would run only the first."""
    for _ in db.execute(script):
        pass


def integrity(path: Path) -> list[str]:
    """What ``integrity_check`` and ``foreign_key_check`` have to say; empty when all is well."""
    with translated(path), contextlib.closing(connect(path, writable=True)) as db:
        found = [row[0] for row in db.execute("pragma integrity_check")]
        broken = [f"foreign key: {row}" for row in db.execute("pragma foreign_key_check")]
        run(db, "insert into terms(terms) values('integrity-check')")
    return [line for line in found if line != "ok"] + broken


class translated:
    """Turn SQLite's errors in the block into domain errors that name the store. A class, not a generator: it is on the
    path of every write."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, apsw.Error) and (said := _domain_error(error, os.fspath(self._path))) is not None:
            raise said from error


def _domain_error(error: apsw.Error, path: str) -> AvmError | None:
    """None for what only a defect of ours can bring about."""
    match error:
        case apsw.FullError():
            return NoSpace("the disk that holds the store is full", path)
        case apsw.ReadOnlyError():
            return ReadOnly(f"the store cannot be written: {error}", path)
        case apsw.BusyError() | apsw.LockedError():
            return Busy("the store is locked by another program", path)
        case apsw.NotADBError():
            return Invalid("not a database", path)
        case apsw.CorruptError():
            return StoreFailed(f"the store is damaged: {error}", path)
        case apsw.IOError() | apsw.CantOpenError():
            return StoreFailed(f"the store cannot be read: {error}", path)
    return None


def _foreign(path: Path, application: int) -> str:
    hint = "choose another path with --db or AVM_DB"
    return f"{path} is a database of another program (application_id {application:#x}); {hint}"
