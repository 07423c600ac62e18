"""The workload of bench_contention: notes written as fast as they are durable; runs in client processes.

One client is one agent. Through a mount it writes as editors without a rename do, open(O_TRUNC), write, close; on bare
SQLite the same bytes in a transaction. 30 % of the writes make a new note, 70 % write one anew, as in bench_store.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks.clients import Command, reply_of
from benchmarks.figures import timed_loop, wait_until
from benchmarks.store_ops import Write, endless_writes, sqlite_writer

SYNC_BYTES = 8192
SYNC_FILE_BYTES = 4 * 1024 * 1024


def commands() -> Mapping[str, Command]:
    client = Writer()
    return {"begin": client.begin, "write": client.write, "sync": sync}


class Writer:
    """One client process, and the loop it is about to run."""

    _write: Callable[[Write], None]
    _writes: Iterator[Write]

    def begin(self, folder: str | None, database: str | None, client: int, number: int, at_first: int) -> None:
        """Make the notes that loop `number` starts with; not measured."""
        below = f"{folder}/w{client}-{number}"
        if folder is not None:
            os.mkdir(below)
            self._write = _write_file
        else:
            self._write = _in_sqlite(str(database))
        self._writes = endless_writes(below, random.Random(f"{number}/{client}"))
        for _ in range(at_first):
            self._write(next(self._writes))

    def write(self, start_ns: int, limit_s: float) -> list[object]:
        """Write one after the other for `limit_s` seconds."""
        wait_until(start_ns)
        return reply_of(timed_loop(self._write, self._writes, limit_s))


def sync(folder: str, start_ns: int, limit_s: float) -> list[object]:
    """What the disk itself takes: 8 KiB written in place and made durable, again and again. The file is filled
    first, as a WAL that is used again is, so that no size has to be made durable too."""
    path = f"{folder}/sync-{os.getpid()}"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(handle, bytes(SYNC_FILE_BYTES))
        os.fsync(handle)
        data = random.Random(0).randbytes(SYNC_BYTES)

        def once(place: int) -> None:
            os.pwrite(handle, data, place * SYNC_BYTES % SYNC_FILE_BYTES)
            os.fdatasync(handle)

        wait_until(start_ns)
        return reply_of(timed_loop(once, range(1_000_000), limit_s))
    finally:
        os.close(handle)
        os.unlink(path)


def _write_file(write: Write) -> None:
    handle = os.open(write.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(handle, write.body)
    finally:
        os.close(handle)


def _in_sqlite(database: str) -> Callable[[Write], None]:
    writer = sqlite_writer(Path(database))

    def write_row(write: Write) -> None:
        if write.new:
            writer.create(write.path, write.body)
        else:
            writer.update(write.path, write.body)

    return write_row
