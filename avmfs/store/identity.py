"""For whom a process speaks to the writer and to the index, and how it shows that it may; and how an answer shows whose
it is (``nonce``)."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from avmfs import wire
from avmfs.access import Principal

OPERATOR = Principal("avmfs", operator=True, route="daemon")
DIGITS = 6  # of a nonce: two tokens
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


def nonce(secret: bytes, agent: str, seq: int, question: str) -> str:
    """What the first and last line of an answer carry and no note between them can know: six decimal digits of the
    HMAC-SHA256 of a secret of the store over who asks, what, and of which state of the memory. So the same answer can
    be had again, and whoever writes a note can only guess: one in a million for one question of one agent in one state,
    which his own writing changes."""
    asked = b"\0".join((agent.encode(), b"%d" % seq, question.encode("utf-8", "surrogatepass")))
    number = int.from_bytes(hmac.new(secret, asked, hashlib.sha256).digest()[:8], "big")
    return f"{number % 10**DIGITS:0{DIGITS}}"
