"""How much room an agent has: statfs(2) of its mount.

Owns laying a quota over what the disk has. Called by the tree. Without a quota it is the disk's own room.
"""

from __future__ import annotations

import os

from avmfs.memory import Memory


def room(memory: Memory) -> os.statvfs_result:
    """Of the filesystem that holds the store, or of the agent's quota where that is less."""
    disk = memory.store.capacity()
    with memory.reading() as reader:
        quota = reader.people.policy().person(memory.who.name).quota
        used = reader.people.used(memory.who.name)
    if used is None:
        return disk
    nodes, size, _ = used
    blocks, files = (disk.f_blocks, disk.f_bfree, disk.f_bavail), (disk.f_files, disk.f_ffree, disk.f_favail)
    if quota.bytes is not None:
        left = max(0, quota.bytes - size) // disk.f_frsize
        free = min(disk.f_bavail, left)
        blocks = min(disk.f_blocks, -(-size // disk.f_frsize) + left), free, free
    if quota.most_nodes is not None:
        left = max(0, quota.most_nodes - nodes)
        free = min(disk.f_favail, left) if disk.f_files else left  # some filesystems do not count theirs
        files = nodes + left, free, free
    return os.statvfs_result((disk.f_bsize, disk.f_frsize, *blocks, *files, disk.f_flag, disk.f_namemax, disk.f_fsid))
