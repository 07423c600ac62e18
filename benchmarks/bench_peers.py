"""Other memories that install from PyPI and run offline, beside avmfs: adding a note, finding it, and what is found.

    python -m venv peers && peers/bin/pip install mem0ai chromadb lancedb langgraph-checkpoint
    python -m benchmarks.bench_peers PATH --python peers/bin/python [--peers mem0,chroma] [--limit N] [--json FILE]

PATH is a file of LoCoMo or LongMemEval (bench_academic). Each history is a store of its own, in turn with every
memory; each peer is a process in its own environment, avmfs is opened in this process (its Python API, a note a turn).
All have vectors of the default model at hand, so times are without a model's, and durability is what each gives
by itself: avmfs syncs each note, the others do not. The first find has what is left of taking the notes in: avmfs and
LanceDB index their words then. *cosine* is the order of the bare vectors.

What needs a server, a key or a language model to take a note in has no row: benchmarks/README.md names them.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from avmfs_config import EmbeddingSettings

from avmfs.embed import engines
from benchmarks import academic, avm_adapter, peer_ops
from benchmarks.academic import UNANSWERABLE, History, Question
from benchmarks.bench_academic import limited
from benchmarks.clients import breaking_off
from benchmarks.figures import BenchmarkError, percentile
from benchmarks.harness import ROOT, scratch_directory
from benchmarks.results import Table, Value
from benchmarks.script import Findings, Run, add_models, names_among, options, positive, run_script

OURS, COSINE = "avmfs", "cosine"
DEPTHS = (1, 5, 10)
LIMIT_S = 900.0


@dataclass
class Seen:
    """What one memory did, over all histories."""

    added_s: list[float] = field(default_factory=list)
    asked_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    """The first question of each history: cold, with what is left of taking the notes in."""
    places: list[list[float]] = field(default_factory=list)
    version: str = ""


def measure(run: Run) -> Findings:
    chosen = run.options
    histories = limited(academic.load(chosen.data), 3 if run.quick else chosen.limit)
    asked = {one.name: [q for q in one.questions if q.category not in UNANSWERABLE] for one in histories}
    run.begin(
        data=f"{chosen.data.name}: {len(histories)} histories of {sum(len(one.turns) for one in histories):,} turns",
        questions=f"{sum(map(len, asked.values())):,} that have an answer",
        vectors="of the default model, made before; of avmfs those of its own passages",
        rounds="each history is one, every memory in turn",
        fitted_on="LoCoMo's development half: the weights of avmfs; those of no peer",
    )
    seen: dict[str, Seen] = defaultdict(Seen)
    failures: dict[str, str] = {}
    with (
        scratch_directory(run.local) as folder,
        mock.patch.dict(os.environ, AVM_BENCH_VECTORS=str(folder / "vectors.db")),
        mock.patch.object(engines, "LocalEmbedding", avm_adapter.KeptVectors),
    ):
        engine = engines.make(EmbeddingSettings(allow_download=False), chosen.cache)
        for number, history in enumerate(histories):
            questions = asked[history.name]
            turns = _embedded(engine, [{**turn, "text": avm_adapter.note(dict(turn))} for turn in history.turns])
            wanted = _embedded(engine, [{"text": question.text} for question in questions])
            _by_cosine(seen[COSINE], turns, wanted, questions)
            with contextlib.closing(avm_adapter.Adapter()) as warm:  # its vectors are made and kept
                warm.ingest([dict(turn) for turn in history.turns])
                for question in questions:
                    warm.search(question.text, 1)
            _ours(seen[OURS], history, questions)
            for peer in chosen.peers:
                if peer not in failures:
                    with breaking_off(peer, failures), scratch_directory(run.local) as place:
                        told = {"folder": str(place), "turns": turns, "questions": wanted, "k": max(DEPTHS)}
                        _theirs(seen[peer], peer, chosen.python, told, questions)
            print(f"  {number + 1} of {len(histories)}", flush=True)
    return Findings([_table(seen)], failures=failures)


def _embedded(engine: Any, some: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    texts = [str(one["text"]) for one in some]
    vectors = [row for at in range(0, len(texts), 64) for row in engine.embed_batch(texts[at : at + 64]).vectors]
    return [{**one, "vector": [float(x) for x in vector]} for one, vector in zip(some, vectors, strict=True)]


def _by_cosine(
    seen: Seen, turns: Sequence[Mapping[str, Any]], wanted: Sequence[Mapping[str, Any]], questions: Sequence[Question]
) -> None:
    matrix = np.array([turn["vector"] for turn in turns])
    for given, question in zip(wanted, questions, strict=True):
        order = np.argsort(-(matrix @ np.array(given["vector"])), kind="stable")[: max(DEPTHS)]
        seen.places.append(academic.ranks([turns[at]["id"] for at in order], question.relevant))


def _ours(seen: Seen, history: History, questions: Sequence[Question]) -> None:
    class Timed(avm_adapter.Adapter):
        def remembered(self, one: dict[str, Any]) -> None:
            began = time.perf_counter()
            super().remembered(one)
            seen.added_s.append(time.perf_counter() - began)

        def caught_up(self) -> None:
            """The first question waits for it, as a peer's does."""

    with contextlib.closing(Timed()) as adapter:
        adapter.ingest([dict(turn) for turn in history.turns])
        for place, question in enumerate(questions):
            began = time.perf_counter()
            hits = adapter.search(question.text, max(DEPTHS))
            (seen.asked_s if place else seen.first_s).append(time.perf_counter() - began)
            seen.places.append(academic.ranks(hits, question.relevant))


