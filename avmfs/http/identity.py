"""Who asks over HTTP: what a request shows, and which of its claims count.

Owns one-time codes, the tokens that they are exchanged for, and the checks of Host and Origin. Long-lived tokens are
the store's API keys, which the door judges. Codes and tokens live in this process alone, as hashes, and end with it.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from starlette.requests import HTTPConnection

from avmfs.errors import Denied
from avmfs.http.doors import Caller, Unauthorized

CODE_S: Final = 60.0  # that a one-time code may be used
TOKEN_S: Final = 12 * 3600.0
MOST: Final = 1000  # codes, and tokens
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


class Refused(Denied):
    """A request that names a Host or Origin that is not ours."""


class Sessions:
    """One-time codes and the tokens of sessions. Any thread. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._codes: dict[bytes, tuple[Caller, float]] = {}
        self._tokens: dict[bytes, tuple[Caller, float]] = {}

    def code(self, caller: Caller) -> str:
        """A code that is good once, within CODE_S."""
        return self._kept(self._codes, caller, CODE_S)

    def exchange(self, code: str) -> str:
        """A token for a code. Raises Unauthorized: it is unknown, too old, or was used."""
        with self._mutex:
            caller, until = self._codes.pop(_hashed(code), (None, 0.0))
        if caller is None or until < self._clock():
            raise Unauthorized("this one-time code is not good, or was used: avm open makes another")
        return self._kept(self._tokens, caller, TOKEN_S)

    def caller(self, token: str) -> Caller | None:
        """Whose token it is; None for nobody's. By its hash: how alike a guess is cannot be told from the time."""
        with self._mutex:
            caller, until = self._tokens.get(_hashed(token), (None, 0.0))
        return caller if until >= self._clock() else None

    def end(self, token: str) -> None:
        with self._mutex:
            self._tokens.pop(_hashed(token), None)

    def _kept(self, among: dict[bytes, tuple[Caller, float]], caller: Caller, for_s: float) -> str:
        secret, now = secrets.token_urlsafe(32), self._clock()
        with self._mutex:
            for old in [each for each, (_, until) in among.items() if until < now]:
                del among[old]
            if len(among) >= MOST:  # the oldest of the agent that has the most
                [(most, _)] = Counter(each.agent for each, _ in among.values()).most_common(1)
                del among[next(hashed for hashed, (each, _) in among.items() if each.agent == most)]
            among[_hashed(secret)] = (caller, now + for_s)
        return secret


def bearer(request: HTTPConnection, sessions: Sessions) -> Caller:
    """Whom the Authorization header names: the one way in for programs. Raises Unauthorized."""
    given = request.headers.getlist("authorization")
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    token = token.strip(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized("a bearer token is needed: Authorization: Bearer TOKEN (avm keys create, or avm open)")
    if (known := sessions.caller(token)) is not None:
        return known
    if token.startswith("avm_"):
        return Caller(None, key=token)
    raise Unauthorized("this token is not known, or has expired")


def cookie_name(port: int) -> str:
    """Cookies know no ports: two services of a machine would take each other's."""
    return f"avm_session_{port}"


def visitor(request: HTTPConnection, sessions: Sessions, port: int) -> Caller | None:
    """Whom a browser's cookie names, for reading the page; None for nobody."""
    return sessions.caller(request.cookies.get(cookie_name(port), ""))


class Names:
    """By which names this service may be called. ``hosts`` are lower case, IPv6 addresses in brackets."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._hosts = frozenset(hosts)

    def check(self, request: HTTPConnection) -> None:
        """Raise Refused for a Host that is not ours (DNS rebinding: a page whose name was made to lead here) or an
        Origin that is another site's. Ports may differ: a tunnel has its own."""
        hosts = request.headers.getlist("host")
        host = hosts[0].lower() if len(hosts) == 1 else ""
        if _without_port(host) not in self._hosts:
            raise Refused("this service is not called that: name it in http.hosts of config.yaml")
        for origin in request.headers.getlist("origin"):
            scheme, _, where = origin.lower().partition("://")
            if scheme not in ("http", "https") or where != host:
                raise Refused("a page of another site may not ask this")


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


def _hashed(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
