"""What is proposed as a contradiction, named as a duplicate and shown as current, on labelled pairs of notes.

    python benchmarks/truth_quality.py DATA [--json FILE] [--no-ranking]

DATA/agent.memories.jsonl are the notes that everything stands beside. ``data/updates.jsonl`` has facts and what
replaced them, by kind (number, date, name, negation, state, preference, place, version, owner, language),
``DATA/updates.dev.jsonl`` more; ``data/duplicates.jsonl`` has a note worded anew ("same"), with another value ("value")
and of another thing ("matter"). Half of each is "dev", on which constants were chosen, half "held-out"; questions of
"present" have words of the past and do not ask for it ("what must I run before I merge"). Every newer note is
remembered beside all older ones, by words alone, and taken away again.

*Proposed*: it is answered that the older one of its pair seems to be contradicted (right for updates and "value"), or
any other note (wrong). *Duplicates*: `remember` names the other, consolidation merges the two. *Current*: the newer
stands first for the question, the older first for the question about the past; without the signal, with it, with links
for what was proposed, and with a link for each pair (remember --supersedes).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: as the daemon starts its children
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.recall_quality import beside, newer_first, read_lines  # isort: skip  (it says where the product lies)
from avmfs_config import SearchWeights, default_settings

from avmfs.rpc import methods
from avmfs.rpc.local import LocalDoor
from avmfs.search.duplicates import NEAR, Note, likeness, redundant

OWN = Path(__file__).resolve().parent / "data"
SPLITS = ("dev", "held-out")
BATCH = 200
Pair = dict[str, Any]


def pairs(data: Path) -> list[Pair]:
    """{"kind", "a", "b", "split", "id"} of all, where ``b`` came later."""
    updates = [*read_lines(OWN / "updates.jsonl"), *read_lines(data / "updates.dev.jsonl")]
    found = [
        {"kind": "update", "split": "dev", **each, "a": each["old"]["text"], "b": each["new"]["text"]}
        for each in updates
    ]
    return [*found, *read_lines(OWN / "duplicates.jsonl")]


def proposed(data: Path, all_pairs: Sequence[Pair]) -> tuple[dict[str, Any], set[str]]:
    """Figures by split, and the pairs of which it was proposed."""
    notes = [each["text"] for each in read_lines(data / "agent.memories.jsonl")]
    older = list(dict.fromkeys([*notes, *(each["a"] for each in all_pairs)]))
    place = {text: f"/memory/shared/{at}.md" for at, text in enumerate(older)}
    named: set[str] = set()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(LocalDoor(Path(folder) / "avm.db", default_settings(), "alice", embeddings=False)) as door,
    ):
        for first in range(0, len(older), BATCH):
            items = [{"content": text, "path": place[text]} for text in older[first : first + BATCH]]
            door.call("remember_many", items=items)
        for each in all_pairs:
            made = door.call("remember", content=each["b"], path="/memory/shared/newer.md")
            told = {one["path"] for one in made["contradicts"]}
            count, right = counts[each["split"]], each["kind"] in ("update", "value")
            hit = place[each["a"]] in told
            count["to find"] += right
            count["right"] += hit and right
            count["wrong"] += len(told) - (hit and right)
            named |= {each["id"]} if hit else set()
            door.call("remove", path=made["path"])
        for at, text in enumerate(notes):  # nothing of these contradicts another
            made = door.call("remember", content=f"{text} ", path="/memory/shared/newer.md")
            counts[SPLITS[at % 2]]["of other notes"] += sum(one["path"] != place[text] for one in made["contradicts"])
            door.call("remove", path=made["path"])
    return {split: figures(counts[split]) for split in SPLITS}, named


def figures(count: Mapping[str, int]) -> dict[str, Any]:
    wrong = count["wrong"] + count["of other notes"]
    precision = count["right"] / max(count["right"] + wrong, 1)
    return {**count, "precision": round(precision, 3), "recall": round(count["right"] / max(count["to find"], 1), 3)}


def duplicates(all_pairs: Sequence[Pair]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for split in SPLITS:
        some = [each for each in all_pairs if each["split"] == split and each["kind"] not in ("control",)]
        for what, judge in (("remember", _near), ("consolidation", _merges)):
            said = [each["kind"] for each in some if judge(each["a"], each["b"])]
            same = sum(each["kind"] == "same" for each in some)
            right = said.count("same")
            found[f"{what}, {split}"] = {
                "same": same,
                "others": len(some) - same,
                "right": right,
                "wrong": len(said) - right,
                "precision": round(right / max(len(said), 1), 3),
                "recall": round(right / max(same, 1), 3),
            }
    return found


def _near(one: str, other: str) -> bool:
    return likeness(one, other) >= NEAR


def _merges(one: str, other: str) -> bool:
    return bool(redundant([Note(one, 0), Note(other, 0)]))


def current(data: Path, all_pairs: Sequence[Pair], named: set[str]) -> dict[str, Any]:
    updates = [each for each in all_pairs if each["kind"] == "update" and "question" in each]
    adapter = beside(read_lines(data / "agent.memories.jsonl"), updates)
    found: dict[str, Any] = {}
    right: dict[str, dict[str, dict[str, bool]]] = defaultdict(dict)
    with closing(adapter):
        paths = {one: path for path, one in adapter.ids.items()}
        for label, weight in (("without the signal", 0.0), ("no links", 1.0), ("all linked", 1.0)):
            engine = adapter.memory.around.engine.weighing(replace(SearchWeights(), current=weight))
            for pair in updates if label == "all linked" else ():
                older, newer = (paths[f"{pair['id']}/{which}"] for which in ("old", "new"))
                given = {"path": f"{newer}:links", "data": f"{older} supersedes\n".encode(), "mode": "replace"}
                methods.call(adapter.memory, "write", given)
            for pair in updates:
                right[label][pair["id"]] = {
                    "newer first": newer_first(adapter, engine, pair, pair["question"]),
                    "older first, asked for the past": not newer_first(adapter, engine, pair, pair["question_before"]),
                }
    right["proposed ones linked"] = {
        one: right["all linked" if one in named else "no links"][one] for one in right["no links"]
    }
    for split in (*SPLITS, "present"):
        some = [each["id"] for each in updates if each["split"] == split]
        for label, each in right.items():
            asked = ("newer first", "older first, asked for the past")
            shares = {what: round(sum(each[one][what] for one in some) / len(some), 3) for what in asked}
            found[f"{label}, {split}"] = {"pairs": len(some), **shares}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--no-ranking", action="store_true")
    options = parser.parse_args()
    all_pairs = pairs(options.data)
    told: dict[str, Any] = {"duplicates": duplicates(all_pairs)}
    told["proposed"], named = proposed(options.data, all_pairs)
    if not options.no_ranking:
        told["current"] = current(options.data, all_pairs, named)
    for name, rows in told.items():
        print(f"\n{name}")
        for row, values in rows.items():
            print(f"  {row}: {', '.join(f'{key} {value}' for key, value in values.items())}")
    if options.json is not None:
        options.json.write_text(json.dumps(told, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
