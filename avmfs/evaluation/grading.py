"""Whether an answer is right: by what is asserted of it, and where wished by a model that judges.

An answer that says nothing passes only where silence is asserted: one that lacks a wrong word only since it lacks all
words has shown nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from avmfs.evaluation.models import ChatModel, Endpoint, ModelError, Reply, silent

JUDGE = """You grade an answer. Question: {question}
Right answer: {gold}
Answer to be graded: {answer}
Is it right in all that is asked? Reply with one line of JSON: {{"right": true or false, "why": "a few words"}}"""

JUDGE_SYSTEM, JUDGE_TOKENS = "You grade answers. You reply with JSON alone.", 300


@dataclass(frozen=True, slots=True)
class Assertion:
    """One of: any of ``has`` stands in the answer; none of ``lacks``; it says that it does not know (``silent``); of
    ``first`` the former stands, and before the latter where that does."""

    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    silent: bool = False
    first: tuple[str, ...] = ()


def assertion(entry: Mapping[str, Any]) -> Assertion:
    """From a scenario file's {kind: value}. Raises ValueError."""
    if len(entry) != 1 or not set(entry) <= {"has", "lacks", "silent", "first"}:
        raise ValueError(f"an assertion is one of has, lacks, silent, first: {dict(entry)}")
    words = {kind: tuple(map(str, value)) for kind, value in entry.items() if kind != "silent"}
    if any(not value for value in words.values()) or len(words.get("first", "12")) != 2:
        raise ValueError(f"an assertion without words, or a first that is not of two: {dict(entry)}")
    return Assertion(**words, silent="silent" in entry)


def grade(assertions: Sequence[Assertion], answer: str) -> tuple[bool, ...]:
    """One verdict for each."""
    text = " ".join(answer.split()).lower()
    said_nothing = silent(answer)
    return tuple(_holds(one, text, said_nothing) for one in assertions)


def judging(model: Endpoint) -> Endpoint:
    """The model as a judge: who answers is told to say when it doesn't know, and may be held to be brief."""
    return replace(model, system=JUDGE_SYSTEM, max_tokens=JUDGE_TOKENS)


def judged(judge: ChatModel, question: str, gold: str, answer: str) -> tuple[bool | None, str, Reply]:
    """(right, why, what the judge said). A judge that fails or says no JSON gives (None, what went wrong): the
    assertions still count."""
    try:
        reply = judge.ask("", JUDGE.format(question=question, gold=gold, answer=answer))
    except ModelError as error:
        return None, f"judge failed: {error}", Reply("", 0, 0)
    found = re.search(r"\{.*\}", reply.text, re.DOTALL)
    try:
        verdict = json.loads(found[0] if found else "")
        if isinstance(verdict["right"], bool):
            return verdict["right"], str(verdict.get("why", "")), reply
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    return None, f"judge not understood: {reply.text[:80]!r}", reply


def _holds(one: Assertion, text: str, said_nothing: bool) -> bool:
    if one.silent or said_nothing:
        return one.silent and said_nothing
    if one.has:
        return any(_stands(word, text) is not None for word in one.has)
    if one.first:
        right, wrong = (_stands(word, text) for word in one.first)
        return right is not None and (wrong is None or right < wrong)
    return all(_stands(word, text) is None for word in one.lacks)


def _stands(word: str, text: str) -> int | None:
    """Where it stands as a whole word: 32 does not stand in 1320. In Chinese nothing parts words."""
    edge = r"[a-z0-9_]"
    found = re.search(rf"(?<!{edge}){re.escape(word.lower())}(?!{edge})", text)
    return found.start() if found else None
