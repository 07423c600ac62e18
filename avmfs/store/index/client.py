"""Asking the index process over its socket.

Owns the client's side of the protocol (see ``server``). Called in every process of the daemon that searches.
A scan changes nothing, so a question that met a dying index is asked once more of its successor.

Threads may share a client; each question takes a connection of its own.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from avmfs import wire
from avmfs.access import Principal
from avmfs.errors import Busy, from_wire
from avmfs.store.index.vectors import Ids, Nearest

PATIENCE_S: Final = 2.0
REPLY_LIMIT: Final = 16 * 1024 * 1024
SILENT: Final = "the vector index does not answer"


class IndexClient:
    """A ``LocalScanner`` whose vectors another process has. ``agent`` "*" may ask for anybody; else for itself
    alone. ``patience_s`` is for one question, with everything that it takes."""

    def __init__(self, address: Path, agent: str, proof: bytes, patience_s: float = PATIENCE_S) -> None:
        self._address = address
        self._greeting = {"v": wire.PROTOCOL, "agent": agent, "proof": proof}
        self._patience = patience_s
        self._idle: deque[tuple[int, socket.socket]] = deque()

    def nearest(
        self, who: Principal, model: str, vector: NDArray[np.float32], k: int, also: Ids, aside: str = ""
    ) -> Nearest:
        deadline = time.monotonic() + self._patience
        question = {
            "agent": who.name,
            "rights": who.rights,
            "model": model,
            "k": k,
            "vector": np.ascontiguousarray(vector, "<f4").tobytes(),
            "also": also.astype("<i8").tobytes(),
            "aside": aside,
        }
        while True:
            fresh = not self._idle
            try:
                reply = self._ask(question, deadline)
                break
            except TimeoutError:
                raise Busy(f"{SILENT} within {self._patience:g} s") from None
            except (OSError, EOFError, wire.FrameError) as e:
                if fresh and time.monotonic() + 0.05 > deadline:
                    raise Busy(f"{SILENT} ({e or type(e).__name__})") from e
                if fresh:
                    time.sleep(0.05)
        if reply.get("error") is not None:
            raise from_wire(*reply["error"])
        return Nearest(
            np.frombuffer(reply["passages"], "<i8").astype(np.int64),
            np.frombuffer(reply["cosines"], "<f8").astype(np.float64),
        )

    def _ask(self, question: dict[str, Any], deadline: float) -> dict[str, Any]:
        number, sock = self._connected(deadline)
        try:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            sock.settimeout(left)
            wire.send(sock, {"id": number, "within_s": left, **question})
            reply = wire.receive(sock, REPLY_LIMIT)
            if not isinstance(reply, dict) or reply.get("id") != number:
                raise wire.FrameError("an answer to another question")
        except BaseException:
            sock.close()  # an answer that comes later has no reader
            raise
        self._idle.append((number + 1, sock))
        return reply

    def _connected(self, deadline: float) -> tuple[int, socket.socket]:
        try:
            return self._idle.pop()
        except IndexError:
            sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            wire.connect(sock, self._address)
            wire.send(sock, self._greeting)
        except BaseException:
            sock.close()
            raise
        return 1, sock

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[1].close()
