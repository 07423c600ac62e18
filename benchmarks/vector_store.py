"""A store with very many vectors, and an index process on it: what bench_index measures beside a whole daemon.

    python -m benchmarks.vector_store DATABASE SOCKET KEY        # the index process alone, until SIGTERM

Planting writes rows of passages that no document was cut into: to embed a hundred thousand notes would take an hour,
and what is measured here does not depend on what they say.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import numpy as np

from avmfs.access import Policy, Principal
from avmfs.embed.protocol import EmbeddingUnavailable
from avmfs.errors import AvmError
from avmfs.store.identity import ANYBODY, OPERATOR, proof
from avmfs.store.index.client import IndexClient
from avmfs.store.index.server import IndexServer
from avmfs.store.store import open_direct
from avmfs.store.tx.transaction import IndexRules
from benchmarks.figures import BenchmarkError

BENCH = Principal("bench")
DOCUMENTS = 200
AT_ONCE = 5000
PATIENCE_S = 30.0


def plant(database: Path, model: str, dimension: int, count: int) -> None:
    """A store with `count` vectors of `model`, random and of length 1; their passages are shared among DOCUMENTS
    small files of shared space."""
    store = open_direct(database, Policy(), IndexRules())
    try:
        store.submit(BENCH, "enroll")
        for number in range(DOCUMENTS):
            store.submit(BENCH, "write_path", path=[b"memory", b"%d" % number], data=b"coffee %d " % number * 50)
        while store.queue_lengths()[0]:
            store.submit(OPERATOR, "drain_lexical", limit=64)
        store.submit(OPERATOR, "follow_model", model=model, dimension=dimension)
        passages = _passages(database, count)
        random = np.random.default_rng(0)
        for at in range(0, count, AT_ONCE):
            some = passages[at : at + AT_ONCE]
            rows = random.standard_normal((len(some), dimension)).astype(np.float32)
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            vectors = [[passage, row.tobytes()] for passage, row in zip(some, rows, strict=True)]
            store.submit(OPERATOR, "put_vectors", model=model, vectors=vectors)
    finally:
        store.close()


def _passages(database: Path, count: int) -> list[int]:
    """Ids of `count` passages: those that are there, and rows made here."""
    db = apsw.Connection(os.fspath(database))
    try:
        there = list(db.execute("select document, scope from passage order by id"))
        made = [(*there[n % len(there)], n) for n in range(len(there), count)]
        with db:
            db.executemany(
                "insert into passage(document, scope, part, len, start, stop, flags) values(?, ?, ?, 1, 0, 6, 0)", made
            )
        return [passage for (passage,) in db.execute("select id from passage order by id limit ?", (count,))]
    finally:
        db.close()


@contextlib.contextmanager
def index_process(database: Path, folder: Path) -> Iterator[IndexClient]:
    """An index process on the store, and a client of it; its socket is in `folder`, whose path must be short."""
    key, address = secrets.token_bytes(32), folder / "index.sock"
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.vector_store", os.fspath(database), os.fspath(address), key.hex()],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # as the daemon starts its children
    )
    try:
        yield IndexClient(address, ANYBODY, proof(key, ANYBODY), PATIENCE_S)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def serve(database: Path, address: str, key: bytes) -> None:
    store = open_direct(database, Policy(), IndexRules())
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    if (found := store.vector_model()) is None:
        raise BenchmarkError(f"{database}: no vectors")
    model = found.model, found.dimension
    IndexServer(listener, key, store.connection, lambda: model, lambda passages: None, lambda figures: None).run()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], bytes.fromhex(sys.argv[3]))


@contextlib.contextmanager
def named_errors() -> Iterator[None]:
    """What the product refuses ends what is being measured, not the script."""
    try:
        yield
    except (AvmError, EmbeddingUnavailable) as error:
        raise BenchmarkError(str(error)) from error
