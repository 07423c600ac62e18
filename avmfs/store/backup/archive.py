"""The folder of backups: packs of pages, and for each backup a file that names every page of it.

Owns that format (docs/FORMATS.md, Backups). A page is written once, when it has changed since the backup before; a pack
of which little is needed any more has that written again, so that old packs can go. Files take their names when they
are on the disk, and a backup is its last file: one that is killed leaves those before as they were. Knows no SQLite.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from avmfs.errors import Busy, Exists, NotFound, StoreFailed
from avmfs.store.files import room
from avmfs.store.files.io import sync_directory

PAGE: Final = 4096
SUFFIX: Final = ".backup"
IMAGE: Final = "avm-image"
_PACK: Final = ".pack"
_PACKS: Final = "[0-9]" * 8 + _PACK  # the folder may have files of others,
_BACKUPS: Final = f"*Z-{'[0-9]' * 8}{SUFFIX}"  # as `avm.db.backup` is, where it has the database
_STAMP: Final = "%Y%m%dT%H%M%SZ"
_MAGIC: Final = b"avmfs backup 1\n"
_TABLE: Final = np.dtype([("hash", "S16"), ("pack", "<u4"), ("slot", "<u4")])
_LEAST: Final = 0.5  # of a pack: with less in use, that is written again
_PIECE: Final = 256  # pages read at once
_NONE: Final = "no backup, or a damaged one: move it away, and the others can be used"

Progress = Callable[[int, int], None]  # pages done, and how many there are


def unheard(done: int, of: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class Backup:
    """``number``: they are made in that order, whatever a clock said; 0 of those before there was one. ``at`` in ns,
    ``seq`` the newest change in it; ``pages`` of ``PAGE`` bytes, ``new`` of them written by this one. ``about`` is what
    whoever made it wants to have again."""

    path: Path
    number: int
    at: int
    seq: int
    pages: int
    new: int
    about: dict[str, Any]


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder, made where it is not there, for this process alone. Raises Busy; Exists where others' packs are."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (folder / "lock").exists() and any(folder.glob(_PACKS)) and not backups(folder):
        raise Exists("it has packs of another program: name another folder", os.fspath(folder))
    with _locked(folder, os.O_RDWR, fcntl.LOCK_EX, "a backup is being made there, checked, or restored from"):
        yield


@contextlib.contextmanager
def held_still(folder: Path) -> Iterator[None]:
    """While it lasts no backup is made or removed there; others may read too. Raises Busy."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_locked(folder, os.O_RDONLY, fcntl.LOCK_SH, "a backup is being made there"))
        except OSError as e:
            if e.errno not in (errno.EROFS, errno.EACCES):
                raise  # else: a copy without a lock where nothing can be written
        yield


