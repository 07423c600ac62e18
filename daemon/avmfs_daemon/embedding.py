"""One model for all processes: the service beside the supervisor's loop, and its client in each child.

Owns the pipe protocol. Requests are msgpack maps of at most REQUEST_LIMIT bytes: {"id", "op": "embed", "texts",
"urgent", "asker"}, {"id", "op": "info"} or {"id", "op": "rerank", "question", "texts"}; replies {"id", "model",
"dimension", "vectors"} (float32, little-endian, row by row; no vectors for info), {"id", "figures"} or {"id", "error"}.
One request is in flight per pipe. Nothing is ever unpickled.

Threads: the service has one thread per pipe, which alone reads and writes it, so a child that floods, sends
garbage or never reads its replies stops nothing but that thread; and two that compute: one what somebody waits for,
one, of lower priority, what was written. The supervisor's loop only calls `serve`, `load` and `status`, which do not
wait.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np
from avmfs_config import EmbeddingSettings
from numpy.typing import NDArray

from avmfs import calls, wire
from avmfs.embed import engines
from avmfs.embed.cache import Remembered
from avmfs.embed.protocol import Batch, Embedder, EmbeddingUnavailable, Remembering, checked
from avmfs.errors import Interrupted
from avmfs_daemon.reranking import RerankService, until_it_loads

log = logging.getLogger(__name__)

REQUEST_LIMIT: Final = 1024 * 1024
REPLY_LIMIT: Final = 16 * 1024 * 1024
TEXTS: Final = 256  # in one request
TEXT_BYTES: Final = 64 * 1024
URGENT_BATCH: Final = 64
QUERIES: Final = 2048  # whose vectors are remembered, for all processes: 3 MB of MiniLM
INDEX_BATCH: Final = 32  # an engine that computes one batch at a time makes a query wait for it
YIELDING: Final = 5  # the nice value of embedding what was written
LOOK_S: Final = 0.2  # so often who waits for vectors looks whether anybody waits for them
LOADING: Final = "the model is still loading"
FOUND_WITHIN_S: Final = 15.0
"""So long after the beginning of a load a query waits for weights to be found: what takes longer is a download."""
WAITED_S: Final = 30.0
"""So long a query waits for a model whose weights are there: it takes 1 to 8 s, and several times that where a first
start compiles its modules beside other work."""
OFF: Final = "semantic search is turned off (config.yaml: embedding.enabled)"
_ROOM: Final = REQUEST_LIMIT - 16 * 1024  # for texts, in a request


class BadRequest(ValueError):
    """A child sent what is no request; its pipe is closed."""


@dataclass(slots=True, eq=False)
class _Job:
    """Texts of one request, and their vectors as far as they are computed."""

    texts: list[str]
    urgent: bool
    parts: list[Batch] = field(default_factory=list)
    taken: int = 0
    error: str = ""
    done: threading.Event = field(default_factory=threading.Event)


class EmbeddingService:
    """The model and who is served from it. `load` may be called again with another engine."""

    def __init__(self) -> None:
        self.reranking = RerankService()
        self._ready = threading.Condition()
        self._urgent: deque[_Job] = deque()
        self._waiting: deque[_Job] = deque()
        self._embedder: Embedder | None = None
        self._loads = 0
        self._began, self._found = 0.0, False  # the last load, by the monotonic clock; it has its weights
        self._state, self._reason = "off", OFF
        self._model, self._dimension = "", 0
        self._requests = self._texts = self._remembered_texts = 0
        self._queries = Remembered(QUERIES)
        self._computing = set[str]()

    def load(self, factory: Callable[[], Embedder] | None) -> None:
        """Load an engine in a thread and use it from then on; None turns the service off."""
        with self._ready:
            self._loads += 1
            self._began, self._found = time.monotonic(), False
            self._ready.notify_all()  # an earlier load that waits for its next try
            self._embedder, self._model, self._dimension = None, "", 0
            self._state, self._reason = ("off", OFF) if factory is None else ("loading", LOADING)
            self._refuse_all()
            if factory is None:
                return
            number = self._loads
            trying = partial(self._load, factory, number), self._ready, lambda: number != self._loads
            try:
                for queue, name in ((self._urgent, "embed queries"), (self._waiting, "embed")):
                    if name not in self._computing:
                        threading.Thread(target=self._compute, args=(queue,), name=name, daemon=True).start()
                        self._computing.add(name)
                threading.Thread(target=until_it_loads, args=trying, name="load model", daemon=True).start()
            except RuntimeError as e:  # no thread to be had: the next load may get one
                self._state, self._reason = "failed", str(e)
                log.error("no semantic search: %s", e)

    def serve(self, connection: Connection, name: str) -> None:
        """Answer this pipe until its other end is closed. Takes the connection over."""
        threading.Thread(target=self._serve, args=(connection, name), name=f"embed {name}", daemon=True).start()

    def status(self) -> dict[str, Any]:
        with self._ready:
            status: dict[str, Any] = {
                "state": self._state,
                "model": self._model,
                "dimension": self._dimension,
                "requests": self._requests,
                "texts": self._texts,
                "remembered": self._remembered_texts,
                "waiting": sum(len(job.texts) - job.taken for job in (*self._urgent, *self._waiting)),
            }
            return status | ({"reason": self._reason} if self._reason else {})

    # The engine -----------------------------------------------------------------------------------------

    def _load(self, factory: Callable[[], Embedder], number: int) -> bool:
        """False when it failed, and nobody has asked for another load since."""
        try:
            embedder = factory()
            getattr(embedder, "model_id", None)  # which finds or fetches the weights
            with self._ready:
                self._found |= number == self._loads
                self._ready.notify_all()
            probe = embedder.embed_batch(["ready"], urgent=True)
            state, reason = "ready", ""
        except EmbeddingUnavailable as e:
            state, reason = "failed", e.reason
        except Exception as e:  # an engine is foreign code; without it the daemon still serves files
            log.exception("loading the embedding model failed")
            state, reason = "failed", f"{type(e).__name__}: {e}".splitlines()[0]
        with self._ready:
            if number != self._loads:
                return True
            known = (state, reason) == (self._state, self._reason)  # told once, however often it fails
            self._state, self._reason = state, reason
            self._ready.notify_all()
            if state == "ready":
                self._embedder = embedder
                self._model, self._dimension = probe.model, int(probe.vectors.shape[1])
                log.info("embedding model %s is ready", probe.model)
            else:
                if not known:
                    log.error("no semantic search: %s", reason)
                self._refuse_all()
            return state == "ready"

    def _refuse_all(self) -> None:
        for queue in (self._urgent, self._waiting):
            while queue:
                job = queue.popleft()
                job.error = self._reason
                job.done.set()

    def _compute(self, queue: deque[_Job]) -> None:
        if queue is self._waiting and sys.platform == "linux":
            # Of this thread and of those that its libraries start: who reads, writes or asks goes first.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), YIELDING)
        while True:
            with self._ready:
                while not queue:
                    self._ready.wait()
                slices = self._next_slices(queue, URGENT_BATCH if queue is self._urgent else INDEX_BATCH)
                embedder = self._embedder
            try:
                if embedder is None:
                    raise EmbeddingUnavailable(self._reason or LOADING)
                texts = [text for job, start, stop in slices for text in job.texts[start:stop]]
                batch = embedder.embed_batch(texts, urgent=slices[0][0].urgent)
                if len(batch.vectors) != len(texts):
                    raise EmbeddingUnavailable("the engine returned too few vectors")
            except EmbeddingUnavailable as e:
                self._finish(slices, None, e.reason)
            except Exception as e:  # see _load
                log.exception("embedding failed")
                self._finish(slices, None, f"the engine failed: {type(e).__name__}")
            else:
                self._finish(slices, batch, "")

    def _next_slices(self, queue: deque[_Job], room: int) -> list[tuple[_Job, int, int]]:
        """Up to ``room`` texts from the jobs in front."""
        slices = []
        while queue and room:
            job = queue[0]
            stop = min(len(job.texts), job.taken + room)
            slices.append((job, job.taken, stop))
            room -= stop - job.taken
            job.taken = stop
            if stop < len(job.texts):
                break
            queue.popleft()
        return slices

    def _finish(self, slices: list[tuple[_Job, int, int]], batch: Batch | None, error: str) -> None:
        at = 0
        with self._ready:
            for job, start, stop in slices:
                if batch is None:
                    job.error = error
                    for queue in (self._urgent, self._waiting):
                        if job in queue:
                            queue.remove(job)
                else:
                    job.parts.append(Batch(batch.model, batch.vectors[at : at + stop - start]))
                    at += stop - start
                if job.error or sum(len(part.vectors) for part in job.parts) == len(job.texts):
                    job.done.set()

    # One pipe -------------------------------------------------------------------------------------------

    def _serve(self, connection: Connection, name: str) -> None:
        with connection:
            try:
                while True:
                    request = _checked(wire.unpack(connection.recv_bytes(REQUEST_LIMIT)))
                    connection.send_bytes(wire.pack({"id": request["id"], **self._answer(request)}))
            except EOFError:
                return
            except (OSError, wire.FrameError, BadRequest) as e:
                log.warning("%s: embedding pipe closed: %s", name, e)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["op"] == "rerank":
            try:
                return {"figures": self.reranking.judged(request["question"], request["texts"]).tolist()}
            except EmbeddingUnavailable as e:
                return {"error": e.reason}
            except Exception as e:  # see _load
                log.exception("re-ranking failed")
                return {"error": f"the model failed: {type(e).__name__}"}
        with self._ready:
            self._requests += 1
            if request["urgent"]:
                ends = time.monotonic() + WAITED_S
                while self._state == "loading":
                    until = ends if self._found else min(ends, self._began + FOUND_WITHIN_S)
                    if (left := until - time.monotonic()) <= 0:
                        break
                    self._ready.wait(left)
            if self._embedder is None:
                return {"error": self._reason}
            if request["op"] == "info" or not request["texts"]:
                return {"model": self._model, "dimension": self._dimension, "vectors": b""}
            self._texts += len(request["texts"])
            texts, model, dimension = request["texts"], self._model, self._dimension
            known = self._queries.known(model, request["asker"], texts) if request["urgent"] else {}
            if len(known) == len(set(texts)):  # a query asked before waits for nobody
                self._remembered_texts += len(texts)
                vectors = b"".join(known[text].astype("<f4").tobytes() for text in texts)
                return {"model": model, "dimension": dimension, "vectors": vectors}
            # Those of about one length together: a batch is computed as long as its longest.
            order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
            job = _Job([texts[at] for at in order], request["urgent"])
            (self._urgent if job.urgent else self._waiting).append(job)
            self._ready.notify_all()
        job.done.wait()
        if not job.error and len({part.model for part in job.parts}) > 1:
            job.error = "the model changed meanwhile"
        if job.error:
            return {"error": job.error}
        rows = np.empty((len(texts), job.parts[0].vectors.shape[1]), "<f4")
        rows[order] = np.concatenate([part.vectors for part in job.parts])
        if job.urgent:
            self._queries.keep(job.parts[0].model, request["asker"], dict(zip(texts, rows, strict=True)))
        return {"model": job.parts[0].model, "dimension": rows.shape[1], "vectors": rows.tobytes()}


def _checked(request: Any) -> dict[str, Any]:
    """The request with its defaults. Raises BadRequest."""
    if not isinstance(request, dict) or not set(request) <= {"id", "op", "texts", "urgent", "asker", "question"}:
        raise BadRequest("not a request")
    number, op = request.get("id"), request.get("op")
    texts, urgent, asker = request.get("texts", []), request.get("urgent", False), request.get("asker", "")
    if not isinstance(number, int) or isinstance(number, bool) or op not in ("embed", "info", "rerank"):
        raise BadRequest("no id or no operation")
    if isinstance(question := request.get("question"), str) != (op == "rerank"):
        raise BadRequest("a question is text, and to be re-ranked")
    if not isinstance(asker, str):
        raise BadRequest("asker is text")
    if not isinstance(urgent, bool) or not isinstance(texts, list) or len(texts) > TEXTS:
        raise BadRequest(f"urgent is a boolean, texts a list of at most {TEXTS}")
    for text in texts:
        if not isinstance(text, str) or len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES:
            raise BadRequest(f"a text is a string of at most {TEXT_BYTES} bytes")
    return {"id": number, "op": op, "texts": texts, "urgent": urgent, "asker": asker, "question": question}


# The child's side -----------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Question:
    request: dict[str, Any]
    abandoned: bool = False
    reply: dict[str, Any] | None = None
    done: threading.Event = field(default_factory=threading.Event)


class PipeEmbedder(Remembering):
    """An Embedder whose model is in the supervisor. Threads may share it.

    A thread of its own does all reading and writing: callers wait for at most `timeout_s` and never on the pipe; until
    the service has answered for the first time, for `first_s` more: it may be loading the model.
    What comes after a caller has given up is dropped. Once the supervisor is gone every call fails at once. It is a
    Reranker too, whose answer takes at most `rerank_s`.
    """

    def __init__(self, connection: Connection, timeout_s: float, first_s: float = 0.0, rerank_s: float = 0.0) -> None:
        self._connection = connection
        self._rerank = rerank_s
        self._timeout = timeout_s
        self._first = timeout_s + first_s
        self._changed = threading.Condition()
        self._questions: deque[_Question] = deque()
        self._conversing = False
        self._next = 0
        self._gone = ""

    def embed_batch(self, texts: Sequence[str], *, urgent: bool = False, asker: str = "") -> Batch:
        deadline = time.monotonic() + self._first
        if not texts:
            model, dimension = self.info()
            return Batch(model, np.zeros((0, dimension), np.float32))
        request = {"op": "embed", "urgent": urgent, "asker": asker}
        batches = [self._embed({**request, "texts": chunk}, deadline) for chunk in _chunks(texts)]
        if len({batch.model for batch in batches}) > 1:
            raise EmbeddingUnavailable("the model changed meanwhile")
        self._first = self._timeout
        return Batch(batches[0].model, np.concatenate([batch.vectors for batch in batches]))

    def info(self) -> tuple[str, int]:
        """Model and dimension. Raises EmbeddingUnavailable with what stands in the way."""
        reply = self._ask({"op": "info"}, time.monotonic() + self._timeout)
        return str(reply["model"]), int(reply["dimension"])

    def judged(self, question: str, texts: Sequence[str]) -> NDArray[np.float64]:
        room = min(TEXT_BYTES, _ROOM // (len(texts) + 1))
        cut = [text.encode("utf-8", "replace")[:room].decode("utf-8", "ignore") for text in (question, *texts)]
        request = {"op": "rerank", "question": cut[0], "texts": cut[1:]}
        reply = self._ask(request, time.monotonic() + self._rerank + LOOK_S)
        return checked(reply["figures"], len(texts))

    def _embed(self, request: dict[str, Any], deadline: float) -> Batch:
        texts, reply = request["texts"], self._ask(request, deadline)
        vectors = np.frombuffer(reply["vectors"], "<f4").astype(np.float32)
        if vectors.size != len(texts) * reply["dimension"]:
            raise EmbeddingUnavailable("the embedding service sent too few vectors")
        return Batch(str(reply["model"]), vectors.reshape(len(texts), -1))

    def _ask(self, request: dict[str, Any], deadline: float) -> dict[str, Any]:
        with self._changed:
            if self._gone:
                raise EmbeddingUnavailable(self._gone)
            if not self._conversing:
                try:
                    threading.Thread(target=self._converse, name="embedding pipe", daemon=True).start()
                except RuntimeError as e:  # the next one starts it
                    raise EmbeddingUnavailable(str(e)) from None
                self._conversing = True
            self._next += 1
            question = _Question({"id": self._next, **request})
            self._questions.append(question)
            self._changed.notify()
        call: calls.Call | None = getattr(calls.working, "call", None)
        while not question.done.wait(min(LOOK_S, max(0.0, deadline - time.monotonic()))):
            if call is not None:
                call.rest()
            if call is not None and call.given_up:
                question.abandoned = True
                raise Interrupted("nobody waits any more")
            if time.monotonic() >= deadline:
                question.abandoned = True
                ranks = request["op"] == "rerank"
                raise EmbeddingUnavailable(
                    f"no answer within {self._rerank:g} s" if ranks else f"no vectors within {self._timeout:g} s"
                )
        if question.reply is None:
            raise EmbeddingUnavailable(self._gone)
        if "error" in question.reply:
            raise EmbeddingUnavailable(str(question.reply["error"]))
        return question.reply

    def _converse(self) -> None:
        try:
            while True:
                question = self._take()
                self._connection.send_bytes(wire.pack(question.request))
                while True:
                    reply = wire.unpack(self._connection.recv_bytes(REPLY_LIMIT))
                    if isinstance(reply, dict) and reply.get("id") == question.request["id"]:
                        break
                question.reply = reply
                question.done.set()
        except (EOFError, OSError, wire.FrameError):
            with self._changed:
                self._gone = "the embedding service is gone"
                question.done.set()
                while self._questions:
                    self._questions.popleft().done.set()

    def _take(self) -> _Question:
        """The next question somebody still waits for: urgent ones first."""
        with self._changed:
            while True:
                while self._questions:
                    first = (q for q in self._questions if q.request.get("urgent") or q.request["op"] == "rerank")
                    question = next(first, self._questions[0])
                    self._questions.remove(question)
                    if not question.abandoned:
                        return question
                self._changed.wait()


def _chunks(texts: Sequence[str]) -> list[list[str]]:
    """The texts as the service takes them: long ones cut (no model reads that far), in requests within its limits."""
    chunks: list[list[str]] = [[]]
    room = _ROOM
    for text in texts:
        data = text.encode("utf-8", "replace")[:TEXT_BYTES]
        if chunks[-1] and (len(chunks[-1]) == TEXTS or len(data) + 8 > room):
            chunks.append([])
            room = _ROOM
        chunks[-1].append(data.decode("utf-8", "ignore"))
        room -= len(data) + 8
    return chunks


def factory_for(settings: EmbeddingSettings, cache: Path) -> Callable[[], Embedder] | None:
    """How to make the configured engine; None when semantic search is turned off. ``cache`` is the engine's folder."""
    return (lambda: engines.make(settings, cache)) if settings.enabled else None
