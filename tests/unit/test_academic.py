"""The academic sets are read as they are published, and the metrics tell some of the evidence from all of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from avmfs.evaluation.models import Endpoint, ModelError, Reply
from benchmarks import academic, bench_academic
from benchmarks.academic import all_at, any_at, f1, load, ranks
from benchmarks.figures import BenchmarkError
from benchmarks.results import Report, read_json
from benchmarks.value.suite import read_answers

DATA = Path(__file__).resolve().parent.parent.parent / "benchmarks/data"
LONG, TALKS = DATA / "longmemeval.json", DATA / "locomo.json"


def test_longmemeval_is_read_with_its_evidence_its_times_and_what_nothing_answers() -> None:
    dog, flight, cello, cat = load(LONG)
    assert [turn["speaker"] for turn in dog.turns[:2]] == ["user", "assistant"]
    assert [turn["date"] for turn in dog.turns[::2]] == sorted(turn["date"] for turn in dog.turns[::2])
    assert dog.turns[2]["date"] == "2023-05-08T18:20:00" and dog.turns[2]["session"] == "q-dog/answer_dog"
    assert dog.questions[0].relevant == {"q-dog/2"}  # the user's turn, not the whole session
    assert len(flight.questions[0].relevant) == 2 and cello.questions[0].answer == "725"
    assert (cat.questions[0].category, cat.questions[0].relevant) == ("abstention", frozenset())


def test_locomo_is_read_with_its_photos_and_without_questions_whose_evidence_names_no_turn() -> None:
    [talk] = load(TALKS)
    assert [turn["id"] for turn in talk.turns][-2:] == ["talk-1/D2:2", "talk-1/D10:1"]  # 10 comes after 2
    assert (
        talk.turns[2]["text"] == "Look what I made already. (shares a photo: a photo of a blue bowl on a window sill)"
    )
    assert (talk.turns[0]["date"], talk.turns[-1]["date"]) == ("2023-05-08T13:56:00", "2023-06-02T00:30:00")
    asked = {one.category: one for one in talk.questions}
    assert asked["multi-hop"].relevant == {"talk-1/D2:2", "talk-1/D10:1"}  # two in one text
    assert asked["adversarial"].relevant == frozenset()
    assert (len(talk.questions), talk.unplaced) == (4, 1)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda entries: entries[1].pop("haystack_dates"), "entry 1: .*no 'haystack_dates'"),
        (lambda entries: entries[0]["haystack_dates"].pop(), "entry 0: .*shorter"),
        (lambda entries: entries[2].update(answer_session_ids=["gone"]), "entry 2: .*gone"),
        (lambda entries: entries[3]["haystack_dates"].__setitem__(0, "May 4th"), "entry 3: .*May 4th"),
        (lambda entries: entries.clear(), "not a list of entries"),
    ],
)
def test_a_file_that_is_neither_is_refused_by_its_entry(
    tmp_path: Path, change: Callable[[list[Any]], object], what: str
) -> None:
    entries = json.loads(LONG.read_text())
    change(entries)
    path = tmp_path / "set.json"
    path.write_text(json.dumps(entries))
    with pytest.raises(BenchmarkError, match=what) as raised:
        load(path)
    assert "set.json" in str(raised.value)


def test_lines_of_either_set_are_read_without_answers(tmp_path: Path) -> None:
    turn = {"id": "a/1", "scope": "a", "text": "x", "date": None, "speaker": None, "session": "a/S1", "seq": 1}
    asked = {"id": "a/q", "scope": "a", "text": "x?", "relevant": ["a/1"], "category": "temporal"}
    (tmp_path / "n.memories.jsonl").write_text(json.dumps(turn) + "\n")
    (tmp_path / "n.queries.jsonl").write_text(json.dumps(asked) + "\n")
    [history] = load(tmp_path / "n.memories.jsonl")
    assert history.questions[0].relevant == {"a/1"} and history.questions[0].answer == ""
    (tmp_path / "n.queries.jsonl").write_text("{}\n")
    with pytest.raises(BenchmarkError, match=r"n\.queries\.jsonl, line 1"):
        load(tmp_path / "n.memories.jsonl")


def test_any_of_the_evidence_is_not_all_of_it() -> None:
    places = ranks(["c", "a", "d"], frozenset("ab"))
    assert sorted(places) == [2, float("inf")]
    assert any_at(places, 2) and not any_at(places, 1)
    assert not all_at(places, 30)
    assert all_at(ranks(["b", "c", "a"], frozenset("ab")), 3) and not all_at(ranks(["b", "c", "a"], frozenset("ab")), 2)
    assert ranks(["a", "a"], frozenset("a")) == [1]


def test_f1_is_of_words_on_both_sides() -> None:
    assert f1("The 5th of June", "5th of June") == 1
    assert f1("It is the 5th of June, I think", "5th of June") == pytest.approx(6 / 10)
    assert f1("Friday", "5th of June") == 0
    assert f1("", "x") == 0


# ---- the whole way ----


class Model(Endpoint):
    """Answers with what the first line of memory says, and judges by whether the gold answer's last word is in it."""

    def ask(self, shown: str, question: str) -> Reply:
        if question.startswith("You grade"):
            gold, answer = (line.partition(": ")[2] for line in question.splitlines()[1:3])
            return Reply(json.dumps({"right": gold.split()[-1].lower() in answer.lower(), "why": "word"}), 1, 1)
        if "Lisbon" in question:
            raise ModelError("503 overloaded")
        lines = [line for line in shown.splitlines() if not line.startswith(("#", "("))]
        return Reply(lines[0] if lines else "I don't know.", 1, 1)


