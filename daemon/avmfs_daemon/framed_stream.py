"""Frames over a non-blocking descriptor: the supervisor's side of every conversation in its loop.

Owns the buffers and the caps; called by the supervisor for children's control pipes and by the control socket.
A `multiprocessing` Connection's bytes are framed as `avmfs.wire` frames are (a big-endian 32-bit length), so a
child may use `send_bytes` and `recv_bytes` while this side never blocks, whatever the child sends or fails to.
"""

from __future__ import annotations

import os
from typing import Any

from avmfs import wire

FRAME_LIMIT = 64 * 1024
UNSENT_LIMIT = 1024 * 1024


class Closed(Exception):
    """The peer is gone, sent what is no frame, or does not take what it is sent."""


class FramedStream:
    """Owns `descriptor` and closes it."""

    def __init__(self, descriptor: int, limit: int = FRAME_LIMIT) -> None:
        self.descriptor = descriptor
        self._frames = wire.Assembler(limit)
        self._unsent = bytearray()
        os.set_blocking(descriptor, False)

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

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
            os.close(self.descriptor)
            self.descriptor = -1
