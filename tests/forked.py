"""`python -m MODULE`, forked from a process that has the module's imports behind it: they are most of what a short
program does, and of what a daemon's start costs.

A test process has one such process for each module, from the first use to its end. What is forked has the arguments,
environment, working directory and files that it is given, and ends as an interpreter does. It is not what
/proc/PID/environ and /proc/PID/cmdline say, and variables that the interpreter itself reads come too late: a test that
is about those starts an interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
# Of each module that is run, what its process has imported: never itself, which runpy would complain of.
PRELOADED = {
    "avmfs_daemon": "avmfs_daemon.main avmfs_daemon.supervisor avmfs_daemon.entrypoints daemon.daemon",
    "avmfs.cli": "avmfs.avm avmfs.cli.main avmfs.cli.files avmfs.cli.finding avmfs.cli.together avmfs.cli.setup"
    " avmfs.cli.configuration avmfs.cli.documents avmfs.cli.hints avmfs.cli.navigating avmfs.rpc.local"
    " avmfs.rpc.methods avmfs_config.loader",
    "tests.contract.store_writer": "avmfs.access avmfs.store.store avmfs.store.writer.loop",
}
LOCALE = ("LC_ALL", "LC_CTYPE", "LANG")
FIRST_FD = 1000  # above all that a test hands on, while files are put in their places
AVAILABLE = sys.platform == "linux"  # elsewhere libraries of the system do not survive a fork


class Forked:
    """A running program, as subprocess.Popen has it; its parent is the process that forked it."""

    def __init__(self, pid: int, nursery: Nursery) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery
        self._ended = os.pidfd_open(pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        with self._lock:
            if self.returncode is None:
                poll = select.poll()
                poll.register(self._ended, select.POLLIN)
                if not poll.poll(None if timeout is None else timeout * 1000):
                    raise subprocess.TimeoutExpired(f"forked {self.pid}", timeout or 0)
                self.returncode = self._nursery.status(self.pid)
                os.close(self._ended)
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks those of one module."""

    def __init__(self, module: str, locale: tuple[str, ...]) -> None:
        """``locale``: its LOCALE, which an interpreter looks at when it starts."""
        self._lock = threading.Lock()
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "import tests.forked; tests.forked.main()", str(theirs.fileno()), module],
                env={
                    **os.environ,
                    **dict(zip(LOCALE, locale, strict=True)),
                    "PYTHONPATH": os.pathsep.join(str(REPOSITORY / part) for part in (".", "daemon", "config")),
                    "OPENBLAS_NUM_THREADS": "1",  # numpy's threads would be there when it forks
                    "OMP_NUM_THREADS": "1",
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._end)

    def start(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        cwd: str,
        files: tuple[int, int, int],
        passed: Sequence[int] = (),
    ) -> Forked:
        """``passed``: descriptors that it shall have under the same numbers."""
        asked = {"arguments": list(arguments), "environ": dict(environ), "cwd": cwd, "passed": list(passed)}
        request = os.memfd_create("request")
        try:
            os.write(request, json.dumps(asked).encode())
            with self._lock:
                socket.send_fds(self._ours, [b"start"], [request, *files, *passed])
                return Forked(int(self._ours.recv(64)), self)
        finally:
            os.close(request)

    def status(self, pid: int) -> int:
        """Its exit status; it has ended."""
        with self._lock:
            self._ours.send(str(pid).encode())
            return int(self._ours.recv(64))

    def _end(self) -> None:
        self._ours.close()
        self._process.wait()


@functools.cache
def _nursery(module: str, locale: tuple[str, ...], _of: int) -> Nursery:
    return Nursery(module, locale)


def start(
    module: str,
    arguments: Sequence[str],
    environ: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] = ".",
    *,
    files: tuple[int, int, int],
    passed: Sequence[int] = (),
) -> Forked | subprocess.Popen[bytes]:
    """`python -m MODULE ARGUMENTS`; ``files`` are its stdin, stdout and stderr."""
    if not AVAILABLE:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=environ,
            cwd=cwd,
            stdin=files[0],
            stdout=files[1],
            stderr=files[2],
            pass_fds=passed,
        )
    environ = os.environ if environ is None else environ
    locale = tuple(environ.get(name, "") for name in LOCALE)
    nursery = _nursery(module, locale, os.getpid())  # a process that a test has forked has its own
    return nursery.start(arguments, environ, os.path.abspath(cwd), files, passed)


