"""Hands for talking to `avm-mcp` with the official client: real server processes, over stdio and HTTP."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from anyio.from_thread import BlockingPortal
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

LIMIT_S = 300.0
TOKEN = "a-token-for-tests-0123456789"


class Peer:
    """One connected client. Notifications that it got are in ``heard``."""

    def __init__(self, portal: BlockingPortal, client: Client, heard: list[Any]) -> None:
        self.portal, self.client, self.heard = portal, client, heard

    def ask(self, name: str, *arguments: Any, **named: Any) -> Any:
        """A method of the SDK's client, within a time limit."""

        async def limited() -> Any:
            with anyio.fail_after(LIMIT_S):
                return await getattr(self.client, name)(*arguments, **named)

        return self.portal.call(limited)

    def call(self, tool: str, **arguments: Any) -> Any:
        """The result of a tool that has to succeed."""
        result = self.ask("call_tool", tool, arguments)
        assert not result.is_error, result.content[0].text
        return result

    def said(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured result."""
        found: dict[str, Any] = self.call(tool, **arguments).structured_content
        return found

    def text(self, tool: str, **arguments: Any) -> str:
        return str(self.call(tool, **arguments).content[0].text)

    def refused(self, tool: str, **arguments: Any) -> str:
        """Why a tool did nothing."""
        result = self.ask("call_tool", tool, arguments)
        assert result.is_error and result.structured_content is None, result
        return str(result.content[0].text)

    @contextmanager
    def listening(self, **wanted: Any) -> Iterator[list[Any]]:
        """Events of a subscriptions/listen stream, while the block lasts."""
        events: list[Any] = []
        opened = threading.Event()

        async def run() -> None:
            async with self.client.listen(**wanted) as stream:
                opened.set()
                async for event in stream:
                    events.append(event)

        future: Future[None] = self.portal.start_task_soon(run)
        assert opened.wait(LIMIT_S)
        try:
            yield events
        finally:
            future.cancel()


@contextmanager
def stdio(
    portal: BlockingPortal,
    environ: dict[str, str],
    agent: str,
    *,
    mode: str = "auto",
    errors: Path | None = None,
    tools: str = "all",
) -> Iterator[Peer]:
    """A client of a server process of its own."""
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "avmfs.mcp", "--user", agent, "--tools", tools], env=environ, cwd="/"
    )
    with open(errors or os.devnull, "w") as log, _connected(portal, lambda: stdio_client(server, log), mode) as peer:
        yield peer


@contextmanager
def http(portal: BlockingPortal, url: str, *, mode: str = "auto", secret: str = TOKEN) -> Iterator[Peer]:
    """A client of a server that listens at ``url``."""

    async def web() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(headers={"Authorization": f"Bearer {secret}"}, timeout=LIMIT_S)

    with (
        portal.wrap_async_context_manager(portal.call(web)) as client,
        _connected(portal, lambda: streamable_http_client(url, http_client=client), mode) as peer,
    ):
        yield peer


@contextmanager
def _connected(portal: BlockingPortal, transport: Callable[[], Any], mode: str) -> Iterator[Peer]:
    heard: list[Any] = []

    async def hear(message: Any) -> None:
        heard.append(message)

    async def connect() -> Client:
        return Client(transport(), mode=mode, message_handler=hear, read_timeout_seconds=LIMIT_S, cache=None)

    with portal.wrap_async_context_manager(portal.call(connect)) as client:
        yield Peer(portal, client, heard)


@contextmanager
def http_server(
    environ: dict[str, str], agent: str, *options: str, program: tuple[str, str] = ("-m", "avmfs.mcp")
) -> Iterator[str]:
    """The URL of a server on a free port, with TOKEN; ``program``: how it is run."""
    process = subprocess.Popen(
        [sys.executable, *program, "--user", agent, "--tools", "all", "--http", "--port", "0", *options],
        env={**environ, "AVM_MCP_TOKEN": TOKEN},
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd="/",
    )
    assert process.stderr is not None
    timer = threading.Timer(LIMIT_S, process.kill)
    timer.start()
    try:
        line = process.stderr.readline()
        timer.cancel()
        assert " on http://" in line, line + process.stderr.read()
        yield line.split(" on ")[1].strip()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) in (0, -signal.SIGTERM)
        assert "Traceback" not in process.stderr.read()
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        process.stderr.close()


class Lines:
    """A server whose stdin and stdout are in our hands, line by line. Nothing but JSON may come out."""

    def __init__(self, environ: dict[str, str], agent: str = "alice", *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "avmfs.mcp", "--user", agent, "--tools", "all", *options],
            env=environ,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._left = b""
        self._ready = selectors.DefaultSelector()
        assert self.process.stdout is not None
        self._ready.register(self.process.stdout, selectors.EVENT_READ)
        self.said: list[dict[str, Any]] = []

    def send(self, line: bytes | dict[str, Any]) -> None:
        assert self.process.stdin is not None
        data = line if isinstance(line, bytes) else json.dumps(line).encode()
        self.process.stdin.write(data + b"\n")
        self.process.stdin.flush()

    def answer(self, number: int) -> dict[str, Any]:
        """The reply to request ``number``; what comes before it is kept in ``said``."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            while b"\n" in self._left:
                line, _, self._left = self._left.partition(b"\n")
                message: dict[str, Any] = json.loads(line)
                self.said.append(message)
                if message.get("id") == number:
                    return message
            if self._ready.select(0.5):
                more = os.read(self.process.stdout.fileno(), 65536)
                assert more, "the server has ended"
                self._left += more
        raise AssertionError(f"no answer to {number}: {self.said}")

    def greet(self) -> dict[str, Any]:
        self.send(
            {
                "jsonrpc": "2.0",
                "id": 0,
                "method": "initialize",
                "params": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {},
                    "clientInfo": {"name": "test", "version": "1"},
                },
            }
        )
        found = self.answer(0)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return found

    def request(self, number: int, method: str, **params: Any) -> dict[str, Any]:
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return self.answer(number)

    def end(self) -> str:
        """Close stdin; the server ends by itself. What it had printed to stderr."""
        out, errors = self.process.communicate(timeout=LIMIT_S)
        for line in (self._left + out).splitlines():
            json.loads(line)
        assert self.process.returncode == 0, errors
        return errors.decode()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
