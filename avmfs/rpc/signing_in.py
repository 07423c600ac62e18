"""The method of the door by which somebody is let in at the daemon's HTTP service. Called through the registry.

Who asks is known here, by the door's own means; the service learns it from the supervisor and keeps a one-time code.
"""

from __future__ import annotations

from typing import Any

from avmfs.errors import NAMELESS, Busy, Denied, NotSupported, StoreFailed
from avmfs.memory import Memory
from avmfs.rpc.methods import method


@method
def sign_in(memory: Memory, start: bool = False) -> dict[str, Any]:
    """A one-time code for the daemon's HTTP service: {"url", "code", "agent", "operator"}. Good once, within a minute,
    for a session as the asker. ``start``: where the configuration has the service off, begin it (operator only).
    Raises NotSupported where it is off, Busy while it starts."""
    if memory.who.key is not None:
        raise Denied("an API key is shown to the HTTP service itself: Authorization: Bearer KEY")
    if memory.who.nameless:
        raise Denied(NAMELESS)
    if start:
        memory.who.require_operator("only an operator starts the HTTP service")
    host = memory.around.host
    asked = {"agent": memory.who.name, "operator": memory.who.operator, "start": start}
    found = host("sign_in", asked) if host is not None else {}
    if found.get("state") == "ready":
        return {"url": found["url"], "code": found["code"], "agent": asked["agent"], "operator": asked["operator"]}
    if found.get("state") in (None, "off"):
        raise NotSupported("no HTTP service: http.listen in config.yaml, or avm --operator open")
    if found["problem"]:
        raise StoreFailed(f"the HTTP service does not start: {found['problem']}")
    raise Busy("the HTTP service is starting")
