"""The workload of bench_store, 30 % creates and 70 % updates of short texts; runs in client processes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.clients import Command, reply_of
from benchmarks.figures import timed_loop, wait_until
from benchmarks.store_client import StoreClient, open_client

CREATE_SHARE = 0.3
AT_FIRST = 20
"""Nodes that a client has before its loop starts, so that the first update finds one."""
SIZES = (500, 900)
WORDS = (
    *("answer", "archive", "branch", "budget", "cache", "choose", "commit", "decide", "deploy", "error"),
    *("finding", "handoff", "index", "latency", "memory", "meeting", "merge", "migrate", "note", "owner"),
    *("query", "release", "review", "schema", "search", "store", "task", "test", "token", "version"),
)


def store_writer(agent: str) -> StoreClient:
    """The avmfs store as this process's environment finds it."""
    return open_client(os.environ, agent)


def sqlite_writer(database: Path) -> StoreClient:
    """Bare SQLite; apsw is imported only by the processes that measure it."""
    from benchmarks.bare_sqlite import SqliteWriter

    return SqliteWriter(database)


def commands() -> Mapping[str, Command]:
    workload = Workload()
    return {"connect": workload.connect, "begin": workload.begin, "write": workload.write}


@dataclass(frozen=True)
class Write:
    new: bool
    path: str
    body: bytes


class Workload:
    """One client process's connection, and the loop it is about to run."""

    def connect(self, variant: str, client: int, database: str) -> None:
        match variant:
            case "SQLite":
                self._writer = sqlite_writer(Path(database))
            case "avmfs":
                self._writer = store_writer(f"bench-{client}")
            case _:
                raise ValueError(f"unknown variant: {variant}")
        self._client = client

    def begin(self, number: int) -> None:
        """Make the nodes that the loop `number` starts with; not measured."""
        choose = random.Random(f"{number}/{self._client}")
        self._writes = endless_writes(f"/memory/bench/c{self._client}/r{number}", choose)
        for _ in range(AT_FIRST):
            self._write(next(self._writes))

    def write(self, start_ns: int, limit_s: float) -> list[object]:
        """Write one after the other for `limit_s` seconds."""
        wait_until(start_ns)
        return reply_of(timed_loop(self._write, self._writes, limit_s))

    def _write(self, write: Write) -> None:
        if write.new:
            self._writer.create(write.path, write.body)
        else:
            self._writer.update(write.path, write.body)


def endless_writes(folder: str, choose: random.Random) -> Iterator[Write]:
    """AT_FIRST creates, then creates and updates of nodes created before; no two bodies are the same."""
    texts = [" ".join(choose.choices(WORDS, k=150)) for _ in range(64)]
    created = 0
    serial = 0
    while True:
        new = created < AT_FIRST or choose.random() < CREATE_SHARE
        which = created if new else choose.randrange(created)
        created += new
        serial += 1
        body = f"{folder} {serial}: {choose.choice(texts)}"[: choose.randint(*SIZES)]
        yield Write(new, f"{folder}/n{which:06}", body.encode())
