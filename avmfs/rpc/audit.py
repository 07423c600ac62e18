"""Methods of the door about the audit: who did what, and whether the log is as it was.

Owns the plain values that these become. Registered with ``methods``, which loads this module. What an asker may see is
the store's to decide: its own acts, and what happened to what it may see; the operator sees everything.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from typing import Any

from avmfs import paths
from avmfs.agents import anchors, auditing
from avmfs.agents.told import told
from avmfs.errors import Invalid, NotFound
from avmfs.memory import Memory
from avmfs.rpc.methods import Page, method
from avmfs.store.queries.audit import Act
from avmfs.views.listing import parse_since


@method
def audit(
    memory: Memory, since: str | None = None, agent: str | None = None, path: str | None = None, limit: Page = 100
) -> list[dict[str, Any]]:
    """Acts, newest first: [{"at", "agent", "operator", "route", "op", "path", "was", "version", "about"}], for the
    operator with "seq". ``since`` is an ISO 8601 time or a seq; ``path`` stands for what is below it too, and need not
    exist any more."""
    after, earliest = parse_since(memory, since)
    if agent is not None and not agent.isascii():
        raise Invalid(f"no agent can be called {agent!r}")
    where = None if path is None else paths.join(memory.real_parts(paths.raw(path)))
    with memory.reading() as reader:
        if path is not None and where is not None:
            with contextlib.suppress(NotFound):  # it may be gone; if not, it may be a handle or lie behind a symlink
                where = reader.path(memory.resolve(reader, path, follow=False).id)
        found = reader.audit.acts(since=max(0, earliest), after_seq=after, agent=agent, path=where, limit=limit)
    return [_act(each, memory.who.operator) for each in found]


@method
def audit_verify(memory: Memory, anchor: str | None = None) -> dict[str, Any]:
    """Walk the chain: {"ok", "bad", "reason", "rows", "last", "head", "unchained", "purged", "trimmed", "anchors",
    "anchor_file", "unguarded", "forged"}. ``anchor`` is one that was kept elsewhere, ``SEQ:HASH``. The operator's."""
    memory.who.require_operator("the chain of the audit is the operator's: --operator")
    where = memory.around.anchors
    kept = [] if where is None else anchors.read(where)
    if anchor is not None:
        kept.append(anchors.parse(anchor, "anchor"))
    found = auditing.verify(memory.store, memory.who, kept)
    return {
        **asdict(found.verdict),
        "ok": found.ok,
        "head": found.verdict.head.hex(),
        "anchor_file": None if where is None else str(where),
        "unguarded": list(found.altered),
        "forged": list(found.forged),
    }


@method
def audit_anchor(memory: Memory) -> str:
    """The head of the chain as a line, to be kept somewhere else. The operator's."""
    with memory.reading() as reader:
        tip = reader.audit.tip()
    return anchors.line(tip)


@method
def nonce(memory: Memory, about: str) -> dict[str, Any]:
    """What a door shows beside its own lines where it quotes several memories: {"nonce", "seq"}, the same for the same
    words in the same state of the memory."""
    with memory.reading() as reader:
        seq = reader.newest_seq()
    return {"nonce": memory.store.nonce(memory.who, seq, about), "seq": seq}


def _act(act: Act, operator: bool) -> dict[str, Any]:
    return told(
        act,
        "at agent op version seq" if operator else "at agent op version",
        operator=act.elevated,
        route=act.route or None,
        path=act.path or None,
        was=act.other,
        about=None if act.about is None else json.loads(act.about),
    )
