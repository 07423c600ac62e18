"""A folder of this machine and a directory of the store, kept in step both ways.

Owns the rule. What one side has changed since both were alike goes to the other; what both have changed stays as both,
the folder's under a name of its own; what one has changed and the other removed comes back. Nothing is replaced or
removed that is not as it was when it was compared: the store decides by the bytes' digest, in the folder a file is put
aside first and looked at again. What comes back, or has another name in the folder, is limited to whom it was. What
was alike is in ``.avm-sync.json`` of the folder, which a sync that was cut off may leave old: then what is alike is
found to be.
"""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import hashlib
import itertools
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from avmfs.errors import AvmError, Busy, Invalid, NotFound, Stale, TooBig
from avmfs.paths import NAME_MAX
from avmfs.store.files.io import sync_directory
from avmfs.transfer import exporting
from avmfs.transfer.files import beside, files, make_folder, private
from avmfs.transfer.record import Door, Refusal

STATE: Final = ".avm-sync.json"
_NEW, _OLD = ".avm-sync-new", ".avm-sync-old"  # ends of names beside a file: what comes, and what was put aside
_ROUNDS: Final = 5
_MANY: Final = 10  # removals that need no word, beside half of all, where something is left
_TAKEN: Final = "something else has that name, or it changes all the time"
_NAMES_TAKEN: Final = "its names are taken: give it another one, without a dot"
LARGEST: Final = 8 * 1024 * 1024
_TOO_BIG: Final = f"larger than {LARGEST} bytes"


@dataclass(slots=True)
class Synced:
    """Paths below the folder. ``conflicts``: (path, under which the folder's own is now)."""

    to_folder: list[str] = field(default_factory=list)
    to_store: list[str] = field(default_factory=list)
    removed_here: list[str] = field(default_factory=list)
    removed_there: list[str] = field(default_factory=list)
    conflicts: list[tuple[str, str]] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