@contextlib.contextmanager
def _locked(folder: Path, access: int, kind: int, busy: str) -> Iterator[None]:
    descriptor = os.open(folder / "lock", access | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(busy, os.fspath(folder)) from None
        yield
    finally:
        os.close(descriptor)


def backups(folder: Path) -> list[Backup]:
    """Oldest first; none where there is no folder. Raises StoreFailed for one that is damaged."""
    found = [_read(path)[0] for path in sorted(folder.glob(_BACKUPS))]
    return sorted(found, key=lambda each: (each.number, each.at, each.path.name))


def newest(folder: Path, at: int | None = None) -> Backup:
    """The last one, or the last that was made no later than ``at`` (ns). Raises NotFound."""
    found = [each for each in backups(folder) if at is None or each.at <= at]
    if not found:
        raise NotFound("no backup" if at is None else "no backup that old", os.fspath(folder))
    return found[-1]


def told_between(folder: Path, since: float, until: float) -> list[dict[str, Any]]:
    """What those of that time (s since the epoch), by their names, are about; their pages are not looked at. Raises
    StoreFailed."""
    first, last = (time.strftime(_STAMP, time.gmtime(at)) for at in (since, until))
    told = []
    for path in folder.glob(_BACKUPS):
        if first < path.name[: len(last)] <= last:
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:  # it may go meanwhile
                file.readline()
                try:
                    told.append(json.loads(file.readline())["about"])
                except (ValueError, LookupError):
                    raise StoreFailed(_NONE, os.fspath(path)) from None
    return told


def add(folder: Path, image: Path, seq: int, at: int, about: dict[str, Any], progress: Progress = unheard) -> Backup:
    """Take the file ``image`` in; the folder is held. Every page of it is read again from where it is kept. Raises
    NoSpace, and StoreFailed where what was written cannot be."""
    _sweep(folder)
    before = backups(folder)
    former = _read(before[-1].path)[1] if before else np.zeros(0, _TABLE)
    table = np.zeros(image.stat().st_size // PAGE, _TABLE)
    for first, pages in _pages(image):
        progress(first, 2 * len(table))
        table["hash"][first : first + len(pages)] = [_hash(page) for page in pages]
    common = min(len(table), len(former))
    same = np.flatnonzero(table["hash"][:common] == former["hash"][:common])
    same = same[_sound(folder, former[same])]
    table[same] = former[same]
    new = np.setdiff1d(np.arange(len(table)), same)
    number = 1 + max((int(path.stem) for path in folder.glob(_PACKS)), default=0)
    table["pack"][new], table["slot"][new] = number, np.arange(len(new))
    if len(new):
        room.require(folder, len(new) * PAGE, "what is new in a backup")
        with _whole(_pack(folder, number)) as out, open(image, "rb") as source:
            for at_page, page in enumerate(new.tolist(), len(table)):
                progress(at_page, len(table) + len(new))
                out.write(os.pread(source.fileno(), PAGE, page * PAGE))
    header = {"at": at, "seq": seq, "pages": len(table), "new": len(new), "about": about}
    header["number"] = 1 + max((each.number for each in before), default=0)
    body = _MAGIC + json.dumps(header, sort_keys=True).encode() + b"\n" + table.tobytes()
    stamp = time.strftime(_STAMP, time.gmtime(at // 10**9))
    path = folder / f"{stamp}-{number:08d}{SUFFIX}"
    _check(folder, table[new])
    with _whole(path) as out:
        out.write(body + hashlib.sha256(body).digest())
    return _read(path)[0]


def prune(folder: Path, keep: int) -> int:
    """Only the newest ``keep`` stay, with what they need of the packs; returns how many went. The folder is held."""
    old = backups(folder)[:-keep]
    for each in old:
        each.path.unlink()
    sync_directory(folder)
    _sweep(folder)
    return len(old)


def lay_out(folder: Path, backup: Backup, to: Path, progress: Progress = unheard) -> None:
    """Write the image of a backup to the file ``to``, durably, and none of it unless all is good. The folder is held
    still. Raises NoSpace, StoreFailed."""
    table = _read(backup.path)[1]
    with _whole(to) as out:
        room.require(to.parent, len(table) * PAGE, "the store that is restored")
        for page in _contents(folder, table, progress):
            out.write(page)


def check(folder: Path, backup: Backup, progress: Progress = unheard) -> None:
    """Read all of a backup. Raises StoreFailed, naming the pack."""
    _check(folder, _read(backup.path)[1], progress)


def _check(folder: Path, table: Any, progress: Progress = unheard) -> None:
    for _ in _contents(folder, table, progress):
        pass


def _contents(folder: Path, table: Any, progress: Progress = unheard) -> Iterator[bytes]:
    rows = zip(table.tolist(), _stored(folder, table), strict=True)
    for number, ((digest, pack, slot), page) in enumerate(rows):
        progress(number, len(table))
        if page is None:
            raise StoreFailed("a pack of this backup is not there", os.fspath(_pack(folder, pack)))
        if not _is(page, digest):
            raise StoreFailed(f"page {slot} of it is damaged", os.fspath(_pack(folder, pack)))
        yield page


def _stored(folder: Path, table: Any) -> Iterator[bytes | None]:
    """The page of each row, unchecked; None where its pack is not there."""
    with contextlib.ExitStack() as opened:
        packs: dict[int, int | None] = {}
        for _, pack, slot in table.tolist():
            if pack not in packs:
                packs[pack] = None
                with contextlib.suppress(FileNotFoundError):
                    packs[pack] = made = os.open(_pack(folder, pack), os.O_RDONLY | os.O_CLOEXEC)
                    opened.callback(os.close, made)
            descriptor = packs[pack]
            yield None if descriptor is None else os.pread(descriptor, PAGE, slot * PAGE)


def _sound(folder: Path, table: Any) -> Any:
    """Of each row: is its page there, as it was written, in a pack of which much is in use?"""
    good = np.fromiter(
        (
            page is not None and _is(page, row[0])
            for row, page in zip(table.tolist(), _stored(folder, table), strict=True)
        ),
        bool,
        len(table),
    )
    for pack in np.unique(table["pack"][good]).tolist():
        if (of_it := good & (table["pack"] == pack)).sum() * PAGE < _pack(folder, pack).stat().st_size * _LEAST:
            good &= ~of_it
    return good


def _is(page: bytes, digest: bytes) -> bool:
    return _hash(page) == digest.ljust(16, b"\0")  # numpy drops zeros at the end


def _sweep(folder: Path) -> None:
    """Remove what a killed backup has left, and packs that none needs; of the others what none needs becomes zeros, or
    what was purged would stay in them."""
    for name in (_PACKS, _BACKUPS):
        for left in folder.glob(f"{name}.partial"):
            left.unlink()
    tables = [_read(each)[1] for each in folder.glob(_BACKUPS)]
    for path in folder.glob(_PACKS):
        slots = [table["slot"][table["pack"] == int(path.stem)] for table in tables]
        needed = np.unique(np.concatenate(slots)) if slots else np.zeros(0, np.int64)
        if not len(needed):
            path.unlink()
            continue
        unneeded = np.setdiff1d(np.arange(path.stat().st_size // PAGE), needed).tolist()
        with open(path, "rb") as pack:
            dirty = [slot for slot in unneeded if any(os.pread(pack.fileno(), PAGE, slot * PAGE))]
        if not dirty:  # it may be one that is not to be written to
            continue
        with open(path, "r+b") as pack:
            for slot in dirty:
                os.pwrite(pack.fileno(), bytes(PAGE), slot * PAGE)
            os.fsync(pack.fileno())


def _read(path: Path) -> tuple[Backup, Any]:
    data = path.read_bytes()
    if not data.startswith(_MAGIC) or hashlib.sha256(data[:-32]).digest() != data[-32:]:
        raise StoreFailed(_NONE, os.fspath(path))
    header, _, table = data[len(_MAGIC) : -32].partition(b"\n")
    said = json.loads(header)
    made = Backup(path, said.get("number", 0), said["at"], said["seq"], said["pages"], said["new"], said["about"])
    return made, np.frombuffer(table, _TABLE)


def _pages(image: Path) -> Iterator[tuple[int, list[bytes]]]:
    with open(image, "rb") as file:
        first = 0
        while piece := file.read(_PIECE * PAGE):
            yield first, [piece[at : at + PAGE] for at in range(0, len(piece), PAGE)]
            first += _PIECE


def _hash(page: bytes) -> bytes:
    return hashlib.blake2b(page, digest_size=16).digest()


def _pack(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}{_PACK}"


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Any]:
    """A file that takes its name once it is on the disk, or is gone."""
    beside = path.with_name(path.name + ".partial")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb", buffering=1 << 20) as out:
            yield out
            out.flush()
            os.fsync(descriptor)
        beside.replace(path)
    except BaseException:
        beside.unlink()
        raise
    sync_directory(path.parent)
