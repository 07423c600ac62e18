"""The one process that scans vectors, for all others.

Owns the table of the model in force and who is answered from it. A process of its own, started by the supervisor,
which keeps the listening socket: questions wait while a killed index is replaced. What an asker may see is computed
here, from the store's scopes and from the agent whose proof the connection has shown; a mount child cannot ask for
another agent's rows. Nothing waits for this process but searches, and those have a time limit.

Protocol, in ``avmfs.wire`` frames. Greeting: {"v", "agent", "proof"}, as to the writer; no answer. Question: {"id",
"agent", "rights", "model", "vector" (float32), "k", "also" (int64), "aside", "within_s"}; reply {"id", "passages"
(int64), "cosines" (float64)} or {"id", "error": [errno, reason, None]}; all little-endian. One question at a time on a
connection.

Threads: one accepts, one per connection asks and answers, one loads and follows the store. Scans take turns; a
question whose time is over before its turn is refused, and so is one more than WAITING.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from avmfs import wire
from avmfs.errors import AvmError, Busy, Denied, StoreFailed
from avmfs.listener import Listener, in_thread
from avmfs.store.identity import ANYBODY, shown_agent
from avmfs.store.index.scan import Behind, FollowedTable, Opener
from avmfs.store.index.vectors import NONE_YET, Nearest
from avmfs.store.rows.api_keys import principal
from avmfs.store.schema import database

log = logging.getLogger(__name__)

REQUEST_LIMIT: Final = 4 * 1024 * 1024
GREETING_S: Final = 5.0
CONNECTIONS: Final = 512
WAITING: Final = 64
DIMENSION: Final = 8192
K: Final = 100_000
POLL_S: Final = 5.0  # new vectors are taken in so often at least, and before every scan
TABLE_S: Final = 0.5  # for a question to wait until its model's table is there
SCAN_S: Final = 0.2  # that it keeps for the scan
LOADING: Final = "the vector index is loading"


class BadQuestion(ValueError):
    """What a peer sent is no question; its connection ends."""


class IndexServer:
    """``model()`` says which model the store's vectors are to be of, with their dimension (None: of none yet);
    ``repair(passages)`` has vectors made anew; ``told(figures)`` hears of every change of state."""

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        opener: Opener,
        model: Callable[[], tuple[str, int] | None],
        repair: Callable[[list[int]], None],
        told: Callable[[dict[str, Any]], None],
    ) -> None:
        self._listener = Listener(listener, "index")
        self._key = key
        self._open = opener
        self._model = model
        self._repair = repair
        self._told = told
        self._turn = threading.Lock()  # the table's, too
        self._followed: FollowedTable | None = None
        self._loaded = threading.Condition()
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._wake, self._waker = socket.socketpair()
        self._waiting = 0
        self._clients: set[socket.socket] = set()
        self._counting = threading.Lock()
        self._figures: dict[str, Any] = {}

    def stop(self) -> None:
        self._stopping.set()
        self._woken.set()
        with contextlib.suppress(OSError):  # the loop may have looked in between, and ended
            self._waker.send(b"x")

    def run(self) -> None:
        """Answer until stopped."""
        follower = threading.Thread(target=self._follow, name="follow", daemon=True)
        follower.start()
        with self._wake, self._waker, selectors.DefaultSelector() as selector:
            selector.register(self._listener.sock, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while not self._stopping.is_set():
                if self._listener.sock in {key.fileobj for key, _ in selector.select()}:
                    self._accept()
            follower.join(1)
        with self._counting:
            for client in self._clients:
                with contextlib.suppress(OSError):  # it went away by itself
                    client.shutdown(socket.SHUT_RDWR)

    # The table --------------------------------------------------------------------------------------------

    def _follow(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            try:
                self._refresh()
            except AvmError as e:
                if not database.logged(e):
                    log.error("%s", e)
            except Exception:  # without it, no search by meaning until a restart; with it, at the next commit
                log.exception("following the store failed")
            with self._loaded:
                self._loaded.notify_all()
            self._woken.wait(POLL_S)

    def _refresh(self) -> None:
        wanted = self._model()
        followed = self._followed
        if wanted is None:
            self._tell("empty", None)
            return
        if followed is None or (followed.model, followed.table.dimension) != wanted:
            self._load(*wanted)
            return
        try:
            with self._turn, self._open() as (db, _):
                followed.catch_up(db)
        except Behind:
            self._load(*wanted)
            return
        self._settled(followed)

    def _load(self, model: str, dimension: int) -> None:
        """A new table beside the old one, which is no longer used."""
        self._followed = None
        self._tell("loading", None)
        before = time.monotonic()
        followed = FollowedTable(model, dimension)
        followed.load(self._open)
        self._followed = followed
        log.info("%d vectors of %s after %.2f s", len(followed.table), model, time.monotonic() - before)
        self._settled(followed)

    def _settled(self, followed: FollowedTable) -> None:
        with self._turn:
            damaged, followed.damaged = sorted(followed.damaged), set()
        self._tell("ready", followed)
        if damaged:
            log.error("%d stored vectors are damaged: they are made anew", len(damaged))
            self._repair(damaged)

    def _tell(self, state: str, followed: FollowedTable | None) -> None:
        figures: dict[str, Any] = {"state": state, "model": "", "vectors": 0, "partitions": 0, "bytes": 0}
        if followed is not None:
            table = followed.table
            figures |= {
                "model": followed.model,
                "vectors": len(table),
                "partitions": table.partitions,
                "bytes": table.nbytes,
            }
        if figures != self._figures:
            self._figures = figures
            self._told(figures)

    # One connection ---------------------------------------------------------------------------------------

    def _accept(self) -> None:
        client = self._listener.accept()
        if client is None:
            return
        with self._counting:
            full = len(self._clients) >= CONNECTIONS
            if not full:
                self._clients.add(client)
        if full or not in_thread("asker", self._serve, client):
            with self._counting:
                self._clients.discard(client)
            client.close()

    def _serve(self, client: socket.socket) -> None:
        try:
            with client:
                client.settimeout(GREETING_S)
                agent = self._greeted(wire.receive(client, 4096))
                client.settimeout(None)
                while True:
                    question = _checked(wire.receive(client, REQUEST_LIMIT))
                    wire.send(client, {"id": question["id"], **self._answer(agent, question)})
        except (EOFError, OSError):
            pass  # the asker went away
        except (wire.FrameError, BadQuestion) as e:
            log.warning("index: dropping a peer: %s", e)
        finally:
            with self._counting:
                self._clients.discard(client)

    def _greeted(self, item: Any) -> str:
        agent = shown_agent(self._key, item)
        if agent is None:
            raise BadQuestion("it could not show whom it speaks for")
        return agent

    def _answer(self, agent: str, question: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + question["within_s"]
        with self._counting:
            crowded = self._waiting >= WAITING
            self._waiting += not crowded
        try:
            if crowded:
                raise Busy("too many searches at once")
            if agent != ANYBODY and (question["rights"] or question["agent"] != agent):
                raise Denied(f"this connection speaks for {agent} only")
            found = self._scan(question, deadline)
        except AvmError as e:
            return {"error": [e.code, e.reason, None]}
        except Exception:  # a defect met by one question must not end the others
            log.exception("index: a scan failed")
            return {"error": [StoreFailed.code, "internal error; the daemon's log has the details", None]}
        finally:
            if not crowded:
                with self._counting:
                    self._waiting -= 1
        return {"passages": found.passages.astype("<i8").tobytes(), "cosines": found.cosines.astype("<f8").tobytes()}

    def _scan(self, question: dict[str, Any], deadline: float) -> Nearest:
        vector = np.frombuffer(question["vector"], "<f4").astype(np.float32)
        also = np.frombuffer(question["also"], "<i8").astype(np.int64)
        followed = self._table(question["model"], len(vector), deadline)
        if not self._turn.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise Busy("too many searches at once")
        try:
            with self._open() as (db, scopes):
                followed.catch_up(db)
                who = principal(db, question["agent"], question["rights"], time.time_ns())
                who.require("search")
                visible, _ = scopes.visible(db, who).searched(question["aside"])
            return followed.nearest(visible, vector, question["k"], also)
        except Behind:
            self._followed = None
            self._woken.set()
            raise Busy(LOADING) from None
        finally:
            self._turn.release()

    def _table(self, model: str, dimension: int, deadline: float) -> FollowedTable:
        """The table, once it is there. Raises Busy when it is of another model, or not loaded in time."""

        def found() -> FollowedTable | None:
            followed = self._followed
            if followed is None or (followed.model, followed.table.dimension) != (model, dimension):
                return None
            return followed

        with self._loaded:
            if (followed := found()) is None:
                self._woken.set()  # the store may name this model by now
                self._loaded.wait_for(found, max(0.0, min(TABLE_S, deadline - time.monotonic() - SCAN_S)))
                followed = found()
        if followed is None:
            raise Busy(LOADING if self._figures.get("state") == "loading" else NONE_YET.format(model))
        return followed


def _checked(question: Any) -> dict[str, Any]:
    """Raises BadQuestion."""
    if not isinstance(question, dict):
        raise BadQuestion("not a question")
    kinds: dict[str, Any] = dict.fromkeys(("agent", "model", "aside"), str)
    kinds |= dict.fromkeys(("vector", "also"), bytes)
    kinds |= {"id": int, "k": int, "within_s": float | int, "rights": bool | str}
    for name, kind in kinds.items():
        value = question.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise BadQuestion(f"{name} is missing or of another type")
    if question["aside"] not in ("", "archive", "index", "past"):
        raise BadQuestion("aside is of no known kind")
    vector = question["vector"]
    if (
        not vector
        or len(vector) % 4
        or len(vector) > 4 * DIMENSION
        or not np.isfinite(np.frombuffer(vector, "<f4")).all()
    ):
        raise BadQuestion(f"a vector has 1 to {DIMENSION} finite numbers")
    if not 0 <= question["k"] <= K or not 0 <= question["within_s"] <= 60:
        raise BadQuestion("k or within_s out of range")
    if len(question["also"]) % 8:
        raise BadQuestion("passages are 8 bytes each")
    return question