class Sync:
    """``path`` may be None where the folder has been synced before. ``names`` are globs of what is kept in step; names
    that begin with a dot never are. ``many``: most of what was there may be removed."""

    def __init__(
        self, door: Door, folder: Path, path: str | None, *, names: tuple[str, ...] = ("*.md",), many: bool = False
    ) -> None:
        self._door, self._folder, self._names, self._many = door, folder, names, many
        before = self._state()
        where = path if path is not None else before.get("path")
        if where is None:
            raise Invalid("name the directory of the memory that it is to be kept in step with", os.fspath(folder))
        found = door.call("locate", path=where)
        self._root, self._store = str(found["path"]), str(found["store"])
        if before and before["path"] != self._root:
            raise Invalid(f"it is kept in step with {before['path']}; remove {STATE} to begin anew", os.fspath(folder))
        if before.get("store", self._store) != self._store:
            says = "it is kept in step with another memory, or with this one before it was restored or repaired"
            raise Invalid(f"{says}; remove {STATE} to begin anew", os.fspath(folder))
        self._base: dict[str, tuple[str, int]] = {
            name: (each[0], each[1]) for name, each in before.get("files", {}).items()
        }
        # Whom the memory's files are limited to, and were when both sides were alike, as those of the folder are to be.
        self._seen: dict[str, list[str] | None] = {}
        self._limits: dict[str, list[str]] = before.get("shared", {})
        self._report = Synced()
        self._bytes: dict[str, bytes] = {}
        self._moments: dict[str, int] = {}
        self._undone: set[str] = set()
        self._agreed: dict[str, str | None] = {}  # digests that both sides have by now; None: neither has it

    def run(self, dry: bool = False) -> Synced:
        """Rounds until nothing changes, since others may write meanwhile. Raises Invalid before most of one side would
        go, and Busy where another sync of the folder is at work."""
        if dry:
            here, there = self._looked()
            for name, step in self._steps(here, there):
                self._note(name, step, self._own_name(name, here[name]) if step == "both" else "")
            return self._report
        with _alone(self._folder):
            self._recover()
            self._rounds()
        return self._report

    def _rounds(self) -> None:
        for _ in range(_ROUNDS):
            self._report.refused, self._undone = [], set()
            here, there = self._looked()
            left_alone = len(self._report.refused)
            steps = self._steps(here, there)
            for name, step in steps:
                self._undone.add(name)
                if step in ("to store", "both") and (limits := self._limited(name, here)) is not None:
                    self._limits[self._own_name(name, here[name]) if step == "both" else name] = limits
                try:
                    self._done(name, step, here.get(name), there.get(name, (None, 0))[0])
                except (AvmError, OSError) as e:
                    self._undone.discard(name)
                    self._report.refused.append(Refusal(name, e.reason if isinstance(e, AvmError) else str(e.strerror)))
            self._save(steps, here, there)
            if len(steps) <= len(self._report.refused) - left_alone:
                break
        self._report.refused += [Refusal(name, _TAKEN) for name in sorted(self._undone)]

    def _steps(self, here: dict[str, str], there: dict[str, tuple[str, int]]) -> list[tuple[str, str]]:
        steps = []
        for name in sorted(here.keys() | there.keys()):
            mine, theirs, both = (each.get(name) for each in (here, there, self._base))
            store, base = theirs[0] if theirs else None, both[0] if both else None
            if mine == store:
                continue
            if mine == base or (mine is None and store != base):
                steps.append((name, "remove here" if store is None else "to folder"))
            elif store == base or store is None:
                steps.append((name, "remove there" if mine is None else "to store"))
            else:
                steps.append((name, "both"))
        for side, left in (("remove here", there), ("remove there", here)):
            gone = sum(step == side for _, step in steps)
            if gone > (max(_MANY, len(self._base) // 2) if left else 0) and not self._many:
                which = "the folder" if side == "remove there" else "the memory"
                says = (
                    f"{gone} of {len(self._base)} files are gone from {which}: is it all there? (--many removes them)"
                )
                raise Invalid(says, os.fspath(self._folder))
        return steps

    def _done(self, name: str, step: str, mine: str | None, theirs: str | None) -> None:
        """Do it, unless that side has changed meanwhile: then the next round looks at it again."""
        other = ""
        if step == "both":  # the next round takes the other one to the store
            other = self._own_name(name, str(mine))
            to = self._folder / other
            if not (to.exists() and _digest(to.read_bytes()) == mine) and not self._into_folder(
                other, self._mine(name), None
            ):
                return
        if step in ("both", "to folder"):
            good = self._into_folder(name, self._theirs(name), mine)
        elif step == "to store":
            good = self._into_store(name, self._mine(name), theirs)
        elif step == "remove here":
            good = self._out_of_folder(name, str(mine))
        elif self._is_back(name):
            good = False
        else:
            try:
                self._door.call("remove", path=f"{self._root}/{name}", instead_of=bytes.fromhex(str(theirs)))
                self._thin_out(name)
                good = True
            except (Stale, NotFound):
                good = False
        if good:
            self._undone.discard(name)
            self._note(name, step, other)
            self._agreed[name] = {"to store": mine, "to folder": theirs, "both": theirs}.get(step)

    def _note(self, name: str, step: str, other: str) -> None:
        report = self._report
        if step == "both":
            report.conflicts.append((name, other))
            return
        lists = (report.to_folder, report.to_store, report.removed_here, report.removed_there)
        lists[("to folder", "to store", "remove here", "remove there").index(step)].append(name)

    def _own_name(self, name: str, digest: str) -> str:
        stem, end = os.path.splitext(name)
        end = f" (conflict {digest[:8]}){end}"
        while os.path.basename(stem) and len(os.fsencode(os.path.basename(stem + end))) > NAME_MAX:
            stem = stem[:-1]
        return stem + end

    # What each side has ------------------------------------------------------------------------------------

    def _looked(self) -> tuple[dict[str, str], dict[str, tuple[str, int]]]:
        """Of the folder and of the memory, without what is refused of either."""
        here, there = self._here(), self._there()
        return {name: digest for name, digest in here.items() if not self._refused(name)}, there

    def _here(self) -> dict[str, str]:
        found = {}
        for each in files(self._folder):
            if isinstance(each, Refusal):
                if self._wanted(each.where) or not os.path.isfile(self._folder / each.where):  # it may hide a folder
                    self._report.refused.append(each)
            elif self._wanted(each[0]):
                try:
                    at = each[1].stat()
                    if at.st_size > LARGEST:
                        raise TooBig(_TOO_BIG)
                    data = each[1].read_bytes()
                except FileNotFoundError:
                    continue  # it was renamed or removed since it was listed
                except OSError as e:
                    self._report.refused.append(Refusal(each[0], str(e.strerror)))
                    continue
                self._bytes[f"here {each[0]}"], self._moments[each[0]] = data, at.st_mtime_ns
                found[each[0]] = _digest(data)
        return found

    def _there(self) -> dict[str, tuple[str, int]]:
        found: dict[str, tuple[str, int]] = {}
        self._seen.clear()
        begun = False
        try:
            for each in exporting.told(self._door, self._root):
                begun = True
                name = exporting.relative(each["path"], self._root)
                if each["kind"] != "file" or not self._wanted(name) or self._refused(name):
                    continue
                if each["size"] > LARGEST:
                    self._report.refused.append(Refusal(name, _TOO_BIG))
                    continue
                self._seen[name] = each["shared"]
                known, seq = self._base.get(name, ("", 0))
                if not (seq and seq == each["seq"]):
                    try:
                        self._bytes[f"there {name}"] = data = exporting.contents(self._door, each["path"])
                    except NotFound:
                        continue
                    except Busy as e:  # somebody writes to it all the time
                        self._report.refused.append(Refusal(name, e.reason))
                        continue
                    known = _digest(data)
                found[name] = known, each["seq"]
                self._moments[f"there {name}"] = each["mtime"]
        except NotFound:
            if begun:  # it has gone between two pages: the first of them is not all that there was
                raise
        return found

    def _limited(self, name: str, here: dict[str, str]) -> list[str] | None:
        """Whom a file of the folder is limited to: as it is or was in the memory, and as those were that had its bytes
        and have gone from the folder, since it may be one of them under another name."""
        gone = [each for each, (digest, _) in self._base.items() if digest == here[name] and each not in here]
        said = [told.get(each) for each in (name, *gone) for told in (self._seen, self._limits)]
        sets = [{*each} for each in said if each is not None]
        return sorted(set.intersection(*sets)) if sets else None

    def _refused(self, name: str) -> bool:
        return any(each.where == name or name.startswith(f"{each.where}/") for each in self._report.refused)

    def _wanted(self, name: str) -> bool:
        return "/." not in f"/{name}" and any(fnmatch.fnmatchcase(os.path.basename(name), glob) for glob in self._names)

    def _mine(self, name: str) -> bytes:
        return self._bytes[f"here {name}"]

    def _theirs(self, name: str) -> bytes:
        if f"there {name}" not in self._bytes:
            self._bytes[f"there {name}"] = exporting.contents(self._door, f"{self._root}/{name}")
        return self._bytes[f"there {name}"]

    # What is done to each ----------------------------------------------------------------------------------

    def _into_store(self, name: str, data: bytes, instead_of: str | None) -> bool:
        item: dict[str, Any] = {"path": f"{self._root}/{name}", "data": data}
        if name in self._moments:
            item["mtime"] = self._moments[name]
        if instead_of is not None:
            item["instead_of"] = bytes.fromhex(instead_of)
        elif name in self._limits:
            item["shared"] = self._limits[name]
        [refused] = self._door.call("put", items=[item])
        if refused is None:
            return True
        if refused[0] in (errno.EEXIST, errno.ESTALE):
            return False
        raise Invalid(refused[1])

    def _thin_out(self, name: str) -> None:
        """Directories that a removal has left empty go, where the folder has none of that name: it may be a file's."""
        while (name := os.path.dirname(name)) and not os.path.isdir(self._folder / name):
            try:
                self._door.call("remove", path=f"{self._root}/{name}", instead_of=b"")
            except AvmError:
                break

    def _place(self, name: str) -> Path:
        """Where a name is in the folder. Raises Invalid where a symlink leads out of it."""
        to = self._folder / name
        if any(each.is_symlink() for each in itertools.takewhile(lambda each: each != self._folder, to.parents)):
            raise Invalid("behind a symlink")
        return to

    def _into_folder(self, name: str, data: bytes, instead_of: str | None) -> bool:
        to = self._place(name)
        make_folder(to.parent)
        new = to.with_name(beside(to.name, _NEW))
        new.unlink(missing_ok=True)
        with open(new, "xb", opener=private) as file:
            _write(file, data)
        if (at := self._moments.get(f"there {name}")) is not None:
            os.utime(new, ns=(at, at))
        try:
            if instead_of is not None:
                os.chmod(new, to.stat().st_mode & 0o7777)
                return self._aside(to, instead_of, lambda: _named(new, to))
            _named(new, to)
        except (FileExistsError, FileNotFoundError):
            return False
        finally:
            new.unlink()
        return True

    def _is_back(self, name: str) -> bool:
        """Whether the folder has a file again that was missing, as one is for a moment while an editor saves it: it
        would come to the memory as another document."""
        at = self._folder / name
        try:
            mode = at.lstat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
        return not stat.S_ISDIR(mode) and at.name in os.listdir(at.parent)  # on some disks a.md is there as A.md

    def _out_of_folder(self, name: str, digest: str) -> bool:
        to = self._place(name)
        try:
            if not self._aside(to, digest, lambda: None):
                return False
        except FileNotFoundError:
            return False
        for folder in itertools.takewhile(lambda each: each != self._folder, to.parents):
            try:
                folder.rmdir()
            except OSError:
                break
        return True

    def _aside(self, to: Path, digest: str, then: Callable[[], None]) -> bool:
        """Put a file aside, do ``then`` where its bytes are as they were, and remove it; else put it back."""
        old = to.with_name(beside(to.name, _OLD))
        if not stat.S_ISREG(to.lstat().st_mode):
            return False  # a folder, say, has its name by now
        to.rename(old)
        try:
            alike = _digest(old.read_bytes()) == digest
        except OSError:
            self._back(old, to)
            raise
        if alike:
            try:
                then()
            except FileExistsError:  # somebody has written it anew
                old.unlink()
                raise
            except BaseException:
                self._back(old, to)
                raise
            old.unlink()  # its bytes are in the store, or were removed there
            return True
        self._back(old, to)
        return False

    def _back(self, old: Path, to: Path) -> None:
        """Under its name, or where that is taken by now under another: the next round takes it to the store. Raises
        Invalid where both are taken by other bytes."""
        if stat.S_ISDIR(old.lstat().st_mode):  # it got the name just before the file of that name was put aside
            with suppress(OSError):
                old.rename(to)
                return
            raise Invalid(_NAMES_TAKEN, os.fspath(old))
        with suppress(FileExistsError):
            _named(old, to)  # unread, since perhaps it cannot be
            old.unlink()
            return
        name, digest = os.fspath(to.relative_to(self._folder)), _digest(old.read_bytes())
        if self._base.get(name, ("", 0))[0] == digest:
            old.unlink()  # nobody's edit: it was written anew, or replaced just before a sync was killed
            return
        other = self._own_name(name, digest)
        if name in self._limits:
            self._limits[other] = self._limits[name]
        for each in (to, self._folder / other):
            try:
                _named(old, each)
            except FileExistsError:
                if not each.is_file() or _digest(each.read_bytes()) != digest:
                    continue
            old.unlink()
            return
        raise Invalid(_NAMES_TAKEN, os.fspath(old))

    def _recover(self) -> None:
        """What a sync that was killed has left."""
        known = {path.with_name(beside(path.name, _OLD)): path for path in map(self._folder.joinpath, self._base)}
        for where, folders, names in os.walk(self._folder, topdown=False):
            for path in (Path(where, name) for name in (*names, *folders) if name.startswith(".")):
                if path.name.endswith(_NEW):
                    path.unlink()
                elif path.name.endswith(_OLD):
                    self._back(path, known.get(path, path.with_name(path.name[1 : -len(_OLD)])))

    # What was alike ----------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        if not self._folder.is_dir():
            raise NotFound("no such folder", os.fspath(self._folder))
        try:
            said = json.loads((self._folder / STATE).read_text())
            if not isinstance(said["path"], str) or not isinstance(said["files"], dict):
                raise ValueError("no path and files")
            if not isinstance(said.get("shared", {}), dict):
                raise ValueError("shared: expected a mapping")
            return dict(said)
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as e:
            raise Invalid(f"damaged ({e}): remove it, and nothing is lost", os.fspath(self._folder / STATE)) from None

    def _save(self, steps: list[tuple[str, str]], here: dict[str, str], there: dict[str, tuple[str, int]]) -> None:
        """What was alike when it was looked at, and what has been made so. What is noted of a file is on the disk by
        then: one that power loss has emptied, taken or put back would be an edit to the next sync."""
        changed = {name for name, _ in steps}
        alike = {name: each for name, each in there.items() if name not in changed and here.get(name) == each[0]}
        undone = {name for name in self._base if name in changed or self._refused(name)} - self._agreed.keys()
        waiting = {name: self._base[name] for name in undone}
        made = {name: (digest, 0) for name, digest in self._agreed.items() if digest is not None}
        before, self._base, self._agreed = self._base, {**waiting, **alike, **made}, {}
        self._on_disk([name for name, each in self._base.items() if before.get(name, ("", 0))[0] != each[0]])
        seen = {name: each for name, each in self._seen.items() if name not in waiting}
        limits = {name: each for name, each in {**self._limits, **seen}.items() if each is not None}
        kept = {name for name in limits if name in self._base or (self._folder / name).exists()}
        self._limits = {name: limits[name] for name in kept}
        new = self._folder / f"{STATE}.new"
        said = {"path": self._root, "store": self._store, "files": self._base, "shared": self._limits}
        with open(new, "wb", opener=private) as file:
            _write(file, json.dumps(said, sort_keys=True).encode())
        new.replace(self._folder / STATE)
        self._bytes.clear()

    def _on_disk(self, names: list[str]) -> None:
        """Whoever wrote them: what has gone since, the next round sees."""
        gone = suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError)
        paths = [self._folder / name for name in names]
        for path in paths:
            with gone, open(path, "rb") as file:
                os.fsync(file.fileno())
        for folder in {each for path in paths for each in path.parents if each.is_relative_to(self._folder)}:
            with gone:
                sync_directory(folder)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two syncs of a folder would take what each other puts beside its files for what a killed one has left."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy("another sync of this folder is at work", os.fspath(folder)) from None
        except OSError:
            pass  # NFS locks nothing that is not open for writing, as no folder can be
        yield
    finally:
        os.close(descriptor)


def _write(file: IO[bytes], data: bytes) -> None:
    """On the disk before it has its name, or power loss leaves that of an empty file."""
    file.write(data)
    file.flush()
    os.fsync(file.fileno())


def _named(file: Path, name: Path) -> None:
    """Give a file a second name, which nobody has yet. Raises FileExistsError."""
    try:
        os.link(file, name)
    except (FileExistsError, FileNotFoundError):
        raise
    except OSError:  # FAT has no hard links: then it is a copy
        with open(name, "xb", opener=private) as copy:
            try:
                _write(copy, file.read_bytes())
                shutil.copystat(file, name)
            except BaseException:
                name.unlink()
                raise


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
