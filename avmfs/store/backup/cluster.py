"""A store becomes one of several, joins them, leaves them, and leaves a snapshot for those who join.

Owns the order in which the shared log and the store's file change, so that a killed command can be given again.
Called by `avm cluster`. A snapshot is an image of a store (``image``), which says where in the log it stands.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import apsw

from avmfs.access import Policy
from avmfs.errors import Busy, Exists, Invalid, NotFound, StoreFailed
from avmfs.store.backup import image
from avmfs.store.files import loss_check, room, wal_frames
from avmfs.store.files.io import sync_directory
from avmfs.store.files.store_lock import StoreLock
from avmfs.store.files.wal_header import PAGE
from avmfs.store.repair import traces
from avmfs.store.rows import incarnation
from avmfs.store.rows.log_position import Position, place, position
from avmfs.store.rows.stored_policy import stored_people
from avmfs.store.schema import database
from avmfs.store.sharedlog.protocol import SharedLog, Unreachable
from avmfs.store.writer import rewriting
from avmfs.store.writer.replica import Replica

logger = logging.getLogger(__name__)

CHUNK: Final = 4 * 1024 * 1024
READ: Final = 64  # records at a time
LOCK_S: Final = 1.0
_IN_FORCE: Final = "select value from setting where key = 'policy_text'"


def init(path: Path, log: SharedLog, host: str) -> Position:
    """Make the log, and this store its first host. Raises Exists where there is another store's log, Busy while a
    daemon runs, or a reader keeps what was purged in the file; NoSpace."""
    with _still(path):
        database.prepare(path)
        with contextlib.closing(database.connect(path, writable=False)) as db:
            found, unwiped = position(db), rewriting.due(db)
        if unwiped:  # no snapshot could be made of it, and no command alone can wipe one of several hosts'
            rewriting.rewrite(path)
        try:
            log.create(found.cluster if found is not None else uuid.uuid4().hex)
        except Exists:
            if found is None and (log.snapshots() or log.head()):
                raise
            if found is not None and found.cluster != log.cluster():
                raise Exists("this store is one host of another log: avm cluster leave", os.fspath(path)) from None
        if found is None or not (log.head() or log.snapshots()):  # a new log, of a store that may have had another
            found = Position(log.cluster(), 0)
            _place(path, found)
    if not log.snapshots():
        snapshot(path, log, host)
    return found


def snapshot(path: Path, log: SharedLog, host: str) -> int:
    """Put this store as it is into the log's database, beside a running daemon or without one. Returns its number.
    Raises Busy while it has what was purged, Stale where there is one of later: nothing comes back that was cut."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".snapshot-") as folder:
        taken = Path(folder) / path.name
        image.take(path, taken)
        with contextlib.closing(database.connect(taken, writable=False)) as db:
            at, unwiped = position(db), db.execute("select 1 from setting where key = 'unwiped'").get
        if at is None or at.cluster != log.cluster():
            raise Invalid("this store is not one of this log's", os.fspath(path))
        if unwiped:
            raise Busy("what was purged is in its free pages till its daemon wipes it: ask later", os.fspath(path))
        log.put_snapshot(at.number, host, _chunks(taken))
        return at.number


def join(path: Path, log: SharedLog, rules: Policy, anchors: Path | None = None) -> Position:
    """Make the store at ``path`` of the newest snapshot and what came since. One of the same log is replaced, and its
    ``anchors`` are put aside: they may know of changes that the log has lost. Where it has lost records that the store
    had, that is kept beside, and the new one tells that it went back (``incarnation``). ``rules``: of this host; they
    have to be those in force, or it could not write. Raises Exists where there is another store, NotFound, Invalid,
    Busy, NoSpace, Stale, StoreFailed, OSError."""
    cluster, found = log.cluster(), log.snapshots()
    if not found:
        raise NotFound("the shared log has no snapshot: avm cluster snapshot on a host that has joined")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _still(path):
        loss_check.finish(path, anchors)
        if anchors is not None:
            loss_check.repaired(anchors).unlink(missing_ok=True)  # of a repair that was broken off
        try:
            here = _position(path) if path.exists() else None
        except (Invalid, StoreFailed, apsw.Error) as e:
            raise Invalid(f"{getattr(e, 'reason', e)}; {loss_check.JOIN}", os.fspath(path)) from e
        if path.exists() and (here is None or here.cluster != cluster):
            raise Exists("there is a store of its own; move it away", os.fspath(path))
        lost = here is not None and not (here.number <= log.head() and log.has(here.number, bytes.fromhex(here.last)))
        new = path.with_name(path.name + ".joined")
        kept = sum(each.stat().st_size for each in loss_check.files(path)) if lost else 0
        at = _joined(new, log, found[0].number, cluster, rules, kept)
        try:
            if lost:
                aside = loss_check.keep(path)
                logger.warning("the shared log has lost records of this host: its store of before is in %s", aside)
            if anchors is not None and anchors.exists():
                loss_check.put_aside(anchors)
                anchors.unlink()
        except OSError:
            new.unlink()
            raise
        new.replace(loss_check.repaired(path))
        sync_directory(path.parent)
        loss_check.finish(path, anchors)
    return at


