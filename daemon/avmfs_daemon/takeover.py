"""What the supervisor keeps for those who come after: its children, and itself.

Owns the holder on the supervisor's side: finding one that outlived a supervisor before, which of its mounts can be gone
on with, an entry of the fd store for every new mount, another store when that one ends. And the note of what is
mounted. Called by the supervisor's loop alone. Without a holder (macOS, the portable front end, AVM_HOLD_S=0) nothing
is held, and mounts are made anew after a kill.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import selectors
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from avmfs_config import ConfigError, Mount
from avmfs_config.paths import not_own, real_place

from avmfs.errors import Invalid
from avmfs.fuse import handover
from avmfs.fuse.serve import front_end
from avmfs_daemon import forkserver, runtime
from avmfs_daemon.child import Child
from avmfs_daemon.fdstore_client import BELOW, LIMIT_S, FdStoreClient
from avmfs_daemon.mountpoint import Mountpoint, MountpointError

log = logging.getLogger(__name__)

LONGEST_S: Final = 86400.0  # that mounts are held
LIVES_S: Final = 1.0  # a holder at least, or the next one has to wait


class Takeover:
    """Until `settle`, what a run before left is for the next start where this one fails. `mounts`: None for a daemon
    that mounts nothing, whatever is configured; all that it finds is for the next start."""

    def __init__(
        self, directory: Path, mounts: Collection[Mount] | None, database: Path, environ: Mapping[str, str]
    ) -> None:
        self._holding: FdStoreClient | None = None
        self._replace: Callable[[], None] = lambda: None
        self._replaced_at = time.monotonic()
        self._inherited: dict[Mount, tuple[str, Mountpoint]] = {}
        self._directory = directory
        self._left = runtime.remembered(directory)  # mountpoints that no child has yet, and their modes
        self._leaves_all = mounts is None
        self._awaited = [mount.mountpoint for mount in mounts or ()]
        if not forkserver.SPAWNS and front_end(environ) == "linux" and (limit_s := _hold_s(environ)):
            self._holding = FdStoreClient(directory, limit_s)
            self._take_over(self._holding, mounts or (), database)

    @property
    def mountpoints(self) -> list[Path]:
        """Those of mounts that can be gone on with, and that no child has yet."""
        return [mount.mountpoint for mount in self._inherited]

    @property
    def holder_pid(self) -> int | None:
        return None if self._holding is None else self._holding.pid

    def clean_up(self) -> None:
        """At the beginning and at the end: what was left goes, but for what is gone on with, and for dead mounts where
        another one is to come. In a directory that is somebody else's by now nothing is."""
        with contextlib.suppress(FileNotFoundError):
            if not_own(self._directory):
                return
        runtime.clean_up(self._directory, self._left if self._leaves_all else self.mountpoints, self._awaited)
        inherited = {mountpoint.path: mountpoint.mode for _, mountpoint in self._inherited.values()}
        self._left = runtime.remembered(self._directory) | inherited

    def remember(self, children: Iterable[Child]) -> None:
        """Note what is, or is about to be, mounted."""
        directories = [child.mountpoint for child in children if child.mountpoint is not None]
        taken = {directory.path: directory.mode for directory in directories}
        self._left = {path: mode for path, mode in self._left.items() if path not in taken}
        self.noted = runtime.remember(self._directory, self._left | taken)

    def settle(self) -> None:
        """The start is over, or a stop was asked for: what no child has gone on with ends."""
        for fd_entry, mountpoint in self._inherited.values():
            self.discard(fd_entry)
            mountpoint.close()
        self._inherited.clear()
        self._awaited.clear()

    def watch(self, selector: selectors.BaseSelector, children: Callable[[], list[Child]]) -> None:
        """Replace the holder when it ends."""
        if self._holding is not None:
            selector.register(
                self._holding.descriptor, selectors.EVENT_READ, lambda mask: self._holder_ended(selector, children)
            )

    def give_directory(self, child: Child, others: Collection[Child]) -> None:
        """Open and guarded: with the mount that a supervisor before had there, if there is one. The child fails where
        it cannot be used; two names of one directory would have each mount take the other's place."""
        mount = child.mount
        assert mount is not None
        place = real_place(mount.mountpoint)
        held = [each.name for each in others if each.wanted and each.mountpoint and each.mountpoint.real == place]
        if held:
            child.change("failed", f"{mount.mountpoint}: another name of the directory of {held[0]}")
        elif (inherited := self._inherited.pop(mount, None)) is not None:
            child.fd_entry, child.mountpoint = inherited
            child.about = {"survives": "resume"}
        else:
            try:
                child.mountpoint = Mountpoint.prepare(
                    mount.mountpoint, for_others=mount.uid not in (None, os.geteuid())
                )
            except (MountpointError, OSError) as problem:
                child.change("failed", str(problem))
            else:
                self.renew_fd_entry(child)
        if child.mountpoint is not None:
            self.remember([*others, child])

    def renew_fd_entry(self, child: Child) -> None:
        """A new one: what is mounted next has nothing to do with what was."""
        if child.fd_entry is not None and all(process.fd_entry != child.fd_entry for process in child.processes):
            self.discard(child.fd_entry)  # of a process that has ended, and will have no successor: nobody would answer
        if self._holding is not None and child.mountpoint is not None:
            child.fd_entry = secrets.token_hex(16)
            self._holding.put(child.fd_entry, BELOW, child.mountpoint.descriptor)

    def give_up(self, child: Child) -> None:
        """End the mount for whoever still uses it; the next child makes it anew."""
        log.error("%s: its processes die of what they take over: mounting anew", child.name)
        if child.fd_entry is not None:
            self.discard(child.fd_entry)
            child.about = {}
            self.renew_fd_entry(child)

    def discard(self, fd_entry: str) -> None:
        if self._holding is not None:
            self._holding.discard(fd_entry)

    def forget_cached(self, children: Iterable[Child]) -> None:
        """Without a writer nobody tells kernels of changes; a child drops what its kernel has cached, but one that
        hangs cannot."""
        for child in children:
            if self._holding is not None and child.resumes and child.fd_entry is not None:
                device = self._holding.get(child.fd_entry, handover.DEVICE)
                tables = self._holding.get(child.fd_entry, handover.TABLES)
                try:
                    if device is not None and tables is not None:
                        handover.forget_cached(device, tables)
                except (Invalid, OSError) as e:
                    log.warning("%s: its kernel may show what was: %s", child.name, e)
                finally:
                    for each in (device, tables):
                        if each is not None:
                            os.close(each)

    def open_among(self, children: Iterable[Child], nodes: list[int]) -> list[int] | None:
        """Of these nodes, those of files that a mount has open; None while that is not known of each mount."""
        if self._holding is None or self._inherited:
            return None
        asked, found = set(nodes), set[int]()
        for child in children:
            fd_entries = {process.fd_entry for process in child.processes} | (
                {child.fd_entry} if child.fd_entry is not None else set()
            )
            if child.mount is None or not fd_entries:
                continue
            # What a killed process was about to open is opened by its successor.
            if not child.resumes or child.current is None or child.current.ready_at is None:
                return None
            for fd_entry in fd_entries:
                tables = None if fd_entry is None else self._holding.get(fd_entry, handover.TABLES)
                if tables is None:
                    return None
                try:
                    found |= handover.open_among(tables, asked)
                except (Invalid, OSError) as e:
                    log.warning("%s: not known what is open there: %s", child.name, e)
                    return None
                finally:
                    os.close(tables)
        return list(found)

    def keep(self) -> None:
        """Let there be a holder, and mounts' processes find it. Raises RuntimeProblem, OSError."""
        if self._holding is not None:
            self._replace()
            self._holding.listen_again()

    def end(self) -> None:
        if self._inherited and self._holding is not None:
            self._holding.leave()
        elif self._holding is not None:
            self._holding.end()

    def _holder_ended(self, selector: selectors.BaseSelector, children: Callable[[], list[Child]]) -> None:
        assert self._holding is not None
        log.warning("the holder has ended: starting another one")
        selector.unregister(self._holding.descriptor)
        holding = self._holding

        def replace() -> None:
            self._replaced_at = time.monotonic()
            holding.again()
            self.watch(selector, children)
            self._replace = lambda: None
            for child in children():
                if child.fd_entry is not None and child.mountpoint is not None:
                    holding.put(child.fd_entry, BELOW, child.mountpoint.descriptor)

        self._replace = replace
        if time.monotonic() - self._replaced_at < LIVES_S:  # it dies at its start: `keep` tries again
            return
        with contextlib.suppress(runtime.RuntimeProblem, OSError):  # perhaps no runtime directory just now: see `keep`
            replace()

    def _take_over(self, holding: FdStoreClient, mounts: Collection[Mount], database: Path) -> None:
        for fd_entry in holding.fd_entries:
            for mount in mounts:
                if mount not in self._inherited and holding.fits(fd_entry, mount, database):
                    below = holding.get(fd_entry, BELOW)
                    if below is not None:
                        mode = self._left.get(mount.mountpoint, 0o700)
                        self._inherited[mount] = (fd_entry, Mountpoint.adopt(mount.mountpoint, below, mode))
                        break
            else:
                holding.discard(fd_entry)


def _hold_s(environ: Mapping[str, str]) -> float:
    """What AVM_HOLD_S says; 0: nothing is held. Raises ConfigError."""
    text = environ.get("AVM_HOLD_S") or str(LIMIT_S)
    with contextlib.suppress(ValueError):
        if 0 <= (seconds := float(text)) <= LONGEST_S:
            return seconds
    raise ConfigError("environment", "AVM_HOLD_S", f"expected seconds from 0 to {LONGEST_S:g}, not {text!r}")
