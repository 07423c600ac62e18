"""The memory evaluation: what it asks, how a better and a worse memory score, and what it keeps of a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from avmfs.cli import evaluating
from avmfs.cli.main import avm
from avmfs.errors import Invalid
from avmfs.evaluation import PRESETS, Result, agents, results, run_memory_benchmark
from avmfs.evaluation.grading import grade
from avmfs.evaluation.models import DO_NOT_KNOW, Endpoint, ModelError, OfflineReader, Reply
from avmfs.evaluation.runner import WEIGHTS, scenarios
from avmfs.text.tokens import TokenCounter

COUNTER = TokenCounter()
READER = OfflineReader(COUNTER.count)


@dataclass
class Parrot:
    """An agent that says back all that it was told, or always the same."""

    says: str | None = None
    told: list[str] = field(default_factory=list)

    def respond(self, text: str) -> str:
        self.told.append(text)
        return self.says if self.says is not None else " ".join(self.told)


@dataclass
class Judge:
    replies: list[str]
    name: str = "judge"

    def ask(self, shown: str, question: str) -> Reply:
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if reply == "fails":
            raise ModelError("out of reach")
        return Reply(reply, 0, 0)


def quick(make: object, **options: object) -> Result:
    return run_memory_benchmark(make, PRESETS["quick"], subject="s", **options)  # type: ignore[arg-type]


def test_each_dimension_has_five_scenarios_and_gold_answers_that_pass() -> None:
    everything = list(scenarios(tuple(WEIGHTS), ("en", "zh")))
    assert len(WEIGHTS) == 12 and {one.category for one in everything} == set(WEIGHTS)
    for category in WEIGHTS:
        there = [one for one in everything if one.category == category]
        assert len(there) == 5 and {one.language for one in there} == {"en", "zh"}
    for one in everything:
        assert all(grade(one.assertions, one.answer)), one.id
        assert not all(grade(one.assertions, "On the whole, quite so.")), one.id
        assert not all(grade(one.assertions, DO_NOT_KNOW)) or one.category == "abstention", one.id
    assert [len(PRESETS[name].categories) for name in ("quick", "standard", "full", "diagnostic", "overflow")] == [
        3, 8, 12, 12, 8,
    ]  # fmt: skip


def test_who_keeps_everything_scores_more_than_who_says_one_thing() -> None:
    assert quick(Parrot).overall_score > 90
    low = quick(lambda: Parrot("Bramble"))
    assert low.overall_score < 20 and low.verdict == "FAIL" and low.grade == "F" and not low.passed
    silence = run_memory_benchmark(lambda: Parrot(DO_NOT_KNOW), PRESETS["standard"], subject="s")
    assert {one.name: one.score for one in silence.categories}["abstention"] == 100
    assert silence.overall_score < 20


def test_a_conversation_that_ends_is_forgotten_by_who_has_nothing_else() -> None:
    make = agents.factory(READER, None, COUNTER)
    found = run_memory_benchmark(make, PRESETS["full"], subject="s", languages=("en",))
    scores = {one.name: one.score for one in found.categories}
    assert scores["cross_session"] == 0 and scores["basic_retention"] == 100


class Notebook:
    """A memory as the agents use one; it hands over all that it holds, nothing, or what others noted."""

    def __init__(self, hands_over: str | None = None) -> None:
        self.notes: list[str] = []
        self.hands_over = hands_over

    def agent_memory(self, name: str) -> Notebook:
        return Notebook(self.hands_over)

    def remember(self, text: str, namespace: str = "") -> None:
        self.notes.append(text)

    def recall(self, question: str, max_tokens: int) -> str:
        return "\n".join(self.notes) if self.hands_over is None else self.hands_over


def test_a_memory_that_is_empty_wrong_or_turned_off_lowers_the_score() -> None:
    def score(store: Notebook | None) -> float:
        make = agents.factory(READER, cast("Any", store), COUNTER)
        return run_memory_benchmark(make, PRESETS["full"], subject="s").overall_score

    whole, off = score(Notebook()), score(None)
    empty, wrong = score(Notebook("")), score(Notebook("What is the capital? Oslo, on the twelfth of May."))
    assert whole > 85 and max(off, empty, wrong) < whole - 10, (whole, off, empty, wrong)


def test_one_scenario_is_run_alone_and_an_unknown_one_is_named() -> None:
    found = quick(Parrot, only=["pin", "order"])
    assert [each.scenario for one in found.categories for each in one.scenarios] == ["order", "pin"]
    with pytest.raises(Invalid, match="pinn"):
        quick(Parrot, only=["pinn"])


@pytest.mark.parametrize(
    ("played", "said", "status"),
    [("dog", "PASS: 100.0", 0), ("dog,medicine", "WARN: 50.0", 0), ("pin,medicine", "FAIL: 40.0", 2)],
)
def test_the_exit_status_is_the_verdict(tmp_path: Path, played: str, said: str, status: int) -> None:
    """Without a memory what was said in an earlier session is not known."""
    line = f"bench memory --preset full --subject s --no-memory --scenarios {played} --output {tmp_path}"
    done = CliRunner().invoke(avm, line.split())
    assert done.exit_code == status and said in done.output, done.output


def test_pressure_fills_the_window_and_then_goes_beyond_it() -> None:
    """Overflow's figures at a hundredth: 960 tokens injected, 20 calls until 1,920 were sent."""
    said: list[str] = []
    injected: list[str] = []

    class Counts(Parrot):
        def respond(self, text: str) -> str:
            said.append(text)
            return super().respond(text)

        def inject(self, text: str, reply: str) -> None:
            injected.append(text)

    preset = replace(PRESETS["overflow"], categories=("basic_retention",), injected=960, sent=1920)
    run_memory_benchmark(Counts, preset, subject="s", languages=("zh",))
    assert 960 <= sum(map(COUNTER.count, injected)) < 1500
    fillers = [text for text in said if text.isascii()]
    assert len(fillers) == 20
    assert 1700 < sum(map(COUNTER.count, injected + fillers)) < 2300
    said.clear()
    run_memory_benchmark(Counts, replace(preset, injected=0, calls=5, sent=500), subject="s", languages=("zh",))
    assert len([text for text in said if text.isascii()]) == 5
    small = agents.ConversingAgent(READER, None, "a", set(), COUNTER, agents.WINDOW_TOKENS)
    for text in ("The code is 5582.", *["word " * 20_000] * 7):
        small.inject(text, "Noted.")
    assert "5582" not in small.respond("What is the code?")


