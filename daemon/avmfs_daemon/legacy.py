"""What the supervisor keeps for those who come after: its children, and itself.

Owns the holder on the supervisor's side: finding one that outlived a supervisor before, which of its mounts can be gone
on with, a box for every new mount, another holder when that one ends. Called by the supervisor's loop alone. Without a
holder (macOS, the portable front end) every method does nothing, and mounts are made anew after a kill.
"""

from __future__ import annotations

import logging
import os
import secrets
import selectors
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from avmfs_config import Mount

from avmfs.errors import Invalid
from avmfs.fuse import resume
from avmfs.fuse.serve import front_end
from avmfs_daemon import forking, runtime
from avmfs_daemon.box import BELOW, LIMIT_S, Holding
from avmfs_daemon.mountpoint import Mountpoint
from avmfs_daemon.slot import Slot

log = logging.getLogger(__name__)


class Legacy:
    """`mountpoints` are those of mounts that can be gone on with."""

    def __init__(self, directory: Path, mounts: Iterable[Mount], database: Path, environ: Mapping[str, str]) -> None:
        self._holding: Holding | None = None
        self._inherited: dict[Mount, tuple[str, Mountpoint]] = {}
        if not forking.SPAWNS and front_end(environ) == "linux":
            self._holding = Holding(directory, float(environ.get("AVM_HOLD_S", LIMIT_S)))
            self._take_over(self._holding, list(mounts), database, runtime.remembered(directory))
        self.mountpoints = [mount.mountpoint for mount in self._inherited]

    @property
    def holder_pid(self) -> int | None:
        return None if self._holding is None else self._holding.pid

    def watch(self, selector: selectors.BaseSelector, slots: Callable[[], list[Slot]]) -> None:
        """Replace the holder when it ends."""
        if self._holding is not None:
            selector.register(
                self._holding.descriptor, selectors.EVENT_READ, lambda mask: self._holder_ended(selector, slots)
            )

    def bequeath(self, slot: Slot) -> bool:
        """Give a new slot the mount that a supervisor before had there, if there is one."""
        inherited = self._inherited.pop(slot.mount, None) if slot.mount is not None else None
        if inherited is None:
            return False
        slot.box, slot.mountpoint = inherited
        slot.about = {"survives": "resume"}
        return True

    def give_box(self, slot: Slot) -> None:
        """A new one: what is mounted next has nothing to do with what was."""
        if slot.box is not None and all(child.box != slot.box for child in slot.children):
            self.discard(slot.box)  # of a process that has ended, and will have no successor: nobody would answer
        if self._holding is not None and slot.mountpoint is not None:
            slot.box = secrets.token_hex(16)
            self._holding.put(slot.box, BELOW, slot.mountpoint.descriptor)

    def give_up(self, slot: Slot) -> None:
        """End the mount for whoever still uses it; the next child makes it anew."""
        log.error("%s: its processes die of what they take over: mounting anew", slot.name)
        if slot.box is not None:
            self.discard(slot.box)
            slot.about = {}
            self.give_box(slot)

    def discard(self, box: str) -> None:
        if self._holding is not None:
            self._holding.discard(box)

    def forget_cached(self, slots: Iterable[Slot]) -> None:
        """Without a writer nobody tells kernels of changes; a child drops what its kernel has cached, but one that
        hangs cannot."""
        for slot in slots:
            if self._holding is not None and slot.resumes and slot.box is not None:
                device = self._holding.get(slot.box, resume.DEVICE)
                if device is not None:
                    resume.forget_cached(device)
                    os.close(device)

    def open_among(self, slots: Iterable[Slot], nodes: list[int]) -> list[int] | None:
        """Of these nodes, those of files that a mount has open; None while that is not known of each mount."""
        if self._holding is None or self._inherited:
            return None
        asked, found = set(nodes), set[int]()
        for slot in slots:
            boxes = {child.box for child in slot.children} | ({slot.box} if slot.box is not None else set())
            if slot.mount is None or not boxes:
                continue
            # What a killed process was about to open is opened by its successor.
            if not slot.resumes or slot.current is None or slot.current.ready_at is None:
                return None
            for box in boxes:
                tables = None if box is None else self._holding.get(box, resume.TABLES)
                if tables is None:
                    return None
                try:
                    found |= resume.open_among(tables, asked)
                except (Invalid, OSError) as e:
                    log.warning("%s: not known what is open there: %s", slot.name, e)
                    return None
                finally:
                    os.close(tables)
        return list(found)

    def end(self) -> None:
        if self._holding is not None:
            self._holding.end()

    def _holder_ended(self, selector: selectors.BaseSelector, slots: Callable[[], list[Slot]]) -> None:
        assert self._holding is not None
        log.warning("the holder has ended: starting another one")
        selector.unregister(self._holding.descriptor)
        self._holding.again()
        self.watch(selector, slots)
        for slot in slots():
            if slot.box is not None and slot.mountpoint is not None:
                self._holding.put(slot.box, BELOW, slot.mountpoint.descriptor)

    def _take_over(self, holding: Holding, mounts: list[Mount], database: Path, modes: Mapping[Path, int]) -> None:
        for box in holding.boxes:
            for mount in mounts:
                if mount not in self._inherited and holding.fits(box, mount, database):
                    below = holding.get(box, BELOW)
                    if below is not None:
                        mode = modes.get(mount.mountpoint, 0o700)
                        self._inherited[mount] = (box, Mountpoint.adopt(mount.mountpoint, below, mode))
                        break
            else:
                holding.discard(box)
