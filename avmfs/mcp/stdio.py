"""The stdio transport: one client over stdin and stdout."""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from avmfs.mcp.server import MemoryServer


async def serve_stdio(server: MemoryServer) -> None:
    """Until the client closes stdin."""
    try:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())
    finally:
        server.close()
