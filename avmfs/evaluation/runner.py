"""Running the memory evaluation: scenarios, presets, and the score.

Owns what a scenario is (scenarios/*.yaml), how it is played to an agent, and how verdicts become a score of 0 to 100.
Knows nothing of files of results (results.py) and of how an agent answers (agents.py).

Pressure: a preset's ``injected`` tokens of turns about nothing come between what is to be remembered and the question,
as history (`inject`) where the agent offers that; then ``calls`` further turns until ``sent`` tokens have been sent.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import fmean
from typing import Any, Final, Protocol

import yaml

from avmfs.errors import Invalid
from avmfs.evaluation.grading import Assertion, assertion, grade, judged
from avmfs.evaluation.models import ChatModel, ModelError
from avmfs.text.tokens import TokenCounter

WEIGHTS: Final = {
    "basic_retention": 1.5,
    "temporal_reasoning": 1.0,
    "noise_resilience": 1.0,
    "reach_back_depth": 1.0,
    "fact_update_handling": 1.5,
    "multi_topic": 1.0,
    "abstention": 1.5,
    "preference_extraction": 1.0,
    "cross_session": 1.5,
    "reducer_fidelity": 1.0,
    "conflict_resolution": 1.0,
    "multi_session_reasoning": 1.0,
}
STANDARD: Final = tuple(WEIGHTS)[:8]
PASS, WARN = 70.0, 50.0
GRADES: Final = ((90.0, "A"), (80.0, "B"), (70.0, "C"), (50.0, "D"), (0.0, "F"))
_NOISE: Final = ("the tram was late", "a scarf was left here", "the plant looks better", "it rained", "lunch was soup")
_TAIL: Final = ("so be it", "nothing more to say of that", "I only mention it", "more another time", "let us go on")


class Agent(Protocol):
    """Whose memory is evaluated. It may also offer `reset_session()` and `inject(text, reply)`."""

    def respond(self, text: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Preset:
    """Tokens are those of cl100k_base."""

    name: str
    categories: tuple[str, ...]
    injected: int = 0
    calls: int = 0
    sent: int = 0


PRESETS: Final = {
    one.name: one
    for one in (
        Preset("quick", ("basic_retention", "temporal_reasoning", "noise_resilience")),
        Preset("standard", STANDARD),
        Preset("full", tuple(WEIGHTS)),
        Preset("diagnostic", tuple(WEIGHTS), injected=50_000),
        Preset("overflow", STANDARD, injected=96_000, calls=20, sent=192_000),
    )
}


@dataclass(frozen=True, slots=True)
class Scenario:
    category: str
    id: str
    language: str
    turns: tuple[str | int | None, ...]
    """What the user says; a number: so many turns about nothing; None: another conversation begins."""
    question: str
    answer: str
    assertions: tuple[Assertion, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One scenario. ``score`` 0 to 100, None where the agent did not answer (``error``), which counts 0."""

    scenario: str
    language: str
    score: float | None
    graded_by: str
    """judge, or assertions: where there is no judge, or it failed."""
    by_assertions: float
    judge: str
    """What the judge gave as its reason, or why it failed."""
    agree: bool | None
    """Whether judge and assertions say the same; None without either."""
    transcript: tuple[tuple[str, str], ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Category:
    name: str
    weight: float
    score: float
    scenarios: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True)
class Result:
    subject: str
    preset: str
    overall_score: float
    grade: str
    duration_s: float
    categories: tuple[Category, ...] = field(default=())

    @property
    def passed(self) -> bool:
        return self.overall_score >= PASS

    @property
    def verdict(self) -> str:
        return "PASS" if self.passed else "WARN" if self.overall_score >= WARN else "FAIL"


