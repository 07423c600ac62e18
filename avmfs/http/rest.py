"""REST: each method of the door at POST /api/NAME, with its arguments as the body's names.

Owns nothing about what a method does: names, arguments, errors and visibility are the door's. The token is looked at
before the body is read. A client that hangs up ends its call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from avmfs.errors import AvmError, Invalid, NotFound, TimedOut, TooBig
from avmfs.extras import version_text
from avmfs.http import identity, openapi, values
from avmfs.http.doors import ALL, Caller, Doors, Line
from avmfs.rpc import methods
from avmfs.rpc.client import BODY_MOST

BODY_S: Final = 30.0  # for all of a body to come
T = TypeVar("T")


class Service:
    """What every route has: the doors, who is signed in, and threads for calls."""

    def __init__(self, doors: Doors, sessions: identity.Sessions, port: int, *, write: bool) -> None:
        """``write``: whether the page may change things."""
        self.doors, self.sessions, self.port, self.write = doors, sessions, port, write
        self.version = version_text()
        self._threads = anyio.CapacityLimiter(ALL)

    async def in_thread(self, do: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(do, limiter=self._threads)

    async def ask(self, request: Request, caller: Caller, method: str, given: dict[str, Any]) -> tuple[Any, str]:
        """Call a method for a request whose body has been read. Raises what the door raises."""
        line, outcome = Line(), list[Any]()

        async def ended() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            line.hang_up()

        def call() -> None:
            try:
                outcome.append(self.doors.call(caller, method, given, line))
            except Exception as e:  # an error leaves a group of tasks in a group of errors
                outcome.append(e)

        async with anyio.create_task_group() as group:
            group.start_soon(ended)
            await self.in_thread(call)
            group.cancel_scope.cancel()
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        answer: tuple[Any, str] = outcome[0]
        return answer

    async def bearer(self, request: Request) -> Caller:
        """Whoever shows a token that lets somebody in. Raises Unauthorized."""
        caller = identity.bearer(request, self.sessions)
        if caller.key:
            await self.in_thread(lambda: self.doors.admit(caller))
        return caller


def routes(service: Service) -> list[Route]:
    async def call(request: Request) -> Response:
        packed = _kind(request) == values.MSGPACK
        try:
            caller = await service.bearer(request)
            name = request.path_params["method"]
            if name not in methods.names():
                raise NotFound(f"there is no method {name!r}: see /openapi.json")
            if not packed and _kind(request) != values.JSON and request.headers.get("content-length", "0") != "0":
                raise Invalid(f"content-type: expected {values.JSON} or {values.MSGPACK}")  # no form can send these
            body = await body_of(request)
            given = await service.in_thread(lambda: values.arguments(body, packed, openapi.binary(name)))
            result, urgent = await service.ask(request, caller, name, given)
            if name == "sign_in":
                service.sessions.bind(result["code"], identity.shown(request))
            return await service.in_thread(lambda: values.answer(result, urgent, packed))
        except AvmError as e:
            return values.refusal(e, packed, 408 if isinstance(e, LateBody) else None)

    async def session(request: Request) -> Response:
        """Who a token is (GET); a token for a one-time code (POST); the end of a token (DELETE)."""
        packed = _kind(request) == values.MSGPACK
        try:
            return values.answer(await _session(service, request, packed), "", packed)
        except AvmError as e:
            return values.refusal(e, packed, 408 if isinstance(e, LateBody) else None)

    async def described(request: Request) -> Response:
        return Response(openapi.text(), media_type=values.JSON)

    return [
        Route("/api/{method}", call, methods=["POST"]),
        Route("/session", session, methods=["GET", "POST", "DELETE"]),
        Route("/openapi.json", described, methods=["GET"]),
    ]


async def _session(service: Service, request: Request, packed: bool) -> dict[str, Any]:
    if request.method == "POST":
        given = values.arguments(await body_of(request, 4096), packed, frozenset())
        if given.keys() != {"code"} or not isinstance(given["code"], str):
            raise Invalid('a session is made of {"code": one-time code}')
        token = service.sessions.exchange(given["code"])
        return {"token": token, "expires_s": round(service.sessions.left_s(token))}
    caller = await service.bearer(request)
    if request.method == "DELETE":
        if caller.key:
            raise Invalid("an API key is ended by revoke_key")
        service.sessions.end(identity.shown(request))
        return {}
    agent = await service.in_thread(lambda: service.doors.agent_of(caller))
    return {"agent": agent, "operator": caller.operator, "version": service.version}


class LateBody(TimedOut):
    """A client that does not send what it announced."""


async def body_of(request: Request, most: int = BODY_MOST) -> bytes:
    """The whole body. Raises TooBig, LateBody."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > most:
        raise TooBig(f"a body may have {most} bytes here")
    body = bytearray()
    try:
        with anyio.fail_after(BODY_S):
            async for piece in request.stream():
                body += piece
                if len(body) > most:
                    raise TooBig(f"a body may have {most} bytes here")
    except TimeoutError as e:
        if isinstance(e, AvmError):
            raise
        raise LateBody(f"the body did not come within {BODY_S:g} s") from None
    except ClientDisconnect:
        raise LateBody("the client has gone") from None
    return bytes(body)


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()
