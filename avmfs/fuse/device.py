"""Getting /dev/fuse: mounting through fusermount3, as root or not.

Owns the dialogue with the helper that libfuse itself uses: it opens the device, mounts, and passes the descriptor
over a socket named in _FUSE_COMMFD.
"""

from __future__ import annotations

import array
import os
import socket
import subprocess
from pathlib import Path

from avmfs.errors import NotPermitted, StoreFailed

MOUNT_S = 10


def mount(mountpoint: Path, options: list[str]) -> int:
    """Mount and return the device's descriptor. Raises NotPermitted or StoreFailed with what fusermount3 said."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        try:
            done = subprocess.run(
                ["fusermount3", "-o", ",".join(options), "--", os.fspath(mountpoint)],
                env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=MOUNT_S,
                check=False,
            )
        except FileNotFoundError:
            raise NotPermitted("fusermount3 is missing: install the package fuse3") from None
        except subprocess.TimeoutExpired:
            raise StoreFailed(f"fusermount3 did not answer within {MOUNT_S} s", os.fspath(mountpoint)) from None
        if done.returncode:
            raise NotPermitted((done.stderr or "fusermount3 failed").strip(), os.fspath(mountpoint))
        ours.settimeout(MOUNT_S)
        _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(array.array("i").itemsize))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors = array.array("i")
            descriptors.frombytes(data[: descriptors.itemsize])
            os.set_inheritable(descriptors[0], False)
            return descriptors[0]
    raise StoreFailed("fusermount3 passed no descriptor", os.fspath(mountpoint))
