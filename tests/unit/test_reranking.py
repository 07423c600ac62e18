"""A second opinion: a real cross-encoder, an endpoint that behaves and one that does not, and the order they make."""

from __future__ import annotations

import contextlib
import http.server
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from avmfs_config import RerankSettings, default_settings, load_settings
from avmfs_daemon import reranking as service
from avmfs_daemon.embedding import EmbeddingService, PipeEmbedder
from numpy.typing import NDArray

from avmfs.access import Principal
from avmfs.agents import reranking
from avmfs.agents.reranking import AT_ONCE, PAUSE_S, Endpoint
from avmfs.calls import within
from avmfs.embed import weights
from avmfs.embed.cache import QueryCache
from avmfs.embed.cross_encoder import CrossEncoder
from avmfs.embed.protocol import EmbeddingUnavailable, checked
from avmfs.rpc.local import LocalDoor
from avmfs.search.engine import Engine
from avmfs.search.forms import format_search
from avmfs.search.reranking import Second
from avmfs.text.tokens import TokenCounter
from tests import cross_encoders
from tests.unit.fakes import MemoryCorpus

ALICE = Principal("alice")
Q = "why is the car slow"
NOTES = {
    "/wash": "the car is clean, the car is red, the car is slow to dry",
    "/brake": "brake stuck in the automobile, which is a car",
    "/lunch": "noodles with chilli",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cross_encoders.make(tmp_path_factory.mktemp("models") / "tiny")


def engine(second: Second | None = None) -> Engine:
    made = MemoryCorpus(embed=False)
    for path, text in NOTES.items():
        made.add(path, text)
    return Engine(made.index, None, TokenCounter(), absent="words are enough here", second=second)


def paths_of(engine: Engine, **how: Any) -> list[str]:
    return [scored.hit.path.decode() for scored in engine.search(ALICE, Q, **how).hits]


class Fixed:
    """A Reranker that says what it is told to."""

    def __init__(self, figures: dict[str, float] | str) -> None:
        self.figures, self.asked = figures, 0

    def judged(self, question: str, texts: Sequence[str]) -> NDArray[np.float64]:
        self.asked += 1
        if isinstance(self.figures, str):
            raise EmbeddingUnavailable(self.figures)
        return np.array([max(v for k, v in self.figures.items() if k in text) for text in texts])


# The model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("figures", [1, 2])
def test_a_cross_encoder_reads_question_and_passage_together(tmp_path: Path, figures: int) -> None:
    model = CrossEncoder(cross_encoders.make(tmp_path / "tiny", figures), 60)
    many = ["brake stuck", "car car", "", "tea " * 700, "\ud800 brake", *["stuck"] * 20]
    said = model.judged("car slow", many)
    assert said.shape == (len(many),)
    assert said[0] > 0.9 and said[1] == pytest.approx(1 / (1 + np.exp(3))) and said[4] == pytest.approx(0.5)
    assert model.judged("stuck brake", ["car slow"])[0] < 0.1  # which of the two is asked makes a difference
    assert model.judged("car", []).shape == (0,)


def test_a_model_of_tokens_looks_for_each_word_of_the_question_in_the_passage(tmp_path: Path) -> None:
    folder = cross_encoders.make(tmp_path / "tiny", 0)
    model = CrossEncoder(folder, 60)
    said = model.judged("car slow", ["slow brake car", "car", "tea", "", "\ud800 brake", *["tea car"] * 20])
    assert said == pytest.approx([1, 0.5, 0, 0, 0, *[0.5] * 20])
    assert model.judged("car", ["car", "car tea"]).tolist() == [0, 0]  # how much better than the worst
    assert model.judged("", ["car"]).tolist() == [0] and model.judged("car", []).shape == (0,)
    with pytest.raises(EmbeddingUnavailable, match="not done within"):
        CrossEncoder(folder, -1).judged("car", ["brake"])


def test_the_folder_of_the_embedding_model_is_one() -> None:
    model = CrossEncoder(weights.resolve(allow_download=False).path, 60)
    notes = ["lunch is at noon", "Ann keeps the garage key", "the car stands in the garage"]
    said = model.judged("who has the key of the garage", notes)
    assert said[1] > said[2] + 0.1 and said[2] > said[0] + 0.1


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        (lambda folder: (folder / "model.onnx").unlink(), "no cross-encoder in .*expected tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "no cross-encoder in"),
        (lambda folder: (folder / "model.onnx").write_bytes(b"no model"), "cannot load the model in"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot load the model in"),
        (lambda folder: (folder / "tokenizer_config.json").write_text("{"), "cannot read .*tokenizer_config.json"),
    ],
)
def test_a_folder_without_a_usable_model_says_what_is_wrong(
    tmp_path: Path, spoilt: Callable[[Path], object], reason: str
) -> None:
    spoilt(cross_encoders.make(tmp_path / "tiny"))
    with pytest.raises(EmbeddingUnavailable, match=reason):
        CrossEncoder(tmp_path / "tiny", 60).judged("a", ["b"])


def test_a_model_that_gives_something_else_for_a_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddingUnavailable, match="one or two figures for a pair, not 3"):
        CrossEncoder(cross_encoders.make(tmp_path / "tiny", 3), 60).judged("a", ["b"])


