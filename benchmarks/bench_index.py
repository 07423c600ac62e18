"""The index process under a store of many vectors: what each process holds, and what a question costs.

    python -m benchmarks.bench_index [--sizes 0,10000,100000] [--questions 200] [--json FILE]

Each size is a daemon of its own, on a store with that many random vectors of --dimension numbers, with the static
engine, so that what is measured is not a model. Proportional memory (PSS) is read from the kernel after the questions;
it is the mount's growth over the smallest size that counts: it holds no vectors. `nearest` is one question to the
index process over its socket; `search` is AVM.semantic of a question that was asked before, through the door.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import apsw
import numpy as np

from avmfs import AVM
from avmfs.access import Policy, Principal
from avmfs.embed.static import StaticEmbedding
from avmfs.errors import Busy
from avmfs.store.index_client import IndexClient
from avmfs.store.index_server import IndexServer
from avmfs.store.peers import proof
from avmfs.store.sqlite import SqliteStore, open_direct
from avmfs.store.submit import OPERATOR
from avmfs.store.transaction import IndexRules
from avmfs.store.writer import ANYBODY
from benchmarks.figures import BenchmarkError, machine, percentile, print_header, print_table, write_json
from benchmarks.harness import scratch_directory, stop_on_terminate, temporary_daemon

BENCH = Principal("bench")
DOCUMENTS = 200
QUESTIONS = [f"what is known about {word}?" for word in ["coffee", "market", "dentist", "garden", "budget", "lisbon"]]


@dataclass(frozen=True)
class Size:
    """Bytes of PSS; milliseconds."""

    vectors: int
    mount_pss: int
    door_pss: int
    index_pss: int
    nearest_ms: float
    nearest_p99_ms: float
    search_ms: float
    search_p99_ms: float


def plant(path: Path, model: str, dimension: int, count: int) -> None:
    """A store with ``count`` vectors, of passages that are rows made here: of DOCUMENTS small files, in turn."""
    store = open_direct(path, Policy(), IndexRules())
    store.submit(BENCH, "enroll")
    for number in range(DOCUMENTS):
        store.submit(BENCH, "write_path", path=[b"memory", b"%d" % number], data=b"coffee %d " % number * 50)
    while store.queue_lengths()[0]:
        store.submit(OPERATOR, "drain_lexical", limit=64)
    store.submit(OPERATOR, "follow_model", model=model, dimension=dimension)
    db = apsw.Connection(str(path))
    documents = db.execute("select document, scope from passage order by id").fetchall()
    first = db.execute("select min(id) from passage").get
    with db:
        db.executemany(
            "insert into passage(document, part, scope, len, start, stop) values(?, ?, ?, 1, 0, 6)",
            ((*documents[n % DOCUMENTS][:1], n, documents[n % DOCUMENTS][1]) for n in range(DOCUMENTS, count)),
        )
    db.close()
    random = np.random.default_rng(0)
    for at in range(0, count, 5000):
        rows = random.standard_normal((min(5000, count - at), dimension)).astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        vectors = [[first + at + n, row.tobytes()] for n, row in enumerate(rows)]
        store.submit(OPERATOR, "put_vectors", model=model, vectors=vectors)
    store.close()


@contextlib.contextmanager
def server(path: Path, folder: Path) -> Iterator[IndexClient]:
    """An index process on the store, and a client of it."""
    key, address = secrets.token_bytes(32), folder / "index.sock"
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bench_index", "--serve", str(path), str(address), key.hex()],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # as the daemon starts its children
    )
    try:
        yield IndexClient(address, ANYBODY, proof(key, ANYBODY), 30.0)
    finally:
        process.terminate()
        process.wait(10)


def serve(path: str, address: str, key: str) -> None:
    import socket

    store = SqliteStore(Path(path), open_direct(Path(path), Policy(), IndexRules())._submitter)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(16)
    model = store.vector_model()
    IndexServer(
        listener, bytes.fromhex(key), store.connection, lambda: model and (model.model, model.dimension),
        lambda passages: None, lambda figures: None,
    ).run()  # fmt: skip


def pss(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    raise BenchmarkError(f"no Pss of process {pid}")


def children(supervisor: int) -> dict[str, int]:
    """Pids of the daemon's processes by the name each shows."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            name, pid = entry.read_text().strip(), int(entry.parent.name)
            if name.startswith("avm ") and _descends(pid, supervisor):
                found[name.removeprefix("avm ")] = pid
    return found


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def measure(local: Path, count: int, dimension: int, questions: int) -> Size:
    nearest: list[float] = []
    if count:
        with scratch_directory(local) as folder:
            plant(folder / "avm.db", "random", dimension, count)
            random = np.random.default_rng(1)
            with server(folder / "avm.db", folder) as client:
                for number in range(questions + 1):
                    vector = random.standard_normal(dimension).astype(np.float32)
                    vector /= np.linalg.norm(vector)
                    began = time.perf_counter()
                    while True:
                        try:
                            client.nearest(BENCH, "random", vector, 400, np.zeros(0, np.int64), None)
                            break
                        except Busy:  # it is loading
                            if number:
                                raise
                            time.sleep(0.1)
                    if number:
                        nearest.append((time.perf_counter() - began) * 1e3)
    with temporary_daemon(local, embedding={"engine": "static"}) as daemon:
        environment = dict(daemon.environment)
        model = StaticEmbedding().model_id
        with AVM(agent="bench", environ=environment) as avm:
            status = _status(environment)
            database = avm.database
        if count:
            _command(environment, "stop")
            plant(database, model, 256, count)
            _command(environment, "start", "--daemon")
        status = _ready(environment, count)
        with AVM(agent="bench", environ=environment) as avm:
            searched: list[float] = []
            for number in range(questions + len(QUESTIONS)):
                began = time.perf_counter()
                avm.semantic(QUESTIONS[number % len(QUESTIONS)])
                if number >= len(QUESTIONS):
                    searched.append((time.perf_counter() - began) * 1e3)
            _through_mount(daemon.mountpoint)
        sizes = {name: pss(pid) for name, pid in children(status["pid"]).items()}  # type: ignore[arg-type]
        if count:
            _command(environment, "stop")
    return Size(
        count, sizes["bench"], sizes["door"], sizes["index"],
        statistics.median(nearest) if nearest else 0.0, percentile(sorted(nearest), 0.99) if nearest else 0.0,
        statistics.median(searched), percentile(sorted(searched), 0.99),
    )  # fmt: skip


