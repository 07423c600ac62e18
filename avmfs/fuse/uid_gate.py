"""Who may use a mount that belongs to one Unix user.

Owns the rule and the list of requests that it is about. Asked by ``serve`` when a mount is made, and by both front
ends for every request, before anything else looks at it. Knows nothing of agents or files.

Why it takes both: such a mount is mounted with ``allow_other``, else the kernel lets nobody but the daemon's own user
in. The kernel then answers from its cache without asking, by the modes alone (``default_permissions``), so the mount's
root shows mode 0700 (``Attributer``) and other users stop there. Root passes every mode: what it may not have is
refused here, where each request says whose process asks. Requests on what is open already are let through, since an
open descriptor may be handed on: to ``sudo tee``, to a child under another user. GETATTR is one of them where the node
is open, since read(2) and fstat(2) bring it, and so is ftruncate(2). Not fchmod(2), fchown(2) and futimens(2): the
kernel says of them no more than of chmod(2).
"""

from __future__ import annotations

import os

from avmfs_config import Mount

from avmfs.fuse.protocol import Op

ROOT_UID = 0
FENCED = frozenset((
    Op.LOOKUP, Op.GETATTR, Op.SETATTR, Op.READLINK, Op.SYMLINK, Op.MKNOD, Op.MKDIR, Op.UNLINK, Op.RMDIR, Op.RENAME,
    Op.LINK, Op.OPEN, Op.STATFS, Op.SETXATTR, Op.GETXATTR, Op.LISTXATTR, Op.REMOVEXATTR, Op.OPENDIR, Op.CREATE,
    Op.RENAME2,
))  # fmt: skip
_OPEN = frozenset((
    "init", "destroy", "read", "write", "flush", "release", "fsync", "readdir", "releasedir", "lock", "flock",
    "fallocate",
))  # fmt: skip


def is_fenced(callback: str) -> bool:
    """FENCED, by the names that libfuse's callbacks have in the portable front end (``getattr_fuse_3``)."""
    return callback.partition("_fuse_")[0] not in _OPEN


def admitted(mount: Mount) -> frozenset[int] | None:
    """The Unix users who may use the mount; None: the kernel decides, by ``allow_other`` and the modes."""
    if mount.uid is None or mount.allow_other:
        return None
    return frozenset((mount.uid, ROOT_UID) if mount.allow_root else (mount.uid,))


def needs_allow_other(mount: Mount) -> bool:
    """Return whether the kernel must let others than the daemon's own user in."""
    return mount.allow_other or mount.allow_root or mount.uid not in (None, os.getuid())
