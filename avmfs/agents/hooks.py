"""Running one hook: an operator's command, told of one change on its standard input.

Owns what the command gets and how it ends: no shell, a small environment, no descriptors of ours, a folder that is
nobody's, a process group of its own that is killed when its time is over. Called by the deliverer's threads.

Should this process be killed meanwhile, nobody is left to end the command: an alarm that it is started with does. A
launcher sets it and becomes the command, since code of ours between fork and exec could hang in a process with threads.
Where a lock is held over the command, the launcher stays beside it, with the lock, which the command has not: what that
leaves behind may live for ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

ALARM_LATER_S: Final = 2  # than who waits for it would end it
SAID_BYTES: Final = 300  # of what a failed command wrote
LAUNCHER: Final = """
import os, signal, sys
seconds, held, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
for otherwise in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(otherwise, signal.SIG_DFL)
child = held >= 0 and os.fork()
signal.alarm(seconds)
if child:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)
if held >= 0:
    os.close(held)
try:
    os.execv(command[0], command)
except OSError as e:
    sys.exit(e.strerror)
"""
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class HookFailed(Exception):
    """The command did not end well."""


def environment(event: Mapping[str, Any], home: str) -> dict[str, str]:
    """All that the command finds in its environment. Values are data: nothing here is ever read by a shell."""
    return {
        "PATH": PATH,
        "HOME": home,
        "LANG": "C.UTF-8",
        "AVM_HOOK_EVENT": str(event["event"]),
        "AVM_HOOK_PATH": str(event["path"]).replace("\0", ""),
        "AVM_HOOK_ID": str(event["id"]),
        "AVM_HOOK_VERSION": "" if event["version"] is None else str(event["version"]),
        "AVM_HOOK_AUTHOR": str(event["agent_id"]),
    }


def run(command: Sequence[str], stdin: bytes, environ: Mapping[str, str], timeout_s: float, held: int = -1) -> None:
    """``held``: a descriptor whose lock is to last until the command has ended, also where this process is killed.
    Raises HookFailed when it cannot be started, takes too long, or ends with another status than 0."""
    try:
        child = start(command, environ, timeout_s, subprocess.DEVNULL, held)
    except OSError as e:
        raise HookFailed(f"{command[0]}: {e.strerror}") from None
    try:
        _, said = child.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise HookFailed(f"{command[0]}: not done within {timeout_s:g} s") from None
    finally:
        end(child)
    if child.returncode != 0:
        raise HookFailed(f"{command[0]}: {ended(child.returncode, said)}")


def start(
    command: Sequence[str], environ: Mapping[str, str], timeout_s: float, stdout: int, held: int = -1
) -> subprocess.Popen[bytes]:
    """In a process group of its own, which ends by itself some time after ``timeout_s``. Raises OSError."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LAUNCHER, str(int(timeout_s) + ALARM_LATER_S), str(held), *command],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=dict(environ),
        cwd="/",
        close_fds=True,
        pass_fds=(held,) if held >= 0 else (),
        start_new_session=True,
    )


def ended(status: int, said: bytes) -> str:
    """How a program ended, and the last that it wrote."""
    words = said.decode("utf-8", "replace").strip()[-SAID_BYTES:]
    how = f"status {status}" if status > 0 else f"signal {-status}"
    return f"{how}: {words}" if words else how


def end(child: subprocess.Popen[bytes]) -> None:
    """The whole group: what it left behind may hold the pipe open, and has had its time."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout, child.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
