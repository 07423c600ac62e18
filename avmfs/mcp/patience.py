"""How long an HTTP server waits for a client that sends or takes nothing, and how many clients it has at once.

Owns these limits, which hold before anybody has shown a token. Used by avm-mcp and by the daemon's HTTP service.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, Final
from weakref import WeakSet

from uvicorn.protocols.http.h11_impl import H11Protocol

CLIENTS: Final = 256
OPEN: Final = 2 * CLIENTS  # connections, of clients and of those that have said nothing yet, as TLS would have it
HEAD_S: Final = 10.0  # for a request's head to come, and between two requests
SEND_S: Final = 30.0  # for a client to take what it is sent
TAKEN: Final = 64 * 1024  # bytes of an answer that a client takes within SEND_S, unless it has them all


class Bounded(socket.socket):
    """The same listening socket, which hangs up at once on whoever comes while so many are connected."""

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener.family, listener.type, listener.proto, os.dup(listener.fileno()))
        self._taken = WeakSet[socket.socket]()

    def accept(self) -> tuple[socket.socket, Any]:
        made, address = super().accept()
        if sum(each.fileno() >= 0 for each in self._taken) >= OPEN:
            made.close()
            raise ConnectionAbortedError("too many are connected")
        self._taken.add(made)
        return made, address


class Patient(H11Protocol):
    """uvicorn's, which lets a client take its time for the head of a request, and for taking the answer."""

    _late: asyncio.TimerHandle | None = None
    _slow: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def on_response_complete(self) -> None:
        answered = self.cycle
        super().on_response_complete()
        if self.cycle is answered:  # else the next request came with it
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._late, self._slow):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_taking()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.transport.is_closing():  # and the client has still to take the rest
            self._await_taking()
        elif self._slow is not None:
            self._slow.cancel()

    def _await_head(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = self.loop.call_later(HEAD_S, self._end_if_none, self.cycle)

    def _end_if_none(self, before: Any) -> None:
        if self.cycle is before:
            self.transport.close()  # which waits until the client has taken what is left
            self._await_taking()

    def _await_taking(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
        left = self.transport.get_write_buffer_size()
        self._slow = self.loop.call_later(SEND_S, self._end_if_not_taken, left)

    def _end_if_not_taken(self, before: int) -> None:
        if before - self.transport.get_write_buffer_size() < TAKEN:
            self.transport.abort()
        else:
            self._await_taking()
