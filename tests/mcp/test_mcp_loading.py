"""What avm-mcp loads to be ready, and that whatever it puts off is there when it is asked for."""

from __future__ import annotations

import json
import subprocess
import sys

_LIGHTLY = """
import json, sys
from avmfs.mcp.loading import lightly
with lightly():
    from avmfs.mcp.server import MemoryServer
import pydantic
early = sorted({"httpx2", "mcp.server.mcpserver", "mcp.client.client", "torch", "numpy"} & set(sys.modules))
class Own(pydantic.BaseModel):
    x: int
import mcp
assert "Client" in dir(mcp) or mcp.Client
from mcp import Client, ClientSession, types
from mcp.server import MCPServer
from mcp.client import Client as Same
import mcp.client.stdio
print(json.dumps([early, Same is Client, pydantic.BaseModel.model_config, Own.__pydantic_complete__,
                  hasattr(mcp, "no such name")]))
"""


def test_the_sdk_is_loaded_without_what_a_server_never_uses() -> None:
    done = subprocess.run([sys.executable, "-c", _LIGHTLY], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[], True, {}, True, False]


def test_what_is_loaded_already_stays_as_it_is() -> None:
    code = (
        "import mcp; before = mcp; from avmfs.mcp.loading import lightly\n"
        "with lightly(): import mcp\n"
        "assert mcp is before and mcp.Client"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