class Narrow(Endpoint):
    """A model that refuses what goes beyond its window, its answer included, and a conversation without a beginning."""

    def reply(self, turns: Sequence[tuple[str, str]], system: str) -> Reply:
        taken = self.max_tokens + sum(COUNTER.count(text) + 4 for text in (system, *(text for _, text in turns)))
        if taken > 4000 or turns[0][0] != "user":
            raise ModelError(f"400: {taken} tokens, the first of them of {turns[0][0]}")
        return Reply("So it is.", taken, 3)


def test_what_a_model_is_sent_fits_its_window_with_its_answer_and_begins_with_the_user() -> None:
    make = agents.factory(Narrow("openai", "", "m", ""), cast("Any", Notebook("word " * 490)), COUNTER, 4000)
    preset = replace(PRESETS["overflow"], categories=("basic_retention",), injected=3000, sent=6000)
    found = run_memory_benchmark(make, preset, subject="s")
    assert not [each.error for one in found.categories for each in one.scenarios if each.error]


def test_a_judge_decides_and_where_it_fails_the_assertions_do() -> None:
    found = quick(Parrot, judge=Judge(["fails", "no json", '{"right": false, "why": "no"}']))
    first, second, *others = [each for one in found.categories for each in one.scenarios]
    assert first.graded_by == second.graded_by == "assertions" and first.score == 100
    assert "out of reach" in first.judge and "not understood" in second.judge
    assert "\njudge failed: 2," in evaluating._text(found, "m", [], Path("runs"))
    assert all(each.graded_by == "judge" and each.score == 0 and each.agree is False for each in others)


