"""The product's writer in a process of its own, with one part taken out: what bench_ablation compares.

    python -m benchmarks.ablation_writer DATABASE SOCKET KEY PARTS

PARTS are joined by commas: "normal" (synchronous=NORMAL), "journal" (a rollback journal instead of the WAL), "single"
(one transaction a request instead of group commit), "unindexed" (no words are indexed). This is the one benchmark that
reaches into the store; what it changes is named in `take_out`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import BenchmarkError
from benchmarks.harness import end_child, scratch_directory, start_child, tail

PARTS = ("normal", "journal", "single", "unindexed")
READY_S = 30.0


@dataclass(frozen=True)
class Address:
    """What a client needs to reach a writer."""

    database: str
    socket: str
    key: str


@contextlib.contextmanager
def running_writer(folder: Path, parts: Sequence[str]) -> Iterator[Address]:
    """A writer with an empty store in `folder`, which exists; ended at the end."""
    name = "-".join(parts) or "all"
    with scratch_directory(Path(tempfile.gettempdir())) as runtime:  # sockets' paths have to be short
        address = Address(str(folder / f"{name}.db"), str(runtime / "writer.sock"), secrets.token_hex(32))
        with _serving(folder / f"{name}.log", address, name, parts):
            yield address


@contextlib.contextmanager
def _serving(log: Path, address: Address, name: str, parts: Sequence[str]) -> Iterator[None]:
    words = [address.database, address.socket, address.key, ",".join(parts)]
    child = start_child([sys.executable, "-m", "benchmarks.ablation_writer", *words], log, os.environ)
    try:
        give_up = time.monotonic() + READY_S
        while not Path(address.socket).exists():
            if child.poll() is not None or time.monotonic() > give_up:
                raise BenchmarkError(f"the writer without {name} does not start:{tail(log)}")
            time.sleep(0.02)
        yield
    finally:
        end_child(child, patience_s=5)


def take_out(parts: Sequence[str]) -> None:
    """From the modules of this process, before anything of theirs is opened."""
    from avmfs.store import database, writer

    pragmas: str = database._PRAGMAS
    if "journal" in parts:
        pragmas = pragmas.replace("journal_mode = wal", "journal_mode = delete")
    if "normal" in parts:
        pragmas = pragmas.replace("synchronous = full", "synchronous = normal")
    changed = pragmas != database._PRAGMAS
    if changed != bool({"journal", "normal"} & set(parts)):
        raise BenchmarkError("the store's pragmas are not what this benchmark knows")
    database._PRAGMAS = pragmas
    if "single" in parts:
        if not hasattr(writer, "BATCH"):
            raise BenchmarkError("the writer has no BATCH any more")
        writer.BATCH = 1


def main(path: str, address: str, key: str, parts: Sequence[str]) -> None:
    take_out(parts)
    from avmfs.access import Policy
    from avmfs.store import database
    from avmfs.store.applier import Applier
    from avmfs.store.submit import OPERATOR
    from avmfs.store.transaction import IndexRules
    from avmfs.store.writer import Writer

    database.prepare(Path(path))
    index = IndexRules(("*",)) if "unindexed" in parts else IndexRules()
    applier = Applier(Path(path), Policy(), index, orphans=True, clock=time.time_ns)
    applier.alone(OPERATOR, "settle", {})
    with socket.socket(socket.AF_UNIX) as listener:
        waiting = f"{address}.new"
        listener.bind(waiting)
        listener.listen(64)
        server = Writer(listener, bytes.fromhex(key), applier)
        signal.signal(signal.SIGTERM, lambda number, frame: server.stop())
        os.rename(waiting, address)  # it is there once it answers
        server.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], [part for part in sys.argv[4].split(",") if part])
