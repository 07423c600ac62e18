"""The writer process of the contract suites: what the daemon's writer child does, without a daemon.

Run with one argument, a JSON object: database, listener (a descriptor), key (hex), rules, default, clock (a file),
first (whether unlinked files may go), connections (a limit on descriptors, optional), constants ({module of the
store: {name: value}}, optional: a small log, say), log and host (optional: of a store that is shared with other hosts).
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from avmfs.access import Policy
from avmfs.store.identity import OPERATOR
from avmfs.store.schema import database
from avmfs.store.tx.transaction import IndexRules
from avmfs.store.writer.applier import Applier
from avmfs.store.writer.loop import Writer


class SharedClock:
    """The real time plus an offset that a test keeps in a file, so that two processes agree on it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._real = time.time_ns

    def __call__(self) -> int:
        return self._real() + int.from_bytes(os.pread(self._file, 8, 0), "big")

    def advance(self, seconds: float) -> None:
        offset = int.from_bytes(os.pread(self._file, 8, 0), "big") + int(seconds * 1e9)
        os.pwrite(self._file, offset.to_bytes(8, "big"), 0)

    def stand_still(self) -> None:
        """From now on only ``advance`` moves it. For the one process of a world in direct mode."""
        at = time.time_ns()
        self._real = lambda: at

    def close(self) -> None:
        os.close(self._file)


def main() -> None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    if sys.argv[1] == "fork":
        fork_for_each_line()
    else:
        run(json.loads(sys.argv[1]))


def fork_for_each_line() -> None:
    """A writer for each line of stdin, which is as an argument would be; prints their pids. What takes longest of a
    start, the imports, is done once."""
    importlib.import_module("avmfs.store.sharedlog.postgres")
    importlib.import_module("avmfs.store.writer.following")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run(json.loads(line))
            os._exit(0)
        print(pid, flush=True)


def run(asked: dict[str, Any]) -> None:
    if asked.get("connections"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (asked["connections"], asked["connections"]))
    for module, values in (asked.get("constants") or {}).items():
        for name, value in values.items():
            setattr(importlib.import_module(f"avmfs.store.writer.{module}"), name, value)
    path = Path(asked["database"])
    rules = [(pattern, word, None if names is None else tuple(names)) for pattern, word, names in asked["rules"]]
    database.prepare(path)
    policy, index = Policy.from_words(rules, asked["default"]), IndexRules(("*.swp", "*~", ".git/*"), 64 * 1024)
    clock, listener = SharedClock(Path(asked["clock"])), socket.socket(fileno=asked["listener"])
    if asked.get("log"):
        from avmfs.store.sharedlog.postgres import PostgresLog
        from avmfs.store.writer.following import ReplicatedWriter
        from avmfs.store.writer.replicated import ReplicatedApplier

        log, host = asked["log"], asked["host"]
        shared = ReplicatedApplier(
            path, policy, index, orphans=True, clock=clock, shared_log=PostgresLog(log, host), host=host
        )
        serve(ReplicatedWriter(listener, bytes.fromhex(asked["key"]), shared, PostgresLog(log, host)))
        return
    applier = Applier(path, policy, index, orphans=True, clock=clock)
    applier.alone(OPERATOR, "settle", {})
    if asked["first"]:
        applier.alone(OPERATOR, "reap_all_orphans", {})
    serve(Writer(listener, bytes.fromhex(asked["key"]), applier))


def serve(writer: Writer) -> None:
    signal.signal(signal.SIGTERM, lambda *_: writer.stop())
    writer.run()


if __name__ == "__main__":
    main()
