"""Who may connect over HTTP: the bearer token, and the address that is listened on.

Owns what does not need the SDK, so that a wrong start is refused at once. Which Host and Origin a
request may name is the SDK's to check.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from avmfs_config import find_paths
from avmfs_config.gossip import is_loopback

from avmfs.errors import Denied, Invalid
from avmfs.text.escapes import escaped

TOKEN_BYTES = 32


def listen(host: str, port: int, *, remote: bool) -> socket.socket:
    """A listening socket; port 0 is any free one. Raises Invalid for an address beyond this machine without ``remote``,
    OSError for one that cannot be had."""
    if not remote and not is_loopback(host):
        raise Invalid(f"{host} can be reached from other machines: say --allow-remote, and put TLS in front")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
        listener.setblocking(False)
    except OSError as e:
        listener.close()
        raise OSError(e.errno, f"cannot listen on {host}, port {port}: {e.strerror}") from None
    return listener


def _folder(data_dir: Path, environ: Mapping[str, str]) -> Path:
    """Where tokens are kept: in the data directory; in the user's own one where that is the daemon's user's alone, as
    it is with agents of several Unix users. Raises ConfigError where a home directory is needed and there is none."""
    if data_dir.exists() and not os.access(data_dir, os.W_OK | os.X_OK):
        data_dir = find_paths({name: value for name, value in environ.items() if name != "AVM_DATA_DIR"}).data_dir
    return data_dir / "mcp"


def token(given: str | None, data_dir: Path, agent: str) -> str:
    """The token: AVM_MCP_TOKEN, else what the file holds, made when there is none. Raises Denied for a file that others
    can read, Invalid for an empty token."""
    if (found := os.environ.get("AVM_MCP_TOKEN")) is not None and given is None:
        return _checked(found, "AVM_MCP_TOKEN")
    path = Path(given).expanduser() if given is not None else _folder(data_dir, os.environ) / f"{agent}.token"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        _make(path)
    if path.stat().st_mode & 0o077:
        raise Denied("others may read it: chmod 600", os.fspath(path))
    print(f"avm-mcp: token in {escaped(str(path))}", file=sys.stderr)
    return _checked(path.read_text(), os.fspath(path))


def _make(path: Path) -> None:
    """A new token there, unless another process is faster: the file has all of it or is not there."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
            file.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.unlink(name)


def _checked(text: str, where: str) -> str:
    found = text.strip()
    if len(found) < 16 or not found.isascii() or not found.isprintable() or " " in found:
        raise Invalid("a token has at least 16 printable ASCII characters", where)
    return found


class Guarded:
    """An ASGI application behind a bearer token."""

    def __init__(self, app: Any, secret: str) -> None:
        self._app = app
        self._wanted = secret.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":  # nothing here speaks it, and it would need the token too
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http" and not self._knows(scope["headers"]):
            body = b'{"error": "a bearer token is needed"}'
            headers = [
                (b"content-type", b"application/json"),
                (b"www-authenticate", b"Bearer"),
                (b"content-length", str(len(body)).encode()),
            ]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        await self._app(scope, receive, send)

    def _knows(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")  # the scheme's name has no case (RFC 9110, 11.1)
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(b" "), self._wanted)
