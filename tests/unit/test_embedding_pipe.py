"""The embedding pipes: one model for all, and no child can spoil it for another."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from avmfs_daemon import embedding, reranking
from avmfs_daemon.embedding import INDEX_BATCH, LOADING, OFF, TEXT_BYTES, EmbeddingService, PipeEmbedder

from avmfs import calls, wire
from avmfs.embed.protocol import Batch, Embedder, EmbeddingUnavailable
from avmfs.errors import Interrupted
from tests.hashing import HashingEmbedding


class Gated:
    """An engine that computes only while its gate is open, and remembers each batch."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[tuple[int, bool]] = []

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
        assert self.gate.wait(300)
        self.batches.append((len(texts), urgent))
        return HashingEmbedding().embed_batch(texts)


Connect = Callable[[], Connection]


@pytest.fixture
def service() -> EmbeddingService:
    service = EmbeddingService()
    load(service, HashingEmbedding())
    return service


@pytest.fixture
def connect(service: EmbeddingService) -> Iterator[Connect]:
    ends: list[Connection] = []

    def new() -> Connection:
        ours, theirs = multiprocessing.Pipe()
        ends.append(theirs)
        service.serve(ours, f"child {len(ends)}")
        return theirs

    yield new
    for end in ends:
        end.close()


def load(service: EmbeddingService, engine: Embedder) -> None:
    service.load(lambda: engine)
    wait(lambda: service.status()["state"] == "ready")


def wait(condition: Callable[[], bool], limit_s: float = 200.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "nothing happened in time"
        time.sleep(0.005)


def embedder(connection: Connection, timeout_s: float = 200.0) -> PipeEmbedder:
    return PipeEmbedder(connection, timeout_s)


def assert_serves(connect: Connect) -> None:
    batch = embedder(connect()).embed_batch(["still here"])
    assert batch.vectors.shape == (1, 64)


def closed(connection: Connection) -> bool:
    """Whether the service has closed its end (replies that are still in the pipe are skipped)."""
    with contextlib.suppress(EOFError, OSError):
        while connection.poll(5):
            connection.recv_bytes()
        return False
    return True


def test_vectors_are_those_of_the_engine(connect: Connect) -> None:
    texts = ["alpha beta", "gamma", "\udcff broken", ""]
    batch = embedder(connect()).embed_batch(texts)
    expected = HashingEmbedding().embed_batch(["alpha beta", "gamma", "? broken", ""])
    assert batch.model == expected.model
    assert batch.vectors.dtype == np.float32
    np.testing.assert_array_equal(batch.vectors, expected.vectors)


def test_no_texts_give_an_empty_matrix_of_the_right_width(connect: Connect) -> None:
    assert embedder(connect()).embed_batch([]).vectors.shape == (0, 64)


def test_more_and_longer_texts_than_a_request_holds_are_sent_in_parts(connect: Connect) -> None:
    texts = [f"word{number} " * 9000 for number in range(40)] + [f"short {number}" for number in range(700)]
    batch = embedder(connect(), 200).embed_batch(texts)
    assert batch.vectors.shape == (740, 64)
    cut = [text[:TEXT_BYTES] for text in texts]
    np.testing.assert_array_equal(batch.vectors, HashingEmbedding().embed_batch(cut).vectors)


def test_texts_of_a_length_are_computed_together_and_vectors_come_in_the_order_asked(
    service: EmbeddingService, connect: Connect
) -> None:
    class Listening(Gated):
        def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
            lengths.append([len(text) for text in texts])
            return super().embed_batch(texts, urgent=urgent)

    lengths: list[list[int]] = []
    load(service, Listening())
    texts = [f"word{number} " * (1 + number * 7 % 11) for number in range(3 * INDEX_BATCH)]
    vectors = embedder(connect()).embed_batch(texts).vectors
    np.testing.assert_array_equal(vectors, HashingEmbedding().embed_batch(texts).vectors)
    assert [len(batch) for batch in lengths[-3:]] == [INDEX_BATCH] * 3
    assert [length for batch in lengths[-3:] for length in batch] == sorted(len(text) for text in texts)


def test_info_names_model_and_dimension(connect: Connect) -> None:
    assert embedder(connect()).info() == ("hashing-64", 64)


def ask(texts: Any = ("x",), **other: Any) -> bytes:
    return wire.pack({"id": 1, "op": "embed", "texts": texts, "urgent": False} | other)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os._exit, (7,))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xc1\xc1 no msgpack", id="garbage"),
        pytest.param(b"", id="nothing"),
        pytest.param(pickle.dumps(Bomb()), id="pickle"),
        pytest.param(wire.pack(["not", "a", "map"]), id="no map"),
        pytest.param(wire.pack({"id": 1}), id="no operation"),
        pytest.param(wire.pack({"id": 1, "op": "exec"}), id="unknown operation"),
        pytest.param(ask(id=True), id="id is a boolean"),
        pytest.param(ask(id="1"), id="id is text"),
        pytest.param(ask(id=None), id="no id"),
        pytest.param(ask("text"), id="texts is text"),
        pytest.param(ask([b"bytes"]), id="bytes"),
        pytest.param(ask([1, None, [], {}]), id="no texts"),
        pytest.param(ask(["x"] * 257), id="too many texts"),
        pytest.param(ask(["x" * (TEXT_BYTES + 1)]), id="text too long"),
        pytest.param(ask(urgent=1), id="urgent is a number"),
        pytest.param(ask(asker=1), id="asker is a number"),
        pytest.param(ask(surprise=1), id="unknown key"),
        pytest.param(b"\x91" * 100_000, id="deeply nested"),
    ],
)
def test_a_bad_request_costs_the_sender_its_pipe_and_nobody_else(connect: Connect, data: bytes) -> None:
    hostile = connect()
    hostile.send_bytes(data)
    assert closed(hostile)
    assert_serves(connect)


