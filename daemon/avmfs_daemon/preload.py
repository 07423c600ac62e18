"""What the fork server imports once, so that a new child is there within milliseconds.

Imported first by the fork server, and by spawned children where there is none. Only modules that start no
thread and load no model; each of a child's light parts, as far as it is installed.
"""

from __future__ import annotations

import contextlib
import importlib
import os

# Before numpy: a child is one of many and computes little; a pool of threads per child would cost memory.
for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[_variable] = "1"

# The main module too: multiprocessing imports the parent's in every child.
_MODULES = (
    "apsw msgpack numpy avmfs_config.settings avmfs.memory avmfs.store.store avmfs.store.writer.loop"
    " avmfs_daemon.fdstore_client avmfs_daemon.entrypoints avmfs.agents.questions avmfs.agents.refusals"
    " avmfs_daemon.main avmfs.rpc.server avmfs.fuse.linux avmfs.fuse.serve"
)
for _module in _MODULES.split():
    # A part that is missing (libfuse, say) is reported by the child that needs it.
    with contextlib.suppress(ImportError, OSError):
        importlib.import_module(_module)

from avmfs.store import commands  # noqa: E402, the variables above come first

commands.names()  # which imports every one
