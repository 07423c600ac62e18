"""Views by which agents share work: who has claimed a file, and the next one of a directory that nobody has.

Owns :claim and :next (docs/FORMATS.md), and what the door's methods do. A claim is advice, not a lock.
"""

from __future__ import annotations

from datetime import tzinfo
from typing import Any, Final

from avmfs import calls
from avmfs.agents import mail
from avmfs.memory import Memory
from avmfs.store.commands.claims import CANDIDATES
from avmfs.store.queries.claims import Claim
from avmfs.views.registry import Context, by_lines, view, writes

LEASE: Final = "10m"
_RELEASE: Final = "release"


def claim(memory: Memory, node: int, lease: str) -> dict[str, Any]:
    """Claim a file, or renew the claim. {"node", "until", "path"}. Raises Busy where another agent has it."""
    duration = mail.parse_duration(lease)
    memory.enroll()
    made: dict[str, Any] = memory.submit("claim", nodes=[node], lease=duration)
    return made


def claim_next(memory: Memory, directory: int, lease: str) -> dict[str, Any] | None:
    """Claim the file of a directory that was written first of those that nobody has claimed. As ``claim``; None where
    there is none."""
    duration = mail.parse_duration(lease)
    memory.enroll()
    while True:  # whoever was faster has taken all that were looked at, or we have one
        calls.go_on()
        with memory.reading() as reader:
            free = reader.claims.free(reader.node(directory).id, CANDIDATES)
        if not free and not memory.store.repeats():  # what a killed mount has claimed for this request is not free
            return None
        made: dict[str, Any] = memory.submit("claim", nodes=free, lease=duration, parent=directory)
        if made["node"] is not None:
            return made


def told(found: Claim, now: int, zone: tzinfo) -> str:
    """``bob until 2026-03-07 10:40 (9m 30s left)``."""
    return f"{found.agent} until {mail.show_time(found.until, zone)} ({mail.show_duration(found.until - now)} left)"


@view("claim", "file", summary="which agent works on it, and until when")
def claim_text(ctx: Context) -> str:
    with ctx.memory.reading() as reader:
        found = reader.claims.of(reader.node(ctx.node.id).id)
    return "(unclaimed)\n" if found is None else f"{told(found, ctx.memory.now(), ctx.memory.zone)}\n"


@writes(
    "claim",
    f"`30m` or an empty line ({LEASE}): it is this agent's until then; `{_RELEASE}`",
    check=by_lines(lambda text: _lease(text)),
    once=True,
)
def write_claim(ctx: Context, text: str) -> None:
    if text.strip() == _RELEASE:
        ctx.memory.submit("release", node=ctx.node.id)
    else:
        claim(ctx.memory, ctx.node.id, text.strip() or LEASE)


def _lease(text: str) -> None:
    if text.strip() not in ("", _RELEASE):
        mail.parse_duration(text)


@view("next", "directory", summary="claims the oldest file that nobody has claimed, and is its path", changes=True)
def next_path(ctx: Context, *, lease: str = LEASE) -> bytes:
    made = claim_next(ctx.memory, ctx.node.id, lease)
    return b"(nothing to claim)\n" if made is None else bytes(made["path"]) + b"\n"
