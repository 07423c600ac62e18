"""A shared log in a PostgreSQL database, or in any that speaks its protocol.

Owns the tables ``avm_*`` of the schema that the address leads to, and one connection. The baton is a row lock, held by
an open transaction: the server ends it with the connection, and after ``HELD_S`` seconds in which a host that has
stopped says nothing. A number is the primary key of its record. ``synchronous_commit`` is what the server says it is:
with a synchronous standby a record is on both before ``append`` returns. A server that was killed while it waited for
its standby shows, once it is back, a record that the standby may not have: so every connection begins with a change of
its own, which waits for the standby to have that and all before it.

A link may be cut without a word. Every call has a limit, after which a thread shuts the socket down and libpq fails.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import psycopg
from psycopg import errors, sql

from avmfs.errors import Busy, Exists, NotFound, Stale
from avmfs.store.sharedlog.protocol import CLOCK_S, READ_BYTES, Host, InDoubt, Overtaken, Record, Snapshot, Unreachable

log = logging.getLogger(__name__)

CALL_S: Final = 10.0  # longer no call takes
HELD_S: Final = 10.0  # longer nobody waits for a host that holds the baton and says nothing
# Else the server keeps the session of a host that has lost its power, or its link, with all locks, for two hours.
_GHOSTS: Final = "set tcp_keepalives_idle = 10; set tcp_keepalives_interval = 2; set tcp_keepalives_count = 3"  # s
BULK_S: Final = 600.0  # of a snapshot
QUEUE_S: Final = 2.0  # so long all hosts wait behind who wants a table for itself; longer than autovacuum is waited for
KEPT: Final = 2  # snapshots
_LOOK_S: Final = 0.25
_HOUSE: Final = 0x61766D66  # the advisory lock of who keeps house, with the baton's row as its other half
_IN_TURN: Final = "select pg_advisory_xact_lock(1635151207, house) from avm_baton"  # who puts a snapshot, or cuts

_TABLES: Final = """
create table avm_baton(one bool primary key default true check (one), cluster text not null,
                       newest bigint not null default 0, house int not null default (random() * 2000000000)::int);
create table avm_record(number bigint primary key, token bytea not null, host text not null,
                        at timestamptz not null default now(), data bytea not null);
create table avm_host(name text primary key, number bigint not null, version int not null,
                      at timestamptz not null default now());
create table avm_snapshot(number bigint primary key, host text not null, at timestamptz not null default now(),
                          size bigint not null);
create table avm_chunk(number bigint references avm_snapshot on delete cascade, part int, data bytea not null,
                       primary key (number, part));
"""
_SETTLE: Final = "update avm_snapshot set at = at where number = (select max(number) from avm_snapshot)"
_OWNER: Final = "select pg_has_role(relowner, 'usage') from pg_class where oid = 'avm_record'::regclass"
_TAKE: Final = "begin; select newest from avm_baton for update"  # on one way
_KEEP: Final = """
select case when %(able)s and abs(extract(epoch from clock_timestamp()) - %(clock)s) <= %(most)s
            then mine or pg_try_advisory_lock(%(house)s, house)
            when mine then not pg_advisory_unlock(%(house)s, house) else false end
from avm_baton,
     (select exists(select 1 from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()) as mine) as held
"""
_AHEAD: Final = 64  # records that come with the baton
_READ: Final = (  # one that is larger than what is read at once comes last, and without its data
    f"select number, token, host, case when size <= {READ_BYTES} then data end from"
    " (select *, sum(size) over (order by number) as upto from (select *, octet_length(data) as size"
    " from avm_record where number > {} order by number limit {}) as next) as sized"
    f" where upto - size < {READ_BYTES} order by number"
)
_PIECE: Final = f"select substr(data, %s, {READ_BYTES}) from avm_record where number = %s and token = %s"
_CHUNK: Final = (
    "select data from avm_chunk natural join avm_snapshot where number = %s and part = %s and host = %s and at = %s"
)
_TOKEN: Final = "select token from avm_record where number = {}"
_APPEND: Final = """
with baton as (update avm_baton set newest = %(number)s where newest = %(number)s - 1 and not exists
               (select 1 from avm_record where number = %(number)s - 1 and token <> %(last)s and %(last)s <> '')
               returning 1),
     record as (insert into avm_record(number, token, host, data)
                select %(number)s, %(token)s, %(host)s, %(data)s from baton returning number)
