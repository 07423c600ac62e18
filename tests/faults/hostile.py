"""A daemon whose agents `eve-*` run mount children that misbehave, and whose time limits a test may change."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from avmfs_daemon import child, children, supervisor
from avmfs_daemon.child_spec import ChildSpec
from avmfs_daemon.cli_context import paths_and_environ
from avmfs_daemon.entrypoints import Entries, run_mount, run_writer
from avmfs_daemon.start import leave, serve

from avmfs import wire
from tests.faults.daemons import LIMIT_S, Daemon, wait


@contextmanager
def running(daemon: Daemon, **more: str) -> Iterator[None]:
    """This one, with mounts of which alice's is ready; ``more`` are READY_S, STOP_S and SHORT_LIFE_S."""
    command, environ = [sys.executable, "-m", "tests.faults.hostile"], daemon.environ | more
    with (
        open(daemon.root / "log", "w") as log,
        subprocess.Popen(command, env=environ, stdout=log, stderr=log) as process,
        ExitStack() as stack,
    ):
        daemon.pids.add(process.pid)
        stack.callback(process.kill)
        wait(lambda: (daemon.run / "control.sock").exists() and daemon.state("alice") == "ready")
        daemon.family()
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


def mount(spec: ChildSpec) -> None:
    """The ordinary mount, or what the agent's name says."""
    control = spec.control
    match spec.agent:
        case "eve-dies":
            os._exit(3)
        case "eve-hangs":
            time.sleep(1000)
        case "eve-labours":
            begun = time.monotonic()  # not so much of a processor's time: on a busy machine that may take minutes
            while time.monotonic() - begun < 8:
                pass
            run_mount(spec)
        case "eve-explains":
            control.send_bytes(wire.pack({"error": "out of luck"}))
            os._exit(1)
        case "eve-floods":
            frame = wire.pack({"ask": 1, "do": "status", "arguments": {}})
            while True:
                control.send_bytes(frame)
        case "eve-asks":
            frame = wire.pack({"ask": 1, "do": "status", "arguments": {}})
            while True:
                for _ in range(120):
                    control.send_bytes(frame)
                time.sleep(1)
        case "eve-garbles":
            control.send_bytes(b"\xc1 no msgpack")
        case "eve-lists":
            control.send_bytes(wire.pack([1, 2, 3]))
        case "eve-stalls":
            os.write(control.fileno(), struct.pack("!i", 1000) + b"half a frame")
        case "eve-boasts":
            os.write(control.fileno(), struct.pack("!i", 0x7FFFFFFF))
        case _:
            run_mount(spec)
    time.sleep(60)


def writer(spec: ChildSpec) -> None:
    """One that does not get ready, in which way $WRITER says, or whose successors do not."""
    if os.environ["WRITER"] == "once" and spec.first:
        run_writer(spec)
    if os.environ["WRITER"] == "hangs":
        spec.control.poll(None)
    os._exit(3)


def door(spec: ChildSpec) -> None:
    """One that has not what it needs."""
    spec.control.send_bytes(wire.pack({"error": "cannot be started: no descriptor"}))
    os._exit(1)


if __name__ == "__main__":
    os.umask(0o077)
    paths, environ = paths_and_environ()
    child.READY_S = float(os.environ.get("READY_S", child.READY_S))
    child.SHORT_LIFE_S = float(os.environ.get("SHORT_LIFE_S", child.SHORT_LIFE_S))
    for module in (children, supervisor):  # each has a name for it
        vars(module)["STOP_S"] = float(os.environ.get("STOP_S", child.STOP_S))
    # The module by its name: children import it anew.
    from tests.faults import hostile

    others = {name: vars(hostile)[name] for name in ("writer", "door") if name.upper() in os.environ}
    entries = Entries(mount=hostile.mount, **others)
    leave(serve(paths, environ, started=lambda problems: None, failed=print, entries=entries))
