"""How long the service waits for a client that sends or takes nothing: with limits of tenths of a second.

Each holds only where it is to be over: a client of a busy machine may be late itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from typing import Any, cast
from unittest.mock import Mock

import pytest
import uvicorn
from avmfs_config import find_paths
from avmfs_config.http import HttpSettings
from uvicorn.server import ServerState

from avmfs.http import events, identity, page, rest, values
from avmfs.http.doors import Caller
from avmfs.http.service import Server
from avmfs.mcp import patience
from avmfs.mcp.patience import Patient
from tests.faults.daemons import LIMIT_S, SOON_S, wait
from tests.http.http_world import Web

HEADERS = {"content-type": "application/json"}


@pytest.fixture
def here(web: Web, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Web, Server]]:
    """The service in this process, in front of the daemon's door, with little patience and small buffers."""
    monkeypatch.setattr(patience, "SEND_S", 0.3)
    places = {"AVM_RUNTIME_DIR": web.runtime, "AVM_DATA_DIR": web.runtime.parent / "data", "HOME": web.runtime}
    where, ready = find_paths({name: str(place) for name, place in places.items()}), threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        server = Server(listener, HttpSettings(), where, dict)
        thread = threading.Thread(target=server.run, args=[ready.set])
        thread.start()
        try:
            assert ready.wait(LIMIT_S)
            yield Web(f"http://127.0.0.1:{listener.getsockname()[1]}", web.runtime), server
        finally:
            server.stop()
            thread.join(LIMIT_S)


def token_of(server: Server, agent: str) -> str:
    return server.sessions.exchange(server.sessions.code(Caller(agent)))


