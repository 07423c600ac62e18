"""One request and its whole answer, from an address that has been vetted, within one time limit and one size.

Owns the exchange and how its failures are told. Called by the handler ``http`` and by the clients of a re-ranker and of
a writer of summaries. Redirects are answers like any other. Threads may call it; it keeps nothing.
"""

from __future__ import annotations

import http.client
import os
import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from socket import socket

from avmfs.agents.destinations import Allowed, Destination
from avmfs.agents.http_delivery import connected
from avmfs.errors import AvmError, StoreFailed, TimedOut, TooBig


def exchange(
    method: str,
    where: Destination,
    headers: Mapping[str, str],
    body: bytes,
    allowed: Allowed,
    deadline: float,
    *,
    timeout_s: float,
    max_bytes: int,
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Status, headers and body, until ``deadline`` (monotonic); ``timeout_s`` is what an error calls it. Raises Denied
    for a place that may not be reached, TimedOut, TooBig, StoreFailed."""
    try:
        with connected(where, allowed, deadline) as sock:
            return _asked(sock, method, where, headers, body, deadline, max_bytes)
    except AvmError as e:
        raise type(e)(e.reason.removeprefix("webhook: ")) from None
    except ssl.SSLError as e:
        raise StoreFailed(f"TLS: {e.reason}") from None
    except (http.client.HTTPException, ValueError) as e:
        raise StoreFailed(f"no answer in HTTP: {type(e).__name__}") from None
    except TimeoutError:
        raise TimedOut(f"no answer within {timeout_s:g} s") from None
    except OSError as e:
        raise StoreFailed(f"cannot be reached: {e.strerror or e}") from None


def bearer(key_env: str | None, key_file: Path | None) -> dict[str, str]:
    """The header with the key that a variable or a file has; none where neither is named. Raises StoreFailed."""
    if key_env is not None:
        key, where = os.environ.get(key_env, ""), f"the variable {key_env}"
    elif key_file is not None:
        where = str(key_file)
        try:
            key = key_file.read_text("utf-8").strip()
        except (OSError, ValueError) as e:
            raise StoreFailed(f"{where}: {getattr(e, 'strerror', None) or 'not UTF-8 text'}") from None
    else:
        return {}
    if not key or not key.isascii() or not key.isprintable():
        raise StoreFailed(f"{where} has no key")
    return {"Authorization": f"Bearer {key}"}


def _asked(
    sock: socket,
    method: str,
    where: Destination,
    headers: Mapping[str, str],
    body: bytes,
    deadline: float,
    max_bytes: int,
) -> tuple[int, http.client.HTTPMessage, bytes]:
    over = threading.Event()
    sock.settimeout(max(0.01, deadline - time.monotonic()))

    def end() -> None:
        over.set()
        sock.shutdown(2)  # a source that sends a byte now and then would never time out

    watch = threading.Timer(max(0.0, deadline - time.monotonic()), end)
    watch.daemon = True
    watch.start()
    connection = http.client.HTTPConnection(where.host, where.port)
    try:
        connection.sock = sock
        given = {"Host": where.header, "User-Agent": "avmfs", "Accept": "*/*", "Connection": "close", **headers}
        connection.request(method, where.target, body or None, given)
        with connection.getresponse() as answer:
            data, left = answer.read(max_bytes + 1), answer.length
        if over.is_set():  # what was cut off looks like an end
            raise TimeoutError
        if len(data) > max_bytes:
            raise TooBig(f"more than {max_bytes} bytes")
        if left:
            raise http.client.IncompleteRead(b"")
    except (OSError, http.client.HTTPException):
        if over.is_set():
            raise TimeoutError from None
        raise
    finally:
        watch.cancel()
    return answer.status, answer.headers, data
