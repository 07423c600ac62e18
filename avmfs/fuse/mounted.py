"""The life of one mount of the Linux front end: made anew or taken over, until it is unmounted.

Owns the order in which things begin: the device, the kept memory, the handlers, the kernel's greeting, what is left
for a successor, and only then caching. Called by ``serve`` in a mount child. What requests mean is ``linux``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from avmfs import kept as memory_kept
from avmfs.fuse import device, resume
from avmfs.fuse import protocol as p
from avmfs.fuse.linux import LinuxMount
from avmfs.fuse.resume import Box, Continuity, left_by_predecessor
from avmfs.vfs.tree import Tree

About = dict[str, str]
"""What a mount can do, for `status`: "survives" ("resume" or "remount"), "caching" ("epoch" or "none", with a
"caching_reason")."""


def mount(
    tree: Tree, mountpoint: Path, *, read_only: bool, allow_other: bool, cached: bool, ready: Callable[[About], None],
    told: Callable[[About], None], before_mount: Callable[[], None], runtime_dir: Path, box: Box | None,
) -> None:  # fmt: skip
    """Mount, or go on with what a predecessor had mounted, and serve until unmounted. ``ready`` is called once the
    kernel has been greeted, ``told`` when what was said of caching has changed. ``cached``: let the kernel keep names
    and attributes while the writer tells it of every change."""
    found = box.take() if box is not None else {}
    kept = left_by_predecessor(found)
    if kept is not None:
        descriptor = found[resume.DEVICE]
    else:
        if box is not None:
            box.empty()
        found, kept = {}, memory_kept.make()
        before_mount()
        options = ["fsname=avmfs", "subtype=avmfs", "nosuid", "nodev", "default_permissions"]
        options += ["ro" if read_only else "rw", *(["allow_other"] if allow_other else [])]
        descriptor = device.mount(mountpoint, options)
    continuity = Continuity(tree, kept)
    mounted = LinuxMount(tree, descriptor, runtime_dir, continuity, box, found)
    session, over = mounted.session, threading.Event()

    def switch(on: bool) -> None:
        session.switch_caching(on)
        told({"caching": "epoch", "caching_reason": ""} if on else _uncached("the writer is gone"))

    def keep(connection: int) -> None:
        if box is not None:
            box.put(resume.SINK, connection)

    def feed() -> None:
        tree.memory.store.feed_cache(
            descriptor, p.INC_EPOCH, p.INVAL_ATTRIBUTES, p.INVAL_NODE_AT, switch, over, found.get(resume.SINK), keep
        )

    def greeted() -> None:
        survives = "remount"
        if session.resends and box is not None:
            continuity.leave(box, descriptor, session.minor, session.agreed)
            survives = "resume"
        why = ""
        if not cached:
            why = "the mount is strict"
        elif session.minor < p.EPOCH_MINOR:
            why = f"the kernel speaks FUSE 7.{session.minor}; 7.{p.EPOCH_MINOR} is needed"
        ready({"survives": survives, **_uncached(why or "the writer has not been reached yet")})
        if not why:
            threading.Thread(target=feed, name="cache", daemon=True).start()

    if continuity.minor:
        continuity.refresh(descriptor)
    try:
        session.serve(greeted, continuity.minor, continuity.agreed)
    finally:
        over.set()
        mounted.close()


def _uncached(why: str) -> About:
    return {"caching": "none", "caching_reason": why}
