"""Who somebody at the door is: by an API key, and whether as the operator.

Owns the decision, for both doors (a daemon's and one in this process); the store keeps the keys and the policy. Knows
no sockets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from avmfs.access import Principal
from avmfs.errors import Denied
from avmfs.memory import Memory

NOBODY: Final = Principal("")  # asks before it is known who does; no name of an agent is empty


def by_key(memory: Memory, key: str, agent: str | None, operator: bool, route: str) -> Principal:
    """The agent of an API key, with the key's limits. Raises Denied."""
    with memory.reading() as reader:
        who = reader.people.shown(key)
    if operator:
        raise Denied("an API key never makes an operator")
    if agent not in (None, who.name):
        raise Denied(f"this API key is not {agent}'s")
    return replace(who, route=route)


def require_valid(memory: Memory) -> None:
    """Raises Denied once the key of a connection has expired or was revoked, and once its operator may be none any more
    (see require_sudo)."""
    if memory.who.operator:
        require_sudo(memory)
    elif memory.who.key is not None:
        with memory.reading():
            pass


def require_sudo(memory: Memory) -> None:
    """Check that this agent may be the operator. One that the configuration names needs the capability for it. Of
    others, somebody with the store's own uid could read the file itself, and may; no stranger. Raises Denied."""
    name = memory.who.name
    with memory.reading() as reader:
        policy = reader.people.policy()
    if "sudo" not in policy.person(name).capabilities and (name in policy.people or memory.who.stranger):
        raise Denied(f"{name} may not be the operator: it lacks the capability 'sudo' (agents in config.yaml)")