@pytest.mark.parametrize("sent", [b"", b'{"path": "/shared/slow.md", '])
def test_a_body_that_does_not_come_in_time_is_refused(
    here: tuple[Web, Server], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(rest, "BODY_S", 0.3)
    web, server = here
    with contextlib.closing(HTTPConnection(web.host, web.port, timeout=LIMIT_S)) as slow:
        slow.putrequest("POST", "/api/write")
        for name, value in {**HEADERS, "authorization": f"Bearer {token_of(server, 'alice')}"}.items():
            slow.putheader(name, value)
        slow.putheader("content-length", "1000")
        slow.endheaders(sent)
        answer = slow.getresponse()
        assert answer.status == 408 and b"the body did not come within 0.3 s" in answer.read()
    monkeypatch.setattr(rest, "BODY_S", LIMIT_S)
    assert web.call(token_of(server, "alice"), "tags").status == 200


def test_a_stream_of_events_that_nobody_reads_ends_and_leaves_room(here: tuple[Web, Server]) -> None:
    web, server = here
    with contextlib.closing(web.door("erin")) as door:
        for number in range(200):
            door.call("write", path=f"/private/{'/'.join(['x' * 200] * 8)}/{number}.md", data=b"x")
    asked = (
        f"GET /events?since=0 HTTP/1.1\r\nHost: {web.host}\r\nAuthorization: Bearer {token_of(server, 'erin')}\r\n\r\n"
    )
    with contextlib.ExitStack() as held:

        def stalled() -> bytes:
            sock = held.enter_context(contextlib.closing(socket.socket()))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sock.settimeout(LIMIT_S)
            sock.connect((web.host, web.port))
            sock.sendall(asked.encode())
            return sock.recv(12)[9:]

        began = [stalled() for _ in range(events.STREAMS_OF_ONE)]
        assert set(began) == {b"200"}
        wait(lambda: stalled() == b"200")  # as many as one may have, none of which reads: their places are free again


@pytest.mark.parametrize(
    ("path", "times"), [("/openapi.json", 33), ("/health", 60)], ids=["more than is buffered", "less than that"]
)
def test_a_client_that_takes_no_answer_is_hung_up_on(
    here: tuple[Web, Server], monkeypatch: pytest.MonkeyPatch, path: str, times: int
) -> None:
    monkeypatch.setattr(patience, "HEAD_S", LIMIT_S)
    web, server = here
    with contextlib.ExitStack() as held:
        connections = server._server.server_state.connections
        clients = [held.enter_context(contextlib.closing(socket.socket())) for _ in range(4)]
        for sock in clients:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sock.connect((web.host, web.port))
        wait(lambda: len(connections) == 4)
        monkeypatch.setattr(patience, "HEAD_S", 0.3)
        for sock in clients:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {web.host}\r\n\r\n".encode() * times)
        wait(lambda: not connections, SOON_S)


def test_a_client_that_takes_an_answer_slowly_has_it_whole(
    here: tuple[Web, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is whether it takes anything: for all of it there is no limit."""
    monkeypatch.setattr(patience, "TAKEN", 1024)
    monkeypatch.setattr(patience, "SEND_S", 5.0)
    web, _ = here
    with contextlib.closing(socket.socket()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.settimeout(LIMIT_S)
        sock.connect((web.host, web.port))
        sock.sendall(f"GET /openapi.json HTTP/1.1\r\nHost: {web.host}\r\nConnection: close\r\n\r\n".encode())
        got, began = bytearray(), time.monotonic()
        while piece := sock.recv(2048):
            got += piece
            if time.monotonic() - began < 2 * patience.SEND_S:
                time.sleep(0.2)
        head, _, body = bytes(got).partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head and len(body) > 90_000


class Timers:
    """A loop whose time a test lets pass."""

    def __init__(self) -> None:
        self.now, self._waiting = 0.0, list[tuple[float, Callable[[], object], Mock]]()

    def call_later(self, delay: float, act: Callable[..., object], *arguments: object) -> Mock:
        self._waiting.append((self.now + delay, partial(act, *arguments), timer := Mock()))
        return timer

    def create_task(self, answering: Coroutine[Any, Any, object], **_: object) -> Mock:
        answering.close()  # who answers is the test
        return Mock()

    def pass_(self, seconds: float) -> None:
        self.now += seconds
        due = [each for each in self._waiting if each[0] <= self.now]
        self._waiting = [each for each in self._waiting if each[0] > self.now]
        for _, act, timer in due:
            if not timer.cancel.called:
                act()


def patient(timers: Timers, transport: Mock) -> Patient:
    """One that has just been connected."""
    transport.get_extra_info.return_value = None
    transport.is_closing.return_value = False
    config = uvicorn.Config(Mock(), http=Patient, log_config=None)
    client = Patient(config, ServerState(), {}, cast(asyncio.AbstractEventLoop, timers))
    client.connection_made(transport)
    return client


def test_a_request_that_came_with_the_one_before_has_as_much_time_as_it_takes() -> None:
    timers, transport = Timers(), Mock()
    client = patient(timers, transport)
    client.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
    first: Any = client.cycle
    for message in ({"type": "http.response.start", "status": 204}, {"type": "http.response.body"}):
        asyncio.run(first.send(message))
    assert client.cycle is not first
    timers.pass_(patience.HEAD_S)
    transport.close.assert_not_called()


@pytest.mark.parametrize(("left", "hung_up"), [(1, True), (0, False)])
def test_a_client_that_takes_all_but_the_end_of_an_answer_is_hung_up_on(left: int, hung_up: bool) -> None:
    timers, transport = Timers(), Mock()
    transport.get_write_buffer_size.return_value = 100_000
    client = patient(timers, transport)
    client.pause_writing()
    client.on_response_complete()
    timers.pass_(patience.HEAD_S)
    transport.close.assert_called()
    transport.is_closing.return_value = True  # until all is taken
    transport.get_write_buffer_size.return_value = left
    client.resume_writing()
    if not left:
        client.connection_lost(None)
    timers.pass_(patience.SEND_S)
    timers.pass_(patience.SEND_S)
    assert transport.abort.called == hung_up


@pytest.mark.parametrize("what", ["a body", "events", "a page"])
def test_what_takes_long_of_one_keeps_nobody_else_waiting(
    here: tuple[Web, Server], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    web, server = here
    module, name = {"a body": (values, "arguments"), "events": (values, "json_text"), "a page": (page, "page")}[what]
    begun, go, does = threading.Event(), threading.Event(), getattr(module, name)

    def slowly(*given: Any, **more: Any) -> Any:
        begun.set()
        assert go.wait(LIMIT_S)
        return does(*given, **more)

    token = token_of(server, "alice")
    waiting: Future[Any]
    with contextlib.closing(web.door("alice")) as door:
        door.call("write", path="/private/told.md", data=b"x")
    cookie = f"{identity.cookie_name(web.port)}={token}" if what == "a page" else ""
    monkeypatch.setattr(module, name, slowly)
    with ThreadPoolExecutor(1) as pool, contextlib.closing(web.connection()) as other:
        try:
            if what == "a body":
                waiting = pool.submit(web.call, token, "tags")
            elif what == "a page":
                waiting = pool.submit(web.ask, "GET", "/", cookie=cookie)
            else:
                other.request("GET", "/events?since=0", headers={"Authorization": f"Bearer {token}"})
                waiting = pool.submit(other.getresponse)
            assert begun.wait(LIMIT_S)
            with contextlib.closing(HTTPConnection(web.host, web.port, timeout=SOON_S)) as healthy:
                healthy.request("GET", "/health")
                assert healthy.getresponse().status == 200
        finally:
            go.set()
        assert waiting.result(LIMIT_S).status == 200
