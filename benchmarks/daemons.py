"""A daemon of the run's own: an empty store, mounts for the agents that the run needs, and its public figures.

Nothing here opens a path inside a mount (see harness.py). The daemon is found through its environment only, so that
one that somebody else runs is never touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.figures import BenchmarkError
from benchmarks.harness import ROOT, end_child, mounts, scratch_directory, start_child, tail

READY_WITHIN_S = 60.0
LOADED_WITHIN_S = 180.0
WORDS_ONLY: Mapping[str, Any] = {"embedding": {"enabled": False}}


@dataclass(frozen=True)
class Daemon:
    """A running avm-daemon that belongs to this run. `environment` is what its clients need to find it."""

    mountpoints: Mapping[str, Path]
    """By agent."""
    environment: Mapping[str, str]
    pid: int
    data: Path
    started: float
    """On the monotonic clock, in seconds: just before its process was."""

    def status(self) -> dict[str, Any]:
        """`avm-daemon status --json`; empty while it does not answer."""
        with contextlib.suppress(subprocess.TimeoutExpired, ValueError):
            found: dict[str, Any] = json.loads(
                _daemon_command(self.environment, "status", "--json", timeout_s=10).stdout
            )
            return found
        return {}

    def roles(self) -> dict[str, list[int]]:
        """Its processes by what they do: "mount" for all children that show one, the others by name."""
        found: dict[str, list[int]] = {}
        shown = {f"avm {agent}"[:15] for agent in self.mountpoints}
        for pid in processes.descendants(self.pid):
            name = processes.name(pid)
            role = "mount" if name in shown else "supervisor" if pid == self.pid else name.removeprefix("avm ")
            found.setdefault(role, []).append(pid)
        return found


def agents(*names: str, coherence: str = "close-to-open") -> list[dict[str, Any]]:
    """Entries for `temporary_daemon`, one mount an agent."""
    return [{"agent_id": name, "coherence": coherence} for name in names]


@contextlib.contextmanager
def temporary_daemon(
    under: Path,
    entries: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any] = WORDS_ONLY,
    environment: Mapping[str, str] | None = None,
    on_start: Callable[[Sequence[Path]], None] | None = None,
    stock: Callable[[Path], None] | None = None,
) -> Iterator[Daemon]:
    """Start a daemon with an empty store in a new directory under `under`; stop it at the end. `entries` are
    mounts.yaml's but for the mountpoint, `settings` config.yaml, `environment` what is added to ours;
    `on_start` is called with the mountpoints just before the process is started, and `stock` before that with the
    path at which the daemon will look for its database.

    Raises BenchmarkError, with the end of the daemon's log, when the mounts are not ready in time.
    """
    # Sockets' paths are limited to about a hundred bytes, and `under` may be long.
    with scratch_directory(under) as home, scratch_directory(Path(tempfile.gettempdir())) as runtime:
        log = home / "daemon.log"
        mountpoints = {str(entry["agent_id"]): home / f"mnt-{entry['agent_id']}" for entry in entries}
        folders = {f"AVM_{name.upper()}_DIR": home / name for name in ("config", "data")}
        folders["AVM_RUNTIME_DIR"] = runtime / "run"
        for folder in [*mountpoints.values(), *folders.values()]:
            folder.mkdir(mode=0o700)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AVM_")}
        surroundings = {
            **inherited,
            **{name: str(folder) for name, folder in folders.items()},
            "AVM_AUTOSTART": "0",
            **(environment or {}),
        }
        surroundings["HOME"] = str(home)
        paths = [ROOT, ROOT / "daemon", ROOT / "config"]
        extra = (environment or {}).get("PYTHONPATH")
        surroundings["PYTHONPATH"] = os.pathsep.join([*([extra] if extra else []), *map(str, paths)])
        # JSON is YAML, and quotes whatever a path may hold.
        listed = [{**entry, "mountpoint": str(mountpoints[str(entry["agent_id"])])} for entry in entries]
        (folders["AVM_CONFIG_DIR"] / "mounts.yaml").write_text(json.dumps({"mounts": listed}))
        (folders["AVM_CONFIG_DIR"] / "config.yaml").write_text(json.dumps(dict(settings)))

        if stock is not None:
            stock(folders["AVM_DATA_DIR"] / "avm.db")
        if on_start is not None:
            on_start(list(mountpoints.values()))
        started = time.monotonic()
        child = start_child([sys.executable, "-m", "avmfs_daemon", "start"], log, surroundings)
        daemon = Daemon(mountpoints, surroundings, child.pid, folders["AVM_DATA_DIR"], started)
        try:
            _wait_until_ready(daemon, child, log)
            yield daemon
        finally:
            if child.poll() is None:
                with contextlib.suppress(subprocess.SubprocessError):
                    _daemon_command(surroundings, "stop", timeout_s=15)
            end_child(child, patience_s=10)


def until_loaded(daemon: Daemon, vectors: bool = True, every_s: float = 0.2) -> None:
    """Until its model is there, nothing waits to be embedded, and the index holds `vectors`, if there are to be any.
    Asked `every_s`."""
    give_up = time.monotonic() + LOADED_WITHIN_S
    while time.monotonic() < give_up:
        status = daemon.status()
        embedding, store = status.get("embedding", {}), status.get("store", {})
        if embedding.get("state") == "failed":
            raise BenchmarkError(f"the daemon has no model: {embedding.get('reason')}")
        indexed = status.get("index", {}).get("vectors") or not vectors
        if embedding.get("state") == "ready" and not store.get("waiting_semantic", 1) and indexed:
            return
        time.sleep(every_s)
    raise BenchmarkError(f"the model and the index are not loaded after {LOADED_WITHIN_S:g} s")


def _daemon_command(environment: Mapping[str, str], *words: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "avmfs_daemon", *words],
        env=dict(environment),
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _wait_until_ready(daemon: Daemon, child: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + READY_WITHIN_S
    states: list[str] = []
    while time.monotonic() < give_up:
        if (status := child.poll()) is not None:
            raise BenchmarkError(f"avm-daemon ended with status {status} while starting:{tail(log)}")
        # The kernel's list first: asking the daemon costs a Python process, on the CPUs that it needs to start.
        mounted = {mount.mountpoint for mount in mounts()}
        if mounted.issuperset(daemon.mountpoints.values()):
            states = [str(mount["state"]) for mount in daemon.status().get("mounts", [])]
            if states == ["ready"] * len(daemon.mountpoints):
                return
        time.sleep(0.02)
    found = ", ".join(states) or "no answer"
    raise BenchmarkError(f"avm-daemon: the mounts are not ready after {READY_WITHIN_S:g} s ({found}):{tail(log)}")
