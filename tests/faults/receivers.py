"""Receivers of webhooks that behave as a test says: they take, fail, hang, redirect, hang up or are not there."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Fate = Literal["take", "fail", "hang", "redirect", "hang up"]


@dataclass(frozen=True)
class Delivery:
    """One POST that was read whole."""

    fate: Fate
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def said(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """A server on one local address; ``fate`` decides on each request, by its path. ``connections`` counts
    even those that said nothing."""

    def __init__(
        self, fate: Callable[[str], Fate] = lambda target: "take", host: str = "127.0.0.1", away: str = ""
    ) -> None:
        self.got: list[Delivery] = []
        self.connections = 0
        self._fate, self._host, self._away = fate, host, away
        self._mutex = threading.Lock()
        self._over = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0
        self.open()

    def taken(self) -> list[Delivery]:
        with self._mutex:
            return [each for each in self.got if each.fate == "take"]

    def url(self, path: str) -> str:
        return f"http://{self._host}:{self.port}{path}"

    def open(self) -> None:
        """On the same port as before."""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with receiver._mutex:
                    fate = receiver._fate(self.path)
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    receiver.got.append(Delivery(fate, self.path, headers, body))
                if fate == "hang":
                    receiver._over.wait(300)
                if fate in ("hang", "hang up"):
                    self.close_connection = True
                    return
                self.send_response({"take": 204, "fail": 500, "redirect": 302}[fate])
                if fate == "redirect":
                    self.send_header("Location", receiver._away)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 64

            def process_request(self, request: Any, client_address: Any) -> None:
                receiver.connections += 1
                super().process_request(request, client_address)

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # who was killed does not wait for its answer

        self._server = Server((self._host, self.port), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def die(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def close(self) -> None:
        self._over.set()
        self.die()


@contextlib.contextmanager
def receiving(*receivers: Receiver) -> Iterator[None]:
    try:
        yield
    finally:
        for receiver in receivers:
            receiver.close()
        time.sleep(0.1)
