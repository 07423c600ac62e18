"""Calling the door of a daemon on another machine, by its HTTP service.

Owns the client's side: the same methods, values and errors as over the socket. Whose memory it is, the token says
(AVM_API_KEY: an API key, or a session's token). Light, as ``client`` is. Threads may share one; calls are one after
the other.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import urllib.parse
from typing import Any, Final

from avmfs_config.gossip import is_loopback

from avmfs import wire
from avmfs.errors import AvmError, Busy, Denied, Invalid, NotFound, TooBig, from_wire
from avmfs.rpc import times
from avmfs.rpc.client import REQUEST_LIMIT, UNSENDABLE, unsendable

TIMEOUT_S: Final = 120.0
_TYPE: Final = "application/msgpack"


class HttpDoor:
    """See rpc.client.Door. ``agent`` None or "": whoever's the token is. Raises Invalid for what is no address of a
    service, or would show the token to the network; Denied for a token that is not good or is another's."""

    def __init__(
        self,
        url: str,
        agent: str | None,
        token: str,
        *,
        operator: bool = False,
        ca: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """``ca``: a PEM file; what it has signed is trusted, and nothing else. Without: what this machine trusts."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
            raise Invalid(f"{url!r} is no address of a service: https://HOST:PORT")
        if parts.scheme == "http" and not is_loopback(parts.hostname):
            raise Invalid("http:// would show the token to the network: https://, or a tunnel to this machine")
        if not (token := token.strip()):
            raise Denied("a token is needed: AVM_API_KEY (avm keys create, on the machine of the memory)")
        if not (token.isascii() and token.isprintable()):  # what refuses it in a header would show it
            raise Denied("AVM_API_KEY has characters that no token has")
        self.urgent, self._token, self._mutex = "", token, threading.Lock()
        self._timeout_s = timeout_s
        where = parts.hostname, parts.port
        self._connection = (
            http.client.HTTPSConnection(*where, timeout=timeout_s, context=_trusting(ca))
            if parts.scheme == "https"
            else http.client.HTTPConnection(*where, timeout=timeout_s)
        )
        try:
            who = self._ask("GET", "/session", b"")["result"]
            self.agent = str(who["agent"])
            if agent not in (None, "", self.agent):
                raise Denied(f"this token is not {agent}'s")
            if operator and not who["operator"]:
                raise Denied("this token makes no operator: one of avm --operator open does")
        except BaseException:
            self.close()
            raise

    def call(self, method: str, /, **arguments: Any) -> Any:
        """The method's result. Raises what it raised; Busy when the service went away; TooBig for more bytes than it
        takes at once."""
        try:
            body = wire.pack(times.told(arguments))
        except UNSENDABLE as e:
            raise unsendable(method, arguments, e) from None
        if len(body) > REQUEST_LIMIT - 1024:
            raise TooBig(f"{len(body)} bytes at once; a daemon takes {REQUEST_LIMIT}: write it in pieces with append")
        reply = self._ask("POST", f"/api/{urllib.parse.quote(method, safe='')}", body)
        self.urgent = str(reply["urgent"])
        return reply["result"]

    def ended(self) -> bool:
        return False  # an address is asked anew by itself

    def close(self) -> None:
        if (sock := self._connection.sock) is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # a thread that waits for an answer wakes up
        self._connection.close()

    def _ask(self, verb: str, path: str, body: bytes) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": _TYPE, "Accept": _TYPE}
        with self._mutex:
            done = "the request was not sent"
            try:
                self._renew()
                if self._connection.sock is None:
                    self._connection.connect()
                done = "whether it was done is not known"
                self._connection.request(verb, path, body or None, headers)
                got = self._connection.getresponse()
                kind, data = got.headers.get_content_type(), got.read(wire.LIMIT + 1)
            except ssl.SSLCertVerificationError as e:  # before anything of a request was sent
                self._connection.close()
                raise Denied(
                    f"its certificate is not trusted: {e.verify_message} (--ca or AVM_CA: who signed it)"
                ) from None
            except (OSError, http.client.HTTPException) as e:
                self._connection.close()
                raise Busy(f"the service does not answer; {done} ({e})") from e
        if kind != _TYPE or len(data) > wire.LIMIT:
            raise _refusal(got.status, kind, data)
        reply: dict[str, Any] = wire.unpack(data)
        if reply["error"] is not None:
            raise from_wire(*reply["error"])
        return reply

    def _renew(self) -> None:
        """A connection that the service has closed for its silence is opened anew, before anything is sent on it."""
        sock = self._connection.sock
        if sock is None:
            return
        sock.settimeout(0)
        try:
            sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            sock.settimeout(self._timeout_s)
            return
        except OSError:
            pass
        self._connection.close()  # it was closed there, or has sent what nobody asked for


def _refusal(status: int, kind: str, data: bytes) -> AvmError:
    """What no method answered: the service itself, which tells in JSON, or whoever stands before it."""
    if kind == "application/json":
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):  # another's JSON
            error = json.loads(data)["error"]
            return from_wire(error["errno"], error["reason"], error["path"])
    told = f"(status {status}, {kind})"
    if status == 429 or status >= 500:
        return Busy(f"the service cannot answer; whether it was done is not known {told}")
    return NotFound(f"no memory is served at that address {told}")


def _trusting(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None)
    except OSError as e:  # an SSLError is one
        raise Invalid(f"no certificates in PEM: {e.strerror or e}", ca) from None
