"""Repairing a store: a copy of all that there is, a new store of all that can be saved, and what was lost, as a list.

Owns the order of that: nothing of the old store is touched until the new one is whole, its index and the chain of its
audit made. `Repair` is a dry run until ``install``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from avmfs_config import Settings

from avmfs.access import Policy
from avmfs.agents import anchors, auditing
from avmfs.agents.auditing import Chainer
from avmfs.errors import Invalid, NoSpace, StoreFailed
from avmfs.store.files import loss_check, wal_frames
from avmfs.store.files.io import sync_directory
from avmfs.store.files.store_lock import COMMAND_S, StoreLock
from avmfs.store.identity import OPERATOR
from avmfs.store.repair import examine, rebuild, salvage
from avmfs.store.rows.hash_chain import Anchor
from avmfs.store.rows.log_position import position
from avmfs.store.schema import database
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules

NEEDS: Final = 4  # times the store's files, as room for the copy, the image, the new store and its log
LOCK_S: Final = 1.0
DRAIN: Final = 64  # documents at a time


@dataclass(slots=True)
class Repair:
    """What was found, saved and lost. ``sound``: nothing is wrong. ``missing``: changes that are known and not there,
    which nobody gives up without being told to."""

    path: Path
    anchors: Path
    sound: bool = True
    found: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    saved: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    aside: Path | None = None
    new: Path | None = None
    new_anchors: Path | None = None

    def install(self) -> None:
        """Put a copy of the old store aside, and the new one in its place. Raises OSError; what is begun then is
        finished by the next repair."""
        assert self.new is not None
        ready = loss_check.repaired(self.anchors)
        ready.unlink(missing_ok=True)
        if self.new_anchors is not None:
            loss_check.copy(self.new_anchors, ready)
            sync_directory(ready.parent)
        self.aside = loss_check.keep(self.path, self.anchors)
        self.new.replace(loss_check.repaired(self.path))
        sync_directory(self.path.parent)
        loss_check.finish(self.path, self.anchors)


@contextlib.contextmanager
def repair(path: Path, settings: Settings, *, dry: bool = False) -> Iterator[Repair]:
    """Find out what is wrong and make a new store, beside the old one, which stays as it is. The store is held while
    the block lasts. Raises Busy while a daemon runs, NoSpace, Invalid for what is another program's, or of an
    avmfs that this one does not read, and, when ``dry``, StoreFailed for one that waits for the end of a repair."""
    lock = StoreLock(path)
    held = lock.acquire(LOCK_S, COMMAND_S)
    try:
        if dry:
            loss_check.finished(path)
        loss_check.finish(path, settings.audit.anchors or anchors.beside(path))
        for folder in loss_check.unfinished(path):  # of one that was killed: we have the lock
            shutil.rmtree(folder)
        yield from _repair(path, settings)
    finally:
        lock.release(held, clean=False)  # who comes next need not trust our syncs: it writes the log anew


def _repair(path: Path, settings: Settings) -> Iterator[Repair]:
    kept = settings.audit.anchors or anchors.beside(path)
    if examine.strange(path):
        says = (
            "a database of another program, of a newer avmfs or of one before any release: there is nothing to repair"
        )
        raise Invalid(says, os.fspath(path))
    left = wal_frames.look(wal_frames.beside(path), [])
    known = loss_check.known(path, anchors.newest(kept))
    size = sum(each.stat().st_size for each in (path, wal_frames.beside(path)) if each.exists())
    if NEEDS * size > (free := shutil.disk_usage(path.parent).free):
        says = f"{NEEDS * size >> 20} MB are needed for a copy and a new store, {free >> 20} MB are free"
        raise NoSpace(says, os.fspath(path.parent))
    done = Repair(path, kept)
    with tempfile.TemporaryDirectory(prefix=f"{path.name}.repairing-", dir=path.parent) as folder:
        lost: list[int] = []
        bad = examine.image(path, left, image := Path(folder) / "image.db", lost)
        done.found = [each.says for each in examine.files(path, left, known)]
        if lost:
            done.found.append(f"{path}: the disk does not give {len(lost)} of its pages, such as {lost[0]}")
        done.kept = [f"page {page}: its newest image is not what was written" for page in bad]
        try:
            if examine.older(image):
                examine.migrate(image)
            with contextlib.closing(examine.FrozenStore(image, True)) as store:
                done.found += [each.says for each in examine.rows(store)] + _audit(store, kept, known)
        except examine.BROKEN as e:
            if isinstance(e, Invalid) and not known:
                raise
            done.found.append(str(e))
        done.sound = not done.found
        if not done.sound:
            _make(done, image, Path(folder) / path.name, known, settings)
        yield done


def _audit(store: examine.FrozenStore, kept: Path, known: int) -> list[str]:
    """What does not agree of log, chain and anchors."""
    try:
        noted = anchors.read(kept)
    except Invalid as e:
        return [str(e)]
    verdict, altered, _ = auditing.verify(store, OPERATOR, noted)  # who wrote what is not to be mended
    found = [f"audit: row {verdict.bad} {verdict.reason}"] if verdict.bad is not None else []
    found += [f"audit: triggers or tables are not as they were made: {', '.join(altered)}"] if altered else []
    if not noted and verdict.last and store.followed() < 0:  # a host that has just joined has none yet
        found.append(f"{kept}: there are no anchors")
    newest = examine.newest(store)
    return found + ([f"the store ends at change {newest}, though changes up to {known} were kept"] * (newest < known))


def _make(done: Repair, image: Path, new: Path, known: int, settings: Settings) -> None:
    broken: set[str] = set()
    if image.stat().st_size:
        _, broken, notes = salvage.salvage(image, new)
        done.lost += notes
    else:
        database.prepare(new)
    database.prepare(new)  # of this version
    with contextlib.closing(database.connect(new, writable=True)) as db:
        if position(db) is not None:  # what is repaired on one would not be what the others have
            says = f"one of several hosts' stores, which have what it has lost: {loss_check.JOIN}"
            raise Invalid(says, os.fspath(done.path))
        losing = rebuild.mend(db, known, broken)
    done.missing = losing.missing
    done.lost += losing.gone
    done.kept += losing.kept
    store = open_direct(new, Policy.from_settings(settings), IndexRules.of(settings))
    try:
        while store.submit(OPERATOR, "drain_lexical", limit=DRAIN)["left"]:
            pass
        made = new.with_name("anchors")
        Chainer(store, made, 0.0, time.time_ns).step()
        done.saved = examine.counts(store)
        done.new_anchors = made if _anew(store, done.anchors) else None
    finally:
        store.close()
    if wal_frames.look(wal_frames.beside(new)) is not None:
        raise StoreFailed("the new store was not closed", os.fspath(new))
    done.new = new


def _anew(store: Any, kept: Path) -> bool:
    """Return whether the anchors there were disagree with the log that there is."""
    try:
        noted: list[Anchor] = anchors.read(kept)
    except Invalid:
        return True
    return not noted or auditing.verify(store, OPERATOR, noted)[0].bad is not None
