"""A request to the writer, from the frame it came in to its reply.

Owns the wire form: ``[number, agent | None, rights, command, arguments]`` and, where it is said, the route.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from avmfs.store import commands
from avmfs.store.commands import Traits
from avmfs.store.writer import split_commit


@dataclass(slots=True)
class Request:
    """``agent`` and ``rights`` are as they came, for ``connections.requester`` to check. ``command`` is empty where the
    frame named none, or no arguments for it. ``size``: of the bytes that it brings.
    ``came``: when, by the monotonic clock."""

    number: int
    agent: Any
    rights: Any
    command: str
    arguments: dict[str, Any]
    route: str
    traits: Traits
    size: int
    came: float = field(default_factory=time.monotonic)


def parse(item: Any) -> Request | None:
    """Return the request that a frame holds; None where it is not one."""
    if type(item) is not list or not 5 <= len(item) <= 6 or type(item[0]) is not int:
        return None
    number, agent, rights, command, arguments = item[:5]
    route = item[5] if len(item) == 6 else ""
    if type(route) is not str:
        return None
    if type(command) is not str or type(arguments) is not dict:
        command, arguments = "", {}
    size = split_commit.size(arguments)
    return Request(number, agent, rights, command, arguments, route, commands.traits(command), size)