def test_an_oversize_frame_is_refused_before_it_is_read(connect: Connect) -> None:
    hostile = connect()
    os.write(hostile.fileno(), struct.pack("!i", 0x7FFFFFFF))
    assert closed(hostile)
    enormous = connect()
    os.write(enormous.fileno(), struct.pack("!iQ", -1, 1 << 60))
    assert closed(enormous)
    assert_serves(connect)


def test_half_a_frame_keeps_nobody_else_waiting(connect: Connect) -> None:
    hostile = connect()
    os.write(hostile.fileno(), struct.pack("!i", 1000) + b"half")
    assert_serves(connect)


def test_a_child_that_floods_and_never_reads_is_stuck_alone(connect: Connect) -> None:
    hostile = connect()
    os.set_blocking(hostile.fileno(), False)
    frame = ask(["x"] * 256)
    frame = struct.pack("!i", len(frame)) + frame
    sent = 0
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        try:
            sent += os.write(hostile.fileno(), frame)
        except BlockingIOError:
            time.sleep(0.01)
    assert sent < 10_000_000  # back-pressure: the service does not hoard what it cannot answer
    started = time.monotonic()
    assert_serves(connect)
    assert time.monotonic() - started < 200


def test_a_process_killed_in_the_middle_of_a_request_disturbs_nobody(
    service: EmbeddingService, connect: Connect
) -> None:
    gated = Gated()
    load(service, gated)
    gated.gate.clear()
    ours, theirs = multiprocessing.Pipe()
    service.serve(ours, "victim")
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=ask_and_wait, args=(theirs,))
    process.start()
    theirs.close()
    wait(lambda: service.status()["texts"] == 1)
    process.kill()
    process.join(300)
    gated.gate.set()
    assert_serves(connect)


def ask_and_wait(connection: Connection) -> None:
    connection.send_bytes(ask())
    time.sleep(60)


def test_small_requests_of_many_children_are_computed_together(service: EmbeddingService, connect: Connect) -> None:
    gated = Gated()
    load(service, gated)
    gated.gate.clear()
    children = [connect() for _ in range(20)]
    for child in children:
        child.send_bytes(ask(urgent=True))
    wait(lambda: service.status()["texts"] == 20)
    gated.gate.set()
    for child in children:
        assert "vectors" in wire.unpack(child.recv_bytes())
    assert len(gated.batches) <= 4  # the probe, what came first, the rest


def test_a_question_is_remembered_for_who_asked_it_alone(service: EmbeddingService, connect: Connect) -> None:
    gated = Gated()
    load(service, gated)
    first, second = embedder(connect()), embedder(connect())
    for child, asker in ((first, "alice"), (first, "bob"), (second, "alice"), (second, "bob")):
        child.embed_batch(["shall we acquire acme"], urgent=True, asker=asker)
    assert gated.batches[1:] == [(1, True)] * 2, "beside the probe"


