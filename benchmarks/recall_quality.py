"""How good recall is, signal by signal: on any directory of NAME.memories.jsonl and NAME.queries.jsonl.

    python benchmarks/recall_quality.py DATA [--dataset locomo ...] [--split dev] [--limit 200] [--budgets 500 1000]
        [--ablate] [--pooled] [--abstain [--strangers FILE]] [--calibrate] [--latency] [--updates FILE]

A memory is {"id", "scope", "text", "date", "speaker", "session", "seq"}, a query {"id", "scope", "text", "relevant",
"category", "split"}; a scope is one store. Memories go in by AgentMemory.remember(), one note each. c500 and c1000 are
the share of the relevant memories that stand in a recall of so many tokens (four fifths of a memory's word 4-grams do);
R@10 their share among the first ten documents; frame the share of a full answer of 1,000 tokens that is not memory.
Queries of the category "adversarial" are left out. Beside recall stand four baselines that hand over bare notes, best
first, as many as fit: FTS5 (Porter stems, any word), the cosine of the same vectors, their reciprocal ranks (k = 60),
and their sum (cosine + 0.4 BM25 as a share of the best). In brackets: 95 % bootstrap intervals.

  --ablate     the same without each signal in turn (its weight at 0), all in one run on the same stores
  --pooled     all scopes of a data set in one store
  --abstain    for thresholds of min_relevance: how many questions that nothing in the store answers (those of the other
               data sets and scopes) get "nothing relevant", and what the threshold costs where there is an answer
  --strangers FILE
               with --abstain: these questions, one a line, in place of those of other data sets
  --calibrate  fit the constants of avmfs/search/relevance.py anew and print them
  --updates FILE
               pairs of a fact and what replaced it, {"id", "kind": "update" or "control", "old": {"text", "date"},
               "new", "question", "question_before"}, each beside the memories of the first data set: how often the
               newer one stands first, with search.weights.current and without, how often the older one for the question
               about the past, and how often the order stays where the newer one tells of something else (control)
  --latency    warm recalls by number of memories, the query's vector cached, with the parts of their time; and after
               a write each

The sets that the figures in benchmarks/README.md come from: LoCoMo (CC BY-NC 4.0), XQuAD and CMRC 2018 (CC BY-SA 4.0),
Cranfield. None of them is part of this repository. AVM_BENCH_VECTORS=FILE keeps vectors between runs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import sqlite3
import sys
import time
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: as the daemon starts its children
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks import avm_adapter  # isort: skip  (it says where the product lies)
from avmfs_config import SearchWeights

from avmfs.embed import knowledge
from avmfs.memory import Memory
from avmfs.rpc.remembering import remember
from avmfs.search import engine as engines
from avmfs.search import pack
from avmfs.search import recall as recalls
from avmfs.search.engine import Engine
from avmfs.store.index.search_index import SqliteSearchIndex

GRAM, COVERED = 4, 0.8
BUDGETS = (500, 1000)
_MARK = re.compile(r"^(?:@\w+ )?(?:\([^)]*\) )?(?:\[/[^]]*\] )?(?:\d{1,2}[A-Z][a-z]{2}(?:\d\d)? )?|^  ")
RRF_K, BM25_SHARE = 60, 0.4
RESAMPLES = 1000
_WORD = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]|[^\\W_]+")


@dataclass(frozen=True)
class Query:
    text: str
    relevant: frozenset[str]
    category: str


@dataclass
class Stocked:
    """One store with its memories in it."""

    name: str
    adapter: avm_adapter.Adapter
    grams: dict[str, frozenset[tuple[str, ...]]]
    queries: list[Query]
    notes: dict[str, str]
    """Text of each memory by id, as it is stored."""

    @property
    def memory(self) -> Memory:
        return self.adapter.memory

    def engine(self, weights: SearchWeights) -> Engine:
        around = self.memory.around
        return Engine(around.store.search_index, self.adapter.embedder, around.engine.counter, weights=weights)


def grams(text: str) -> frozenset[tuple[str, ...]]:
    words = _WORD.findall(unicodedata.normalize("NFKC", text).lower())
    size = min(GRAM, len(words))
    return frozenset(tuple(words[at : at + size]) for at in range(len(words) - size + 1)) if size else frozenset()


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def stock(data: Path, name: str, split: str, limit: int | None, pooled: bool) -> Iterator[Stocked]:
    """Stores with their queries, one after the other; each is closed when the next is asked for."""
    memories, queries = defaultdict(list), defaultdict(list)
    for memory in read_lines(data / f"{name}.memories.jsonl"):
        memories["all" if pooled else memory["scope"]].append(memory)
    for one in read_lines(data / f"{name}.queries.jsonl"):
        if split in ("both", one.get("split", split)) and one["category"] != "adversarial":
            scope = "all" if pooled else one["scope"]
            queries[scope].append(Query(one["text"], frozenset(one["relevant"]), one["category"]))
    asked = sum(map(len, queries.values()))
    for scope, inside in memories.items():
        if not (mine := queries[scope]):
            continue
        if limit is not None and asked > limit:  # spread evenly
            wanted = max(1, limit * len(mine) // asked)
            mine = [mine[at * len(mine) // wanted] for at in range(wanted)]
        adapter = avm_adapter.Adapter()
        adapter.ingest(sorted(inside, key=lambda memory: (memory["scope"], memory["seq"])))
        try:
            notes = {m["id"]: avm_adapter.note(m) for m in inside}
            yield Stocked(f"{name}/{scope}", adapter, {m["id"]: grams(m["text"]) for m in inside}, mine, notes)
        finally:
            adapter.close()


def covered(store: Stocked, relevant: Iterable[str], text: str) -> float:
    there = grams(text)
    wanted = list(relevant)
    return sum(len(store.grams[i] & there) >= COVERED * len(store.grams[i]) for i in wanted) / len(wanted)


class Baselines:
    """The four baselines on one store."""

    def __init__(self, store: Stocked, budgets: Sequence[int] = BUDGETS) -> None:
        self._budgets = budgets
        self._store, self._count = store, store.memory.around.engine.counter.count
        self._ids, texts = list(store.notes), list(store.notes.values())
        self._tokens = {i: self._count(f"{text}\n") for i, text in store.notes.items()}
        embedder = store.adapter.embedder
        assert embedder is not None
        self._embedder = embedder
        self._vectors = np.concatenate([self._embed(texts[at : at + 64]) for at in range(0, len(texts), 64)])
        self._db = sqlite3.connect(":memory:")
        self._db.execute("create virtual table f using fts5(x, tokenize='porter unicode61')")
        self._db.executemany("insert into f(rowid, x) values(?, ?)", enumerate(texts))

    def _embed(self, texts: list[str]) -> np.ndarray:
        """As the model gives them, whether it knows the language or not."""
        with mock.patch.object(knowledge, "weigh", lambda *_: None):
            return self._embedder.embed_batch(texts).vectors

    def measure(self, query: Query) -> dict[str, dict[str, float]]:
        """By baseline."""
        words, cosine = np.zeros(len(self._ids)), self._vectors @ self._embed([query.text])[0]
        if terms := dict.fromkeys(re.findall(r"\w+", query.text.lower())):
            match = " OR ".join(f'"{term}"' for term in terms)
            for row, score in self._db.execute("select rowid, bm25(f) from f where f match ?", (match,)):
                words[row] = -score
        found = {
            "FTS5": np.where(words > 0, words, -np.inf),
            "cosine": cosine,
            "RRF": reciprocal(cosine, np.ones(len(words), np.bool_)) + reciprocal(words, words > 0),
            "sum": cosine + BM25_SHARE * words / max(float(words.max()), 1e-9),
        }
        return {name: self._row(scores, query) for name, scores in found.items()}

    def _row(self, scores: np.ndarray, query: Query) -> dict[str, float]:
        ranked = [self._ids[at] for at in np.argsort(-scores, kind="stable") if scores[at] > -np.inf]
        row: dict[str, float] = {}
        for budget in self._budgets:
            chosen = []
            for i in ranked:
                if self._tokens[i] <= budget:
                    chosen.append(self._store.notes[i])
                    budget -= self._tokens[i]
                if budget < 2:
                    break
            row[f"c{self._budgets[len(row)]}"] = covered(self._store, query.relevant, "\n".join(chosen))
        row["R@10"] = len(query.relevant & set(ranked[:10])) / len(query.relevant)
        return row


def reciprocal(scores: np.ndarray, found: np.ndarray) -> np.ndarray:
    """1 / (RRF_K + rank) of those that were ``found``, 0 of the others."""
    rank = np.empty(len(scores))
    rank[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return np.where(found, 1 / (RRF_K + rank), 0.0)


def frame_share(store: Stocked, text: str) -> float:
    """The share of an answer's tokens that is no note's. A line of the frame begins with a sign of its own; other lines
    are memory, but for a handle and what stands with it, and a day."""
    count = store.memory.around.engine.counter.count
    lines = [line for line in text.splitlines(keepends=True) if not line.startswith(("#", "(", "["))]
    said = sum(count(_MARK.sub("", line)) for line in lines)
    return max(0.0, 1 - said / max(count(text), 1))


def measure(
    store: Stocked, engine: Engine, query: Query, threshold: float | None = None, budgets: Sequence[int] = BUDGETS
) -> dict[str, float]:
    who, now = store.memory.who, store.memory.now()
    least = store.memory.around.search.min_relevance if threshold is None else threshold
    row = {}
    for budget in budgets:
        found = recalls.recall(
            engine, who, query.text, now=now, tz=UTC, max_tokens=budget, min_relevance=least, nonce=lambda seq: "482913"
        )
        row[f"c{budget}"] = covered(store, query.relevant, found.text)
    best = engine.search(who, query.text, limit=10, now=now)
    ids = {store.adapter.ids[scored.hit.path.decode()] for scored in best.hits}
    row["R@10"] = len(query.relevant & ids) / len(query.relevant)
    row["frame"] = frame_share(store, found.text) if found.hits else math.nan
    return row


def interval(values: Sequence[float]) -> str:
    """Mean and 95 % bootstrap interval."""
    known = np.array([value for value in values if value == value])
    if not len(known):
        return "-"
    random = np.random.default_rng(0)
    means = [known[random.integers(0, len(known), len(known))].mean() for _ in range(RESAMPLES)]
    low, high = np.percentile(means, (2.5, 97.5))
    return f"{known.mean():.3f} [{low:.3f}, {high:.3f}]"


def quality(data: Path, names: Sequence[str], options: argparse.Namespace) -> None:
    for name in names:
        variants = {"recall": SearchWeights()}
        if options.ablate:
            variants |= {
                f"- {field.name}": replace(SearchWeights(), **{field.name: 0.0}) for field in fields(SearchWeights)
            }
        rows: dict[str, list[dict[str, float]]] = defaultdict(list)
        by_category: dict[str, list[dict[str, float]]] = defaultdict(list)
        for store in stock(data, name, options.split, options.limit, options.pooled):
            baselines = Baselines(store, options.budgets)
            for label, weights in variants.items():
                engine = store.engine(weights)
                for query in store.queries:
                    rows[label].append(measure(store, engine, query, budgets=options.budgets))
            for query, own in zip(store.queries, rows["recall"][-len(store.queries) :], strict=True):
                by_category[query.category].append(own)
                for label, row in baselines.measure(query).items():
                    rows[label].append(row)
        print(f"## {name}{' (one store)' if options.pooled else ''}, {len(rows['recall'])} queries")
        columns = list(rows["recall"][0])
        print(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
        tables = rows | (by_category if len(by_category) > 1 else {})
        for label, found in tables.items():
            cells = [interval([row.get(column, math.nan) for row in found]) for column in columns]
            print(f"| {label}{f', n={len(found)}' if label in by_category else ''} | {' | '.join(cells)} |", flush=True)


# What is true now ------------------------------------------------------------------------------------------------


def updates(data: Path, names: Sequence[str], options: argparse.Namespace) -> None:
    pairs = read_lines(options.updates)
    adapter = beside(read_lines(data / f"{names[0]}.memories.jsonl"), pairs)
    with closing(adapter):
        print("| | newer first | older first, asked for the past | order kept, another matter |\n|---|---|---|---|")
        for label, weight in (("without", 0.0), ("with", 1.0)):
            engine = adapter.memory.around.engine.weighing(replace(SearchWeights(), current=weight))
            right: dict[str, list[bool]] = defaultdict(list)
            for pair in pairs:
                control = pair.get("kind") == "control"
                newer = newer_first(adapter, engine, pair, pair["question"])
                right["control" if control else "question"].append(newer != control)
                if not control:
                    right["before"].append(not newer_first(adapter, engine, pair, pair["question_before"]))
            cells = [interval([float(one) for one in right[kind]]) for kind in ("question", "before", "control")]
            print(f"| {label}, n={len(pairs)} | {' | '.join(cells)} |")


def beside(memories: Sequence[dict[str, Any]], pairs: Sequence[dict[str, Any]]) -> avm_adapter.Adapter:
    """A store of these memories and of both notes of each pair, whose ids are "ID/old" and "ID/new"."""
    all_notes = list(memories)
    for pair in pairs:
        all_notes += [
            {"id": f"{pair['id']}/{which}", "scope": "pairs", "session": "pairs", "seq": len(all_notes) + at}
            | pair[which]
            for at, which in enumerate(("old", "new"))
        ]
    adapter = avm_adapter.Adapter()
    adapter.ingest(all_notes)
    return adapter


def newer_first(adapter: avm_adapter.Adapter, engine: Engine, pair: dict[str, Any], q: str) -> bool:
    """Whether the newer one stands before the older one; one that is not found stands last, both: the newer."""
    hits = engine.search(adapter.memory.who, q, limit=100, now=adapter.memory.now(), one_per_document=False).hits
    ids = [adapter.ids[scored.hit.path.decode()] for scored in hits]
    older, newer = (ids.index(one) if (one := f"{pair['id']}/{which}") in ids else len(ids) for which in ("old", "new"))
    return newer <= older


# Relevance -------------------------------------------------------------------------------------------------------


def strangers(data: Path, names: Sequence[str], store: Stocked, count: int) -> list[str]:
    """Questions that nothing in ``store`` answers: of other scopes and data sets, spread evenly."""
    name, scope = store.name.split("/", 1)
    found = []
    for other in names:
        texts = [
            one["text"]
            for one in read_lines(data / f"{other}.queries.jsonl")
            if (other != name or one["scope"] != scope) and other.rpartition("2")[0] != name
        ]
        wanted = max(1, count // len(names))
        found += [texts[at * len(texts) // wanted] for at in range(min(wanted, len(texts)))]
    return found


def abstention(data: Path, names: Sequence[str], options: argparse.Namespace) -> None:
    thresholds = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    print("| data set | threshold | nothing for a stranger's question | nothing though there is an answer | c1000 |")
    print("|---|---|---|---|---|")
    for name in names:
        silent, mute, cost = (defaultdict(list) for _ in range(3))
        for store in stock(data, name, options.split, options.limit, options.pooled):
            engine = store.engine(SearchWeights())
            who, now = store.memory.who, store.memory.now()

            def best(text: str, engine: Engine = engine, who: Any = who, now: int = now) -> float:
                hits = engine.search(who, text, limit=50, now=now, one_per_document=False).hits
                return max((scored.relevance for scored in hits), default=0.0)

            others = options.strangers and options.strangers.read_text("utf-8").splitlines()
            for text in others or strangers(data, names, store, len(store.queries)):
                top = best(text)
                for least in thresholds:
                    silent[least].append(top < max(least, 1e-9))
            for query in store.queries:
                top = best(query.text)
                for least in thresholds:
                    mute[least].append(top < max(least, 1e-9))
                    cost[least].append(measure(store, engine, query, least)["c1000"])
        for least in thresholds:
            shares = (float(np.mean(column[least])) for column in (silent, mute, cost))
            print(f"| {name} | {least} | " + " | ".join(f"{share:.3f}" for share in shares) + " |")


def calibrate(data: Path, names: Sequence[str], options: argparse.Namespace) -> None:
    """Logistic regression of "this passage answers" on the evidence: relevant passages of answerable questions against
    the best hits of strangers' questions, each question with the same weight."""
    features, labels, weights = [], [], []
    for name in names:
        for store in stock(data, name, options.split, options.limit, options.pooled):
            engine = store.engine(SearchWeights())
            who, now = store.memory.who, store.memory.now()
            asked: list[tuple[str, frozenset[str] | None]] = [(query.text, query.relevant) for query in store.queries]
            asked += [(text, None) for text in strangers(data, names, store, len(store.queries))]
            for text, relevant in asked:
                hits = engine.search(who, text, limit=50, now=now, one_per_document=False).hits
                chosen = [
                    scored
                    for at, scored in enumerate(hits)
                    if (at < 3 if relevant is None else store.adapter.ids[scored.hit.path.decode()] in relevant)
                ]
                for scored in chosen:
                    features.append([scored.evidence.get(key, math.nan) for key in ("cosine", "coverage", "near")])
                    labels.append(relevant is not None)
                    weights.append(1 / len(chosen))
    x, y, w = np.array(features), np.array(labels, float), np.array(weights)
    w[y == 1] /= w[y == 1].sum()
    w[y == 0] /= w[y == 0].sum()
    for what, use in (("with a vector", ~np.isnan(x[:, 0])), ("words alone", np.ones(len(x), bool))):
        columns = x[use] if what == "with a vector" else x[use][:, 1:]
        found = logistic(columns, y[use], w[use])
        print(what, "bias, then", "cosine, coverage, near:" if columns.shape[1] == 3 else "coverage, near:", found)


