"""What embedding costs those who write, and how soon what was written is found by meaning.

    python -m benchmarks.bench_embedding [--engine torch] [--rounds 5] [--notes 200] [--quick] [--json FILE]

Three parts, each a ratio within this run:

- embedding alone: the daemon's service, asked through its pipe as the keeper asks, beside a bare
  SentenceTransformer.encode of the same texts (torch only), chunk by chunk in turns;
- writes through the door with embeddings on beside off: two daemons, of which one at a time is written to, and
  which have nothing left to embed when the other's turn comes;
- the time from the last acknowledged write until nothing waits for a vector, for 1 note and for --burst.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from avmfs_config import EmbeddingSettings
from avmfs_daemon.embedding import YIELDING, EmbeddingService, PipeEmbedder

from avmfs import AVM
from avmfs.embed import engines
from avmfs.embed.local import LocalEmbedding
from benchmarks.figures import BenchmarkError, machine, print_header, print_table, write_json
from benchmarks.harness import stop_on_terminate, temporary_daemon

CHUNK = 128
WORDS = (
    "the market fell after earnings and nobody on the trading desk wanted to add to chips until the review of risk "
    "limits which the team moved to Friday because the build was broken and the dentist had no other appointment"
)


def texts(count: int, seed: int) -> list[str]:
    """Notes of 15 to 70 words."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS.split(), int(random.integers(15, 70)))) + f" {seed} {n}" for n in range(count)]


def embedding_alone(engine: str, cache: Path, rounds: int) -> tuple[float, float]:
    """Texts per second: of the service, and of the bare library."""
    loaded = engines.make(EmbeddingSettings(engine=engine), cache)  # type: ignore[arg-type]
    service = EmbeddingService()
    service.load(lambda: loaded)
    ours, theirs = multiprocessing.Pipe()
    service.serve(ours, "bench")
    client = PipeEmbedder(theirs, 300.0)
    while service.status()["state"] == "loading":
        time.sleep(0.05)
    bare: Callable[[list[str]], object] = loaded.embed_batch
    if isinstance(loaded, LocalEmbedding):
        transformer = loaded._loaded()

        def bare(some: list[str]) -> object:
            return transformer.encode(some, batch_size=32, normalize_embeddings=True, show_progress_bar=False)

    took = {"service": 0.0, "bare": 0.0}
    for round_ in range(-1, 2 * rounds):
        some = texts(CHUNK, round_ + 1)
        order = [("service", lambda some: client.embed_batch(some)), ("bare", bare)]
        for name, embed in order if round_ % 2 else reversed(order):
            began = time.perf_counter()
            yielding(embed, some) if name == "bare" else embed(some)
            if round_ >= 0:  # the first warms up
                took[name] += time.perf_counter() - began
    count = 2 * rounds * CHUNK
    return count / took["service"], count / took["bare"]


def yielding(work: Callable[[list[str]], object], some: list[str]) -> None:
    """At the priority that the service has: on a busy machine it would else be priorities that are compared."""

    def run() -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), YIELDING)
        work(some)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def waiting(environment: Mapping[str, str]) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "avmfs_daemon", "status", "--json"], env=dict(environment), capture_output=True,
        text=True, timeout=30,
    )  # fmt: skip
    if done.returncode:
        raise BenchmarkError(f"status: {done.stderr.strip()}")
    status = json.loads(done.stdout)
    if status["embedding"]["state"] == "loading":
        return 1
    if status["embedding"]["state"] not in ("ready", "off"):
        raise BenchmarkError(f"the daemon has no model: {status['embedding'].get('reason')}")
    store = status["store"]
    return int(store["waiting_lexical"] + (store["waiting_semantic"] if status["embedding"]["state"] == "ready" else 0))


def drained(environment: Mapping[str, str], limit_s: float = 600) -> None:
    until = time.monotonic() + limit_s
    while waiting(environment):
        if time.monotonic() > until:
            raise BenchmarkError("the queue does not empty")
        time.sleep(0.1)


def write(avm: AVM, some: Sequence[str], folder: str) -> float:
    """Notes per second."""
    began = time.perf_counter()
    for number, text in enumerate(some):
        avm.write(f"/memory/{folder}/{number}.md", text)
    return len(some) / (time.perf_counter() - began)


def searchable_after(avm: AVM, database: Path, count: int, seed: int) -> float:
    """Seconds from the last acknowledged write until nothing waits for a vector."""
    import apsw

    write(avm, texts(count, 10_000 + seed), f"burst{seed}")
    began = time.perf_counter()
    db = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        while db.execute("select (select count(*) from semantic_queue) + (select count(*) from lexical_queue)").get:
            time.sleep(0.002)
    finally:
        db.close()
    return time.perf_counter() - began


def opened(environment: Mapping[str, str]) -> AVM:
    return AVM(agent="bench", environ=dict(environment))


def main(arguments: Sequence[str] | None = None) -> int:
    stop_on_terminate()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--cache", type=Path, default=Path("/var/tmp/avmfs-models"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--notes", type=int, default=200)
    parser.add_argument("--burst", type=int, default=1000)
    parser.add_argument("--local", type=Path, default=Path("/var/tmp"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    if asked.quick:
        asked.rounds, asked.notes, asked.burst = 1, 30, 50
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    rates: dict[str, list[float]] = {"on": [], "off": []}
    try:
        # Before there are threads of a model here: daemons are started by fork and exec.
        with (
            temporary_daemon(asked.local, embedding={"engine": asked.engine, "allow_download": False}) as on,
            temporary_daemon(asked.local) as off,
        ):
            drained(on.environment)
            with opened(on.environment) as avm_on, opened(off.environment) as avm_off:
                both = {"on": (on, avm_on), "off": (off, avm_off)}
                for round_ in range(asked.rounds + 1):
                    for name in ("on", "off") if round_ % 2 else ("off", "on"):
                        daemon, avm = both[name]
                        rate = write(avm, texts(asked.notes, round_), f"round{round_}")
                        drained(daemon.environment)
                        if round_:
                            rates[name].append(rate)
                one = [searchable_after(avm_on, avm_on.database, 1, seed) for seed in range(5)]
                many = searchable_after(avm_on, avm_on.database, asked.burst, 99)
        service, bare = embedding_alone(asked.engine, asked.cache, asked.rounds)
    except (BenchmarkError, OSError) as problem:
        print(f"bench_embedding: {problem}", file=sys.stderr)
        return 2
    facts = {**machine(), "engine": asked.engine, "N": f"{asked.rounds} rounds of {asked.notes} notes"}
    print_header("what embedding costs", facts)
    figures = {
        "writes_on_per_s": statistics.median(rates["on"]), "writes_off_per_s": statistics.median(rates["off"]),
        "writes_ratio": statistics.median(a / b for a, b in zip(rates["on"], rates["off"], strict=True)),
        "service_per_s": service, "bare_per_s": bare, "embedding_ratio": service / bare,
        "one_note_searchable_s": statistics.median(one), "burst": asked.burst, "burst_searchable_s": many,
    }  # fmt: skip
    print_table(["figure", "value"], [[name, f"{value:.3f}"] for name, value in figures.items()])
    if asked.json is not None:
        write_json(asked.json, {"facts": facts, "figures": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
