"""Which questions ask for what was before, and which have its words alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from avmfs.search.tense import asks_for_past

LABELLED = Path(__file__).parents[2] / "benchmarks" / "data" / "updates.jsonl"
NOTES = ("The staging database has port 5433.", "It moved to 6432.")


def labelled() -> list[tuple[dict[str, Any], list[str]]]:
    pairs = [json.loads(line) for line in LABELLED.read_text("utf-8").splitlines()]
    return [(each, [each["old"]["text"], each["new"]["text"]]) for each in pairs if each["kind"] == "update"]


def test_labelled_questions_about_the_past_are_told_from_those_about_now() -> None:
    pairs = labelled()
    past = [asks_for_past(each["question_before"], notes) for each, notes in pairs]
    assert sum(past) >= 0.95 * len(past) and len(past) > 250
    assert [each["question"] for each, notes in pairs if asks_for_past(each["question"], notes)] == []


LEADS = (
    "Can you tell me", "Will you remind me", "hi, could you please tell me", "Can someone help me remember",
    "I need to know", "I would like to know", "I was wondering", "I can't remember", "I am trying to find out",
    "I am not sure", "Do you remember", "Do you have any idea", "Any idea", "Does anyone know", "Who knows",
    "Is it possible to find out", "May I ask", "Remind me", "Can you let me know",
)  # fmt: skip


@pytest.mark.parametrize("lead", LEADS)
def test_an_indirect_question_is_as_the_direct_one(lead: str) -> None:
    asked = [(each[kind], notes) for each, notes in labelled() for kind in ("question_before", "question")]
    direct = [(q, notes) for q, notes in asked if re.match("(?:wh|how)", q, re.IGNORECASE)]
    assert len(direct) > 250
    assert [q for q, notes in direct if asks_for_past(f"{lead} {q}", notes) != asks_for_past(q, notes)] == []


@pytest.mark.parametrize(
    "q",
    [
        "which port before the move",
        "phone provider before the porting",
        "error tracker before GlitchTip",
        "state of the mural before?",
        "where does Zoe work from before",
        "who used to own payments",
        "limit that we used to have",
        "what is the old upload limit",
        "former port",
        "ancien port",
        "Do you know what the port was before?",
        "Could you tell me which port we had before the audit",
        "Can you tell me what the port was before the move?",
        "can you remind me which database we used before?",
        "Will you tell me what the original deadline was",
        "Can you tell me to which bucket backups went before?",
        "can you let me know what port we used before?",
        "I need to know what the old port was",
        "I am asking once more. Where did it run previously?",
        "who was first going to moderate the panel",
        "which room did we meet in during the summer",
        "dónde estaba el taller antes de la mudanza",
        "深圳办公室搬家之前在哪里",
        "Wann war der Umzug ursprünglich geplant",
        "Was ist der alte Port",
        "Wohin wollten wir zuerst",
        "最初的端口是什么",
        "昔の端口は何番でしたか",
        "前は何番だった",
        "예전 API 타임아웃은 몇 초였어",
        "이전의 포트는?",
    ],
)
def test_a_question_about_what_was(q: str) -> None:
    assert asks_for_past(q, NOTES)


@pytest.mark.parametrize(
    "q",
    [
        "port of the staging database",
        "what happens to backups older than 30 days",
        "delete logs earlier than May",
        "10 year old whisky, and how old it must be",
        "what must I run before I merge",
        "What to run before merging?",
        "steps before a merge",
        "checks before Monday",
        "can I deploy before the audit",
        "Can deploys run before the freeze",
        "Can you deploy before the audit",
        "Can you tell me before the audit",
        "Can you tell me what to run before merging",
        "Can you let me know before the audit",
        "I need to run the tests before I merge",
        "I need to know before the audit",
        "I would like to know whether to deploy before the freeze",
        "I was wondering what to run before the freeze",
        "Who knows who signs off before the release",
        "who signs off before the release",
        "who gives prior approval for refunds",
        "who must sign prior to the audit: prior art",
        "where is the original logo file",
        "how do I restore the previous version",
        "which tool is used to build the docs",
        "key used to sign releases",
        "who digs at the ancient port",
        "Could you tell me what to run before merging",
        "Before you refactor the parser, run the tests.",
        "合并之前要运行什么",
        "Was machen wir zuerst",
        "Was passiert mit 30 Tage alten Backups",
        "Wer war zuerst im Büro",
        "Darf ein Monat altes Backup weg, einen Tag alte Logs auch?",
        "Quali sono le alte temperature",
        "最初に何をしますか",
        "名前は何ですか",
        "起動する前は何を確認する",
        "서버 이전 일정은 언제야",
        "最初のステップは何ですか",
        "30天以前的日志放在哪里",
        "was muss ich vorher ausführen",
        "qué reviso antes de desplegar",
        "",
    ],
)
def test_a_question_about_now_that_has_such_words(q: str) -> None:
    assert not asks_for_past(q, NOTES)


def test_a_word_that_all_notes_of_the_matter_have_asks_for_nothing() -> None:
    both = ("The initial capital is 10,000 EUR.", "The Initial capital was raised to 25,000 EUR.")
    assert not asks_for_past("initial capital of the depot", both)
    assert asks_for_past("initial capital of the depot", (both[0], "The capital was raised to 25,000 EUR."))
    assert asks_for_past("what was the initial capital of the depot", both)
    assert asks_for_past("old port", ("Gold is sold at the port.", "He told the port."))
