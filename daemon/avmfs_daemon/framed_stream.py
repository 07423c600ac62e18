"""Frames over a non-blocking descriptor: the supervisor's side of every conversation in its loop.

Owns the buffers and the caps; called by the supervisor for children's control pipes and by the control socket.
A `multiprocessing` Connection's bytes are framed as `avmfs.wire` frames are (a big-endian 32-bit length), so a
child may use `send_bytes` and `recv_bytes` while this side never blocks, whatever the child sends or fails to.
"""

from __future__ import annotations

import contextlib
import os
import selectors
from collections.abc import Callable, Iterator
from typing import Any

from avmfs import wire

FRAME_LIMIT = 64 * 1024
UNSENT_LIMIT = 1024 * 1024


class Closed(Exception):
    """The peer is gone, sent what is no frame, or does not take what it is sent."""


class FramedStream:
    """Owns `descriptor` and closes it. In a loop: `attend`, and then `tell`."""

    def __init__(self, descriptor: int, limit: int = FRAME_LIMIT) -> None:
        self.descriptor = descriptor
        self._frames = wire.Assembler(limit)
        self._unsent = bytearray()
        self._selector: selectors.BaseSelector | None = None
        os.set_blocking(descriptor, False)

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def attend(
        self, selector: selectors.BaseSelector, got: Callable[[list[Any]], None], lost: Callable[[Closed], None]
    ) -> None:
        """From now on frames go to `got` as they come in, and the end to `lost`, which closes; `got` may raise Closed.
        Whoever has the selector calls its data with the event's mask."""
        selector.register(self.descriptor, selectors.EVENT_READ, self._ready)
        self._selector, self._got, self._lost = selector, got, lost

    def tell(self, value: Any) -> None:
        """`send`, to one that is attended to and not closed."""
        if self.descriptor >= 0:
            with self._losing():
                self.send(value)

    def _ready(self, mask: int) -> None:
        with self._losing():
            if mask & selectors.EVENT_WRITE:
                self.flush()
            if mask & selectors.EVENT_READ:
                self._got(self.read())

    @contextlib.contextmanager
    def _losing(self) -> Iterator[None]:
        try:
            yield
        except Closed as e:
            self._lost(e)
        if self._selector is not None and self.descriptor >= 0:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.unsent else 0)
            self._selector.modify(self.descriptor, wanted, self._ready)

    def read(self) -> list[Any]:
        """The frames that have come in. Raises Closed."""
        try:
            data = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return []
        except OSError as e:
            raise Closed(str(e)) from None
        if not data:
            raise Closed("closed")
        try:
            return self._frames.feed(data)
        except wire.FrameError as e:
            raise Closed(str(e)) from None

    def send(self, value: Any) -> None:
        """Queue a frame and write what the peer takes now; `flush` writes the rest. Raises Closed."""
        self._unsent += wire.frame(value)
        self.flush()
        if len(self._unsent) > UNSENT_LIMIT:
            raise Closed("does not read")

    def flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self.descriptor, self._unsent)]
        except BlockingIOError:
            return
        except OSError as e:
            raise Closed(str(e)) from None

    def close(self) -> None:
        if self.descriptor >= 0:
            if self._selector is not None:
                self._selector.unregister(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = -1
