"""Many rows of the log as one line per path: what was added, modified, removed or renamed.

Owns the folding of changes. Called by the views that tell what changed (:delta of a directory, :changes). Knows
nothing of marks, paging or text; the store decides which rows an asker may see.

Rows tell of single steps; a reader wants their sum. A file that came and went in between leaves nothing, an
editor's detour over a temporary or backup name is a modification of the file itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from avmfs.node import Change
from avmfs.store.rows.log_ops import DIRECTORY_NAMES, MAKES, REMOVES

Status = Literal["A", "M", "D", "R"]


@dataclass(frozen=True, slots=True)
class Touched:
    """One path. ``was`` is where a renamed one stood before; ``last`` the newest of its changes that are told."""

    status: Status
    path: bytes
    was: bytes | None
    last: Change


@dataclass(slots=True)
class _Path:
    """One path: whether something stood there before these rows, and whether something does now. ``origin`` is where
    what stands there now stood before, None for what is new."""

    before: bool
    now: bool
    origin: bytes | None
    last: Change
    told: bool = False


class Fold:
    """Takes rows in order of seq. ``below`` is a directory's path, b"" for the root. What ``but_by`` did it knows:
    its rows are not told, and what others do is told against them. Directories made and removed are not told,
    renamed ones are.

    A path that stood before and stands now is modified, whatever happened in between; one that is new is added,
    or renamed if what it has stood elsewhere and nothing stands there any more.
    """

    def __init__(self, below: bytes = b"", but_by: str | None = None) -> None:
        self._prefix = below + b"/"
        self._but_by = but_by
        self._paths: dict[bytes, _Path] = {}
        self._inside: defaultdict[bytes, set[bytes]] = defaultdict(set)  # of directories, by path: a log is long
        self.told = 0

    def knows(self, change: Change) -> bool:
        """Return whether this row would add no path."""
        return change.path in self._paths and (change.other is None or change.other in self._paths)

    def take(self, change: Change) -> None:
        if change.op in DIRECTORY_NAMES:
            return
        if change.op == "rename" and change.other is not None:
            old, new = change.other, change.path
            # A directory takes along what was told of its files.
            for path in [*self._known_below(old)]:
                self._move(path, new + path[len(old) :], change)
            self._move(old, new, change)
            return
        born = change.op in MAKES
        at = self._at(change.path, change, stood=not born)
        if born:
            at.origin = None
        at.now = change.op not in REMOVES
        self._tell(change.path, at, change)

    def touched(self) -> list[Touched]:
        """In order of path."""
        found: dict[bytes, Touched] = {}
        for path, at in self._paths.items():
            if path.startswith(self._prefix) and (at.before or at.now):
                status: Status = "D" if not at.now else "M" if at.before else "A"
                found[path] = Touched(status, path, None, at.last)
        for path, touched in list(found.items()):
            origin = self._paths[path].origin
            if touched.status == "A" and origin is not None and origin in found and found[origin].status == "D":
                found[path] = Touched("R", path, origin, touched.last)
                del found[origin]
        return [found[path] for path in sorted(found) if self._paths[path].told]

    def _move(self, old: bytes, new: bytes, change: Change) -> None:
        source = self._at(old, change, stood=True)
        if not source.now:
            return
        # What is replaced has a row of its own before the rename: an unknown target was free.
        target = self._at(new, change, stood=False)
        target.now, target.origin = True, source.origin
        source.now, source.origin = False, None
        if source.told and not target.told:
            target.told, target.last = True, source.last
        self._tell(old, source, change)
        self._tell(new, target, change)

    def _at(self, path: bytes, change: Change, *, stood: bool) -> _Path:
        if path not in self._paths:
            self._paths[path] = _Path(stood, stood, path if stood else None, change)
            name = path
            while name and name not in (beside := self._inside[name.rpartition(b"/")[0]]):
                beside.add(name)
                name = name.rpartition(b"/")[0]
        return self._paths[path]

    def _known_below(self, directory: bytes) -> Iterator[bytes]:
        for path in self._inside.get(directory, ()):
            yield from [path] if path in self._paths else []
            yield from self._known_below(path)

    def _tell(self, path: bytes, at: _Path, change: Change) -> None:
        if change.agent == self._but_by:
            at.before, at.origin = at.now, path if at.now else None
        else:
            self.told += not at.told
            at.told, at.last = True, change
