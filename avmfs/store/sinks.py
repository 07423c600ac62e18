"""Telling kernel caches what a commit changed, before anybody is told that it is done.

Owns the registered sinks: one per mount that lets its kernel cache names and attributes. A sink is a descriptor (the
mount's device) and the bytes that a notice to it consists of; what they mean is the front end's business. The writer
writes them after COMMIT and before the replies. A notice takes no lock in the kernel and waits for nobody, so a commit
never waits for a mount; a sink that cannot be written is dropped.

A changed name costs one notice that makes the kernel look every name up again at its next use; a change of one node's
bytes or attributes one that makes it ask for that node's attributes. The mount that made a change by itself needs no
notice for it: its kernel has done the like.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

log = logging.getLogger(__name__)

NATIVE: Final = frozenset(
    ("create", "mkdir", "symlink", "unlink", "rmdir", "rename", "set_attributes", "commit", "append")
)
"""Commands that answer a request of a kernel, which then knows the outcome by itself."""

_NAMES: Final = frozenset(("create", "mkdir", "remove", "rmdir", "rename", "shared", "ttl", "rules"))
_SILENT: Final = frozenset(("tell",))
_DEVICE: Final = (10, 229)  # /dev/fuse in every Linux: devices.txt, "10 char ... 229 = /dev/fuse"
_LONGEST: Final = 128
TOUCHED: Final = "touched"  # a directory whose own times and link count changed: its kernel may not know the count


@dataclass(frozen=True, slots=True)
class Event:
    """``origin`` is the mount whose kernel asked for the change, empty when none did."""

    origin: bytes
    op: str
    node: int


@dataclass(frozen=True, slots=True)
class Sink:
    """``names`` is written as it is; ``node`` with a node's number laid over it at ``at``, 8 bytes in native order."""

    descriptor: int
    origin: bytes
    names: bytes
    node: bytes
    at: int

    def tell(self, events: Iterable[Event]) -> None:
        """Raises OSError when the mount is gone."""
        foreign = [event for event in events if event.origin != self.origin or event.op == TOUCHED]
        if any(event.op in _NAMES for event in foreign):
            os.write(self.descriptor, self.names)
        for node in sorted({event.node for event in foreign if event.op not in _SILENT}):
            notice = bytearray(self.node)
            notice[self.at : self.at + 8] = node.to_bytes(8, sys.byteorder)
            try:
                os.write(self.descriptor, notice)
            except OSError as e:
                if e.errno != errno.ENOENT:  # this kernel does not have the node
                    raise


def parse(greeting: Any, descriptor: int) -> Sink | None:
    """A sink from what its mount sent, or None when that is not one."""
    if not isinstance(greeting, dict):
        return None
    origin, names, node, at = (greeting.get(key) for key in ("origin", "names", "node", "at"))
    if not (isinstance(origin, bytes) and isinstance(names, bytes) and isinstance(node, bytes) and isinstance(at, int)):
        return None
    if not origin or not 0 <= at <= len(node) - 8 or max(len(names), len(node)) > _LONGEST:
        return None
    # Anything else that a child could send, a full pipe say, might block the writer for everybody.
    found = os.fstat(descriptor)
    if not stat.S_ISCHR(found.st_mode) or (os.major(found.st_rdev), os.minor(found.st_rdev)) != _DEVICE:
        return None
    return Sink(descriptor, origin, names, node, at)