def _through_mount(mountpoint: Path) -> None:
    """The mount's own process searches, too: in a process of its own here, which may hang."""
    for question in QUESTIONS:
        subprocess.run(["cat", f"{mountpoint}/:search?q={question.rstrip('?')}"], capture_output=True, timeout=60)


def _command(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "avmfs_daemon", *words], env=environment, capture_output=True, text=True, timeout=120
    )
    if done.returncode:
        raise BenchmarkError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def _status(environment: dict[str, str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(_command(environment, "status", "--json"))
    return found


def _ready(environment: dict[str, str], count: int) -> dict[str, object]:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        status = _status(environment)
        index, embedding = status["index"], status["embedding"]
        assert isinstance(index, dict) and isinstance(embedding, dict)
        if embedding["state"] == "ready" and index.get("vectors", 0) >= count:
            return status
        time.sleep(0.2)
    raise BenchmarkError("the index did not load in time")


def main(arguments: Sequence[str] | None = None) -> int:
    stop_on_terminate()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="0,10000,100000")
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--local", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    if asked.serve:
        serve(*asked.serve)
        return 0
    try:
        sizes = [measure(asked.local, int(s), asked.dimension, asked.questions) for s in asked.sizes.split(",")]
    except (BenchmarkError, OSError) as problem:
        print(f"bench_index: {problem}", file=sys.stderr)
        return 2
    facts = {**machine(), "N": f"{asked.questions} questions", "nearest": f"400 of {asked.dimension} dimensions"}
    print_header("one process that scans vectors", facts)
    mib = 1024 * 1024
    print_table(
        ["vectors", "mount MiB", "growth", "door MiB", "index MiB", "nearest ms", "p99", "search ms", "p99"],
        [[str(s.vectors), f"{s.mount_pss / mib:.1f}", f"{(s.mount_pss - sizes[0].mount_pss) / mib:+.1f}",
          f"{s.door_pss / mib:.1f}", f"{s.index_pss / mib:.1f}", f"{s.nearest_ms:.2f}", f"{s.nearest_p99_ms:.2f}",
          f"{s.search_ms:.2f}", f"{s.search_p99_ms:.2f}"] for s in sizes],
    )  # fmt: skip
    if asked.json is not None:
        write_json(asked.json, {"facts": facts, "sizes": [asdict(size) for size in sizes]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
