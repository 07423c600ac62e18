"""A daemon whose agents `eve-*` run mount children that misbehave. Run as a script by test_daemon_children."""

from __future__ import annotations

import os
import struct
import time

from avmfs_daemon import child
from avmfs_daemon.child_spec import ChildSpec
from avmfs_daemon.cli_context import paths_and_environ
from avmfs_daemon.entrypoints import Entries, run_mount
from avmfs_daemon.start import leave, serve

from avmfs import wire


def mount(spec: ChildSpec) -> None:
    """The ordinary mount, or what the agent's name says."""
    control = spec.control
    match spec.agent:
        case "eve-dies":
            os._exit(3)
        case "eve-hangs":
            time.sleep(1000)
        case "eve-labours":
            while time.process_time() < 4:
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


if __name__ == "__main__":
    os.umask(0o077)
    paths, environ = paths_and_environ()
    child.READY_S = float(os.environ.get("READY_S", child.READY_S))
    # The module by its name: children import it anew.
    from tests.faults.hostile import mount as entry

    leave(serve(paths, environ, started=lambda problems: None, failed=print, entries=Entries(mount=entry)))