def test_a_query_overtakes_indexing(service: EmbeddingService, connect: Connect) -> None:
    """Each batch of what was written waits at a gate of its own; the query has to come through while one does."""
    stopped, on = threading.Semaphore(0), threading.Semaphore(0)
    sizes: list[int] = []

    class Stepwise:
        def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
            if not urgent:
                sizes.append(len(texts))
                stopped.release()
                assert on.acquire(timeout=300)
            return HashingEmbedding().embed_batch(texts)

    load(service, Stepwise())
    indexer, asker = connect(), connect()
    indexer.send_bytes(ask(["x"] * 200))
    assert stopped.acquire(timeout=300), "the first of what was written is being embedded"
    asker.send_bytes(ask(urgent=True))
    assert asker.poll(200), "the query waits for what was written"
    assert len(sizes) == 1 and not indexer.poll(0)
    on.release(200)
    assert indexer.poll(200)
    assert sum(sizes) == 200 and max(sizes) <= INDEX_BATCH


def test_while_the_model_loads_the_answer_comes_at_once() -> None:
    service, gate = EmbeddingService(), threading.Event()

    def slow() -> Embedder:
        gate.wait(300)
        return HashingEmbedding()

    service.load(slow)
    ours, theirs = multiprocessing.Pipe()
    service.serve(ours, "child")
    with theirs, pytest.raises(EmbeddingUnavailable, match=LOADING):
        embedder(theirs).embed_batch(["x"])
    gate.set()


def test_a_query_waits_for_a_load_and_not_for_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    service, found, gate = EmbeddingService(), threading.Event(), threading.Event()

    class Slow(HashingEmbedding):
        def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
            assert gate.wait(300)
            return super().embed_batch(texts, urgent=urgent)

    def factory() -> Embedder:
        assert found.wait(300)
        return Slow()

    def later(*events: threading.Event) -> None:
        for number, event in enumerate(events, 1):
            threading.Timer(0.2 * number, event.set).start()

    service.load(factory)
    ours, theirs = multiprocessing.Pipe()
    service.serve(ours, "child")
    with theirs:
        asking = embedder(theirs)
        later(found, gate)
        assert asking.embed_batch(["the first question"], urgent=True).vectors.shape == (1, 64)
        gate.clear()
        service.load(factory)  # a machine that is busy, or compiles what it has just been given
        wait(lambda: service._found)
        service._began -= 100
        later(gate)
        assert asking.embed_batch(["a question that comes late"], urgent=True).vectors.shape == (1, 64)
        gate.clear()
        service.load(factory)
        monkeypatch.setattr(embedding, "WAITED_S", 0.1)
        with pytest.raises(EmbeddingUnavailable, match=LOADING):
            asking.embed_batch(["one that has waited enough"], urgent=True)
        monkeypatch.setattr(embedding, "WAITED_S", 10_000)
        found.clear()
        service.load(factory)
        service._began -= embedding.FOUND_WITHIN_S  # a download
        with pytest.raises(EmbeddingUnavailable, match=LOADING):
            asking.embed_batch(["another question"], urgent=True)
        found.set()
        gate.set()


def test_a_question_that_nobody_waits_for_any_more_ends_while_the_model_loads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedding, "WAITED_S", 10_000)
    gate, service, call = threading.Event(), EmbeddingService(), calls.Call()

    def factory() -> Embedder:
        gate.wait()
        return HashingEmbedding()

    service.load(factory)
    ours, theirs = multiprocessing.Pipe()
    service.serve(ours, "child")
    monkeypatch.setattr(calls.working, "call", call, raising=False)
    with theirs:
        threading.Timer(0.1, call.give_up).start()
        embedder = PipeEmbedder(theirs, 10_000)
        with pytest.raises(Interrupted):
            embedder.embed_batch(["a question"], urgent=True)
        gate.set()
        monkeypatch.delattr(calls.working, "call")
        assert embedder.info()[1]  # behind the other's answer, so that nothing reads the pipe when it is closed


def test_a_load_that_failed_is_tried_again_and_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reranking, "RETRY_S", (0.01,))
    tries = []

    def down() -> Embedder:
        tries.append(1)
        if len(tries) < 4:
            raise EmbeddingUnavailable("the hub is down")
        return HashingEmbedding()

    service = EmbeddingService()
    service.load(down)
    wait(lambda: service.status()["state"] == "ready")
    assert len(tries) == 4 and "reason" not in service.status()
    assert [each.levelname for each in caplog.records if "the hub is down" in each.message] == ["ERROR"]


