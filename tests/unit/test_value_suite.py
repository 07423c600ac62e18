"""The value suite can tell a good memory from a bad one, survives its endpoints, and goes on where it was stopped."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final, cast

import pytest

from avmfs.evaluation import models
from avmfs.evaluation.grading import Assertion, grade, judged
from avmfs.evaluation.models import DO_NOT_KNOW, Endpoint, ModelError, OfflineReader, Reply, silent
from avmfs.text.tokens import TokenCounter
from benchmarks import bench_agent_efficiency, bench_value
from benchmarks.figures import BenchmarkError
from benchmarks.results import read_json
from benchmarks.value import suite
from benchmarks.value.scenario import Scenario, load
from benchmarks.value.suite import Verdict

COUNTER = TokenCounter()
BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


def named(name: str) -> Scenario:
    return next(one for one in load() if one.id == name)


def test_the_scenarios_are_those_that_the_documents_speak_of() -> None:
    everything = load()
    assert Counter(one.category for one in everything) == {
        "collaborative_coding": 10,
        "knowledge_retrieval": 15,
        "information_sync": 10,
        "real_world": 5,
        "context_overflow": 8,
    }
    assert sum(len(one.assertions) for one in everything if one.category == "knowledge_retrieval") >= 50
    assert len({one.id for one in everything}) == len(everything)
    for one in everything:  # each is answerable by its gold answer's own events, or asserts silence
        told = " ".join(event.text for event in one.events).lower()
        for assertion in one.assertions:
            assert not assertion.has or any(word.lower() in told for word in assertion.has), (one.id, assertion)
        held = grade(one.assertions, one.question)  # who says the question again has shown nothing
        assert not any(each.has and right for each, right in zip(one.assertions, held, strict=True)), one.id


ASK = "ask: {by: a, at: 2026-01-01, question: q}, answer: y"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: 1", "a list of scenarios"),
        (f"- {{id: x, story: s, events: [], {ASK}}}", "x: without 'assert'"),
        ("- {id: x, storey: s}", "x: unknown: storey"),
        (f"- {{id: x, story: s, events: [{{by: a, att: 1}}], {ASK}, assert: [{{silent: true}}]}}", "an event with att"),
        (
            f"- {{id: x, story: s, events: [], {ASK}, assert: [{{has: [a], lacks: [b]}}]}}",
            "one of has, lacks, silent, first",
        ),
    ],
)
def test_a_bad_scenario_is_named(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(BenchmarkError, match=what) as raised:
        load(tmp_path)
    assert "bad.yaml" in str(raised.value)


def test_what_is_said_of_what_is_asserted() -> None:
    asserted = [Assertion(has=("32",)), Assertion(lacks=("97,000",)), Assertion(silent=True)]
    assert grade(asserted, "The pool has 32.") == (True, True, False)
    assert grade(asserted, "The pool has 132, and costs 97,000.") == (False, False, False)
    assert grade(asserted, DO_NOT_KNOW) == (False, False, True)
    asserted = [Assertion(first=("Friday", "is on Tuesday"))]
    assert grade(asserted, "It is Friday; it is on Tuesday no more.") == grade(asserted, "Friday") == (True,)
    assert grade(asserted, "It is on Tuesday, not Friday") == grade(asserted, "It is on Tuesday") == (False,)
    assert grade([Assertion(has=("三十一",))], "改为三十一号。") == (True,)
    assert silent("I do not have that information") and not silent("They do not store it in Lisbon")


def test_right_answers_pass_and_those_to_other_questions_do_not() -> None:
    everything = load()
    for other, one in zip([*everything[1:], everything[0]], everything, strict=True):
        assert all(grade(one.assertions, one.answer)), (one.id, one.answer)
        assert not all(grade(one.assertions, other.answer)), (one.id, other.answer)
        assert all(grade(one.assertions, DO_NOT_KNOW)) == (one.id == "nobody-knows"), one.id


def test_the_window_holds_the_newest_turns() -> None:
    scenario = named("still-in-view")
    kept = suite.conversation(scenario, COUNTER)
    assert COUNTER.count(kept) <= (scenario.window or 0) and "15:52" in kept
    assert "security@" not in suite.conversation(named("long-conversation"), COUNTER)
    assert "security@" in suite.conversation(replace(named("long-conversation"), window=None), COUNTER)


@pytest.mark.slow
def test_a_memory_that_hands_over_nothing_or_something_wrong_scores_less(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [one for one in load() if one.category == "knowledge_retrieval"]

    def score(memory: Any) -> int:
        monkeypatch.setattr(suite, "recalled", memory)
        answers = suite.run(chosen, OfflineReader(COUNTER.count), None, None, 2)
        return sum(sum(one.verdict.passed) for one in answers if one.arm == "avmfs" and one.verdict)

    whole = score(lambda one, folder: "\n".join(event.text for event in one.events if not event.private))
    empty = score(lambda one, folder: "")
    others = score(lambda one, folder: "\n".join(event.text for event in named("trading-desk").events))
    assert whole > 40 and empty <= 1 and others <= 2


def test_the_store_hands_over_what_others_noted_and_nothing_private(tmp_path: Path) -> None:
    scenario = named("private-stays-private")
    text = suite.recalled(scenario, tmp_path)
    assert "80,000 to 88,000" in text and "97,000" not in text


@pytest.mark.parametrize("kind", bench_agent_efficiency.KINDS)
def test_of_all_notes_of_a_kind_each_question_is_answered_by_one(kind: str) -> None:
    notes = [bench_agent_efficiency.KINDS[kind](random.Random(kind), number) for number in range(500)]
    assert len({note.question for note in notes}) == 500


@pytest.mark.parametrize(
    "script",
    ["bench_paper", "bench_agent_efficiency", *sorted(each.stem for each in BENCHMARKS.glob("run_*.py"))],
)
def test_the_scripts_of_the_documents_run_by_their_names(script: str) -> None:
    command = [sys.executable, f"{script}.py", "--help"]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "--quick" in done.stdout, done.stderr


# ---- endpoints ----


CUT: Final = object()
"""A body that ends in its middle."""


@dataclass
class Stub:
    """An endpoint that answers each request with the next of its replies, (status, body)."""

    replies: list[tuple[int, Any]]
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    location: str = ""
    hanging: threading.Event = field(default_factory=threading.Event)
    """Set once it has no reply left: it answers nothing more until ``going_on``, and then that request not at all."""
    going_on: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setattr(models, "FIRST_PAUSE_S", 0.0)
    found = Stub([])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            found.asked.append({"path": self.path, "headers": headers, "body": body})
            if not found.replies:
                found.hanging.set()
                found.going_on.wait(120)
                return
            status, reply = found.replies.pop(0)
            if reply is CUT:
                self.send_response(status)
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                self.wfile.write(b"64\r\n{")
                return
            data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            if found.location:
                self.send_header("location", found.location)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def openai(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


def test_a_rate_limit_and_a_broken_reply_are_tried_again(stub: Stub) -> None:
    stub.replies = [(429, {}), (503, {}), (200, b"no json"), (200, openai("order_ref"))]
    reply = Endpoint("openai", f"{stub.url}/v1", "m", "secret").ask("shown", "which?")
    assert reply == Reply("order_ref", 7, 2)
    last = stub.asked[-1]
    assert len(stub.asked) == 4 and last["path"] == "/v1/chat/completions"
    assert last["headers"]["authorization"] == "Bearer secret" and "shown" in last["body"]["messages"][1]["content"]


def test_an_endpoint_that_hangs_up_in_the_middle_of_a_body_is_asked_again_and_ends_no_run(stub: Stub) -> None:
    endpoint = Endpoint("openai", stub.url, "m", "secret")
    stub.replies = [(200, CUT), (503, CUT), (200, openai("order_ref"))]
    assert endpoint.ask("shown", "which?").text == "order_ref" and len(stub.asked) == 3
    stub.replies = [(200, CUT)] * models.ATTEMPTS
    with pytest.raises(ModelError, match="IncompleteRead"):
        endpoint.ask("shown", "which?")


def test_what_is_refused_is_an_error_at_once_and_never_shows_the_key(stub: Stub) -> None:
    stub.replies = [(401, {"error": "no such key"})]
    with pytest.raises(ModelError, match="401") as raised:
        Endpoint("openai", stub.url, "m", "secret").ask("", "which?")
    assert len(stub.asked) == 1 and "secret" not in str(raised.value)
    stub.replies = [(200, {"choices": []})]
    with pytest.raises(ModelError, match="no answer in"):
        Endpoint("openai", stub.url, "m", "secret").ask("", "which?")


def test_a_key_that_no_header_can_carry_is_an_error_that_does_not_show_it(stub: Stub) -> None:
    with pytest.raises(ModelError, match="the key has characters") as raised:
        Endpoint("openai", stub.url, "m", "secret\r\nx: y").ask("", "which?")
    assert "secret" not in str(raised.value) and not stub.asked
    stub.replies = [(200, openai("order_ref"))]
    Endpoint("openai", stub.url, "m", "secret\n").ask("", "which?")
    assert stub.asked[0]["headers"]["authorization"] == "Bearer secret"


def test_the_key_goes_to_no_other_host(stub: Stub) -> None:
    stub.replies = [(302, {})]
    stub.location = "http://127.0.0.1:1/"
    with pytest.raises(ModelError, match="302"):
        Endpoint("openai", stub.url, "m", "secret").ask("", "which?")


@pytest.mark.parametrize(
    ("kind", "path", "header"),
    [("anthropic", "/v1/messages", "x-api-key"), ("azure", "/openai/deployments/m/chat/completions", "api-key")],
)
def test_the_other_formats(stub: Stub, kind: str, path: str, header: str) -> None:
    anthropic = {"content": [{"type": "text", "text": "yes"}], "usage": {"input_tokens": 7, "output_tokens": 2}}
    stub.replies = [(200, anthropic if kind == "anthropic" else openai("yes"))]
    assert Endpoint(kind, stub.url, "m", "secret").ask("", "is it?") == Reply("yes", 7, 2)
    assert stub.asked[0]["path"].startswith(path) and stub.asked[0]["headers"][header] == "secret"


def test_a_judge_that_fails_leaves_the_assertions_and_says_so(stub: Stub) -> None:
    judge = Endpoint("openai", stub.url, "m", "")
    stub.replies = [(200, openai('Well: {"right": false, "why": "another field"}')), (200, openai("Sure!"))]
    stub.replies += [(200, openai('{"right": "false"}')), (400, {})]
    assert judged(judge, "which?", "order_ref", "x")[:2] == (False, "another field")
    for _ in range(2):
        right, why, _ = judged(judge, "which?", "order_ref", "x")
        assert right is None and why.startswith("judge not understood")
    right, why, cost = judged(judge, "which?", "order_ref", "x")
    assert right is None and why.startswith("judge failed") and cost == Reply("", 0, 0)


# ---- going on ----


@dataclass
class Counting:
    """A model that says which questions it was asked, and fails for some."""

    failing: Sequence[str] = ()
    asked: list[str] = field(default_factory=list)
    name: str = "counting"

    def ask(self, shown: str, question: str) -> Reply:
        self.asked.append(question)
        if question in self.failing:
            raise ModelError("out of reach")
        return Reply("order_ref", 1, 1)


def test_a_run_goes_on_where_it_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "recalled", lambda one, folder: "")
    kept = tmp_path / "answers.jsonl"
    first, second = named("api-contract"), named("told-in-the-room")
    model = Counting(failing=[second.question])
    before = list(suite.run([first, second], model, None, kept, 1))
    assert sorted(one.error for one in before) == ["", "", "out of reach", "out of reach"]
    kept.write_bytes(kept.read_bytes() + b'{"key": "half a li')  # as a kill leaves it
    again = Counting()
    after = list(suite.run([first, second], again, None, kept, 1))
    assert again.asked == [second.question] * 2, "what was answered is not asked again, what failed is"
    assert {(one.scenario, one.arm) for one in after} == {
        (one.id, arm) for one in (first, second) for arm in suite.ARMS
    }
    assert all(one.verdict is not None for one in after)
    another = Counting(name="another")
    assert len(list(suite.run([first], another, None, kept, 1))) == len(another.asked) == 2
    kept.write_text('{"key": 1}\n')
    with pytest.raises(BenchmarkError, match="line 1"):
        list(suite.run([first], again, None, kept, 1))


KEYS = """from avmfs.evaluation.models import Endpoint
from benchmarks import academic
from benchmarks.value import scenario, suite
model = Endpoint("openai", "http://h/v1", "m", "secret")
print([suite._key(one, arm, model, model) for one in scenario.load() for arm in suite.ARMS])
talks = academic.load(suite.Path("benchmarks/data/locomo.json"))
print([suite.key_of(question, each.turns, model) for each in talks for question in each.questions])"""


def test_what_an_answer_is_kept_under_is_the_same_in_the_next_process_and_names_what_it_depends_on() -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", KEYS],
            cwd=BENCHMARKS.parent,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=300,
        )
        for seed in ("1", "2")
    ]
    assert said[0].returncode == 0 and said[0].stdout == said[1].stdout, said[0].stderr
    model, one = Endpoint("openai", "http://h/v1", "m", "secret"), named("api-contract")
    others = [replace(model, kind="azure"), replace(model, url="http://i/v1"), replace(model, max_tokens=40)]
    assert len({suite._key(one, "avmfs", each, None) for each in (model, *others)}) == 4
    assert suite._key(one, "avmfs", replace(model, key="another"), None) == suite._key(one, "avmfs", model, None)


WITHOUT_RECALL = """import sys
from avmfs.evaluation import models
from benchmarks import bench_value
from benchmarks.value import suite
suite.recalled, models.FIRST_PAUSE_S = lambda scenario, folder: "", 0.01
sys.exit(bench_value.main(sys.argv[1:]))"""


def test_a_killed_run_goes_on_past_rate_limits_and_errors_and_counts_what_it_cost(stub: Stub, tmp_path: Path) -> None:
    stub.replies = [(429, {}), (200, openai("one")), (500, {}), (200, openai("two"))]
    command = [
        sys.executable,
        "-c",
        WITHOUT_RECALL,
        "--categories",
        "real_world",
        "--endpoint",
        stub.url,
        "--model",
        "m",
    ]
    command += ["--threads", "1", "--answers", str(tmp_path / "answers"), "--json", str(tmp_path / "found.json")]
    command += ["--price-in", "1000000", "--price-out", "2000000", "--local", str(tmp_path)]
    running = subprocess.Popen(command, cwd=BENCHMARKS.parent, stdout=subprocess.DEVNULL)
    assert stub.hanging.wait(120), "it never came to the fifth request"
    answers, limit = tmp_path / "answers", time.monotonic() + 120
    while answers.read_text().count("\n") < 2 and time.monotonic() < limit:  # what was answered is noted beside it
        time.sleep(0.02)
    running.kill()  # while an answer is under way
    assert running.wait() == -signal.SIGKILL
    kept = answers.read_text().splitlines()
    assert [json.loads(line)["text"] for line in kept] == ["one", "two"]
    stub.replies = [(200, openai(f"again {number}")) for number in range(8)]
    stub.going_on.set()
    done = subprocess.run(command, cwd=BENCHMARKS.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    (tokens,) = (table for table in found["tables"] if table["title"] == "tokens")
    assert [row[1:3] for row in tokens["rows"]] == [[35, 10], [35, 10]], "five answers of 7 and 2 tokens in each arm"
    assert [row[4] for row in tokens["rows"]] == [35 + 20, 35 + 20]
    assert stub.replies == [], "what had been answered was not asked again"


def test_a_judge_is_asked_as_one_costs_what_it_costs_and_is_seen_to_fail(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "recalled", lambda one, folder: "")
    words = ["--scenarios", "api-contract", "--threads", "1", "--endpoint", stub.url, "--model", "m", "--judge"]
    words += ["--max-answer", "40", "--price-in", "1000000", "--price-out", "0", "--local", str(tmp_path)]
    words += ["--answers", str(tmp_path / "answers"), "--json", str(tmp_path / "found.json")]

    def run() -> tuple[list[Any], int]:
        assert bench_value.main(words) == 0
        right, tokens, _ = read_json(tmp_path / "found.json").tables
        by = dict(zip(right.columns, right.rows[-1], strict=True))
        columns = [f"{arm}: {what}" for arm in suite.ARMS for what in ("judged", "judge failed")]
        return [by[one] for one in columns], round(sum(cast(float, row[4]) for row in tokens.rows))

    said = [openai(text) for text in ("order_ref", '{"right": true}', "order_ref", "Sure!")]
    stub.replies = [(200, one) for one in said]
    assert run() == (["1/1", 0, "0/0", 1], 7 * 4)
    answering, judging = (one["body"] for one in stub.asked[:2])
    assert answering["max_tokens"] == 40 < judging["max_tokens"]
    assert DO_NOT_KNOW in answering["messages"][0]["content"] and DO_NOT_KNOW not in judging["messages"][0]["content"]
    stub.replies = [(200, openai('{"right": false}'))]
    assert run() == (["1/1", 0, "0/1", 0], 7 * 5), "the judge alone is asked again"
    assert run() == (["1/1", 0, "0/1", 0], 7 * 5) and len(stub.asked) == 5


def test_a_verdict_is_right_only_when_all_that_is_asserted_holds() -> None:
    assert suite.Answer("s", "c", "avmfs", verdict=Verdict((True, True))).right
    assert not suite.Answer("s", "c", "avmfs", verdict=Verdict((True, False))).right
    assert not suite.Answer("s", "c", "avmfs", error="none").right
