"""Texts to embed, and sets of memories and questions in the evaluator's format: what the scripts about vectors read.

Real sentences, for vectors of random words or of no words at all lie otherwise than those of what people write.
"""

from __future__ import annotations

import ast
import json
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import BenchmarkError

Matrix = NDArray[np.float32]
SHORTEST, LONGEST = 20, 400
WORDS = (
    "the market fell after earnings and nobody on the trading desk wanted to add to chips until the review of risk "
    "limits which the team moved to Friday because the build was broken and the dentist had no other appointment"
)


def notes(count: int, seed: int) -> list[str]:
    """Distinct notes of 15 to 70 words, the same for the same seed."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS.split(), int(random.integers(15, 70)))) + f" {seed} {n}" for n in range(count)]


def sentences(folder: Path | None, count: int) -> list[str]:
    """`count` distinct texts of 20 to 400 characters: sentences of the memories in `folder`, and when those are
    too few, paragraphs of the docstrings of the installed Python packages. Raises BenchmarkError when there are
    not as many."""
    found: dict[str, None] = {}
    for file in sorted(folder.glob("*.memories.jsonl")) if folder is not None else ():
        for memory in _lines(file):
            _take(found, re.split(r"(?<=[.!?。！？])\s*", memory["text"]))
    for root in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")):
        for source in sorted(Path(root).rglob("*.py")):
            if len(found) >= count:
                return list(found)[:count]
            try:
                tree = ast.parse(source.read_text("utf-8"))
            except (SyntaxError, ValueError, RecursionError, OSError):
                continue  # a test file that is meant to be none
            for node in ast.walk(tree):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    _take(found, (ast.get_docstring(node) or "").split("\n\n"))
    if len(found) < count:
        raise BenchmarkError(f"{len(found)} texts found; {count} are needed")
    return list(found)[:count]


def _take(found: dict[str, None], texts: Sequence[str]) -> None:
    for text in texts:
        clean = " ".join(text.split())
        if SHORTEST <= len(clean) <= LONGEST:
            found[clean] = None


@dataclass(frozen=True)
class Questions:
    """One set: memories by id, and questions, each with the ids of the memories that answer it."""

    name: str
    ids: Sequence[str]
    memories: Sequence[str]
    questions: Sequence[str]
    relevant: Sequence[frozenset[str]]


def read_set(folder: Path, name: str, memories: int, questions: int) -> Questions:
    """The first `questions` that have an answer, the memories that they need, and others up to `memories` together."""
    asked = [query for query in _lines(folder / f"{name}.queries.jsonl") if query["relevant"]][:questions]
    if not asked:
        raise BenchmarkError(f"{folder}/{name}.queries.jsonl: no question has an answer")
    needed = {str(each) for query in asked for each in query["relevant"]}
    stored = sorted(_lines(folder / f"{name}.memories.jsonl"), key=lambda memory: str(memory["id"]) not in needed)
    stored = stored[: max(memories, len(needed))]
    return Questions(
        name,
        [str(memory["id"]) for memory in stored],
        [str(memory["text"]) for memory in stored],
        [str(query["text"]) for query in asked],
        [frozenset(str(each) for each in query["relevant"]) for query in asked],
    )


def recall_of_ten(questions: Matrix, memories: Matrix, one: Questions) -> float:
    """The share of a question's relevant memories among its ten nearest, on average."""
    order = np.argsort(-(questions @ memories.T), axis=1, kind="stable")[:, :10]
    found = [
        len(relevant & {one.ids[at] for at in row}) / len(relevant)
        for row, relevant in zip(order, one.relevant, strict=True)
    ]
    return float(np.mean(found))


def _lines(file: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"{file}: {error}") from error
