"""The transport of one client: messages as lines on stdin and stdout.

Owns that each line becomes messages (``messages``), or is answered, and how it ends. Called by ``main``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.to_thread
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from avmfs.mcp.messages import messages
from avmfs.mcp.server import MemoryServer


async def serve(server: MemoryServer) -> None:
    """Serve one client until it closes stdin or stdout. Raises OSError where no answer can be written."""
    lines = _Lines(os.fdopen(os.dup(0), encoding="utf-8", errors="surrogateescape"))
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
            for each in messages(line):
                if isinstance(each, str):
                    yield each
                else:
                    await self.answers.send(SessionMessage(each))
