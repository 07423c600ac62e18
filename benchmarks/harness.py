"""What a benchmark starts and must leave no trace of: directories, servers, mounts, a daemon of its own.

Nothing here opens a path inside a mount: one that hangs would hang the script with it. Mounts are looked up
in the kernel's list, and file operations belong to the client processes (clients.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from benchmarks.figures import BenchmarkError

ROOT = Path(__file__).resolve().parent.parent


SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG, <linux/prctl.h>

# ---- processes ----


def stop_on_terminate() -> None:
    """Let SIGTERM and SIGHUP unwind the script as an interrupt does: no mount or process stays behind."""

    def unwind(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, unwind)
    signal.signal(signal.SIGHUP, unwind)


def start_child(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a server in a process group of its own, its output in `log`.

    On Linux it gets SIGTERM when this script dies, be it by SIGKILL.
    """
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)

    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=ROOT,
            start_new_session=True,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )


def end_child(child: subprocess.Popen[bytes], patience_s: float) -> None:
    """Ask a child of `start_child` to end; after `patience_s` seconds kill it and its process group."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        child.terminate()
        child.wait(patience_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(10)


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log, indented, for an error message."""
    try:
        text = log.read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        text = []
    return "".join(f"\n    {line}" for line in text) or "\n    (no output)"


# ---- mounts and directories ----


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mountinfo."""

    mountpoint: Path
    kind: str
    device: int
    """The minor number of st_dev, which names a FUSE connection under /sys/fs/fuse/connections."""


def mounts() -> list[Mount]:
    """The mounts this process sees, from a list that asks no filesystem. Empty where there is no /proc."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for fields in map(bytes.split, lines):
        place = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), fields[4])
        kind = fields[fields.index(b"-") + 1].decode()
        minor = int(fields[2].partition(b":")[2])
        found.append(Mount(Path(os.fsdecode(place)), kind, minor))
    return found


def mounted_at(place: Path) -> Mount | None:
    """The topmost mount on exactly `place`, an absolute path without symlinks."""
    return next((mount for mount in reversed(mounts()) if mount.mountpoint == place), None)


def filesystem_of(place: Path) -> str:
    """The kind of filesystem an absolute path lies on: 'ext4', 'tmpfs', 'fuse.minifs'."""
    holders = [mount for mount in mounts() if place.is_relative_to(mount.mountpoint)]
    return max(holders, key=lambda m: len(m.mountpoint.parts)).kind if holders else "unknown"


def remove_mount(place: Path) -> None:
    """Take a FUSE mount of ours away whatever state it is in; no effect where nothing is mounted.

    Unmounting lazily does not wake those who wait for a dead or stuck server; aborting the connection does.
    """
    for _ in range(8):
        mount = mounted_at(place)
        if mount is None or not mount.kind.startswith("fuse"):
            return
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            unmount = ["fusermount3", "-uz", str(place)] if sys.platform == "linux" else ["umount", str(place)]
            subprocess.run(unmount, capture_output=True, timeout=10, check=False)
        with contextlib.suppress(OSError):
            Path(f"/sys/fs/fuse/connections/{mount.device}/abort").write_text("1")


@contextlib.contextmanager
def scratch_directory(under: Path) -> Iterator[Path]:
    """A new directory under `under`, removed at the end; mounts of ours in it are taken away first.

    Where a mount will not go the directory stays and standard error says so: removing it would walk into it.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="avmfs-bench-", dir=under)).resolve()
    except OSError as error:
        raise BenchmarkError(f"{under}: {error.strerror}") from error
    try:
        yield folder
    finally:
        inside = [mount.mountpoint for mount in mounts() if mount.mountpoint.is_relative_to(folder)]
        for mountpoint in inside:
            remove_mount(mountpoint)
        if any(mounted_at(mountpoint) for mountpoint in inside):
            print(f"left behind, still mounted: {', '.join(map(str, inside))}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)


# ---- a daemon of our own ----


@dataclass(frozen=True)
class Daemon:
    """A running avm-daemon that belongs to this run. `environment` is what its clients need to find it."""

    mountpoint: Path
    environment: Mapping[str, str]


@contextlib.contextmanager
def temporary_daemon(
    under: Path, agent: str = "bench", ready_within_s: float = 30, embedding: Mapping[str, object] | None = None
) -> Iterator[Daemon]:
    """Start a daemon with an empty store and one mount in a new directory under `under`; stop it at the end.

    `embedding` is that section of its config.yaml; None turns embeddings off.

    Raises BenchmarkError, with the end of the daemon's log, when the mount is not ready in time.
    """
    with scratch_directory(under) as home:
        mountpoint, log = home / "mnt", home / "daemon.log"
        folders = {f"AVM_{name.upper()}_DIR": home / name for name in ("config", "data", "runtime")}
        for folder in [mountpoint, *folders.values()]:
            folder.mkdir(mode=0o700)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("AVM_")}
        environment |= {name: str(folder) for name, folder in folders.items()}
        environment["HOME"] = str(home)
        environment["PYTHONPATH"] = os.pathsep.join(map(str, [ROOT, ROOT / "daemon", ROOT / "config"]))
        # JSON is YAML, and quotes whatever a path may hold.
        config = {
            "mounts.yaml": {"mounts": [{"mountpoint": str(mountpoint), "agent_id": agent}]},
            "config.yaml": {"embedding": dict(embedding or {"enabled": False})},
        }
        for name, document in config.items():
            (folders["AVM_CONFIG_DIR"] / name).write_text(json.dumps(document) + "\n")

        child = start_child([sys.executable, "-m", "avmfs_daemon", "start"], log, environment)
        try:
            _wait_until_ready(child, mountpoint, environment, log, ready_within_s)
            yield Daemon(mountpoint, environment)
        finally:
            if child.poll() is None:
                with contextlib.suppress(subprocess.SubprocessError):
                    _daemon_command(environment, "stop", timeout_s=15)
            end_child(child, patience_s=10)


def _daemon_command(environment: Mapping[str, str], *words: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "avmfs_daemon", *words]
    return subprocess.run(
        command,
        env=dict(environment),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _wait_until_ready(
    child: subprocess.Popen[bytes],
    mountpoint: Path,
    environment: Mapping[str, str],
    log: Path,
    within_s: float,
) -> None:
    give_up = time.monotonic() + within_s
    state = "no answer"
    while time.monotonic() < give_up:
        if (status := child.poll()) is not None:
            raise BenchmarkError(f"avm-daemon ended with status {status} while starting:{tail(log)}")
        with contextlib.suppress(subprocess.TimeoutExpired):
            state = _mount_state(_daemon_command(environment, "status", "--json", timeout_s=10).stdout, mountpoint)
        if state == "ready":
            return
        time.sleep(0.1)
    raise BenchmarkError(f"avm-daemon: the mount is not ready after {within_s:g} s ({state}):{tail(log)}")


def _mount_state(status: str, mountpoint: Path) -> str:
    try:
        document = json.loads(status)
    except ValueError:
        return "no answer"
    states = [mount["state"] for mount in document.get("mounts", []) if Path(mount["mountpoint"]) == mountpoint]
    return str(states[0]) if states else "the mount is not listed"
