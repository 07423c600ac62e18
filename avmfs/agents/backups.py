"""Backing a store up and restoring it: an image is verified before it counts, and comes back as a store that opens.

Owns the order: an image of one moment, what can be looked at in it, its pages in the folder of backups, and the note
beside the database that tells of the last good one. Called by `avm backup`, `avm restore` and the keeper.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from avmfs_config import BackupSettings, Settings

from avmfs.agents import anchors, auditing
from avmfs.calls import Background
from avmfs.errors import Exists, StoreFailed
from avmfs.store.backup import archive, image
from avmfs.store.backup.archive import Backup
from avmfs.store.files import loss_check, sync_note, wal_frames
from avmfs.store.files.displaced import index_of_log
from avmfs.store.files.io import sync_directory
from avmfs.store.files.store_lock import StoreLock
from avmfs.store.identity import OPERATOR
from avmfs.store.repair import examine

log = logging.getLogger(__name__)

NOTE: Final = ".backup"
_LOOK_S: Final = 30.0  # between two looks at whether one is due
_AGAIN_S: Final = 600.0  # after one that failed


def note(database: Path) -> Path:
    """Where the last good backup of a store is told, beside it."""
    return database.with_name(database.name + NOTE)


def last(database: Path) -> dict[str, Any] | None:
    """{"folder", "at" (ns), "seq", "pages", "new"} of the last good backup; None where none is known."""
    try:
        said = json.loads(note(database).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return said if isinstance(said, dict) else None


def backup(
    database: Path, settings: Settings, folder: Path, keep: int, progress: archive.Progress = archive.unheard
) -> Backup:
    """One more backup in the folder, of which the newest ``keep`` stay. Raises StoreFailed for a store that is damaged:
    the backups that there are stay as they are. Raises Exists where they are of another store; Busy, NotFound, OSError.
    """
    kept = settings.audit.anchors or anchors.beside(database)
    with archive.held(folder):
        known = anchors.read(kept)
        at, whole = time.time_ns(), folder / archive.IMAGE
        try:
            image.take(database, whole)
            store = _owned(folder, [each.about for each in archive.backups(folder)], whole, frozen=True)
            seq = _verified(whole, known)
            lines = [anchors.line(each) for each in known if each.seq <= seq]
            about = {"anchors": lines, "database": os.fspath(database), "store": store}
            made = archive.add(folder, whole, seq, at, about, progress)
        finally:
            whole.unlink(missing_ok=True)
        archive.prune(folder, keep)
    said = {"folder": os.fspath(folder), "at": made.at, "seq": seq, "pages": made.pages, "new": made.new}
    beside = note(database).with_name(note(database).name + ".new")
    try:
        beside.touch(mode=0o600)
        beside.write_text(json.dumps(said, sort_keys=True))
        beside.replace(note(database))
    except OSError as e:  # the backup is made all the same
        log.warning("backed up to %s, which cannot be noted: %s", folder, e)
    return made


def _owned(folder: Path, kept: list[dict[str, Any]], database: Path, *, frozen: bool) -> str:
    """Which store this is, of which those backups are, as far as they tell. Raises Exists: among them those of another
    would go as its own come, and be restored as its."""
    with contextlib.closing(examine.FrozenStore(database, frozen)) as store:
        here = store.lineage()
    if any(about.get("store", here) != here for about in kept):
        raise Exists("it has backups of another store: name another folder", os.fspath(folder))
    return here


def _verified(whole: Path, known: list[Any]) -> int:
    """The seq of the newest change of an image. Raises StoreFailed for one that is not whole."""
    with contextlib.closing(examine.FrozenStore(whole, True)) as store:
        damage = [each.says for each in examine.rows(store)]
        found = auditing.verify(store, OPERATOR, known)
        if found.verdict.bad is not None:
            damage.append(f"audit: row {found.verdict.bad} {found.verdict.reason}")
        if damage:
            raise StoreFailed(f"the store is damaged, and was not backed up: {'; '.join(damage)} (avm doctor)")
        return examine.newest(store)


def restore(
    folder: Path,
    to: Path,
    at: int | None = None,
    kept: Path | None = None,
    progress: archive.Progress = archive.unheard,
) -> Backup:
    """Make the database ``to``, and its anchors, of the newest backup, or of the newest that was made no later than
    ``at`` (ns). Raises Exists where there is a store, or what is left of one; NotFound, Busy, StoreFailed."""
    chosen = archive.newest(folder, at)
    kept, new = kept or anchors.beside(to), to.with_name(to.name + ".restored")
    to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = StoreLock(to)
    held = lock.acquire(1.0)
    try:
        killed = new.exists()  # a restore, and what anchors there are it has made
        for each in (to, wal_frames.beside(to), sync_note.beside(to), loss_check.repaired(to), kept):
            if each.exists() and not (killed and each == kept):
                raise Exists("of a store that is or was here; move it away, or restore to another folder", str(each))
        if killed:
            kept.unlink(missing_ok=True)
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as undo:
            undo.callback(new.unlink, missing_ok=True)
            with archive.held_still(folder):  # or a backup made meanwhile may take away what is being read
                archive.lay_out(folder, chosen, new, progress)
            image.begin_anew(new)
            lines = "".join(chosen.about["anchors"])
            if lines:
                descriptor = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                undo.callback(kept.unlink)
                with open(descriptor, "w") as out:
                    out.write(lines)
                    out.flush()
                    os.fsync(descriptor)
            index_of_log(to).unlink(missing_ok=True)  # whoever reads the store that was here may hold it
            new.replace(to)
            undo.pop_all()
        sync_directory(to.parent)
    finally:
        lock.release(held, clean=True)
    return chosen


class Schedule:
    """Backups as the configuration wants them, in a thread of their own. ``step`` may be called at any time; ``report``
    hears of what went wrong last, "" for nothing."""

    def __init__(
        self, database: Path, settings: Settings, report: Callable[[str], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._database, self._settings, self._report, self._clock = database, settings, report, clock
        self._wanted: BackupSettings = settings.backup
        self.work = Background("backup")

    def step(self) -> None:
        now = self._clock()
        if self._wanted.folder is not None and self.work.due(now):
            self.work.pause(now, _LOOK_S)
            self.work.start(self._run, self._wanted.folder)

    def _run(self, folder: Path) -> None:
        try:
            if kept := archive.told_between(folder, self._clock() - self._wanted.every_s, self._clock()):
                _owned(folder, kept, self._database, frozen=False)
                return
            backup(self._database, self._settings, folder, self._wanted.keep)
            self._report("")
        except OSError as e:  # AvmError among them
            self.work.pause(self._clock(), _AGAIN_S)
            self._report(str(e))


def status(database: Path, wanted: BackupSettings, figures: dict[str, Any]) -> dict[str, Any]:
    """What the daemon tells of backups: {"folder", "at" (s since the epoch), "age_s", "seq", "error"} of the last good
    one; empty where there is none and none is wanted."""
    said = last(database)
    if said is None and wanted.folder is None:
        return {}
    at = None if said is None else said["at"] / 1e9
    return {
        "folder": str(wanted.folder) if said is None else said["folder"],
        "at": at,
        "age_s": None if at is None else round(time.time() - at, 1),
        "seq": None if said is None else said["seq"],
        "error": figures.get("error", ""),
    }
