"""Server-sent events at /events: what changes, and mail, as the asker may see it.

Owns the stream's form. Events: ``change`` (data: one of ``recent``'s changes; id: the seq up to which all was told, so
that a browser that reconnects goes on from there) and ``mail`` (data: ``unread``). A stream that nobody reads ends, and
one whose session has ended tells nothing more.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any, Final

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from avmfs.errors import AvmError, Busy, Invalid
from avmfs.http import identity, values
from avmfs.http.doors import Caller, Unauthorized
from avmfs.http.rest import Service
from avmfs.mcp import patience

STREAMS, STREAMS_OF_ONE = 48, 8
WAIT_S: Final = 20.0  # of one call; then a comment shows that the stream lives
FOUND: Final = 10_000  # changes of one call: more are told of as one event `more`


def routes(service: Service) -> list[Route]:
    open_streams: Counter[Caller] = Counter()

    async def events(request: Request) -> Response | _Stream:
        try:
            caller = identity.visitor(request, service.sessions, service.port) or await service.bearer(request)
            since, pattern = _asked(request)
            whose = service.doors.whose
            of_one = sum(count for each, count in open_streams.items() if whose(each) == whose(caller))
            if open_streams.total() >= STREAMS or of_one >= STREAMS_OF_ONE:
                raise Busy("too many streams of events are open")
            stream = _Stream(service, request, caller, pattern, open_streams)
            await stream.begin(since)
            return stream
        except AvmError as e:
            return values.refusal(e, False)

    return [Route("/events", events, methods=["GET"])]


def _asked(request: Request) -> tuple[int | None, str]:
    """The seq after which to begin (None: now), and the pattern of paths."""
    if unknown := request.query_params.keys() - {"since", "pattern"}:
        raise Invalid(f"unknown parameter {min(unknown)!r} (it takes: since, pattern)")
    since = request.headers.get("last-event-id") or request.query_params.get("since")
    if since is not None and not (since.isascii() and since.isdecimal() and len(since) < 19):
        raise Invalid("since: expected the id of an event, a number")
    return None if since is None else int(since), request.query_params.get("pattern", "/memory/*")


class _Stream(Response):
    """Answers for as long as the client takes events."""

    def __init__(
        self, service: Service, request: Request, caller: Caller, pattern: str, open_streams: Counter[Caller]
    ) -> None:
        super().__init__(media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._service, self._request, self._caller, self._pattern = service, request, caller, pattern
        self._open = open_streams
        self._at: dict[str, Any] = {}
        self._since = 0
        self._unread: int | None = None  # as last told of; 0: nothing

    async def begin(self, since: int | None) -> None:
        """Refusals come before the first byte. It is counted from here on: others may begin meanwhile."""
        self._open[self._caller] += 1
        try:
            self._at = await self._ask("watch")
            self._since = int(self._at["seq"]) if since is None else since
            if since is not None:
                self._unread = 0  # whatever it was told of before: mail that is unread may have come since
            await self._ask("recent", path="/", since=str(self._since), limit=1, pattern=self._pattern)
        except BaseException:
            self._leave()
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send(send, b": events\n\nid: %d\n\n" % self._since)
            with contextlib.suppress(Unauthorized):
                while True:
                    await self._tell(send)
            await self._send(send, b"", more=False)
        except (AvmError, TimeoutError):
            return  # the client is gone or takes nothing, or the daemon ends: it asks again
        finally:
            self._leave()

    def _leave(self) -> None:
        self._open[self._caller] -= 1
        if not self._open[self._caller]:
            del self._open[self._caller]

    async def _tell(self, send: Send) -> None:
        """What came since the last time, then wait for more."""
        before = self._since
        found = await self._ask("recent", path="/", since=str(before), limit=FOUND, pattern=self._pattern)
        self._since = int(found["seq"])
        told = [await self._service.in_thread(lambda: _changes(found))]
        if self._since < before:  # that change is lost, as by a restore
            told.append(_event("more", {}))
        if self._unread not in (None, self._at["unread"]):
            told.append(_event("mail", await self._ask("unread")))
        self._unread = self._at["unread"]
        if self._since != before:
            told.append(b"id: %d\n\n" % self._since)
        self._check_session()
        await self._send(send, b"".join(told) or b": alive\n\n")
        self._at = await self._ask("watch", since=self._since, unread=self._unread, wait=WAIT_S)

    def _check_session(self) -> None:
        """Raise Unauthorized where the stream's session has ended: at a sign-out, or by its age."""
        request, sessions = self._request, self._service.sessions
        now = identity.visitor(request, sessions, self._service.port) or identity.bearer(request, sessions)
        if now != self._caller:
            raise Unauthorized("this session has ended")

    async def _ask(self, method: str, **given: Any) -> Any:
        result, _ = await self._service.ask(self._request, self._caller, method, given)
        return result

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        with anyio.fail_after(patience.SEND_S):
            await send({"type": "http.response.body", "body": data, "more_body": more})


def _changes(found: dict[str, Any]) -> bytes:
    told = [_event("change", each) for each in reversed(found["changes"])]
    return b"".join(told + ([_event("more", {})] if found["more"] else []))


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {values.json_text(data)}\n\n".encode("utf-8", "surrogateescape")
