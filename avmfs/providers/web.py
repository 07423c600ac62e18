"""The handler ``http``: one request, to where the rules of webhooks let it go.

``url`` and ``headers`` are texts with parameters: percent-encoded in the address, printable ASCII in a header; none
may choose the host. Each address that is connected to was seen by the guard (``agents.destinations``), after a redirect
too, which takes no configured header to another host. All together has one time limit and one size limit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urljoin

from avmfs.agents import destinations
from avmfs.agents.destinations import Allowed
from avmfs.agents.http_exchange import exchange
from avmfs.errors import AvmError, Invalid, NotFound, StoreFailed
from avmfs.providers.handler import BaseHandler, Context, text_of, texts_of

REDIRECTS: Final = 3


class HttpHandler(BaseHandler):
    KEYS = ("url", "headers", "method")

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._url = text_of(config, "url")
        self._headers = texts_of(config, "headers")

    def read(self, path: str, context: Context) -> bytes:
        return self._exchange("GET", b"", context)

    def write(self, path: str, data: bytes, context: Context) -> None:
        self._exchange(str(self.config.get("method", "PUT")), data, context)

    def _exchange(self, method: str, body: bytes, context: Context) -> bytes:
        scheme, mark, rest = context.fill(self._url, lambda value: "\0").partition("://")
        if "\0" in scheme + mark + rest.partition("/")[0]:
            raise Invalid("config.url: a parameter of the path cannot choose the host")
        url = context.fill(self._url, lambda value: quote(value, safe="/", errors="surrogateescape"))
        headers = {name: context.fill(value, _for_header) for name, value in self._headers.items()}
        deadline = time.monotonic() + context.timeout_s
        where = _parsed(url)
        for hop in range(REDIRECTS + 1):
            allowed = Allowed(context.allowed, operator=hop == 0)  # who wrote this address may name this machine
            status, answer, data = exchange(
                method,
                where,
                headers,
                body,
                allowed,
                deadline,
                timeout_s=context.timeout_s,
                max_bytes=context.max_bytes,
            )
            if status in (301, 302, 303, 307, 308) and method == "GET" and answer.get("Location"):
                url, before = _joined(url, answer["Location"]), where
                where = _parsed(url)
                if (where.secure, where.host, where.port) != (before.secure, before.host, before.port):
                    headers = {}
                continue
            if status in (404, 410):
                raise NotFound(f"answered {status}")
            if not 200 <= status < 300:
                raise StoreFailed(f"answered {status}")
            return _as_utf8(data, answer.get_content_charset())
        raise StoreFailed(f"more than {REDIRECTS} redirects")


def _parsed(url: str) -> destinations.Destination:
    try:
        return destinations.parse(url)
    except AvmError as e:
        raise type(e)(e.reason.removeprefix("webhook: ")) from None


def _joined(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        raise StoreFailed("redirected to no address") from None


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