def logistic(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> list[float]:
    """Weighted maximum likelihood by Newton's method, a little ridge."""
    design = np.column_stack((np.ones(len(x)), x))
    beta = np.zeros(design.shape[1])
    for _ in range(50):
        p = 1 / (1 + np.exp(-design @ beta))
        gradient = design.T @ (w * (y - p)) - 1e-4 * beta
        hessian = (design * (w * p * (1 - p))[:, None]).T @ design + 1e-4 * np.eye(len(beta))
        beta = beta + np.linalg.solve(hessian, gradient)
    return [round(float(value), 2) for value in beta]


# Latency ---------------------------------------------------------------------------------------------------------


def latency(data: Path, names: Sequence[str], options: argparse.Namespace) -> None:
    """All memories of the sets in one store, repeated under other places until there are enough. Each question is asked
    again while nothing has changed, and again after a note was written, which ends much of what is remembered."""
    texts = [m for name in names for m in read_lines(data / f"{name}.memories.jsonl")]
    asked = [q["text"] for name in names for q in read_lines(data / f"{name}.queries.jsonl")][:: options.limit or 20]
    print(f"{platform.machine()}, Python {platform.python_version()}, {len(asked)} queries, ms of processor time")
    print("| memories | what | p50 | p99 |")
    print("|---|---|---|---|")
    for size in options.sizes:
        copies = [{**texts[at % len(texts)], "session": f"s{at // 40}", "seq": at} for at in range(size)]
        adapter = avm_adapter.Adapter()
        adapter.ingest(copies)
        try:
            for part, spent in latencies(adapter.memory, asked).items():
                p50, p99 = np.percentile(spent, (50, 99))
                print(f"| {size} | {part} | {p50:.2f} | {p99:.2f} |", flush=True)
        finally:
            adapter.close()


def latencies(memory: Memory, asked: Sequence[str]) -> dict[str, list[float]]:
    """ms of processor time of each question, by what was done. The parts are those of the recall itself, taken apart;
    ``the rest`` is what it costs beyond them: the queue that is looked at, the vector that is known, the fence."""
    parts: dict[str, list[float]] = defaultdict(list)
    for text in asked:
        memory.recall(text, max_tokens=1000)
    for text in asked:
        with timed(parts["recall of 1000 tokens"]):
            memory.recall(text, max_tokens=1000)
        for part, value in stages(memory, text):
            parts[part].append(value)
    for number, text in enumerate(asked):
        remember(memory, f"Note {number} on something else", path="/memory/shared/aside/note.md")
        memory.make_searchable()
        with timed(parts["recall after a write"]):
            memory.recall(text, max_tokens=1000)
    return parts


@contextmanager
def timed(into: list[float]) -> Iterator[None]:
    start = time.process_time()
    yield
    into.append((time.process_time() - start) * 1000)


def stages(memory: Memory, text: str) -> Iterator[tuple[str, float]]:
    """The same recall with a stopwatch around what it calls."""
    spent: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        for label, owner, name in (
            ("nearest vectors", SqliteSearchIndex, "nearest"),
            ("ranking", Engine, "ranking"),
            ("fetching", engines, "_fetch"),
            ("packing", pack, "pack"),
        ):
            stack.enter_context(mock.patch.object(owner, name, watched(getattr(owner, name), spent[label])))
        with timed(spent["whole"]):
            memory.recall(text, max_tokens=1000)
    found = {label: sum(times) for label, times in spent.items()}
    found["ranking"] -= found["nearest vectors"]
    yield from ((label, value) for label, value in found.items() if label != "whole")
    yield "the rest", 2 * found["whole"] - sum(found.values())


def watched(function: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    def call(*arguments: Any, **more: Any) -> Any:
        with timed(into):
            return function(*arguments, **more)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--dataset", nargs="+", help="names; all in the directory unless given")
    parser.add_argument("--split", default="dev", choices=("dev", "test", "both"))
    parser.add_argument("--limit", type=int, help="at most so many queries of a data set, spread evenly")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS, help="of tokens; frame is of the last")
    for what in ("ablate", "pooled", "abstain", "calibrate", "latency"):
        parser.add_argument(f"--{what}", action="store_true")
    for what in ("updates", "strangers"):
        parser.add_argument(f"--{what}", type=Path, metavar="FILE")
    options = parser.parse_args()
    names = options.dataset or sorted(path.name.partition(".")[0] for path in options.data.glob("*.queries.jsonl"))
    if not names:
        parser.error(f"{options.data}: no NAME.queries.jsonl there")
    job = next((f for f in (updates, abstention, calibrate, latency) if vars(options)[SWITCH[f.__name__]]), quality)
    job(options.data, names, options)


SWITCH = {"updates": "updates", "abstention": "abstain", "calibrate": "calibrate", "latency": "latency"}

if __name__ == "__main__":
    main()
