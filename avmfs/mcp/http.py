"""The streamable HTTP transport, on loopback, behind a bearer token.

Owns which Host and Origin a request may name. The SDK checks these, so that a web page cannot reach the server by a
name of its own for 127.0.0.1 (DNS rebinding).
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

from avmfs.mcp.guard import Guarded
from avmfs.mcp.patience import CLIENTS, Bounded, Patient
from avmfs.mcp.server import MemoryServer
from avmfs.rpc.client import BODY_MOST

PATH = "/mcp"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def serve_http(
    server: MemoryServer, listener: socket.socket, secret: str, hosts: Sequence[str], origins: Sequence[str]
) -> None:
    """Serve until SIGINT or SIGTERM. Prints the URL to stderr. ``hosts`` and ``origins`` are allowed beside our own."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if listener.family == socket.AF_INET6 else host
    known = sorted({*_LOOPBACK, shown, *hosts})
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[f"{name}:{port}" for name in known] + list(hosts),
        allowed_origins=[*(f"http://{name}:{port}" for name in known), *origins],
    )
    app = server.streamable_http_app(
        streamable_http_path=PATH, transport_security=security, host=host, max_request_body_size=BODY_MOST
    )
    config = uvicorn.Config(
        Guarded(app, secret),
        http=Patient,
        limit_concurrency=CLIENTS,
        log_config=None,
        access_log=False,
        server_header=False,
    )
    print(f"avm-mcp: serving {server.name} on http://{shown}:{port}{PATH}", file=sys.stderr, flush=True)
    try:
        uvicorn.Server(config).run(sockets=[Bounded(listener)])
    finally:
        server.close()