def leave(path: Path, log: SharedLog, host: str) -> None:
    """The store becomes this machine's own, as it is, whatever log ``log`` is, and where there is none any more."""
    with _still(path):
        if (found := _position(path)) is None:
            raise Invalid("this store is shared with nobody", os.fspath(path))
        _place(path, None)
    try:
        if log.cluster() == found.cluster:  # in another one's a host of that name is another machine
            log.forget(host)
    except (NotFound, Unreachable) as e:
        logger.warning("the shared log may list this host still: %s", e)


def traces_of(log: SharedLog, text: str) -> Iterator[traces.Trace]:
    """Every place of the log where these characters are: in what a record changes, or in a snapshot."""
    number = 0
    while found := log.read(number, READ):
        for record in found:
            number = record.number
            places = traces.in_bytes(zlib.decompress(record.data), text)
            yield from (traces.Trace(f"shared log, record {number}", where) for where in places)
    for each in log.snapshots():
        with tempfile.TemporaryDirectory(prefix="avm-") as folder:
            _write(Path(folder) / "avm.db", log.snapshot(each.number))
            for trace in traces.of(Path(folder) / "avm.db", text):
                yield traces.Trace(f"shared log, snapshot {each.number}", trace.where)


def status(log: SharedLog) -> dict[str, Any]:
    """{"cluster", "record", "hosts", "snapshots"}."""
    newest = log.head()
    hosts = [{**each._asdict(), "behind": max(0, newest - each.number)} for each in log.hosts()]
    kept = [each._asdict() for each in log.snapshots()]
    return {"cluster": log.cluster(), "record": newest, "hosts": hosts, "snapshots": kept}


def _joined(new: Path, log: SharedLog, number: int, cluster: str, rules: Policy, kept: int) -> Position:
    """Write the snapshot to the file ``new``, look whether it is what it should be, and apply what the log has behind
    it, the rules in force among that. Else it goes. ``kept``: bytes of the store of before, where that had more and is
    to be copied."""
    try:
        _write(new, log.snapshot(number), kept)
        with contextlib.closing(database.connect(new, writable=True)) as db:
            at = position(db)
            if at is None or at.cluster != cluster or db.execute("pragma quick_check").get != "ok":
                raise StoreFailed("the snapshot is damaged: take another one (avm cluster snapshot)")
        database.prepare(new)  # it may be of an earlier avmfs, and what the log has behind it of this one
        with contextlib.closing(database.connect(new, writable=True)) as db:
            with contextlib.closing(Replica(new)) as replica:
                while records := log.read(replica.at.number, READ):
                    replica.apply(records)
                    replica.db.wal_checkpoint()
                at = replace(replica.at, rules="")
            if rules.joined(stored_people(db)).plain != db.execute(_IN_FORCE).get:
                raise Invalid(
                    "config.yaml says other rules than are in force in the shared store: make `permissions`,"
                    " `default_access`, `trust`, `agents` and `providers` the same as on the others"
                )
            place(db, at)
            if kept:
                db.execute(incarnation.BEGUN)
            db.wal_checkpoint()
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    finally:
        wal_frames.beside(new).unlink(missing_ok=True)
        new.with_name(new.name + "-shm").unlink(missing_ok=True)
    return at


@contextlib.contextmanager
def _still(path: Path) -> Iterator[None]:
    """The store, while no daemon and no command has it."""
    lock = StoreLock(path)
    try:
        held = lock.acquire(LOCK_S)
    except Busy as e:
        raise Busy(f"{e.reason}: avm-daemon stop", os.fspath(path)) from None
    clean = not lock.unclean
    try:
        yield
    finally:
        lock.release(held, clean=clean)


def _position(path: Path) -> Position | None:
    with contextlib.closing(database.connect(path, writable=False)) as db:
        return position(db)


def _place(path: Path, at: Position | None) -> None:
    with contextlib.closing(database.connect(path, writable=True)) as db:
        place(db, at)


def _chunks(taken: Path) -> Iterator[bytes]:
    with open(taken, "rb") as file:
        while piece := file.read(CHUNK):
            yield zlib.compress(piece, 1)


def _write(to: Path, chunks: Iterator[bytes], kept: int = 0) -> None:
    descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as out:
        for number, chunk in enumerate(chunks):
            piece = zlib.decompress(chunk)
            if not number:  # which tells how many pages there are
                what = "a snapshot of the shared log" + " and a copy of the store of before" * bool(kept)
                room.require(to.parent, int.from_bytes(piece[28:32], "big") * PAGE + kept, what)
            out.write(piece)
        out.flush()
        os.fsync(descriptor)