def test_another_load_ends_the_tries_of_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reranking, "RETRY_S", (0.01,))
    tries = []

    def down() -> Embedder:
        tries.append(1)
        raise EmbeddingUnavailable("the hub is down")

    service = EmbeddingService()
    service.load(down)
    wait(lambda: len(tries) > 2)
    load(service, HashingEmbedding())
    wait(lambda: not any(each.name == "load model" for each in threading.enumerate()))
    assert service.status()["state"] == "ready"


def test_an_engine_that_cannot_be_loaded_is_reported() -> None:
    service = EmbeddingService()

    def broken() -> Embedder:
        raise EmbeddingUnavailable("no weights anywhere")

    service.load(broken)
    wait(lambda: service.status()["state"] == "failed")
    assert service.status()["reason"] == "no weights anywhere"


def test_a_service_that_is_turned_off_says_so(service: EmbeddingService, connect: Connect) -> None:
    service.load(None)
    with pytest.raises(EmbeddingUnavailable) as caught:
        embedder(connect()).embed_batch(["x"])
    assert caught.value.reason == OFF


def test_an_engine_that_raises_fails_that_request_only(service: EmbeddingService, connect: Connect) -> None:
    class Moody(HashingEmbedding):
        def embed_batch(self, texts: Sequence[str], *, urgent: bool = False) -> Batch:
            if "bad" in texts:
                raise RuntimeError("out of memory")
            return super().embed_batch(texts)

    load(service, Moody())
    child = embedder(connect())
    with pytest.raises(EmbeddingUnavailable, match="the engine failed: RuntimeError"):
        child.embed_batch(["bad"])
    assert child.embed_batch(["good"]).vectors.shape == (1, 64)


def test_a_slow_service_costs_the_caller_its_time_limit_and_the_late_reply_is_dropped(
    service: EmbeddingService, connect: Connect
) -> None:
    gated = Gated()
    load(service, gated)
    child = embedder(connect(), timeout_s=0.2)
    gated.gate.clear()
    started = time.monotonic()
    with pytest.raises(EmbeddingUnavailable, match=r"0\.2 s"):
        child.embed_batch(["first"])
    with pytest.raises(EmbeddingUnavailable):
        child.embed_batch(["second"])
    assert time.monotonic() - started < 200
    child._timeout = child._first = 200.0
    gated.gate.set()
    np.testing.assert_array_equal(
        child.embed_batch(["third"]).vectors, HashingEmbedding().embed_batch(["third"]).vectors
    )


def test_a_parent_that_never_reads_does_not_hold_a_caller() -> None:
    ours, theirs = multiprocessing.Pipe()
    child = embedder(theirs, timeout_s=0.2)
    started = time.monotonic()
    for _ in range(3):
        with pytest.raises(EmbeddingUnavailable):
            child.embed_batch(["x" * 60_000] * 15)
    assert time.monotonic() - started < 200
    ours.close()


def test_once_the_parent_is_gone_every_call_fails_at_once() -> None:
    ours, theirs = multiprocessing.Pipe()
    child = embedder(theirs, timeout_s=400)
    ours.close()
    started = time.monotonic()
    for _ in range(3):
        with pytest.raises(EmbeddingUnavailable, match="gone"):
            child.embed_batch(["x"])
    assert time.monotonic() - started < 200


def test_a_question_without_a_thread_for_it_is_refused_and_the_next_is_answered(connect: Connect) -> None:
    child = embedder(connect())
    with (
        patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")),
        pytest.raises(EmbeddingUnavailable, match="new thread"),
    ):
        child.embed_batch(["x"])
    assert child.embed_batch(["x"]).vectors.shape == (1, 64)


def test_threads_share_one_pipe(connect: Connect) -> None:
    child = embedder(connect())
    wrong: list[str] = []

    def work(name: str) -> None:
        for number in range(20):
            text = f"{name} {number}"
            if not np.array_equal(child.embed_batch([text]).vectors, HashingEmbedding().embed_batch([text]).vectors):
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(f"thread{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not wrong and not any(thread.is_alive() for thread in threads)
