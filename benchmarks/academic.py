"""LoCoMo and LongMemEval from the files that their authors publish, as stores to fill and questions to ask of them.

Owns the formats. Knows nothing of the product; bench_academic does the asking. The sets are not part of this
repository (LoCoMo: CC BY-NC 4.0, locomo10.json of snap-research/locomo; LongMemEval: MIT, longmemeval_s.json, _m and
_oracle of xiaowu0162/longmemeval): a path says where they lie. benchmarks/data holds a few lines of either shape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.figures import BenchmarkError

CATEGORIES: Mapping[int, str] = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
"""LoCoMo's numbers."""
UNANSWERABLE = ("adversarial", "abstention")
_TURN = re.compile(r"D\d+:\d+")


@dataclass(frozen=True)
class Question:
    id: str
    text: str
    relevant: frozenset[str]
    """Ids of the turns that hold the evidence; none for what nothing answers."""
    category: str
    answer: str
    """"" where the set has none."""
    asked: str = ""
    """When, as the set says it."""


@dataclass(frozen=True)
class History:
    """One store: turns as avm_adapter takes them ({id, scope, text, date, speaker, session, seq}), in order of time,
    and what is asked of them. ``unplaced``: questions left out, since their evidence names no turn."""

    name: str
    turns: Sequence[Mapping[str, Any]]
    questions: Sequence[Question]
    unplaced: int = 0


def load(path: Path) -> list[History]:
    """By what is in the file. A name that ends in .memories.jsonl stands for that file and its .queries.jsonl, which
    have no answers. Raises BenchmarkError that names file and entry."""
    try:
        if path.name.endswith(".memories.jsonl"):
            return list(_lines(path))
        entries = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"{path}: {error}") from error
    if not isinstance(entries, list) or not entries:
        raise BenchmarkError(f"{path}: neither LoCoMo nor LongMemEval: not a list of entries")
    found = []
    for number, entry in enumerate(entries):
        try:
            found.append(_locomo(entry) if "conversation" in entry else _longmemeval(entry))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else error
            raise BenchmarkError(f"{path}: entry {number}: neither LoCoMo nor LongMemEval: {what}") from error
    return found


def _locomo(entry: Mapping[str, Any]) -> History:
    scope, talk = str(entry["sample_id"]), entry["conversation"]
    turns: list[dict[str, Any]] = []
    sessions = sorted(int(name.removeprefix("session_")) for name in talk if re.fullmatch(r"session_\d+", name))
    for session in sessions:
        date = datetime.strptime(talk[f"session_{session}_date_time"], "%I:%M %p on %d %B, %Y").isoformat()
        for turn in talk[f"session_{session}"]:
            caption = turn.get("blip_caption")
            text = f"{turn['text']} (shares a photo: {caption})" if caption else turn["text"]
            said = {"id": f"{scope}/{turn['dia_id']}", "text": text, "speaker": turn["speaker"], "date": date}
            turns.append({**said, "scope": scope, "session": f"{scope}/S{session}", "seq": len(turns)})
    known = {turn["id"] for turn in turns}
    questions, unplaced = [], 0
    for number, asked in enumerate(entry["qa"]):
        category = CATEGORIES[asked["category"]]
        named = {f"{scope}/{place}" for one in asked.get("evidence", ()) for place in _TURN.findall(one)}
        relevant = frozenset() if category in UNANSWERABLE else frozenset(named & known)
        if not relevant and category not in UNANSWERABLE:
            unplaced += 1  # some of the published entries name turns that there are not
            continue
        answer = "" if category in UNANSWERABLE else str(asked["answer"])
        questions.append(Question(f"{scope}/q{number}", asked["question"], relevant, category, answer))
    return History(scope, turns, questions, unplaced)


def _longmemeval(entry: Mapping[str, Any]) -> History:
    scope = str(entry["question_id"])
    sessions = list(
        zip(entry["haystack_session_ids"], entry["haystack_dates"], entry["haystack_sessions"], strict=True)
    )
    turns: list[dict[str, Any]] = []
    relevant = set()
    for session, date, talk in sorted(sessions, key=lambda one: _moment(one[1])):
        for turn in talk:
            said = {"id": f"{scope}/{len(turns)}", "text": turn["content"], "speaker": turn["role"]}
            place = {"scope": scope, "session": f"{scope}/{session}", "seq": len(turns)}
            if turn.get("has_answer"):
                relevant.add(said["id"])
            turns.append({**said, **place, "date": _moment(date).isoformat()})
    silent = scope.endswith("_abs")
    if missing := {str(one) for one in entry["answer_session_ids"]} - {str(one) for one, _, _ in sessions}:
        raise ValueError(f"answer_session_ids name no session: {', '.join(sorted(missing))}")
    question = Question(
        id=scope,
        text=entry["question"],
        relevant=frozenset() if silent else frozenset(relevant),
        category="abstention" if silent else str(entry["question_type"]),
        answer=str(entry["answer"]),
        asked=str(entry["question_date"]),
    )
    lost = not silent and not relevant
    return History(scope, turns, [] if lost else [question], int(lost))


def _moment(text: str) -> datetime:
    """2023/05/30 (Tue) 23:40; the day of the week says nothing new."""
    return datetime.strptime(re.sub(r"\s*\(\w+\)", "", text), "%Y/%m/%d %H:%M")


def _lines(path: Path) -> Iterator[History]:
    turns = _by_scope(path)
    questions = _by_scope(path.with_name(path.name.replace(".memories.", ".queries.")))
    for scope, asked in questions.items():
        found = [
            Question(one["id"], one["text"], frozenset(one["relevant"]), one["category"], str(one.get("answer", "")))
            for one in asked
        ]
        yield History(scope, sorted(turns.get(scope, ()), key=lambda turn: int(turn["seq"])), found)


def _by_scope(path: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            entry = json.loads(line)
            found.setdefault(entry["scope"], []).append(entry)
        except (KeyError, TypeError, ValueError) as error:
            raise BenchmarkError(f"{path}, line {number}: {error}") from error
    return found


# ---- what was found ----


def ranks(found: Sequence[str], relevant: frozenset[str]) -> list[float]:
    """The place of each relevant one among those found, from 1; infinite where it is not among them."""
    places = {one: place for place, one in reversed(list(enumerate(found, 1)))}
    return [places.get(one, float("inf")) for one in sorted(relevant)]


def any_at(places: Sequence[float], k: int) -> bool:
    """Some of the evidence is among the first k."""
    return min(places) <= k


def all_at(places: Sequence[float], k: int) -> bool:
    """All of the evidence is."""
    return max(places) <= k


def f1(answer: str, gold: str) -> float:
    """Of words, as the sets' own scorers have it: harmonic mean of the shares of each that are in the other."""
    said, right = _words(answer), _words(gold)
    common = sum(min(said.count(word), right.count(word)) for word in set(said))
    return 2 * common / (len(said) + len(right)) if common else 0.0


def _words(text: str) -> list[str]:
    return [word for word in re.findall(r"\w+", text.lower()) if word not in ("a", "an", "the", "and")]
