"""Opening the SQLite file: pragmas, identity, migrations.

Owns connections. Called by the writer, the reader pool and direct mode. A connection is opened after
any fork, belongs to one process for its life, and is never read from inside a transaction that
outlives a request (the WAL would grow without bound).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import apsw

from avmfs.errors import AvmError, Busy, Invalid, NoSpace, ReadOnly, StoreFailed
from avmfs.store.files import loss_check
from avmfs.store.files.io import sync_directory
from avmfs.store.schema import tables

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # a command or a program that keeps no log has the error, or asks ``MET``

_FULL = "the disk that holds the store is full"

_PRAGMAS = """
pragma journal_mode = wal;
pragma synchronous = full;
pragma cache_size = -16000;
pragma temp_store = memory;
pragma secure_delete = off;
pragma journal_size_limit = 67108864;
"""
_STATEMENTS = 512  # prepared ones that a connection keeps
MET: set[str] = set()  # damage that is in this process's log: the errors


def connect(path: Path, *, writable: bool, busy_ms: int = 5000, frozen: bool = False) -> apsw.Connection:
    """Open an existing, prepared store. ``frozen``: nobody writes to it, and it has no log; no lock is taken, and no
    file is made beside it. Raises StoreFailed when it is missing or no store of ours."""
    flags = apsw.SQLITE_OPEN_READWRITE if writable else apsw.SQLITE_OPEN_READONLY
    name = f"{path.absolute().as_uri()}?immutable=1" if frozen else os.fspath(path)
    with translated(path):
        db = apsw.Connection(name, flags=flags | apsw.SQLITE_OPEN_URI * frozen, statementcachesize=_STATEMENTS)
        # A plan is made once for a statement: with STAT4 in it, SQLite otherwise prepares a join anew whenever another
        # value is bound (measured: 13 us each time instead of 3).
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        db.set_busy_timeout(busy_ms)
        found = db.execute("pragma application_id").get
        if found != tables.APPLICATION_ID:
            raise Invalid(_foreign(path, found))
        check_version(db, path)
        if writable:  # not before: the journal mode is kept in the file, which may be another program's
            run(db, _PRAGMAS)
            without_checkpoints(db)
        else:
            run(db, "pragma cache_size = -16000; pragma query_only = on;")
    return db


def prepare(path: Path, at_least: int = 0) -> None:
    """Create the store or bring it to this program's version. Runs before anybody serves.

    Raises Invalid for a database of another program, of a newer avmfs or of one before any release, Busy when it is in
    use, StoreFailed for one that is damaged, half repaired or ends before a change that is known to have been kept:
    ``at_least``, by the anchors.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    loss_check.finished(path)
    known = loss_check.known(path, at_least)
    left = loss_check.opens(path, known)
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    with translated(path), contextlib.closing(apsw.Connection(os.fspath(path))) as db:
        db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # nothing of a store that is refused is changed
        db.set_busy_timeout(5000)
        try:
            application, version = db.execute("pragma application_id").get, db.execute("pragma user_version").get
            new = application == version == 0 and not db.execute("select count(*) from sqlite_schema").get
        except apsw.NotADBError:
            if known:
                raise StoreFailed(f"the database's header is damaged. {loss_check.REPAIR}", os.fspath(path)) from None
            raise
        if application != tables.APPLICATION_ID and (known or not new):
            if known and not application:
                raise StoreFailed(f"the database's first page is damaged. {loss_check.REPAIR}", os.fspath(path))
            raise Invalid(_foreign(path, application))
        check_version(db, path)
        loss_check.reads(db, path, known, left)
        if version:
            without_checkpoints(db)
        else:
            db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
        if version < tables.VERSION:  # before there is anything to lose: SQLite syncs the names of its logs only
            _sync_names(path)
        if new:
            run(db, f"pragma application_id = {tables.APPLICATION_ID}")
        run(db, _PRAGMAS)
        later = {n: script for n, script in enumerate(tables.MIGRATIONS, tables.OLDEST + 1) if n > version}
        for number, script in (later if version else {tables.VERSION: tables.TABLES}).items():
            with transaction(db):
                run(db, script)
                run(db, f"pragma user_version = {number}")
            log.info("store %s is now at version %d", path, number)


@contextlib.contextmanager
def transaction(db: apsw.Connection) -> Iterator[None]:
    """All of the block, or nothing. A savepoint, as of ``with db``, is gone where SQLite has rolled back by itself, as
    on a full disk: leaving it would raise something else than what happened."""
    db.execute("begin immediate")
    try:
        yield
        db.execute("commit")
    except BaseException:
        if not db.get_autocommit():
            db.execute("rollback")
        raise


def without_checkpoints(db: apsw.Connection) -> None:
    """Leave the log to those who know whether it can be trusted (``wal_sync``): no commit and no close moves it."""
    db.execute("pragma wal_autocheckpoint = 0")
    db.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def _sync_names(path: Path) -> None:
    """Return when the name of the file and those of the directories above it are on its disk, as far up as we may
    look. Raises StoreFailed."""
    disk = path.stat().st_dev
    for folder in path.absolute().parents:
        try:
            if folder.stat().st_dev != disk:
                return
            sync_directory(folder)
        except PermissionError:  # not ours, so it was there before us
            return
        except OSError as e:
            raise StoreFailed(f"the directory cannot be synced: {e.strerror}", os.fspath(folder)) from e


def check_version(db: apsw.Connection, path: Path) -> None:
    """Raise Invalid when a newer avmfs wrote the store, or a development version before the first release."""
    version = db.execute("pragma user_version").get
    if version and version < tables.OLDEST:
        says = (
            f"written by a development version of avmfs (version {version}; this one reads {tables.OLDEST} and later)"
        )
        raise Invalid(says, os.fspath(path))
    if version > tables.VERSION:
        raise Invalid(f"written by a newer avmfs (version {version}; this one reads {tables.VERSION})", os.fspath(path))


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

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, apsw.Error) and (said := _domain_error(error, os.fspath(self._path))) is not None:
            raise said from error


def damaged(reason: str, path: str) -> StoreFailed:
    """The error, which the log has once."""
    error = StoreFailed(reason, path)
    if not logged(error):
        MET.add(str(error))
        log.error("%s; avm doctor finds what else is, avm repair saves the rest", error)
    return error


def logged(error: AvmError) -> bool:
    """Return whether it is damage that this process's log has, whatever meets with it."""
    return str(error) in MET


def _domain_error(error: apsw.Error, path: str) -> AvmError | None:
    """None for what only a defect of ours can bring about."""
    match error:
        case apsw.FullError():
            return NoSpace(_FULL, path)
        case apsw.ReadOnlyError():
            return ReadOnly(f"the store cannot be written: {error}", path)
        case apsw.BusyError() | apsw.LockedError():
            return Busy("the store is locked by another program", path)
        case apsw.NotADBError():
            return Invalid("not a database", path)
        case apsw.CorruptError():
            return damaged(f"the store is damaged: {error}", path)
        case apsw.IOError() if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE:
            return NoSpace(_FULL, path)  # there is no room for its index of the log
        case apsw.IOError() | apsw.CantOpenError():
            return StoreFailed(f"the store cannot be read: {error}", path)
    return None


def _foreign(path: Path, application: int) -> str:
    hint = "choose another path with --db or AVM_DB; an earlier AVM's: avm --operator import avm-db FILE brings it in"
    return f"{path} is a database of another program (application_id {application:#x}); {hint}"
