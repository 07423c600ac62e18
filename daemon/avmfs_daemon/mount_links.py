"""Links from homes to mountpoints that lie in a runtime folder.

Called by a mount's process once it serves, in a thread of its own: a home may be on a filesystem that hangs. A daemon
that runs as root makes the link as the mount's user, never as root: whoever owns the folder could otherwise lead root
anywhere by a symbolic link of their own. Never replaces anything; a link stays when the mount goes.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

LINK_S = 10


def make(link: Path, mountpoint: Path, uid: int | None, gid: int) -> str:
    """Have ``link`` lead to ``mountpoint``, made as user ``uid`` (None: our own). "" once it does, else why not and
    what to do."""
    try:
        if _leads(link) == os.fspath(mountpoint):
            return ""
        if _leads(link) is not None or os.path.lexists(link):
            return f"{link}: something else is there; move it away, or name another `link`"
    except OSError:
        pass  # a home that we cannot look into: its owner may be able to
    if uid in (None, os.geteuid()):
        try:
            link.symlink_to(mountpoint)
        except OSError as e:
            return f"{link}: {e.strerror}; {_by_hand(link, mountpoint)}"
        return ""
    if os.geteuid() != 0:
        return f"{link}: only root or uid {uid} can make it; as that user: {_command(link, mountpoint)}"
    try:
        done = subprocess.run(
            ["ln", "-s", "-n", "--", os.fspath(mountpoint), os.fspath(link)],
            user=uid,
            group=gid,
            extra_groups=[],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LINK_S,
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as e:
        return f"{link}: {e}; {_by_hand(link, mountpoint)}"
    if done.returncode:
        reason = done.stderr.strip().rpartition(": ")[2] or "ln failed"
        return f"{link}: {reason}; {_by_hand(link, mountpoint)}"
    return ""


def _leads(link: Path) -> str | None:
    return os.readlink(link) if link.is_symlink() else None


def _command(link: Path, mountpoint: Path) -> str:
    return f"ln -s {shlex.quote(os.fspath(mountpoint))} {shlex.quote(os.fspath(link))}"


def _by_hand(link: Path, mountpoint: Path) -> str:
    return f"its owner can: {_command(link, mountpoint)}"
