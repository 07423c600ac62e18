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
from dataclasses import dataclass, replace
from typing import Final

from starlette.requests import HTTPConnection

from avmfs.errors import Busy, Denied
from avmfs.http.doors import Caller, Unauthorized

CODE_S: Final = 60.0  # that a one-time code may be used
TOKEN_S: Final = 12 * 3600.0
MOST: Final = 1000  # codes, and tokens
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


class Refused(Denied):
    """A request that names a Host or Origin that is not ours."""


@dataclass(frozen=True, slots=True)
class _Grant:
    """A code or a token: whose, until when, and which session has asked for it, with which it ends."""

    caller: Caller
    until: float
    asker: bytes = b""


class Sessions:
    """One-time codes and the tokens of sessions. Any thread. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._codes: dict[bytes, _Grant] = {}
        self._tokens: dict[bytes, _Grant] = {}

    def code(self, caller: Caller) -> str:
        """A code that is good once, within CODE_S."""
        return self._kept(self._codes, _Grant(caller, self._clock() + CODE_S))

    def bind(self, code: str, token: str) -> None:
        """What comes of a code ends with the session that asked for it. Raises Busy where another process has made it,
        in which that session is none."""
        with self._mutex:
            if (made := self._codes.get(_hashed(code))) is None:
                raise Busy("the HTTP service is starting")
            self._codes[_hashed(code)] = replace(made, asker=_hashed(token))

    def exchange(self, code: str) -> str:
        """A token for a code. Raises Unauthorized: it is unknown, too old, or was used."""
        with self._mutex:
            made = self._codes.pop(_hashed(code), None)
            if made is None or not self._lasts(made):
                raise Unauthorized("this one-time code is not good, or was used: avm open makes another")
            longest = self._tokens[made.asker].until if made.asker else float("inf")
        return self._kept(self._tokens, replace(made, until=min(longest, self._clock() + TOKEN_S)))

    def left_s(self, token: str) -> float:
        """How long a token that has been given out is good for."""
        with self._mutex:
            return self._tokens[_hashed(token)].until - self._clock()

    def caller(self, token: str) -> Caller | None:
        """Whose token it is; None for nobody's. By its hash: how alike a guess is cannot be told from the time."""
        with self._mutex:
            found = self._tokens.get(_hashed(token))
            return found.caller if found is not None and self._lasts(found) else None

    def end(self, token: str) -> None:
        with self._mutex:
            self._tokens.pop(_hashed(token), None)

    def _lasts(self, found: _Grant) -> bool:
        """Whether neither it nor a session that it hangs on has ended."""
        each: _Grant | None = found
        while each is not None and each.until >= self._clock():
            if not each.asker:
                return True
            each = self._tokens.get(each.asker)
        return False

    def _kept(self, among: dict[bytes, _Grant], made: _Grant) -> str:
        secret, now = secrets.token_urlsafe(32), self._clock()
        with self._mutex:
            for old in [each for each, kept in among.items() if kept.until < now]:
                del among[old]
            if len(among) >= MOST:  # the oldest of the agent that has the most
                [(most, _)] = Counter(each.caller.agent for each in among.values()).most_common(1)
                del among[next(hashed for hashed, each in among.items() if each.caller.agent == most)]
            among[_hashed(secret)] = made
        return secret


def shown(request: HTTPConnection) -> str:
    """The token in the Authorization header; "" where there is none."""
    given = request.headers.getlist("authorization")
    scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    return token.strip(" ") if scheme.lower() == "bearer" else ""


def bearer(request: HTTPConnection, sessions: Sessions) -> Caller:
    """Whom the Authorization header names: the one way in for programs. Raises Unauthorized."""
    if not (token := shown(request)):
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
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