def test_a_question_without_an_answer_is_told_and_counts_nothing(tmp_path: Path) -> None:
    made: list[Parrot] = []

    class Fails(Parrot):
        def respond(self, text: str) -> str:
            if len(made) == 1:
                raise ModelError("429 slow down")
            return super().respond(text)

    def make() -> Parrot:
        made.append(Fails())
        return made[-1]

    found = quick(make)
    first = found.categories[0].scenarios[0]
    assert first.score is None and "429" in first.error and found.overall_score < quick(Parrot).overall_score
    summary = json.loads((results.write(tmp_path, found, {}, []) / "summary.json").read_text())
    assert summary["unanswered"] == 1 and summary["verdict"] == "PASS"

    def never() -> Parrot:
        made.clear()
        return make()

    with pytest.raises(Invalid, match="429"):
        quick(never)


def test_a_model_that_answers_hardly_anything_fails_and_is_worse(tmp_path: Path) -> None:
    made: list[Parrot] = []

    class Once(Parrot):
        def respond(self, text: str) -> str:
            if len(made) > 1:
                raise ModelError("out of reach")
            return super().respond(text)

    def make() -> Parrot:
        made.append(Once())
        return made[-1]

    before = results.read(results.write(tmp_path, quick(Parrot), {}, []))
    found = quick(make)
    assert found.verdict == "FAIL" and found.categories[-1].score == 0
    assert any(line.startswith(found.categories[-1].name) for line in results.worse(before, found))


@pytest.mark.parametrize(("other", "what"), [("--max-answer 9", "max_answer"), ("", "memory")])
def test_a_run_is_compared_with_one_of_the_same_conditions(tmp_path: Path, other: str, what: str) -> None:
    line = f"bench memory --preset full --subject s --scenarios dog --output {tmp_path} --no-memory"
    assert CliRunner().invoke(avm, line.split()).exit_code == 0
    (folder,) = (tmp_path / "subjects/agents/s/runs").iterdir()
    again = f"{line} {other}" if other else line.replace(" --no-memory", "")
    done = CliRunner().invoke(avm, f"{again} --baseline {folder}".split())
    assert isinstance(done.exception, Invalid) and f"'{what}'" in str(done.exception), done.output


def test_a_run_is_kept_with_its_hash_and_compared(tmp_path: Path) -> None:
    good, bad = quick(Parrot), quick(lambda: Parrot("5582"))
    folder = results.write(tmp_path, good, {"calls": 0}, [])
    assert folder.parent == tmp_path / "subjects/agents/s/runs" and not list(folder.parent.glob(".making*"))
    report = (folder / "report-native.json").read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["content_hash"] == f"sha256:{hashlib.sha256(report).hexdigest()}"
    assert manifest["verdict"] == "PASS" and manifest["run_id"] == folder.name
    native = json.loads(report)
    assert native["grade"] == "A" and native["passed"] is True
    assert native["categories"][0]["scenarios"][0]["transcript"][0][0] == "user"
    before = results.read(folder)
    assert results.worse(before, good) == []
    fell = results.worse(before, bad)
    assert fell[0].startswith("overall: ") and any(line.startswith("basic_retention") for line in fell)
    results.comparable(before, "quick", {"calls": 0})
    with pytest.raises(Invalid, match="preset"):
        results.comparable(before, "full", {"calls": 0})
    with pytest.raises(Invalid, match="calls"):
        results.comparable(before, "quick", {"calls": 20})
    with pytest.raises(Invalid, match="no report"):
        results.read(tmp_path)
    for name in ("", "../up", "a/b", ".hidden"):
        with pytest.raises(Invalid, match="subject"):
            results.subject(name)
