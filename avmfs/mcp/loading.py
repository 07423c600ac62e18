"""Loading the MCP SDK without what a server on stdin and stdout never uses.

Owns two tricks, both undone by first use. The packages ``mcp``, ``mcp.server`` and ``mcp.client`` import the whole
client, an HTTP client and a second server framework in their ``__init__``; here these run only when somebody asks for a
name that they define (PEP 562). And the SDK's some five hundred models build their validators when they are first used
(pydantic's ``defer_build``), instead of when their class is made. Called by ``main`` before anything of the SDK is
imported; must not know what the server does with it. Not for threads: the import system is being prepared.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from typing import Any

PACKAGES = ("mcp", "mcp.server", "mcp.client")  # a parent before its children


@contextmanager
def lightly() -> Iterator[None]:
    """While this lasts, import of the SDK is light. What is already loaded stays as it is."""
    import pydantic

    for name in PACKAGES:
        if name not in sys.modules and (spec := importlib.util.find_spec(name)) is not None:
            _put_off(name, spec)
    before = pydantic.BaseModel.model_config
    pydantic.BaseModel.model_config = {**before, "defer_build": True}
    try:
        yield
    finally:
        pydantic.BaseModel.model_config = before


def _put_off(name: str, spec: ModuleSpec) -> None:
    """A package whose own code runs when an attribute of it is missed; its modules can be imported as ever."""
    package = importlib.util.module_from_spec(spec)
    loader = spec.loader
    assert loader is not None

    def missed(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        del package.__dict__["__getattr__"]
        loader.exec_module(package)
        return getattr(package, attribute)

    package.__dict__["__getattr__"] = missed
    sys.modules[name] = package
    above, _, own = name.rpartition(".")
    if above:
        setattr(sys.modules[above], own, package)