select number, pg_notify((select 'avm_' || cluster from avm_baton), number::text) from record
"""


class PostgresLog:
    """See SharedLog. ``address``: a connection string of libpq. ``host``: shown in the server's own list of who is
    connected."""

    def __init__(self, address: str, host: str = "", call_s: float = CALL_S) -> None:
        self._address, self._host, self._call_s = address, host, call_s
        self._db: psycopg.Connection[Any] | None = None
        self._listening = self._settled = False
        self._ahead: tuple[int, bytes | None, list[Record]] = 0, None, []  # came with the baton: a number's, and above
        self._heard = 0  # the newest number, as this connection has heard while it listens
        self._watch = _Watch()

    def close(self) -> None:
        self._lost()
        self._watch.close()

    def create(self, cluster: str) -> None:
        with self._asking() as db, db.transaction():
            try:
                db.execute(_TABLES)
            except errors.DuplicateTable:
                raise Exists("the database has a shared log already") from None
            db.execute("insert into avm_baton(cluster) values(%s)", (cluster,))

    def cluster(self) -> str:
        return str(self._baton("cluster"))

    def take(self, after: int | None = None) -> int:
        ask = _TAKE if after is None else f"{_TAKE}; {_TOKEN.format(after)}; {_READ.format(after, _AHEAD)}"
        self._ahead = 0, None, []
        with self._asking(HELD_S + self._call_s) as db:
            found = db.execute(ask.encode(), prepare=False)
            found.nextset()
            newest = int(_one(found))
            if after is not None:
                found.nextset()
                token = found.fetchone()
                found.nextset()
                self._ahead = after, token and bytes(token[0]), _records(found.fetchall())
            return newest

    def head(self) -> int:
        try:
            return int(self._baton("newest"))
        except NotFound as e:  # its tables are on their way back, perhaps
            raise Unreachable(e.reason) from None

    def has(self, number: int, token: bytes) -> bool:
        had, found, _ = self._ahead
        if had != number:
            with self._asking() as db:
                row = db.execute(_TOKEN.format("%s").encode(), (number,), binary=True).fetchone()
                found = row and bytes(row[0])
        return not token or found in (None, token)

    def append(self, record: Record, last: bytes = b"") -> None:
        sent = False
        try:
            with self._asking() as db:
                with db.pipeline():  # both on one way: whoever waits for the baton waits for each way of ours
                    sent = True
                    appended = db.execute(_APPEND, {**record._asdict(), "last": last})
                    db.execute("commit")
                if appended.fetchone() is None:
                    raise Overtaken(f"record {record.number} is another host's")
        except errors.UniqueViolation:
            raise Overtaken(f"record {record.number} is another host's") from None
        except Unreachable as e:
            if sent:
                raise InDoubt(f"it is not known whether the shared log has the change: {e.reason}") from e
            raise
        finally:
            self.give()

    def give(self) -> None:
        if self._holds_baton():
            with contextlib.suppress(Unreachable), self._asking() as db:
                db.execute("rollback")

    def _holds_baton(self) -> bool:
        return self._db is not None and self._db.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    def read(self, after: int, most: int) -> list[Record]:
        (had, _, ahead), self._ahead = self._ahead, (0, None, [])
        if ahead and had == after:
            return ahead[:most]
        with self._asking() as db:
            found = db.execute(_READ.format("%s", "%s").encode(), (after, most), binary=True).fetchall()
        large = [] if self._holds_baton() else [each[:3] for each in found if each[3] is None]  # others would wait
        return _records(found) + [self._in_pieces(*each) for each in large]

    def _in_pieces(self, number: int, token: bytes, host: str) -> Record:
        """Each has the time of a call."""
        data, more = bytearray(), True
        while more:
            with self._asking() as db:
                row = db.execute(_PIECE.encode(), (len(data) + 1, number, token), binary=True).fetchone()
            if row is None:
                raise Unreachable(f"record {number} of the shared log was cut meanwhile")
            data += row[0]
            more = len(row[0]) == READ_BYTES
        return Record(number, bytes(token), host, bytes(data))

    def wait(self, after: int, most_s: float) -> int:
        deadline = time.monotonic() + most_s
        if not self._listening:
            channel = self.cluster()
            with self._asking() as db:
                db.execute(sql.SQL("listen {}").format(sql.Identifier("avm_" + channel)))
                self._listening = True
            self._heard = self.head()
        while self._heard <= after and (left := deadline - time.monotonic()) > 0:
            with self._asking(left + self._call_s) as db:
                for notice in db.notifies(timeout=left, stop_after=1):
                    self._heard = max(self._heard, int(notice.payload))
        if self._heard <= after:
            self._heard = self.head()
        return self._heard

    def keep(self, clock: float, able: bool = True) -> bool:
        with self._asking() as db:
            return bool(_one(db.execute(_KEEP, {"house": _HOUSE, "clock": clock, "most": CLOCK_S, "able": able})))

    def report(self, host: str, number: int, version: int) -> float:
        with self._asking() as db:
            said = db.execute(
                "insert into avm_host(name, number, version) values(%s, %s, %s) on conflict(name) do update"
                " set number = excluded.number, version = excluded.version, at = now()"
                " returning extract(epoch from clock_timestamp())",
                (host, number, version),
            )
            return float(_one(said))

    def hosts(self) -> list[Host]:
        with self._asking() as db:
            rows = db.execute(
                "select name, number, version, extract(epoch from now() - at)::float8 from avm_host order by name"
            )
            return [Host(*row) for row in rows]

    def forget(self, host: str) -> None:
        with self._asking() as db:
            db.execute("delete from avm_host where name = %s", (host,))

    def put_snapshot(self, number: int, host: str, chunks: Iterable[bytes]) -> None:
        # Under another number until it is there: whoever connects waits for a row that is being replaced (_SETTLE).
        size, meanwhile = 0, -1 - number
        with self._asking(BULK_S) as db, db.transaction():
            db.execute("insert into avm_snapshot(number, host, size) values(%s, %s, 0)", (meanwhile, host))
            for part, chunk in enumerate(chunks):
                db.execute("insert into avm_chunk(number, part, data) values(%s, %s, %s)", (meanwhile, part, chunk))
                size += len(chunk)
            db.execute(_IN_TURN)
            if db.execute("select 1 from avm_snapshot where number > %s", (number,)).fetchone() is not None:
                raise Stale("the shared log has a newer snapshot: this host is behind")
            db.execute("delete from avm_snapshot where number = %s", (number,))
            db.execute("insert into avm_snapshot(number, host, size) values(%s, %s, %s)", (number, host, size))
            db.execute("update avm_chunk set number = %s where number = %s", (number, meanwhile))
            db.execute("delete from avm_snapshot where number = %s", (meanwhile,))
            db.execute(
                "delete from avm_snapshot where number not in"
                " (select number from avm_snapshot order by number desc limit %s)",
                (KEPT,),
            )
            db.execute("delete from avm_record where number <= (select min(number) from avm_snapshot)")

    def cut(self, number: int) -> None:
        with self._asking(BULK_S) as db:
            with db.transaction():
                db.execute(_IN_TURN)
                if db.execute("select 1 from avm_snapshot where number = %s", (number,)).fetchone() is None:
                    raise NotFound(f"there is no snapshot {number}")
                db.execute("delete from avm_snapshot where number < %s", (number,))
                db.execute("delete from avm_record where number <= %s", (number,))
            if not _one(db.execute(_OWNER)):
                log.warning("the tables of the shared log are another role's: their owner has to vacuum them (full)")
                return
            try:
                db.execute(f"set lock_timeout = {int(QUEUE_S * 1000)}".encode())
                db.execute("vacuum full avm_record")
                db.execute("vacuum full avm_chunk")
            except errors.LockNotAvailable:
                raise Busy(
                    "somebody reads the tables of the shared log (pg_dump?): they are not written anew"
                ) from None
            finally:
                self._limit(db)

    def snapshots(self) -> list[Snapshot]:
        with self._asking() as db:
            rows = db.execute(
                "select number, host, size, extract(epoch from now() - at)::float8 from avm_snapshot"
                " order by number desc"
            )
            return [Snapshot(*row) for row in rows]

    def snapshot(self, number: int) -> Iterator[bytes]:
        with self._asking() as db:
            taken = db.execute("select host, at, size from avm_snapshot where number = %s", (number,)).fetchone()
        if taken is None:
            raise NotFound(f"there is no snapshot {number}")
        *of, size = taken
        part = sent = 0
        while True:
            with self._asking(BULK_S) as db:
                row = db.execute(_CHUNK, (number, part, *of), binary=True).fetchone()
            if row is None:
                break
            yield bytes(row[0])
            part, sent = part + 1, sent + len(row[0])
        if sent != size:
            raise Stale(f"snapshot {number} of the shared log was replaced or dropped meanwhile: try again")

    def _baton(self, column: str) -> Any:
        with self._asking() as db:
            try:
                row = db.execute(f"select {column} from avm_baton").fetchone()
            except errors.UndefinedTable:
                row = None
            if row is None:
                raise NotFound("the database has no shared log: avm cluster init makes one")
            return row[0]

    @contextlib.contextmanager
    def _asking(self, most_s: float | None = None) -> Iterator[psycopg.Connection[Any]]:
        """A connection, for at most so long. What fails in the block is Unreachable, but for what a number that is
        taken brings about."""
        try:
            db = self._db or self._connect()
            with self._watch.limit(db, most_s or self._call_s):
                if not self._settled:
                    self._limit(db)
                    with contextlib.suppress(errors.UndefinedTable):  # there is no log yet
                        db.execute(_SETTLE)
                    self._settled = True
                yield db
        except (errors.UniqueViolation, errors.DuplicateTable):
            raise
        except psycopg.Error as e:
            self._lost()
            said = " ".join(str(e).split()) or "no answer in time"
            raise Unreachable(f"the shared log cannot be reached: {said}") from e

    def _connect(self) -> psycopg.Connection[Any]:
        self._db = psycopg.connect(
            self._address,
            autocommit=True,
            application_name=f"avmfs {self._host}".strip(),
            connect_timeout=max(2, int(self._call_s)),
            keepalives_idle=int(self._call_s),
            keepalives_interval=1,
            keepalives_count=3,
            tcp_user_timeout=int(self._call_s * 1000),
        )
        self._db.prepare_threshold = 2
        return self._db

    def _limit(self, db: psycopg.Connection[Any]) -> None:
        """Not by ``options``, which would take the place of those of the address: they may choose the schema."""
        limits = {
            "idle_in_transaction_session_timeout": HELD_S,
            "lock_timeout": HELD_S + self._call_s,
            "tcp_user_timeout": self._call_s,
        }
        said = [f"set {name} = {int(seconds * 1000)}" for name, seconds in limits.items()]
        db.execute("; ".join([*said, _GHOSTS]).encode(), prepare=False)

    def _lost(self) -> None:
        db, self._db = self._db, None
        self._listening = self._settled = False
        if db is not None:
            db.close()


def _records(found: list[Any]) -> list[Record]:
    """Those that came whole."""
    return [Record(number, bytes(token), host, bytes(data)) for number, token, host, data in found if data is not None]


def _one(found: psycopg.Cursor[Any]) -> Any:
    row = found.fetchone()
    if row is None:
        raise psycopg.InterfaceError("the log has lost its table of one row")
    return row[0]


class _Watch:
    """Ends calls that take too long: shuts the socket down, upon which the caller hears of a lost connection."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._fd = -1
        self._mutex = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def limit(self, db: psycopg.Connection[Any], seconds: float) -> Iterator[None]:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="log limit", daemon=True)
            thread.start()
            self._thread = thread
        with self._mutex:
            self._fd, self._deadline = db.fileno(), time.monotonic() + seconds
        try:
            yield
        finally:
            with self._mutex:
                self._deadline = None

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            with self._mutex:
                if self._deadline is not None and time.monotonic() > self._deadline:
                    self._deadline = None
                    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._fd)) as link:
                        link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
