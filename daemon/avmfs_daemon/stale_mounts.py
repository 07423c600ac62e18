"""What is left of a daemon whose main process has ended, and who of it may stay.

Owns the end of processes that outlived a supervisor run by systemd: the units say KillMode=process, as systemd would
otherwise end the holder with the supervisor that it is about to start again. Called by `avm-daemon stop`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from pathlib import Path
from typing import Final

from avmfs_daemon import fdstore_client, runtime

log = logging.getLogger(__name__)

GOING_S: Final = 4.0  # for children to notice by themselves and finish their commit: longer than child_runtime.GRACE_S
KILLED_S: Final = 2.0  # for the kernel to end what was killed
NOT_AGAIN: Final = ("success", "timeout")  # $SERVICE_RESULT of a stop that was asked for; after others, Restart= acts


def clean_up(directory: Path) -> bool:
    """After a killed daemon: whether there was anything to take away. Raises RuntimeProblem while one is running, and
    where the directory is somebody else's."""
    if not (directory / runtime.STATE).exists():
        return False
    runtime.check_own(directory)
    with runtime.hold(directory / "daemon", 2.0, {"pid": os.getpid(), "socket": ""}):
        fdstore_client.end_left(directory)  # first: nobody answers on the mounts that it holds
        runtime.clean_up(directory)
    return True


def after_service(directory: Path, result: str) -> bool:
    """As the unit's ExecStopPost: end the processes of the service that are left, but the holder only where systemd
    does not start the service again. Whether the mounts are kept. Never ends a daemon that runs outside of the unit;
    RuntimeProblem then."""
    end_service(keep=fdstore_client.pid_of_left(directory))
    if result not in NOT_AGAIN:
        return fdstore_client.pid_of_left(directory) is not None
    clean_up(directory)
    end_service(keep=None)  # a holder that hangs
    return False


def end_service(keep: int | None) -> list[int]:
    """End whoever else is in this process's service, with time to go by themselves. The processes that do not go."""
    service = _service(os.getpid())
    if service is None:
        return []
    began = time.monotonic()
    while left := _processes(service) - {os.getpid(), keep}:
        passed = time.monotonic() - began
        if passed > GOING_S:
            for pid in left:
                _kill(pid, service)
        if passed > GOING_S + KILLED_S:
            log.warning("processes of the service that do not end: %s", ", ".join(map(str, sorted(left))))
            break
        time.sleep(0.05)
    return sorted(left)


def _processes(service: str) -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit() and _service(int(name)) == service}


def _kill(pid: int, service: str) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        descriptor = os.pidfd_open(pid)
        try:
            if _service(pid) == service:  # still: the number may be another process's by now
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _service(pid: int) -> str | None:
    """The control group of a process in systemd's hierarchy, if it is that of a service; of dead ones there is none."""
    try:
        if Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in b"ZX":
            return None
        groups = Path(f"/proc/{pid}/cgroup").read_text()
    except (OSError, IndexError):
        return None
    for line in groups.splitlines():
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        if controllers in ("", "name=systemd") and path.endswith(".service"):
            return path
    return None
