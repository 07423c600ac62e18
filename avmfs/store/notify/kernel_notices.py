"""Telling kernel caches what a commit changed, before anybody is told that it is done.

Owns the registered sinks: one per mount that lets its kernel cache names and attributes. A sink is a descriptor (the
mount's device) and the bytes that a notice to it consists of; what they mean is the front end's business. The writer
writes them after COMMIT and before the replies. A notice takes no lock in the kernel and waits for nobody, so a commit
never waits for a mount; a sink that cannot be written is dropped.

Where a kernel does not have a node that it may have, its reply may be under way: then too it is made to look every name
up again.

A changed name costs one notice that makes the kernel look every name up again at its next use, a change of one node's
bytes or attributes one that makes it ask for that node's attributes. Either is sent only where that kernel may have the
name or the node (``kernel_filter``), so what sixteen mounts do that have nothing to do with each other costs none. A
changed owner or mode is told like a changed name, as the kernel asks for neither before it decides who may chmod(2),
chown(2), utimensat(2) or remove from a sticky directory: it goes by its last lookup. The mount that made a change by
itself needs no notice for it: its kernel has done the like. But for what comes of it beside (a removed note's name in
the trash, the ttl of a file that a save has replaced), which it is told like any other.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from avmfs.store.notify import kernel_filter as seen
from avmfs.store.notify.kernel_filter import KernelFilter
from avmfs.store.rows import log_ops
from avmfs.store.rows.log_ops import BESIDE, TOUCHED, Event

log = logging.getLogger(__name__)

_NAME: Final = log_ops.ops_where(lambda op: op.notifies == "name")
_ALL_NAMES: Final = log_ops.ops_where(
    lambda op: op.notifies == "all names"
)  # what an agent may reach at all has changed
_SILENT: Final = log_ops.ops_where(lambda op: op.notifies == "nothing")
_DEVICE: Final = (10, 229)  # /dev/fuse in every Linux: devices.txt, "10 char ... 229 = /dev/fuse"
_LONGEST: Final = 128


class Notice(NamedTuple):
    """An event as each sink looks at it, worked out once for all of them. ``name_slot``: where it is noted in ``seen``
    that a kernel has the name, -1 where the event is about no name, None where it is about any. ``node``: 0 where its
    attributes have not changed; its place and value in ``seen``."""

    origin: bytes | None
    name_slot: int | None
    node: int
    node_slot: int
    node_value: int


def noticed(events: Sequence[Event]) -> list[Notice]:
    """What there may be to tell of these."""
    found = []
    for origin, op, node, parent, name in events:
        slot: int | None = -1
        if op in _ALL_NAMES:
            slot = None
        elif op in _NAME:
            slot = None if parent is None else seen.name_slot(parent, name)
        changed = 0 if op in _SILENT else node
        if changed or slot != -1:
            teller = None if op in (BESIDE, TOUCHED) else origin
            found.append(Notice(teller, slot, changed, seen.node_slot(changed), seen.node_value(changed)))
    return found


@dataclass(frozen=True, slots=True)
class Sink:
    """``names`` is written as it is; ``node`` with a node's number laid over it at ``at``, 8 bytes in native order.
    ``seen``: the names and nodes that this kernel may have; None when it does not say."""

    descriptor: int
    origin: bytes
    names: bytes
    node: bytes
    at: int
    seen: KernelFilter | None = None

    def tell(self, notices: Sequence[Notice]) -> None:
        """Raises OSError when the mount is gone."""
        mine, table = self.origin, None if self.seen is None else self.seen.table
        names, nodes = False, set()
        for origin, name_slot, node, node_slot, node_value in notices:
            if origin != mine:
                names = names or name_slot is None or (name_slot >= 0 and (table is None or table[name_slot] != 0))
                if node and (table is None or table[node_slot] in (node_value, seen.ANY)):
                    nodes.add(node)
        if names:
            self._end_names()
        for node in sorted(nodes):
            notice = bytearray(self.node)
            notice[self.at : self.at + 8] = node.to_bytes(8, sys.byteorder)
            try:
                os.write(self.descriptor, notice)
            except OSError as e:
                if e.errno != errno.ENOENT:
                    raise
                # This kernel does not have the node, or not yet: the name of one whose entry is under way, with what
                # the node was before, is to be looked up again.
                if not names:
                    self._end_names()
                names = True

    def _end_names(self) -> None:
        if self.seen is not None:
            self.seen.clear()  # before the notice: see the module kernel_filter
        os.write(self.descriptor, self.names)

    def close(self) -> None:
        if self.seen is not None:
            self.seen.close()


def parse_sink(greeting: Any, descriptors: Sequence[int]) -> Sink | None:
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
    return Sink(descriptor, origin, names, node, at, KernelFilter(descriptors[1]))
