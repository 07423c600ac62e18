"""MCP over HTTP at /mcp: the server of avm-mcp, one for each caller, behind the service's own tokens.

Owns the lives of these servers: each begins with its caller's first request and ends when it was not asked for long,
when another needs its place and nothing is under way in it, or with the service. An answer under way ends with the
session or the key that asked for it. The SDK is loaded with the first request.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import TaskGroup, TaskStatus
from avmfs_config import Paths
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from avmfs.errors import AvmError, Busy, Denied
from avmfs.http import identity, values
from avmfs.http.doors import Caller, Unauthorized
from avmfs.http.events import WAIT_S
from avmfs.http.rest import Service
from avmfs.rpc.client import BODY_MOST

if TYPE_CHECKING:
    from avmfs.mcp.server import MemoryServer

log = logging.getLogger(__name__)

PATH: Final = "/mcp"
SERVERS, SERVERS_OF_ONE = 32, 8  # of everybody, and of one agent by all its keys: each has two connections to the door
IDLE_S: Final = 1800.0
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(slots=True)
class _Served:
    app: App
    over: anyio.Event = field(default_factory=anyio.Event)
    under_way: int = 0
    asked: float = field(default_factory=time.monotonic)


class McpServers:
    """An ASGI application. ``tasks``: where the servers live, set before the first request."""

    tasks: TaskGroup

    def __init__(self, service: Service, where: Paths, offered: str = "core") -> None:
        self._service, self._where, self._offered = service, where, offered
        self._served: dict[Caller, _Served] = {}
        self._waits: dict[str, anyio.CapacityLimiter] = {}  # of an agent, by all its keys
        self._beginning = anyio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            caller = await self._service.bearer(Request(scope, receive))
            served = await self._of(caller)
        except AvmError as e:
            await values.refusal(e, False)(scope, receive, send)
            return
        answered: bool | None = None  # None: nothing yet, False: not to its end

        async def told(message: Message) -> None:
            nonlocal answered
            answered = message["type"] == "http.response.body" and not message.get("more_body", False)
            await send(message)

        served.under_way += 1
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._end, group.cancel_scope, Request(scope), caller)
                await served.app(scope, receive, told)
                group.cancel_scope.cancel()
            if answered is None:
                await values.refusal(Unauthorized("this session has ended"), False)(scope, receive, send)
            elif not answered:
                await send({"type": "http.response.body", "body": b""})
        finally:
            served.under_way -= 1
            served.asked = time.monotonic()

    async def _end(self, under_way: anyio.CancelScope, request: Request, caller: Caller) -> None:
        """Cancel what is under way once what the request has shown lets nobody in any more: its session has ended, or
        its key was revoked."""
        call = self._service.doors.call
        while True:
            await anyio.sleep(WAIT_S)
            try:
                if identity.bearer(request, self._service.sessions) != caller:
                    break
                await self._service.in_thread(lambda: call(caller, "watch", {}))
            except Denied:
                break
            except AvmError as e:
                log.info("mcp: whether %s is still let in is asked again: %s", caller.agent, e)
        under_way.cancel()

    async def _of(self, caller: Caller) -> _Served:
        async with self._beginning:
            now = time.monotonic()
            for other, each in [*self._served.items()]:
                if not each.under_way and now - each.asked > IDLE_S:
                    self._served.pop(other).over.set()
            if caller not in self._served:
                self._make_room(caller)
                self._served[caller] = await self.tasks.start(self._serve, caller)
            found = self._served[caller]
            found.asked = now
            return found

    def _make_room(self, caller: Caller) -> None:
        """For one more server. Its client begins anew if that of another ends. Raises Busy where all are at work,
        as one is that a stream hangs on."""
        whose = self._service.doors.whose
        full = [each for each in self._served if whose(each) == whose(caller)]
        if len(full) < SERVERS_OF_ONE:
            full = [*self._served] if len(self._served) >= SERVERS else []
        idle = [each for each in full if not self._served[each].under_way]
        if full and not idle:
            raise Busy("too many MCP clients: ask later")
        if idle:
            self._served.pop(min(idle, key=lambda each: self._served[each].asked)).over.set()

    async def _serve(self, caller: Caller, *, task_status: TaskStatus[_Served]) -> None:
        server, app = await self._service.in_thread(lambda: self._made(caller))
        served: _Served | None = None
        try:
            async with app.router.lifespan_context(app):
                served = _Served(app)
                task_status.started(served)
                await served.over.wait()
        except Exception:
            if served is None:
                raise
            log.exception("mcp: the server of %s failed", caller.agent)  # the other callers' go on
            if self._served.get(caller) is served:
                del self._served[caller]
        finally:
            server.close()

    def _made(self, caller: Caller) -> tuple[MemoryServer, Starlette]:
        from mcp.server.transport_security import TransportSecuritySettings

        from avmfs.mcp.server import AT_ONCE, MemoryServer
        from avmfs.mcp.session import Session

        agent = caller.agent or self._service.doors.agent_of(caller)
        environ = {**os.environ, "AVM_AUTOSTART": "0", "AVM_API_KEY": caller.key, "AVM_AT": ""}
        waits = self._waits.setdefault(agent, anyio.CapacityLimiter(AT_ONCE))
        server = MemoryServer(Session(self._where, agent, environ), self._service.version, self._offered, waits)
        # Host and Origin were looked at before the token was.
        unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        return server, server.streamable_http_app(
            streamable_http_path=PATH, transport_security=unchecked, max_request_body_size=BODY_MOST
        )
