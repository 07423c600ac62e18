"""For whom a process speaks to the writer and to the index, and how it shows that it may."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from avmfs import wire
from avmfs.access import Principal

OPERATOR = Principal("avmfs", operator=True, route="daemon")
ANYBODY = "*"  # the agent of a connection that names one in each request: the door, the housekeeper


def proof(key: bytes, agent: str) -> bytes:
    """What a process shows to speak for ``agent``. Made by the supervisor, which alone has the key."""
    return hmac.new(key, agent.encode(), hashlib.sha256).digest()


def shown_agent(key: bytes, greeting: Any) -> str | None:
    """For whom the peer that sent this greeting has shown that it speaks, None for nobody."""
    agent = greeting.get("agent") if isinstance(greeting, dict) else None
    shown = greeting.get("proof") if isinstance(greeting, dict) else None
    if not isinstance(agent, str) or not isinstance(shown, bytes) or greeting.get("v") != wire.PROTOCOL:
        return None
    return agent if hmac.compare_digest(shown, proof(key, agent)) else None
