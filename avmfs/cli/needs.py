"""What mounting needs of this machine, and whether Unix users keep the agents apart: a part of `avm doctor`.

Looks and never changes or mounts anything. Every place that it looks at is an argument, for tests.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from avmfs_config import ConfigError, Mount, Paths, load_mounts, load_settings
from avmfs_config.isolation import entitled, isolation
from avmfs_config.paths import real_place

from avmfs.store.files.store_lock import StoreLock

State = Literal["ok", "note", "problem"]
DEVICE, FUSE_CONF = Path("/dev/fuse"), Path("/etc/fuse.conf")
MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``todo`` is what a person can do about it."""

    about: str
    state: State
    says: str
    todo: str = ""


def mounting(where: Paths) -> Iterator[Finding]:
    """All of it, for the daemon as this user would run it."""
    if not sys.platform.startswith("linux"):
        return
    yield device()
    yield helper(shutil.which("fusermount3"))
    try:
        mounts = load_mounts(where.mounts_file, os.environ)
        settings = entitled(load_settings(where.config_file, os.environ), mounts)
    except ConfigError:
        return  # said where the files themselves are looked at
    own = os.geteuid()
    if (found := others_allowed(mounts, own)) is not None:
        yield found
    running = _serves(where)
    for mount in mounts:
        yield from reach(mount, own)
        yield from place(mount, running)
    if mounts:
        kept, reason = isolation(mounts, settings.uids, own)
        if kept == "by uid":
            yield Finding("isolation", "ok", "by uid: the kernel keeps the agents' users apart")
        else:
            yield Finding("isolation", "note", f"advisory: {reason}", "avm help security says what that means")


def _serves(where: Paths) -> bool:
    """Whether a daemon runs that mounts what is in this mounts.yaml: none that a command started, nor an avm mount's.
    A lock that cannot be read is told of where the store is looked at."""
    with contextlib.suppress(OSError):
        if (holder := StoreLock(where.database).holder()) is not None:
            told = os.path.realpath(holder.get("mounts_file", ""))
            return not holder.get("automatic") and told == os.path.realpath(where.mounts_file)
    return False


def device(path: Path = DEVICE) -> Finding:
    if not path.exists():
        return Finding("/dev/fuse", "problem", "not there", "modprobe fuse; in a container: --device /dev/fuse")
    if not os.access(path, os.R_OK | os.W_OK):
        return Finding(
            "/dev/fuse", "problem", "cannot be opened by this user", f"chmod 666 {path} (a udev rule keeps it)"
        )
    return Finding("/dev/fuse", "ok", "can be opened")


def helper(found: str | None) -> Finding:
    """fusermount3 mounts for those who are not root, so it has to be root's and setuid; root needs it as well."""
    if found is None:
        return Finding("fusermount3", "problem", "not found: mounting needs it", "apt-get install fuse3")
    at = os.stat(found)
    if os.geteuid() != 0 and not (at.st_uid == 0 and at.st_mode & stat.S_ISUID):
        says = f"{found} is not setuid root: it cannot mount for this user"
        return Finding("fusermount3", "problem", says, f"chown root {found} && chmod 4755 {found}")
    return Finding("fusermount3", "ok", found)


def others_allowed(mounts: tuple[Mount, ...], own: int, conf: Path = FUSE_CONF) -> Finding | None:
    """fusermount3 lets a user who is not root open a mount to others only where /etc/fuse.conf says so. None: no mount
    asks for that, or root does not have to ask."""
    wanted = [mount.agent_id for mount in mounts if mount.allow_other or mount.uid not in (None, own)]
    if not wanted or own == 0:
        return None
    try:
        lines = conf.read_text().splitlines()
    except OSError:
        lines = []
    if any(line.strip() == "user_allow_other" for line in lines):
        return Finding("fuse.conf", "ok", f"{conf}: user_allow_other")
    says = f"{conf} does not say user_allow_other: the mounts of {', '.join(wanted)} cannot be made"
    return Finding("fuse.conf", "problem", says, f"as root: echo user_allow_other >> {conf}")


def reach(mount: Mount, own: int) -> Iterator[Finding]:
    """Whether the mount's user gets to the mountpoint, and by its link."""
    about = f"mount {mount.agent_id}"
    if mount.uid not in (None, own):
        assert mount.uid is not None
        if (closed := closed_to(mount.mountpoint.parent, mount.uid)) is not None:
            says = f"uid {mount.uid} cannot get through {closed} to {mount.mountpoint}"
            todo = "mount it in a folder that all may pass (/run/avm/mounts, mode 0711), and name a `link` in the home"
            yield Finding(about, "problem", says, todo)
    if mount.link is not None:
        try:
            leads = os.readlink(mount.link)
        except OSError as e:
            todo = f"uid {mount.uid if mount.uid is not None else own} can: ln -s {mount.mountpoint} {mount.link}"
            yield Finding(about, "note", f"{mount.link}: {e.strerror or e}", todo)
            return
        if leads != os.fspath(mount.mountpoint):
            yield Finding(about, "note", f"{mount.link} leads to {leads}, not to {mount.mountpoint}")


def place(mount: Mount, running: bool, table: Path = MOUNTS) -> Iterator[Finding]:
    """Whether something is mounted there as it should be. The table says so, not the mountpoint: looking at one that
    hangs would hang as well."""
    about, point = f"mount {mount.agent_id}", mount.mountpoint
    # "36 35 98:0 /root /mount/point options ...", with blanks and the like in octal
    real = os.fsencode(real_place(point))
    points = {line.split(b" ")[4] for line in table.read_bytes().split(b"\n") if line}
    if re.sub(rb"[ \t\n\\]", lambda sign: b"\\%03o" % sign[0][0], real) in points:
        return
    if running:
        says = f"{point}: not mounted, though the daemon runs"
        yield Finding(
            about, "problem", says, "avm-daemon status says why; avm-daemon reload takes up a changed mounts.yaml"
        )
        return
    try:
        full = point.is_dir() and any(point.iterdir())
    except OSError as e:
        todo = "where its mode is 0, a daemon that was killed has guarded it: the next start opens it"
        yield Finding(about, "note", f"{point}: {e.strerror or e}", todo)
        return
    if full:
        says = f"{point}: not empty, and what is in it would be hidden"
        yield Finding(about, "problem", says, "move it away; copy it in once the daemon runs")


def closed_to(folder: Path, uid: int) -> Path | None:
    """The first folder on the way down that this user may not pass, as far as it can be seen and modes tell."""
    if uid == 0:
        return None
    try:
        user = pwd.getpwuid(uid)
        groups = set(os.getgrouplist(user.pw_name, user.pw_gid))
    except KeyError:
        groups = {uid}
    for each in reversed([folder, *folder.parents]):
        try:
            found = each.stat()
        except OSError:
            return None
        bit = stat.S_IXUSR if found.st_uid == uid else stat.S_IXGRP if found.st_gid in groups else stat.S_IXOTH
        if not found.st_mode & bit:
            return each
    return None
