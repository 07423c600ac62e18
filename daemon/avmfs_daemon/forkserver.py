"""The fork server that children come from, and its end.

Called by the supervisor before it has any thread. The standard library's server is a fresh process that has the
light modules loaded and nothing else, so that its forks are cheap and never copy a lock that somebody holds.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

SPAWNS = sys.platform != "linux"
_OPENED = "/proc/self/fd/"
_server: Any = forkserver._forkserver
TEMPORARY_NAME = len("/pymp-12345678/listener-12345678")


def start(directory: Path, longest_path: int) -> BaseContext:
    """Start the server, its socket below `directory` if the path fits; the context that makes processes."""
    if SPAWNS:
        return multiprocessing.get_context("spawn")  # system libraries of macOS do not survive a fork
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["avmfs_daemon.preload"])
    before = tempfile.tempdir
    if len(os.fsencode(directory)) + TEMPORARY_NAME <= longest_path:
        tempfile.tempdir = os.fspath(directory)
    try:
        forkserver.ensure_running()
    finally:
        tempfile.tempdir = before
    return context


def keep() -> None:
    """Have the server be found by what is open of its socket instead of by a name, which may be removed; and see that
    there is a directory for the socket of the next one. Raises OSError."""
    if SPAWNS:
        return
    address = _server._forkserver_address
    if address is not None and not address.startswith(_OPENED):
        try:
            opened = os.open(address, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:  # removed before we came here, so that nobody can reach it: the next one, then
            os.kill(_server._forkserver_pid, signal.SIGKILL)
        else:
            _server._forkserver_address = f"{_OPENED}{opened}"
    if (directory := _config().get("tempdir")) is not None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, 0o700)


def _config() -> dict[str, Any]:
    config: dict[str, Any] = getattr(multiprocessing.current_process(), "_config", {})
    return config


def stop() -> None:
    """End the server and the library's resource tracker, and wait for them. All children have to be gone. The library
    would let them go after this process, unattended; there is no public way to wait."""
    helpers: tuple[Any, ...] = (_server, resource_tracker._resource_tracker)
    for helper in helpers:
        with contextlib.suppress(AttributeError, OSError):
            helper._stop()
    if (left := _config().pop("tempdir", None)) is not None:
        shutil.rmtree(left, ignore_errors=True)
