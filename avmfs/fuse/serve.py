"""Serving one agent's tree: chooses the front end and keeps what both need running beside it.

Called by a mount child. The Linux front end is used on Linux; AVM_FRONT_END=portable chooses mfusepy there too,
and everywhere else there is nothing but that.
"""

from __future__ import annotations

import gc
import logging
import os
import pwd
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from avmfs_config import Mount

from avmfs.errors import AvmError, Invalid
from avmfs.fuse.handover import FdEntry
from avmfs.fuse.uid_gate import admitted
from avmfs.memory import Memory
from avmfs.vfs.tree import Tree

log = logging.getLogger(__name__)

FIRST_HOLD_S, HOLD_EVERY_S = 1.0, 30.0
# A view that computes gives way to the thread that reads requests after this long; Python's own 5 ms are a hundred
# answers. Shorter, and the two only take turns at waiting.
SWITCH_S = 0.0005
# What a mount remembers lives long and refers to little: looking through it for cycles at every 700 new objects, as
# Python does by itself, takes more than answering.
COLLECT_AFTER = (20_000, 20, 50)
FRONT_ENDS = ("linux", "portable")


def front_end(environ: Mapping[str, str]) -> str:
    """ "linux" or "portable". Raises Invalid for anything else in AVM_FRONT_END."""
    usual = "linux" if sys.platform.startswith("linux") else "portable"
    chosen = environ.get("AVM_FRONT_END") or usual
    if chosen not in FRONT_ENDS:
        raise Invalid(f"AVM_FRONT_END={chosen}: expected one of {', '.join(FRONT_ENDS)}")
    return chosen


def tree_of(memory: Memory, mount: Mount) -> Tree:
    """What a mount shows. Before it is taken from programs that have files open, ``Tree.commit_all`` makes durable what
    they have written."""
    return Tree(
        memory,
        uid=os.getuid() if mount.uid is None else mount.uid,
        gid=group_of(mount.uid),
        read_only=mount.read_only,
        inject=mount.urgent == "inject",
        closed=admitted(mount) is not None,
        trash=mount.trash,
    )


def serve(
    tree: Tree,
    mount: Mount,
    *,
    ready: Callable[[], None],
    before_mount: Callable[[], None],
    runtime_dir: Path,
    report: Callable[[dict[str, str]], None] = lambda about: None,
    fd_entry: FdEntry | None = None,
) -> None:
    """Mount and serve until unmounted. ``before_mount`` runs last before the mount call, ``ready`` once the kernel
    has accepted it; ``report`` hears what the mount can do, whenever that changes: "survives" is "resume" or
    "remount", "caching" is "epoch" or "none" with a "caching_reason". ``fd_entry`` holds what outlives this process:
    with a predecessor's mount in it, that one is gone on with. Raises AvmError or RuntimeError when it cannot be
    mounted."""

    def caches(mode: str) -> None:
        what, _, why = mode.partition(": ")
        report({"caching": what, "caching_reason": why})

    over = threading.Event()

    def holding() -> None:
        pause = FIRST_HOLD_S
        # The first time soon: predecessors may have been killed again and again before it was their turn.
        while not over.wait(pause):
            pause = HOLD_EVERY_S
            try:
                tree.hold_orphans()
            except AvmError as e:
                log.warning("could not renew leases on unlinked files: %s", e)

    threading.Thread(target=holding, name="holds", daemon=True).start()
    sys.setswitchinterval(SWITCH_S)
    gc.set_threshold(*COLLECT_AFTER)
    gc.freeze()
    report({"survives": "remount"})
    try:
        if front_end(os.environ) == "linux":
            from avmfs.fuse import linux

            linux.mount(
                tree,
                mount,
                runtime_dir=runtime_dir,
                before_mount=before_mount,
                fd_entry=fd_entry,
                ready=ready,
                survives=lambda: report({"survives": "resume"}),
                report=caches,
            )
        else:
            from avmfs.fuse import portable

            before_mount()
            portable.mount(tree, mount, runtime_dir=runtime_dir, ready=ready, report=caches)
    finally:
        over.set()


def group_of(uid: int | None) -> int:
    """The main group of a user; None is this process's own."""
    if uid is None:
        return os.getgid()
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid
