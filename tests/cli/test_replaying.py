"""The questions that an agent has asked, and what `avm bench mine` makes of them."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from avmfs_config import ConfigError, SearchSettings, changed_settings
from click.testing import CliRunner

from avmfs.access import Key, Principal
from avmfs.agents.questions import LONGEST, QuestionLog
from avmfs.cli.main import avm
from avmfs.errors import Denied, Invalid
from avmfs.rpc.local import LocalDoor

ALICE = Principal("alice")
NOTES = (
    "Coffee with Ann on Monday",
    "The release freeze starts Monday",
    "The machine for coffee needs descaling, its manual says",
)
Run = Callable[..., Any]


def log_of(folder: Path, kept: int = 10) -> QuestionLog:
    return QuestionLog(folder / "avm.db", SearchSettings(query_log=kept))


def ask(log: QuestionLog, q: str, who: Principal = ALICE, tokens: int | None = None) -> None:
    log.note(who, 1, q, (b"memory",), "balanced", tokens, 0.3)


# --- the log


def test_questions_are_kept_of_each_agent_apart_newest_first_and_for_the_owner_alone(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    ask(log, "one", tokens=4000)
    ask(log, "two \n\udcff", tokens=50)
    ask(log, "hers", Principal("bob"))
    assert [(each["q"], each["max_tokens"], each["min_relevance"]) for each in log.asked("alice")] == [
        ("two \n\udcff", 50, None),
        ("one", None, None),
    ]
    assert log.asked("alice")[0]["under"] == "/memory" and log.asked("carol") == []
    folder = tmp_path / "avm.db.questions"
    for path, mode in ((folder, 0o700), (folder / "alice.jsonl", 0o600)):
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_no_more_are_kept_than_configured_by_whichever_process(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    for number in range(40):
        ask(log, f"q{number}")
        assert len(log._lines("alice")) <= 12
    assert [each["q"] for each in log.asked("alice")] == [f"q{number}" for number in range(39, 29, -1)]
    for number in range(40, 60):
        ask(log_of(tmp_path), f"q{number}")  # a program that asks once and ends
        assert len(log._lines("alice")) <= 12
    assert [each["q"] for each in log.asked("alice")] == [f"q{number}" for number in range(59, 49, -1)]


def test_nothing_is_kept_unless_it_is_configured_nor_of_keys_operators_or_what_is_too_long(tmp_path: Path) -> None:
    ask(log_of(tmp_path, 0), "x")
    log = log_of(tmp_path)
    ask(log, "x", Principal("alice", key=Key("k", None, ("search",))))
    ask(log, "x", Principal("alice", operator=True))
    ask(log, "x" * (LONGEST + 1))
    assert list(tmp_path.iterdir()) == []


def test_what_is_forgotten_is_gone_and_a_damaged_line_hides_no_other(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    ask(log, "one")
    file = tmp_path / "avm.db.questions/alice.jsonl"
    file.write_text(file.read_text() + '{"at": 1, "q": "cut o\n')
    ask(log, "two")
    assert [each["q"] for each in log.asked("alice")] == ["two", "one"]
    assert log.forget("alice") == 2 and not file.exists() and log.forget("alice") == 0


def test_a_log_that_cannot_be_written_spoils_no_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "avm.db.questions").write_text("in the way")
    ask(log_of(tmp_path), "x")
    assert "a question of alice is not kept" in caplog.text


# --- the door


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    config = tmp_path / "config.yaml"
    config.write_text("embedding: {enabled: false}\nsearch: {query_log: 10}\n")
    return changed_settings(config, {}, ())


@pytest.fixture
def door(tmp_path: Path, settings: Any) -> Iterator[LocalDoor]:
    door = LocalDoor(tmp_path / "avm.db", settings, "alice", embeddings=False)
    for note in NOTES:
        door.call("remember", content=note)
    yield door
    door.close()


def test_a_replay_finds_what_a_recall_with_these_weights_would_and_is_no_question(door: LocalDoor) -> None:
    whole = door.call("recall", q="coffee monday")
    same = door.call("replay", q="coffee monday", weights={})
    assert same["tokens"] == whole["tokens"] and len(same["paths"]) == whole["items"] == 3
    turned = door.call("replay", q="coffee monday", weights={"words": -10.0})
    assert turned["paths"] and turned["paths"] != same["paths"]
    assert door.call("replay", q="coffee monday", weights={}, max_tokens=1)["paths"] == []
    door.call("read", path="/:recall?q=coffee")
    door.call("recall", q="coffee monday")
    found = door.call("questions")
    assert [each["q"] for each in found["questions"]] == ["coffee monday", "coffee"] and found["kept"] == 3
    assert json.loads(door.call("read", path="/:savings")["data"])["recalls"] == 3


@pytest.mark.parametrize(
    "weights", [{"wrds": 1.0}, {"words": "1"}, {"words": True}, {"words": float("nan")}, {"words": 11}]
)
def test_bad_weights_are_refused_by_name(door: LocalDoor, weights: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=next(iter(weights))):
        door.call("replay", q="x", weights=weights)


def test_an_api_key_learns_nothing_of_what_its_agent_has_asked(door: LocalDoor, tmp_path: Path, settings: Any) -> None:
    door.call("recall", q="coffee")
    key = door.call("create_key")["key"]
    narrow = LocalDoor(tmp_path / "avm.db", settings, None, embeddings=False, key=key)
    try:
        narrow.call("recall", q="monday")
        for given in ({}, {"forget": True}):
            with pytest.raises(Denied):
                narrow.call("questions", **given)
    finally:
        narrow.close()
    assert [each["q"] for each in door.call("questions")["questions"]] == ["coffee"]


# --- the command


@pytest.fixture
def run(door: LocalDoor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("CONFIG", "DATA", "RUNTIME"):
        monkeypatch.setenv(f"AVM_{name}_DIR", str(tmp_path))
    monkeypatch.setenv("AVM_AGENT", "alice")

    def run(*line: str) -> Any:
        done = CliRunner().invoke(avm, ["bench", "mine", *line], standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return json.loads(done.output) if "--json" in line else done.output

    return run


def test_bench_mine_shows_what_a_setting_changes_for_the_questions_asked(door: LocalDoor, run: Run) -> None:
    door.call("recall", q="coffee monday")
    door.call("recall", q="release", max_tokens=500)
    same = run("--set", "search.weights.words=0.2", "--json")
    assert [each["q"] for each in same["queries"]] == ["release", "coffee monday"]
    assert same["summary"]["same"] == 2 and same["summary"]["overlap"] == 1.0
    nothing = run("--set", "search.max_tokens=1", "--json")
    release, coffee = nothing["queries"]
    assert release["moved"] == [], "it named its own budget"
    assert coffee["overlap"] == 0.0 and coffee["tokens"]["after"] <= 1 < coffee["tokens"]["before"]
    assert [(each["before"], each["after"]) for each in coffee["moved"]] == [(1, None), (2, None), (3, None)]
    text = run("--set", "search.max_tokens=1")
    assert "coffee monday" in text and "   1 -> -" in text and "2 questions, 1 answered alike; overlap 0.50" in text
    assert text.startswith("# semantic search unavailable: ")
    assert run("--set", "search.max_tokens=1", "-n", "1", "--json")["summary"]["queries"] == 1


def test_bench_mine_compares_two_files_and_refuses_what_it_cannot_replay(
    run: Run, door: LocalDoor, tmp_path: Path
) -> None:
    door.call("recall", q="coffee")
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("{}")
    new.write_text("search: {weights: {context: -1.0}, min_relevance: 1.0}")
    found = run("--before", str(old), "--after", str(new), "--json")
    assert found["summary"]["queries"] == 1 and found["queries"][0]["overlap"] < 1
    new.write_text("embedding: {engine: static}")
    with pytest.raises(Invalid, match="differ in embedding"):
        run("--before", str(old), "--after", str(new))
    with pytest.raises(Invalid, match="no such configuration file"):
        run("--after", os.fspath(tmp_path / "none.yaml"))


def test_bench_mine_forgets_on_request(run: Run, door: LocalDoor) -> None:
    door.call("recall", q="coffee")
    assert run("--forget") == "1 questions forgotten\n"
    assert "no questions are kept" in run("--set", "search.max_tokens=9")


# --- settings from the command line


def test_changes_are_laid_over_a_file_and_name_what_is_wrong_with_them(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("search: {weights: {cosine: 2.0}, max_tokens: 9}")
    found = changed_settings(file, {}, ["search.weights.words=0.5", "search.max_tokens=7"]).search
    assert (found.weights.cosine, found.weights.words, found.weights.context, found.max_tokens) == (2.0, 0.5, 0.7, 7)
    for change, said in (
        ("search.max_tokens", "expected KEY=VALUE"),
        ("search..x=1", "expected KEY=VALUE"),
        ("search.max_tokens=x", "search.max_tokens: expected a whole number"),
        ("srch.x=1", "did you mean search"),
        ("search.max_tokens.x=1", "nothing below"),
        ("search.weights=3", "expected a mapping"),
        ("search.max_tokens=[", "--set"),
    ):
        with pytest.raises(ConfigError, match=said):
            changed_settings(file, {}, [change])
    file.write_text("search: 3")
    with pytest.raises(ConfigError, match=r"config.yaml: search: expected a mapping"):
        changed_settings(file, {}, ["search.max_tokens=7"])
