"""Frames between processes: length-prefixed msgpack, size-capped, never pickle.

Owns the encoding that the writer's socket, the daemon's door and the embedding pipes share. msgpack
carries None, bool, int, float, str, bytes, list and dict and builds nothing else, so a hostile peer
can at most send wrong values. Strings may carry surrogate escapes (undecodable names). And connecting to a peer of the
right user.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from avmfs.errors import Busy

PROTOCOL = 1  # in every greeting; a peer of another version is refused
LIMIT = 64 * 1024 * 1024
ITEMS = 200_000  # in all lists and maps of what a stranger sends: an empty map is a byte there, and 64 here
BEGINS = 4  # times that what comes in pieces, and changes meanwhile, is read from its beginning
PIECE = 64 * 1024  # received at once: more would be mapped and unmapped anew each time
_LENGTH = struct.Struct(">I")
_TIMEVAL = struct.Struct("@ll")


class FrameError(ValueError):
    """The peer sent what is no frame of ours: too large, or not msgpack."""


class _Packer(threading.local):
    """One for each thread: making one for each value costs more than most values do."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.pack: Callable[[Any], bytes] = msgpack.Packer(unicode_errors="surrogateescape").pack


_packer = _Packer()


def pack(value: Any) -> bytes:
    """The msgpack bytes of one value."""
    packed = _packer.pack(value)
    if len(packed) > PIECE:  # it would keep the room
        _packer.renew()
    return packed


def unpack(data: bytes | memoryview, items: int | None = None) -> Any:
    """Inverse of pack. Raises FrameError, also for more than so many ``items`` in lists and maps, before they are
    made."""
    limits: dict[str, Any] = {} if items is None or len(data) <= items else _counting(items)
    try:
        return msgpack.unpackb(
            data, unicode_errors="surrogateescape", strict_map_key=False, ext_hook=_no_extension, timestamp=1, **limits
        )
    except (msgpack.UnpackException, ValueError, TypeError) as e:
        raise FrameError(f"not msgpack: {e}") from None


def frame(value: Any) -> bytes:
    """Length and body, ready to be sent."""
    return framed(pack(value))


def framed(packed: bytes) -> bytes:
    """The frame of a value that is packed already."""
    return _LENGTH.pack(len(packed)) + packed


def send(sock: socket.socket, value: Any) -> None:
    sock.sendall(frame(value))


def receive(sock: socket.socket, limit: int = LIMIT, items: int | None = None) -> Any:
    """The next frame of a blocking socket. Raises EOFError when the peer closed, FrameError for a bad frame,
    TimeoutError by the socket's own time limit."""
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size))
    if length > limit:
        raise FrameError(f"a frame of {length} bytes, {limit} are allowed")
    return unpack(_exactly(sock, length), items)


def receive_answer(sock: socket.socket, limit: int = LIMIT) -> Any:
    """Like receive(), from a peer that sends nothing but an answer to each request: most come in one piece. Raises
    FrameError for more than one."""
    data = sock.recv(PIECE)
    if not data:
        raise EOFError("the peer closed the connection")
    if len(data) < _LENGTH.size:
        data += _exactly(sock, _LENGTH.size - len(data))
    (length,) = _LENGTH.unpack_from(data)
    if length > limit:
        raise FrameError(f"a frame of {length} bytes, {limit} are allowed")
    missing = _LENGTH.size + length - len(data)
    if missing < 0:
        raise FrameError("more than one answer")
    if missing:
        data += _exactly(sock, missing)
    return unpack(memoryview(data)[_LENGTH.size :])


def limit_waiting(sock: socket.socket, seconds: float) -> None:
    """Let the kernel end what waits on a blocking socket for longer (BlockingIOError): settimeout() would ask it
    before each call whether it would have to wait."""
    whole, rest = divmod(max(seconds, 0.001), 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(int(whole), int(rest * 1e6)))


def connect(sock: socket.socket, address: str | Path, owner: int | None = 0) -> None:
    """connect(2), to a process of this user, of root or of ``owner`` (None: of anybody): where a runtime directory was
    removed, anybody may have made another one, with sockets in it. Raises OSError."""
    sock.connect(os.fspath(address))
    if owner is not None and (uid := peer_uid(sock)) not in (0, os.geteuid(), owner):
        raise PermissionError(errno.EACCES, f"another user listens there (uid {uid})", os.fspath(address))


def peer_uid(sock: socket.socket) -> int:
    """The user at the other end of a Unix socket, as the kernel knows it."""
    if sys.platform == "linux":
        _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    else:
        _, uid = struct.unpack_from("2I", sock.getsockopt(0, 1, 76))  # SOL_LOCAL, LOCAL_PEERCRED: struct xucred
    return int(uid)


class Assembler:
    """Collects frames from what a non-blocking socket delivers."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """The frames that these bytes complete. Raises FrameError; the connection is then of no more use."""
        size = len(data) - _LENGTH.size
        if not self._buffer and 0 < size <= self._limit and _LENGTH.unpack_from(data)[0] == size:
            return [unpack(memoryview(data)[_LENGTH.size :])]  # one whole frame, as most come
        self._buffer += data
        frames: list[Any] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self._limit:
                raise FrameError(f"a frame of {length} bytes, {self._limit} are allowed")
            stop = _LENGTH.size + length
            if len(self._buffer) < stop:
                break
            with memoryview(self._buffer) as whole, whole[_LENGTH.size : stop] as body:
                frames.append(unpack(body))
            del self._buffer[:stop]
        return frames


def _counting(items: int) -> dict[str, Any]:
    """Arguments of unpackb that end it when there are more."""
    left = items

    def counted(found: Any) -> Any:
        nonlocal left
        left -= 1 + len(found)
        if left < 0:
            raise ValueError(f"more than {items} items")
        return found

    return {"list_hook": counted, "object_hook": counted, "max_array_len": items, "max_map_len": items}


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension type {code}")


def _exactly(sock: socket.socket, length: int) -> bytes:
    piece = bytearray()
    while len(piece) < length:
        more = sock.recv(min(length - len(piece), PIECE))
        if not more:
            raise EOFError("the peer closed the connection")
        piece += more
    return bytes(piece)


def pieces(ask: Callable[[int], Any]) -> bytes:
    """All bytes of what comes piece by piece: ``ask``, given an offset, answers {"data", "more"} and, where it may be
    another one by the next piece, "etag". Begins again when it is. Raises Busy when it is so each time."""
    for _ in range(BEGINS):
        piece = ask(0)
        etag, data = piece.get("etag"), bytearray(piece["data"])
        while piece["more"] and (piece := ask(len(data))).get("etag") == etag:
            data += piece["data"]
        if piece.get("etag") == etag:
            return bytes(data)
    raise Busy("it changes while it is read, each time")