def _theirs(seen: Seen, peer: str, python: str, told: Mapping[str, Any], questions: Sequence[Question]) -> None:
    try:
        done = subprocess.run(
            [python, str(Path(__file__).with_name("peer_ops.py")), peer],
            input=json.dumps(told),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            cwd=ROOT.parent,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BenchmarkError(f"{peer}: {error}") from error
    if done.returncode:
        raise BenchmarkError(f"{peer}: {done.stderr.strip().rpartition(chr(10))[2] or done.returncode}")
    found = json.loads(done.stdout.strip().rpartition("\n")[2])
    seen.version = found["version"]
    seen.added_s += found["added_s"]
    seen.first_s += found["asked_s"][:1]
    seen.asked_s += found["asked_s"][1:]
    seen.places += [
        academic.ranks(hits, question.relevant) for hits, question in zip(found["hits"], questions, strict=True)
    ]


def _table(seen: Mapping[str, Seen]) -> Table:
    rows: list[Sequence[Value]] = []
    for name, one in seen.items():
        if not one.places:
            continue
        times: list[Value] = []
        for some in (one.added_s, one.first_s, one.asked_s):
            times.append(statistics.median(some) * 1e3 if some else None)
        tail = percentile(sorted(one.asked_s), 0.99) * 1e3 if one.asked_s else None
        quality = [
            statistics.fmean(float(at(places, k)) for places in one.places)
            for at in (academic.any_at, academic.all_at)
            for k in DEPTHS
        ]
        rows.append((f"{name} {one.version}".strip(), len(one.places), *times, tail, *quality))
    depths = [f"{kind}@{k}" for kind in ("any", "all") for k in DEPTHS]
    columns = ("memory", "N", "add, median ms", "first find ms", "find, median ms", "find, p99 ms", *depths)
    return Table("notes taken in one by one, and found", columns, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "bench_peers", "three questions")
    default = ROOT / "benchmarks/data/locomo.json"
    parser.add_argument("data", type=Path, nargs="?", default=default, metavar="PATH", help="(a few lines)")
    parser.add_argument("--python", default=sys.executable, metavar="FILE", help="of an environment that has the peers")
    peers = list(peer_ops.PEERS)
    parser.add_argument("--peers", type=names_among(peers), default=peers, metavar="A,B", help=", ".join(peers))
    parser.add_argument("--limit", type=positive, metavar="N", help="questions, spread evenly; all unless given")
    add_models(parser)
    return run_script("avmfs beside its peers", parser, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
