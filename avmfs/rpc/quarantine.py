"""Methods of the door about what waits in quarantine. Called through the registry."""

from __future__ import annotations

from typing import Any

from avmfs import paths
from avmfs.agents import mail
from avmfs.errors import Invalid
from avmfs.memory import Memory
from avmfs.rpc import files
from avmfs.rpc.methods import method
from avmfs.views import quarantine as views


@method
def quarantine(memory: Memory, limit: int = 100) -> dict[str, Any]:
    """Files that are found by nobody until they are let out, those changed last first. {"held": [{"path", "handle",
    "sources", "author", "route", "updated"}], "more": how many were left out}."""
    if not 1 <= limit <= 1000:
        raise Invalid(f"limit {limit}: expected 1 to 1000")
    found, in_all = views.quarantined(memory, limit)
    held = [
        {
            "path": paths.text(each.path),
            "handle": f"@{each.handle}",
            "sources": [*each.sources],
            "author": each.by,
            "route": each.route or None,
            "updated": mail.iso(each.updated),
        }
        for each in found
    ]
    return {"held": held, "more": in_all - len(held)}


@method
def let_out(memory: Memory, path: str) -> dict[str, Any]:
    """Let a file out of quarantine: it is found again, and marked. {"path"}. Raises Invalid where it is not there."""
    return {"path": views.let_out(memory, path)}


@method
def reject(memory: Memory, path: str) -> dict[str, Any]:
    """Remove a file that is in quarantine, into the trash. {"path"}. Raises Invalid where it is not there."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
        if node.scope not in reader.visible.held:
            raise Invalid("not in quarantine", path)
        where = paths.text(reader.path(node.id))
    files.remove(memory, where)
    return {"path": where}
