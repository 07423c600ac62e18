"""Starting a daemon where none runs: its door, its writer and its model, and no mount.

Owns when that is done, that it is done once however many ask, and that one that cannot be started is not tried by every
command. Called by ``connect`` when a store has no daemon. The daemon is started as a program, since it stands right of
this layer; it ends by itself after IDLE_S without a request, and gives way to one that somebody starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from avmfs_config import ConfigError, Paths, find_paths

from avmfs.errors import Busy
from avmfs.store.files.store_lock import StoreLock, daemon_in

IDLE_S: Final = 1800.0  # without a request from anybody
START_S: Final = 30.0  # for a daemon to serve, and for one that another process starts
AGAIN_S: Final = 60.0  # after it could not be started
BEGUN_S: Final = 20.0  # for one that has been begun to serve
_OFF: Final = frozenset({"0", "false", "no", "off"})
# Of whoever asks or serves, not of the daemon: who that is, its secrets, and another machine's daemon that it talks to.
ASKERS: Final = frozenset({"AVM_AGENT", "AVM_API_KEY", "AVM_AT", "AVM_CA", "AVM_MCP_TOKEN"})


def wanted(where: Paths, environ: Mapping[str, str]) -> bool:
    """Whether a daemon is to be started for this store: it is the environment's own and this user's, and neither
    ``AVM_AUTOSTART=0`` nor ``autostart: false`` says no. Raises ConfigError."""
    if any(each.get("AVM_AUTOSTART", "").lower() in _OFF for each in (environ, os.environ)):
        return False
    if where != find_paths(environ):  # one that is named is somebody's for a moment
        return False
    with contextlib.suppress(FileNotFoundError):
        if where.database.stat().st_uid != os.geteuid():
            return False
    from avmfs_config import load_settings

    return load_settings(where.config_file, environ).autostart


def start(where: Paths, environ: Mapping[str, str]) -> str | None:
    """Have a daemon serve the store when this returns: "", or one line that says why there is none; None where the
    daemon of another store has the runtime directory. Whoever comes while another process starts one waits for that."""
    try:
        with _alone(_note(where.database)) as noted:
            if StoreLock(where.database).holder() is not None:
                return ""
            if daemon_in(where.runtime_dir) is not None:
                return None
            if (failed := _failed(noted)) is not None:
                return failed
            reason = _run(where, environ)
            noted.seek(0)
            noted.truncate()
            if reason:
                json.dump({"at": time.time(), "reason": reason}, noted)
            return reason
    except Busy as e:
        return e.reason
    except (OSError, ValueError) as e:
        return str(e)


def _note(database: Path) -> Path:
    """Whose lock one has who starts a daemon, and whose text is why none could be started."""
    return database.with_name("autostart.lock")


def _failed(noted: IO[str]) -> str | None:
    """Why it could not be started a moment ago. What a power loss has left of a note is none."""
    try:
        last = json.loads(noted.read())
        # Not to come: the clock may have been set back.
        return str(last["reason"]) if 0 <= time.time() - last["at"] < AGAIN_S else None
    except (ValueError, TypeError, KeyError):
        return None


def forget(database: Path) -> None:
    """A daemon serves the store now: why none could be started before says nothing of the next one."""
    noted = _note(database)
    with contextlib.suppress(OSError):  # there is none; what cannot be emptied holds for AGAIN_S
        if noted.stat().st_size:
            os.truncate(noted, 0)


def daemons_environ(where: Paths, environ: Mapping[str, str]) -> dict[str, str]:
    """For a program of the daemon that is to find the same files."""
    names = {"CONFIG_DIR": "config_dir", "DATA_DIR": "data_dir", "RUNTIME_DIR": "runtime_dir"}
    names |= {"MOUNTS": "mounts_file", "CONFIG": "config_file", "DB": "database"}
    inherited = {**os.environ, **environ, **{f"AVM_{key}": str(getattr(where, each)) for key, each in names.items()}}
    return {name: value for name, value in inherited.items() if name not in ASKERS}


def _run(where: Paths, environ: Mapping[str, str]) -> str:
    # -P: nothing is imported from the working directory, whose files may be anybody's.
    command = [sys.executable, "-P", "-m", "avmfs_daemon", "start", "--daemon", "--idle", f"{IDLE_S:g}"]
    try:
        done = subprocess.run(
            command,
            env=daemons_environ(where, environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it does not serve after {START_S:g} s"
    if StoreLock(where.database).holder() is not None:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1].removeprefix("avm-daemon: ") if lines else f"it ended with {done.returncode}"


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[IO[str]]:
    """The file, while no other process has it. Raises Busy, OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    deadline = time.monotonic() + START_S
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Busy("another process is starting it", os.fspath(path)) from None
                time.sleep(0.02)
        yield file


def sought(where: Paths, environ: Mapping[str, str]) -> str | None:
    """``start`` where it is wanted; None where it is not. Configuration that cannot be read is told of by whoever reads
    it next."""
    try:
        return start(where, environ) if wanted(where, environ) else None
    except ConfigError:
        return None


def begin(where: Paths, environ: Mapping[str, str]) -> None:
    """``sought``, not waited for: by a process of its own. One that has just been begun is left alone."""
    lock = _note(where.database)
    if any(each.get("AVM_AUTOSTART", "").lower() in _OFF for each in (environ, os.environ)) or where != find_paths(
        environ
    ):
        return
    with contextlib.suppress(FileNotFoundError):
        if 0 <= time.time() - lock.stat().st_mtime < BEGUN_S and lock.stat().st_size == 0:
            return
    with contextlib.suppress(OSError):  # said by whoever waits for one
        lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.touch(mode=0o600)
        nothing = subprocess.DEVNULL
        command = [sys.executable, "-P", "-m", "avmfs.api.autostart"]
        subprocess.Popen(
            command,
            env={**os.environ, **environ},
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
            start_new_session=True,
        )


if __name__ == "__main__":  # see begin
    sought(find_paths(os.environ), os.environ)
