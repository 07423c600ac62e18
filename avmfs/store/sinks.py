"""Telling kernel caches what a commit changed, before anybody is told that it is done.

Owns the registered sinks: one per mount that lets its kernel cache names and attributes. A sink is a descriptor (the
mount's device) and the bytes that a notice to it consists of; what they mean is the front end's business. The writer
writes them after COMMIT and before the replies. A notice takes no lock in the kernel and waits for nobody, so a commit
never waits for a mount; a sink that cannot be written is dropped.

A changed name costs one notice that makes the kernel look every name up again at its next use, so it is sent only
where that kernel may have the name (``seen``); a change of one node's bytes or attributes costs one that makes it ask
for that node's attributes. A changed owner or mode is told like a changed name, as the kernel asks for neither before
it decides who may chmod(2), chown(2), utimensat(2) or remove from a sticky directory: it goes by its last lookup. The
mount that made a change by itself needs no notice for it: its kernel has done the like.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from avmfs.store import seen
from avmfs.store.seen import SeenNames

log = logging.getLogger(__name__)

NATIVE: Final = frozenset(
    ("create", "mkdir", "symlink", "unlink", "rmdir", "rename", "set_attributes", "commit", "append")
)
"""Commands that answer a request of a kernel, which then knows the outcome by itself."""

RIGHTS: Final = "rights"  # a node's owner or mode, at this name
_NAMES: Final = frozenset(("create", "mkdir", "remove", "rmdir", "rename", RIGHTS))
ORPHANED: Final = "orphaned"  # it lost its name, or another file took it
MOVED: Final = "moved"  # a directory: the names below it are reached, or not, by another path
_ALL_NAMES: Final = frozenset((MOVED, "shared", "ttl", "rules"))  # what an agent may reach at all has changed
_SILENT: Final = frozenset(("tell", "key", "people"))
_DEVICE: Final = (10, 229)  # /dev/fuse in every Linux: devices.txt, "10 char ... 229 = /dev/fuse"
_LONGEST: Final = 128
TOUCHED: Final = "touched"  # a directory whose own times and link count changed: its kernel may not know the count


class Event(NamedTuple):
    """``origin`` is the mount whose kernel asked for the change, empty when none did. ``parent`` and ``name``: the
    name that came or went."""

    origin: bytes
    op: str
    node: int
    parent: int | None = None
    name: bytes = b""


@dataclass(frozen=True, slots=True)
class Sink:
    """``names`` is written as it is; ``node`` with a node's number laid over it at ``at``, 8 bytes in native order.
    ``seen``: the names that this kernel may have; None when it does not say."""

    descriptor: int
    origin: bytes
    names: bytes
    node: bytes
    at: int
    seen: SeenNames | None = None

    def tell(self, events: Iterable[Event]) -> None:
        """Raises OSError when the mount is gone."""
        foreign = [event for event in events if event.origin != self.origin or event.op == TOUCHED]
        if not foreign:
            return
        if any(self._has(event) for event in foreign):
            if self.seen is not None:
                self.seen.clear()  # before the notice: see the module seen
            os.write(self.descriptor, self.names)
        for node in sorted({event.node for event in foreign if event.op not in _SILENT}):
            notice = bytearray(self.node)
            notice[self.at : self.at + 8] = node.to_bytes(8, sys.byteorder)
            try:
                os.write(self.descriptor, notice)
            except OSError as e:
                if e.errno != errno.ENOENT:  # this kernel does not have the node
                    raise

    def _has(self, event: Event) -> bool:
        """Does the change concern a name that this kernel may have?"""
        if event.op in _ALL_NAMES:
            return True
        if event.op not in _NAMES:
            return False
        return self.seen is None or event.parent is None or self.seen.has(event.parent, event.name)

    def close(self) -> None:
        if self.seen is not None:
            self.seen.close()


def parse(greeting: Any, descriptors: Sequence[int]) -> Sink | None:
    """A sink from what its mount sent, the device and perhaps its table of names; None when that is not one."""
    if not isinstance(greeting, dict) or not 1 <= len(descriptors) <= 2:
        return None
    descriptor = descriptors[0]
    origin, names, node, at = (greeting.get(key) for key in ("origin", "names", "node", "at"))
    if not (isinstance(origin, bytes) and isinstance(names, bytes) and isinstance(node, bytes) and isinstance(at, int)):
        return None
    if not origin or not 0 <= at <= len(node) - 8 or max(len(names), len(node)) > _LONGEST:
        return None
    # Anything else that a child could send, a full pipe say, might block the writer for everybody.
    found = os.fstat(descriptor)
    if not stat.S_ISCHR(found.st_mode) or (os.major(found.st_rdev), os.minor(found.st_rdev)) != _DEVICE:
        return None
    if len(descriptors) == 1:
        return Sink(descriptor, origin, names, node, at)
    if not seen.is_table(descriptors[1]):
        return None
    return Sink(descriptor, origin, names, node, at, SeenNames(descriptors[1]))