def test_a_cross_encoder_gives_up_at_its_time_limit(folder: Path) -> None:
    model = CrossEncoder(folder, -1)
    with pytest.raises(EmbeddingUnavailable, match="not done within"):
        model.judged("car", ["brake"])


def test_figures_beyond_0_and_1_are_logits_and_what_is_no_figure_is_refused() -> None:
    assert checked([0.2, 0.4], 2).tolist() == [0.2, 0.4]
    assert checked([-1.0, 1.0], 2) == pytest.approx([0.2689, 0.7311], abs=1e-3)
    for wrong in ([0.1], [float("nan"), 0.1], [[0.1, 0.2]]):
        with pytest.raises(EmbeddingUnavailable, match="no figure for each of 2"):
            checked(np.array(wrong), 2)


# What becomes of the order --------------------------------------------------------------------------------------


def test_the_second_opinion_orders_the_best_hits_and_says_so(folder: Path) -> None:
    assert paths_of(engine())[0] == "/wash"
    second = Second(CrossEncoder(folder, 60), RerankSettings(model=folder))
    plain, answer = engine().search(ALICE, Q), engine(second).search(ALICE, Q)
    assert [scored.hit.path for scored in answer.hits][:2] == [b"/brake", b"/wash"]
    assert [hit.relevance for hit in answer.hits] == [hit.relevance for hit in plain.hits]
    assert all(hit.score == pytest.approx(sum(hit.parts.values())) for hit in answer.hits)
    assert answer.hits[0].parts["rerank"] > 0.8 * max(hit.score for hit in plain.hits)
    assert answer.degraded == "words are enough here"
    # Only what was found is read; recall has the same order, and the budget is as it was.
    assert paths_of(engine(second), one_per_document=False)[:2] == ["/brake", "/wash"]


def test_only_the_first_are_read_again() -> None:
    fixed = Fixed({"brake": 1.0, "clean": 0.0, "noodles": 0.0})
    assert paths_of(engine(Second(fixed, RerankSettings(top=1))))[0] == "/wash"
    assert paths_of(engine(Second(fixed, RerankSettings(weight=0.0))))[0] == "/wash"
    assert paths_of(engine(Second(fixed, RerankSettings(top=2))))[0] == "/brake"


def test_who_asks_for_words_or_for_meaning_alone_gets_them_and_nothing_found_asks_nobody() -> None:
    fixed = Fixed({"": 0.0, "brake": 1.0})
    assert paths_of(engine(Second(fixed, RerankSettings())), mode="lexical")[0] == "/wash"
    assert engine(Second(fixed, RerankSettings())).search(ALICE, "zeppelin").hits == ()
    assert fixed.asked == 0


@pytest.mark.parametrize(("best", "unit"), [(0.5, 0.5), (3.0, 1.0)])
def test_what_is_said_counts_in_shares_of_the_best_score_or_of_one(best: float, unit: float) -> None:
    hits = [replace(scored, score=best) for scored in engine().search(ALICE, Q).hits]
    said, _ = Second(Fixed({"": 0.8}), RerankSettings()).on(hits, Q)
    assert [scored.parts["rerank"] for scored in said] == pytest.approx([0.8 * unit] * len(hits)) and hits


def test_without_the_second_opinion_the_order_is_as_before_and_the_first_line_says_why() -> None:
    made = engine(Second(Fixed("no answer within 2 s"), RerankSettings()))
    answer = made.search(ALICE, Q)
    assert answer.hits[0].hit.path == b"/wash"
    assert answer.degraded == "words are enough here; re-ranker unavailable: no answer within 2 s"
    made._embedder = QueryCache(MemoryCorpus().embedder)  # with vectors, which nothing here has
    answer = Engine(made._index_for, None, made.counter, absent="x", second=made.second).search(ALICE, Q)
    assert format_search(answer).startswith("# semantic search unavailable: x; re-ranker unavailable: no answer")


def test_where_only_the_reranker_is_missing_the_line_speaks_of_it_alone() -> None:
    corpus = MemoryCorpus()
    for path, text in NOTES.items():
        corpus.add(path, text)
    made = Engine(corpus.index, corpus.embedder, TokenCounter(), second=Second(Fixed("broken"), RerankSettings()))
    assert format_search(made.search(ALICE, Q)).startswith("# re-ranker unavailable: broken\n[")


