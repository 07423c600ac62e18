"""Methods of the door about who knows what: who, ask, privacy, topics. Called through the registry."""

from __future__ import annotations

from typing import Any, cast

from avmfs import paths
from avmfs.errors import Invalid
from avmfs.memory import Memory
from avmfs.rpc.methods import Limit, method
from avmfs.views import Context
from avmfs.views.overview import file_lines, files_about, first_line, found_topics, overview
from avmfs.views.who import Via, set_privacy, who_knows
from avmfs.views.who import ask as put


@method
def who(memory: Memory, q: str, limit: Limit = 10, via: str = "librarian") -> dict[str, Any]:
    """{"text", "knows": [{"agent", "host", "how", "files", "topics", "handle", "path"}], "degraded"}."""
    if via not in ("librarian", "gossip"):
        raise Invalid(f"via {via!r}: expected librarian or gossip")
    found = who_knows(memory, q, limit=limit, via=cast(Via, via))
    return {"text": found.text, "knows": found.plain, "degraded": found.degraded}


@method
def ask(
    memory: Memory, question: str, max_tokens: int | None = None, to: str | None = None, forward: bool = False
) -> dict[str, Any]:
    """{"text", "recalled", "tokens", "knows", "degraded", "asked": None or {"recipient", "id"}}."""
    found = put(memory, question, max_tokens=max_tokens, to=to, forward=forward)
    return {
        "text": found.text,
        "recalled": found.recalled,
        "tokens": found.tokens,
        "knows": found.known.plain,
        "degraded": found.degraded,
        "asked": None if found.sent is None else {"recipient": found.recipient, "id": found.sent},
    }


@method
def privacy(memory: Memory, mode: str | None = None, agent: str | None = None) -> dict[str, Any]:
    """How much others may learn of what an agent alone can read, its own unless an operator asks; changed to ``mode``
    first. {"agent", "mode"}."""
    if mode is not None:
        set_privacy(memory, mode, agent)
    whose = memory.who.name if agent is None else agent
    with memory.reading() as reader:
        return {"agent": whose, "mode": reader.discovery.privacy(whose)}


@method
def topics(memory: Memory, path: str = "/", name: str | None = None, limit: Limit = 30) -> dict[str, Any]:
    """What the files below a directory are about, or with ``name`` the files of one topic.

    {"text", "topics": [{"topic", "files"}], "files": [{"path", "handle", "line"}], "degraded"}: one of the two lists is
    empty."""
    with memory.reading() as reader:
        node = memory.directory(reader, path)
        context = Context(memory, node, reader.path(node.id))
    if name is not None:
        hits, degraded = files_about(context, name, limit)
        files = [{"path": paths.text(hit.path), "handle": f"@{hit.handle}", "line": first_line(hit)} for hit in hits]
        return {"text": file_lines(hits, degraded), "topics": [], "files": files, "degraded": degraded}
    found, degraded = found_topics(context, limit)
    counts = [{"topic": topic, "files": count} for topic, count in found]
    text = overview(context, found, limit, degraded)
    return {"text": text, "topics": counts, "files": [], "degraded": degraded}
