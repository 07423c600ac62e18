"""Whether an answer is right: by what a scenario asserts of it, and where wished by a model that judges.

An answer that says nothing passes only where silence is asserted: one that lacks a wrong word only since it lacks all
words has shown nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.chat_models import ChatModel, ModelError, silent
from benchmarks.value.scenario import Assertion, Scenario

JUDGE = """You grade an answer. Question: {question}
Right answer: {gold}
Answer to be graded: {answer}
Is it right in all that is asked? Reply with one line of JSON: {{"right": true or false, "why": "a few words"}}"""


@dataclass(frozen=True)
class Verdict:
    passed: tuple[bool, ...]
    """One for each assertion."""
    right: bool | None = None
    """What the judge said; None where none was asked, or none could be understood."""
    judge: str = ""
    """The judge's reason, or why it failed."""


def grade(assertions: Sequence[Assertion], answer: str) -> tuple[bool, ...]:
    text = " ".join(answer.split()).lower()
    said_nothing = silent(answer)
    return tuple(_holds(one, text, said_nothing) for one in assertions)


def _holds(one: Assertion, text: str, said_nothing: bool) -> bool:
    if one.silent or said_nothing:
        return one.silent and said_nothing
    if one.has:
        return any(_stands(word, text) for word in one.has)
    return not any(_stands(word, text) for word in one.lacks)


def _stands(word: str, text: str) -> bool:
    """Whole words: 32 does not stand in 1320."""
    return re.search(rf"(?<!\w){re.escape(word.lower())}(?!\w)", text) is not None


def judged(judge: ChatModel, scenario: Scenario, answer: str) -> tuple[bool | None, str]:
    """(right, why). A judge that fails or says no JSON gives (None, what went wrong): the assertions still count."""
    try:
        reply = judge.ask("", JUDGE.format(question=scenario.question, gold=scenario.answer, answer=answer)).text
    except ModelError as error:
        return None, f"judge failed: {error}"
    found = re.search(r"\{.*\}", reply, re.DOTALL)
    try:
        verdict = json.loads(found[0] if found else "")
        return bool(verdict["right"]), str(verdict.get("why", ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None, f"judge not understood: {reply[:80]!r}"