def run(
    module: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    cwd: str | os.PathLike[str] = ".",
    data: bytes = b"",
    timeout: float = 300.0,
) -> subprocess.CompletedProcess[bytes]:
    """The same to its end, as subprocess.run captures it: until nobody has its stdout and stderr open."""
    pipes = [os.pipe() for _ in range(3)]
    (stdin, feeding), (out, stdout), (err, stderr) = pipes
    said: dict[int, bytes] = {}

    def feed() -> None:
        with contextlib.suppress(BrokenPipeError), open(feeding, "wb") as pipe:
            pipe.write(data)

    def read(end: int) -> None:
        with open(end, "rb") as pipe:
            said[end] = pipe.read()

    process = start(module, arguments, environ, cwd, files=(stdin, stdout, stderr))
    for end in (stdin, stdout, stderr):
        os.close(end)
    threads = [threading.Thread(target=feed), *(threading.Thread(target=read, args=(end,)) for end in (out, err))]
    for thread in threads:
        thread.start()
    try:
        code = process.wait(timeout)
    finally:
        process.kill()
        process.wait()
        for thread in threads:
            thread.join(timeout)
    if len(said) < 2:
        raise subprocess.TimeoutExpired([module, *arguments], timeout)  # something that it left has its output open
    return subprocess.CompletedProcess([module, *arguments], code, said[out], said[err])


def interpreted(
    module: str,
    arguments: Sequence[str],
    environ: Mapping[str, str],
    cwd: str | os.PathLike[str],
    data: bytes,
    timeout: float,
) -> subprocess.CompletedProcess[bytes]:
    """As `run`, by an interpreter of its own."""
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, env=environ, cwd=cwd, input=data, capture_output=True, timeout=timeout)


# --- in the process that forks


def main() -> None:
    """``sys.argv``: the descriptor of the socket, the module."""
    sock, module = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    for name in PRELOADED.get(module, "").split():
        importlib.import_module(name)
    if module == "avmfs.cli":
        importlib.import_module("avmfs.rpc.methods").names()  # which imports all of them
    gc.collect()
    gc.freeze()
    while True:
        said, descriptors, _, _ = socket.recv_fds(sock, 64, 64)
        if not said:
            return
        if said == b"start":
            pid = os.fork()
            if pid == 0:
                _be(module, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            sock.send(str(pid).encode())
        else:
            sock.send(str(os.waitstatus_to_exitcode(os.waitpid(int(said), 0)[1])).encode())


def _be(module: str, descriptors: list[int]) -> None:
    code: Any = 1
    try:
        with open(descriptors[0], closefd=False) as request:
            request.seek(0)
            asked = json.load(request)
        _take(descriptors[1:], [0, 1, 2, *asked["passed"]])
        os.environ.clear()
        os.environ.update(asked["environ"])
        os.chdir(asked["cwd"])
        sys.path[0] = asked["cwd"]
        sys.argv = [module, *asked["arguments"]]
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as e:
            code = e.code
            if not (code is None or isinstance(code, int)):
                print(code, file=sys.stderr)
                code = 1
        except BaseException:
            traceback.print_exc()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()
    except BaseException:
        traceback.print_exc()
        code = 120
    finally:
        os._exit((code or 0) & 255)


def _take(descriptors: list[int], places: list[int]) -> None:
    """These files and no others, each in its place."""
    import fcntl

    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, FIRST_FD) for descriptor in descriptors]
    os.closerange(0, FIRST_FD)
    for descriptor, place in zip(high, places, strict=True):
        os.dup2(descriptor, place, inheritable=True)
        os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        mode, buffering = "r" if number == 0 else "w", 1 if number == 2 else -1
        setattr(sys, name, open(number, mode, buffering, old.encoding, old.errors))  # noqa: SIM115
