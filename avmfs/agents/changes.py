"""Many rows of the log as one line per path: what was added, modified, removed or renamed.

Owns the folding of changes. Called by the views that tell what changed (:delta of a directory, :changes). Knows
nothing of marks, paging or text; the store decides which rows an asker may see.

Rows tell of single steps; a reader wants their sum. A file that came and went in between leaves nothing, an
editor's detour over a temporary or backup name is a modification of the file itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from avmfs.node import Change

Status = Literal["A", "M", "D", "R"]

_BIRTHS: Final = frozenset({"create", "mkdir"})
_DEATHS: Final = frozenset({"remove", "rmdir"})
_DIRECTORIES: Final = frozenset({"mkdir", "rmdir"})


@dataclass(frozen=True, slots=True)
class Touched:
    """One path. ``was`` is where a renamed one stood before; ``last`` the newest of its changes by others."""

    status: Status
    path: bytes
    was: bytes | None
    last: Change


@dataclass(slots=True)
class _Track:
    """What is known of one path: did it come into being in these rows, does it still stand, whence was it moved."""

    born: bool
    alive: bool
    was: bytes | None
    last: Change
    told: bool


class Fold:
    """Takes rows in order of seq. ``below`` is a directory's path, b"" for the root; rows by ``but_by`` count for
    what stands, and are not told. Directories made and removed are not told, renamed ones are."""

    def __init__(self, below: bytes = b"", but_by: str | None = None) -> None:
        self._prefix = below + b"/"
        self._but_by = but_by
        self._tracks: dict[bytes, _Track] = {}
        self.told = 0

    def knows(self, change: Change) -> bool:
        """Would this row add no path?"""
        return change.path in self._tracks or (change.other is not None and change.other in self._tracks)

    def take(self, change: Change) -> None:
        if change.op in _DIRECTORIES:
            return
        if change.op == "rename" and change.other is not None:
            self._rename(change, change.other)
            return
        track = self._tracks.get(change.path)
        if track is None:
            track = self._tracks[change.path] = _Track(change.op in _BIRTHS, True, None, change, False)
        track.alive = change.op not in _DEATHS
        self._tell(track, change)

    def touched(self) -> list[Touched]:
        """In order of path."""
        found: dict[bytes, Touched] = {}
        moved = {track.was: path for path, track in self._tracks.items() if track.was is not None}
        for path, track in self._tracks.items():
            returned = path in moved and track.alive and track.born
            for status, at, was in self._statuses(path, track, returned):
                if track.told and at.startswith(self._prefix) and at not in found:
                    found[at] = Touched(status, at, was, track.last)
        return [found[path] for path in sorted(found)]

    def _statuses(self, path: bytes, track: _Track, returned: bool) -> Iterable[tuple[Status, bytes, bytes | None]]:
        source = track.was
        if source is not None and (stands := self._tracks.get(source)) is not None and stands.alive and source != path:
            source = None  # something took its old name: what moved away is new where it is now
            born = True
        else:
            born = track.born
        if not track.alive:
            if source is not None:
                yield "D", source, None
            elif not born:
                yield "D", path, None
        elif source is not None and source != path:
            if not path.startswith(self._prefix):
                yield "D", source, None
            elif source.startswith(self._prefix):
                yield "R", path, source
            else:
                yield "A", path, None
        else:
            yield "A" if born and not returned else "M", path, None

    def _rename(self, change: Change, old: bytes) -> None:
        for path in [path for path in self._tracks if path.startswith(old + b"/")]:
            # A directory moved: what was told of its files belongs to their new paths.
            self._tracks[change.path + path[len(old) :]] = self._tracks.pop(path)
        source, target = self._tracks.pop(old, None), self._tracks.get(change.path)
        if target is not None:
            target.alive = True
            if source is None or not source.born:
                left = source.was if source is not None and source.was is not None else old
                told = source is not None and source.told
                self._tell(self._tracks.setdefault(left, _Track(False, False, None, change, told)), change)
            target.told = target.told or (source is not None and source.told)
        else:
            target = source if source is not None else _Track(False, True, None, change, False)
            if not target.born and target.was is None:
                target.was = old
            self._tracks[change.path] = target
        self._tell(target, change)

    def _tell(self, track: _Track, change: Change) -> None:
        if change.agent != self._but_by:
            self.told += not track.told
            track.told = True
            track.last = change
