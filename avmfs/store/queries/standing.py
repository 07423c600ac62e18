"""Whether what an asker could see once may still be told to it: rights are those of today.

A class in the log, or of the past, says who could see something when it was written. Nodes get another one when the
rules change; these keep theirs, and what was withdrawn since would go on. So the place is judged anew, by the policy
that the nodes' own classes were folded with. What a class says beside that (``:shared``, the areas of a key) it goes on
saying. Called by the readers, in their snapshot.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property, lru_cache

import apsw

from avmfs import paths
from avmfs.access import Access, Area, Policy, Principal
from avmfs.node import Change
from avmfs.store.rows.log_ops import CARRIED
from avmfs.store.rows.scopes import Visible
from avmfs.store.rows.stored_policy import policy_in_force


class Standing:
    """Of one asker, in one snapshot."""

    def __init__(self, db: apsw.Connection, who: Principal, visible: Visible) -> None:
        self._db, self._who, self._visible = db, who, visible

    def saw(self, scope: int, path: bytes) -> bool:
        """Whether it may be told of what was of this class, there."""
        return self.holds(scope) and self.reads(path)

    def holds(self, scope: int) -> bool:
        return self._who.operator or (scope in self._visible and scope not in self._withdrawn)

    def reads(self, path: bytes) -> bool:
        """Whether what everybody had there would be the asker's to read. Of what is at no path (purged, or a backup's
        beginning) its class alone decides."""
        if self._who.operator or not path:
            return True
        above = path[: path.rindex(b"/")]
        return _reads(self._policy, self._who.name, above + b"/" if _alike(self._policy, above) else path)

    def sees(self, path: bytes) -> bool:
        """Of an end of a renaming, whose row is there for who sees either: as ``reads``, and within an API key."""
        if (key := self._who.key) is None or not path or not self.reads(path):
            return self.reads(path)
        return key.access(self._policy.scope(_names(path), None, self._areas)) >= Access.READ

    def shown(self, change: Change, within: bytes) -> Change | None:
        """A change as the rules of today show it: of a renaming of which they show one end alone, that a name came, or
        went. None: it is not shown, or has nothing left below ``within``."""
        if (was := change.other) is None:
            return change if self.reads(change.path) else None
        here = self.sees(change.path)
        if self.sees(was) == here:  # what a directory carries is told with it
            return change if here and change.op != CARRIED else None
        change = replace(change, op="create" if here else "remove", path=change.path if here else was, other=None)
        return change if change.path.startswith(within) else None

    @cached_property
    def _areas(self) -> list[Area]:
        return [(number, _names(bytes(path))) for number, path in self._db.execute("select id, path from area")]

    @cached_property
    def _policy(self) -> Policy:
        return policy_in_force(self._db)

    @cached_property
    def _withdrawn(self) -> frozenset[int]:
        """Classes of one other agent that search_all showed, which the asker has no more."""
        if "search_all" in self._policy.person(self._who.name).capabilities:
            return frozenset()
        return self._visible.anothers


def _names(path: bytes) -> tuple[bytes, ...]:
    return tuple(path.split(b"/")[1:])


@lru_cache(maxsize=4096)
def _alike(policy: Policy, directory: bytes) -> bool:
    """Whether the rules say the same of all that is in a directory."""
    parts = _names(directory)
    named = parts[-1:] in ((paths.PRIVATE,), (paths.TELL,))  # whose something is stands in its name
    return not named and policy.uniform(parts)


@lru_cache(maxsize=65536)  # the log says much of few places, again and again
def _reads(policy: Policy, agent: str, place: bytes) -> bool:
    parts = _names(place)
    if parts[:1] == (paths.TELL,):  # mail is its receiver's, as what stands in its own space
        parts = (paths.MEMORY, paths.PRIVATE, *parts[1:])
    return policy.scope(parts).of(agent) >= Access.READ
