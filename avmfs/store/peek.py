"""Nodes remembered between commits: what stat(2) asks again and again, without SQL.

Owns a cache that is right by construction: it is bound to the header of the WAL index, 48 bytes that SQLite itself
changes with every commit of any process (wal.c, WalIndexHdr) and that every connection has mapped. As long as they
are the same, nothing in the database has changed; when they differ, the whole cache is dropped.

The header is read *before* the rows that are kept under it, so a row is never older than its header says. The mapping
and its descriptor stay open for the life of the process: closing any descriptor of that file would drop SQLite's
own POSIX locks on it.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, field
from pathlib import Path

from avmfs.access import Principal, Visible
from avmfs.node import Node

HEADER = 48
_MOST = 60_000  # nodes and names: some 30 MB
_BODY_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class Remembered:
    """What was read under one header; rows are as stored, whoever may see them."""

    header: bytes
    nodes: dict[int, Node | None] = field(default_factory=dict)
    children: dict[tuple[int, bytes], int] = field(default_factory=dict)  # 0: no such name
    subdirectories: dict[tuple[Principal, int], int] = field(default_factory=dict)
    visible: dict[Principal, Visible] = field(default_factory=dict)
    bodies: dict[int, bytes] = field(default_factory=dict)  # of small files, in order of first read
    body_bytes: int = 0

    def full(self) -> bool:
        return len(self.nodes) + len(self.children) > _MOST

    def keep_body(self, node: int, data: bytes) -> None:
        """Remember a small file's bytes; the oldest go when there are too many."""
        if node in self.bodies:
            return
        self.bodies[node] = data
        self.body_bytes += len(data)
        while self.body_bytes > _BODY_BYTES:
            self.body_bytes -= len(self.bodies.pop(next(iter(self.bodies))))


class CommitHeader:
    """The WAL index header of one database. Only valid while this process has a connection open."""

    def __init__(self, database: Path) -> None:
        # Never closed: see the module.
        descriptor = os.open(f"{os.fspath(database)}-shm", os.O_RDONLY | os.O_CLOEXEC)
        self._map = mmap.mmap(descriptor, 2 * HEADER, prot=mmap.PROT_READ)

    def read(self) -> bytes:
        return self._map[:HEADER]
