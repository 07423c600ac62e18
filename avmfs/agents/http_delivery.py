"""One POST to one address that has been vetted, within one time limit for all of it.

Owns the exchange, on plain sockets: http.client connects to what a name resolves to at that moment, and lets a receiver
that sends a byte now and then keep it for ever. Here the socket goes to an address that the guard has seen, TLS asks
for the name (SNI, certificate) all the same, the answer's head is all that is read, and it has a size and a deadline.
Redirects are answers like any other: not a success. Threads may call it; it keeps nothing.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Final

from avmfs.agents.destinations import Allowed, Destination, vetted
from avmfs.errors import Denied

HEAD_BYTES: Final = 16 * 1024
INTERIM_ANSWERS: Final = 8
RETRY_AFTER_MAX_S: Final = 6 * 3600.0
GONE: Final = 410
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: [^\r\n]*)?\Z")


class PostFailed(Exception):
    """The delivery was not taken. ``final``: trying again is of no use. ``wait_s``: what the receiver asked for."""

    def __init__(self, reason: str, *, final: bool = False, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.final, self.wait_s = final, wait_s


@dataclass(frozen=True, slots=True)
class Request:
    destination: Destination
    headers: Mapping[str, str]
    body: bytes

    def head(self) -> bytes:
        lines = [
            f"POST {self.destination.target} HTTP/1.1",
            f"Host: {self.destination.header}",
            "User-Agent: avmfs",
            "Content-Type: application/json",
            f"Content-Length: {len(self.body)}",
            "Accept: */*",
            "Connection: close",
            *(f"{name}: {value}" for name, value in self.headers.items()),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")


def post(request: Request, allowed: Allowed, timeout_s: float) -> int:
    """The status, 200 to 299. Raises PostFailed, and Denied when the place may not be reached."""
    deadline = time.monotonic() + timeout_s
    try:
        with connected(request.destination, allowed, deadline) as sock:
            sock.settimeout(_left(deadline))
            sock.sendall(request.head() + request.body)
            status, retry_after = _answer(sock, deadline)
    except TimeoutError:
        raise PostFailed(f"no answer within {timeout_s:g} s") from None
    except ssl.SSLCertVerificationError as e:
        raise PostFailed(f"certificate: {e.verify_message}") from None
    except Denied:
        raise
    except (OSError, ValueError) as e:
        reason = getattr(e, "strerror", None) or str(e) or type(e).__name__
        raise PostFailed(f"no delivery: {reason}"[:200]) from None
    if 200 <= status < 300:
        return status
    if 300 <= status < 400:
        raise PostFailed(f"answered {status}: redirects are not followed")
    raise PostFailed(f"answered {status}", final=status == GONE, wait_s=retry_after)


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def connected(destination: Destination, allowed: Allowed, deadline: float) -> socket.socket:
    """A socket to an address that the guard has seen, until ``deadline`` (monotonic). Raises Denied, OSError."""
    last: OSError | None = None
    found = vetted(destination, allowed)
    for others, (family, kind, protocol, _, address) in zip(reversed(range(len(found))), found, strict=True):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left(deadline) / (others + 1))  # one that never answers leaves time for those behind it
            sock.connect(address)
            if not destination.secure:
                return sock
            sock.settimeout(_left(deadline))
            return _tls().wrap_socket(sock, server_hostname=destination.host)
        except OSError as e:
            sock.close()
            last = e
    assert last is not None, "vetted gives at least one"
    raise last


def _answer(sock: socket.socket, deadline: float) -> tuple[int, float]:
    """Status and Retry-After of the final answer."""
    data = b""
    for _ in range(INTERIM_ANSWERS):
        while b"\r\n\r\n" not in data:
            if len(data) > HEAD_BYTES:
                raise ValueError("an answer whose head does not end")
            sock.settimeout(_left(deadline))
            piece = sock.recv(4096)
            if not piece:
                raise ValueError("hung up without an answer")
            data += piece
        head, _, data = data.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        found = _STATUS.match(first)
        if found is None:
            raise ValueError("the answer is not HTTP/1.1")
        status = int(found[1])
        if status >= 200:
            return status, _retry_after(lines)
    raise ValueError("only interim answers")


def _retry_after(lines: list[bytes]) -> float:
    for line in lines:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"retry-after":
            return max(0.0, min(RETRY_AFTER_MAX_S, _seconds(value.strip())))
    return 0.0


def _seconds(value: bytes) -> float:
    """Until when to wait is said in seconds, or by a date; 0 where it is neither."""
    if value.isdigit():
        return float(value[:9])
    try:
        at = parsedate_to_datetime(value.decode("ascii"))
        return at.replace(tzinfo=at.tzinfo or UTC).timestamp() - time.time()
    except (ValueError, IndexError, OverflowError):
        return 0.0


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
