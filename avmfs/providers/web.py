"""The handler ``http``: one request, to where the rules of webhooks let it go.

``url`` and ``headers`` are texts with parameters: percent-encoded in the address, printable ASCII in a header; none
may choose the host. Each address that is connected to was seen by the guard (``agents.destinations``), after a redirect
too, which takes no configured header to another host. All together has one time limit and one size limit.
"""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urljoin

from avmfs.agents import destinations
from avmfs.agents.destinations import Allowed
from avmfs.agents.http_delivery import connected
from avmfs.errors import AvmError, Invalid, NotFound, StoreFailed, TimedOut, TooBig
from avmfs.providers.handler import BaseHandler, Context, text_of, texts_of

REDIRECTS: Final = 3


class HttpHandler(BaseHandler):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._url = text_of(config, "url")
        self._headers = texts_of(config, "headers")

    def read(self, path: str, context: Context) -> bytes:
        return self._exchange("GET", b"", context)

    def write(self, path: str, data: bytes, context: Context) -> None:
        self._exchange(str(self.config.get("method", "PUT")), data, context)

    def _exchange(self, method: str, body: bytes, context: Context) -> bytes:
        scheme, mark, rest = self._url.partition("://")
        host = scheme + mark + rest.partition("/")[0]
        if any(f"${{{name}}}" in host for name in context.params):
            raise Invalid("config.url: a parameter of the path cannot choose the host")
        url = context.fill(self._url, lambda value: quote(value, safe="/", errors="surrogateescape"))
        headers = {name: context.fill(value, _for_header) for name, value in self._headers.items()}
        deadline = time.monotonic() + context.timeout_s
        for hop in range(REDIRECTS + 1):
            try:
                where = destinations.parse(url)
                status, answer, data = _once(where, method, headers, body, context, deadline, configured=hop == 0)
            except AvmError as e:
                raise type(e)(e.reason.removeprefix("webhook: ")) from None
            except ssl.SSLError as e:
                raise StoreFailed(f"TLS: {e.reason}") from None
            except (http.client.HTTPException, ValueError) as e:
                raise StoreFailed(f"no answer in HTTP: {type(e).__name__}") from None
            except TimeoutError:
                raise TimedOut(f"no answer within {context.timeout_s:g} s") from None
            except OSError as e:
                raise StoreFailed(f"cannot be reached: {e.strerror or e}") from None
            if status in (301, 302, 303, 307, 308) and method == "GET" and answer.get("Location"):
                url = urljoin(url, answer["Location"])
                there = destinations.parse(url)
                if (there.secure, there.host, there.port) != (where.secure, where.host, where.port):
                    headers = {}
                continue
            if status in (404, 410):
                raise NotFound(f"answered {status}")
            if not 200 <= status < 300:
                raise StoreFailed(f"answered {status}")
            return _as_utf8(data, answer.get_content_charset())
        raise StoreFailed(f"more than {REDIRECTS} redirects")


def _once(
    where: destinations.Destination,
    method: str,
    headers: dict[str, str],
    body: bytes,
    context: Context,
    deadline: float,
    *,
    configured: bool,
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """``configured``: the operator wrote this address, and may name this machine."""
    over = threading.Event()
    with connected(where, Allowed(context.allowed, operator=configured), deadline) as sock:
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
            answer = connection.getresponse()
            data = answer.read(context.max_bytes + 1)
            if over.is_set():  # what was cut off looks like an end
                raise TimeoutError
            if len(data) > context.max_bytes:
                raise TooBig(f"more than {context.max_bytes} bytes")
            if answer.length:
                raise http.client.IncompleteRead(b"")
        except (OSError, http.client.HTTPException):
            if over.is_set():
                raise TimedOut(f"no whole answer within {context.timeout_s:g} s") from None
            raise
        finally:
            watch.cancel()
        return answer.status, answer.headers, data


def _for_header(value: str) -> str:
    if not value.isascii() or not value.isprintable():
        raise Invalid("a parameter in a header has to be printable ASCII")
    return value


def _as_utf8(data: bytes, charset: str | None) -> bytes:
    """Files are UTF-8. What is not in the charset that it says stays as it came."""
    try:
        return data if charset in (None, "utf-8") else data.decode(charset or "utf-8").encode()
    except (LookupError, UnicodeError):
        return data
