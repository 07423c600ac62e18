"""Whether opening a store would throw away what somebody was promised; asked before anybody serves.

Owns the rule (docs/OPERATIONS.md, "A damaged store"). Known are the newest row of the log that was synced
(``sync_note``) and the anchors of the audit. A store whose log ends before one of them is not opened: its database is
empty, missing or an old copy, its write-ahead log is gone, or SQLite reads that only up to a frame in the middle.
Commits behind a damaged frame that nobody is known to have been promised may be the leftovers of a crash, as a disk
that loses power keeps some of what was not synced and not the rest: they are copied aside, and the store is opened.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from pathlib import Path
from typing import Final

import apsw

from avmfs.errors import StoreFailed
from avmfs.store.files import sync_note, wal_frames
from avmfs.store.files.displaced import index_of_log
from avmfs.store.files.io import read_all, sync_directory

log = logging.getLogger(__name__)

KEPT: Final = 3  # copies of one file
REPAIR: Final = (
    "avm repair keeps a copy, saves what can be saved, says what was lost, and with --accept-loss goes on without it"
)
JOIN: Final = "move it away, and avm cluster join brings it anew"


def known(path: Path, at_least: int) -> int:
    """The newest seq that the store has to have."""
    return max(at_least, sync_note.read(path))


def repaired(path: Path) -> Path:
    """Where the new store of a repair, or of a host that joins, lies until it is in place; the old one is given up as
    soon as it is there."""
    return path.with_name(path.name + ".repaired")


def finished(path: Path) -> None:
    """Raises StoreFailed while a repair that was begun is not finished, which throws away what the old store gets."""
    if repaired(path).exists():
        raise StoreFailed("a repair was begun and is not finished; avm repair finishes it", os.fspath(path))


def finish(path: Path, kept: Path | None) -> None:
    """Bring an installation that was begun to its end, its anchors to ``kept``. What belongs to the old database goes
    first: SQLite would lay its log over the new one, or go by the index that who reads the old one holds. Until the end
    nobody opens the old one (``finished``). Raises OSError."""
    ready = repaired(path)
    if not ready.exists():
        return
    for each in (wal_frames.beside(path), index_of_log(path), sync_note.beside(path)):
        each.unlink(missing_ok=True)
    sync_directory(path.parent)
    if kept is not None and (new := repaired(kept)).exists():
        new.replace(kept)
        sync_directory(kept.parent)
    ready.replace(path)
    sync_directory(path.parent)


def opens(path: Path, seq: int) -> wal_frames.WalFrames | None:
    """Before SQLite opens the files: its log, where that is not empty. Raises StoreFailed for a database that is not
    there, though it was."""
    left = wal_frames.look(wal_frames.beside(path))
    size = path.stat().st_size if path.exists() else None
    if not size and (seq or (left is not None and left.good.any())):
        what = "is empty" if size == 0 else "is not there"
        raise StoreFailed(f"the database {what}, though {_known(seq, left)}. {REPAIR}", os.fspath(path))
    return left


def reads(db: apsw.Connection, path: Path, seq: int, left: wal_frames.WalFrames | None) -> None:
    """Of what SQLite reads; ``db`` makes no checkpoint when it is closed. Raises StoreFailed for a store that has lost
    something."""
    has = db.execute("select 1 from sqlite_schema where name = 'log'").get
    newest = (db.execute("select max(seq) from log").get or 0) if has else 0
    behind = 0 if left is None else left.behind
    if newest < seq:
        why = "the database is an older one, or its write-ahead log is gone"
        if left is not None and (left.chained < left.frames and (behind or not left.whole)):
            where = f"frame {left.chained + 1} of {left.frames}" if left.whole else "the header"
            why = f"{where} of the write-ahead log is damaged: {left.before} commits stand before it, {behind} behind"
        raise StoreFailed(f"the store ends at change {newest}, though {_known(seq, None)}; {why}. {REPAIR}", str(path))
    if left is not None and behind:
        try:
            aside = f"a copy: {put_aside(left.path)}"
        except OSError as e:
            aside = f"no copy could be made: {e.strerror}"
        log.warning(
            "%s: %d commits behind the damaged frame %d are left out, nobody was told that they are safe; %s",
            left.path,
            behind,
            left.chained + 1,
            aside,
        )


def free_name(path: Path, what: str) -> Path:
    """Where a copy of a file is put that is told by the time."""
    name, number = f"{path.name}.{what}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}", 1
    while (aside := path.with_name(name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return aside


def files(path: Path, *others: Path) -> list[Path]:
    """What there is of a database, of what belongs to it and of ``others``."""
    return [each for each in (path, wal_frames.beside(path), sync_note.beside(path), *others) if each.exists()]


def keep(path: Path, *others: Path) -> Path:
    """A folder beside a database that is given up, with synced copies of its ``files``. Raises OSError, and leaves no
    part of one: each try would take more of the disk."""
    aside = free_name(path, "damaged")
    aside.mkdir(mode=0o700)
    try:
        for each in files(path, *others):
            copy(each, aside / each.name, [])
        sync_directory(aside)
    except OSError:
        shutil.rmtree(aside)
        raise
    return aside


def put_aside(path: Path) -> Path:
    """A synced copy of a file beside it, of which the newest few are kept. Raises OSError, and leaves no part of one:
    it would take the room that is kept free."""
    aside = free_name(path, "aside")
    try:
        copy(path, aside)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    for old in [each for each in asides(path) if each != aside][: 1 - KEPT]:  # the clock may have been set back
        old.unlink()
    return aside


def asides(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.aside-*"))


def rescued(path: Path) -> list[Path]:
    """Folders with stores that were given up."""
    return sorted(path.parent.glob(f"{path.name}.damaged-*"))


def unfinished(path: Path) -> list[Path]:
    """Folders in which a repair works, or was killed as it did."""
    return sorted(path.parent.glob(f"{path.name}.repairing-*"))


def copy(path: Path, to: Path, lost: list[int] | None = None) -> None:
    """Durably, for the owner alone. Raises OSError. ``lost``: see ``read_all``."""
    descriptor = os.open(to, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(path, "rb", buffering=0) as source, open(descriptor, "r+b") as target:
        while piece := read_all(source.fileno(), 1 << 20, target.tell(), lost):
            target.write(piece)
        target.flush()
        os.fsync(target.fileno())


def _known(seq: int, left: wal_frames.WalFrames | None) -> str:
    said = [f"changes up to {seq} were kept" if seq else ""]
    said.append(f"the write-ahead log holds {left.before + left.behind} commits" if left is not None else "")
    return " and ".join(filter(None, said))
