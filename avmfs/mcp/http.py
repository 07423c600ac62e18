"""The streamable HTTP transport: loopback, with a bearer token.

Owns who may connect: the address listened on, the token, and which Host and Origin a request may name. The SDK checks
the latter two, so that a web page cannot reach the server by a name of its own for 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

from avmfs.errors import Denied, Invalid
from avmfs.mcp.server import MemoryServer

PATH = "/mcp"
TOKEN_BYTES = 32
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def token(given: str | None, data_dir: Path, agent: str) -> str:
    """The token: AVM_MCP_TOKEN, else what the file holds, made when there is none. Raises Denied for a file that others
    can read, Invalid for an empty token."""
    if (found := os.environ.get("AVM_MCP_TOKEN")) is not None and given is None:
        return _checked(found, "AVM_MCP_TOKEN")
    path = Path(given).expanduser() if given is not None else data_dir / "mcp" / f"{agent}.token"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
    except FileExistsError:
        if path.stat().st_mode & 0o077:
            raise Denied("others may read it: chmod 600", os.fspath(path)) from None
    print(f"avm-mcp: token in {path}", file=sys.stderr)
    return _checked(path.read_text(), os.fspath(path))


def _checked(text: str, where: str) -> str:
    found = text.strip()
    if len(found) < 16 or not found.isascii() or not found.isprintable() or " " in found:
        raise Invalid("a token has at least 16 printable ASCII characters", where)
    return found


def serve_http(
    server: MemoryServer, host: str, port: int, secret: str, hosts: Sequence[str], origins: Sequence[str], *,
    remote: bool,
) -> None:  # fmt: skip
    """Serve until SIGINT or SIGTERM. Prints the URL to stderr. Raises Invalid for an address beyond this machine
    without ``remote``, OSError for one that cannot be had."""
    if not remote and not _is_loopback(host):
        raise Invalid(f"{host} can be reached from other machines: say --allow-remote, and put TLS in front")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
        listener.setblocking(False)
        port = listener.getsockname()[1]
        shown = f"[{host}]" if family == socket.AF_INET6 else host
        known = sorted({*_LOOPBACK, shown, *hosts})
        security = TransportSecuritySettings(
            enable_dns_rebinding_protection=True,
            allowed_hosts=[f"{name}:{port}" for name in known] + list(hosts),
            allowed_origins=[*(f"http://{name}:{port}" for name in known), *origins],
        )
        app = server.streamable_http_app(streamable_http_path=PATH, transport_security=security, host=host)
        config = uvicorn.Config(_Guarded(app, secret), log_config=None, access_log=False, server_header=False)
        print(f"avm-mcp: serving {server.name} on http://{shown}:{port}{PATH}", file=sys.stderr, flush=True)
        try:
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            server.close()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Guarded:
    """An ASGI application behind a bearer token."""

    def __init__(self, app: Any, secret: str) -> None:
        self._app = app
        self._wanted = f"Bearer {secret}".encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not self._knows(scope["headers"]):
            body = b'{"error": "a bearer token is needed"}'
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer"),
                       (b"content-length", str(len(body)).encode())]  # fmt: skip
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        await self._app(scope, receive, send)

    def _knows(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        given = [value for name, value in headers if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._wanted)
