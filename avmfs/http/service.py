"""The service as a whole: its routes, what stands before all of them, and serving until it is told to stop.

Owns the order of checks: Host and Origin, then the route, then who asks. Called by the daemon's HTTP process with a
listening socket. Clients that send nothing are hung up on; how many there may be at once is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, Final

import anyio
import uvicorn
from avmfs_config import Paths
from avmfs_config.http import HttpSettings, check_tls
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from avmfs import metrics
from avmfs.errors import AvmError, Invalid, NotFound, StoreFailed
from avmfs.http import events, exposition, identity, mcp, page, rest, values
from avmfs.http.doors import NOBODY, Doors
from avmfs.mcp.patience import CLIENTS, HEAD_S, Bounded, Patient

log = logging.getLogger(__name__)

STOP_S: Final = 2  # for answers under way
HEALTH_S: Final = 1.0  # that one look at the door is good for
_POLICY: Final = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
_HEADERS: Final = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),  # by no-referrer browsers send our own forms with `Origin: null`
    (b"cross-origin-resource-policy", b"same-origin"),
]


class Server:
    """The HTTP process's own: ``run`` serves until ``stop``, from any thread."""

    def __init__(
        self, listener: socket.socket, settings: HttpSettings, where: Paths, status: Callable[[], dict[str, Any]]
    ) -> None:
        """``status``: the daemon's, asked for metrics."""
        check_tls(settings)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if listener.family == socket.AF_INET6 else host
        self.sessions = identity.Sessions()
        self._doors = Doors(where.runtime_dir / "avm.sock")
        service = rest.Service(self._doors, self.sessions, port, write=settings.write)
        figures = exposition.route(service, where.runtime_dir / metrics.FOLDER, where.database, status, time.time)
        names = identity.Names({*identity.LOOPBACK, shown, *settings.hosts})
        config = uvicorn.Config(
            application(service, names, where, [figures]),
            http=Patient,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CLIENTS,
            timeout_keep_alive=int(HEAD_S),
            timeout_graceful_shutdown=STOP_S,
            ssl_certfile=settings.cert,
            ssl_keyfile=settings.key,
        )
        self._listener = Bounded(listener)
        self._server = _Server(config)

    def run(self, ready: Callable[[], None]) -> None:
        self._server.ready = ready
        try:
            asyncio.run(self._server.serve([self._listener]))
        finally:
            self._doors.close()

    def stop(self) -> None:
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """Leaves signals to the process, says when it serves, and waits for a TLS handshake as for a request's head."""

    ready: Callable[[], None]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        client = partial(Patient, config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        tls, most_s = self.config.ssl, None if self.config.ssl is None else HEAD_S
        loop, backlog = asyncio.get_running_loop(), self.config.backlog
        for each in sockets or []:
            self.servers.append(
                await loop.create_server(client, sock=each, ssl=tls, ssl_handshake_timeout=most_s, backlog=backlog)
            )
        if not self.should_exit:
            self.ready()


def application(service: rest.Service, names: identity.Names, where: Paths, more: list[Route]) -> ASGIApp:
    servers = mcp.McpServers(service, where)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as servers.tasks:
            yield
            servers.tasks.cancel_scope.cancel()

    routes = [
        *rest.routes(service),
        *events.routes(service),
        _health(service),
        *more,
        Route(mcp.PATH, servers),
        *page.routes(service),
    ]
    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: _refused, Exception: _defect})
    app.router.redirect_slashes = False
    return _Guarded(app, names)


def _health(service: rest.Service) -> Route:
    """Whether the door answers. Anybody may ask, so a look at it is good for a moment."""
    looked, problem = 0.0, ""
    looking = threading.Lock()

    def look() -> str:
        nonlocal looked, problem
        with looking:
            if time.monotonic() - looked > HEALTH_S:
                try:
                    service.doors.call(NOBODY, "nonce", {"about": "health"})
                    problem = ""
                except AvmError as e:
                    problem = e.reason
                looked = time.monotonic()
            return problem

    async def health(request: Request) -> Response:
        found = await service.in_thread(look)
        return JSONResponse({"status": "unavailable" if found else "ok"}, 503 if found else 200)

    return Route("/health", health, methods=["GET"])


async def _refused(request: Request, error: Exception) -> Response:
    """What no route takes: 404, 405."""
    assert isinstance(error, HTTPException)
    kind = NotFound("there is nothing at this address") if error.status_code == 404 else Invalid(error.detail)
    response = values.refusal(kind, False, error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _defect(request: Request, error: Exception) -> Response:
    return values.refusal(StoreFailed("internal error; the daemon's log has the details"), False)


class _Guarded:
    """What stands before every route: by which name it was called, headers of every answer, and defects."""

    def __init__(self, app: ASGIApp, names: identity.Names) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                took = metrics.histogram("avm_http_seconds", status=f"{message['status'] // 100}xx")
                took.observe(time.perf_counter() - began)
                told = {name for name, _ in message["headers"]}
                caching = [] if b"cache-control" in told else [(b"cache-control", b"no-store")]
                message = {**message, "headers": [*message["headers"], *_HEADERS, *caching]}
            await send(message)

        try:
            self._names.check(HTTPConnection(scope))
            await self._app(scope, receive, sending)
        except AvmError as e:
            await values.refusal(e, False)(scope, receive, sending)
        except Exception:  # a defect in one answer must not end the service, which has told the client
            log.exception("%s %s failed", scope["method"], scope["path"])
