"""The transport of one client: messages as lines on stdin and stdout.

Owns what is answered to a line that is no message. The SDK drops it, and who has asked something in it would wait until
a limit of its own: half of an emoji in a text is enough, as a string that was cut in JavaScript has it. The messages of
a batch (protocol 2025-03-26) are taken and answered one by one. Called by ``main``.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from avmfs.errors import NO_TEXT
from avmfs.mcp.server import MemoryServer


async def serve(server: MemoryServer) -> None:
    """Serve one client until it closes stdin or stdout. Raises OSError where no answer can be written."""
    lines = _Lines(os.fdopen(os.dup(0), encoding="utf-8", errors="replace"))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # the SDK does so with a stdin of its own: what the client says is nobody else's to read
    os.close(nothing)
    try:
        async with stdio_server(stdin=lines) as (reading, writing):
            lines.answers = writing
            await server.run(reading, writing, server.create_initialization_options())
    except ExceptionGroup as e:
        # The client may go while it is being answered; who has one more answer for it then meets a closed stream.
        left = e.split((ConnectionError, anyio.BrokenResourceError))[1]
        problem: Exception | None = left
        while isinstance(problem, ExceptionGroup) and len(problem.exceptions) == 1:
            problem = problem.exceptions[0]
        if left is not None:
            raise (problem if isinstance(problem, OSError) else left) from None
    finally:
        server.close()


class _Lines(anyio.AsyncFile[str]):
    """The lines that are messages; what is to be said to others goes to ``answers``."""

    answers: Any

    async def __aiter__(self) -> AsyncIterator[str]:
        # A client that takes no more answers may keep its end of stdin open.
        while line := await anyio.to_thread.run_sync(self.wrapped.readline, abandon_on_cancel=True):
            for each in _messages(line):
                if isinstance(each, str):
                    yield each
                else:
                    await self.answers.send(SessionMessage(each))


def _messages(line: str) -> Iterator[str | types.JSONRPCError]:
    if _is_message(line):
        yield line
    elif line.strip():
        try:
            found = json.loads(line)
            members = found if isinstance(found, list) and found else [found]
            texts = [json.dumps(each, ensure_ascii=False) for each in members]
        except (ValueError, RecursionError):
            yield _error(types.PARSE_ERROR, "this line is no JSON")
            return
        for each, text in zip(members, texts, strict=True):
            yield text if _is_message(text) else _refusal(each, text)


def _is_message(text: str) -> bool:
    try:
        types.jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        return False
    return True


def _refusal(found: Any, text: str) -> types.JSONRPCError:
    """With the number of the request that it was meant to be."""
    number = found.get("id") if isinstance(found, dict) and "method" in found else None
    try:
        text.encode()
    except UnicodeEncodeError:
        return _error(types.INVALID_REQUEST, NO_TEXT, number)
    return _error(types.INVALID_REQUEST, "this is no message of JSON-RPC 2.0", number)


def _error(code: int, said: str, number: Any = None) -> types.JSONRPCError:
    known = type(number) is int or (isinstance(number, str) and number.isprintable())
    error = types.ErrorData(code=code, message=said)
    return types.JSONRPCError(jsonrpc="2.0", id=number if known else None, error=error)
