"""What a client has sent as messages of JSON-RPC.

Owns what is answered to what is none. The SDK drops it, or takes a request whose id is no number and no text for a
notification, and who has asked something in it would wait until a limit of its own: half of an emoji in a text is
enough, as a string that was cut in JavaScript has it. Bytes that are no UTF-8 come here as surrogates: what they were
to say is refused, not guessed. An id of 1.0 is 1. The messages of a batch (protocol 2025-03-26) are taken and answered
one by one; over HTTP the SDK refuses one. Called by the transports.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import mcp_types as types

from avmfs.errors import NO_TEXT


class Answering:
    """An ASGI application for requests whose body comes in one piece."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        first = await receive()
        found = [*messages(first.get("body", b"").decode(errors="surrogateescape"))]
        one = found[0] if len(found) == 1 else None
        if isinstance(one, types.JSONRPCError):
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 400, "headers": headers})
            await send({"type": "http.response.body", "body": one.model_dump_json(exclude_unset=True).encode()})
            return
        pending = [first if one is None else {**first, "body": one.encode()}]

        async def replay() -> Any:
            return pending.pop() if pending else await receive()

        await self._app(scope, replay, send)


def messages(line: str) -> Iterator[str | types.JSONRPCError]:
    if _is_message(line):
        yield line
    elif line.strip():
        try:
            found = json.loads(line)
            members = found if isinstance(found, list) and found else [found]
            for each in members:
                if isinstance(each, dict) and isinstance(number := each.get("id"), float) and number.is_integer():
                    each["id"] = int(number)
            texts = [json.dumps(each, ensure_ascii=False) for each in members]
        except (ValueError, RecursionError):
            yield _error(types.PARSE_ERROR, "this is no JSON")
            return
        for each, text in zip(members, texts, strict=True):
            yield text if _is_message(text) else _refusal(each, text, line)


def _is_message(text: str) -> bool:
    try:
        found = types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        return False
    if not isinstance(found, types.JSONRPCNotification) or found.method.startswith("notifications/"):
        return True
    return "id" not in json.loads(text)


def _refusal(found: Any, text: str, line: str) -> types.JSONRPCError:
    """With the number of the request that it was meant to be."""
    number = found.get("id") if isinstance(found, dict) and "method" in found else None
    for written, wrong in ((line, "this is not in UTF-8"), (text, NO_TEXT)):
        try:
            written.encode()
        except UnicodeEncodeError:
            return _error(types.INVALID_REQUEST, wrong, number)
    said = "this is no message of JSON-RPC 2.0, in which an id is a whole number or a text"
    return _error(types.INVALID_REQUEST, said, number)


def _error(code: int, said: str, number: Any = None) -> types.JSONRPCError:
    known = type(number) is int or (isinstance(number, str) and number.isprintable())
    error = types.ErrorData(code=code, message=said)
    return types.JSONRPCError(jsonrpc="2.0", id=number if known else None, error=error)
