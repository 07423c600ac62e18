"""avmfs: one shared, persistent, searchable memory for the agents on a machine, as plain files.

``from avmfs import AVM`` is the Python door. Importing the package itself costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from avmfs.api.agent_memory import AgentMemory
    from avmfs.avm import AVM
    from avmfs.providers.handler import BaseHandler, register_handler

__all__ = ["AVM", "AgentMemory", "BaseHandler", "register_handler"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from avmfs import avm
        from avmfs.providers import handler

        return getattr(avm if hasattr(avm, name) else handler, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
