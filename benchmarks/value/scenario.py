"""Scenarios as data: what happened among agents, what one of them is asked, and what a right answer holds.

Owns the format of scenarios/CATEGORY.yaml, a list of scenarios:

    id, story   a name and a line for people
    window      how many tokens of its conversation the asker still has; absent: all of it
    events      in the order in which they happened: {by, at, text}, with `path` below /memory/shared when it was noted
                as well (a text that was only said gets a path of its own), `private: true` when the note is its
                writer's own, `heard` by whom it was heard ("all", or a list; absent: its writer alone); or
                {chatter: N}, N turns of the asker's conversation that have nothing to do with the question
    ask         {by, at, question}
    answer      the gold answer, for people and judges
    assert      what the answer must show: {has: [any of these]}, {lacks: [none of these]}, {silent: true}
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from avmfs.evaluation.grading import Assertion, assertion
from benchmarks.figures import BenchmarkError

FOLDER = Path(__file__).with_name("scenarios")
_SUBJECTS = (
    "The ticket board",
    "The coffee order",
    "The style guide",
    "The sprint chart",
    "The sample page",
    "The demo room",
)
_VERBS = (
    "was looked at again",
    "can wait until next week",
    "is fine as it is",
    "needs another pair of eyes",
    "was tidied up",
)
_TAILS = ("nobody objected", "more on it later", "thanks to everybody", "it took a while", "so let us go on")


@dataclass(frozen=True)
class Event:
    by: str
    at: datetime
    text: str
    path: str | None = None
    """Below /memory/shared, or below the writer's own space where `private`; None: it was only said."""
    private: bool = False
    heard: frozenset[str] | None = frozenset()
    """Who heard it beside its writer; None: everybody."""

    def heard_by(self, agent: str) -> bool:
        return self.heard is None or agent == self.by or agent in self.heard


@dataclass(frozen=True)
class Scenario:
    category: str
    id: str
    story: str
    window: int | None
    events: tuple[Event, ...]
    asker: str
    asked_at: datetime
    question: str
    answer: str
    assertions: tuple[Assertion, ...]


def load(folder: Path = FOLDER, categories: Sequence[str] = ()) -> list[Scenario]:
    """All scenarios, or those of some categories. Raises BenchmarkError that names file and scenario."""
    found: list[Scenario] = []
    for path in sorted(folder.glob("*.yaml")):
        if not categories or path.stem in categories:
            entries = yaml.safe_load(path.read_text("utf-8"))
            if not isinstance(entries, list):
                raise BenchmarkError(f"{path}: a list of scenarios is expected")
            found += [_scenario(path, number, entry) for number, entry in enumerate(entries, 1)]
    missing = set(categories) - {one.category for one in found}
    if missing or not found:
        raise BenchmarkError(f"{folder}: no scenarios of {', '.join(sorted(missing)) or 'any category'}")
    return found


def _scenario(path: Path, number: int, entry: Mapping[str, Any]) -> Scenario:
    where = f"{path}: {entry.get('id', f'number {number}') if isinstance(entry, dict) else f'number {number}'}"
    try:
        if unknown := set(entry) - {"id", "story", "window", "events", "ask", "answer", "assert"}:
            raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
        ask = entry["ask"]
        assertions = tuple(assertion(one) for one in entry["assert"])
        if not assertions:
            raise ValueError("nothing is asserted")
        return Scenario(
            path.stem,
            entry["id"],
            entry["story"],
            entry.get("window"),
            _events(entry["events"], ask["by"], entry["id"]),
            ask["by"],
            _time(ask["at"]),
            ask["question"],
            str(entry["answer"]),
            assertions,
        )
    except (KeyError, TypeError, ValueError) as error:
        what = f"without {error}" if isinstance(error, KeyError) else str(error)
        raise BenchmarkError(f"{where}: {what}") from error


def _events(entries: Sequence[Mapping[str, Any]], asker: str, seed: str) -> tuple[Event, ...]:
    events: list[Event] = []
    draw = random.Random(seed)
    at = datetime(2026, 1, 1, 8, tzinfo=UTC)
    for entry in entries:
        if "chatter" in entry:
            for _ in range(entry["chatter"]):
                at += timedelta(minutes=1)
                events.append(Event(asker, at, _chatter(draw)))
            continue
        if unknown := set(entry) - {"by", "at", "text", "path", "private", "heard"}:
            raise ValueError(f"an event with {', '.join(sorted(unknown))}")
        at = _time(entry["at"])
        heard = entry.get("heard", ())
        listeners = None if heard == "all" else frozenset(heard)
        events.append(Event(entry["by"], at, entry["text"], entry.get("path"), entry.get("private", False), listeners))
    return tuple(events)


def _chatter(draw: random.Random) -> str:
    """A turn about nothing that is asked for; there are a hundred of them."""
    return f"{draw.choice(_SUBJECTS)} {draw.choice(_VERBS)}; {draw.choice(_TAILS)}."


def _time(value: object) -> datetime:
    at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return at if at.tzinfo else at.replace(tzinfo=UTC)
