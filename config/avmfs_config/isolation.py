"""Which Unix user is which agent, and whether that keeps the agents apart.

Pure functions over the configuration, asked by the supervisor and by `avm doctor`. What enforces it is elsewhere: the
modes of the daemon's own files, the door (SO_PEERCRED), a mount's fence (avmfs.fuse.uid_gate).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

from avmfs_config.settings import Mount, Settings

Isolation = Literal["by uid", "advisory"]


def entitled(settings: Settings, mounts: Iterable[Mount]) -> Settings:
    """The settings with `uids` completed: whom an agent's mount belongs to may speak for that agent at the door."""
    uids = {uid: list(agents) for uid, agents in settings.uids.items()}
    for mount in mounts:
        if mount.uid is not None and mount.agent_id not in uids.setdefault(mount.uid, []):
            uids[mount.uid].append(mount.agent_id)
    return replace(settings, uids={uid: tuple(agents) for uid, agents in uids.items()})


def identities(settings: Settings) -> set[tuple[str, int | None]]:
    """Which Unix user may be which agent (``uids`` as completed by `entitled`), and of which agents is said what they
    may; None: the daemon's own user."""
    uids = {(agent, uid) for uid, agents in settings.uids.items() for agent in agents}
    return uids | {(agent, None) for agent in settings.agents}


def isolation(mounts: Iterable[Mount], uids: Mapping[int, tuple[str, ...]], own: int) -> tuple[Isolation, str]:
    """Whether the kernel keeps agents from each other's memory; if not, why. ``uids`` as completed by `entitled`,
    ``own`` the daemon's user.

    The daemon's user and root read the store itself, so an agent that runs as either is every agent.
    """
    for mount in mounts:
        if mount.uid is None:
            return "advisory", f"the mount of {mount.agent_id} has no uid of its own"
        if mount.allow_other:
            return "advisory", f"allow_other lets every user into the mount of {mount.agent_id}"
    for uid, agents in sorted(uids.items()):
        if uid in (own, 0):
            return "advisory", f"{agents[0] if agents else 'nobody'} runs as {'root' if uid == 0 else 'the daemon'}"
        if len(agents) > 1:
            return "advisory", f"uid {uid} is {' and '.join(agents)}"
    if not uids:
        return "advisory", "no agent has a uid of its own"
    return "by uid", ""


def status(mounts: Iterable[Mount], settings: Settings, own: int) -> dict[str, Any]:
    """The lines of `avm-daemon status --json` that are about it."""
    found, reason = isolation(mounts, settings.uids, own)
    return {"isolation": found, "isolation_reason": reason}
