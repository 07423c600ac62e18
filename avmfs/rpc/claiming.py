"""Methods of the door by which agents share work: claim, release, next, claims. Called through the registry."""

from __future__ import annotations

from typing import Any

from avmfs import paths
from avmfs.agents import mail
from avmfs.errors import NotDirectory
from avmfs.memory import Memory
from avmfs.node import Kind
from avmfs.rpc.methods import method
from avmfs.views import claims as claiming

MOST = 10_000


@method
def claim(memory: Memory, path: str, lease: str = claiming.LEASE) -> dict[str, Any]:
    """Claim a file, or renew the claim. {"path", "until"}. Raises Busy where another agent has claimed it."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path).id
    return _made(claiming.claim(memory, node, lease))


@method
def claim_next(memory: Memory, path: str, lease: str = claiming.LEASE) -> dict[str, Any]:
    """Claim the oldest file of a directory that nobody has claimed. {"path", "until"}; None where there is none."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path)
    if node.kind is not Kind.DIRECTORY:
        raise NotDirectory(path=path)
    made = claiming.claim_next(memory, node.id, lease)
    return {"path": None, "until": None} if made is None else _made(made)


@method
def release(memory: Memory, path: str) -> dict[str, Any]:
    """Give up a claim. {"path", "released": whether there was one}."""
    with memory.reading() as reader:
        node = memory.resolve(reader, path).id
        where = paths.text(reader.path(node))
    return {"path": where, **memory.submit("release", node=node)}


@method
def claims(memory: Memory) -> dict[str, Any]:
    """{"claims": [{"path", "agent", "since", "until"}]}, those that are over last first."""
    with memory.reading() as reader:
        found = [
            {
                "path": paths.text(reader.path(each.node)),
                "agent": each.agent,
                "since": mail.iso(each.since),
                "until": mail.iso(each.until),
            }
            for each in reader.claims.held(MOST)
        ]
    return {"claims": found}


def _made(made: dict[str, Any]) -> dict[str, Any]:
    return {"path": paths.text(made["path"]), "until": mail.iso(made["until"])}