def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, Report]:
    monkeypatch.setattr(
        bench_academic, "endpoint", lambda chosen: Model("openai", "x", "m", "") if "--endpoint" in words else None
    )
    code = bench_academic.main([str(LONG), "--json", str(tmp_path / "r.json"), *words])
    return code, read_json(tmp_path / "r.json")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Report, Path]:
    """The exit code, the report, and where the answers are kept."""
    folder = tmp_path_factory.mktemp("academic")
    kept = folder / "answers.jsonl"
    with pytest.MonkeyPatch.context() as patched:
        return *_run(folder, patched, "--budgets", "20,500", "--endpoint", "x", "--answers", str(kept)), kept


@pytest.fixture
def nothing_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.avm_adapter.Adapter.ingest", lambda *_: None)
    monkeypatch.setattr("benchmarks.avm_adapter.Adapter.recall", lambda *_: "")
    monkeypatch.setattr("benchmarks.avm_adapter.Adapter.search", lambda *_: [])


@pytest.mark.usefixtures("nothing_found")
def test_what_is_not_found_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, silent = _run(tmp_path, monkeypatch, "--budgets", "500")
    assert code == 0
    assert all(value == 0 for table in silent.tables for row in table.rows for value in row[2:-1])


@pytest.mark.slow
def test_evidence_is_found_in_stores_of_their_own(ran: tuple[int, Report, Path]) -> None:
    _, report, _ = ran
    turns, sessions, covered = ({row[0]: cast(list[Any], row[1:]) for row in table.rows} for table in report.tables[:3])
    assert turns["all"][0] == 3 and "abstention" not in turns
    assert covered["all"][2] == 1  # small histories stand whole in 500 tokens
    assert covered["all"][1] < covered["all"][2]  # and not in 20
    assert sessions["multi-session"][5] == 0  # two sessions are not both the first


@pytest.mark.usefixtures("nothing_found")
def test_answers_are_judged_kept_and_asked_once(
    ran: tuple[int, Report, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, report, kept = ran
    assert code == 1 and "503" in report.failures["q-flight"]  # the others are reported
    told = {row[0]: row for row in report.tables[-1].rows}
    assert told["single-session-user"][2] == "1/1"
    assert told["multi-session"][2] == "0/1"  # 725 stands nowhere: the graders can fail
    assert len(read_answers(kept)) == 3  # what failed is asked again
    monkeypatch.setattr(Model, "ask", lambda *_: pytest.fail("asked again"))
    monkeypatch.setattr(academic, "load", lambda path: [one for one in load(path) if one.name != "q-flight"])
    code, again = _run(tmp_path, monkeypatch, "--budgets", "500", "--endpoint", "x", "--answers", str(kept))
    assert (
        code == 0
        and {row[0]: row for row in again.tables[-1].rows}["single-session-user"] == told["single-session-user"]
    )