# The endpoint ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(
    answer: Callable[[http.server.BaseHTTPRequestHandler, dict[str, Any]], object],
) -> Iterator[tuple[str, list[Any]]]:
    """An address, and what was asked there: headers and body."""
    seen: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.path, dict(self.headers), body))
            with contextlib.suppress(OSError):
                answer(self, body)

        def log_message(self, *args: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        serving.daemon_threads = True
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{serving.server_port}/v1/rerank", seen
        finally:
            serving.shutdown()


def says(value: Any, status: int = 200, **headers: str) -> Callable[[http.server.BaseHTTPRequestHandler, Any], None]:
    def answer(handler: http.server.BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        handler.send_response(status)
        for name, given in headers.items():
            handler.send_header(name, given)
        handler.end_headers()
        found = value(body) if callable(value) else value
        handler.wfile.write(found if isinstance(found, bytes) else json.dumps(found).encode())

    return answer


def by_length(body: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [{"index": at, "relevance_score": len(text) / 100} for at, text in enumerate(body["documents"])]
    return rows[::-1]


@pytest.mark.parametrize(
    "shape",
    [
        lambda body: {"id": "x", "results": by_length(body), "meta": {}},  # Cohere, Jina, vLLM
        lambda body: {"object": "list", "data": by_length(body)},  # Voyage
        lambda body: [{"index": row["index"], "score": row["relevance_score"]} for row in by_length(body)],  # TEI
    ],
)
def test_an_endpoint_is_asked_as_cohere_is_and_answers_as_others_do(
    shape: Callable[[dict[str, Any]], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("s3cret\n")
    monkeypatch.setenv("RERANK_KEY", "other")
    with served(says(shape)) as (url, seen):
        settings = RerankSettings(endpoint=url, name="rerank-1", key_file=tmp_path / "key", timeout_s=60)
        assert Endpoint(settings).judged("q", ["a" * 10, "b" * 30]).tolist() == [0.1, 0.3]
        Endpoint(RerankSettings(endpoint=url, key_env="RERANK_KEY", timeout_s=60)).judged("q", ["a"])
    (path, headers, body), (_, later, unnamed) = seen
    assert (path, headers["Authorization"]) == ("/v1/rerank", "Bearer s3cret")
    assert body == {"model": "rerank-1", "query": "q", "documents": ["a" * 10, "b" * 30]}
    assert later["Authorization"] == "Bearer other" and "model" not in unnamed


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (says({}, 500), "answered 500"),
        (says({}, 401), "answered 401"),
        (says(b"<html>"), "not that of a /rerank"),
        (says({"results": "none"}), "not that of a /rerank"),
        (says({"results": [{"index": 0}]}), "not that of a /rerank"),
        (says({"results": [{"index": 0, "relevance_score": 0.5}]}), "no figure for each of 2"),
        (says({"results": [{"index": at, "relevance_score": 0.5} for at in (0, 2)]}), "no figure for each of 2"),
        (says({"results": [{"index": at, "relevance_score": 0.5} for at in (0, 1, 1)]}), "no figure for each of 2"),
        (says(b'[{"index":0,"score":NaN},{"index":1,"score":1}]'), "no figure for each of 2"),
        (says(b" " * 5_000_000), "more than 4194304 bytes"),
        (lambda handler, body: handler.connection.shutdown(2), "no answer in HTTP|cannot be reached"),
    ],
)
def test_an_endpoint_that_answers_wrongly_is_told_of(answer: Any, reason: str) -> None:
    with served(answer) as (url, _), pytest.raises(EmbeddingUnavailable, match=reason):
        Endpoint(RerankSettings(endpoint=url, timeout_s=60)).judged("q", ["a", "b"])


def test_a_redirect_is_not_followed_and_takes_no_key_along(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("s3cret")
    with served(says(by_length)) as (there, asked), served(says({}, 307, Location=there)) as (url, _):
        with pytest.raises(EmbeddingUnavailable, match="answered 307: redirects are not followed"):
            Endpoint(RerankSettings(endpoint=url, key_file=tmp_path / "key", timeout_s=60)).judged("q", ["a"])
        assert asked == []


def test_one_that_hangs_costs_its_time_limit_once_and_is_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    over, now = threading.Event(), [0.0]
    with served(lambda handler, body: says(by_length)(handler, body) if over.is_set() else over.wait(600) and None) as (
        url,
        _,
    ):
        endpoint = Endpoint(RerankSettings(endpoint=url, timeout_s=0.3), clock=lambda: now[0])
        waited: list[str] = []
        monkeypatch.setattr("avmfs.agents.reranking.within", lambda *given: waited.append("q") or within(*given))
        for _ in range(20):
            with pytest.raises(EmbeddingUnavailable, match=r"no answer within 0\.3 s"):
                endpoint.judged("q", ["a"])
        assert len(waited) == 1, "the first has waited, not all"
        over.set()
        endpoint._settings = RerankSettings(endpoint=url, timeout_s=60)
        now[0] = PAUSE_S + 1
        assert len(endpoint.judged("q", ["a"])) == 1


def test_questions_that_found_no_thread_keep_no_room() -> None:
    now = [0.0]
    with served(says(by_length)) as (url, _):
        endpoint = Endpoint(RerankSettings(endpoint=url, timeout_s=60), clock=lambda: now[0])
        with patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            for _ in range(AT_ONCE + 1):
                with pytest.raises(EmbeddingUnavailable, match="new thread"):
                    endpoint.judged("q", ["a"])
                now[0] += PAUSE_S + 1
        assert len(endpoint.judged("q", ["a"])) == 1


@pytest.mark.parametrize(
    ("url", "allow", "reason"),
    [
        ("http://10.1.2.3/rerank", (), "10.1.2.3 is no public address"),
        ("http://169.254.169.254/rerank", (), "is no public address"),
        ("http://[::ffff:10.1.2.3]/rerank", (), "is no public address"),
        ("http://127.0.0.1:1/rerank", (), "cannot be reached"),  # who wrote the configuration may name this machine
        ("http://2130706433/rerank", (), "four plain ones"),
    ],
)
def test_an_endpoint_is_where_a_webhook_of_the_operator_may_go(url: str, allow: tuple[str, ...], reason: str) -> None:
    with pytest.raises(EmbeddingUnavailable, match=reason):
        Endpoint(RerankSettings(endpoint=url, timeout_s=60), allow).judged("q", ["a"])


def test_a_key_that_is_not_there_is_an_error_that_names_its_place(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    url = "http://127.0.0.1:1/rerank"
    for more, reason in (
        ({"key_env": "NO_SUCH_KEY"}, "the variable NO_SUCH_KEY has no key"),
        ({"key_file": tmp_path / "none"}, "none: No such file"),
        ({"key_file": tmp_path / "empty"}, "empty has no key"),
    ):
        with pytest.raises(EmbeddingUnavailable, match=reason):
            Endpoint(RerankSettings(endpoint=url, **more)).judged("q", ["a"])


# In the daemon --------------------------------------------------------------------------------------------------


def wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_asks_the_supervisors_model_through_its_pipe(folder: Path) -> None:
    held = EmbeddingService()
    ours, theirs = multiprocessing.Pipe()
    held.serve(ours, "child")
    child = PipeEmbedder(theirs, 5.0, rerank_s=60)
    assert held.reranking.status() == {"state": "off"}
    with pytest.raises(EmbeddingUnavailable, match="none is configured"):
        child.judged("car", ["brake"])
    held.reranking.load(CrossEncoder(folder, 60))
    wait(lambda: held.reranking.status() == {"state": "ready", "name": "tiny"})
    assert child.judged("car", ["brake " * 200_000, "tea"]).argmax() == 0  # cut to what the pipe takes
    assert len(child.judged("car " * 200_000, ["tea"] * 200)) == 200
    theirs.close()


@pytest.mark.logs("no re-ranker")
def test_a_model_that_cannot_be_loaded_is_tried_again_and_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RETRY_S", (0.05,))
    held = service.RerankService()
    held.load(CrossEncoder(tmp_path / "tiny", 60))
    wait(lambda: held.status()["state"] == "failed")
    assert "no cross-encoder in" in held.status()["reason"]
    with pytest.raises(EmbeddingUnavailable, match="no cross-encoder in"):
        held.judged("a", ["b"])
    cross_encoders.make(tmp_path / "tiny")
    wait(lambda: held.status()["state"] == "ready")
    held.load(None)
    assert held.status() == {"state": "off"}


def test_without_a_daemon_the_model_is_asked_in_the_process_itself(folder: Path, tmp_path: Path) -> None:
    assert reranking.made(default_settings()) is None
    (tmp_path / "config.yaml").write_text(
        f"embedding: {{enabled: false}}\nsearch: {{rerank: {{model: {folder}, timeout_s: 60}}}}\n"
    )
    settings = load_settings(tmp_path / "config.yaml", {})
    door = LocalDoor(tmp_path / "avm.db", settings, "alice")
    try:
        for path, text in NOTES.items():
            door.call("remember", content=text, path=f"/memory{path}.md")
        assert [hit["path"] for hit in door.call("search", q=Q)["hits"]][:1] == ["/memory/brake.md"]
        assert "rerank" in door.call("read", path=f"/:why?q={Q}")["data"].decode()
    finally:
        door.close()