def run_memory_benchmark(
    make_agent: Callable[[], Agent],
    preset: Preset,
    *,
    subject: str,
    judge: ChatModel | None = None,
    languages: Sequence[str] = ("en", "zh"),
    only: Sequence[str] = (),
    told: Callable[[str], object] = lambda _: None,
) -> Result:
    """``only``: some scenarios, by their names. ``told`` hears of each before it is played. Raises Invalid when nothing
    was answered at all."""
    began, counter = time.monotonic(), TokenCounter()
    verdicts: dict[str, list[Verdict]] = {}
    chosen = [one for one in scenarios(preset.categories, languages) if not only or one.id in only]
    if unknown := set(only) - {one.id for one in chosen}:
        raise Invalid(f"no scenario {', '.join(sorted(unknown))} in preset {preset.name}, {' and '.join(languages)}")
    for one in chosen:
        told(f"{one.category}: {one.id}")
        verdicts.setdefault(one.category, []).append(_played(one, make_agent(), preset, judge, counter))
    categories = tuple(
        Category(name, WEIGHTS[name], fmean(one.score or 0.0 for one in each), tuple(each))
        for name, each in verdicts.items()
    )
    if all(each.score is None for one in categories for each in one.scenarios):
        raise Invalid(next((each.error for one in categories for each in one.scenarios), "no scenario was chosen"))
    overall = sum(one.score * one.weight for one in categories) / sum(one.weight for one in categories)
    letter = next(letter for least, letter in GRADES if overall >= least)
    return Result(subject, preset.name, overall, letter, time.monotonic() - began, categories)


def scenarios(categories: Sequence[str], languages: Sequence[str]) -> Iterator[Scenario]:
    """Those of the categories, in their order. Raises Invalid that names file, category and scenario."""
    entries: dict[str, list[Scenario]] = {}
    for file in sorted((files(__package__) / "scenarios").iterdir(), key=lambda path: path.name):
        for category, found in yaml.safe_load(file.read_text("utf-8")).items():
            entries[category] = [_scenario(f"{file.name}, {category}", category, one) for one in found]
    for category in categories:
        yield from (one for one in entries[category] if one.language in languages)


def _scenario(where: str, category: str, entry: Mapping[str, Any]) -> Scenario:
    try:
        turns = tuple(one if isinstance(one, str) else one.get("noise") for one in entry["turns"])
        assertions = tuple(map(assertion, entry["assert"]))
        name, language = entry["id"], entry.get("lang", "en")
        return Scenario(category, name, language, turns, entry["ask"], str(entry["answer"]), assertions)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Invalid(f"{where}, {entry.get('id', '?')}: {error!r}") from error


def _played(one: Scenario, agent: Agent, preset: Preset, judge: ChatModel | None, counter: TokenCounter) -> Verdict:
    draw = random.Random(one.id)
    transcript: list[tuple[str, str]] = []

    def say(text: str) -> str:
        reply = agent.respond(text)
        transcript.extend([("user", text), ("agent", reply)])
        return reply

    try:
        for turn in one.turns:
            if isinstance(turn, str):
                say(turn)
            elif turn is None:
                getattr(agent, "reset_session", lambda: None)()
                transcript.append(("session", "a new conversation"))
            else:
                for _ in range(turn):
                    say(f"By the way, {draw.choice(_NOISE)}; {draw.choice(_TAIL)}.")
        if preset.injected or preset.calls:
            _press(agent, preset, counter)
            transcript.append(("session", f"{max(preset.injected, preset.sent):,} tokens about nothing"))
        answer = say(one.question)
    except ModelError as error:
        return Verdict(one.id, one.language, None, "", 0.0, "", None, tuple(transcript), str(error))
    by_assertions = 100 * fmean(grade(one.assertions, answer))
    right, why = judged(judge, one.question, one.answer, answer)[:2] if judge is not None else (None, "")
    if right is None:
        return Verdict(one.id, one.language, by_assertions, "assertions", by_assertions, why, None, tuple(transcript))
    agree = right == (by_assertions == 100)
    return Verdict(one.id, one.language, 100.0 * right, "judge", by_assertions, why, agree, tuple(transcript))


def _press(agent: Agent, preset: Preset, counter: TokenCounter) -> None:
    """The same turns for every scenario, so that an agent may keep them once."""
    draw, spent = random.Random(preset.name), 0
    inject = getattr(agent, "inject", None) or (lambda text, reply: agent.respond(text))
    while spent < preset.injected:
        text = _long(draw, 400)
        inject(text, "Noted.")
        spent += counter.count(text)
    for number in range(preset.calls):
        text = _long(draw, max(1, (preset.sent - spent) // (preset.calls - number)))
        agent.respond(text)
        spent += counter.count(text)


def _long(draw: random.Random, tokens: int) -> str:
    """About so many tokens of text about nothing."""
    return " ".join(f"{draw.choice(_NOISE).capitalize()}, {draw.choice(_TAIL)}." for _ in range(max(1, tokens // 12)))
