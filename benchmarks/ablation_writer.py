"""The product's writer in a process of its own, with one part taken out: what bench_ablation compares.

    python -m benchmarks.ablation_writer DATABASE SOCKET KEY PARTS

The product's writer commits with synchronous=NORMAL, many requests at once, and answers those that are promised
durability after one fdatasync of the write-ahead log, made in a second thread while the next requests are applied.
PARTS are joined by commas and name what is taken out of that:

- "promise": nobody waits for the disk and nothing is synced but what a checkpoint syncs, which is SQLite's WAL with
  synchronous=NORMAL. Commits survive kill -9, not a loss of power.
- "beside": each commit syncs the log itself before the next one begins, which is synchronous=FULL: no second thread.
  Requests that promise nothing (creating an empty name, an append before its close) then wait for the disk too.
- "single": one transaction a request. Syncs are still shared by all that wait, unless "beside" is taken out as well.
- "journal": a rollback journal instead of the write-ahead log; synchronous=FULL, for there is no log to sync beside.
- "words": no words are indexed.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.ablation_cache import replace
from benchmarks.figures import BenchmarkError
from benchmarks.harness import end_child, scratch_directory, start_child, tail

PARTS = ("promise", "beside", "single", "journal", "words")
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


def choose_journal(parts: Sequence[str]) -> None:
    """Of every store that this process opens afterwards."""
    from avmfs.store.client.client import DirectWriter
    from avmfs.store.schema import database

    if "journal" in parts:
        pragmas = database._PRAGMAS.replace("journal_mode = wal", "journal_mode = delete")
        if pragmas == database._PRAGMAS:
            raise BenchmarkError("the store's pragmas are not what this benchmark knows")
        replace(database, "_PRAGMAS", pragmas)
        replace(DirectWriter, "_recover", lambda self: setattr(self, "_trusted", True))  # there is no log to look at


class NoLog:
    """In the place of WalSync where commits are durable by themselves, or not at all."""

    idle = quick = True
    failure = None
    retry_s = 0.0

    def __init__(self, database: Path, wake: Callable[[], None]) -> None:
        self.note = SimpleNamespace(seq=0)

    def recover(self, db: object) -> bool:
        return True

    def now(self) -> None:
        pass

    def done(self) -> list[Any]:
        return []

    def close(self) -> None:
        pass


class NoNews:
    """In the place of News where there is no log whose index has a header to tell of: mounts ask the database."""

    def __init__(self, *_: object) -> None:
        pass

    def nothing(self) -> None:
        pass

    gather = tell = lost = close = nothing


class NoIndex:
    """In the place of LogIndex where there is no log."""

    def __init__(self, database: Path) -> None:
        pass


class NoHeader:
    """In the place of CommitHeader, for NoNews."""

    def __init__(self, database: Path) -> None:
        pass

    def read(self) -> bytes:
        raise BenchmarkError("a store without a log has no header of its index")


def take_out(parts: Sequence[str]) -> None:
    """From the modules of this process, before anything of theirs is opened."""
    from avmfs.store.writer import checkpoint, loop, scheduler

    unknown = set(parts) - set(PARTS)
    if unknown:
        raise BenchmarkError(f"no part of the writer: {', '.join(sorted(unknown))}")
    choose_journal(parts)
    if {"promise", "beside", "journal"} & set(parts):
        replace(loop, "WalSync", NoLog)
        replace(loop, "_promises", lambda item: False)
        replace(loop, "SYNC_AT_LEAST_S", 1e6)
    if "journal" in parts:
        replace(loop, "ChangeRing", NoNews)
        replace(loop, "CommitHeader", NoHeader)
        replace(checkpoint, "WalIndex", NoIndex)
    if "single" in parts:
        replace(scheduler, "MOST", 1)


def main(path: str, address: str, key: str, parts: Sequence[str]) -> None:
    take_out(parts)
    from avmfs.access import Policy
    from avmfs.store.identity import OPERATOR
    from avmfs.store.schema import database
    from avmfs.store.tx.transaction import IndexRules
    from avmfs.store.writer.applier import Applier
    from avmfs.store.writer.loop import Writer

    database.prepare(Path(path))
    index = IndexRules(("*",)) if "words" in parts else IndexRules()
    applier = Applier(Path(path), Policy(), index, orphans=True, clock=time.time_ns)
    applier.alone(OPERATOR, "settle", {})
    with socket.socket(socket.AF_UNIX) as listener:
        waiting = f"{address}.new"
        listener.bind(waiting)
        listener.listen(64)
        server = Writer(listener, bytes.fromhex(key), applier)
        if {"beside", "journal"} & set(parts):  # before the first request, and after the writer's own choice
            server.call(lambda: database.run(applier.db, "pragma synchronous = full"))
        signal.signal(signal.SIGTERM, lambda number, frame: server.stop())
        os.rename(waiting, address)  # it is there once it answers
        server.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], [part for part in sys.argv[4].split(",") if part])
